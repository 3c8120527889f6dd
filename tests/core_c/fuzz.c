/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as calls of the core, under ASan and UBSan: nothing reads or writes where it should not, sums hold.
 *
 * LLVMFuzzerTestOneInput is what libFuzzer wants (clang -DPACELINE_LIBFUZZER -fsanitize=fuzzer,address,undefined);
 * without it `fuzz [executions [seed]]` mutates by itself. All arrays are of the heap and as long as the header says. */
#include "paceline.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MOST = 64 /* boards, clients, knots of an input */ };

typedef struct {
    const uint8_t *at;
    size_t left;
} bytes;

static void take(bytes *b, void *out, size_t size) {
    size_t have = size < b->left ? size : b->left;
    memset(out, 0, size);
    if (have > 0) { /* an empty input may be a null pointer */
        memcpy(out, b->at, have);
        b->at += have;
        b->left -= have;
    }
}

static uint32_t word(bytes *b) {
    uint32_t value;
    take(b, &value, sizeof value);
    return value;
}

static uint64_t wide(bytes *b) {
    uint64_t value;
    take(b, &value, sizeof value);
    return value;
}

static uint32_t below(bytes *b, uint32_t n) {
    return word(b) % n;
}

/* Any double, or, mostly, one that stands for something. */
static double number(bytes *b) {
    double value;
    uint32_t how = word(b);
    if (how % 8 == 0) {
        take(b, &value, sizeof value);
        return value;
    }
    return (double)(how >> 3) * (how % 8 < 5 ? 1e-6 : 1.0);
}

static void *room(size_t n, size_t size) {
    void *made = malloc(n * size > 0 ? n * size : 1); /* exact, so that the sanitizer sees one element too many */
    if (made == NULL) {
        exit(2);
    }
    memset(made, 0xA5, n * size);
    return made;
}

static void must(int good, const char *what) {
    if (!good) {
        fprintf(stderr, "not so: %s\n", what);
        abort();
    }
}

static void put_crc(uint8_t *bytes_, size_t size) {
    uint32_t crc = 0xFFFFFFFFu;
    for (size_t i = 0; i + 4 < size; i++) {
        crc ^= bytes_[i];
        for (int bit = 0; bit < 8; bit++) {
            crc = (crc >> 1) ^ (0xEDB88320u & (0u - (crc & 1u)));
        }
    }
    for (int k = 0; k < 4; k++) {
        bytes_[size - 4 + (size_t)k] = (uint8_t)(~crc >> 8 * k);
    }
}

/* The saved bytes of an input, their checksum made right. */
static uint8_t *saved(const bytes *b) {
    uint8_t *copy = room(b->left, 1);
    if (b->left > 0) {
        memcpy(copy, b->at, b->left);
    }
    if (b->left >= 4) {
        put_crc(copy, b->left);
    }
    return copy;
}

static void use_controller(pl_controller *c, bytes *b) {
    uint32_t *shares = room(c->n, sizeof *shares), at;
    double *costs = room(c->n, sizeof *costs);
    uint64_t missing;
    for (int i = 0; i < 6 && c->n > 0; i++) {
        pl_report report = { number(b), number(b), number(b), number(b), number(b), word(b) % 100000 };
        pl_controller_observe(c, below(b, c->n + 1), &report);
        pl_controller_limit(c, below(b, c->n + 1), word(b) % 50, word(b) % 9 ? PL_NO_CAPACITY : word(b) % 5000);
        if (word(b) % 4 == 0) {
            pl_controller_remove(c, below(b, c->n));
        } else {
            pl_controller_restore(c, below(b, c->n));
        }
        pl_controller_costs(c, costs);
        if (pl_controller_allocate(c, shares, &missing, &at) == PL_OK) {
            uint64_t sum = 0, budget = 0;
            for (uint32_t k = 0; k < c->n; k++) {
                sum += shares[k];
            }
            for (uint32_t g = 0; g < c->n_groups; g++) {
                budget += c->groups[g].budget - c->groups[g].lapsed;
            }
            must(sum == budget, "shares sum to the budgets");
        }
    }
    uint64_t size = pl_controller_size(c);
    uint8_t *out = room(size, 1);
    must(pl_controller_save(c, out, size) == PL_OK, "a controller saves");
    free(out);
    free(costs);
    free(shares);
}

