/* SPDX-License-Identifier: Apache-2.0 */
/* The fast way for many gives what the exact way gives, or says that it cannot tell. */
#include "check.h"

#include "../../core_c/src/pl_internal.h"

#include <stdlib.h>

/* Allocation for many --------------------------------------------------------------------------------------------- */

enum { MANY = 6000, TRIALS = 400 };

static double costs[MANY];
static uint32_t minimum[MANY], capacity[MANY], fast[MANY], exact[MANY];
static pl_seat seats[MANY];

static double cost(pl_rng *rng, uint32_t kind) {
    double fine = (1.0 + pl_rng_below(rng, 1u << 30)) / (1u << 24);
    switch (kind) {
    case 0:
        return fine; /* two decades and a half, none equal */
    case 1:
        return 7.0; /* all equal, as before the first report */
    case 2:
        return 1.0 + pl_rng_below(rng, 5); /* few kinds of boards */
    case 3:
        return fine * (pl_rng_below(rng, 9) ? 1.0 : 1e9);
    default:
        return 1.0 + 1e-13 * pl_rng_below(rng, 1000); /* too alike to tell apart */
    }
}

static void like_the_exact_way(uint32_t seed) {
    pl_rng rng;
    pl_rng_start(&rng, seed, PL_PURPOSE_SAMPLER, 0, 0);
    unsigned told[5] = { 0 };
    for (unsigned trial = 0; trial < TRIALS; trial++) {
        uint32_t kind = trial % 5, n = PL_WIDE + pl_rng_below(&rng, MANY - PL_WIDE + 1), limits = pl_rng_below(&rng, 3);
        uint64_t low = 0, high = 0;
        uint32_t each = 1 + pl_rng_below(&rng, 40);
        for (uint32_t i = 0; i < n; i++) {
            costs[i] = cost(&rng, kind);
            minimum[i] = limits == 0 ? 1 : pl_rng_below(&rng, each + 1);
            capacity[i] = limits < 2 || pl_rng_below(&rng, 2) ? PL_NO_CAPACITY : minimum[i] + pl_rng_below(&rng, 90);
            low += minimum[i];
            high += capacity[i];
        }
        uint64_t budget = low + pl_rng_below(&rng, 30 * n);
        budget = budget < high ? budget : high;
        for (uint32_t i = 0; i < n; i++) {
            seats[i].index = i;
            seats[i].cost = costs[i];
            seats[i].minimum = minimum[i];
            seats[i].capacity = capacity[i];
        }
        pl_split_sorted(seats, n, (uint32_t)budget);
        for (uint32_t i = 0; i < n; i++) {
            exact[seats[i].index] = seats[i].share;
        }
        if (pl_allocate_wide(n, costs, (uint32_t)budget, minimum, capacity, seats, fast)) {
            told[kind]++;
            for (uint32_t i = 0; i < n; i++) {
                CHECK(fast[i] == exact[i], "a share is that of the exact way", trial);
            }
        }
        for (uint32_t i = 0; i < n; i++) {
            pl_seat s = { .index = i, .cost = costs[i], .minimum = minimum[i], .capacity = capacity[i] };
            seats[i] = s;
        }
        if (pl_split_wide(seats, n, (uint32_t)budget)) {
            told[kind]++;
            for (uint32_t i = 0; i < n; i++) {
                CHECK(seats[i].share == exact[seats[i].index], "a share in a seat is that of the exact way", trial);
            }
        }
        CHECK(pl_allocate(n, costs, (uint32_t)budget, minimum, capacity, seats, fast, (uint64_t *)0) == PL_OK,
              "the split is made either way", trial);
        for (uint32_t i = 0; i < n; i++) {
            CHECK(fast[i] == exact[i], "a share of pl_allocate is that of the exact way", trial);
        }
    }
    printf("told without sorting, of %d each, twice: %u %u %u %u %u\n", TRIALS / 5, told[0], told[1], told[2], told[3],
           told[4]);
    CHECK(told[0] > 2 * TRIALS / 5 * 9 / 10, "where costs differ the fast way nearly always can tell", told[0]);
    CHECK(told[1] > 0, "equal costs are told without sorting", told[1]);
}

int main(int argc, char *argv[]) {
    uint32_t seed = argc > 1 ? (uint32_t)strtoul(argv[1], (char **)0, 10) : 1;
    printf("seed %lu\n", (unsigned long)seed);
    like_the_exact_way(seed);
    return verdict("allocate_wide");
}
