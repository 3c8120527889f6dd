/* SPDX-License-Identifier: Apache-2.0 */
#include "pl_engine.h"

#if PL_X86
#include <cpuid.h>
#endif

/* Engine: layout -------------------------------------------------------------------------------------------------- */

/* Level 0 holds the clients, 16 a line; a line of the next level 16 lines, and so on up to a root of at most PL_ROOT_LINES
 * lines. A number is the sum of what stands before its child in the same line (in the root: in the whole root), so that
 * what a draw leaves over for the child is a subtraction. Places behind the last client are clients with nothing. */
static uint32_t lines_for(uint32_t room) {
    return room > 0 ? (room - 1) / PL_LINE + 1 : 1;
}

static void lay_out(pl_engine *e, uint32_t room, uint32_t memory[]) {
    uint32_t first = 0, n = lines_for(room), level = 0;
    for (;; level++) {
        e->first[level] = first;
        e->n_lines[level] = n;
        first += n;
        if (n <= (level > 0 ? PL_ROOT_LINES : PL_FLAT_LINES)) {
            break;
        }
        n = lines_for(n);
    }
    e->top = level;
    e->at.room = room;
    e->lines = memory + (63 - ((uintptr_t)memory + 63) % 64) / 4;
}

uint64_t pl_engine_words(uint32_t room) {
    pl_engine e;
    uint32_t nothing[PL_LINE + 1];
    lay_out(&e, room, nothing);
    return PL_LINE * ((uint64_t)e.first[e.top] + e.n_lines[e.top]) + PL_LINE;
}

uint32_t *pl_engine_level(const pl_engine *e, uint32_t level) {
    return e->lines + PL_LINE * (size_t)e->first[level];
}

/* Turn counts, which stand in level 0, into sums on all levels. */
static void build(pl_engine *e) {
    for (uint32_t level = 0; level <= e->top; level++) {
        uint32_t *line = pl_engine_level(e, level), sum = 0;
        for (uint32_t i = 0; i < e->n_lines[level]; i++, line += PL_LINE) {
            sum = level < e->top ? 0 : sum;
            for (uint32_t j = 0; j < PL_LINE; j++) {
                uint32_t here = line[j];
                line[j] = sum;
                sum += here;
            }
            if (level < e->top) {
                pl_engine_level(e, level + 1)[i] = sum;
            }
        }
        if (level < e->top) {
            for (uint32_t i = e->n_lines[level]; i < PL_LINE * e->n_lines[level + 1]; i++) {
                pl_engine_level(e, level + 1)[i] = 0;
            }
        }
    }
}

/* What place i of a level holds; the last one of a line the rest of what the line's own place above holds. */
static uint32_t held(const pl_engine *e, uint32_t level, uint32_t i) {
    const uint32_t *place = pl_engine_level(e, level) + i;
    if (level < e->top) {
        return (i % PL_LINE < PL_LINE - 1 ? place[1] : held(e, level + 1, i / PL_LINE)) - place[0];
    }
    return (i + 1 < PL_LINE * e->n_lines[level] ? place[1] : e->at.total) - place[0];
}

/* Add a difference, modulo 2^32, to the pool of k. */
void pl_engine_shift(pl_engine *e, uint32_t k, uint32_t difference) {
    e->at.total += difference;
    for (uint32_t level = 0; level <= e->top; level++, k /= PL_LINE) {
        uint32_t *line = pl_engine_level(e, level);
        size_t end = level < e->top ? (size_t)(k / PL_LINE + 1) * PL_LINE : (size_t)e->n_lines[level] * PL_LINE;
        for (size_t i = (size_t)k + 1; i < end; i++) {
            line[i] += difference;
        }
    }
}

/* Engine: the machine --------------------------------------------------------------------------------------------- */

