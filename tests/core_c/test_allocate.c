/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"

#include <stdlib.h>

/* Allocation ------------------------------------------------------------------------------------------------------ */

enum { MOST = 5, NONE = 0x7FFFFFFF, DEFAULT = -1 };

/* clang-format off */
static const struct {
    const char *what;
    uint32_t n, budget;
    double costs[MOST];
    int64_t minimum[MOST], capacity[MOST]; /* DEFAULT in the first: NULL */
    int status;
    uint64_t missing;
    uint32_t shares[MOST];
} CASES[] = {
    { "equal costs get equal shares", 4, 400, { 3, 3, 3, 3 }, { DEFAULT }, { DEFAULT }, PL_OK, 0, { 100, 100, 100, 100 } },
    { "shares are inverse to costs", 3, 700, { 1, 2, 4 }, { DEFAULT }, { DEFAULT }, PL_OK, 0, { 400, 200, 100 } },
    { "the odd samples of a tie go to the lower indices", 4, 402, { 1, 1, 1, 1 }, { DEFAULT }, { DEFAULT }, PL_OK, 0,
      { 101, 101, 100, 100 } },
    { "the largest remainder gets the odd sample", 2, 10, { 1, 3 }, { DEFAULT }, { DEFAULT }, PL_OK, 0, { 8, 2 } },
    { "the default minimum is one sample", 2, 100, { 1, 1e9 }, { DEFAULT }, { DEFAULT }, PL_OK, 0, { 99, 1 } },
    { "a minimum of 0 may leave nothing", 2, 100, { 1, 1e9 }, { 0, 0 }, { DEFAULT }, PL_OK, 0, { 100, 0 } },
    { "what a capacity keeps out goes to the others", 3, 900, { 1, 1, 1 }, { 0, 0, 0 }, { 100, NONE, NONE }, PL_OK, 0,
      { 100, 400, 400 } },
    { "what a minimum takes comes from the others", 3, 900, { 1, 1, 1 }, { 500, 0, 0 }, { NONE, NONE, NONE }, PL_OK, 0,
      { 500, 200, 200 } },
    { "minimum and capacity in force at once", 3, 1000, { 1, 10, 10 }, { 0, 300, 0 }, { 500, NONE, NONE }, PL_OK, 0,
      { 500, 300, 200 } },
    { "capacities that just hold the budget", 2, 10, { 1, 1 }, { 0, 0 }, { 3, 7 }, PL_OK, 0, { 3, 7 } },
    { "minima that just are the budget", 2, 10, { 1, 9 }, { 3, 7 }, { NONE, NONE }, PL_OK, 0, { 3, 7 } },
    { "a budget below the minima names what is missing", 3, 2, { 1, 1, 1 }, { DEFAULT }, { DEFAULT }, PL_ERR_MINIMA, 1, { 0 } },
    { "a budget above the capacities names what is left", 2, 10, { 1, 1 }, { 0, 0 }, { 3, 3 }, PL_ERR_CAPACITY, 4, { 0 } },
    { "a minimum above its capacity is refused", 1, 5, { 1 }, { 6 }, { 5 }, PL_ERR_LIMITS, 0, { 0 } },
    { "a cost of 0 is refused", 2, 10, { 0, 1 }, { DEFAULT }, { DEFAULT }, PL_ERR_ARGUMENT, 0, { 0 } },
    { "a negative cost is refused", 2, 10, { 1, -1 }, { DEFAULT }, { DEFAULT }, PL_ERR_ARGUMENT, 0, { 0 } },
    { "nobody takes nothing", 0, 0, { 0 }, { DEFAULT }, { DEFAULT }, PL_OK, 0, { 0 } },
    { "nobody cannot take something", 0, 3, { 0 }, { DEFAULT }, { DEFAULT }, PL_ERR_CAPACITY, 3, { 0 } },
    { "the largest budget there is", 2, 0xFFFFFFFFu, { 1, 1 }, { DEFAULT }, { DEFAULT }, PL_OK, 0, { 0x80000000u, 0x7FFFFFFFu } },
};
/* clang-format on */

static void tables(void) {
    for (unsigned i = 0; i < LENGTH(CASES); i++) {
        uint32_t minimum[MOST], capacity[MOST], shares[MOST] = { 0 };
        uint64_t missing = 0;
        pl_seat seats[MOST];
        for (int k = 0; k < MOST; k++) {
            minimum[k] = (uint32_t)CASES[i].minimum[k];
            capacity[k] = CASES[i].capacity[k] == NONE ? PL_NO_CAPACITY : (uint32_t)CASES[i].capacity[k];
        }
        int status = pl_allocate(CASES[i].n, CASES[i].costs, CASES[i].budget,
                                 CASES[i].minimum[0] == DEFAULT ? (uint32_t *)0 : minimum,
                                 CASES[i].capacity[0] == DEFAULT ? (uint32_t *)0 : capacity, seats, shares, &missing);
        CHECK(status == CASES[i].status, CASES[i].what, i);
        CHECK(missing == CASES[i].missing, CASES[i].what, i);
        for (uint32_t k = 0; k < CASES[i].n; k++) {
            CHECK(shares[k] == CASES[i].shares[k], CASES[i].what, i);
        }
    }
}

/* Laws on random fleets; the seed is printed and may be given as argv[1]. */
static void laws(uint32_t seed) {
    static double costs[300];
    static uint32_t minimum[300], capacity[300], shares[300];
    static pl_seat seats[300];
    pl_rng rng;
    pl_rng_start(&rng, seed, 999, 0, 0);
    for (unsigned trial = 0; trial < 2000; trial++) {
        uint32_t n = 1 + pl_rng_below(&rng, 300), budget = 1 + pl_rng_below(&rng, 1000000);
        uint64_t least = 0, most = 0, sum = 0;
        for (uint32_t i = 0; i < n; i++) {
            costs[i] = (1 + pl_rng_below(&rng, 1000)) * (pl_rng_below(&rng, 5) ? 1.0 : 1e12);
            minimum[i] = pl_rng_below(&rng, 3) ? 0 : pl_rng_below(&rng, 2 * budget / n + 1);
            capacity[i] = pl_rng_below(&rng, 2) ? PL_NO_CAPACITY : minimum[i] + pl_rng_below(&rng, 3 * budget / n + 1);
            least += minimum[i];
            most += capacity[i];
        }
        uint64_t missing = 0;
        int status = pl_allocate(n, costs, budget, minimum, capacity, seats, shares, &missing);
        int wanted = least > budget ? PL_ERR_MINIMA : most < budget ? PL_ERR_CAPACITY : PL_OK;
        CHECK(status == wanted, "limits that allow the budget, and only those, are accepted", trial);
        if (status != PL_OK) {
            CHECK(missing == (least > budget ? least - budget : budget - most), "what is missing is named", trial);
            continue;
        }
        for (uint32_t i = 0; i < n; i++) {
            sum += shares[i];
            CHECK(shares[i] >= minimum[i] && shares[i] <= capacity[i], "each share keeps its limits", trial);
        }
        CHECK(sum == budget, "the shares sum to the budget", trial);
    }
}

int main(int argc, char *argv[]) {
    uint32_t seed = argc > 1 ? (uint32_t)strtoul(argv[1], (char **)0, 10) : 1;
    printf("seed %lu\n", (unsigned long)seed);
    tables();
    laws(seed);
    return verdict("allocate");
}
