/* SPDX-License-Identifier: Apache-2.0 */
#include "pl_internal.h"

/* Energy ---------------------------------------------------------------------------------------------------------- */

/* The unit inside is half a picojoule: a microwatt times a microsecond is a picojoule, and a trapezoid halves it.
 * An amount is whole microjoules and a part below PER_UJ, so sums are exact and sixty-four bits last for years. */
enum { PER_UJ = 2000000 };

typedef struct amount {
    int64_t uj;
    uint32_t part;
} amount;

/* to += power_uw * span, in halves of a picojoule. |power_uw| <= 4e11, span <= 2^43: whole < 2e5, so whole * span fits,
 * and rest < PER_UJ, so rest * span < 2^64. */
static void add(amount *to, int64_t power_uw, uint64_t span) {
    int64_t whole = power_uw / PER_UJ, rest = power_uw % PER_UJ;
    if (rest < 0) {
        rest += PER_UJ;
        whole -= 1;
    }
    uint64_t product = (uint64_t)rest * span;
    to->uj += whole * (int64_t)span + (int64_t)(product / PER_UJ);
    to->part += (uint32_t)(product % PER_UJ);
    if (to->part >= PER_UJ) {
        to->part -= PER_UJ;
        to->uj += 1;
    }
}

/* to += energy while power runs straight from begin_uw to end_uw over `length`, from its start on for dt <= length.
 * That is 2 begin dt + (end - begin) dt^2 / length halves of a picojoule, exact at dt = length and never falling in dt
 * where both powers are not negative. Above 2^32 us, 71 minutes, dt^2 does not fit: the mean power stands in. */
static void add_course(amount *to, int64_t begin_uw, int64_t end_uw, uint64_t dt, uint64_t length) {
    uint64_t bend = length > UINT32_MAX ? dt : dt * dt / length;
    add(to, begin_uw, 2 * dt);
    add(to, end_uw - begin_uw, bend);
}

/* whole * dt / length, rounded down, for dt <= length <= PL_SPAN_MAX_US; never falling in dt, exact at its ends. */
static uint64_t scaled(uint64_t whole, uint64_t dt, uint64_t length) {
    if (dt == length) {
        return whole;
    }
    uint64_t rate = whole / length, rest = whole % length;
    unsigned shift = 0;
    while (length >> shift > UINT32_MAX) {
        shift++;
    }
    return rate * dt + (((rest >> shift) * (dt >> shift) / (length >> shift)) << shift);
}

