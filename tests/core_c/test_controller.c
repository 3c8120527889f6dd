/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"

/* Controller ------------------------------------------------------------------------------------------------------ */

enum { N = 3 };

static pl_controller c;
static pl_participant participants[N + 1];
static pl_seat seats[N + 1];
static pl_group group;
static const double NOT_KNOWN = -1.0;

static int make(pl_controller_config config) {
    uint32_t budget = 600;
    return pl_controller_init(&c, &config, N, (uint32_t *)0, 1, &budget, N + 1, participants, seats, &group);
}

/* Configs ---- */

/* clang-format off */
static const struct {
    const char *what;
    pl_controller_config config;
    int status;
} CONFIGS[] = {
    { "a zeroed config is valid", { 0 }, PL_OK },
    { "joules alone are valid", { .w_energy = 1.0 }, PL_OK },
    { "both weights may be given", { .w_energy = 3.0, .w_time = 4.0 }, PL_OK },
    { "no time beside joules", { .w_energy = 0.5, .w_time = -1.0 }, PL_OK },
    { "no weight at all is refused", { .w_time = -1.0 }, PL_ERR_ARGUMENT },
    { "w_energy above 1 leaves nothing for time", { .w_energy = 1.5 }, PL_ERR_ARGUMENT },
    { "a negative w_energy is refused", { .w_energy = -0.1 }, PL_ERR_ARGUMENT },
    { "an EMA of 1 forgets at once", { .ema = 1.0 }, PL_OK },
    { "an EMA above 1 is refused", { .ema = 1.1 }, PL_ERR_ARGUMENT },
    { "a negative EMA is refused", { .ema = -0.5 }, PL_ERR_ARGUMENT },
    { "a negative dead-band is none", { .deadband = -3.0 }, PL_OK },
    { "a minimum above the capacity is refused", { .minimum = 5, .capacity = 4 }, PL_ERR_LIMITS },
    { "no minimum fits any capacity", { .minimum = PL_NO_MINIMUM, .capacity = 1 }, PL_OK },
};

/* Rounds: one report each of three participants, then the split of 600. EMA 1 and no dead-band, so each row stands alone. */
static const struct {
    const char *what;
    double w_energy;
    double seconds[N], energy_j[N]; /* of 100 samples; seconds 0: no report */
    uint32_t shares[N];
} ROUNDS[] = {
    { "nobody reported: all alike", 0.5, { 0, 0, 0 }, { 0, 0, 0 }, { 200, 200, 200 } },
    { "time only: inverse to seconds per sample", 0.0, { 1, 2, 2 }, { 9, 1, 1 }, { 300, 150, 150 } },
    { "joules only: inverse to joules per sample", 1.0, { 9, 1, 1 }, { 1, 2, 2 }, { 300, 150, 150 } },
    { "an unknown energy counts as the time", 1.0, { 1, 2, 2 }, { NOT_KNOWN, 4, 4 }, { 300, 150, 150 } },
    { "zero joules are unknown, not cheap", 1.0, { 1, 2, 2 }, { 0, 4, 4 }, { 300, 150, 150 } },
    { "no energy known at all: time only", 1.0, { 1, 2, 2 }, { NOT_KNOWN, NOT_KNOWN, NOT_KNOWN }, { 300, 150, 150 } },
    { "who never reported has the median cost", 0.0, { 1, 3, 0 }, { 1, 1, 0 }, { 327, 109, 164 } },
};
/* clang-format on */

static void configs(void) {
    for (unsigned i = 0; i < LENGTH(CONFIGS); i++) {
        CHECK(make(CONFIGS[i].config) == CONFIGS[i].status, CONFIGS[i].what, i);
    }
}

static void rounds(void) {
    for (unsigned i = 0; i < LENGTH(ROUNDS); i++) {
        uint32_t shares[N];
        make((pl_controller_config){ .w_energy = ROUNDS[i].w_energy, .ema = 1.0, .deadband = -1.0 });
        for (uint32_t k = 0; k < N; k++) {
            if (ROUNDS[i].seconds[k] > 0.0) {
                pl_report report = { .seconds = ROUNDS[i].seconds[k],
                                     .energy_j = ROUNDS[i].energy_j[k],
                                     .samples = 100 };
                CHECK(pl_controller_observe(&c, k, &report) == PL_OK, ROUNDS[i].what, i);
            }
        }
        CHECK(pl_controller_allocate(&c, shares, (uint64_t *)0, (uint32_t *)0) == PL_OK, ROUNDS[i].what, i);
        for (uint32_t k = 0; k < N; k++) {
            CHECK(shares[k] == ROUNDS[i].shares[k], ROUNDS[i].what, i);
        }
    }
}

/* Bounds of the calls ---- */

static void bounds(void) {
    pl_report good = { .seconds = 1.0, .energy_j = 1.0, .samples = 1 };
    uint8_t bytes[1024];
    make((pl_controller_config){ 0 });
    CHECK(pl_controller_observe(&c, N, &good) == PL_ERR_ARGUMENT, "no report of a stranger", 0);
    CHECK(pl_controller_remove(&c, N) == PL_ERR_ARGUMENT, "no stranger is removed", 1);
    CHECK(pl_controller_limit(&c, N, 0, 1) == PL_ERR_ARGUMENT, "no limits for a stranger", 2);
    CHECK(pl_controller_limit(&c, 0, 2, 1) == PL_ERR_LIMITS, "no minimum above a capacity", 3);
    CHECK(pl_controller_budget(&c, 1, 1) == PL_ERR_ARGUMENT, "no budget for a group that is not there", 4);
    CHECK(pl_controller_add(&c, 1) == PL_ERR_ARGUMENT, "no newcomer in a group that is not there", 5);
    CHECK(pl_controller_add(&c, 0) == PL_OK && c.n == N + 1, "a newcomer has room", 6);
    CHECK(pl_controller_add(&c, 0) == PL_ERR_ROOM, "the next one has none", 7);
    CHECK(pl_controller_flags(&c, 99) == 0, "a stranger has no flags", 8);
    CHECK(pl_controller_save(&c, bytes, 10) == PL_ERR_ROOM, "a state needs its size", 9);
    uint64_t size = pl_controller_size(&c);
    CHECK(pl_controller_save(&c, bytes, size) == PL_OK, "a state is saved", 10);
    CHECK(pl_controller_load(&c, bytes, size, N, participants, seats, &group) == PL_ERR_ROOM, "four need room for four",
          11);
    for (uint64_t k = 0; k < size; k++) {
        bytes[k] ^= 1;
        CHECK(pl_controller_load(&c, bytes, size, N + 1, participants, seats, &group) == PL_ERR_STATE,
              "a state with any bit flipped is refused", k);
        CHECK(pl_controller_load(&c, bytes, k, N + 1, participants, seats, &group) == PL_ERR_STATE,
              "a state cut short is refused", k);
        bytes[k] ^= 1;
    }
}

int main(void) {
    configs();
    rounds();
    bounds();
    return verdict("controller");
}
