/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"

/* Energy ---------------------------------------------------------------------------------------------------------- */

enum { KNOTS = 8, MOST = 6 };

enum kind { END, INTERVAL, POINT, COUNTER };

/* One case: readings at a period of 100 ms, then a window. */
/* clang-format off */
static const struct {
    const char *what;
    uint64_t modulus_uj;
    struct { enum kind kind; int64_t a, b, c; } readings[MOST];
    uint64_t t0_us, t1_us;
    int status;
    pl_energy out;
} CASES[] = {
    { "5 W for a tenth of a second are half a joule", 0, { { INTERVAL, 0, 100000, 5000000 } }, 0, 100000, PL_OK,
      { 500000, 100000, 0, 0, 0 } },
    { "an edge inside an interval is interpolated, and may be wrong by what is beyond it", 0,
      { { INTERVAL, 0, 100000, 5000000 } }, 0, 25000, PL_OK, { 125000, 25000, 0, 375000, 0 } },
    { "an overlap is not counted twice", 0, { { INTERVAL, 0, 100000, 1000000 }, { INTERVAL, 50000, 150000, 1000000 } },
      0, 150000, PL_OK, { 150000, 150000, 0, 0, 0 } },
    { "a short pause is bridged and counts as covered", 0,
      { { INTERVAL, 0, 100000, 2000000 }, { INTERVAL, 200000, 300000, 4000000 } }, 0, 300000, PL_OK,
      { 900000, 300000, 0, 0, 0 } },
    { "a gap is bridged, counts as uncovered, and may hide the powers seen", 0,
      { { INTERVAL, 0, 100000, 2000000 }, { INTERVAL, 1100000, 1200000, 4000000 } }, 0, 1200000, PL_OK,
      { 3600000, 200000, 1000000, 0, PL_ENERGY_GAP } },
    { "a trapezoid between two points", 0, { { POINT, 0, 1000000 }, { POINT, 100000, 3000000 } }, 0, 100000, PL_OK,
      { 200000, 100000, 0, 0, 0 } },
    { "half of a rising trapezoid is less than half", 0, { { POINT, 0, 0 }, { POINT, 100000, 4000000 } }, 0, 50000, PL_OK,
      { 50000, 50000, 0, 150000, 0 } },
    { "three periods are no gap", 0, { { POINT, 0, 1000000 }, { POINT, 300000, 1000000 } }, 0, 300000, PL_OK,
      { 300000, 300000, 0, 0, 0 } },
    { "more than three periods are one", 0, { { POINT, 0, 1000000 }, { POINT, 300001, 1000000 } }, 0, 300001, PL_OK,
      { 300001, 0, 0, 0, PL_ENERGY_GAP } },
    { "negative power is kept", 0, { { POINT, 0, -1000000 }, { POINT, 100000, -1000000 } }, 0, 100000, PL_OK,
      { -100000, 100000, 0, 0, 0 } },
    { "the first count is a base", 0, { { COUNTER, 0, 900 }, { COUNTER, 100000, 1000 } }, 0, 100000, PL_OK,
      { 100, 100000, 0, 0, 0 } },
    { "a counter wraps at its modulus", 1000, { { COUNTER, 0, 900 }, { COUNTER, 100000, 100 } }, 0, 100000, PL_OK,
      { 200, 100000, 0, 0, 0 } },
    { "without one, going back is a reset: bridged at the rate before", 0,
      { { COUNTER, 0, 0 }, { COUNTER, 100000, 900 }, { COUNTER, 200000, 5 } }, 100000, 200000, PL_OK,
      { 900, 0, 0, 0, PL_ENERGY_GAP | PL_ENERGY_RESET } },
    { "the window before a reset has no such flag", 0,
      { { COUNTER, 0, 0 }, { COUNTER, 100000, 900 }, { COUNTER, 200000, 5 } }, 0, 100000, PL_OK, { 900, 100000, 0, 0, 0 } },
    { "no reading, nothing final", 0, { { END, 0, 0, 0 } }, 0, 1, PL_ERR_NOT_FINAL, { 0 } },
    { "beyond the last reading nothing is final", 0, { { POINT, 5, 1 } }, 5, 6, PL_ERR_NOT_FINAL, { 0 } },
    { "a window of no length is empty", 0, { { POINT, 5, 1 } }, 5, 5, PL_OK, { 0 } },
    { "a window that begins before the first reading is unknown", 0, { { POINT, 100000, 1000000 }, { POINT, 200000, 1000000 } },
      50000, 200000, PL_OK, { 0, 100000, 0, 0, PL_ENERGY_UNKNOWN } },
    { "a window that ends before it starts is refused", 0, { { POINT, 5, 1 } }, 5, 4, PL_ERR_ARGUMENT, { 0 } },
};
/* clang-format on */

