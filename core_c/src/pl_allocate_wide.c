/* SPDX-License-Identifier: Apache-2.0 */
#include "pl_internal.h"

/* Allocation for many --------------------------------------------------------------------------------------------- */

/* pl_split adds 1/cost in ascending order, and so has to sort. Here they are added as they come: both sums lie within
 * `apart` of each other, relatively, and so do both lambdas. Wherever each decision falls alike on both sides of such a
 * difference, the shares are those of pl_split; where one does not, this gives up and nothing but time is lost. */

enum { BINS = 1024 };

static const double ROUNDING = 4.5e-16; /* of two sums of n terms: n * 2^-53 each, doubled for what is done with them */
static const uint32_t OPEN = 0xFFFFFFFFu; /* among the shares: not closed at a limit */

typedef struct wide {
    const double *costs;
    const uint32_t *minimum, *capacity; /* may be NULL */
    uint32_t *shares;
    uint32_t n;
    double apart; /* negative: all costs are equal, so the order does not matter and nothing is too close */
} wide;

static uint32_t least(const wide *w, uint32_t i) {
    return w->minimum ? w->minimum[i] : 1;
}

static uint32_t most(const wide *w, uint32_t i) {
    return w->capacity ? w->capacity[i] : PL_NO_CAPACITY;
}

/* 1 where |off| <= within; no branch, as it hardly ever is. */
static unsigned is_near(double off, double within) {
    return (unsigned)(off <= within) & (unsigned)(off >= -within);
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
        unsigned near = 0;
        if (!(sum > 0.0)) {
            return false;
        }
        *lambda = (double)*rest / sum;
        for (uint32_t i = 0; i < w->n; i++) {
            if (w->shares[i] == OPEN) {
                double x = *lambda / w->costs[i], low = x - least(w, i), high = x - most(w, i), within = x * w->apart;
                near |= is_near(low, within) | is_near(high, within);
                below += low < 0.0 ? -low : 0.0;
                above += high > 0.0 ? high : 0.0;
            }
        }
        if (near) {
            return false;
        }
        if (below == 0.0 && above == 0.0) {
            return true;
        }
        if (below > 0.0 && above > 0.0 && is_near(below - above, 4.0 * w->apart * ((double)*rest + below + above))) {
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
    wide w = { costs, minimum, capacity, shares, n, -1.0 };
    for (uint32_t i = 1; i < n && w.apart < 0.0; i++) {
        w.apart = costs[i] == costs[0] ? -1.0 : ((double)n + 4.0) * ROUNDING;
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
    unsigned near = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (shares[i] == OPEN) {
            double x = lambda / costs[i], within = x * w.apart;
            uint32_t whole = (uint32_t)x;
            double part = x - whole;
            near |= (unsigned)(part <= within) | (unsigned)(part >= 1.0 - within) | (unsigned)(within * bins > 0.5);
            shares[i] = whole;
            rest -= whole;
            if (whole < most(&w, i)) {
                seats[(uint32_t)(part * bins)].share++;
                usable++;
            }
        }
    }
    if (near || rest < 0 || rest > usable) {
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
    double low = last > 0 ? last - 1 : 0, high = (double)last + 2.0;
    for (uint32_t i = 0; i < n; i++) { /* who is below its minimum now was closed there, whoever is full is as well */
        double x = lambda / costs[i];
        uint32_t whole = shares[i];
        double at = (x - whole) * bins;
        bool open = (x >= least(&w, i)) & (whole < most(&w, i));
        uint32_t up = (uint32_t)(open & (at >= high)); /* no branch: it goes either way at random */
        shares[i] = whole + up;
        k -= up;
        if (at >= low && open && !up) { /* never ahead of i */
            seats[listed].key = whole - x;
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
        if (seats[i].cost != edge->cost && is_near(seats[i].key - edge->key, (x + y) * w.apart)) {
            return false;
        }
    }
    for (uint32_t i = 0; i < k; i++) {
        shares[seats[i].index]++;
    }
    return true;
}