static int64_t greater(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static uint64_t distance(int64_t a, int64_t b) {
    return a > b ? (uint64_t)(a - b) : (uint64_t)(b - a);
}

static const pl_knot *knot(const pl_integrator *e, uint32_t k) {
    return &e->knots[(uint32_t)(((uint64_t)e->first + k) % e->n_knots)];
}

static const pl_knot *newest(const pl_integrator *e) {
    return knot(e, e->count - 1);
}

static void push(pl_integrator *e, const pl_knot *fresh) {
    e->knots[(uint32_t)(((uint64_t)e->first + e->count) % e->n_knots)] = *fresh;
    if (e->count < e->n_knots) {
        e->count++;
    } else {
        e->first = (e->first + 1) % e->n_knots;
        e->forgotten = 1;
    }
}

int pl_integrator_init(pl_integrator *e, uint32_t period_us, uint64_t modulus_uj, uint64_t max_power_uw,
                       uint32_t n_knots, pl_knot knots[]) {
    if (period_us == 0 || n_knots < 4 || max_power_uw > PL_POWER_MAX_UW) {
        return PL_ERR_ARGUMENT;
    }
    *e = (pl_integrator){
        .knots = knots,
        .n_knots = n_knots,
        .period_us = period_us,
        .modulus_uj = modulus_uj,
        .max_power_uw = max_power_uw > 0 ? max_power_uw : PL_POWER_MAX_UW,
    };
    return PL_OK;
}

/* Readings ---- */

static bool is_gap(const pl_integrator *e, uint64_t length) {
    return length > (uint64_t)PL_GAP_PERIODS * e->period_us;
}

static int check_kind(const pl_integrator *e, uint32_t kind, int64_t power_uw, uint64_t error_uw) {
    if (e->kind != PL_KIND_NONE && e->kind != kind) {
        return PL_ERR_KIND;
    }
    if (power_uw > PL_POWER_MAX_UW || power_uw < -PL_POWER_MAX_UW || error_uw > PL_POWER_MAX_UW) {
        return PL_ERR_ARGUMENT;
    }
    return PL_OK;
}

/* Is t_us later than the newest knot, and not absurdly so? */
static bool follows(const pl_integrator *e, uint64_t t_us) {
    return e->count == 0 || (t_us > newest(e)->t_us && t_us - newest(e)->t_us <= PL_SPAN_MAX_US);
}

static void notice(pl_integrator *e, int64_t power_uw, uint64_t error_uw) {
    e->low_uw = e->count == 0 || power_uw < e->low_uw ? power_uw : e->low_uw;
    e->high_uw = e->count == 0 || power_uw > e->high_uw ? power_uw : e->high_uw;
    e->last_uw = power_uw;
    e->last_error_uw = error_uw;
}

static void begin(pl_integrator *e, uint64_t t_us) {
    pl_knot fresh = { .t_us = t_us };
    push(e, &fresh);
}

/* Go on to t_us with power running straight from begin_uw to end_uw. A gap may hide any power seen so far. */
static void extend(pl_integrator *e, uint64_t t_us, int64_t begin_uw, int64_t end_uw, uint64_t error_uw, bool gap) {
    pl_knot fresh = *newest(e);
    uint64_t length = t_us - fresh.t_us;
    amount energy = { fresh.energy_uj, fresh.energy_part };
    amount bound = { (int64_t)fresh.bound_uj, fresh.bound_part };
    add_course(&energy, begin_uw, end_uw, length, length);
    add(&bound, (int64_t)error_uw, 2 * length);
    if (gap) {
        int64_t twice = begin_uw + end_uw;
        add(&bound, greater(2 * e->high_uw - twice, twice - 2 * e->low_uw), length);
        fresh.uncovered_us += length;
    }
    fresh.t_us = t_us;
    fresh.energy_uj = energy.uj;
    fresh.energy_part = energy.part;
    fresh.bound_uj = (uint64_t)bound.uj;
    fresh.bound_part = bound.part;
    fresh.begin_uw = begin_uw;
    fresh.end_uw = end_uw;
    fresh.linear = 0;
    push(e, &fresh);
}

int pl_integrator_interval(pl_integrator *e, uint64_t t0_us, uint64_t t1_us, int64_t power_uw, uint64_t error_uw) {
    int status = check_kind(e, PL_KIND_INTERVAL, power_uw, error_uw);
    if (status != PL_OK) {
        return status;
    }
    if (t1_us <= t0_us || t1_us - t0_us > PL_SPAN_MAX_US || !follows(e, t1_us)) {
        return PL_ERR_ORDER;
    }
    e->kind = PL_KIND_INTERVAL;
    int64_t last_uw = e->last_uw;
    uint64_t worst_uw = error_uw > e->last_error_uw ? error_uw : e->last_error_uw;
    notice(e, power_uw, error_uw);
    if (e->count == 0) {
        begin(e, t0_us);
    } else if (t0_us > newest(e)->t_us) {
        extend(e, t0_us, last_uw, power_uw, worst_uw, is_gap(e, t0_us - newest(e)->t_us));
    }
    extend(e, t1_us, power_uw, power_uw, error_uw, false);
    return PL_OK;
}

int pl_integrator_point(pl_integrator *e, uint64_t t_us, int64_t power_uw, uint64_t error_uw) {
    int status = check_kind(e, PL_KIND_POINT, power_uw, error_uw);
    if (status != PL_OK) {
        return status;
    }
    if (!follows(e, t_us)) {
        return PL_ERR_ORDER;
    }
    e->kind = PL_KIND_POINT;
    int64_t last_uw = e->last_uw;
    uint64_t worst_uw = error_uw > e->last_error_uw ? error_uw : e->last_error_uw;
    notice(e, power_uw, error_uw);
    if (e->count == 0) {
        begin(e, t_us);
    } else {
        extend(e, t_us, last_uw, power_uw, worst_uw, is_gap(e, t_us - newest(e)->t_us));
    }
    return PL_OK;
}

/* The counter's step, or false where it began anew or claims more than max_power_uw. */
static bool counted(const pl_integrator *e, uint64_t count_uj, uint64_t length, uint64_t *step) {
    amount most = { 0, 0 };
    add(&most, (int64_t)e->max_power_uw, 2 * length);
    if (count_uj < e->last_count_uj && e->modulus_uj == 0) {
        return false;
    }
    *step = count_uj - e->last_count_uj;
    if (count_uj < e->last_count_uj) {
        *step += e->modulus_uj;
    }
    return *step <= (uint64_t)most.uj;
}

int pl_integrator_counter(pl_integrator *e, uint64_t t_us, uint64_t count_uj) {
    int status = check_kind(e, PL_KIND_COUNTER, 0, 0);
    if (status != PL_OK) {
        return status;
    }
    if (e->modulus_uj != 0 && count_uj >= e->modulus_uj) {
        return PL_ERR_ARGUMENT;
    }
    if (!follows(e, t_us)) {
        return PL_ERR_ORDER;
    }
    e->kind = PL_KIND_COUNTER;
    if (e->count == 0) {
        begin(e, t_us);
        e->last_count_uj = count_uj;
        return PL_OK;
    }
    uint64_t length = t_us - newest(e)->t_us, step = 0;
    if (counted(e, count_uj, length, &step)) {
        pl_knot fresh = *newest(e);
        fresh.t_us = t_us;
        fresh.energy_uj += (int64_t)step;
        fresh.uncovered_us += is_gap(e, length) ? length : 0;
        fresh.linear = 1;
        push(e, &fresh);
        int64_t mean_uw = (int64_t)(step / length * 1000000 + step % length * 1000000 / length); /* rest < 2^42 */
        e->low_uw = e->count == 2 || mean_uw < e->low_uw ? mean_uw : e->low_uw;
        e->high_uw = mean_uw > e->high_uw ? mean_uw : e->high_uw;
        e->last_uw = mean_uw;
    } else {
        extend(e, t_us, e->last_uw, e->last_uw, 0, true);
        e->knots[(uint32_t)(((uint64_t)e->first + e->count - 1) % e->n_knots)].resets++;
    }
    e->last_count_uj = count_uj;
    return PL_OK;
}

/* Windows ---- */

/* Where an instant lies: between two knots, or on one (then both are it). */
typedef struct place {
    const pl_knot *before, *after;
    int64_t energy_uj;
    uint64_t bound_uj, uncovered_us;
} place;

/* Precondition: oldest knot <= t_us <= newest knot. */
static place locate(const pl_integrator *e, uint64_t t_us) {
    uint32_t low = 0, high = e->count - 1; /* the first knot at or after t_us is in [low, high] */
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (knot(e, middle)->t_us >= t_us) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    const pl_knot *b = knot(e, low);
    const pl_knot *a = b->t_us == t_us ? b : knot(e, low - 1);
    place p = { a, b, a->energy_uj, a->bound_uj, a->uncovered_us };
    if (a != b) {
        uint64_t dt = t_us - a->t_us, length = b->t_us - a->t_us;
        amount energy = { a->energy_uj, a->energy_part };
        if (b->linear) {
            energy.uj += (int64_t)scaled((uint64_t)(b->energy_uj - a->energy_uj), dt, length);
        } else {
            add_course(&energy, b->begin_uw, b->end_uw, dt, length);
        }
        p.energy_uj = energy.uj;
        p.bound_uj += scaled(b->bound_uj - a->bound_uj, dt, length);
        p.uncovered_us += b->uncovered_us > a->uncovered_us ? dt : 0;
    }
    return p;
}

/* What lies between the readings around an edge may have flowed on either side of it. */
static uint64_t edge_error(const place *p) {
    uint64_t left = distance(p->energy_uj, p->before->energy_uj), right = distance(p->after->energy_uj, p->energy_uj);
    return left > right ? left : right;
}

static uint64_t edges_error(const place *p0, const place *p1) {
    if (p0->before == p1->before && p0->after == p1->after) { /* both between the same two readings */
        uint64_t inside = distance(p1->energy_uj, p0->energy_uj);
        uint64_t whole = distance(p0->after->energy_uj, p0->before->energy_uj);
        uint64_t outside = whole > inside ? whole - inside : 0;
        return inside > outside ? inside : outside;
    }
    return edge_error(p0) + edge_error(p1);
}

int pl_integrator_window(const pl_integrator *e, uint64_t t0_us, uint64_t t1_us, pl_energy *out) {
    if (t1_us < t0_us) {
        return PL_ERR_ARGUMENT;
    }
    if (e->count == 0 || t1_us > newest(e)->t_us) {
        return PL_ERR_NOT_FINAL;
    }
    uint64_t oldest_us = knot(e, 0)->t_us;
    if (t0_us < oldest_us && e->forgotten) {
        return PL_ERR_FORGOTTEN;
    }
    *out = (pl_energy){ .flags = 0 };
    if (t0_us < oldest_us) { /* nothing is covered before the first reading */
        out->flags |= PL_ENERGY_UNKNOWN;
        if (t1_us < oldest_us) {
            return PL_OK;
        }
        t0_us = oldest_us;
    }
    place p0 = locate(e, t0_us), p1 = locate(e, t1_us);
    uint64_t uncovered_us = p1.uncovered_us - p0.uncovered_us;
    out->covered_us = t1_us - t0_us - uncovered_us;
    out->bound_uj = p1.bound_uj - p0.bound_uj;
    out->flags |= uncovered_us > 0 ? PL_ENERGY_GAP : 0u;
    out->flags |= t1_us > t0_us && p1.after->resets != p0.before->resets ? PL_ENERGY_RESET : 0u;
    if (!(out->flags & PL_ENERGY_UNKNOWN)) {
        out->energy_uj = p1.energy_uj - p0.energy_uj;
        out->edge_uj = edges_error(&p0, &p1);
    }
    return PL_OK;
}
