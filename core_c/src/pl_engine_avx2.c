/* SPDX-License-Identifier: Apache-2.0 */
#include "pl_engine.h"

/* Engine, AVX2 ---------------------------------------------------------------------------------------------------- */

#if PL_X86
#include <immintrin.h>

#define TARGET __attribute__((target("avx2,bmi,bmi2,popcnt")))
#define OP TARGET static inline
#define NAME pl_kernel_avx2
#define LANES 4u

typedef __m256i W;
typedef __m256i F;

OP W w_all(uint32_t x) {
    return _mm256_set1_epi64x((int64_t)x);
}

OP W w_steps(uint32_t x, uint32_t step) {
    return _mm256_add_epi32(w_all(x), _mm256_mullo_epi32(_mm256_set_epi64x(3, 2, 1, 0), w_all(step)));
}

OP W w_mul(W a, W b) {
    return _mm256_mul_epu32(a, b);
}

OP W w_high(W a) {
    return _mm256_srli_epi64(a, 32);
}

OP W w_up(W a) {
    return _mm256_slli_epi64(a, 32);
}

OP W w_xor3(W a, W b, W c) {
    return _mm256_xor_si256(_mm256_xor_si256(a, b), c);
}

OP void w_store(uint32_t out[], W a, W b, W c, W d) {
    W ab = _mm256_blend_epi32(a, b, 0xAA), cd = _mm256_blend_epi32(c, d, 0xAA);
    W even = _mm256_unpacklo_epi64(ab, cd), odd = _mm256_unpackhi_epi64(ab, cd);
    _mm256_storeu_si256((void *)out, _mm256_permute2x128_si256(even, odd, 0x20));
    _mm256_storeu_si256((void *)(out + 8), _mm256_permute2x128_si256(even, odd, 0x31));
}

OP F f_none(void) {
    return _mm256_setzero_si256();
}

/* a < b without a sign is max(a, b) != a; what the high halves say is cut off in f_any. */
OP F f_below(F f, W p, W n) {
    return _mm256_or_si256(f, _mm256_xor_si256(_mm256_max_epu32(p, n), p));
}

OP bool f_any(F f) {
    return !_mm256_testz_si256(f, _mm256_set1_epi64x(0xFFFFFFFF));
}

#include "pl_engine_ymm.h"

OP uint32_t line_take(uint32_t line[], uint32_t r, uint32_t *before) {
    W a = _mm256_loadu_si256((const void *)line), b = _mm256_loadu_si256((const void *)(line + 8));
    W x = _mm256_set1_epi32((int)(r ^ 0x80000000u)), sign = _mm256_set1_epi32(SIGN);
    W p = _mm256_cmpgt_epi32(_mm256_xor_si256(a, sign), x), q = _mm256_cmpgt_epi32(_mm256_xor_si256(b, sign), x);
    uint32_t child = _tzcnt_u32(bits(p) | bits(q) << 8 | 1u << PL_LINE) - 1;
    *before = line[child]; /* before the line is stored, which it would have to wait for */
    _mm256_storeu_si256((void *)line, _mm256_add_epi32(a, p));
    _mm256_storeu_si256((void *)(line + 8), _mm256_add_epi32(b, q));
    return child;
}

#define flat_take flat_ymm

typedef __m256i S;
#define SORT_LANES 8u

OP S s_load(const uint32_t a[]) {
    return _mm256_loadu_si256((const void *)a);
}

OP void s_store(uint32_t a[], S x) {
    _mm256_storeu_si256((void *)a, x);
}

OP S s_min(S a, S b) {
    return _mm256_min_epu32(a, b);
}

OP S s_max(S a, S b) {
    return _mm256_max_epu32(a, b);
}

/* Lane i of the result: the lesser of lanes i and i ^ flip where bit `upper` of i is 0, else the greater. */
OP S s_exchange(S x, uint32_t flip, uint32_t upper) {
    const S lanes = _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0), mask = _mm256_set1_epi32((int)upper);
    S y = _mm256_permutevar8x32_epi32(x, _mm256_xor_si256(lanes, _mm256_set1_epi32((int)flip)));
    S high = _mm256_cmpeq_epi32(_mm256_and_si256(lanes, mask), mask);
    return _mm256_blendv_epi8(_mm256_min_epu32(x, y), _mm256_max_epu32(x, y), high);
}

OP S s_reverse(S x) {
    return _mm256_permutevar8x32_epi32(x, _mm256_set_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

#define RUNS NULL
#define SORT kernel_sort
#include "pl_engine_sort.h"

#include "pl_engine_kernel.h"
#endif
