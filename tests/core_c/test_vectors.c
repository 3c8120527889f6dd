/* SPDX-License-Identifier: Apache-2.0 */
/* Every vector of tests/vectors, bit for bit. Runs on a PC, under qemu-user and on bare metal alike. */
#include "check.h"

enum { MOST = 11, KNOTS = 64 };

union bits {
    uint64_t word;
    double value;
};

static double real(uint64_t word) {
    union bits b = { .word = word };
    return b.value;
}

static uint64_t word_of(double value) {
    union bits b = { .value = value };
    return b.word;
}

static uint32_t crc32(uint32_t crc, uint32_t word) {
    for (int k = 0; k < 32; k += 8) {
        crc ^= (word >> k) & 0xFFu;
        for (int bit = 0; bit < 8; bit++) {
            crc = (crc >> 1) ^ (0xEDB88320u & (0u - (crc & 1u)));
        }
    }
    return crc;
}

/* Random words ---------------------------------------------------------------------------------------------------- */

static const struct {
    uint32_t counter[4], key[2], out[4];
} PHILOX[] = {
#include "../vectors/philox.inc"
};

static const struct {
    uint64_t seed;
    uint32_t purpose, epoch, step, n, below[8], after;
} BELOW[] = {
#include "../vectors/below.inc"
};

static void random_words(void) {
    for (unsigned i = 0; i < LENGTH(PHILOX); i++) {
        uint32_t out[4];
        pl_philox(PHILOX[i].counter, PHILOX[i].key, out);
        for (int k = 0; k < 4; k++) {
            CHECK(out[k] == PHILOX[i].out[k], "a block of Philox is the known answer", i);
        }
    }
    for (unsigned i = 0; i < LENGTH(BELOW); i++) {
        pl_rng rng;
        pl_rng_start(&rng, BELOW[i].seed, BELOW[i].purpose, BELOW[i].epoch, BELOW[i].step);
        for (int k = 0; k < 8; k++) {
            CHECK(pl_rng_below(&rng, BELOW[i].n) == BELOW[i].below[k], "a bounded integer is the replica's", i);
        }
        CHECK(pl_rng_word(&rng) == BELOW[i].after, "as many words were taken as the replica took", i);
    }
}

/* Permutation ----------------------------------------------------------------------------------------------------- */

static const struct {
    uint64_t seed;
    uint32_t epoch, n, head[8], crc;
} PERMUTATION[] = {
#include "../vectors/permutation.inc"
};

static void permutations(void) {
    static uint32_t out[1000];
    for (unsigned i = 0; i < LENGTH(PERMUTATION); i++) {
        uint32_t n = PERMUTATION[i].n, crc = 0xFFFFFFFFu;
        pl_permutation(PERMUTATION[i].seed, PERMUTATION[i].epoch, n, out);
        for (uint32_t k = 0; k < n; k++) {
            CHECK(k >= 8 || out[k] == PERMUTATION[i].head[k], "the first places are the replica's", i);
            crc = crc32(crc, out[k]);
        }
        CHECK(~crc == PERMUTATION[i].crc, "all places are the replica's", i);
    }
}

/* Allocation ------------------------------------------------------------------------------------------------------ */

static const struct {
    uint32_t n, budget;
    uint64_t costs[MOST];
    uint32_t minimum[MOST], capacity[MOST], shares[MOST];
} ALLOCATE[] = {
#include "../vectors/allocate.inc"
};

static void allocations(void) {
    for (unsigned i = 0; i < LENGTH(ALLOCATE); i++) {
        double costs[MOST];
        pl_seat seats[MOST];
        uint32_t shares[MOST], n = ALLOCATE[i].n;
        for (uint32_t k = 0; k < n; k++) {
            costs[k] = real(ALLOCATE[i].costs[k]);
        }
        int status = pl_allocate(n, costs, ALLOCATE[i].budget, ALLOCATE[i].minimum, ALLOCATE[i].capacity, seats, shares,
                                 (uint64_t *)0);
        CHECK(status == PL_OK, "the split is made", i);
        for (uint32_t k = 0; k < n; k++) {
            CHECK(shares[k] == ALLOCATE[i].shares[k], "the shares are the replica's", i);
        }
    }
}