static void controller(bytes *b) {
    uint32_t n = 0, n_groups = 0;
    uint64_t size = b->left;
    uint8_t *in = saved(b);
    if (pl_controller_shape(in, size, &n, &n_groups) == PL_OK) {
        pl_controller c;
        pl_participant *participants = room(n, sizeof *participants);
        pl_seat *seats = room(n, sizeof *seats);
        pl_group *groups = room(n_groups, sizeof *groups);
        if (pl_controller_load(&c, in, size, n, participants, seats, groups) == PL_OK) {
            use_controller(&c, b);
        }
        free(groups);
        free(seats);
        free(participants);
    }
    free(in);
}

static void fresh_controller(bytes *b) {
    pl_controller c;
    uint32_t n = below(b, MOST), n_groups = 1 + below(b, 4), group_of[MOST], budget[4];
    for (uint32_t i = 0; i < n; i++) {
        group_of[i] = word(b) % 16 ? below(b, n_groups) : word(b);
    }
    for (uint32_t g = 0; g < n_groups; g++) {
        budget[g] = word(b) % 100000;
    }
    pl_controller_config config = { number(b), number(b), number(b), number(b), word(b) % 4, 0 };
    pl_participant *participants = room(n, sizeof *participants);
    pl_seat *seats = room(n, sizeof *seats);
    pl_group *groups = room(n_groups, sizeof *groups);
    if (pl_controller_init(&c, &config, n, group_of, n_groups, budget, n, participants, seats, groups) == PL_OK) {
        use_controller(&c, b);
    }
    free(groups);
    free(seats);
    free(participants);
}

/* What one structure takes the other takes too, and both draw the same. */
static void sampler(bytes *b) {
    uint32_t n = 0, n_ids = 0, n_ids_there = 0;
    uint64_t size = b->left;
    uint8_t *in = saved(b);
    if (pl_sampler_shape(in, size, &n) == PL_OK) {
        pl_sampler s;
        pl_engine e;
        uint32_t *tree = room(n, sizeof *tree), *ids = room(MOST, sizeof *ids), *counts = room(MOST, sizeof *counts);
        uint32_t *ids_there = room(MOST, sizeof *ids), *counts_there = room(MOST, sizeof *counts);
        size_t words = (size_t)pl_engine_words(n);
        uint32_t *memory = aligned_alloc(64, (4 * words + 63) / 64 * 64);
        if (memory == NULL) {
            exit(2);
        }
        int loaded = pl_sampler_load(&s, in, size, n, tree);
        must(pl_engine_load(&e, PL_SIMD_BEST, in, size, n, memory) == loaded, "both structures load the same bytes");
        for (int step = 0; step < 4 && loaded == PL_OK; step++) {
            uint32_t batch = below(b, MOST + 1);
            pl_sampler_draw(&s, batch, ids, counts, &n_ids);
            pl_engine_draw(&e, batch, ids_there, counts_there, &n_ids_there);
            must(n_ids == n_ids_there && memcmp(ids, ids_there, 4 * n_ids) == 0, "both structures draw the same");
            if (word(b) % 3 == 0) {
                must(pl_sampler_void(&s, n_ids, ids, counts) == pl_engine_void(&e, n_ids, ids, counts), "both void");
            } else {
                pl_sampler_commit(&s);
                pl_engine_commit(&e);
            }
            uint32_t k = below(b, n + 2), count = word(b);
            must(pl_sampler_set_count(&s, k, count) == pl_engine_set_count(&e, k, count), "both set or refuse a count");
        }
        free(memory);
        free(counts_there);
        free(ids_there);
        free(counts);
        free(ids);
        free(tree);
    }
    free(in);
}

