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

OP uint32_t line_take(uint32_t line[], uint32_t r, uint32_t *below) {
    W sums = _mm512_loadu_si512(line);
    __mmask16 after = _mm512_cmpgt_epu32_mask(sums, _mm512_set1_epi32((int)r));
    uint32_t child = _tzcnt_u32(after);
    *below = line[(ptrdiff_t)child - 1] & (0u - (child > 0));
    _mm512_storeu_si512(line, _mm512_mask_sub_epi32(sums, after, sums, _mm512_set1_epi32(1)));
    return child;
}

/* Two halves of 256 bits: there a comparison gives a vector, and a draw waits two cycles for the one before, not four. */
OP void flat_one(uint32_t line[], const uint32_t r[], uint32_t n) {
    const __m256i sign = _mm256_set1_epi32((int)0x80000000u);
    __m256i a = _mm256_xor_si256(_mm256_loadu_si256((const void *)line), sign);
    __m256i b = _mm256_xor_si256(_mm256_loadu_si256((const void *)(line + 8)), sign);
    for (uint32_t i = 0; i < n; i++) {
        __m256i x = _mm256_xor_si256(_mm256_set1_epi32((int)r[i]), sign);
        a = _mm256_add_epi32(a, _mm256_cmpgt_epi32(a, x));
        b = _mm256_add_epi32(b, _mm256_cmpgt_epi32(b, x));
    }
    _mm256_storeu_si256((void *)line, _mm256_xor_si256(a, sign));
    _mm256_storeu_si256((void *)(line + 8), _mm256_xor_si256(b, sign));
}

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
        flat_one(lines, r, n);
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

/* The lines live in registers; memory follows each draw, for the sum before the child is read there. */
TARGET PL_INLINE void top_take(uint32_t lines[], uint32_t n_lines, uint32_t r[], uint32_t at[], uint32_t n,
                               const uint32_t next[]) {
    LOAD4(lines, n_lines)
    for (uint32_t i = 0; i < n; i++) {
        W x = _mm512_set1_epi32((int)r[i]);
        __mmask16 p = _mm512_cmpgt_epu32_mask(a, x);
        uint64_t after = p;
        a = _mm512_mask_sub_epi32(a, p, a, one);
        if (n_lines > 1) {
            p = _mm512_cmpgt_epu32_mask(b, x);
            after |= (uint64_t)p << 16;
            b = _mm512_mask_sub_epi32(b, p, b, one);
        }
        if (n_lines > 2) {
            p = _mm512_cmpgt_epu32_mask(c, x);
            after |= (uint64_t)p << 32;
            c = _mm512_mask_sub_epi32(c, p, c, one);
        }
        if (n_lines > 3) {
            p = _mm512_cmpgt_epu32_mask(d, x);
            after |= (uint64_t)p << 48;
            d = _mm512_mask_sub_epi32(d, p, d, one);
        }
        uint32_t child = (uint32_t)_tzcnt_u64(after);
        PL_PREFETCH(next + (size_t)PL_LINE * child);
        r[i] -= lines[(ptrdiff_t)child - 1] & (0u - (child > 0));
        at[i] = child;
        STORE4(lines, n_lines)
    }
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

#define SORT kernel_sort
#include "pl_engine_sort.h"

#include "pl_engine_kernel.h"
#endif