#if PL_X86
/* The registers that the system saves; without OSXSAVE there is no such instruction. */
static uint32_t saved(void) {
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

static uint32_t best(void) {
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE) || !(c & bit_POPCNT) || (saved() & 6) != 6) {
        return PL_SIMD_SSE2;
    }
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(b & bit_AVX2) || !(b & bit_BMI) || !(b & bit_BMI2)) {
        return PL_SIMD_SSE2;
    }
    unsigned all = bit_AVX512F | bit_AVX512VL | bit_AVX512DQ | bit_AVX512BW;
    return (b & all) == all && (saved() & 0xE6) == 0xE6 ? PL_SIMD_AVX512 : PL_SIMD_AVX2;
}
#endif

bool pl_engine_has(uint32_t simd) {
#if PL_X86
    return simd == PL_SIMD_PORTABLE || (simd >= PL_SIMD_SSE2 && simd <= best());
#elif PL_NEON
    return simd == PL_SIMD_PORTABLE || simd == PL_SIMD_NEON;
#else
    return simd == PL_SIMD_PORTABLE;
#endif
}

/* Whether this build has a kernel for it; asking the machine each time would cost some 10 us, 40 in a virtual one. */
static bool built(uint32_t simd) {
    return simd == PL_SIMD_PORTABLE || (PL_X86 && simd >= PL_SIMD_SSE2 && simd <= PL_SIMD_AVX512) ||
           (PL_NEON && simd == PL_SIMD_NEON);
}

uint32_t pl_engine_chosen(uint32_t simd) {
    if (simd != PL_SIMD_BEST) {
        return simd;
    }
#if PL_X86
    return best();
#elif PL_NEON
    return PL_SIMD_NEON;
#else
    return PL_SIMD_PORTABLE;
#endif
}

const pl_kernel *pl_engine_kernel(uint32_t simd) {
    switch (simd) {
#if PL_X86
    case PL_SIMD_SSE2:
        return &pl_kernel_sse2;
    case PL_SIMD_AVX2:
        return &pl_kernel_avx2;
    case PL_SIMD_AVX512:
        return &pl_kernel_avx512;
#elif PL_NEON
    case PL_SIMD_NEON:
        return &pl_kernel_neon;
#endif
    default:
        return &pl_kernel_portable;
    }
}

/* Engine: making -------------------------------------------------------------------------------------------------- */

static int fill(pl_engine *e, uint32_t simd, const pl_sampler *at, uint32_t room, uint32_t memory[]) {
    simd = pl_engine_chosen(simd);
    if (!built(simd)) {
        return PL_ERR_ARGUMENT;
    }
    *e = (pl_engine){ .at = *at, .simd = simd };
    lay_out(e, room, memory);
    return PL_OK;
}

int pl_engine_init(pl_engine *e, uint32_t simd, uint64_t seed, uint32_t epoch, uint32_t n, const uint32_t counts[],
                   uint32_t room, uint32_t memory[]) {
    uint64_t total = 0; /* n < 2^32 terms below 2^32 */
    for (uint32_t i = 0; i < n; i++) {
        total += counts[i];
    }
    if (room < n) {
        return PL_ERR_ROOM;
    }
    if (total > UINT32_MAX) {
        return PL_ERR_TOTAL;
    }
    pl_sampler at = { .n = n, .total = (uint32_t)total, .seed = seed, .epoch = epoch };
    int status = fill(e, simd, &at, room, memory);
    if (status != PL_OK) {
        return status;
    }
    for (size_t i = 0; i < PL_LINE * (size_t)e->n_lines[0]; i++) {
        e->lines[i] = i < n ? counts[i] : 0;
    }
    build(e);
    return PL_OK;
}

void pl_engine_counts(const pl_engine *e, uint32_t counts[]) {
    for (uint32_t k = 0; k < e->at.n; k++) {
        counts[k] = held(e, 0, k);
    }
}

