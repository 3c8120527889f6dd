/* SPDX-License-Identifier: Apache-2.0 */
/* What the core costs on this machine, for boards without Python: `pl_bench --help`.
 *
 * Each row: CPU time of a call, the median of its turns with the least and the most, and a CRC-32 of what came out of the
 * first call. Inputs come from the core's own generator by + * / alone, so the CRCs are the same on every machine. */
#define _POSIX_C_SOURCE 200809L
#include "paceline.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST_TURNS = 25, RANKS = 11, STEPS = 100, BATCH = 128, KNOTS = 64, SAMPLES_A_BOARD = 100 };

static double block_us = 20000.0; /* a turn repeats its call for at least so long */
static uint32_t turns = 9;
static bool as_json, any_row;

static double cpu_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return 1e6 * (double)now.tv_sec + 1e-3 * (double)now.tv_nsec;
}

static void *memory(uint64_t n, size_t size) {
    void *found = calloc(n ? n : 1, size);
    if (found == NULL) {
        fprintf(stderr, "pl_bench: no memory for %llu times %zu bytes; choose a smaller --most\n",
                (unsigned long long)n, size);
        exit(1);
    }
    return found;
}

static void must(int status, const char *what) {
    if (status != PL_OK) {
        fprintf(stderr, "pl_bench: %s gave %d\n", what, status);
        exit(1);
    }
}

static uint32_t crc32(uint32_t crc, uint64_t n, const uint32_t words[]) {
    for (uint64_t i = 0; i < n; i++) {
        for (int byte = 0; byte < 4; byte++) {
            crc ^= (words[i] >> (8 * byte)) & 0xFFu;
            for (int bit = 0; bit < 8; bit++) {
                crc = (crc >> 1) ^ (0xEDB88320u & (0u - (crc & 1u)));
            }
        }
    }
    return crc;
}

/* Turns ---- */

typedef struct {
    const char *name;
    uint32_t n;
    const char *unit; /* "us" of a call, or "ns" of one of its `parts` */
    uint32_t parts;
    void (*call)(void *);
    uint32_t (*crc)(void *);
    void *with;
} row;

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void measure(const row *r) {
    double taken[MOST_TURNS];
    r->call(r->with); /* also warms */
    uint32_t crc = r->crc(r->with);
    double began = cpu_us();
    uint32_t calls = 1;
    if (block_us > 0.0) {
        r->call(r->with);
        double once = cpu_us() - began;
        calls = once > 0.0 && block_us > once ? (uint32_t)(block_us / once) + 1 : 1;
    }
    for (uint32_t turn = 0; turn < turns; turn++) {
        began = cpu_us();
        for (uint32_t i = 0; i < calls; i++) {
            r->call(r->with);
        }
        taken[turn] = (cpu_us() - began) / calls;
        if (r->unit[0] == 'n') {
            taken[turn] *= 1000.0 / r->parts;
        }
    }
    qsort(taken, turns, sizeof taken[0], by_size);
    double least = taken[0], median = taken[turns / 2], most = taken[turns - 1];
    if (as_json) {
        printf("%s\n  {\"name\": \"%s\", \"n\": %u, \"unit\": \"%s\", \"median\": %.6g, \"least\": %.6g, "
               "\"most\": %.6g, \"turns\": %u, \"crc32\": \"%08x\"}",
               any_row ? "," : "", r->name, r->n, r->unit, median, least, most, turns, crc);
    } else {
        printf("%-28s %9u  %11.3f %s  (%.3f to %.3f)  %08x\n", r->name, r->n, median, r->unit, least, most, crc);
    }
    fflush(stdout);
    any_row = true;
}

/* A fleet whose paces spread over a factor of 30 ---- */

static double between(pl_rng *rng, double low, double high) {
    return low + (high - low) * ((double)pl_rng_word(rng) / 4294967296.0);
}

