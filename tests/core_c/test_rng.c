/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"

/* Random words ---------------------------------------------------------------------------------------------------- */

static void bounded(void) {
    static const uint32_t BOUNDS[] = { 1, 2, 3, 10, 6000, 0x80000001u, 0xFFFFFFFFu };
    pl_rng rng;
    for (unsigned i = 0; i < LENGTH(BOUNDS); i++) {
        pl_rng_start(&rng, 42, PL_PURPOSE_SAMPLER, 0, i);
        for (int k = 0; k < 10000; k++) {
            CHECK(pl_rng_below(&rng, BOUNDS[i]) < BOUNDS[i], "a bounded integer is below its bound", i);
        }
    }
    pl_rng_start(&rng, 42, PL_PURPOSE_SAMPLER, 0, 0);
    uint32_t first = pl_rng_word(&rng);
    pl_rng_start(&rng, 42, PL_PURPOSE_SAMPLER, 0, 0);
    CHECK(pl_rng_below(&rng, 0) == 0 && pl_rng_word(&rng) == first, "a bound of 0 takes no word", 0);
}

static void streams(void) {
    pl_rng a, b;
    unsigned same = 0;
    pl_rng_start(&a, 1, PL_PURPOSE_SAMPLER, 0, 0);
    pl_rng_start(&b, 1, PL_PURPOSE_SAMPLER + 256, 0, 0);
    for (int k = 0; k < 1000; k++) {
        same += pl_rng_word(&a) == pl_rng_word(&b);
    }
    CHECK(same < 3, "a redraw has fresh words", same);
}

/* Permutation ----------------------------------------------------------------------------------------------------- */

static void permutations(void) {
    static uint32_t out[2000];
    static uint8_t seen[2000];
    for (uint32_t n = 0; n <= 2000; n += 1 + n / 3) {
        for (uint32_t i = 0; i < n; i++) {
            seen[i] = 0;
        }
        pl_permutation(n, 3, n, out);
        for (uint32_t i = 0; i < n; i++) {
            CHECK(out[i] < n && !seen[out[i]], "each number stands there once", n);
            seen[out[i] % 2000] = 1;
        }
    }
}

int main(void) {
    bounded();
    streams();
    permutations();
    return verdict("rng");
}
