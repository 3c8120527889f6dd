/* SPDX-License-Identifier: Apache-2.0 */
#include "pl_internal.h"

/* Allocation ------------------------------------------------------------------------------------------------------ */

static const double COST_MIN = 1e-100, COST_MAX = 1e100; /* so that no sum or quotient below leaves the doubles */

static bool before(const pl_seat *a, const pl_seat *b) {
    return a->key < b->key || (a->key == b->key && a->index < b->index);
}

static void swap(pl_seat *a, pl_seat *b) {
    pl_seat kept = *a;
    *a = *b;
    *b = kept;
}

static void sift_down(pl_seat seats[], uint32_t root, uint32_t n) {
    for (;;) {
        uint64_t child = 2 * (uint64_t)root + 1;
        if (child >= n) {
            return;
        }
        if (child + 1 < n && before(&seats[child], &seats[child + 1])) {
            child++;
        }
        if (!before(&seats[root], &seats[child])) {
            return;
        }
        swap(&seats[root], &seats[child]);
        root = (uint32_t)child;
    }
}

/* Heap sort by (key, index), ascending: no recursion, no bad case. */
static void sort(pl_seat seats[], uint32_t n) {
    for (uint32_t root = n / 2; root > 0; root--) {
        sift_down(seats, root - 1, n);
    }
    for (uint32_t end = n; end > 1; end--) {
        swap(&seats[0], &seats[end - 1]);
        sift_down(seats, 0, end - 1);
    }
}

/* Quickselect; (key, index) has no equals, so the pivot's place is certain. */
void pl_seats_select(pl_seat seats[], uint32_t n, uint32_t k) {
    uint32_t low = 0, high = n;
    while (high - low > 1 && k > low && k < high) {
        pl_seat *a = &seats[low], *m = &seats[low + (high - low) / 2], *z = &seats[high - 1];
        if (before(m, a)) {
            swap(m, a);
        }
        if (before(z, a)) {
            swap(z, a);
        }
        if (before(z, m)) {
            swap(z, m);
        }
        swap(m, z); /* the median of three, put last, divides the rest */
        uint32_t place = low;
        for (uint32_t i = low; i < high - 1; i++) {
            if (before(&seats[i], z)) {
                swap(&seats[i], &seats[place]);
                place++;
            }
        }
        swap(&seats[place], z);
        if (k <= place) {
            high = place;
        } else {
            low = place + 1;
        }
    }
}

/* One pass over the open seats at this lambda: how far do shares lie below their minima and above their capacities? */
static void overshoot(const pl_seat seats[], uint32_t n, double lambda, double *below, double *above) {
    *below = 0.0;
    *above = 0.0;
    for (uint32_t i = 0; i < n; i++) {
        if (seats[i].open) {
            double x = lambda / seats[i].cost;
            if (x < seats[i].minimum) {
                *below += seats[i].minimum - x;
            } else if (x > seats[i].capacity) {
                *above += x - seats[i].capacity;
            }
        }
    }
}

/* Close the seats at a limit until no open one is outside its own; returns lambda, *rest is what the open ones share.
 * At a lambda where the minima ask for more than the capacities give back, the true lambda is smaller, so whoever is
 * below its minimum here is so there too: closing that side alone is right. Mirrored, the other way. */
static double close_seats(pl_seat seats[], uint32_t n, int64_t *rest) {
    for (;;) {
        double sum = 0.0, below, above;
        for (uint32_t i = 0; i < n; i++) { /* seats stand by ascending 1/cost */
            if (seats[i].open) {
                sum += seats[i].key;
            }
        }
        double lambda = sum > 0.0 ? (double)*rest / sum : 0.0;
        overshoot(seats, n, lambda, &below, &above);
        bool changed = false;
        for (uint32_t i = 0; i < n; i++) {
            pl_seat *s = &seats[i];
            if (!s->open) {
                continue;
            }
            double x = lambda / s->cost;
            if (x < s->minimum && below >= above) {
                s->share = s->minimum;
            } else if (x > s->capacity && above >= below) {
                s->share = s->capacity;
            } else {
                continue;
            }
            s->open = 0;
            *rest -= s->share;
            changed = true;
        }
        if (!changed) {
            return lambda;
        }
    }
}

