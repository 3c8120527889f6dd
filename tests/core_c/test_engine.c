/* SPDX-License-Identifier: Apache-2.0 */
/* One schedule from every structure: digests of an independent replica. -DBARE: the Fenwick tree alone, small cases. */
#include "check.h"

#include <stdlib.h>
#include <string.h>

static uint32_t crc32(uint32_t crc, uint32_t word) {
    for (int k = 0; k < 32; k += 8) {
        crc ^= (word >> k) & 0xFFu;
        for (int bit = 0; bit < 8; bit++) {
            crc = (crc >> 1) ^ (0xEDB88320u & (0u - (crc & 1u)));
        }
    }
    return crc;
}

/* One hash ---- */

#ifdef BARE
enum { CLIENTS = 1000, BATCH = 4096 };
#else
enum { CLIENTS = 300000, BATCH = 5000 };
#endif

static const struct {
    uint32_t clients, batch, steps;
    uint64_t seed;
    uint32_t epoch, scale, total, crc;
} CASES[] = {
#include "../vectors/engine.inc"
};

static uint32_t pools[CLIENTS], tree[CLIENTS], ids[BATCH], counts[BATCH];

static uint32_t digest(uint32_t crc, uint32_t n_ids) {
    for (uint32_t k = 0; k < 2 * n_ids; k++) {
        crc = crc32(crc, k < n_ids ? ids[k] : counts[k - n_ids]);
    }
    return crc;
}

static bool begin(unsigned i) {
    for (uint32_t k = 0; k < CASES[i].clients && k < CLIENTS; k++) {
        pools[k] = (uint32_t)((uint64_t)k * k % 41) * CASES[i].scale;
    }
    return CASES[i].clients <= CLIENTS && CASES[i].batch <= BATCH;
}

static void fenwick(void) {
    pl_sampler s;
    for (unsigned i = 0; i < LENGTH(CASES); i++) {
        uint32_t crc = 0xFFFFFFFFu, n_ids;
        if (!begin(i)) {
            continue;
        }
        CHECK(pl_sampler_init(&s, CASES[i].seed, CASES[i].epoch, CASES[i].clients, pools, CLIENTS, tree) == PL_OK,
              "a pool of the table", i);
        for (uint32_t step = 0; step < CASES[i].steps; step++) {
            pl_sampler_draw(&s, CASES[i].batch, ids, counts, &n_ids);
            crc = digest(crc, n_ids);
            pl_sampler_commit(&s);
        }
        CHECK(~crc == CASES[i].crc && s.total == CASES[i].total, "the Fenwick tree's draws are the replica's", i);
    }
}

#ifdef BARE
int main(void) {
    fenwick();
    return verdict("engine (the Fenwick tree alone)");
}
#else

static uint32_t memory[CLIENTS / 16 * 18 + 100], all_ids[30000], all_counts[30000], dense[CLIENTS], left[CLIENTS];
static uint64_t ends[100];

static void hashes(uint32_t simd) {
    pl_engine e;
    for (unsigned i = 0; i < LENGTH(CASES); i++) {
        uint32_t crc = 0xFFFFFFFFu, n = CASES[i].clients, batch = CASES[i].batch, steps = CASES[i].steps, n_ids;
        begin(i);
        CHECK(pl_engine_words(n) <= LENGTH(memory), "the test has room", i);
        CHECK(pl_engine_init(&e, simd, CASES[i].seed, CASES[i].epoch, n, pools, n, memory) == PL_OK, "a pool", i);
        for (uint32_t step = 0; step < steps; step++) {
            pl_engine_draw(&e, batch, ids, counts, &n_ids);
            crc = digest(crc, n_ids);
            pl_engine_commit(&e);
        }
        CHECK(~crc == CASES[i].crc && e.at.total == CASES[i].total, "the engine's draws are the replica's", i);

        pl_engine_init(&e, simd, CASES[i].seed, CASES[i].epoch, n, pools, n, memory);
        crc = 0xFFFFFFFFu;
        for (uint32_t step = 0; step < steps; step++) {
            pl_engine_draw_dense(&e, batch, dense);
            n_ids = 0;
            for (uint32_t k = 0; k < n; k++) {
                ids[n_ids] = k;
                counts[n_ids] = dense[k];
                n_ids += dense[k] > 0;
            }
            crc = digest(crc, n_ids);
            pl_engine_commit(&e);
        }
        CHECK(~crc == CASES[i].crc, "dense draws are the same", i);

        pl_engine_init(&e, simd, CASES[i].seed, CASES[i].epoch, n, pools, n, memory);
        uint32_t got = pl_engine_steps(&e, batch, UINT32_MAX, false, steps, LENGTH(all_ids), all_ids, all_counts, ends);
        crc = 0xFFFFFFFFu;
        for (uint32_t step = 0; step < got; step++) {
            uint64_t start = step > 0 ? ends[step - 1] : 0;
            n_ids = (uint32_t)(ends[step] - start);
            memcpy(ids, all_ids + start, 4 * n_ids);
            memcpy(counts, all_counts + start, 4 * n_ids);
            crc = digest(crc, n_ids);
        }
        CHECK(~crc == CASES[i].crc && e.at.step == got, "many steps in one call are the same", i);

        pl_engine_init(&e, simd, CASES[i].seed, CASES[i].epoch, n, pools, n, memory);
        pl_engine_counts(&e, dense);
        CHECK(memcmp(dense, pools, 4 * n) == 0, "an engine holds what it was given", i);
        pl_engine_skip(&e, steps, batch);
        CHECK(e.at.total == CASES[i].total && e.at.step == steps, "steps that are skipped take as much", i);
    }
}

