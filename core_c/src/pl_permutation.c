/* SPDX-License-Identifier: Apache-2.0 */
#include "pl_internal.h"

/* Permutation ----------------------------------------------------------------------------------------------------- */

void pl_permutation(uint64_t seed, uint32_t epoch, uint32_t n, uint32_t out[]) {
    pl_rng rng;
    pl_rng_start(&rng, seed, PL_PURPOSE_PERMUTATION, epoch, 0);
    for (uint32_t i = 0; i < n; i++) {
        out[i] = i;
    }
    for (uint32_t i = n; i > 1; i--) {
        uint32_t j = pl_rng_below(&rng, i);
        uint32_t kept = out[i - 1];
        out[i - 1] = out[j];
        out[j] = kept;
    }
}