typedef struct {
    uint32_t n, budget;
    double *costs;
    pl_seat *seats;
    uint32_t *shares;
    pl_controller controller;
    pl_participant *participants;
    pl_group group;
    pl_pace *paces;
    pl_lane *lanes;
    pl_lot lot;
    pl_corner *corners;
    pl_frontier plan;
    pl_goal goal;
} fleet;

static fleet *new_fleet(uint32_t n) {
    fleet *f = memory(1, sizeof *f);
    pl_rng rng;
    pl_rng_start(&rng, 1, PL_PURPOSE_PARTITION, 0, n);
    f->n = n;
    f->budget = n * SAMPLES_A_BOARD;
    f->costs = memory(n, sizeof f->costs[0]);
    f->seats = memory(n, sizeof f->seats[0]);
    f->shares = memory(n, sizeof f->shares[0]);
    f->participants = memory(n, sizeof f->participants[0]);
    f->paces = memory(n, sizeof f->paces[0]);
    f->lanes = memory(n, sizeof f->lanes[0]);
    f->corners = memory(4 * (uint64_t)n + 2, sizeof f->corners[0]);
    pl_controller_config config = { .w_energy = 0.25 };
    must(pl_controller_init(&f->controller, &config, n, NULL, 1, &f->budget, n, f->participants, f->seats, &f->group),
         "pl_controller_init");
    for (uint32_t i = 0; i < n; i++) {
        double tau = between(&rng, 0.001, 0.03), watts = between(&rng, 2.0, 30.0);
        f->costs[i] = tau;
        pl_pace pace = { .seconds_per_sample = tau,
                         .energy_per_sample_j = watts * tau,
                         .wait_w = watts * between(&rng, 0.0, 0.5),
                         .minimum = 1,
                         .capacity = PL_NO_CAPACITY };
        f->paces[i] = pace;
    }
    f->goal.kind = PL_GOAL_ENERGY;
    return f;
}

static void drop_fleet(fleet *f) {
    void *parts[] = { f->costs, f->seats, f->shares, f->participants, f->paces, f->lanes, f->corners, f };
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        free(parts[i]);
    }
}

static uint32_t shares_crc(void *with) {
    const fleet *f = with;
    return crc32(0, f->n, f->shares);
}

static void allocate(void *with) {
    fleet *f = with;
    must(pl_allocate(f->n, f->costs, f->budget, NULL, NULL, f->seats, f->shares, NULL), "pl_allocate");
}

static void round_of(void *with) { /* everybody reports, then the next round is planned */
    fleet *f = with;
    for (uint32_t i = 0; i < f->n; i++) {
        pl_report report = { .samples = SAMPLES_A_BOARD };
        report.seconds = SAMPLES_A_BOARD * f->costs[i];
        report.energy_j = SAMPLES_A_BOARD * f->paces[i].energy_per_sample_j;
        must(pl_controller_observe(&f->controller, i, &report), "pl_controller_observe");
    }
    must(pl_controller_allocate(&f->controller, f->shares, NULL, NULL), "pl_controller_allocate");
}

static void plan(void *with) {
    fleet *f = with;
    must(pl_frontier_plan(&f->goal, f->n, f->paces, 1, &f->budget, 0, NULL, f->lanes, &f->lot, f->corners, f->shares,
                          &f->plan),
         "pl_frontier_plan");
}

static void controller_rows(uint32_t most) {
    static const uint32_t SIZES[] = { 11, 1000, 100000, 1000000 };
    for (size_t i = 0; i < sizeof SIZES / sizeof SIZES[0] && SIZES[i] <= most; i++) {
        fleet *f = new_fleet(SIZES[i]);
        measure(&(row){ "allocate", f->n, "us", 1, allocate, shares_crc, f });
        measure(&(row){ "reports and allocation", f->n, "us", 1, round_of, shares_crc, f });
        measure(&(row){ "frontier, least joules", f->n, "us", 1, plan, shares_crc, f });
        drop_fleet(f);
    }
}

/* Sampler ---- */