/* Controller ------------------------------------------------------------------------------------------------------ */

enum op { INIT, OBSERVE, REMOVE, RESTORE, LIMIT, BUDGET, ALLOCATION };

static const struct step {
    uint32_t op, i, a, b;
    uint64_t numbers[5];
    int32_t status;
} STEPS[] = {
#include "../vectors/controller.inc"
};

static const uint32_t GROUPS[][MOST] = {
#include "../vectors/controller_groups.inc"
};

static const struct {
    uint32_t shares[MOST];
    uint64_t costs[MOST];
    uint32_t flags[MOST], crc;
} ROUNDS[] = {
#include "../vectors/controller_rounds.inc"
};

static pl_controller controller;
static pl_participant participants[MOST];
static pl_seat seats_of_all[MOST];
static pl_group groups[MOST];
static uint8_t state[2048];

static int start(const struct step *s, unsigned script) {
    pl_controller_config config = { .w_energy = real(s->numbers[0]),
                                    .w_time = real(s->numbers[1]),
                                    .ema = real(s->numbers[2]),
                                    .deadband = real(s->numbers[3]) };
    uint32_t budget[MOST] = { 0 };
    return pl_controller_init(&controller, &config, s->i, GROUPS[script], s->a, budget, MOST, participants,
                              seats_of_all, groups);
}

/* A round: its shares, costs, flags and saved bytes; then go on with a controller loaded from those bytes. */
static int end_of_round(unsigned number) {
    uint32_t shares[MOST];
    double costs[MOST];
    int status = pl_controller_allocate(&controller, shares, (uint64_t *)0, (uint32_t *)0);
    if (status == PL_OK) {
        for (uint32_t k = 0; k < controller.n; k++) {
            costs[k] = controller.participants[k].cost;
            CHECK(shares[k] == ROUNDS[number].shares[k], "a round's shares are the replica's", number);
            CHECK(word_of(costs[k]) == ROUNDS[number].costs[k], "a round's costs are the replica's, bit for bit",
                  number);
        }
    }
    for (uint32_t k = 0; k < controller.n; k++) {
        CHECK(pl_controller_flags(&controller, k) == ROUNDS[number].flags[k], "the flags are the replica's", number);
    }
    uint64_t size = pl_controller_size(&controller);
    CHECK(size <= sizeof state && pl_controller_save(&controller, state, size) == PL_OK, "the state is saved", number);
    uint32_t crc = state[size - 4] | (uint32_t)state[size - 3] << 8 | (uint32_t)state[size - 2] << 16 |
                   (uint32_t)state[size - 1] << 24;
    CHECK(crc == ROUNDS[number].crc, "the saved bytes are the replica's", number);
    int loaded = pl_controller_load(&controller, state, size, MOST, participants, seats_of_all, groups);
    CHECK(loaded == PL_OK, "the saved bytes are read back", number);
    return status;
}

static void controllers(void) {
    unsigned script = 0, number = 0;
    for (unsigned i = 0; i < LENGTH(STEPS); i++) {
        const struct step *s = &STEPS[i];
        int status = PL_OK;
        pl_report report = { real(s->numbers[0]), real(s->numbers[1]), real(s->numbers[2]),
                             real(s->numbers[3]), real(s->numbers[4]), s->a };
        switch (s->op) {
        case INIT:
            status = start(s, script++);
            break;
        case OBSERVE:
            status = pl_controller_observe(&controller, s->i, &report);
            break;
        case REMOVE:
            status = pl_controller_remove(&controller, s->i);
            break;
        case RESTORE:
            status = pl_controller_restore(&controller, s->i);
            break;
        case LIMIT:
            status = pl_controller_limit(&controller, s->i, s->a, s->b);
            break;
        case BUDGET:
            status = pl_controller_budget(&controller, s->i, s->a);
            break;
        default:
            status = end_of_round(number++);
        }
        CHECK(status == s->status, "a step ends as the replica's did", i);
    }
    CHECK(number == LENGTH(ROUNDS), "every round was run", number);
}

/* Sampler --------------------------------------------------------------------------------------------------------- */

enum { CLIENTS = 1000, IDS = 24, BATCH = 128 };

