/* SPDX-License-Identifier: Apache-2.0 */
#include "pl_internal.h"

/* Frontier -------------------------------------------------------------------------------------------------------- */

/* E(T) = C + Q T + sum over groups of (H T_g + sum of m n), with m = eps - p tau the marginal joules of a sample, Q the
 * watts that all draw to the round's end and H what a group draws besides up to its own. For a T the cheapest split
 * fills the boards by rising m. Walking T downwards from where no board's time binds, only sums of positive terms
 * change: D, the watts that a second more of patience saves a group. The round's end belongs where D passes Q. */

enum { FEW = 64, EACH = 32, MANY = 2048, TRIALS = 64, COARSE = 12, STEPS = 256, HALVINGS = 50, LANES = 1 << 15 };

static const double NUMBER_MAX = 1e100, TAU_MIN = 1e-100;

/* Sorting ---- */

union key {
    double value;
    uint64_t bits;
};

/* Rises as the double does. */
static uint64_t key_of(double x) {
    union key k = { .value = x + 0.0 }; /* -0 is 0 */
    return k.bits >> 63 ? ~k.bits : k.bits | 1ull << 63;
}

/* Stable, by rising `seconds`; spare[n] is overwritten. */
static void sort_corners(pl_corner rows[], pl_corner spare[], uint32_t n) {
    if (n <= FEW) {
        for (uint32_t i = 1; i < n; i++) {
            pl_corner row = rows[i];
            uint32_t k = i;
            for (; k > 0 && rows[k - 1].seconds > row.seconds; k--) {
                rows[k] = rows[k - 1];
            }
            rows[k] = row;
        }
        return;
    }
    uint64_t differs = 0, first = key_of(rows[0].seconds);
    for (uint32_t i = 1; i < n; i++) {
        differs |= key_of(rows[i].seconds) ^ first;
    }
    pl_corner *from = rows, *to = spare;
    for (unsigned shift = 0; shift < 64; shift += 8) {
        if (!(differs >> shift & 255)) {
            continue;
        }
        uint32_t place[256] = { 0 }, before = 0;
        for (uint32_t i = 0; i < n; i++) {
            place[key_of(from[i].seconds) >> shift & 255]++;
        }
        for (unsigned digit = 0; digit < 256; digit++) {
            uint32_t count = place[digit];
            place[digit] = before;
            before += count;
        }
        for (uint32_t i = 0; i < n; i++) {
            to[place[key_of(from[i].seconds) >> shift & 255]++] = from[i];
        }
        pl_corner *swapped = from;
        from = to;
        to = swapped;
    }
    for (uint32_t i = 0; from != rows && i < n; i++) {
        rows[i] = from[i];
    }
}

/* Preparing ---- */

typedef struct fleet {
    const pl_lane *lanes;
    pl_lot *lots;
    uint32_t n_lots;
    double base_j;    /* joules that no plan changes, at T = 0 */
    double outside_w; /* Q */
    double margin_j;  /* of rounding in joules */
} fleet;

static bool is_number(double x) {
    return x >= 0.0 && x <= NUMBER_MAX;
}

static double marginal(const pl_pace *p) {
    return p->energy_per_sample_j - p->wait_w * p->seconds_per_sample;
}

static int check(uint32_t n, const pl_pace paces[], uint32_t n_groups, const uint32_t budget[], pl_lot lots[],
                 pl_frontier *out) {
    for (uint32_t g = 0; g < n_groups; g++) {
        lots[g] = (pl_lot){ .rest = budget[g] };
    }
    for (uint32_t i = 0; i < n; i++) {
        const pl_pace *p = &paces[i];
        out->at = i;
        if (!is_number(p->fixed_seconds) || !is_number(p->fixed_j) || !is_number(p->energy_per_sample_j) ||
            !is_number(p->wait_w) || !is_number(p->spared_w) || !(p->spared_w <= p->wait_w) ||
            !(p->seconds_per_sample >= TAU_MIN && p->seconds_per_sample <= NUMBER_MAX) || p->group >= n_groups) {
            return PL_ERR_ARGUMENT;
        }
        if (p->minimum > p->capacity) {
            return PL_ERR_LIMITS;
        }
        lots[p->group].least += p->minimum;
        lots[p->group].most += p->capacity;
        lots[p->group].n++;
    }
    uint32_t start = 0;
    for (uint32_t g = 0; g < n_groups; g++) {
        pl_lot *lot = &lots[g];
        out->at = g;
        if (lot->least > budget[g] || lot->most < budget[g]) {
            out->missing = lot->least > budget[g] ? lot->least - budget[g] : budget[g] - lot->most;
            return lot->least > budget[g] ? PL_ERR_MINIMA : PL_ERR_CAPACITY;
        }
        lot->rest = budget[g] - (uint32_t)lot->least;
        lot->start = start;
        start += lot->n;
        lot->n = 0;
    }
    out->at = 0;
    return PL_OK;
}

