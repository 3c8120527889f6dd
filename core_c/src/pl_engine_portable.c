/* SPDX-License-Identifier: Apache-2.0 */
#include "pl_engine.h"

/* Engine, any machine --------------------------------------------------------------------------------------------- */

#define TARGET
#define NAME pl_kernel_portable
#define LANES 1u
#define SORT NULL

typedef uint64_t W;
typedef bool F;

PL_INLINE W w_all(uint32_t x) {
    return x;
}

PL_INLINE W w_steps(uint32_t x, uint32_t step) {
    (void)step;
    return x;
}

PL_INLINE W w_mul(W a, W b) {
    return (uint64_t)(uint32_t)a * (uint32_t)b;
}

PL_INLINE W w_high(W a) {
    return a >> 32;
}

PL_INLINE W w_up(W a) {
    return a << 32;
}

PL_INLINE W w_xor3(W a, W b, W c) {
    return a ^ b ^ c;
}

PL_INLINE void w_store(uint32_t out[], W a, W b, W c, W d) {
    out[0] = (uint32_t)a;
    out[1] = (uint32_t)(b >> 32);
    out[2] = (uint32_t)c;
    out[3] = (uint32_t)(d >> 32);
}

PL_INLINE F f_none(void) {
    return false;
}

PL_INLINE F f_below(F f, W p, W n) {
    return f || (uint32_t)p < (uint32_t)n;
}

PL_INLINE bool f_any(F f) {
    return f;
}

PL_INLINE uint32_t take(uint32_t lines[], uint32_t n, uint32_t r, uint32_t *below) {
    uint32_t child = 0;
    for (uint32_t j = 0; j < n; j++) {
        uint32_t after = lines[j] > r;
        lines[j] -= after;
        child += 1 - after;
    }
    *below = child > 0 ? lines[child - 1] : 0;
    return child;
}

PL_INLINE uint32_t line_take(uint32_t line[], uint32_t r, uint32_t *below) {
    return take(line, PL_LINE, r, below);
}

PL_INLINE void flat_take(uint32_t lines[], uint32_t n_lines, const uint32_t r[], uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        uint32_t below;
        take(lines, PL_LINE * n_lines, r[i], &below);
    }
}

PL_INLINE void top_take(uint32_t lines[], uint32_t n_lines, uint32_t r[], uint32_t at[], uint32_t n,
                        const uint32_t next[]) {
    for (uint32_t i = 0; i < n; i++) {
        uint32_t below;
        at[i] = take(lines, PL_LINE * n_lines, r[i], &below);
        PL_PREFETCH(next + (size_t)PL_LINE * at[i]);
        r[i] -= below;
    }
}

#include "pl_engine_kernel.h"