static const struct {
    uint32_t op;
    uint64_t a;
    uint32_t b, total, n_ids, ids[IDS], counts[IDS];
} SAMPLER[] = {
#include "../vectors/sampler.inc"
};

static pl_sampler sampler;
static uint32_t tree[CLIENTS], pools[CLIENTS], ids[BATCH], counts[BATCH];

static void draw(uint32_t batch, unsigned i) {
    uint32_t n_ids = 0;
    pl_sampler_draw(&sampler, batch, ids, counts, &n_ids);
    CHECK(n_ids == SAMPLER[i].n_ids, "as many clients are drawn as the replica drew", i);
    for (uint32_t k = 0; k < n_ids; k++) {
        CHECK(ids[k] == SAMPLER[i].ids[k] && counts[k] == SAMPLER[i].counts[k], "the draws are the replica's", i);
    }
}

static void many(uint32_t n, uint32_t modulus) {
    for (uint32_t k = 0; k < n; k++) {
        pools[k] = k * k % modulus;
    }
    CHECK(pl_sampler_init(&sampler, sampler.seed, sampler.epoch, n, pools, CLIENTS, tree) == PL_OK, "a thousand pools",
          n);
}

/* CRC of the ids and counts of many steps. */
static uint32_t digest(uint32_t batch, uint32_t steps) {
    uint32_t crc = 0xFFFFFFFFu;
    for (uint32_t step = 0; step < steps; step++) {
        uint32_t n_ids = 0;
        pl_sampler_draw(&sampler, batch, ids, counts, &n_ids);
        for (uint32_t k = 0; k < 2 * n_ids; k++) {
            crc = crc32(crc, k < n_ids ? ids[k] : counts[k - n_ids]);
        }
        pl_sampler_commit(&sampler);
    }
    return ~crc;
}

/* Save, forget, load: every step of a script goes on from its own saved bytes. */
static void reload(unsigned i) {
    static uint8_t bytes[512];
    uint64_t size = pl_sampler_size(&sampler);
    if (size <= sizeof bytes) {
        CHECK(pl_sampler_save(&sampler, bytes, size) == PL_OK, "the sampler is saved", i);
        CHECK(pl_sampler_load(&sampler, bytes, size, CLIENTS, tree) == PL_OK, "the saved bytes are read back", i);
    }
}

static void samplers(void) {
    for (unsigned i = 0; i < LENGTH(SAMPLER); i++) {
        uint32_t a = (uint32_t)SAMPLER[i].a, b = SAMPLER[i].b;
        int status = PL_OK;
        switch (SAMPLER[i].op) {
        case 0:
            status = pl_sampler_init(&sampler, SAMPLER[i].a, b, 0, pools, CLIENTS, tree);
            break;
        case 1:
            draw(a, i);
            break;
        case 2:
            pl_sampler_commit(&sampler);
            reload(i);
            break;
        case 3:
            status = pl_sampler_void(&sampler, SAMPLER[i].n_ids, SAMPLER[i].ids, SAMPLER[i].counts);
            reload(i);
            break;
        case 4:
            status = pl_sampler_set_count(&sampler, a, b);
            break;
        case 5:
            status = pl_sampler_add(&sampler, a);
            break;
        case 6:
            many(a, b);
            break;
        default:
            CHECK(digest(a, b) == SAMPLER[i].n_ids, "many draws are the replica's", i);
        }
        CHECK(status == PL_OK && sampler.total == SAMPLER[i].total, "the pool is the replica's", i);
    }
}

/* Schedule -------------------------------------------------------------------------------------------------------- */

static const struct {
    uint32_t n, steps, shares[8], batches[96];
} SCHEDULE[] = {
#include "../vectors/schedule.inc"
};

static void schedules(void) {
    for (unsigned i = 0; i < LENGTH(SCHEDULE); i++) {
        uint32_t batches[96], n = SCHEDULE[i].n, steps = SCHEDULE[i].steps;
        CHECK(pl_schedule(n, SCHEDULE[i].shares, steps, 0, batches, (uint32_t *)0) == PL_OK, "a schedule is made", i);
        for (uint32_t k = 0; k < n * steps; k++) {
            CHECK(batches[k] == SCHEDULE[i].batches[k], "the batches are the replica's", i);
        }
    }
}

/* Energy ---------------------------------------------------------------------------------------------------------- */