/* When a board ends that has x samples above its minimum. */
static double ends_at(const pl_lane *lane, uint32_t x) {
    return lane->fixed_seconds + lane->seconds_per_sample * ((double)lane->least + x);
}

/* What is saved until the others are done; one group waits for nobody. */
static double spared(const fleet *f, const pl_pace *p) {
    return f->n_lots > 1 ? p->spared_w : 0.0;
}

/* Copy the boards into lanes, group by group, by rising marginal joules; rows[2 n] is scratch. */
static void line_up(uint32_t n, const pl_pace paces[], fleet *f, pl_lane lanes[], pl_corner rows[]) {
    f->base_j = 0.0;
    f->outside_w = 0.0;
    for (uint32_t i = 0; i < n; i++) {
        const pl_pace *p = &paces[i];
        double m = marginal(p);
        rows[i] = (pl_corner){ m, i };
        f->base_j += p->fixed_j - p->wait_w * p->fixed_seconds + m * p->minimum;
        f->outside_w += p->wait_w - spared(f, p);
    }
    sort_corners(rows, rows + n, n);
    for (uint32_t k = 0; k < n; k++) {
        uint32_t i = (uint32_t)rows[k].joules;
        const pl_pace *p = &paces[i];
        pl_lot *lot = &f->lots[p->group];
        uint32_t room = p->capacity - p->minimum;
        pl_lane lane = {
            rows[k].seconds, p->fixed_seconds, p->seconds_per_sample, p->minimum, room < lot->rest ? room : lot->rest, i
        };
        lanes[lot->start + lot->n++] = lane;
        double begin = ends_at(&lane, 0);
        lot->low = begin > lot->low ? begin : lot->low;
        lot->inside_w += spared(f, p);
        if (lane.room > 0) {
            lot->rate += 1.0 / lane.seconds_per_sample;
            lot->slack = lane.seconds_per_sample > lot->slack ? lane.seconds_per_sample : lot->slack;
        }
    }
}

/* Splits ---- */

