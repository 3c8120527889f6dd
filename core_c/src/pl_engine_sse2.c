/* SPDX-License-Identifier: Apache-2.0 */
#include "pl_engine.h"

/* Engine, SSE2: every x86-64 has it ------------------------------------------------------------------------------- */

#if PL_X86
#include <emmintrin.h>

#define TARGET
#define OP static inline
#define NAME pl_kernel_sse2
#define LANES 2u
#define SORT NULL
#define RUNS NULL

typedef __m128i W;
typedef __m128i F;

OP W w_all(uint32_t x) {
    return _mm_set1_epi64x((int64_t)x);
}

OP W w_steps(uint32_t x, uint32_t step) {
    return _mm_set_epi64x((int64_t)(x + step), (int64_t)x);
}

OP W w_mul(W a, W b) {
    return _mm_mul_epu32(a, b);
}

OP W w_high(W a) {
    return _mm_srli_epi64(a, 32);
}

OP W w_up(W a) {
    return _mm_slli_epi64(a, 32);
}

OP W w_xor3(W a, W b, W c) {
    return _mm_xor_si128(_mm_xor_si128(a, b), c);
}

OP void w_store(uint32_t out[], W a, W b, W c, W d) {
    const W low = _mm_set1_epi64x(0xFFFFFFFF);
    W ab = _mm_or_si128(_mm_and_si128(a, low), _mm_andnot_si128(low, b));
    W cd = _mm_or_si128(_mm_and_si128(c, low), _mm_andnot_si128(low, d));
    _mm_storeu_si128((void *)out, _mm_unpacklo_epi64(ab, cd));
    _mm_storeu_si128((void *)(out + 4), _mm_unpackhi_epi64(ab, cd));
}

OP W turned(W x) {
    return _mm_xor_si128(x, _mm_set1_epi32((int)0x80000000u));
}

OP F f_none(void) {
    return _mm_setzero_si128();
}

OP F f_below(F f, W p, W n) {
    return _mm_or_si128(f, _mm_cmpgt_epi32(turned(n), turned(p)));
}

OP bool f_any(F f) { /* bytes 0..3 and 8..11: the low halves */
    return (_mm_movemask_epi8(f) & 0x0F0F) != 0;
}

OP W signed_all(uint32_t r) {
    return _mm_set1_epi32((int)(r ^ 0x80000000u));
}

/* A bit for each of 16 comparisons, in order. */
OP uint32_t bits(W a, W b, W c, W d) {
    return (uint32_t)_mm_movemask_epi8(_mm_packs_epi16(_mm_packs_epi32(a, b), _mm_packs_epi32(c, d)));
}

/* One line; what its comparisons say. */
OP uint32_t step(uint32_t line[], W x) {
    W a = _mm_loadu_si128((const void *)line), b = _mm_loadu_si128((const void *)(line + 4));
    W c = _mm_loadu_si128((const void *)(line + 8)), d = _mm_loadu_si128((const void *)(line + 12));
    W p = _mm_cmpgt_epi32(turned(a), x), q = _mm_cmpgt_epi32(turned(b), x);
    W s = _mm_cmpgt_epi32(turned(c), x), t = _mm_cmpgt_epi32(turned(d), x);
    _mm_storeu_si128((void *)line, _mm_add_epi32(a, p));
    _mm_storeu_si128((void *)(line + 4), _mm_add_epi32(b, q));
    _mm_storeu_si128((void *)(line + 8), _mm_add_epi32(c, s));
    _mm_storeu_si128((void *)(line + 12), _mm_add_epi32(d, t));
    return bits(p, q, s, t);
}

OP uint32_t line_take(uint32_t line[], uint32_t r, uint32_t *before) {
    uint32_t child = (uint32_t)__builtin_ctz(step(line, signed_all(r)) | 1u << PL_LINE) - 1;
    *before = line[child];
    return child;
}

PL_INLINE void flat_take(uint32_t lines[], uint32_t n_lines, const uint32_t r[], uint32_t n) {
    for (uint32_t j = 0; j < n_lines; j++) { /* no line waits for another, so each takes all draws by itself */
        uint32_t *line = lines + PL_LINE * (size_t)j;
        W a = turned(_mm_loadu_si128((const void *)line)), b = turned(_mm_loadu_si128((const void *)(line + 4)));
        W c = turned(_mm_loadu_si128((const void *)(line + 8))), d = turned(_mm_loadu_si128((const void *)(line + 12)));
        for (uint32_t i = 0; i < n; i++) {
            W x = signed_all(r[i]);
            a = _mm_add_epi32(a, _mm_cmpgt_epi32(a, x));
            b = _mm_add_epi32(b, _mm_cmpgt_epi32(b, x));
            c = _mm_add_epi32(c, _mm_cmpgt_epi32(c, x));
            d = _mm_add_epi32(d, _mm_cmpgt_epi32(d, x));
        }
        _mm_storeu_si128((void *)line, turned(a));
        _mm_storeu_si128((void *)(line + 4), turned(b));
        _mm_storeu_si128((void *)(line + 8), turned(c));
        _mm_storeu_si128((void *)(line + 12), turned(d));
    }
}

PL_INLINE void top_take(uint32_t lines[], uint32_t n_lines, uint32_t r[], uint32_t at[], uint32_t n,
                        const uint32_t next[]) {
    for (uint32_t i = 0; i < n; i++) {
        W x = signed_all(r[i]);
        uint64_t above = 1ull << PL_LINE * n_lines;
        for (uint32_t j = 0; j < n_lines; j++) {
            above |= (uint64_t)step(lines + PL_LINE * (size_t)j, x) << 16 * j;
        }
        uint32_t child = (uint32_t)__builtin_ctzll(above) - 1;
        PL_PREFETCH(next + (size_t)PL_LINE * child);
        r[i] -= lines[child];
        at[i] = child;
    }
}

#include "pl_engine_kernel.h"
#endif
