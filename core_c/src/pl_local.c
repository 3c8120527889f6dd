/* SPDX-License-Identifier: Apache-2.0 */
#include "pl_internal.h"

/* Local draw ------------------------------------------------------------------------------------------------------ */

void pl_local_init(pl_local *l, uint64_t seed, uint32_t epoch, uint32_t client, uint32_t n, uint32_t index[]) {
    for (uint32_t i = 0; i < n; i++) {
        index[i] = i;
    }
    *l = (pl_local){ .index = index, .n = n };
    pl_rng_start(&l->rng, seed, PL_PURPOSE_LOCAL, epoch, client);
}

int pl_local_draw(pl_local *l, uint32_t count, uint32_t out[]) {
    if (count > l->n - l->given) {
        return PL_ERR_EMPTY;
    }
    for (uint32_t i = 0; i < count; i++, l->given++) {
        if (l->given == l->settled) {
            uint32_t j = l->settled + pl_rng_below(&l->rng, l->n - l->settled), kept = l->index[j];
            l->index[j] = l->index[l->settled];
            l->index[l->settled++] = kept;
        }
        if (out != NULL) {
            out[i] = l->index[l->given];
        }
    }
    return PL_OK;
}

int pl_local_give_back(pl_local *l, uint32_t count) {
    if (count > l->given) {
        return PL_ERR_ARGUMENT;
    }
    l->given -= count;
    return PL_OK;
}