static void integrator(bytes *b) {
    pl_integrator e;
    uint32_t n_knots = 4 + below(b, MOST), kind = below(b, 3);
    pl_knot *knots = room(n_knots, sizeof *knots);
    uint64_t now_us = word(b) % 8 ? word(b) : wide(b);
    if (pl_integrator_init(&e, word(b) % 16 ? 1 + below(b, 200000) : word(b), word(b) % 2 ? 0 : wide(b),
                           word(b) % 2 ? 0 : wide(b), n_knots, knots) == PL_OK) {
        for (int i = 0; i < 24; i++) {
            uint64_t step_us = word(b) % 16 ? below(b, 300000) : wide(b);
            int64_t power_uw = word(b) % 16 ? (int64_t)below(b, 50000000) - 9000000 : (int64_t)wide(b);
            uint64_t error_uw = word(b) % 16 ? below(b, 100000) : wide(b), then_us = now_us + step_us;
            if (kind == 0) {
                pl_integrator_interval(&e, now_us, then_us, power_uw, error_uw);
            } else if (kind == 1) {
                pl_integrator_point(&e, then_us, power_uw, error_uw);
            } else {
                pl_integrator_counter(&e, then_us, wide(b));
            }
            pl_energy out;
            uint64_t from_us = now_us - below(b, 400000), to_us = from_us + below(b, 400000);
            if (to_us >= from_us && pl_integrator_window(&e, from_us, to_us, &out) == PL_OK) {
                must(out.covered_us <= to_us - from_us, "no more is covered than there is");
            }
            now_us = then_us;
        }
    }
    free(knots);
}

static void allocation(bytes *b) {
    uint32_t n = below(b, MOST), budget = word(b) % 8 ? below(b, 100000) : word(b);
    double *costs = room(n, sizeof *costs);
    uint32_t *minimum = room(n, sizeof *minimum), *capacity = room(n, sizeof *capacity),
             *shares = room(n, sizeof *shares);
    pl_seat *seats = room(n, sizeof *seats);
    uint64_t missing, sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        costs[i] = number(b);
        minimum[i] = word(b) % 16 ? below(b, 20) : word(b);
        capacity[i] = word(b) % 4 ? PL_NO_CAPACITY : word(b);
    }
    if (pl_allocate(n, costs, budget, minimum, capacity, seats, shares, &missing) == PL_OK) {
        for (uint32_t i = 0; i < n; i++) {
            sum += shares[i];
            must(shares[i] >= minimum[i] && shares[i] <= capacity[i], "limits are kept");
        }
        must(sum == budget, "shares sum to the budget");
    }
    uint32_t steps = below(b, 40), most = 0;
    uint32_t *batches = room((size_t)steps * n, sizeof *batches);
    for (uint32_t i = 0; i < n; i++) {
        shares[i] = word(b) % 16 ? below(b, 5000) : word(b);
    }
    pl_schedule(n, shares, steps, below(b, 4), batches, &most);
    free(batches);
    free(seats);
    free(shares);
    free(capacity);
    free(minimum);
    free(costs);
}

static void frontier(bytes *b) {
    uint32_t n = below(b, 24), n_groups = 1 + below(b, 3), budget[3], n_times = below(b, 3);
    double times[3] = { number(b), number(b), number(b) };
    pl_pace *paces = room(n, sizeof *paces);
    pl_lane *lanes = room(n, sizeof *lanes);
    pl_lot *lots = room(n_groups, sizeof *lots);
    pl_corner *corners = room(4 * (size_t)n + 2 * (size_t)n_groups, sizeof *corners);
    uint32_t *shares = room(n, sizeof *shares);
    pl_goal goal = { number(b), below(b, 7) };
    pl_frontier out;
    uint64_t sum = 0, all = 0;
    for (uint32_t g = 0; g < n_groups; g++) {
        all += budget[g] = word(b) % 100000;
    }
    for (uint32_t i = 0; i < n; i++) {
        pl_pace pace = { number(b),
                         number(b),
                         number(b),
                         number(b),
                         number(b),
                         number(b),
                         word(b) % 16 ? below(b, 5) : word(b),
                         word(b) % 4 ? PL_NO_CAPACITY : word(b),
                         word(b) % 16 ? below(b, n_groups) : word(b) };
        paces[i] = pace;
    }
    if (pl_frontier_plan(&goal, n, paces, n_groups, budget, n_times, times, lanes, lots, corners, shares, &out) ==
        PL_OK) {
        for (uint32_t i = 0; i < n; i++) {
            sum += shares[i];
        }
        must(sum == all, "a plan deals out all budgets");
    }
    pl_fit fit;
    take(b, &fit, sizeof fit);
    pl_fit_observe(&fit, number(b), word(b));
    pl_fit_is_affine(&fit);
    free(shares);
    free(corners);
    free(lots);
    free(lanes);
    free(paces);
}