int pl_engine_move(pl_engine *e, uint32_t room, uint32_t memory[]) {
    if (room < e->at.n) {
        return PL_ERR_ROOM;
    }
    pl_engine fresh;
    fill(&fresh, e->simd, &e->at, room, memory);
    for (size_t i = 0; i < PL_LINE * (size_t)fresh.n_lines[0]; i++) {
        fresh.lines[i] = i < e->at.n ? held(e, 0, (uint32_t)i) : 0;
    }
    build(&fresh);
    *e = fresh;
    return PL_OK;
}

/* Engine: churn --------------------------------------------------------------------------------------------------- */

int pl_engine_void(pl_engine *e, uint32_t n_ids, const uint32_t ids[], const uint32_t counts[]) {
    uint64_t total = e->at.total;
    for (uint32_t i = 0; i < n_ids; i++) {
        total += counts[i];
        if (ids[i] >= e->at.n) {
            return PL_ERR_ARGUMENT;
        }
    }
    if (total > UINT32_MAX || e->at.redraw == 0xFFFFFFu) {
        return total > UINT32_MAX ? PL_ERR_TOTAL : PL_ERR_ARGUMENT;
    }
    for (uint32_t i = 0; i < n_ids; i++) {
        pl_engine_shift(e, ids[i], counts[i]);
    }
    e->at.redraw++;
    return PL_OK;
}

uint32_t pl_engine_count(const pl_engine *e, uint32_t k) {
    return k < e->at.n ? held(e, 0, k) : 0;
}

int pl_engine_set_count(pl_engine *e, uint32_t k, uint32_t count) {
    if (k >= e->at.n) {
        return PL_ERR_ARGUMENT;
    }
    uint32_t now = held(e, 0, k);
    if (count > now && count - now > UINT32_MAX - e->at.total) {
        return PL_ERR_TOTAL;
    }
    pl_engine_shift(e, k, count - now);
    return PL_OK;
}

int pl_engine_add(pl_engine *e, uint32_t count) {
    if (e->at.n == e->at.room || e->at.n == UINT32_MAX) {
        return PL_ERR_ROOM;
    }
    if (count > UINT32_MAX - e->at.total) {
        return PL_ERR_TOTAL;
    }
    pl_engine_shift(e, e->at.n++, count);
    return PL_OK;
}

/* Engine: saved bytes --------------------------------------------------------------------------------------------- */

int pl_engine_save(const pl_engine *e, uint8_t out[], uint64_t size) {
    if (size != pl_sampler_size(&e->at)) {
        return PL_ERR_ROOM;
    }
    pl_writer w = { out };
    pl_sampler_put_head(&e->at, &w);
    for (uint32_t k = 0; k < e->at.n; k++) {
        pl_put_u32(&w, held(e, 0, k));
    }
    pl_put_u32(&w, pl_crc32(out, size - 4));
    return PL_OK;
}

int pl_engine_load(pl_engine *e, uint32_t simd, const uint8_t in[], uint64_t size, uint32_t room, uint32_t memory[]) {
    pl_sampler at = { .redraw = 0 };
    int status = pl_sampler_shape(in, size, &at.n);
    if (status != PL_OK || room < at.n) {
        return status != PL_OK ? status : PL_ERR_ROOM;
    }
    pl_reader r = { in };
    pl_sampler_get_head(&at, &r);
    uint64_t total = 0;
    for (pl_reader ahead = r; ahead.at < in + size - 4;) {
        total += pl_get_u32(&ahead);
    }
    if (total > UINT32_MAX || at.redraw > 0xFFFFFFu) {
        return PL_ERR_STATE;
    }
    at.total = (uint32_t)total;
    status = fill(e, simd, &at, room, memory);
    if (status != PL_OK) {
        return status;
    }
    for (size_t i = 0; i < PL_LINE * (size_t)e->n_lines[0]; i++) {
        e->lines[i] = i < at.n ? pl_get_u32(&r) : 0;
    }
    build(e);
    return PL_OK;
}
