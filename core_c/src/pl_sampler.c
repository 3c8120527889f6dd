/* SPDX-License-Identifier: Apache-2.0 */
#include "pl_internal.h"

/* Sampler --------------------------------------------------------------------------------------------------------- */

/* A Fenwick tree, counted from 1 here and stored from 0: node i holds the sum of the pools i - lowest(i) + 1 .. i. */
static uint32_t lowest(uint32_t i) {
    return i & (0u - i);
}

/* The greatest power of two that is not above n; 0 for 0. */
static uint32_t top(uint32_t n) {
    uint32_t bit = 1;
    while (bit <= n / 2) {
        bit *= 2;
    }
    return n > 0 ? bit : 0;
}

static void build(uint32_t tree[], uint32_t n) {
    for (uint32_t i = 1; i <= n; i++) {
        uint64_t above = (uint64_t)i + lowest(i);
        if (above <= n) {
            tree[above - 1] += tree[i - 1];
        }
    }
}

int pl_sampler_init(pl_sampler *s, uint64_t seed, uint32_t epoch, uint32_t n, const uint32_t counts[], uint32_t room,
                    uint32_t tree[]) {
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
    for (uint32_t i = 0; i < n; i++) {
        tree[i] = counts[i];
    }
    build(tree, n);
    *s = (pl_sampler){ .tree = tree, .n = n, .room = room, .total = (uint32_t)total, .seed = seed, .epoch = epoch };
    return PL_OK;
}

/* The client in whose cumulative range r falls, r < total; its pool falls by one on the way down: the nodes that are
 * not passed are just those that hold it. */
static uint32_t take(pl_sampler *s, uint32_t r, uint32_t bit) {
    uint32_t at = 0;
    for (; bit > 0; bit /= 2) {
        if (s->n - at >= bit) { /* at + bit <= n */
            uint32_t *node = &s->tree[at + bit - 1];
            if (*node <= r) {
                r -= *node;
                at += bit;
            } else {
                *node -= 1;
            }
        }
    }
    s->total--;
    return at;
}

/* Begin the step's stream; returns how many can be drawn. */
static uint32_t start(const pl_sampler *s, pl_rng *rng, uint32_t batch) {
    pl_rng_start(rng, s->seed, PL_PURPOSE_SAMPLER + 256 * s->redraw, s->epoch, s->step);
    return batch < s->total ? batch : s->total;
}

static void sift_down(uint32_t a[], uint32_t root, uint32_t n) {
    for (uint64_t child; (child = 2 * (uint64_t)root + 1) < n; root = (uint32_t)child) {
        child += child + 1 < n && a[child] < a[child + 1];
        if (a[root] >= a[child]) {
            return;
        }
        uint32_t kept = a[root];
        a[root] = a[child];
        a[child] = kept;
    }
}

static void sort(uint32_t a[], uint32_t n) {
    for (uint32_t root = n / 2; root > 0; root--) {
        sift_down(a, root - 1, n);
    }
    for (uint32_t end = n; end > 1; end--) {
        uint32_t kept = a[0];
        a[0] = a[end - 1];
        a[end - 1] = kept;
        sift_down(a, 0, end - 1);
    }
}

void pl_sampler_draw(pl_sampler *s, uint32_t batch, uint32_t ids[], uint32_t counts[], uint32_t *n_ids) {
    pl_rng rng;
    uint32_t n = start(s, &rng, batch), bit = top(s->n), different = 0;
    for (uint32_t i = 0; i < n; i++) {
        ids[i] = take(s, pl_rng_below(&rng, s->total), bit);
    }
    sort(ids, n);
    for (uint32_t i = 0; i < n; i++) {
        if (different > 0 && ids[different - 1] == ids[i]) {
            counts[different - 1]++;
        } else {
            ids[different] = ids[i];
            counts[different] = 1;
            different++;
        }
    }
    *n_ids = different;
}

void pl_sampler_commit(pl_sampler *s) {
    s->step++;
    s->redraw = 0;
}

void pl_sampler_skip(pl_sampler *s, uint32_t steps, uint32_t batch) {
    uint32_t bit = top(s->n);
    for (uint32_t step = 0; step < steps; step++) {
        pl_rng rng;
        uint32_t n = start(s, &rng, batch);
        for (uint32_t i = 0; i < n; i++) {
            take(s, pl_rng_below(&rng, s->total), bit);
        }
        pl_sampler_commit(s);
    }
}

/* Churn ---- */

/* Add a difference, modulo 2^32, to the pool of k. */
static void shift(pl_sampler *s, uint32_t k, uint32_t difference) {
    for (uint64_t i = (uint64_t)k + 1; i <= s->n; i += lowest((uint32_t)i)) {
        s->tree[i - 1] += difference;
    }
    s->total += difference;
}

static uint32_t prefix(const pl_sampler *s, uint32_t i) {
    uint32_t sum = 0;
    for (; i > 0; i -= lowest(i)) {
        sum += s->tree[i - 1];
    }
    return sum;
}

