/* SPDX-License-Identifier: Apache-2.0 */
#include "pl_engine.h"

/* Engine, NEON: every AArch64 has it ------------------------------------------------------------------------------ */

#if PL_NEON
#include <arm_neon.h>

#define TARGET
#define OP static inline
#define NAME pl_kernel_neon
#define LANES 2u
#define SORT NULL
#define RUNS NULL

typedef uint64x2_t W;
typedef uint64x2_t F;

OP W w_all(uint32_t x) {
    return vdupq_n_u64(x);
}

OP W w_steps(uint32_t x, uint32_t step) {
    return vcombine_u64(vcreate_u64(x), vcreate_u64(x + step));
}

OP W w_mul(W a, W b) {
    return vmull_u32(vmovn_u64(a), vmovn_u64(b));
}

OP W w_high(W a) {
    return vshrq_n_u64(a, 32);
}

OP W w_up(W a) {
    return vshlq_n_u64(a, 32);
}

OP W w_xor3(W a, W b, W c) {
    return veorq_u64(veorq_u64(a, b), c);
}

OP void w_store(uint32_t out[], W a, W b, W c, W d) {
    const W low = vdupq_n_u64(0xFFFFFFFF);
    W ab = vbslq_u64(low, a, b), cd = vbslq_u64(low, c, d);
    vst1q_u32(out, vreinterpretq_u32_u64(vzip1q_u64(ab, cd)));
    vst1q_u32(out + 4, vreinterpretq_u32_u64(vzip2q_u64(ab, cd)));
}

OP F f_none(void) {
    return vdupq_n_u64(0);
}

OP F f_below(F f, W p, W n) {
    uint32x4_t below = vcltq_u32(vreinterpretq_u32_u64(p), vreinterpretq_u32_u64(n));
    return vorrq_u64(f, vreinterpretq_u64_u32(below));
}

OP bool f_any(F f) { /* the low halves */
    return vaddvq_u64(vandq_u64(f, vdupq_n_u64(1))) != 0;
}

/* One line; how many of its sums fell, as a negative number. */
OP uint32_t step(uint32_t line[], uint32x4_t x) {
    uint32x4_t a = vld1q_u32(line), b = vld1q_u32(line + 4), c = vld1q_u32(line + 8), d = vld1q_u32(line + 12);
    uint32x4_t p = vcgtq_u32(a, x), q = vcgtq_u32(b, x), s = vcgtq_u32(c, x), t = vcgtq_u32(d, x);
    vst1q_u32(line, vaddq_u32(a, p));
    vst1q_u32(line + 4, vaddq_u32(b, q));
    vst1q_u32(line + 8, vaddq_u32(c, s));
    vst1q_u32(line + 12, vaddq_u32(d, t));
    return vaddvq_u32(vaddq_u32(vaddq_u32(p, q), vaddq_u32(s, t)));
}

OP uint32_t line_take(uint32_t line[], uint32_t r, uint32_t *before) {
    uint32_t child = PL_LINE - 1 + step(line, vdupq_n_u32(r));
    *before = line[child];
    return child;
}

PL_INLINE void flat_take(uint32_t lines[], uint32_t n_lines, const uint32_t r[], uint32_t n) {
    for (uint32_t j = 0; j < n_lines; j++) { /* no line waits for another, so each takes all draws by itself */
        uint32_t *line = lines + PL_LINE * (size_t)j;
        uint32x4_t a = vld1q_u32(line), b = vld1q_u32(line + 4), c = vld1q_u32(line + 8), d = vld1q_u32(line + 12);
        for (uint32_t i = 0; i < n; i++) {
            uint32x4_t x = vdupq_n_u32(r[i]);
            a = vaddq_u32(a, vcgtq_u32(a, x));
            b = vaddq_u32(b, vcgtq_u32(b, x));
            c = vaddq_u32(c, vcgtq_u32(c, x));
            d = vaddq_u32(d, vcgtq_u32(d, x));
        }
        vst1q_u32(line, a);
        vst1q_u32(line + 4, b);
        vst1q_u32(line + 8, c);
        vst1q_u32(line + 12, d);
    }
}

PL_INLINE void top_take(uint32_t lines[], uint32_t n_lines, uint32_t r[], uint32_t at[], uint32_t n,
                        const uint32_t next[]) {
    for (uint32_t i = 0; i < n; i++) {
        uint32x4_t x = vdupq_n_u32(r[i]);
        uint32_t child = PL_LINE * n_lines - 1;
        for (uint32_t j = 0; j < n_lines; j++) {
            child += step(lines + PL_LINE * (size_t)j, x);
        }
        PL_PREFETCH(next + (size_t)PL_LINE * child);
        r[i] -= lines[child];
        at[i] = child;
    }
}

#include "pl_engine_kernel.h"
#endif
