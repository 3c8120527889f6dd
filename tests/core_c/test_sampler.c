/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"

#include <stdlib.h>

/* Sampler --------------------------------------------------------------------------------------------------------- */

enum { MOST = 6 };

/* clang-format off */
static const struct {
    const char *what;
    uint32_t n, pools[MOST], batch, drawn; /* drawn: how many come */
    int status;
} CASES[] = {
    { "an empty pool is never drawn", 3, { 0, 3, 0 }, 3, 3, PL_OK },
    { "empty pools give nothing", 2, { 0, 0 }, 3, 0, PL_OK },
    { "no clients give nothing", 0, { 0 }, 3, 0, PL_OK },
    { "the last batch is what is left", 4, { 1, 1, 1, 2 }, 99, 5, PL_OK },
    { "a batch of nothing is empty", 2, { 5, 5 }, 0, 0, PL_OK },
    { "pools of UINT32_MAX in all are the most there may be", 2, { 0xFFFFFFFEu, 1 }, 5, 5, PL_OK },
    { "one sample more is too much", 2, { 0xFFFFFFFFu, 1 }, 5, 0, PL_ERR_TOTAL },
};
/* clang-format on */

static void tables(void) {
    for (unsigned i = 0; i < LENGTH(CASES); i++) {
        pl_sampler s;
        uint32_t tree[MOST], ids[100], counts[100], left[MOST], n_ids = 0, sum = 0;
        int status = pl_sampler_init(&s, 1, 0, CASES[i].n, CASES[i].pools, MOST, tree);
        CHECK(status == CASES[i].status, CASES[i].what, i);
        if (status != PL_OK) {
            continue;
        }
        uint32_t before = s.total;
        pl_sampler_draw(&s, CASES[i].batch, ids, counts, &n_ids);
        pl_sampler_counts(&s, left);
        for (uint32_t k = 0; k < n_ids; k++) {
            sum += counts[k];
            CHECK(k == 0 || ids[k] > ids[k - 1], "clients come in increasing order, each once", i);
            CHECK(left[ids[k]] + counts[k] == CASES[i].pools[ids[k]], "nobody is overdrawn", i);
        }
        CHECK(sum == CASES[i].drawn && s.total == before - sum, CASES[i].what, i);
    }
}

static void bounds(void) {
    pl_sampler s;
    uint32_t pools[] = { 5, 5 }, tree[3], ids[] = { 9 }, counts[] = { 1 };
    uint8_t bytes[64];
    CHECK(pl_sampler_init(&s, 1, 0, 2, pools, 1, tree) == PL_ERR_ROOM, "a tree needs its room", 0);
    CHECK(pl_sampler_init(&s, 1, 0, 2, pools, 3, tree) == PL_OK, "two clients, room for three", 1);
    CHECK(pl_sampler_set_count(&s, 2, 1) == PL_ERR_ARGUMENT, "no count for a stranger", 2);
    CHECK(pl_sampler_set_count(&s, 1, UINT32_MAX) == PL_ERR_TOTAL, "no more than UINT32_MAX in all", 3);
    CHECK(pl_sampler_add(&s, UINT32_MAX) == PL_ERR_TOTAL, "nor by a newcomer", 4);
    CHECK(pl_sampler_add(&s, 7) == PL_OK && s.total == 17 && pl_sampler_count(&s, 2) == 7, "a newcomer has room", 5);
    CHECK(pl_sampler_add(&s, 7) == PL_ERR_ROOM, "the next one has none", 6);
    CHECK(pl_sampler_void(&s, 1, ids, counts) == PL_ERR_ARGUMENT, "a stranger's draws do not come back", 7);
    CHECK(pl_sampler_count(&s, 99) == 0, "a stranger has nothing", 8);
    uint64_t size = pl_sampler_size(&s);
    CHECK(pl_sampler_save(&s, bytes, size) == PL_OK, "a state is saved", 9);
    CHECK(pl_sampler_load(&s, bytes, size, 2, tree) == PL_ERR_ROOM, "three clients need room for three", 10);
    for (uint64_t k = 0; k < size; k++) {
        bytes[k] ^= 4;
        CHECK(pl_sampler_load(&s, bytes, size, 3, tree) == PL_ERR_STATE, "a state with any bit flipped is refused", k);
        CHECK(pl_sampler_load(&s, bytes, k, 3, tree) == PL_ERR_STATE, "a state cut short is refused", k);
        bytes[k] ^= 4;
    }
}

