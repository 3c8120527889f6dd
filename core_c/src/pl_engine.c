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

static uint32_t *level_of(const pl_engine *e, uint32_t level) {
    return e->lines + PL_LINE * (size_t)e->first[level];
}

/* Turn counts, which stand in level 0, into sums on all levels. */
static void build(pl_engine *e) {
    for (uint32_t level = 0; level <= e->top; level++) {
        uint32_t *line = level_of(e, level), sum = 0;
        for (uint32_t i = 0; i < e->n_lines[level]; i++, line += PL_LINE) {
            sum = level < e->top ? 0 : sum;
            for (uint32_t j = 0; j < PL_LINE; j++) {
                uint32_t here = line[j];
                line[j] = sum;
                sum += here;
            }
            if (level < e->top) {
                level_of(e, level + 1)[i] = sum;
            }
        }
        if (level < e->top) {
            for (uint32_t i = e->n_lines[level]; i < PL_LINE * e->n_lines[level + 1]; i++) {
                level_of(e, level + 1)[i] = 0;
            }
        }
    }
}

/* What place i of a level holds; the last one of a line the rest of what the line's own place above holds. */
static uint32_t held(const pl_engine *e, uint32_t level, uint32_t i) {
    const uint32_t *place = level_of(e, level) + i;
    if (level < e->top) {
        return (i % PL_LINE < PL_LINE - 1 ? place[1] : held(e, level + 1, i / PL_LINE)) - place[0];
    }
    return (i + 1 < PL_LINE * e->n_lines[level] ? place[1] : e->at.total) - place[0];
}

static uint32_t count_of(const pl_engine *e, uint32_t k) {
    return held(e, 0, k);
}