typedef struct {
    uint32_t n, total, steps, epoch;
    uint32_t *counts, *tree, *words, *lines;
    uint32_t ids[BATCH], drawn[BATCH], crc;
    pl_sampler sampler;
    pl_engine engine;
} pools;

static pools *new_pools(uint32_t n) {
    pools *p = memory(1, sizeof *p);
    pl_rng rng;
    pl_rng_start(&rng, 1, PL_PURPOSE_PARTITION, 1, n);
    p->n = n;
    p->counts = memory(n, sizeof p->counts[0]);
    p->tree = memory(n, sizeof p->tree[0]);
    p->words = memory(pl_engine_words(n) + 16, sizeof p->words[0]);
    p->lines = (uint32_t *)(((uintptr_t)p->words + 63) & ~(uintptr_t)63);
    uint32_t a_client = 1 + 2000000u / n;
    for (uint32_t k = 0; k < n; k++) {
        p->counts[k] = 1 + pl_rng_below(&rng, a_client);
        p->total += p->counts[k];
    }
    p->steps = p->total / BATCH < 512 ? p->total / BATCH : 512;
    return p;
}

static void drop_pools(pools *p) {
    free(p->counts);
    free(p->tree);
    free(p->words);
    free(p);
}

static uint32_t drawn_crc(void *with) {
    return ((pools *)with)->crc;
}

static void draw_fenwick(void *with) {
    pools *p = with;
    uint32_t n_ids = 0;
    must(pl_sampler_init(&p->sampler, 1, 0, p->n, p->counts, p->n, p->tree), "pl_sampler_init");
    for (uint32_t step = 0; step < p->steps; step++) {
        pl_sampler_draw(&p->sampler, BATCH, p->ids, p->drawn, &n_ids);
        pl_sampler_commit(&p->sampler);
    }
    p->crc = crc32(crc32(0, n_ids, p->ids), n_ids, p->drawn); /* of the last step, which knows of all before it */
}

static void draw_engine(void *with) {
    pools *p = with;
    uint32_t n_ids = 0;
    must(pl_engine_init(&p->engine, PL_SIMD_BEST, 1, 0, p->n, p->counts, p->n, p->lines), "pl_engine_init");
    for (uint32_t step = 0; step < p->steps; step++) {
        pl_engine_draw(&p->engine, BATCH, p->ids, p->drawn, &n_ids);
        pl_engine_commit(&p->engine);
    }
    p->crc = crc32(crc32(0, n_ids, p->ids), n_ids, p->drawn);
}

static void sampler_rows(uint32_t most) {
    static const uint32_t SIZES[] = { 10, 1000, 100000, 1000000 };
    for (size_t i = 0; i < sizeof SIZES / sizeof SIZES[0] && SIZES[i] <= most; i++) {
        pools *p = new_pools(SIZES[i]);
        uint32_t draws = p->steps * BATCH;
        measure(&(row){ "a draw, 16-ary tree", p->n, "ns", draws, draw_engine, drawn_crc, p });
        measure(&(row){ "a draw, Fenwick tree", p->n, "ns", draws, draw_fenwick, drawn_crc, p });
        drop_pools(p);
    }
}

/* Orders, schedules, joules ---- */

typedef struct {
    uint32_t order[60000];
    uint32_t shares[RANKS], batches[STEPS * RANKS];
    pl_knot knots[KNOTS];
    pl_energy energy;
} rest;

static void permute(void *with) {
    pl_permutation(1, 0, 60000, ((rest *)with)->order);
}
static uint32_t order_crc(void *with) {
    return crc32(0, 60000, ((rest *)with)->order);
}

static void deal(void *with) {
    rest *r = with;
    must(pl_schedule(RANKS, r->shares, STEPS, 1, r->batches, NULL), "pl_schedule");
}

static uint32_t batches_crc(void *with) {
    return crc32(0, STEPS * RANKS, ((rest *)with)->batches);
}