/* Churn against plain counts; the seed is printed and may be given as argv[1]. */
static void laws(uint32_t seed) {
    static uint32_t tree[200], pools[200], left[200], ids[50], counts[50];
    pl_rng rng;
    pl_sampler s;
    pl_rng_start(&rng, seed, 999, 0, 0);
    for (unsigned trial = 0; trial < 300; trial++) {
        uint32_t n = pl_rng_below(&rng, 100);
        for (uint32_t k = 0; k < n; k++) {
            pools[k] = pl_rng_below(&rng, 3) ? pl_rng_below(&rng, 50) : 0;
        }
        pl_sampler_init(&s, trial, 0, n, pools, 200, tree);
        for (int move = 0; move < 60; move++) {
            uint32_t n_ids = 0, k = n > 0 ? pl_rng_below(&rng, n) : 0, total = 0;
            switch (pl_rng_below(&rng, 4)) {
            case 0:
                pools[n] = pl_rng_below(&rng, 30);
                CHECK(pl_sampler_add(&s, pools[n++]) == PL_OK, "a newcomer joins", trial);
                break;
            case 1:
                if (n > 0) {
                    pools[k] = pl_rng_below(&rng, 30);
                    CHECK(pl_sampler_set_count(&s, k, pools[k]) == PL_OK, "a count is changed", trial);
                }
                break;
            default:
                pl_sampler_draw(&s, pl_rng_below(&rng, 50), ids, counts, &n_ids);
                if (pl_rng_below(&rng, 2)) {
                    CHECK(pl_sampler_void(&s, n_ids, ids, counts) == PL_OK, "a step is void", trial);
                } else {
                    pl_sampler_commit(&s);
                    for (uint32_t i = 0; i < n_ids; i++) {
                        pools[ids[i]] -= counts[i];
                    }
                }
            }
            pl_sampler_counts(&s, left);
            for (uint32_t i = 0; i < n; i++) {
                total += pools[i];
                CHECK(left[i] == pools[i] && pl_sampler_count(&s, i) == pools[i], "each pool is what it should be",
                      trial);
            }
            CHECK(s.total == total, "the total is the sum", trial);
        }
    }
}

/* Schedule -------------------------------------------------------------------------------------------------------- */

/* clang-format off */
static const struct {
    const char *what;
    uint32_t n, shares[3], steps, minimum;
    int status;
    uint32_t most;
} SCHEDULES[] = {
    { "shares that divide", 3, { 8, 4, 12 }, 4, 1, PL_OK, 0 },
    { "shares that do not", 3, { 9, 5, 11 }, 4, 1, PL_OK, 0 },
    { "a share below the steps names the most steps there can be", 3, { 9, 3, 11 }, 4, 1, PL_ERR_STEPS, 3 },
    { "so does a larger minimum", 3, { 9, 8, 11 }, 4, 3, PL_ERR_STEPS, 2 },
    { "without a minimum a rank may pause", 3, { 9, 0, 2 }, 4, 0, PL_OK, 0 },
    { "no step is none", 3, { 9, 1, 2 }, 0, 1, PL_ERR_ARGUMENT, 0 },
    { "nobody is none", 0, { 0 }, 1, 1, PL_ERR_ARGUMENT, 0 },
};
/* clang-format on */

static void schedules(void) {
    for (unsigned i = 0; i < LENGTH(SCHEDULES); i++) {
        uint32_t batches[12], most = 0, n = SCHEDULES[i].n, steps = SCHEDULES[i].steps, budget = 0;
        int status = pl_schedule(n, SCHEDULES[i].shares, steps, SCHEDULES[i].minimum, batches, &most);
        CHECK(status == SCHEDULES[i].status && most == SCHEDULES[i].most, SCHEDULES[i].what, i);
        for (uint32_t r = 0; status == PL_OK && r < n; r++) {
            uint32_t sum = 0;
            for (uint32_t step = 0; step < steps; step++) {
                uint32_t batch = batches[step * n + r], floor = SCHEDULES[i].shares[r] / steps;
                CHECK(batch == floor || batch == floor + 1, "each batch is the floor or the ceiling of the mean", i);
                sum += batch;
            }
            CHECK(sum == SCHEDULES[i].shares[r], "a rank's batches sum to its share", i);
            budget += sum;
        }
        for (uint32_t step = 0; status == PL_OK && step < steps; step++) {
            uint32_t sum = 0;
            for (uint32_t r = 0; r < n; r++) {
                sum += batches[step * n + r];
            }
            CHECK(sum == budget / steps || sum == budget / steps + 1, "so is each step's sum", i);
        }
    }
}

int main(int argc, char *argv[]) {
    uint32_t seed = argc > 1 ? (uint32_t)strtoul(argv[1], (char **)0, 10) : 1;
    printf("seed %lu\n", (unsigned long)seed);
    tables();
    bounds();
    laws(seed);
    schedules();
    return verdict("sampler");
}