int pl_sampler_void(pl_sampler *s, uint32_t n_ids, const uint32_t ids[], const uint32_t counts[]) {
    uint64_t total = s->total;
    for (uint32_t i = 0; i < n_ids; i++) {
        total += counts[i];
        if (ids[i] >= s->n) {
            return PL_ERR_ARGUMENT;
        }
    }
    if (total > UINT32_MAX || s->redraw == 0xFFFFFFu) {
        return total > UINT32_MAX ? PL_ERR_TOTAL : PL_ERR_ARGUMENT;
    }
    for (uint32_t i = 0; i < n_ids; i++) {
        shift(s, ids[i], counts[i]);
    }
    s->redraw++;
    return PL_OK;
}

uint32_t pl_sampler_count(const pl_sampler *s, uint32_t k) {
    return k < s->n ? prefix(s, k + 1) - prefix(s, k) : 0;
}

void pl_sampler_counts(const pl_sampler *s, uint32_t counts[]) {
    for (uint32_t i = 0; i < s->n; i++) {
        counts[i] = s->tree[i];
    }
    for (uint32_t i = s->n; i > 0; i--) { /* the building, backwards */
        uint64_t above = (uint64_t)i + lowest(i);
        if (above <= s->n) {
            counts[above - 1] -= counts[i - 1];
        }
    }
}

int pl_sampler_set_count(pl_sampler *s, uint32_t k, uint32_t count) {
    if (k >= s->n) {
        return PL_ERR_ARGUMENT;
    }
    uint32_t now = pl_sampler_count(s, k);
    if (count > now && count - now > UINT32_MAX - s->total) {
        return PL_ERR_TOTAL;
    }
    shift(s, k, count - now);
    return PL_OK;
}

int pl_sampler_add(pl_sampler *s, uint32_t count) {
    if (s->n == s->room || s->n == UINT32_MAX) {
        return PL_ERR_ROOM;
    }
    if (count > UINT32_MAX - s->total) {
        return PL_ERR_TOTAL;
    }
    uint32_t i = s->n + 1;
    s->tree[i - 1] = count + s->total - prefix(s, i - lowest(i)); /* node i holds what follows i - lowest(i) */
    s->n = i;
    s->total += count;
    return PL_OK;
}

/* Saved bytes ---- */

enum { MAGIC = 0x31534C50 /* "PLS1" */, HEAD_BYTES = 32, CRC_BYTES = 4 };

uint64_t pl_sampler_size(const pl_sampler *s) {
    return HEAD_BYTES + 4 * (uint64_t)s->n + CRC_BYTES;
}

void pl_sampler_put_head(const pl_sampler *s, pl_writer *w) {
    pl_put_u32(w, MAGIC);
    pl_put_u32(w, 0);
    pl_put_u32(w, s->n);
    pl_put_u64(w, s->seed);
    pl_put_u32(w, s->epoch);
    pl_put_u32(w, s->step);
    pl_put_u32(w, s->redraw);
}

void pl_sampler_get_head(pl_sampler *s, pl_reader *r) {
    r->at += 12;
    s->seed = pl_get_u64(r);
    s->epoch = pl_get_u32(r);
    s->step = pl_get_u32(r);
    s->redraw = pl_get_u32(r);
}

int pl_sampler_save(const pl_sampler *s, uint8_t out[], uint64_t size) {
    if (size != pl_sampler_size(s)) {
        return PL_ERR_ROOM;
    }
    pl_writer w = { out };
    pl_sampler_put_head(s, &w);
    for (uint32_t k = 0; k < s->n; k++) {
        pl_put_u32(&w, pl_sampler_count(s, k));
    }
    pl_put_u32(&w, pl_crc32(out, size - CRC_BYTES));
    return PL_OK;
}

int pl_sampler_shape(const uint8_t in[], uint64_t size, uint32_t *n) {
    if (size < HEAD_BYTES + CRC_BYTES) {
        return PL_ERR_STATE;
    }
    pl_reader head = { in }, tail = { in + size - CRC_BYTES };
    uint32_t magic = pl_get_u32(&head), version = pl_get_u32(&head);
    *n = pl_get_u32(&head);
    if (magic != MAGIC || version != 0 || size != HEAD_BYTES + 4 * (uint64_t)*n + CRC_BYTES ||
        pl_get_u32(&tail) != pl_crc32(in, size - CRC_BYTES)) {
        return PL_ERR_STATE;
    }
    return PL_OK;
}

int pl_sampler_load(pl_sampler *s, const uint8_t in[], uint64_t size, uint32_t room, uint32_t tree[]) {
    pl_sampler fresh = { .tree = tree, .room = room };
    int status = pl_sampler_shape(in, size, &fresh.n);
    if (status != PL_OK || room < fresh.n) {
        return status != PL_OK ? status : PL_ERR_ROOM;
    }
    pl_reader r = { in };
    pl_sampler_get_head(&fresh, &r);
    uint64_t total = 0;
    for (uint32_t k = 0; k < fresh.n; k++) {
        tree[k] = pl_get_u32(&r);
        total += tree[k];
    }
    if (total > UINT32_MAX || fresh.redraw > 0xFFFFFFu) {
        return PL_ERR_STATE;
    }
    build(tree, fresh.n);
    fresh.total = (uint32_t)total;
    *s = fresh;
    return PL_OK;
}