/* Add a difference, modulo 2^32, to the pool of k. */
static void shift(pl_engine *e, uint32_t k, uint32_t difference) {
    e->at.total += difference;
    for (uint32_t level = 0; level <= e->top; level++, k /= PL_LINE) {
        uint32_t *line = level_of(e, level);
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

static uint32_t chosen(uint32_t simd) {
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

static const pl_kernel *kernel_of(const pl_engine *e) {
    switch (e->simd) {
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
    simd = chosen(simd);
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
        counts[k] = count_of(e, k);
    }
}

int pl_engine_move(pl_engine *e, uint32_t room, uint32_t memory[]) {
    if (room < e->at.n) {
        return PL_ERR_ROOM;
    }
    pl_engine fresh;
    fill(&fresh, e->simd, &e->at, room, memory);
    for (size_t i = 0; i < PL_LINE * (size_t)fresh.n_lines[0]; i++) {
        fresh.lines[i] = i < e->at.n ? count_of(e, (uint32_t)i) : 0;
    }
    build(&fresh);
    *e = fresh;
    return PL_OK;
}

/* Engine: draws --------------------------------------------------------------------------------------------------- */

/* The words of a step and how many of them are gone. */
typedef struct source {
    pl_stream stream;
    uint64_t used;
} source;

static source source_of(const pl_sampler *s) {
    return (source){ .stream = { { (uint32_t)s->seed, (uint32_t)(s->seed >> 32) },
                                 { s->step, s->epoch, PL_PURPOSE_SAMPLER + 256 * s->redraw },
                                 0 } };
}

/* The bounded numbers of n <= PL_CHUNK draws; word by word where one is to be skipped or has been. */
static void bounded(const pl_kernel *kernel, source *from, uint32_t total, uint32_t n, uint32_t r[]) {
    from->stream.block = (uint32_t)(from->used / 4);
    if (from->used % 4 == 0 && kernel->bounded(&from->stream, total, n, r)) {
        from->used += n;
        return;
    }
    uint32_t words[PL_CHUNK + PL_CHUNK_PAD], have = 0, next = (uint32_t)(from->used % 4);
    for (uint32_t i = 0; i < n;) {
        if (next >= have) {
            from->stream.block = (uint32_t)(from->used / 4);
            have = PL_CHUNK_PAD;
            next = (uint32_t)(from->used % 4);
            kernel->words(&from->stream, have, words);
        }
        uint32_t left = total - i;
        uint64_t product = (uint64_t)words[next++] * left;
        from->used++;
        if ((uint32_t)product >= left || (uint32_t)product >= (0u - left) % left) {
            r[i++] = (uint32_t)(product >> 32);
        }
    }
}

/* Take n <= PL_CHUNK draws; clients[n]: who gives each, NULL where the root alone tells. */
static void take(pl_engine *e, const pl_kernel *kernel, source *from, uint32_t n, uint32_t clients[]) {
    uint32_t r[PL_CHUNK + PL_CHUNK_PAD], at[PL_CHUNK];
    bounded(kernel, from, e->at.total, n, r);
    e->at.total -= n;
    if (e->top == 0) {
        kernel->flat(e->lines, e->n_lines[0], r, n);
        return;
    }
    uint32_t level = e->top, *way = clients != NULL ? clients : at;
    kernel->top(level_of(e, level), e->n_lines[level], r, way, n, level_of(e, level - 1));
    while (level-- > 0) {
        kernel->level(level_of(e, level), r, way, n, level > 0 ? level_of(e, level - 1) : NULL);
    }
}

static uint32_t least(uint32_t a, uint32_t b) {
    return a < b ? a : b;
}

/* Without a tree: how much the sum before each next client fell, is how much was drawn up to there. */
static uint32_t flat_draw(pl_engine *e, const pl_kernel *kernel, uint32_t n, uint32_t ids[], uint32_t counts[]) {
    uint32_t before[PL_LINE * PL_FLAT_LINES], different = 0, sum = 0;
    for (uint32_t k = 0; k < e->at.n; k++) {
        before[k] = e->lines[k];
    }
    source from = source_of(&e->at);
    for (uint32_t done = 0; done < n; done += PL_CHUNK) {
        take(e, kernel, &from, least(n - done, PL_CHUNK), NULL);
    }
    for (uint32_t k = 0; k < e->at.n && sum < n; k++) {
        uint32_t by = k + 1 < e->at.n ? before[k + 1] - e->lines[k + 1] : n;
        ids[different] = k;
        counts[different] = by - sum;
        different += by != sum;
        sum = by;
    }
    return different;
}

/* One counter a client: for batches of at least as many samples as there are clients. */
static void counted_draw(pl_engine *e, const pl_kernel *kernel, uint32_t n, uint32_t counts[]) {
    uint32_t clients[PL_CHUNK];
    for (uint32_t k = 0; k < e->at.n; k++) {
        counts[k] = 0;
    }
    source from = source_of(&e->at);
    for (uint32_t done = 0; done < n; done += PL_CHUNK) {
        uint32_t now = least(n - done, PL_CHUNK);
        take(e, kernel, &from, now, clients);
        for (uint32_t i = 0; i < now; i++) {
            counts[clients[i]]++;
        }
    }
}

/* Sort n numbers below most + 1, from the low digits up; a and b change places each time. Returns where they ended. */
static uint32_t *radix(uint32_t a[], uint32_t b[], uint32_t n, uint32_t most) {
    uint32_t bits = 0, start[1024];
    while (bits < 32 && most >> bits > 0) {
        bits++;
    }
    uint32_t widest = n < 512 ? 7 : 10, passes = (bits + widest - 1) / widest;
    uint32_t width = passes > 0 ? (bits + passes - 1) / passes : 0, bins = 1u << width;
    for (uint32_t low = 0; low < bits; low += width) {
        for (uint32_t j = 0; j < bins; j++) {
            start[j] = 0;
        }
        for (uint32_t i = 0; i < n; i++) {
            start[a[i] >> low & (bins - 1)]++;
        }
        for (uint32_t j = 0, sum = 0; j < bins; j++) {
            uint32_t here = start[j];
            start[j] = sum;
            sum += here;
        }
        for (uint32_t i = 0; i < n; i++) {
            b[start[a[i] >> low & (bins - 1)]++] = a[i];
        }
        uint32_t *kept = a;
        a = b;
        b = kept;
    }
    return a;
}

/* Sorted clients -> each once, with how often it stood there. `sorted` may be ids or counts. */
static uint32_t runs(const uint32_t sorted[], uint32_t n, uint32_t ids[], uint32_t counts[]) {
    if (n == 0) {
        return 0;
    }
    uint32_t end = 0, last = sorted[0];
    for (uint32_t i = 0; i < n; i++) {
        uint32_t id = sorted[i];
        end += id != last;
        ids[end] = id;
        counts[end] = i + 1;
        last = id;
    }
    for (uint32_t j = end; j > 0; j--) {
        counts[j] -= counts[j - 1];
    }
    return end + 1;
}

static uint32_t sorted_draw(pl_engine *e, const pl_kernel *kernel, uint32_t n, uint32_t ids[], uint32_t counts[]) {
    source from = source_of(&e->at);
    if (kernel->sort == NULL || n > PL_SORT_MOST) {
        for (uint32_t done = 0; done < n; done += PL_CHUNK) {
            take(e, kernel, &from, least(n - done, PL_CHUNK), ids + done);
        }
        return runs(radix(ids, counts, n, e->at.n - 1), n, ids, counts);
    }
    uint32_t guarded[PL_LINE + PL_SORT_MOST + PL_LINE], *all = guarded + PL_LINE, size = PL_SORT_LEAST;
    all[-1] = UINT32_MAX;
    for (uint32_t done = 0; done < n; done += PL_CHUNK) {
        take(e, kernel, &from, least(n - done, PL_CHUNK), all + done);
    }
    while (size < n) {
        size *= 2;
    }
    for (uint32_t i = n; i < size; i++) {
        all[i] = UINT32_MAX;
    }
    kernel->sort(all, size);
    return kernel->runs != NULL ? kernel->runs(all, n, ids, counts) : runs(all, n, ids, counts);
}

void pl_engine_draw(pl_engine *e, uint32_t batch, uint32_t ids[], uint32_t counts[], uint32_t *n_ids) {
    const pl_kernel *kernel = kernel_of(e);
    uint32_t n = least(batch, e->at.total), different = 0;
    if (e->top == 0) {
        *n_ids = flat_draw(e, kernel, n, ids, counts);
    } else if (e->at.n > batch) {
        *n_ids = sorted_draw(e, kernel, n, ids, counts);
    } else {
        counted_draw(e, kernel, n, counts);
        for (uint32_t k = 0; k < e->at.n; k++) {
            uint32_t count = counts[k];
            ids[different] = k;
            counts[different] = count;
            different += count > 0;
        }
        *n_ids = different;
    }
}

void pl_engine_draw_dense(pl_engine *e, uint32_t batch, uint32_t counts[]) {
    const pl_kernel *kernel = kernel_of(e);
    uint32_t n = least(batch, e->at.total);
    if (e->top > 0) {
        counted_draw(e, kernel, n, counts);
        return;
    }
    pl_engine_counts(e, counts);
    source from = source_of(&e->at);
    for (uint32_t done = 0; done < n; done += PL_CHUNK) {
        take(e, kernel, &from, least(n - done, PL_CHUNK), NULL);
    }
    for (uint32_t k = 0; k < e->at.n; k++) {
        counts[k] -= count_of(e, k);
    }
}

void pl_engine_draw_by_client(pl_engine *e, uint32_t batch, uint32_t ids[], uint32_t counts[], uint32_t *n_ids) {
    uint32_t left = e->at.total, n = least(batch, left), different = 0;
    pl_rng rng;
    pl_rng_start(&rng, e->at.seed, PL_PURPOSE_HYPERGEOMETRIC + 256 * e->at.redraw, e->at.epoch, e->at.step);
    pl_engine_counts(e, counts);
    for (uint32_t k = 0; k < e->at.n; k++) {
        uint32_t pool = counts[k], got = pool == left ? n : pl_hypergeometric(&rng, pool, left, n);
        ids[different] = k;
        counts[different] = got;
        different += got > 0;
        left -= pool;
        n -= got;
    }
    for (uint32_t i = 0; i < different; i++) {
        shift(e, ids[i], 0u - counts[i]);
    }
    *n_ids = different;
}

void pl_spread(uint32_t n_ids, const uint32_t ids[], const uint32_t counts[], uint32_t n, uint32_t dense[]) {
    for (uint32_t k = 0; k < n; k++) {
        dense[k] = 0;
    }
    for (uint32_t i = 0; i < n_ids; i++) {
        dense[ids[i]] = counts[i];
    }
}

void pl_random_updates(uint32_t simd, uint64_t seed, uint32_t n, uint32_t size, uint32_t cells[]) {
    pl_engine e = { .simd = chosen(simd) };
    pl_sampler at = { .seed = seed };
    source from = source_of(&at);
    uint32_t words[PL_CHUNK + PL_CHUNK_PAD];
    for (uint32_t done = 0; done < n; done += PL_CHUNK) {
        uint32_t now = least(n - done, PL_CHUNK);
        kernel_of(&e)->words(&from.stream, now, words);
        for (uint32_t i = 0; i < now; i++) {
            cells[(uint64_t)words[i] * size >> 32]++;
        }
        from.stream.block += PL_CHUNK / 4;
    }
}

void pl_engine_commit(pl_engine *e) {
    pl_sampler_commit(&e->at);
}

void pl_engine_skip(pl_engine *e, uint32_t steps, uint32_t batch) {
    const pl_kernel *kernel = kernel_of(e);
    for (uint32_t step = 0; step < steps; step++) {
        source from = source_of(&e->at);
        uint32_t n = least(batch, e->at.total);
        for (uint32_t done = 0; done < n; done += PL_CHUNK) {
            take(e, kernel, &from, least(n - done, PL_CHUNK), NULL);
        }
        pl_sampler_commit(&e->at);
    }
}

int pl_near_equal(uint32_t total, uint32_t batch, uint32_t *steps, uint32_t *larger, uint32_t *n_larger) {
    if (batch == 0) {
        return PL_ERR_ARGUMENT;
    }
    *steps = total > 0 ? (total - 1) / batch + 1 : 0;
    *larger = *steps > 0 ? (total - 1) / *steps + 1 : 0;
    *n_larger = *steps > 0 ? total - *steps * (*larger - 1) : 0;
    return PL_OK;
}

uint32_t pl_engine_steps(pl_engine *e, uint32_t batch, uint32_t n_larger, bool by_client, uint32_t most, uint64_t room,
                         uint32_t ids[], uint32_t counts[], uint64_t ends[]) {
    uint64_t used = 0;
    uint32_t steps = 0;
    for (; steps < most && e->at.total > 0; steps++) {
        uint32_t now = e->at.step < n_larger ? batch : batch - 1, n_ids;
        if (now == 0 || room - used < (by_client ? e->at.n : now)) {
            break;
        }
        if (by_client) {
            pl_engine_draw_by_client(e, now, ids + used, counts + used, &n_ids);
        } else {
            pl_engine_draw(e, now, ids + used, counts + used, &n_ids);
        }
        pl_sampler_commit(&e->at);
        used += n_ids;
        ends[steps] = used;
    }
    return steps;
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
        shift(e, ids[i], counts[i]);
    }
    e->at.redraw++;
    return PL_OK;
}

uint32_t pl_engine_count(const pl_engine *e, uint32_t k) {
    return k < e->at.n ? count_of(e, k) : 0;
}

int pl_engine_set_count(pl_engine *e, uint32_t k, uint32_t count) {
    if (k >= e->at.n) {
        return PL_ERR_ARGUMENT;
    }
    uint32_t now = count_of(e, k);
    if (count > now && count - now > UINT32_MAX - e->at.total) {
        return PL_ERR_TOTAL;
    }
    shift(e, k, count - now);
    return PL_OK;
}

int pl_engine_add(pl_engine *e, uint32_t count) {
    if (e->at.n == e->at.room || e->at.n == UINT32_MAX) {
        return PL_ERR_ROOM;
    }
    if (count > UINT32_MAX - e->at.total) {
        return PL_ERR_TOTAL;
    }
    shift(e, e->at.n++, count);
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
        pl_put_u32(&w, count_of(e, k));
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