/* Churn: an engine and a Fenwick tree that live through the same; the seed may be given as argv[1]. */
static void twins(uint32_t simd, uint32_t seed, uint32_t most, unsigned trials) {
    static uint32_t other[8000], ids2[5000], counts2[5000];
    static uint8_t bytes[40000], bytes2[40000];
    pl_rng rng;
    pl_engine e;
    pl_sampler s;
    pl_rng_start(&rng, seed, 998, simd, most);
    for (unsigned trial = 0; trial < trials; trial++) {
        uint32_t n = pl_rng_below(&rng, most), scale = pl_rng_below(&rng, 8) ? 50 : 0xFFFFFFFFu / most;
        uint32_t room = n + pl_rng_below(&rng, 20), *here = memory, *there = other;
        for (uint32_t k = 0; k < n; k++) {
            pools[k] = pl_rng_below(&rng, 3) ? pl_rng_below(&rng, scale) : 0;
        }
        CHECK(pl_engine_init(&e, simd, trial, 5, n, pools, room, here) == PL_OK, "an engine", trial);
        CHECK(pl_sampler_init(&s, trial, 5, n, pools, CLIENTS, tree) == PL_OK, "its twin", trial);
        for (int move = 0; move < 40; move++) {
            uint32_t n_ids = 0, n_ids2 = 0, k = pl_rng_below(&rng, s.n + 1), x = pl_rng_below(&rng, scale);
            uint32_t batch = pl_rng_below(&rng, pl_rng_below(&rng, 2) ? 60 : 3000);
            switch (pl_rng_below(&rng, 6)) {
            case 0:
                if (pl_engine_add(&e, x) == PL_ERR_ROOM) {
                    CHECK(pl_engine_move(&e, e.at.room + 17, there) == PL_OK, "an engine moves", trial);
                    uint32_t *kept = here;
                    here = there;
                    there = kept;
                    pl_engine_add(&e, x);
                }
                pl_sampler_add(&s, x);
                break;
            case 1:
                CHECK(pl_engine_set_count(&e, k, x) == pl_sampler_set_count(&s, k, x), "both accept or refuse", trial);
                break;
            case 2: /* each goes on from the other's bytes */
                CHECK(pl_engine_save(&e, bytes, pl_sampler_size(&e.at)) == PL_OK, "an engine is saved", trial);
                CHECK(pl_sampler_save(&s, bytes2, pl_sampler_size(&s)) == PL_OK, "so is its twin", trial);
                CHECK(memcmp(bytes, bytes2, pl_sampler_size(&s)) == 0, "the bytes are the same", trial);
                CHECK(pl_engine_load(&e, simd, bytes2, pl_sampler_size(&s), e.at.room, here) == PL_OK, "loads", trial);
                CHECK(pl_sampler_load(&s, bytes, pl_sampler_size(&s), CLIENTS, tree) == PL_OK, "loads too", trial);
                break;
            default:
                pl_engine_draw(&e, batch, ids, counts, &n_ids);
                pl_sampler_draw(&s, batch, ids2, counts2, &n_ids2);
                CHECK(n_ids == n_ids2 && memcmp(ids, ids2, 4 * n_ids) == 0 && memcmp(counts, counts2, 4 * n_ids) == 0,
                      "twins draw the same", trial);
                if (pl_rng_below(&rng, 2)) {
                    CHECK(pl_engine_void(&e, n_ids, ids, counts) == pl_sampler_void(&s, n_ids, ids, counts), "void",
                          trial);
                } else {
                    pl_engine_commit(&e);
                    pl_sampler_commit(&s);
                }
            }
            pl_engine_counts(&e, dense);
            pl_sampler_counts(&s, left);
            CHECK(e.at.n == s.n && e.at.total == s.total && memcmp(dense, left, 4 * s.n) == 0, "twins hold the same",
                  trial);
            CHECK(pl_engine_count(&e, k) == pl_sampler_count(&s, k), "each client does", trial);
        }
    }
}

