/* SPDX-License-Identifier: Apache-2.0 */
#include "pl_engine.h"

/* Engine, any machine --------------------------------------------------------------------------------------------- */

#define TARGET
#define NAME pl_kernel_portable
#define LANES 1u
#define SORT NULL
#define RUNS NULL

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

PL_INLINE uint32_t take(uint32_t lines[], uint32_t n, uint32_t r) {
    uint32_t child = n - 1;
    for (uint32_t j = 0; j < n; j++) {
        uint32_t above = lines[j] > r;
        lines[j] -= above;
        child -= above;
    }
    return child;
}

PL_INLINE uint32_t line_take(uint32_t line[], uint32_t r, uint32_t *before) {
    uint32_t child = take(line, PL_LINE, r);
    *before = line[child];
    return child;
}

PL_INLINE void flat_take(uint32_t lines[], uint32_t n_lines, const uint32_t r[], uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        take(lines, PL_LINE * n_lines, r[i]);
    }
}

PL_INLINE void top_take(uint32_t lines[], uint32_t n_lines, uint32_t r[], uint32_t at[], uint32_t n,
                        const uint32_t next[]) {
    for (uint32_t i = 0; i < n; i++) {
        at[i] = take(lines, PL_LINE * n_lines, r[i]);
        PL_PREFETCH(next + (size_t)PL_LINE * at[i]);
        r[i] -= lines[at[i]];
    }
}

#include "pl_engine_kernel.h"