static const struct {
    uint32_t op;
    int64_t numbers[4];
    int32_t status;
    int64_t out[5];
} ENERGY[] = {
#include "../vectors/energy.inc"
};

static void energies(void) {
    static pl_integrator e;
    static pl_knot knots[KNOTS];
    for (unsigned i = 0; i < LENGTH(ENERGY); i++) {
        const int64_t *x = ENERGY[i].numbers, *want = ENERGY[i].out;
        uint64_t t0 = (uint64_t)x[0], t1 = (uint64_t)x[1];
        pl_energy out = { 0, 0, 0, 0, 0 };
        int status = PL_OK;
        switch (ENERGY[i].op) {
        case 0:
            status = pl_integrator_init(&e, (uint32_t)x[0], t1, (uint64_t)x[2], (uint32_t)x[3], knots);
            break;
        case 1:
            status = pl_integrator_interval(&e, t0, t1, x[2], (uint64_t)x[3]);
            break;
        case 2:
            status = pl_integrator_point(&e, t0, x[1], (uint64_t)x[2]);
            break;
        case 3:
            status = pl_integrator_counter(&e, t0, t1);
            break;
        default:
            status = pl_integrator_window(&e, t0, t1, &out);
            CHECK(out.energy_uj == want[0], "a window's energy is the replica's", i);
            CHECK(out.covered_us == (uint64_t)want[1], "its covered time is the replica's", i);
            CHECK(out.bound_uj == (uint64_t)want[2], "its bound is the replica's", i);
            CHECK(out.edge_uj == (uint64_t)want[3], "what its edges may add is the replica's", i);
            CHECK(out.flags == (uint32_t)want[4], "its flags are the replica's", i);
        }
        CHECK(status == ENERGY[i].status, "a reading or window ends as the replica's did", i);
    }
}

/* Sensors --------------------------------------------------------------------------------------------------------- */

static const struct {
    uint32_t chip, config;
    uint8_t shunt[2], bus[2];
    uint32_t shunt_uohm;
    int64_t out[5];
} SENSORS[] = {
#include "../vectors/sensors.inc"
};

static void sensors(void) {
    pl_rail out = { 0, 0, 0, 0, 0 };
    for (unsigned i = 0; i < LENGTH(SENSORS); i++) {
        const uint8_t *shunt = SENSORS[i].shunt, *bus = SENSORS[i].bus;
        const int64_t *want = SENSORS[i].out;
        uint32_t uohm = SENSORS[i].shunt_uohm;
        int status = SENSORS[i].chip == 219 ? pl_ina219(SENSORS[i].config, shunt, bus, uohm, &out)
                                            : pl_ina3221(shunt, bus, uohm, &out);
        CHECK(status == PL_OK, "registers are decoded", i);
        CHECK(out.shunt_uv == want[0] && out.bus_mv == want[1], "the voltages are the replica's", i);
        CHECK(out.current_ua == want[2] && out.power_uw == want[3], "current and power are the replica's", i);
        CHECK(out.flags == want[4], "the flags are the replica's", i);
    }
    static const uint8_t WIRE[2] = { 0, 8 };
    CHECK(pl_ina219(0, WIRE, WIRE, 0, &out) == PL_ERR_ARGUMENT, "a shunt of nothing is refused", 0);
    CHECK(pl_ina3221(WIRE, WIRE, 0, &out) == PL_ERR_ARGUMENT, "a shunt of nothing is refused", 1);
}

/* Frontier -------------------------------------------------------------------------------------------------------- */

static const struct {
    uint32_t n, n_groups, kind, budget[3];
    uint64_t limit, time, reals[6 * MOST];
    uint32_t words[3 * MOST];
    int32_t status;
    uint32_t shares[MOST];
    uint64_t figures[6];
} FRONTIER[] = {
#include "../vectors/frontier.inc"
};

static const struct {
    uint64_t seconds;
    uint32_t samples;
    uint64_t fields[9];
    uint32_t reports;
} FIT[] = {
#include "../vectors/fit.inc"
};