static void bounds(void) {
    pl_engine e;
    uint32_t few[] = { 5, 5 }, at[] = { 9 }, one[] = { 1 }, steps, larger, n_larger;
    uint8_t bytes[64];
    CHECK(pl_engine_init(&e, 0, 1, 0, 2, few, 1, memory) == PL_ERR_ROOM, "an engine needs its room", 0);
    CHECK(pl_engine_init(&e, 99, 1, 0, 2, few, 2, memory) == PL_ERR_ARGUMENT, "there are no such instructions", 1);
    CHECK(pl_engine_init(&e, 0, 1, 0, 2, few, 3, memory) == PL_OK && e.simd != 0, "the best ones are found", 2);
    CHECK(((uintptr_t)e.lines & 63) == 0, "lines lie at multiples of 64 bytes", 2);
    CHECK(pl_engine_set_count(&e, 2, 1) == PL_ERR_ARGUMENT, "no count for a stranger", 3);
    CHECK(pl_engine_set_count(&e, 1, UINT32_MAX) == PL_ERR_TOTAL, "no more than UINT32_MAX in all", 4);
    CHECK(pl_engine_add(&e, UINT32_MAX) == PL_ERR_TOTAL, "nor by a newcomer", 5);
    CHECK(pl_engine_add(&e, 7) == PL_OK && pl_engine_add(&e, 7) == PL_ERR_ROOM, "room for one, not for two", 6);
    CHECK(pl_engine_void(&e, 1, at, one) == PL_ERR_ARGUMENT, "a stranger's draws do not come back", 7);
    CHECK(pl_engine_count(&e, 99) == 0, "a stranger has nothing", 8);
    CHECK(pl_engine_move(&e, 2, memory) == PL_ERR_ROOM, "three clients do not move into room for two", 9);
    uint64_t size = pl_sampler_size(&e.at);
    CHECK(pl_engine_save(&e, bytes, size - 1) == PL_ERR_ROOM, "a state has its size", 10);
    CHECK(pl_engine_save(&e, bytes, size) == PL_OK, "a state is saved", 11);
    CHECK(pl_engine_load(&e, 0, bytes, size, 2, memory) == PL_ERR_ROOM, "three clients need room for three", 12);
    for (uint64_t k = 0; k < size; k++) {
        bytes[k] ^= 4;
        CHECK(pl_engine_load(&e, 0, bytes, size, 3, memory) == PL_ERR_STATE, "a flipped bit is refused", k);
        bytes[k] ^= 4;
    }
    few[0] = UINT32_MAX;
    CHECK(pl_engine_init(&e, 0, 1, 0, 2, few, 2, memory) == PL_ERR_TOTAL, "one sample more is too much", 13);
    CHECK(pl_engine_words(1000000) * 4 <= 4500000, "at most 4.5 bytes a client", 14);
    CHECK(pl_near_equal(10, 0, &steps, &larger, &n_larger) == PL_ERR_ARGUMENT, "no steps of nothing", 15);
    for (uint32_t total = 0; total < 60; total++) {
        for (uint32_t batch = 1; batch < 20; batch++) {
            CHECK(pl_near_equal(total, batch, &steps, &larger, &n_larger) == PL_OK, "a division", total);
            CHECK(steps == (total + batch - 1) / batch && larger <= batch && n_larger <= steps, "few steps", total);
            CHECK(steps == 0 || n_larger * larger + (steps - n_larger) * (larger - 1) == total, "of all", total);
        }
    }
}

int main(int argc, char *argv[]) {
    uint32_t seed = argc > 1 ? (uint32_t)strtoul(argv[1], (char **)0, 10) : 1, tried = 0;
    fenwick();
    bounds();
    printf("seed %lu, instructions:", (unsigned long)seed);
    for (uint32_t simd = PL_SIMD_PORTABLE; simd <= PL_SIMD_NEON; simd++) {
        if (pl_engine_has(simd)) {
            printf(" %lu", (unsigned long)simd);
            tried++;
            hashes(simd);
            twins(simd, seed, 150, 150);
            twins(simd, seed, 1500, 20);
            twins(simd, seed, 6000, 5);
        }
    }
    printf("\n");
    CHECK(tried > 0, "some instructions are there", 0);
    return verdict("engine");
}
#endif
