/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"

/* Local draw ------------------------------------------------------------------------------------------------------ */

enum { MOST = 200 };

/* An order by the plainest way: the same words, and the samples that are left in a list of their own. */
static void plain_order(uint64_t seed, uint32_t epoch, uint32_t client, uint32_t n, uint32_t out[]) {
    uint32_t left[MOST];
    pl_rng rng;
    pl_rng_start(&rng, seed, PL_PURPOSE_LOCAL, epoch, client);
    for (uint32_t i = 0; i < n; i++) {
        left[i] = i;
    }
    for (uint32_t i = 0; i < n; i++) {
        uint32_t j = pl_rng_below(&rng, n - i);
        out[i] = left[j];
        left[j] = left[0]; /* what stood first among those left takes the free place */
        for (uint32_t k = 1; k < n - i; k++) {
            left[k - 1] = left[k];
        }
    }
}

int main(void) {
    for (uint32_t n = 0; n < MOST; n++) {
        uint32_t index[MOST], order[MOST + 1], out[MOST], given = 0;
        bool seen[MOST] = { false };
        pl_local l;
        pl_rng rng;
        plain_order(n * 7919, 3, n + 1, n, order);
        pl_local_init(&l, n * 7919, 3, n + 1, n, index);
        pl_rng_start(&rng, n, 997, 0, 0);
        CHECK(pl_local_give_back(&l, 1) == PL_ERR_ARGUMENT, "nothing comes back that was not drawn", n);
        while (given < n) {
            uint32_t now = 1 + pl_rng_below(&rng, n - given),
                     back = pl_rng_below(&rng, 2) ? pl_rng_below(&rng, now) : 0;
            CHECK(pl_local_draw(&l, now, out) == PL_OK, "there are so many", n);
            for (uint32_t i = 0; i < now; i++) {
                CHECK(out[i] == order[given + i], "the order does not depend on how it is drawn", n);
            }
            CHECK(pl_local_give_back(&l, back) == PL_OK, "a void step's samples come back", n);
            given += now - back;
        }
        for (uint32_t i = 0; i < n; i++) {
            CHECK(!seen[order[i]], "each sample is drawn once", n);
            seen[order[i]] = true;
        }
        CHECK(pl_local_draw(&l, 1, out) == PL_ERR_EMPTY && l.given == n, "then there is none", n);
        pl_local_init(&l, n * 7919, 3, n + 1, n, index);
        CHECK(pl_local_draw(&l, n / 2, (uint32_t *)0) == PL_OK, "one resumes by drawing into nothing", n);
        CHECK(pl_local_draw(&l, n - n / 2, out) == PL_OK, "and goes on", n);
        for (uint32_t i = n / 2; i < n; i++) {
            CHECK(out[i - n / 2] == order[i], "where it was", n);
        }
    }
    return verdict("local draw");
}