static void frontiers(void) {
    static pl_pace paces[MOST];
    static pl_lane lanes[MOST];
    static pl_lot lots[3];
    static pl_corner corners[4 * MOST + 6];
    for (unsigned i = 0; i < LENGTH(FRONTIER); i++) {
        uint32_t shares[MOST] = { 0 };
        pl_goal goal = { real(FRONTIER[i].limit), FRONTIER[i].kind };
        pl_frontier out;
        double time = real(FRONTIER[i].time);
        for (uint32_t k = 0; k < FRONTIER[i].n; k++) {
            const uint64_t *r = &FRONTIER[i].reals[6 * k];
            const uint32_t *w = &FRONTIER[i].words[3 * k];
            pl_pace pace = { real(r[0]), real(r[1]), real(r[2]), real(r[3]), real(r[4]), real(r[5]), w[0], w[1], w[2] };
            paces[k] = pace;
        }
        int status = pl_frontier_plan(&goal, FRONTIER[i].n, paces, FRONTIER[i].n_groups, FRONTIER[i].budget, 1, &time,
                                      lanes, lots, corners, shares, &out);
        CHECK(status == FRONTIER[i].status, "the goal is reached, or not, as by the replica", i);
        for (uint32_t k = 0; k < MOST; k++) {
            CHECK(shares[k] == FRONTIER[i].shares[k], "the plan is the replica's", i);
        }
        const double figures[] = { out.seconds,       out.energy_j, out.real_seconds, out.real_j,
                                   out.least_seconds, out.least_j,  out.nearest };
        for (int k = 0; k < (status == PL_OK ? 6 : 1); k++) {
            double figure = status == PL_OK ? figures[k] : figures[6];
            CHECK(word_of(figure) == FRONTIER[i].figures[k], "its figures are the replica's, bit for bit", i);
        }
    }
}

static void fits(void) {
    pl_fit f = { 0 };
    for (unsigned i = 0; i < LENGTH(FIT); i++) {
        if (FIT[i].samples == 0) {
            f = (pl_fit){ 0 };
            continue;
        }
        CHECK(pl_fit_observe(&f, real(FIT[i].seconds), FIT[i].samples) == PL_OK, "a report is taken", i);
        const double fields[] = { f.fixed_seconds, f.seconds_per_sample, f.proportional,
                                  f.error_affine,  f.error_proportional, f.var_fixed,
                                  f.covariance,    f.var_pace,           f.typical_samples };
        for (int k = 0; k < 9; k++) {
            CHECK(word_of(fields[k]) == FIT[i].fields[k], "the fit is the replica's, bit for bit", i);
        }
        CHECK(f.reports == FIT[i].reports, "reports are counted", i);
    }
}

/* Sums ------------------------------------------------------------------------------------------------------------ */

enum { SUMS_MOST = 37 };

static const struct {
    uint32_t n;
    uint64_t weight, mix, distance;
    uint32_t model[SUMS_MOST], update[SUMS_MOST], mixed[SUMS_MOST];
    uint64_t before[SUMS_MOST], after[SUMS_MOST];
} SUMS[] = {
#include "../vectors/sums.inc"
};

static void sums(void) {
    for (unsigned i = 0; i < LENGTH(SUMS); i++) {
        const uint8_t *model = (const uint8_t *)SUMS[i].model, *update = (const uint8_t *)SUMS[i].update;
        double total[SUMS_MOST];
        uint32_t out[SUMS_MOST] = { 0 };
        for (int k = 0; k < SUMS_MOST; k++) {
            total[k] = real(SUMS[i].before[k]);
        }
        pl_sums_add(SUMS[i].n, real(SUMS[i].weight), update, total);
        pl_sums_mix(SUMS[i].n, real(SUMS[i].mix), model, update, (uint8_t *)out);
        for (int k = 0; k < SUMS_MOST; k++) {
            CHECK(word_of(total[k]) == SUMS[i].after[k], "a sum is the replica's, bit for bit", i);
            CHECK(out[k] == SUMS[i].mixed[k], "a mixed item is the replica's, bit for bit", i);
        }
        CHECK(word_of(pl_sums_distance(SUMS[i].n, update, model)) == SUMS[i].distance, "a distance is the replica's",
              i);
    }
}

int main(void) {
    random_words();
    permutations();
    allocations();
    controllers();
    samplers();
    schedules();
    energies();
    sensors();
    frontiers();
    fits();
    sums();
    return verdict("vectors");
}