/* Hand out `rest` single samples by the keys (negative: take back), at most one a seat and pass, within the limits.
 * Returns what found no place. */
static int64_t settle(pl_seat seats[], uint32_t n, int64_t rest) {
    while (rest != 0) {
        uint32_t usable = 0;
        for (uint32_t i = 0; i < n; i++) {
            if (rest > 0 ? seats[i].share < seats[i].capacity : seats[i].share > seats[i].minimum) {
                swap(&seats[i], &seats[usable]);
                usable++;
            }
        }
        if (usable == 0) {
            break;
        }
        uint64_t wanted = rest > 0 ? (uint64_t)rest : (uint64_t)-rest;
        uint32_t k = wanted < usable ? (uint32_t)wanted : usable;
        pl_seats_select(seats, usable, k);
        for (uint32_t i = 0; i < k; i++) {
            seats[i].share += rest > 0 ? 1u : 0xFFFFFFFFu; /* + 1 or - 1 */
        }
        rest += rest > 0 ? -(int64_t)k : (int64_t)k;
    }
    return rest;
}

void pl_split(pl_seat seats[], uint32_t n, uint32_t budget) {
#ifndef PL_SMALL
    if (n >= PL_WIDE && pl_split_wide(seats, n, budget)) {
        return;
    }
#endif
    pl_split_sorted(seats, n, budget);
}

void pl_split_sorted(pl_seat seats[], uint32_t n, uint32_t budget) {
    int64_t rest = budget;
    for (uint32_t i = 0; i < n; i++) {
        seats[i].key = 1.0 / seats[i].cost;
        seats[i].open = 1;
    }
    sort(seats, n);
    double lambda = close_seats(seats, n, &rest);
    uint32_t open = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (seats[i].open) {
            double x = lambda / seats[i].cost; /* within [minimum, capacity], so below 2^32 */
            seats[i].share = (uint32_t)x;
            seats[i].key = seats[i].share - x; /* - remainder */
            rest -= seats[i].share;
            swap(&seats[i], &seats[open]);
            open++;
        }
    }
    if (rest < 0) { /* quotients rounded up to whole numbers: the least remainder gives one back */
        for (uint32_t i = 0; i < open; i++) {
            seats[i].key = -seats[i].key;
        }
    }
    rest = settle(seats, open, rest);
    settle(seats, n,
           rest); /* what rounding kept from the open ones; the limits allow the budget, so all finds a place */
}

int pl_allocate(uint32_t n, const double costs[], uint32_t budget, const uint32_t minimum[], const uint32_t capacity[],
                pl_seat seats[], uint32_t shares[], uint64_t *missing) {
    uint64_t least = 0, most = 0; /* n < 2^32 terms below 2^32 */
    for (uint32_t i = 0; i < n; i++) {
        uint32_t low = minimum ? minimum[i] : 1, high = capacity ? capacity[i] : PL_NO_CAPACITY;
        if (!(costs[i] >= COST_MIN && costs[i] <= COST_MAX)) {
            return PL_ERR_ARGUMENT;
        }
        if (low > high) {
            return PL_ERR_LIMITS;
        }
        least += low;
        most += high;
    }
    if (least > budget || most < budget) {
        if (missing) {
            *missing = least > budget ? least - budget : budget - most;
        }
        return least > budget ? PL_ERR_MINIMA : PL_ERR_CAPACITY;
    }
#ifndef PL_SMALL
    if (n >= PL_WIDE && pl_allocate_wide(n, costs, budget, minimum, capacity, seats, shares)) {
        return PL_OK;
    }
#endif
    for (uint32_t i = 0; i < n; i++) {
        seats[i].index = i;
        seats[i].cost = costs[i];
        seats[i].minimum = minimum ? minimum[i] : 1;
        seats[i].capacity = capacity ? capacity[i] : PL_NO_CAPACITY;
    }
    pl_split_sorted(seats, n, budget);
    for (uint32_t i = 0; i < n; i++) {
        shares[seats[i].index] = seats[i].share;
    }
    return PL_OK;
}