/* The most samples from low to high that end by t, where low do. */
static uint32_t last_by(const pl_lane *lane, double t, uint32_t low, uint32_t high) {
    while (low < high) {
        uint32_t middle = low + (high - low + 1) / 2;
        if (ends_at(lane, middle) <= t) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    return low;
}

/* Samples above the minimum that a board ends by T, in whole ones, as the doubles have it. The quotient is off
 * by one at most, but where a sample is too short for a double next to the fixed seconds. */
static uint32_t whole_room(const pl_lane *lane, double t) {
    double most = (t - lane->fixed_seconds) / lane->seconds_per_sample - lane->least;
    uint32_t v = most >= lane->room ? lane->room : most > 0.0 ? (uint32_t)most : 0;
    if (v > 0 && ends_at(lane, v) > t) {
        v--;
        return ends_at(lane, v) <= t ? v : last_by(lane, t, 0, v);
    }
    if (v < lane->room && ends_at(lane, v + 1) <= t) {
        v++;
        return v < lane->room && ends_at(lane, v + 1) <= t ? last_by(lane, t, v, lane->room) : v;
    }
    return v;
}

/* The cheapest split of a group that ends by t, in real samples: sum of m x above the minima. */
static double fill_real(const pl_lane lanes[], const pl_lot *lot, double t) {
    double rest = lot->rest, joules = 0.0;
    for (uint32_t k = 0; k < lot->n && rest > 0.0; k++) {
        const pl_lane *lane = &lanes[lot->start + k];
        double room = (t - lane->fixed_seconds) / lane->seconds_per_sample - lane->least;
        room = room < lane->room ? (room > 0.0 ? room : 0.0) : lane->room;
        room = room < rest ? room : rest;
        joules += lane->marginal_j * room;
        rest -= room;
    }
    return joules;
}

/* The same in whole samples: *end is when the slowest ends, shares (may be NULL) get the samples. False: no room. */
static bool fill_whole(const pl_lane lanes[], const pl_lot *lot, double t, double *joules, double *end,
                       uint32_t shares[]) {
    uint32_t rest = lot->rest, k = 0;
    *joules = 0.0;
    *end = lot->low;
    for (; k < lot->n && (rest > 0 || shares); k++) {
        const pl_lane *lane = &lanes[lot->start + k];
        uint32_t x = whole_room(lane, t);
        x = x < rest ? x : rest;
        rest -= x;
        if (x > 0) {
            double ends = ends_at(lane, x);
            *joules += lane->marginal_j * x;
            *end = ends > *end ? ends : *end;
        }
        if (shares) {
            shares[lane->index] = lane->least + x;
        }
    }
    return rest == 0;
}

/* Whole samples above the minima that fit by t; *last: when the last of them ends, *there: how many end just then. */
static uint64_t count_whole(const pl_lane lanes[], const pl_lot *lot, double t, double *last, uint32_t *there) {
    uint64_t total = 0;
    *last = lot->low;
    *there = 0;
    for (uint32_t k = 0; k < lot->n; k++) {
        const pl_lane *lane = &lanes[lot->start + k];
        uint32_t x = whole_room(lane, t);
        double ends = ends_at(lane, x);
        total += x;
        if (x > 0 && ends >= *last) {
            *there = ends > *last ? 1 : *there + 1;
            *last = ends;
        }
    }
    return total;
}

/* The least end of a group in whole samples. Each try moves to the end of a sample, so that it is met exactly. */
static double least_whole(const pl_lane lanes[], const pl_lot *lot) {
    double last;
    uint32_t there;
    if (count_whole(lanes, lot, lot->low, &last, &there) >= lot->rest) {
        return lot->low;
    }
    double low = lot->t_min - 1e-9 * lot->t_min, step = lot->slack + 1e-6 * lot->slack, high = lot->t_min + step;
    low = low > lot->low ? low : lot->low;
    uint64_t total = count_whole(lanes, lot, high, &last, &there);
    while (total < lot->rest) { /* rounding alone can keep it from fitting */
        low = high;
        high += step;
        step += step; /* a sample may be shorter than what a double next to the fixed seconds can tell */
        total = count_whole(lanes, lot, high, &last, &there);
    }
    for (unsigned k = 0; k < STEPS; k++) {
        high = last;
        if (total - there < lot->rest) {
            break; /* a moment earlier one of those is missing */
        }
        double middle = low + (high - low) * 0.5;
        double guess = k % 3 == 2 ? middle : high - ((double)(total - lot->rest) + 0.5) / lot->rate;
        guess = guess > low && guess < high ? guess : middle;
        if (!(guess > low && guess < high)) {
            break;
        }
        double ends;
        uint32_t count;
        uint64_t fits = count_whole(lanes, lot, guess, &ends, &count);
        if (fits >= lot->rest) {
            total = fits;
            last = ends;
            there = count;
        } else {
            low = guess;
        }
    }
    return high;
}

/* The curve ---- */

/* Append to corners[] each fall of the group's slope, (T, watts), T falling; returns how many, 2 lot->n + 1 at most.
 * order[2 n] is scratch. */
static uint32_t walk(const pl_lane all[], pl_lot *lot, pl_corner corners[], pl_corner order[]) {
    const pl_lane *lanes = &all[lot->start];
    uint32_t n = lot->n, found = 0, j = 0, k = 0;
    if (n == 0) {
        return 0;
    }
    for (uint32_t i = 0; i < n; i++) { /* by falling capacity times: sorted by their negatives */
        order[i] = (pl_corner){ -ends_at(&lanes[i], lanes[i].room), i };
    }
    sort_corners(order, order + n, n);
    double x = lot->rest, t_now = -order[0].seconds, s = 0.0, d = 0.0, over = 0.0;
    while (x > lanes[j].room) {
        x -= lanes[j].room;
        j++;
    }
    lot->t_alone = t_now;
    bool alone = true; /* while the group is better off ending where it does, whatever the others do */
    for (;;) {
        const pl_lane *b = &lanes[j];
        double full = ends_at(b, b->room);
        double next = k < n ? -order[k].seconds : -1.0;
        uint32_t i = k < n ? (uint32_t)order[k].joules : 0;
        bool bound = k == n || full > next || (full == next && j < i); /* its own capacity time lies behind us */
        double room = bound ? (t_now - b->fixed_seconds) / b->seconds_per_sample - b->least : b->room;
        double gap = room > x ? room - x : 0.0;
        double rate = s + (bound ? 1.0 / b->seconds_per_sample : 0.0);
        double t1 = next < t_now ? next : t_now;
        double t2 = rate > 0.0 ? t_now - gap / rate : -1.0;
        double t = t1 > t2 ? t1 : t2;
        t = t > lot->low ? t : lot->low;
        double step = 0.0;
        x += s * (t_now - t);
        t_now = t;
        if (k < n && t == t1) {
            k++;
            if (i < j) {
                s += 1.0 / lanes[i].seconds_per_sample;
                step = (b->marginal_j - lanes[i].marginal_j) / lanes[i].seconds_per_sample;
            }
        } else if (t == t2 && j + 1 < n) {
            s += bound ? 1.0 / b->seconds_per_sample : 0.0;
            step = s * (lanes[j + 1].marginal_j - b->marginal_j);
            j++;
            x = 0.0;
        } else {
            lot->t_min = t_now;
            lot->t_alone = alone ? t_now : lot->t_alone;
            return found;
        }
        d += step;
        if (alone && d > lot->inside_w) {
            alone = false;
            lot->t_alone = t_now;
            over = d - lot->inside_w;
        } else {
            over = alone ? 0.0 : step;
        }
        if (over > 0.0) {
            corners[found++] = (pl_corner){ t_now, over };
        }
    }
}

/* When a group ends in a round that ends at t. */
static double group_end(const pl_lot *lot, double t) {
    double end = lot->inside_w > 0.0 && lot->t_alone < t ? lot->t_alone : t;
    return end > lot->t_min ? end : lot->t_min;
}

static double energy_real(const fleet *f, double t) {
    double joules = f->base_j + f->outside_w * t;
    for (uint32_t g = 0; g < f->n_lots; g++) {
        const pl_lot *lot = &f->lots[g];
        double end = group_end(lot, t);
        joules += lot->inside_w * end + fill_real(f->lanes, lot, end);
    }
    return joules;
}

/* Whole plans ---- */

/* What is looked for, and the best so far. Each group's end in it is lot->chosen. */
typedef struct search {
    const fleet *f;
    uint32_t goal;
    double limit;
    bool any;
    double seconds;
    double joules;
} search;

/* Give a group the cheapest whole split that ends by t, where that is better than what it has. */
static void offer(const fleet *f, pl_lot *lot, double t) {
    double joules, ends;
    if (!fill_whole(f->lanes, lot, t, &joules, &ends, (uint32_t *)0)) {
        return;
    }
    joules += lot->inside_w * ends;
    if (lot->end < 0.0 || joules < lot->joules || (joules == lot->joules && ends < lot->end)) {
        lot->end = ends;
        lot->joules = joules;
    }
}

/* Keep the plan that the groups have now, where it is the best yet. */
static void keep(search *s) {
    const fleet *f = s->f;
    double seconds = 0.0, joules = f->base_j;
    for (uint32_t g = 0; g < f->n_lots; g++) {
        const pl_lot *lot = &f->lots[g];
        if (lot->n > 0) {
            if (lot->end < 0.0) {
                return; /* no split of it ends so soon */
            }
            joules += lot->joules;
            seconds = lot->end > seconds ? lot->end : seconds;
        }
    }
    joules += f->outside_w * seconds;
    if ((s->goal == PL_GOAL_DEADLINE && !(seconds <= s->limit)) ||
        (s->goal == PL_GOAL_BUDGET && !(joules <= s->limit))) {
        return;
    }
    bool by_time = s->goal == PL_GOAL_TIME || s->goal == PL_GOAL_BUDGET;
    double x = by_time ? seconds : joules, y = by_time ? s->seconds : s->joules;
    if (s->goal == PL_GOAL_EDP) {
        x *= seconds;
        y *= s->seconds;
    }
    if (s->any && !(x < y || (x == y && (by_time ? joules < s->joules : seconds < s->seconds)))) {
        return;
    }
    s->any = true;
    s->seconds = seconds;
    s->joules = joules;
    for (uint32_t g = 0; g < f->n_lots; g++) {
        f->lots[g].chosen = f->lots[g].end;
    }
}

/* Try to end by t: a group that may end alone does so where its real optimum is, or a sample later, or at t. */
static void consider(search *s, double t) {
    const fleet *f = s->f;
    for (uint32_t g = 0; g < f->n_lots; g++) {
        pl_lot *lot = &f->lots[g];
        lot->end = -1.0;
        if (lot->n > 0 && lot->inside_w > 0.0) {
            double alone = group_end(lot, t);
            double late = alone + lot->slack + 1e-6 * lot->slack;
            alone = alone > lot->t_whole ? alone : lot->t_whole;
            offer(f, lot, alone < t ? alone : t);
            offer(f, lot, late < t ? late : t);
        }
        if (lot->n > 0) {
            offer(f, lot, t);
        }
    }
    keep(s);
}

/* Try whole plans around the real optimum. */
static void look_around(search *s, double t, uint32_t n, double slack) {
    const fleet *f = s->f;
    consider(s, t);
    consider(s, t + slack + 1e-6 * slack);
    if (n <= EACH) {
        for (uint32_t k = 0; k < n; k++) {
            const pl_lane *lane = &f->lanes[k];
            double v = (t - lane->fixed_seconds) / lane->seconds_per_sample;
            if (!(v >= 0.0 && v < 4294967296.0)) {
                continue;
            }
            for (int64_t d = (int64_t)v - 2; d <= (int64_t)v + 3; d++) {
                if (d >= lane->least) {
                    consider(s, lane->fixed_seconds + lane->seconds_per_sample * (double)d);
                }
            }
        }
        return;
    }
    double rate = 0.0;
    for (uint32_t g = 0; g < f->n_lots; g++) {
        rate += f->lots[g].rate;
    }
    double h = rate > 0.0 ? n / rate : 0.0;
    int trials = n <= MANY ? TRIALS : COARSE;
    for (int k = 0; k < trials; k++) {
        consider(s, t - h + 3.0 * h * k / (trials - 1));
    }
}

/* Corners (T, watts) in any order -> the curve: corners (T, joules) from least joules to least time. */
static uint32_t draw(const fleet *f, uint32_t found, pl_corner corners[], pl_corner spare[], double t_min) {
    if (f->n_lots > 1) { /* one group's come by falling T */
        for (uint32_t k = 0; k < found; k++) {
            corners[k].seconds = -corners[k].seconds;
        }
        sort_corners(corners, spare, found);
        for (uint32_t k = 0; k < found; k++) {
            corners[k].seconds = -corners[k].seconds;
        }
    }
    double d = 0.0;
    uint32_t k = 0, kept = 0;
    while (k < found && d <= f->outside_w && corners[k].seconds > t_min) { /* to where patience no longer pays */
        d += corners[k].joules;
        k++;
    }
    double t = k > 0 && d > f->outside_w ? corners[k - 1].seconds : t_min;
    double joules = energy_real(f, t);
    while (t > t_min) {
        while (k < found && corners[k].seconds == t) {
            d += corners[k++].joules;
        }
        double next = k < found && corners[k].seconds > t_min ? corners[k].seconds : t_min;
        spare[kept++] = (pl_corner){ t, joules };
        joules += (d - f->outside_w) * (t - next);
        t = next;
    }
    spare[kept++] = (pl_corner){ t, joules };
    for (k = 0; k < kept; k++) {
        corners[k] = spare[k];
    }
    return kept;
}

/* Where a goal's optimum lies on the curve. */
static pl_corner optimum(uint32_t goal, double limit, const pl_corner curve[], uint32_t n) {
    pl_corner best = curve[0];
    for (uint32_t k = 1; k < n; k++) {
        pl_corner a = curve[k - 1], b = curve[k]; /* b is the shorter */
        if (goal == PL_GOAL_EDP) {
            best = b.joules * b.seconds <= best.joules * best.seconds ? b : best;
        } else if (goal == PL_GOAL_TIME || (goal == PL_GOAL_DEADLINE ? b.seconds >= limit : b.joules <= limit)) {
            best = goal == PL_GOAL_ENERGY ? best : b;
        } else if (goal == PL_GOAL_DEADLINE || goal == PL_GOAL_BUDGET) {
            bool by_time = goal == PL_GOAL_DEADLINE;
            double part =
                by_time ? (a.seconds - limit) / (a.seconds - b.seconds) : (limit - a.joules) / (b.joules - a.joules);
            if (part > 0.0) {
                best = (pl_corner){ by_time ? limit : a.seconds - part * (a.seconds - b.seconds),
                                    by_time ? a.joules + part * (b.joules - a.joules) : limit };
            }
            break;
        }
    }
    return best;
}

/* All whole plans ---- */

/* The size of the terms that joules are a sum of. */
static double rough_j(uint32_t n, const pl_pace paces[], const uint32_t budget[], double t_whole) {
    double joules = 0.0;
    for (uint32_t i = 0; i < n; i++) {
        const pl_pace *p = &paces[i];
        double most = p->capacity < budget[p->group] ? p->capacity : budget[p->group];
        joules += p->fixed_j + p->energy_per_sample_j * most + p->wait_w * (t_whole + p->seconds_per_sample * most);
    }
    return joules;
}

/* Whether a whole plan that ends at t, where real samples take so many joules, could be better than the best so far. */
static bool may_beat(const search *s, double t, double joules) {
    joules -= s->f->margin_j;
    if (s->goal == PL_GOAL_BUDGET) {
        return joules <= s->limit;
    }
    return !s->any || (s->goal == PL_GOAL_EDP ? joules * t < s->joules * s->seconds : joules < s->joules);
}

/* When the first sample after t ends; negative: none does. */
static double next_end(const pl_lane lanes[], uint32_t n, double t) {
    double next = -1.0;
    for (uint32_t k = 0; k < n; k++) {
        uint32_t x = whole_room(&lanes[k], t);
        if (x < lanes[k].room) {
            double ends = ends_at(&lanes[k], x + 1);
            next = next < 0.0 || ends < next ? ends : next;
        }
    }
    return next;
}

/* A lower bound on what a group takes that ends at t, by the whole. */
static double alone_j(const fleet *f, const pl_lot *lot, double t) {
    return lot->inside_w * t + fill_real(f->lanes, lot, t) - f->margin_j;
}

/* Give a group the best of all its splits that end by t, in so many steps at most; returns what is left of them. */
static int64_t settle(const fleet *f, pl_lot *lot, double t, int64_t steps) {
    lot->end = -1.0;
    offer(f, lot, t);
    if (!(lot->inside_w > 0.0)) {
        return steps;
    }
    double high = group_end(lot, t), low = lot->t_whole, late = high + lot->slack + 1e-6 * lot->slack;
    high = high > low ? high : low;
    offer(f, lot, late < t ? late : t);
    if (low < high && alone_j(f, lot, low) >= lot->joules) { /* begin where the group can become better than that */
        double begin = high;
        for (unsigned k = 0; k < HALVINGS; k++) {
            double middle = low + (begin - low) * 0.5;
            if (alone_j(f, lot, middle) < lot->joules) {
                begin = middle;
            } else {
                low = middle;
            }
        }
    }
    offer(f, lot, low);
    while ((low = next_end(&f->lanes[lot->start], lot->n, low)) >= 0.0 && low <= t && (steps -= lot->n) > 0) {
        if (low > high && alone_j(f, lot, low) >= lot->joules) {
            break;
        }
        offer(f, lot, low);
    }
    return steps;
}

/* Go through all makespans at which a whole plan can be better than the best so far, by the curve, which no whole plan
 * beats. Each is the end of a sample, and at each every group has the best of its splits until then. So the best of
 * all is found, unless steps run out first: many boards, or a goal that hardly depends on when the round ends. */
static void sweep(search *s, const pl_corner curve[], uint32_t n_curve, uint32_t n, double t_whole) {
    const fleet *f = s->f;
    uint32_t k = n_curve, longest = 0;
    if (n > MANY) {
        return;
    }
    while (k > 0 && !may_beat(s, curve[k - 1].seconds, curve[k - 1].joules)) {
        k--;
    }
    while (longest < k && !may_beat(s, curve[longest].seconds, curve[longest].joules)) {
        longest++;
    }
    /* Between two corners joules fall evenly, so seconds times joules bend downwards: where neither corner can beat the
     * best, nothing between them can. So behind the corner that follows the longest one that can, nothing does. */
    double last = curve[longest > 0 ? longest - 1 : 0].seconds;
    double t = s->goal == PL_GOAL_TIME ? t_whole : curve[n_curve - 1].seconds;
    if (s->goal != PL_GOAL_TIME && k < n_curve) {
        if (k == 0) {
            return;
        }
        pl_corner a = curve[k - 1], b = curve[k];
        double low = 0.0, high = 1.0; /* of the way from b, which cannot beat it, to a, which can */
        for (unsigned half = 0; half < HALVINGS; half++) {
            double part = low + (high - low) * 0.5;
            if (may_beat(s, b.seconds + part * (a.seconds - b.seconds), b.joules + part * (a.joules - b.joules))) {
                high = part;
            } else {
                low = part;
            }
        }
        t = b.seconds + low * (a.seconds - b.seconds);
    }
    t = t > t_whole ? t : t_whole;
    int64_t steps = LANES;
    for (uint32_t g = 0; g < f->n_lots && steps > 0; g++) {
        if (f->lots[g].n > 0) {
            steps = settle(f, &f->lots[g], t, steps);
        }
    }
    while (steps > 0) {
        keep(s);
        steps -= n + f->n_lots;
        t = next_end(f->lanes, n, t);
        if (t < 0.0 || s->goal == PL_GOAL_TIME || (s->goal == PL_GOAL_DEADLINE && t > s->limit) ||
            (s->goal == PL_GOAL_BUDGET && s->any && t > s->seconds) ||
            (t > last && !may_beat(s, t, energy_real(f, t)))) {
            return;
        }
        for (uint32_t g = 0; g < f->n_lots; g++) {
            if (f->lots[g].n > 0) {
                offer(f, &f->lots[g], t);
            }
        }
    }
}

int pl_frontier_plan(const pl_goal *goal, uint32_t n, const pl_pace paces[], uint32_t n_groups, const uint32_t budget[],
                     uint32_t n_times, const double times[], pl_lane lanes[], pl_lot lots[], pl_corner corners[],
                     uint32_t shares[], pl_frontier *out) {
    *out = (pl_frontier){ 0 };
    if (goal->kind > PL_GOAL_BUDGET || n_groups == 0 || !is_number(goal->limit)) {
        return PL_ERR_ARGUMENT;
    }
    int status = check(n, paces, n_groups, budget, lots, out);
    if (status != PL_OK) {
        return status;
    }
    fleet f = { lanes, lots, n_groups, 0.0, 0.0, 0.0 };
    pl_corner *spare = corners + 2 * (uint64_t)n + n_groups;
    line_up(n, paces, &f, lanes, spare);
    double t_min = 0.0, t_whole = 0.0, slack = 0.0;
    uint32_t found = 0;
    for (uint32_t g = 0; g < n_groups; g++) {
        pl_lot *lot = &lots[g];
        found += walk(lanes, lot, &corners[found], spare);
        if (lot->n > 0) {
            lot->t_whole = least_whole(lanes, lot);
        }
        out->at = lot->t_whole > t_whole ? g : out->at;
        t_min = lot->t_min > t_min ? lot->t_min : t_min;
        t_whole = lot->t_whole > t_whole ? lot->t_whole : t_whole;
        slack = lot->slack > slack ? lot->slack : slack;
        out->slack_j += lot->inside_w * lot->slack;
    }
    out->slack_j += f.outside_w * slack;
    f.margin_j = 1e-12 * rough_j(n, paces, budget, t_whole);
    out->n_corners = draw(&f, found, corners, spare, t_min);
    out->least_seconds = t_whole;
    out->least_j = corners[0].joules;

    search s = { &f, goal->kind, goal->limit, false, 0.0, 0.0 };
    if (s.goal == PL_GOAL_FACTOR) {
        s.goal = PL_GOAL_DEADLINE;
        s.limit = goal->limit * t_whole;
    }
    if (s.goal == PL_GOAL_DEADLINE && s.limit < t_whole) {
        out->nearest = goal->kind == PL_GOAL_FACTOR ? 1.0 : t_whole;
        return PL_ERR_REACH;
    }
    pl_corner best = optimum(s.goal, s.limit, corners, out->n_corners);
    out->real_seconds = best.seconds;
    out->real_j = best.joules;
    consider(&s, t_whole);
    if (s.goal != PL_GOAL_TIME) {
        look_around(&s, best.seconds, n, slack);
        for (uint32_t k = 0; k < n_times; k++) {
            consider(&s, times[k]);
        }
    }
    if (s.goal == PL_GOAL_DEADLINE) {
        consider(&s, s.limit);
    }
    if (s.goal == PL_GOAL_BUDGET) {
        pl_corner safe = optimum(s.goal, s.limit - out->slack_j, corners, out->n_corners);
        consider(&s, safe.seconds + slack + 1e-6 * slack);
    }
    sweep(&s, corners, out->n_corners, n, t_whole);
    if (!s.any) { /* a budget may still be reached where joules are least */
        s.goal = PL_GOAL_ENERGY;
        look_around(&s, corners[0].seconds, n, slack);
        for (uint32_t k = 0; k < n_times; k++) {
            consider(&s, times[k]);
        }
        sweep(&s, corners, out->n_corners, n, t_whole);
        if (!(s.any && s.joules <= s.limit)) {
            out->nearest = s.joules;
            return PL_ERR_REACH;
        }
    }
    for (uint32_t g = 0; g < n_groups; g++) {
        double joules, ends;
        fill_whole(lanes, &lots[g], lots[g].chosen, &joules, &ends, shares);
    }
    out->seconds = s.seconds;
    out->energy_j = s.joules;
    return PL_OK;
}

/* Fixed seconds from totals ---- */

static const double FIXED_NOISE = 0.002, PACE_NOISE = 0.02, NOISE = 0.03, JUMP = 12.0, FORGET = 0.2;

static void blend(double *smoothed, double fresh, double weight) {
    *smoothed += weight * (fresh - *smoothed);
}

int pl_fit_observe(pl_fit *f, double seconds, uint32_t samples) {
    double n = samples, ratio = seconds / n;
    if (samples == 0 || !pl_is_positive(seconds) || !(ratio >= TAU_MIN && seconds <= NUMBER_MAX)) {
        return PL_ERR_REPORT;
    }
    if (f->reports == 0) {
        double va = 0.01 * seconds * seconds;
        *f = (pl_fit){ .seconds_per_sample = ratio,
                       .proportional = ratio,
                       .typical_samples = n,
                       .reports = 1,
                       .var_fixed = va,
                       .covariance = -va / n,
                       .var_pace = va / (n * n) + NOISE * NOISE * ratio * ratio };
        return PL_OK;
    }
    double weight = n < f->typical_samples ? n / f->typical_samples : 1.0; /* few samples tell little */
    double variance = NOISE * NOISE * seconds * seconds / weight;
    double affine = f->fixed_seconds + f->seconds_per_sample * n - seconds, plain = f->proportional * n - seconds;
    blend(&f->error_affine, affine * affine / (seconds * seconds), FORGET * weight);
    blend(&f->error_proportional, plain * plain / (seconds * seconds), FORGET * weight);
    blend(&f->proportional, ratio, 0.5 * weight);
    blend(&f->typical_samples, n, FORGET);
    f->var_pace += PACE_NOISE * PACE_NOISE * f->seconds_per_sample * f->seconds_per_sample;
    f->var_fixed += FIXED_NOISE * FIXED_NOISE * seconds * seconds;
    double e = -affine, v = f->var_fixed + 2.0 * n * f->covariance + n * n * f->var_pace + variance;
    if (e * e > JUMP * v) { /* a jump is the pace's, never the fixed seconds' */
        f->var_pace += e * e / (n * n);
        v = f->var_fixed + 2.0 * n * f->covariance + n * n * f->var_pace + variance;
    }
    double to_fixed = f->var_fixed + n * f->covariance, to_pace = f->covariance + n * f->var_pace;
    double fixed = f->fixed_seconds + to_fixed / v * e, pace = f->seconds_per_sample + to_pace / v * e;
    f->fixed_seconds = fixed > 0.0 ? fixed : 0.0;
    f->seconds_per_sample = pace >= TAU_MIN ? pace : ratio;
    f->var_pace -= to_pace / v * to_pace;
    f->covariance -= to_pace / v * to_fixed;
    f->var_fixed -= to_fixed / v * to_fixed;
    f->reports += f->reports < UINT32_MAX ? 1u : 0u;
    return PL_OK;
}

bool pl_fit_is_affine(const pl_fit *f) {
    return f->fixed_seconds > 0.0 && f->error_affine < 0.64 * f->error_proportional; /* 0.8 of the error, squared */
}