static int feed(pl_integrator *e, enum kind kind, int64_t a, int64_t b, int64_t c) {
    switch (kind) {
    case INTERVAL:
        return pl_integrator_interval(e, (uint64_t)a, (uint64_t)b, c, 0);
    case POINT:
        return pl_integrator_point(e, (uint64_t)a, b, 0);
    case COUNTER:
        return pl_integrator_counter(e, (uint64_t)a, (uint64_t)b);
    default:
        return PL_OK;
    }
}

static void tables(void) {
    for (unsigned i = 0; i < LENGTH(CASES); i++) {
        pl_knot knots[KNOTS];
        pl_integrator e;
        pl_energy out = { 0 };
        const pl_energy *want = &CASES[i].out;
        CHECK(pl_integrator_init(&e, 100000, CASES[i].modulus_uj, 0, KNOTS, knots) == PL_OK, CASES[i].what, i);
        for (int k = 0; k < MOST; k++) {
            int64_t a = CASES[i].readings[k].a, b = CASES[i].readings[k].b, c = CASES[i].readings[k].c;
            CHECK(feed(&e, CASES[i].readings[k].kind, a, b, c) == PL_OK, CASES[i].what, i);
        }
        CHECK(pl_integrator_window(&e, CASES[i].t0_us, CASES[i].t1_us, &out) == CASES[i].status, CASES[i].what, i);
        CHECK(out.energy_uj == want->energy_uj && out.covered_us == want->covered_us, CASES[i].what, i);
        CHECK(out.bound_uj == want->bound_uj && out.edge_uj == want->edge_uj, CASES[i].what, i);
        CHECK(out.flags == want->flags, CASES[i].what, i);
    }
}

static void memory(void) {
    pl_knot knots[KNOTS];
    pl_integrator e;
    pl_energy out;
    pl_integrator_init(&e, 10, 0, 0, KNOTS, knots);
    CHECK(pl_integrator_init(&e, 0, 0, 0, KNOTS, knots) == PL_ERR_ARGUMENT, "a period of 0 is refused", 0);
    CHECK(pl_integrator_init(&e, 10, 0, 0, 3, knots) == PL_ERR_ARGUMENT, "three knots are too few", 1);
    for (uint64_t t = 0; t < 100; t++) {
        CHECK(pl_integrator_point(&e, 10 * t, 2000000, 0) == PL_OK, "the ring takes every reading", t);
    }
    CHECK(pl_integrator_window(&e, 10 * (100 - KNOTS), 990, &out) == PL_OK && out.energy_uj == 140,
          "the last readings are kept", 2);
    CHECK(pl_integrator_window(&e, 10 * (100 - KNOTS) - 1, 990, &out) == PL_ERR_FORGOTTEN, "older ones are not", 3);
    CHECK(pl_integrator_point(&e, 990, 1, 0) == PL_ERR_ORDER, "time moves on", 4);
    CHECK(pl_integrator_interval(&e, 990, 1000, 1, 0) == PL_ERR_KIND, "one kind only", 5);
    CHECK(pl_integrator_counter(&e, 1000, 1) == PL_ERR_KIND, "one kind only", 6);
}

int main(void) {
    tables();
    memory();
    return verdict("energy");
}
