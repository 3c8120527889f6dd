/* SPDX-License-Identifier: Apache-2.0 */
#include "pl_internal.h"

/* Allocation for many --------------------------------------------------------------------------------------------- */

/* pl_split adds 1/cost in ascending order, and so has to sort. Here they are added as they come: both sums lie within
 * `apart` of each other, relatively, and so do both lambdas. Wherever each decision falls alike on both sides of such a
 * difference, the shares are those of pl_split; where one does not, this gives up and nothing but time is lost. */

enum { BINS = 4096 };

static const double ROUNDING = 4.5e-16; /* of two sums of n terms: n * 2^-53 each, doubled for what is done with them */

typedef struct wide {
    const double *costs;
    const uint32_t *minimum, *capacity; /* may be NULL */
    uint32_t *shares; /* OPEN: not closed at a limit */
    uint32_t n;
    double apart; /* 0: all costs are equal, so the order does not matter */
} wide;

static const uint32_t OPEN = 0xFFFFFFFFu;

static uint32_t least(const wide *w, uint32_t i) {
    return w->minimum ? w->minimum[i] : 1;
}

static uint32_t most(const wide *w, uint32_t i) {
    return w->capacity ? w->capacity[i] : PL_NO_CAPACITY;
}

static bool is_near(double x, double y, double within) {
    double off = x - y;
    return within > 0.0 && off <= within && -off <= within;
}

/* Close at limits as close_seats does; false: a decision is too close to tell. */
static bool close_all(const wide *w, int64_t *rest, double *lambda) {
    double sum = 0.0;
    for (uint32_t i = 0; i < w->n; i++) {
        sum += 1.0 / w->costs[i];
        w->shares[i] = OPEN;
    }
    for (;;) {
        double below = 0.0, above = 0.0, next = 0.0;
        if (!(sum > 0.0)) {
            return false;
        }
        *lambda = (double)*rest / sum;
        for (uint32_t i = 0; i < w->n; i++) {
            if (w->shares[i] != OPEN) {
                continue;
            }
            double x = *lambda / w->costs[i], low = least(w, i), high = most(w, i), within = x * w->apart;
            if (is_near(x, low, within) || is_near(x, high, within)) {
                return false;
            }
            below += x < low ? low - x : 0.0;
            above += x > high ? x - high : 0.0;
        }
        if (below == 0.0 && above == 0.0) {
            return true;
        }
        if (w->apart > 0.0 && below > 0.0 && above > 0.0 &&
            is_near(below, above, 4.0 * w->apart * ((double)*rest + below + above))) {
            return false;
        }
        for (uint32_t i = 0; i < w->n; i++) {
            if (w->shares[i] != OPEN) {
                continue;
            }
            double x = *lambda / w->costs[i];
            if (x < least(w, i) && below >= above) {
                w->shares[i] = least(w, i);
            } else if (x > most(w, i) && above >= below) {
                w->shares[i] = most(w, i);
            } else {
                next += 1.0 / w->costs[i];
                continue;
            }
            *rest -= w->shares[i];
        }
        sum = next;
    }
}

bool pl_allocate_wide(uint32_t n, const double costs[], uint32_t budget, const uint32_t minimum[],
                      const uint32_t capacity[], pl_seat seats[], uint32_t shares[]) {
    wide w = { costs, minimum, capacity, shares, n, 0.0 };
    for (uint32_t i = 1; i < n && w.apart == 0.0; i++) {
        w.apart = costs[i] == costs[0] ? 0.0 : ((double)n + 4.0) * ROUNDING;
    }
    int64_t rest = budget;
    double lambda;
    if (!close_all(&w, &rest, &lambda)) {
        return false;
    }
    uint32_t bins = n / 4 < BINS ? n / 4 : BINS, usable = 0;
    for (uint32_t b = 0; b < bins; b++) {
        seats[b].share = 0; /* how many remainders lie in this bin */
    }
    for (uint32_t i = 0; i < n; i++) {
        seats[i].open = shares[i] == OPEN;
        if (!seats[i].open) {
            continue;
        }
        double x = lambda / costs[i], within = x * w.apart;
        shares[i] = (uint32_t)x;
        double part = x - shares[i];
        if (within > 0.0 && (part <= within || part >= 1.0 - within || within * bins > 0.5)) {
            return false;
        }
        rest -= shares[i];
        seats[i].open = shares[i] < most(&w, i);
        if (seats[i].open) {
            seats[(uint32_t)(part * bins)].share++;
            usable++;
        }
    }
    if (rest < 0 || rest > usable) {
        return false;
    }
    if (rest == 0) {
        return true;
    }
    /* The `rest` greatest remainders get one more: whole bins, and a choice within the one where that ends. Its
     * neighbours are looked at as well, for remainders that are too close. */
    uint32_t last = bins - 1, k = (uint32_t)rest, listed = 0;
    for (uint32_t above = 0; above + seats[last].share < k; last--) {
        above += seats[last].share;
    }
    uint32_t low = last > 0 ? last - 1 : 0, high = last + 1;
    for (uint32_t i = 0; i < n; i++) {
        if (!seats[i].open) {
            continue;
        }
        double x = lambda / costs[i], part = x - shares[i];
        uint32_t b = (uint32_t)(part * bins);
        if (b > high) {
            shares[i]++;
            k--;
        } else if (b >= low) { /* never ahead of i: what is overwritten has been looked at */
            seats[listed].key = shares[i] - x;
            seats[listed].index = i;
            seats[listed].cost = costs[i];
            listed++;
        }
    }
    pl_seats_select(seats, listed, k);
    const pl_seat *edge = &seats[0];
    for (uint32_t i = 1; i < k; i++) {
        edge = seats[i].key > edge->key ? &seats[i] : edge;
    }
    for (uint32_t i = 0; i < listed; i++) {
        double x = lambda / seats[i].cost, y = lambda / edge->cost;
        if (seats[i].cost != edge->cost && is_near(seats[i].key, edge->key, (x + y) * w.apart)) {
            return false;
        }
    }
    for (uint32_t i = 0; i < k; i++) {
        shares[seats[i].index]++;
    }
    return true;
}