static void integrate(void *with) { /* a thousand readings and a window over the last of them */
    rest *r = with;
    pl_integrator e;
    must(pl_integrator_init(&e, 10000, 0, 0, KNOTS, r->knots), "pl_integrator_init");
    for (uint32_t i = 0; i < 1000; i++) {
        must(pl_integrator_point(&e, 10000ull * i, 5000000 + 1000 * (int64_t)(i % 97), 50000), "pl_integrator_point");
    }
    must(pl_integrator_window(&e, 9700000, 9990000, &r->energy), "pl_integrator_window");
}

static uint32_t energy_crc(void *with) {
    const pl_energy *e = &((rest *)with)->energy;
    uint32_t words[4] = { (uint32_t)e->energy_uj, (uint32_t)e->covered_us, (uint32_t)e->bound_uj, e->flags };
    return crc32(0, 4, words);
}

static void other_rows(void) {
    rest *r = memory(1, sizeof *r);
    for (uint32_t i = 0; i < RANKS; i++) {
        r->shares[i] = STEPS * (i + 1) + 7 * i;
    }
    measure(&(row){ "order of an epoch, a sample", 60000, "ns", 60000, permute, order_crc, r });
    measure(&(row){ "batches of 11 ranks, a step", STEPS, "ns", STEPS, deal, batches_crc, r });
    measure(&(row){ "joules, a reading", 1000, "ns", 1000, integrate, energy_crc, r });
    free(r);
}

static int usage(const char *wrong) {
    if (wrong != NULL) {
        fprintf(stderr, "pl_bench: %s: expected one of the words below\n", wrong);
    }
    fputs("usage: pl_bench [controller] [sampler] [other] [--quick] [--json] [--most N]\n"
          "CPU time of the core's calls: median of the turns (least to most), and a CRC-32 of what came out, which is "
          "the\n"
          "same on every machine.\n"
          "A draw: in an epoch of at most 512 steps of 128, the making of the tree included.\n"
          "  --quick   one call a row, for slow machines: the CRCs, hardly the times\n"
          "  --most N  no fleets and pools of more than N (default 1000000)\n",
          wrong == NULL ? stdout : stderr);
    return wrong == NULL ? 0 : 2;
}

int main(int n_words, char *words[]) {
    bool controller = false, sampler = false, other = false;
    uint32_t most = 1000000;
    for (int i = 1; i < n_words; i++) {
        char *end = NULL;
        if (strcmp(words[i], "controller") == 0) {
            controller = true;
        } else if (strcmp(words[i], "sampler") == 0) {
            sampler = true;
        } else if (strcmp(words[i], "other") == 0) {
            other = true;
        } else if (strcmp(words[i], "--quick") == 0) {
            block_us = 0.0;
            turns = 1;
        } else if (strcmp(words[i], "--json") == 0) {
            as_json = true;
        } else if (strcmp(words[i], "--help") == 0 || strcmp(words[i], "-h") == 0) {
            return usage(NULL);
        } else if (strcmp(words[i], "--most") == 0 && i + 1 < n_words) {
            unsigned long long asked = strtoull(words[++i], &end, 10);
            if (*words[i] < '0' || *words[i] > '9' || *end != '\0' || asked < 10 || asked > 1000000) {
                fprintf(stderr, "pl_bench: --most %s: expected a whole number from 10 to 1000000\n", words[i]);
                return 2;
            }
            most = (uint32_t)asked;
        } else {
            return usage(words[i]);
        }
    }
    bool all = !(controller || sampler || other);
    if (as_json) {
        printf("{\"schema\": \"paceline-core-bench-1\", \"rows\": [");
    }
    if (all || controller) {
        controller_rows(most);
    }
    if (all || sampler) {
        sampler_rows(most);
    }
    if (all || other) {
        other_rows();
    }
    if (as_json) {
        printf("\n]}\n");
    }
    return ferror(stdout) || fflush(stdout) ? 1 : 0;
}
