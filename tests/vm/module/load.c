/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
#include "load.h"

/* Load ------------------------------------------------------------------------------------------------------- */

static void add(struct load_sums *sums, const struct load_step *step, int64_t us) {
    sums->ua_us += step->ua * us;
    sums->mv_us += step->mv * us;
    sums->fj += (int64_t)step->ua * step->mv * us;
}

static struct load_sums until(const struct load *load, int64_t t_us) {
    struct load_sums sums = load->base, period = { 0, 0, 0 };
    int64_t period_us = 0, left_us = t_us - load->epoch_us, periods;
    int i;

    if (load->n_steps == 0 || left_us <= 0)
        return sums;
    for (i = 0; i < load->n_steps; i++) {
        add(&period, &load->steps[i], load->steps[i].us);
        period_us += load->steps[i].us;
    }
    periods = left_us / period_us;
    sums.ua_us += periods * period.ua_us;
    sums.mv_us += periods * period.mv_us;
    sums.fj += periods * period.fj;
    left_us %= period_us;
    for (i = 0; left_us > 0; i++) {
        int64_t us = left_us < load->steps[i].us ? left_us : load->steps[i].us;

        add(&sums, &load->steps[i], us);
        left_us -= us;
    }
    return sums;
}

struct load_sums loads_until(const struct loads *loads, int64_t t_us) {
    return until(t_us >= loads->now.epoch_us ? &loads->now : &loads->before, t_us);
}

void loads_change(struct loads *loads, int64_t t_us, const struct load *next) {
    struct load_sums base = loads_until(loads, t_us);

    loads->before = loads->now;
    loads->now = *next;
    loads->now.epoch_us = t_us;
    loads->now.base = base;
}

int64_t loads_mean_ua(const struct loads *loads, int64_t from_us, int64_t to_us) {
    return (loads_until(loads, to_us).ua_us - loads_until(loads, from_us).ua_us) / (to_us - from_us);
}

int64_t loads_mean_mv(const struct loads *loads, int64_t from_us, int64_t to_us) {
    return (loads_until(loads, to_us).mv_us - loads_until(loads, from_us).mv_us) / (to_us - from_us);
}

/* Track ------------------------------------------------------------------------------------------------------ */

static const struct track_point *point(const struct track *track, int64_t i) {
    return &track->points[i % TRACK_POINTS];
}

static void put(struct track *track, int64_t t_us, int64_t fj) {
    struct track_point *next = &track->points[track->n % TRACK_POINTS];

    next->t_us = t_us;
    next->fj = fj;
    track->n++;
}

void track_start(struct track *track, int64_t t_us) {
    track->n = 0;
    put(track, t_us, 0);
}

void track_add(struct track *track, int64_t t_us, int64_t nw) {
    const struct track_point *last = point(track, track->n - 1);

    put(track, t_us, last->fj + nw * (t_us - last->t_us));
}

bool track_until(const struct track *track, int64_t t_us, int64_t *fj) {
    int64_t low = track->n > TRACK_POINTS ? track->n - TRACK_POINTS : 0, high = track->n - 1;
    const struct track_point *a, *b;

    if (t_us < point(track, low)->t_us)
        return false;
    if (t_us >= point(track, high)->t_us) {
        *fj = point(track, high)->fj;
        return true;
    }
    while (high - low > 1) { /* point(low) <= t < point(high) */
        int64_t middle = (low + high) / 2;

        if (point(track, middle)->t_us <= t_us)
            low = middle;
        else
            high = middle;
    }
    a = point(track, low);
    b = point(track, high);
    *fj = a->fj + (b->fj - a->fj) / (b->t_us - a->t_us) * (t_us - a->t_us);
    return true;
}
