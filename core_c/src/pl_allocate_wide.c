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
    const double *costs; /* NULL: costs, limits and shares are those of the seats, else the seats are scratch */
    const uint32_t *minimum, *capacity; /* may be NULL */
    uint32_t *shares;
    pl_seat *seats;
    uint32_t n;
    double apart; /* negative: all costs are equal, so the order does not matter and nothing is too close */
} wide;

static double cost(const wide *w, uint32_t i) {
    return w->costs ? w->costs[i] : w->seats[i].cost;
}

static uint32_t least(const wide *w, uint32_t i) {
    return !w->costs ? w->seats[i].minimum : w->minimum ? w->minimum[i] : 1;
}

static uint32_t most(const wide *w, uint32_t i) {
    return !w->costs ? w->seats[i].capacity : w->capacity ? w->capacity[i] : PL_NO_CAPACITY;
}

static uint32_t *share(const wide *w, uint32_t i) {
    return w->costs ? &w->shares[i] : &w->seats[i].share;
}

/* Put board i at place `at` <= i of a list at the seats' beginning. */
static void list(const wide *w, uint32_t at, uint32_t i, double key) {
    pl_seat *s = &w->seats[at];
    if (w->costs) {
        s->index = i;
        s->cost = w->costs[i];
    } else {
        pl_seat kept = *s;
        *s = w->seats[i];
        w->seats[i] = kept;
    }
    s->key = key;
}

/* 1 where |off| <= within; no branch, as it hardly ever is. */
static unsigned is_near(double off, double within) {
    return (unsigned)(off <= within) & (unsigned)(off >= -within);
}

/* Close at limits as close_seats does; false: a decision is too close to tell. */
static bool close_all(const wide *w, int64_t *rest, double *lambda) {
    double sum = 0.0;
    for (uint32_t i = 0; i < w->n; i++) {
        sum += 1.0 / cost(w, i);
        *share(w, i) = OPEN;
    }
    for (;;) {
        double below = 0.0, above = 0.0, next = 0.0;
        unsigned near = 0;
        if (!(sum > 0.0)) {
            return false;
        }
        *lambda = (double)*rest / sum;
        for (uint32_t i = 0; i < w->n; i++) {
            if (*share(w, i) == OPEN) {
                double x = *lambda / cost(w, i), low = x - least(w, i), high = x - most(w, i), within = x * w->apart;
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
            if (*share(w, i) != OPEN) {
                continue;
            }
            double x = *lambda / cost(w, i);
            if (x < least(w, i) && below >= above) {
                *share(w, i) = least(w, i);
            } else if (x > most(w, i) && above >= below) {
                *share(w, i) = most(w, i);
            } else {
                next += 1.0 / cost(w, i);
                continue;
            }
            *rest -= *share(w, i);
        }
        sum = next;
    }
}

static bool divide(wide *w, int64_t rest) {
    uint32_t n = w->n;
    pl_seat *seats = w->seats;
    double lambda;
    w->apart = -1.0;
    for (uint32_t i = 1; i < n && w->apart < 0.0; i++) {
        w->apart = cost(w, i) == cost(w, 0) ? -1.0 : ((double)n + 4.0) * ROUNDING;
    }
    if (!close_all(w, &rest, &lambda)) {
        return false;
    }
    uint32_t bins = n / 4 < BINS ? n / 4 : BINS, usable = 0;
    for (uint32_t b = 0; b < bins; b++) {
        seats[b].open = 0; /* how many remainders lie in this bin */
    }
    unsigned near = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (*share(w, i) == OPEN) {
            double x = lambda / cost(w, i), within = x * w->apart;
            uint32_t whole = (uint32_t)x;
            double part = x - whole;
            near |= (unsigned)(part <= within) | (unsigned)(part >= 1.0 - within) | (unsigned)(within * bins > 0.5);
            *share(w, i) = whole;
            rest -= whole;
            if (whole < most(w, i)) {
                seats[(uint32_t)(part * bins)].open++;
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
    for (uint32_t above = 0; above + seats[last].open < k; last--) {
        above += seats[last].open;
    }
    double low = last > 0 ? last - 1 : 0, high = (double)last + 2.0;
    for (uint32_t i = 0; i < n; i++) { /* who is below its minimum now was closed there, whoever is full is as well */
        double x = lambda / cost(w, i);
        uint32_t whole = *share(w, i);
        double at = (x - whole) * bins;
        bool open = (x >= least(w, i)) & (whole < most(w, i));
        uint32_t up = (uint32_t)(open & (at >= high)); /* no branch: it goes either way at random */
        *share(w, i) = whole + up;
        k -= up;
        if (at >= low && open && !up) { /* never ahead of i */
            list(w, listed++, i, whole - x);
        }
    }
    pl_seats_select(seats, listed, k);
    const pl_seat *edge = &seats[0];
    for (uint32_t i = 1; i < k; i++) {
        edge = seats[i].key > edge->key ? &seats[i] : edge;
    }
    for (uint32_t i = 0; i < listed; i++) {
        double x = lambda / seats[i].cost, y = lambda / edge->cost;
        if (seats[i].cost != edge->cost && is_near(seats[i].key - edge->key, (x + y) * w->apart)) {
            return false;
        }
    }
    for (uint32_t i = 0; i < k; i++) {
        *share(w, w->costs ? seats[i].index : i) += 1;
    }
    return true;
}

bool pl_allocate_wide(uint32_t n, const double costs[], uint32_t budget, const uint32_t minimum[],
                      const uint32_t capacity[], pl_seat seats[], uint32_t shares[]) {
    wide w = { costs, minimum, capacity, shares, seats, n, 0.0 };
    return divide(&w, budget);
}

bool pl_split_wide(pl_seat seats[], uint32_t n, uint32_t budget) {
    wide w = { .seats = seats, .n = n };
    return divide(&w, budget);
}
