/* SPDX-License-Identifier: Apache-2.0 */
/* A bitonic sort of n numbers, n a power of two >= PL_SORT_LEAST. Before it stand TARGET, OP, S, SORT_LANES (8 or 16),
 * s_load, s_store, s_min, s_max, s_exchange and s_reverse. */

/* The steps of a merge within a vector: distances SORT_LANES / 2 .. 1. */
OP S s_finish(S x) {
    if (SORT_LANES > 8) {
        x = s_exchange(x, 8, 8);
    }
    x = s_exchange(x, 4, 4);
    x = s_exchange(x, 2, 2);
    return s_exchange(x, 1, 1);
}

OP S s_whole(S x) {
    x = s_exchange(x, 1, 1);
    x = s_exchange(x, 3, 2);
    x = s_exchange(x, 1, 1);
    x = s_exchange(x, 7, 4);
    x = s_exchange(x, 2, 2);
    x = s_exchange(x, 1, 1);
    if (SORT_LANES > 8) {
        x = s_exchange(x, 15, 8);
        x = s_exchange(x, 4, 4);
        x = s_exchange(x, 2, 2);
        x = s_exchange(x, 1, 1);
    }
    return x;
}

TARGET static void kernel_sort(uint32_t a[], uint32_t n) {
    for (uint32_t i = 0; i < n; i += SORT_LANES) {
        s_store(a + i, s_whole(s_load(a + i)));
    }
    for (uint32_t k = 2 * SORT_LANES; k <= n; k *= 2) {
        for (uint32_t block = 0; block < n; block += k) { /* the first half against the second, turned round */
            for (uint32_t i = 0; i < k / 2; i += SORT_LANES) {
                uint32_t *low = a + block + i, *high = a + block + k - SORT_LANES - i;
                S x = s_load(low), y = s_reverse(s_load(high));
                s_store(low, s_min(x, y));
                s_store(high, s_reverse(s_max(x, y)));
            }
        }
        for (uint32_t d = k / 4; d >= SORT_LANES; d /= 2) {
            for (uint32_t block = 0; block < n; block += 2 * d) {
                for (uint32_t i = block; i < block + d; i += SORT_LANES) {
                    S x = s_load(a + i), y = s_load(a + i + d);
                    s_store(a + i, s_min(x, y));
                    s_store(a + i + d, s_max(x, y));
                }
            }
        }
        for (uint32_t i = 0; i < n; i += SORT_LANES) {
            s_store(a + i, s_finish(s_load(a + i)));
        }
    }
}
