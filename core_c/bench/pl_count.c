/* SPDX-License-Identifier: Apache-2.0 */
/* One operation of the core, N times: run with two N under an instruction counter, the difference is what it costs.
 * tests/arch/sizes.py does so: `pl_count NAME N`. */
#include "paceline.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BOARDS = 11, CLIENTS = 100, BATCH = 64 };

static pl_knot knots[64];
static pl_integrator integrator;
static uint64_t t_us;

static void point(void) {
    t_us += 100000;
    (void)pl_integrator_point(&integrator, t_us, (int64_t)(4000000 + t_us % 1000003), 20000);
}

static void interval(void) {
    t_us += 100000;
    (void)pl_integrator_interval(&integrator, t_us - 100000, t_us, (int64_t)(4000000 + t_us % 1000003), 20000);
}

static void counter(void) {
    t_us += 100000;
    (void)pl_integrator_counter(&integrator, t_us, t_us * 4);
}

static void window(void) {
    static pl_energy out;
    if (integrator.count == 0) {
        for (int k = 0; k < 64; k++) {
            interval();
        }
    }
    (void)pl_integrator_window(&integrator, t_us - 2000000, t_us - 50000, &out);
}

static void decode_ina219(void) {
    static pl_rail out;
    static uint8_t shunt[2] = { 0x06, 0x40 }, bus[2] = { 0x27, 0x12 };
    shunt[1]++;
    (void)pl_ina219(0x399F, shunt, bus, 100000, &out);
}

static void allocate(void) {
    static double costs[BOARDS];
    static uint32_t shares[BOARDS];
    static pl_seat scratch[BOARDS];
    for (int k = 0; k < BOARDS; k++) {
        costs[k] = 0.001 * (1 + k) + 1e-9 * (double)t_us;
    }
    t_us++;
    (void)pl_allocate(BOARDS, costs, 12000, NULL, NULL, scratch, shares, NULL);
}

static void draw(void) {
    static pl_sampler sampler;
    static uint32_t counts[CLIENTS], tree[4 * CLIENTS], ids[BATCH], drawn[BATCH], n_ids;
    if (counts[0] == 0) {
        for (int k = 0; k < CLIENTS; k++) {
            counts[k] = 1000000;
        }
        (void)pl_sampler_init(&sampler, 7, 0, CLIENTS, counts, CLIENTS, tree);
    }
    pl_sampler_draw(&sampler, BATCH, ids, drawn, &n_ids);
    pl_sampler_commit(&sampler);
}

static void permute(void) {
    static uint32_t out[1000];
    pl_permutation(7, (uint32_t)t_us++, 1000, out);
}

static const struct {
    const char *name;
    void (*call)(void);
} OPERATIONS[] = {
    { "point", point },          { "interval", interval }, { "counter", counter }, { "window", window },
    { "ina219", decode_ina219 }, { "allocate", allocate }, { "draw", draw },       { "permute", permute },
};

int main(int argc, char **argv) {
    (void)pl_integrator_init(&integrator, 100000, 0, 0, 64, knots);
    for (size_t k = 0; argc == 3 && k < sizeof OPERATIONS / sizeof OPERATIONS[0]; k++) {
        if (strcmp(argv[1], OPERATIONS[k].name) == 0) {
            for (long n = atol(argv[2]); n > 0; n--) {
                OPERATIONS[k].call();
            }
            return 0;
        }
    }
    fprintf(stderr, "pl_count NAME N\n");
    return 2;
}
