/* SPDX-License-Identifier: Apache-2.0 */
#include "pl_engine.h"

/* Engine, AVX-512 ------------------------------------------------------------------------------------------------- */

#if PL_X86
#include <immintrin.h>

#define TARGET __attribute__((target("avx512f,avx512vl,avx512dq,avx512bw,avx2,bmi,bmi2,popcnt")))
#define OP TARGET static inline
#define NAME pl_kernel_avx512
#define LANES 8u

typedef __m512i W;
typedef __mmask16 F;

OP W w_all(uint32_t x) {
    return _mm512_set1_epi64((int64_t)x);
}

OP W w_steps(uint32_t x, uint32_t step) {
    const W lanes = _mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0);
    return _mm512_add_epi32(w_all(x), _mm512_mullo_epi32(lanes, w_all(step)));
}

OP W w_mul(W a, W b) {
    return _mm512_mul_epu32(a, b);
}

OP W w_high(W a) {
    return _mm512_srli_epi64(a, 32);
}

OP W w_up(W a) {
    return _mm512_slli_epi64(a, 32);
}

OP W w_xor3(W a, W b, W c) {
    return _mm512_ternarylogic_epi64(a, b, c, 0x96);
}

OP void w_store(uint32_t out[], W a, W b, W c, W d) {
    const W first = _mm512_set_epi64(11, 3, 10, 2, 9, 1, 8, 0), second = _mm512_set_epi64(15, 7, 14, 6, 13, 5, 12, 4);
    W ab = _mm512_mask_blend_epi32(0xAAAA, a, b), cd = _mm512_mask_blend_epi32(0xAAAA, c, d);
    _mm512_storeu_si512(out, _mm512_permutex2var_epi64(ab, first, cd));
    _mm512_storeu_si512(out + 16, _mm512_permutex2var_epi64(ab, second, cd));
}

OP F f_none(void) {
    return 0;
}

OP F f_below(F f, W p, W n) {
    return (F)(f | _mm512_mask_cmplt_epu32_mask(0x5555, p, n));
}

OP bool f_any(F f) {
    return f != 0;
}

/* The child's sum is loaded before the line is stored, which it would have to wait for. */
OP uint32_t line_take(uint32_t line[], uint32_t r, uint32_t *before) {
    W sums = _mm512_loadu_si512(line);
    __mmask16 above = _mm512_cmpgt_epu32_mask(sums, _mm512_set1_epi32((int)r));
    uint32_t child = _tzcnt_u32(above | 1u << PL_LINE) - 1;
    *before = line[child];
    _mm512_storeu_si512(line, _mm512_mask_sub_epi32(sums, above, sums, _mm512_set1_epi32(1)));
    return child;
}

#include "pl_engine_ymm.h"

#define LOAD4(lines, n_lines)                                                                                          \
    const W one = _mm512_set1_epi32(1);                                                                                \
    W a = _mm512_loadu_si512(lines), b = one, c = one, d = one;                                                        \
    if ((n_lines) > 1)                                                                                                 \
        b = _mm512_loadu_si512((lines) + 16);                                                                          \
    if ((n_lines) > 2)                                                                                                 \
        c = _mm512_loadu_si512((lines) + 32);                                                                          \
    if ((n_lines) > 3)                                                                                                 \
        d = _mm512_loadu_si512((lines) + 48);

#define STORE4(lines, n_lines)                                                                                         \
    _mm512_storeu_si512(lines, a);                                                                                     \
    if ((n_lines) > 1)                                                                                                 \
        _mm512_storeu_si512((lines) + 16, b);                                                                          \
    if ((n_lines) > 2)                                                                                                 \
        _mm512_storeu_si512((lines) + 32, c);                                                                          \
    if ((n_lines) > 3)                                                                                                 \
        _mm512_storeu_si512((lines) + 48, d);

TARGET PL_INLINE void flat_take(uint32_t lines[], uint32_t n_lines, const uint32_t r[], uint32_t n) {
    if (n_lines == 1) {
        flat_ymm(lines, 1, r, n);
        return;
    }
    LOAD4(lines, n_lines)
    for (uint32_t i = 0; i < n; i++) {
        W x = _mm512_set1_epi32((int)r[i]);
        a = _mm512_mask_sub_epi32(a, _mm512_cmpgt_epu32_mask(a, x), a, one);
        b = _mm512_mask_sub_epi32(b, _mm512_cmpgt_epu32_mask(b, x), b, one);
        if (n_lines > 2) {
            c = _mm512_mask_sub_epi32(c, _mm512_cmpgt_epu32_mask(c, x), c, one);
        }
        if (n_lines > 3) {
            d = _mm512_mask_sub_epi32(d, _mm512_cmpgt_epu32_mask(d, x), d, one);
        }
    }
    STORE4(lines, n_lines)
}

typedef __m512i S;
#define SORT_LANES 16u

OP S s_load(const uint32_t a[]) {
    return _mm512_loadu_si512(a);
}

OP void s_store(uint32_t a[], S x) {
    _mm512_storeu_si512(a, x);
}

OP S s_min(S a, S b) {
    return _mm512_min_epu32(a, b);
}

OP S s_max(S a, S b) {
    return _mm512_max_epu32(a, b);
}

/* Lane i of the result: the lesser of lanes i and i ^ flip where bit `upper` of i is 0, else the greater. */
OP S s_exchange(S x, uint32_t flip, uint32_t upper) {
    const S lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    S y = _mm512_permutexvar_epi32(_mm512_xor_si512(lanes, _mm512_set1_epi32((int)flip)), x);
    __mmask16 high = _mm512_test_epi32_mask(lanes, _mm512_set1_epi32((int)upper));
    return _mm512_mask_max_epu32(_mm512_min_epu32(x, y), high, x, y);
}

OP S s_reverse(S x) {
    const S lanes = _mm512_set_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return _mm512_permutexvar_epi32(lanes, x);
}

OP __mmask16 first_lanes(uint32_t n) {
    return (__mmask16)_bzhi_u32(0xFFFF, n < 16 ? n : 16);
}

TARGET static uint32_t kernel_runs(const uint32_t sorted[], uint32_t n, uint32_t ids[], uint32_t counts[]) {
    uint32_t begin[PL_SORT_MOST + 33], different = 0; /* where each run begins */
    S place = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    for (uint32_t i = 0; i < n; i += 16) {
        S x = s_load(sorted + i), before = s_load(sorted + i - 1);
        __mmask16 begins = (__mmask16)((_mm512_cmpneq_epi32_mask(x, before) | (i == 0)) & first_lanes(n - i));
        uint32_t more = (uint32_t)_mm_popcnt_u32(begins);
        _mm512_mask_storeu_epi32(ids + different, first_lanes(more), _mm512_maskz_compress_epi32(begins, x));
        s_store(begin + different, _mm512_maskz_compress_epi32(begins, place));
        different += more;
        place = _mm512_add_epi32(place, _mm512_set1_epi32(16));
    }
    begin[different] = n;
    for (uint32_t j = 0; j < different; j += 16) {
        S length = _mm512_sub_epi32(s_load(begin + j + 1), s_load(begin + j));
        _mm512_mask_storeu_epi32(counts + j, first_lanes(different - j), length);
    }
    return different;
}

#define RUNS kernel_runs
#define SORT kernel_sort
#include "pl_engine_sort.h"

#include "pl_engine_kernel.h"
#endif