static void sensors(bytes *b) {
    uint8_t registers[4];
    pl_rail rail;
    for (int i = 0; i < 8; i++) {
        take(b, registers, sizeof registers);
        pl_ina219(word(b), registers, registers + 2, word(b), &rail);
        pl_ina3221(registers, registers + 2, word(b), &rail);
    }
    pl_rng rng;
    pl_rng_start(&rng, wide(b), word(b), word(b), word(b));
    uint32_t total = word(b), good = total ? below(b, total) : 0, sample = total ? below(b, total) : 0;
    must(pl_hypergeometric(&rng, good, total, sample) <= (good < sample ? good : sample),
         "no more hits than there are");
}

static void (*const TARGETS[])(bytes *) = { controller, fresh_controller, sampler, integrator,
                                            allocation, frontier,         sensors };
enum { N_TARGETS = sizeof TARGETS / sizeof TARGETS[0] };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size > 0) {
        bytes b = { data + 1, size - 1 };
        TARGETS[data[0] % N_TARGETS](&b);
    }
    return 0;
}

#ifndef PACELINE_LIBFUZZER

enum { LONGEST = 4096 };

static uint64_t state;

static uint32_t draw(uint32_t n) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17; /* xorshift64 */
    return (uint32_t)(state >> 32) % n;
}

/* Write a valid saved state behind its target's number; return the length. */
static size_t seed_of(uint32_t target, uint8_t out[LONGEST]) {
    uint32_t n = 1 + draw(MOST - 1), counts[MOST], tree[MOST];
    out[0] = (uint8_t)target;
    if (TARGETS[target] == sampler) {
        pl_sampler s;
        for (uint32_t i = 0; i < n; i++) {
            counts[i] = draw(100);
        }
        pl_sampler_init(&s, state, draw(9), n, counts, MOST, tree);
        pl_sampler_save(&s, out + 1, pl_sampler_size(&s));
        return 1 + (size_t)pl_sampler_size(&s);
    }
    if (TARGETS[target] == controller) {
        static pl_participant participants[MOST];
        static pl_seat seats[MOST];
        pl_group group;
        pl_controller c;
        const pl_controller_config config = { 0 };
        uint32_t budget = 64 + draw(9000);
        n = 1 + n % 32;
        pl_controller_init(&c, &config, n, NULL, 1, &budget, MOST, participants, seats, &group);
        pl_controller_save(&c, out + 1, pl_controller_size(&c));
        return 1 + (size_t)pl_controller_size(&c);
    }
    size_t size = 16 + draw(2000);
    for (size_t i = 1; i < size; i++) {
        out[i] = (uint8_t)draw(256);
    }
    return size;
}

int main(int argc, char **argv) {
    uint64_t executions = argc > 1 ? strtoull(argv[1], NULL, 10) : 20000;
    static uint8_t input[LONGEST];
    state = 0x9E3779B97F4A7C15u * (1 + (argc > 2 ? strtoull(argv[2], NULL, 10) : 1));
    for (uint64_t i = 0; i < executions; i++) {
        uint32_t target = draw(N_TARGETS);
        size_t size = seed_of(target, input);
        for (uint32_t changes = draw(8); changes > 0; changes--) {
            size_t at = 1 + draw((uint32_t)size - 1);
            static const uint8_t ODD[] = { 0, 1, 0x7F, 0x80, 0xFF };
            switch (draw(4)) {
            case 0:
                input[at] ^= (uint8_t)(1u << draw(8));
                break;
            case 1:
                input[at] = ODD[draw(sizeof ODD)];
                break;
            case 2:
                memset(input + at, ODD[draw(sizeof ODD)], size - at < 8 ? size - at : 8);
                break;
            default:
                size = 2 + draw((uint32_t)size);
                break;
            }
        }
        LLVMFuzzerTestOneInput(input, size < LONGEST ? size : LONGEST);
    }
    printf("%llu executions\n", (unsigned long long)executions);
    return 0;
}

#endif
