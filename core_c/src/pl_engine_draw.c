/* SPDX-License-Identifier: Apache-2.0 */
#include "pl_engine.h"

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
    kernel->top(pl_engine_level(e, level), e->n_lines[level], r, way, n, pl_engine_level(e, level - 1));
    while (level-- > 0) {
        kernel->level(pl_engine_level(e, level), r, way, n, level > 0 ? pl_engine_level(e, level - 1) : NULL);
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
    const pl_kernel *kernel = pl_engine_kernel(e->simd);
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
    const pl_kernel *kernel = pl_engine_kernel(e->simd);
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
        counts[k] -= pl_engine_count(e, k);
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
        pl_engine_shift(e, ids[i], 0u - counts[i]);
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
    const pl_kernel *kernel = pl_engine_kernel(pl_engine_chosen(simd));
    pl_sampler at = { .seed = seed };
    source from = source_of(&at);
    uint32_t words[PL_CHUNK + PL_CHUNK_PAD];
    for (uint32_t done = 0; done < n; done += PL_CHUNK) {
        uint32_t now = least(n - done, PL_CHUNK);
        kernel->words(&from.stream, now, words);
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
    const pl_kernel *kernel = pl_engine_kernel(e->simd);
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
