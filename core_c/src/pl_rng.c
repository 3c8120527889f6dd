/* SPDX-License-Identifier: Apache-2.0 */
#include "pl_internal.h"

/* Random words ---------------------------------------------------------------------------------------------------- */

void pl_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]) {
    uint32_t x0 = counter[0], x1 = counter[1], x2 = counter[2], x3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * x0;
        uint64_t p1 = (uint64_t)0xCD9E8D57u * x2;
        x0 = (uint32_t)(p1 >> 32) ^ x1 ^ k0;
        x1 = (uint32_t)p1;
        x2 = (uint32_t)(p0 >> 32) ^ x3 ^ k1;
        x3 = (uint32_t)p0;
        k0 += 0x9E3779B9u; /* golden ratio */
        k1 += 0xBB67AE85u; /* sqrt(3) - 1 */
    }
    out[0] = x0;
    out[1] = x1;
    out[2] = x2;
    out[3] = x3;
}

void pl_rng_start(pl_rng *rng, uint64_t seed, uint32_t purpose, uint32_t epoch, uint32_t step) {
    rng->key[0] = (uint32_t)seed;
    rng->key[1] = (uint32_t)(seed >> 32);
    rng->counter[0] = 0;
    rng->counter[1] = step;
    rng->counter[2] = epoch;
    rng->counter[3] = purpose;
    rng->used = 4;
}

uint32_t pl_rng_word(pl_rng *rng) {
    if (rng->used == 4) {
        pl_philox(rng->counter, rng->key, rng->word);
        rng->counter[0]++;
        rng->used = 0;
    }
    return rng->word[rng->used++];
}

uint32_t pl_rng_below(pl_rng *rng, uint32_t n) {
    if (n == 0) {
        return 0;
    }
    uint64_t product = (uint64_t)pl_rng_word(rng) * n;
    if ((uint32_t)product < n) { /* 2^32 mod n < n: the division is needed only here, nearly never */
        uint32_t least = (0u - n) % n;
        while ((uint32_t)product < least) {
            product = (uint64_t)pl_rng_word(rng) * n;
        }
    }
    return (uint32_t)(product >> 32);
}
