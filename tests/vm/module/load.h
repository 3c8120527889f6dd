/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* What a rail draws: a pure function of time, so that its joules are known at every instant. Integers, no libc.
 *
 * A load is a list of steps that repeats. fj: femtojoule = nW * us; 9.2 kJ of one rail, counted from start, fit. */
#ifndef PACELINE_BENCH_LOAD_H
#define PACELINE_BENCH_LOAD_H

#ifdef __KERNEL__
#include <linux/types.h>
#else
#include <stdbool.h>
#include <stdint.h>
#endif

#define LOAD_STEPS 32
#define TRACK_POINTS 8192

struct load_step {
    int64_t us; /* how long, > 0 */
    int32_t ua; /* negative: the rail feeds back */
    int32_t mv;
};

struct load_sums { /* integrals from the start of the module on */
    int64_t ua_us;
    int64_t mv_us;
    int64_t fj;
};

struct load {
    int64_t epoch_us; /* when the first step began */
    int n_steps;      /* 0: draws nothing */
    struct load_step steps[LOAD_STEPS];
    struct load_sums base; /* at epoch_us */
};

/* The present load and the one before it, which a conversion may have begun under. */
struct loads {
    struct load now, before;
};

struct load_sums loads_until(const struct loads *loads, int64_t t_us);

/* From t_us on, which no conversion is yet past, the steps of `next` hold. */
void loads_change(struct loads *loads, int64_t t_us, const struct load *next);

int64_t loads_mean_ua(const struct loads *loads, int64_t from_us, int64_t to_us);
int64_t loads_mean_mv(const struct loads *loads, int64_t from_us, int64_t to_us);

/* What a converter has seen: the power of each conversion, held from the end of the one before it to its own. */
struct track {
    int64_t n; /* points since the start; the last TRACK_POINTS are kept */
    struct track_point {
        int64_t t_us;
        int64_t fj;
    } points[TRACK_POINTS];
};

void track_start(struct track *track, int64_t t_us);
void track_add(struct track *track, int64_t t_us, int64_t nw);

/* Interpolated between conversions, held after the last one. false: t_us is older than what is kept. */
bool track_until(const struct track *track, int64_t t_us, int64_t *fj);

#endif
