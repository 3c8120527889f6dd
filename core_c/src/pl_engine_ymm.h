/* SPDX-License-Identifier: Apache-2.0 */
/* Roots in registers of 256 bits, for AVX2, and for AVX-512 too: there a comparison of 256 bits may give a vector, and a
 * draw waits two cycles for the one before, where one of 512 bits gives a mask and takes four. Before it stands OP. */

#define SIGN ((int)0x80000000u)

/* With the sign turned the signed comparison is the unsigned one; differences stay as they are. */
OP __m256i turned(const uint32_t from[]) {
    return _mm256_xor_si256(_mm256_loadu_si256((const void *)from), _mm256_set1_epi32(SIGN));
}

OP void put_back(uint32_t to[], __m256i x) {
    _mm256_storeu_si256((void *)to, _mm256_xor_si256(x, _mm256_set1_epi32(SIGN)));
}

OP uint32_t bits(__m256i x) {
    return (uint32_t)_mm256_movemask_ps(_mm256_castsi256_ps(x));
}

TARGET PL_INLINE void flat_ymm(uint32_t lines[], uint32_t n_lines, const uint32_t r[], uint32_t n) {
    __m256i v[2 * PL_FLAT_LINES];
    for (uint32_t j = 0; j < 2 * n_lines; j++) {
        v[j] = turned(lines + 8 * (size_t)j);
    }
    for (uint32_t i = 0; i < n; i++) {
        __m256i x = _mm256_xor_si256(_mm256_set1_epi32((int)r[i]), _mm256_set1_epi32(SIGN));
        for (uint32_t j = 0; j < 2 * n_lines; j++) {
            v[j] = _mm256_add_epi32(v[j], _mm256_cmpgt_epi32(v[j], x));
        }
    }
    for (uint32_t j = 0; j < 2 * n_lines; j++) {
        put_back(lines + 8 * (size_t)j, v[j]);
    }
}

/* Memory follows each draw, with the sign turned: the sum before the child is read there. */
TARGET PL_INLINE void top_take(uint32_t lines[], uint32_t n_lines, uint32_t r[], uint32_t at[], uint32_t n,
                               const uint32_t next[]) {
    __m256i v[2 * PL_ROOT_LINES];
    for (uint32_t j = 0; j < 2 * n_lines; j++) {
        v[j] = turned(lines + 8 * (size_t)j);
        _mm256_storeu_si256((void *)(lines + 8 * (size_t)j), v[j]);
    }
    for (uint32_t i = 0; i < n; i++) {
        uint32_t turned_r = r[i] ^ 0x80000000u;
        __m256i x = _mm256_set1_epi32((int)turned_r);
        uint64_t above = 1ull << PL_LINE * n_lines;
        for (uint32_t j = 0; j < 2 * n_lines; j++) {
            __m256i p = _mm256_cmpgt_epi32(v[j], x);
            above |= (uint64_t)bits(p) << 8 * j;
            v[j] = _mm256_add_epi32(v[j], p);
            _mm256_storeu_si256((void *)(lines + 8 * (size_t)j), v[j]);
        }
        uint32_t child = (uint32_t)_tzcnt_u64(above) - 1;
        PL_PREFETCH(next + (size_t)PL_LINE * child);
        r[i] = turned_r - lines[child];
        at[i] = child;
    }
    for (uint32_t j = 0; j < 2 * n_lines; j++) {
        put_back(lines + 8 * (size_t)j, v[j]);
    }
}
