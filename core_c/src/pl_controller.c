/* SPDX-License-Identifier: Apache-2.0 */
#include "pl_internal.h"

/* Controller ------------------------------------------------------------------------------------------------------ */

static const double COST_MIN = 1e-30,
                    COST_MAX = 1e30; /* one mad ratio must not make the others' shares vanish in sums */
static const double STEP = 1.0 + PL_STEP_PERCENT / 100.0;

/* The config with its defaults filled in, or false where a field is outside its range. */
static bool fill_in(pl_controller_config *to, const pl_controller_config *from) {
    *to = *from;
    if (to->w_time == 0.0) {
        to->w_time = 1.0 - to->w_energy;
    } else if (to->w_time < 0.0) {
        to->w_time = 0.0;
    }
    if (to->ema == 0.0) {
        to->ema = 0.5;
    }
    if (to->deadband == 0.0) {
        to->deadband = 0.05;
    } else if (to->deadband < 0.0) {
        to->deadband = -1.0;
    }
    to->minimum = to->minimum == 0 ? 1 : to->minimum == PL_NO_MINIMUM ? 0 : to->minimum;
    to->capacity = to->capacity == 0 ? PL_NO_CAPACITY : to->capacity;
    return pl_is_amount(to->w_energy) && pl_is_amount(to->w_time) && pl_is_positive(to->w_energy + to->w_time) &&
           pl_is_positive(to->ema) && to->ema <= 1.0 && (to->deadband == -1.0 || pl_is_positive(to->deadband));
}

static bool is_present(const pl_participant *p) {
    return (p->flags & PL_FLAG_PRESENT) != 0;
}

/* Rounds in a row without a known energy, the round that is not ended yet included. */
static uint32_t rounds_missed(const pl_participant *p) {
    if (p->flags & PL_FLAG_NEW_ENERGY) {
        return 0;
    }
    return p->missed_rounds + ((p->flags & PL_FLAG_NEW_REPORT) && p->missed_rounds < UINT32_MAX ? 1u : 0u);
}

static bool knows_energy(const pl_participant *p) {
    return p->energy_per_sample_j > 0.0 && rounds_missed(p) <= PL_ENERGY_PATIENCE;
}

int pl_controller_init(pl_controller *c, const pl_controller_config *config, uint32_t n, const uint32_t group_of[],
                       uint32_t n_groups, const uint32_t budget[], uint32_t room, pl_participant participants[],
                       pl_seat seats[], pl_group groups[]) {
    pl_controller_config filled;
    if (!fill_in(&filled, config) || n_groups == 0 || room < n) {
        return PL_ERR_ARGUMENT;
    }
    for (uint32_t i = 0; group_of && i < n; i++) {
        if (group_of[i] >= n_groups) {
            return PL_ERR_ARGUMENT;
        }
    }
    if (filled.minimum > filled.capacity) {
        return PL_ERR_LIMITS;
    }
    c->config = filled;
    c->participants = participants;
    c->seats = seats;
    c->groups = groups;
    c->n = 0;
    c->room = room;
    c->n_groups = n_groups;
    for (uint32_t g = 0; g < n_groups; g++) {
        groups[g] = (pl_group){ .budget = budget[g] };
    }
    for (uint32_t i = 0; i < n; i++) {
        pl_controller_add(c, group_of ? group_of[i] : 0);
    }
    return PL_OK;
}

int pl_controller_add(pl_controller *c, uint32_t group) {
    if (group >= c->n_groups) {
        return PL_ERR_ARGUMENT;
    }
    if (c->n == c->room) {
        return PL_ERR_ROOM;
    }
    c->participants[c->n++] = (pl_participant){
        .group = group,
        .minimum = c->config.minimum,
        .capacity = c->config.capacity,
        .flags = PL_FLAG_PRESENT,
    };
    c->groups[group].settled = 0;
    return PL_OK;
}

int pl_controller_limit(pl_controller *c, uint32_t i, uint32_t minimum, uint32_t capacity) {
    if (i >= c->n) {
        return PL_ERR_ARGUMENT;
    }
    if (minimum > capacity) {
        return PL_ERR_LIMITS;
    }
    pl_participant *p = &c->participants[i];
    if (p->minimum != minimum || p->capacity != capacity) {
        p->minimum = minimum;
        p->capacity = capacity;
        c->groups[p->group].settled = 0;
    }
    return PL_OK;
}

int pl_controller_budget(pl_controller *c, uint32_t group, uint32_t budget) {
    if (group >= c->n_groups) {
        return PL_ERR_ARGUMENT;
    }
    if (c->groups[group].budget != budget) {
        c->groups[group].budget = budget;
        c->groups[group].settled = 0;
    }
    return PL_OK;
}

static int set_present(pl_controller *c, uint32_t i, bool present) {
    if (i >= c->n) {
        return PL_ERR_ARGUMENT;
    }
    pl_participant *p = &c->participants[i];
    if (is_present(p) != present) {
        p->flags ^= PL_FLAG_PRESENT;
        c->groups[p->group].settled = 0;
    }
    return PL_OK;
}

int pl_controller_remove(pl_controller *c, uint32_t i) {
    return set_present(c, i, false);
}

int pl_controller_restore(pl_controller *c, uint32_t i) {
    return set_present(c, i, true);
}

/* Reports ---- */

static void smooth(double *estimate, double fresh, double ema) {
    *estimate = *estimate > 0.0 ? ema * fresh + (1.0 - ema) * *estimate : fresh;
}

/* Are both known, and one of them `factor` times the other or more? Unknown on either side speaks against neither. */
static bool apart(double a, double b, double factor) {
    return a > 0.0 && b > 0.0 && (a >= factor * b || b >= factor * a);
}

/* Let a value into its estimate: smoothed, or, where it is the second in a row that is far off and both say the same,
 * the mean of the two. *far: the one before, where that was far off; 0: it was not. */
static void follow(double *estimate, double *far, double fresh, double ema) {
    bool off = apart(fresh, *estimate, STEP);
    if (off && *far > 0.0 && !apart(fresh, *far, STEP)) {
        *estimate = fresh * 0.5 + *far * 0.5;
    } else {
        smooth(estimate, fresh, ema);
    }
    *far = off ? fresh : 0.0;
}

/* Let a report into the estimates; energy 0: unknown. */
static void believe(pl_participant *p, const pl_controller_config *config, double seconds, double energy_j) {
    double lag = 1.0 + PL_LAG_FACTOR * config->deadband; /* further off, and the estimate will lag for some rounds */
    if ((config->w_time > 0.0 && apart(seconds, p->seconds_per_sample, lag)) ||
        (config->w_energy > 0.0 && apart(energy_j, p->energy_per_sample_j, lag))) {
        p->flags |= PL_FLAG_LAGS;
    }
    follow(&p->seconds_per_sample, &p->far_seconds, seconds, config->ema);
    p->flags |= PL_FLAG_REPORTED | PL_FLAG_NEW_REPORT;
    if (energy_j > 0.0) {
        follow(&p->energy_per_sample_j, &p->far_energy_j, energy_j, config->ema);
        p->flags |= PL_FLAG_NEW_ENERGY;
    }
}

/* A report that is held back stands where those far off do: once it is known what to make of it, the place is empty. */
static void take(pl_participant *p, const pl_controller_config *config, double seconds, double energy_j) {
    double held_seconds = 0.0, held_energy_j = 0.0;
    if (p->flags & PL_FLAG_REPORT_HELD) {
        held_seconds = p->far_seconds;
        held_energy_j = p->far_energy_j;
        p->far_seconds = 0.0;
        p->far_energy_j = 0.0;
        p->flags &= ~(uint32_t)PL_FLAG_REPORT_HELD;
    }
    if (held_seconds > 0.0 && !apart(seconds, held_seconds, PL_CONFIRM_FACTOR) &&
        !apart(energy_j, held_energy_j, PL_CONFIRM_FACTOR)) {
        believe(p, config, held_seconds,
                energy_j > 0.0 ? held_energy_j : 0.0); /* an energy nobody confirmed stays out */
        believe(p, config, seconds, energy_j);
    } else if (apart(seconds, p->seconds_per_sample, PL_WILD_FACTOR) ||
               apart(energy_j, p->energy_per_sample_j, PL_WILD_FACTOR)) {
        p->far_seconds = seconds;
        p->far_energy_j = energy_j;
        p->flags |= PL_FLAG_REPORT_HELD;
    } else {
        believe(p, config, seconds, energy_j);
    }
}

int pl_controller_observe(pl_controller *c, uint32_t i, const pl_report *report) {
    if (i >= c->n) {
        return PL_ERR_ARGUMENT;
    }
    if (report->samples == 0) {
        return PL_OK;
    }
    double seconds = report->seconds / report->samples;
    double energy_j = report->energy_j / report->samples;
    if (!pl_is_positive(report->seconds) || !pl_is_positive(seconds) || !pl_is_amount(report->fixed_seconds) ||
        !pl_is_amount(report->wait_seconds) || !pl_is_amount(report->wait_energy_j)) {
        return PL_ERR_REPORT;
    }
    pl_participant *p = &c->participants[i];
    take(p, &c->config, seconds, pl_is_positive(energy_j) ? energy_j : 0.0);
    if (report->fixed_seconds > 0.0) {
        smooth(&p->fixed_seconds, report->fixed_seconds, c->config.ema);
    }
    if (report->wait_energy_j > 0.0) {
        p->wait_seconds += report->wait_seconds;
        p->wait_energy_j += report->wait_energy_j;
    }
    return PL_OK;
}

/* Costs ---- */

/* Median of the keys of seats[n], n > 0; even count: mean of the middle two. */
static double median(pl_seat seats[], uint32_t n) {
    uint32_t half = n / 2;
    pl_seats_select(seats, n, half);
    double upper = seats[half].key; /* seats[half..n) are the upper half: its least is the upper middle */
    for (uint32_t i = half + 1; i < n; i++) {
        upper = seats[i].key < upper ? seats[i].key : upper;
    }
    if (n % 2 == 1) {
        return upper;
    }
    double lower = seats[0].key;
    for (uint32_t i = 1; i < half; i++) {
        lower = seats[i].key > lower ? seats[i].key : lower;
    }
    return lower * 0.5 + upper * 0.5; /* halves first: the sum of two large doubles may overflow */
}

enum value { SECONDS, ENERGY, COST };

/* Median of a value over the present of a group that have it; 0 where nobody has. */
static double group_median(pl_controller *c, uint32_t group, enum value what) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->n; i++) {
        const pl_participant *p = &c->participants[i];
        bool known = what == ENERGY ? knows_energy(p) : p->seconds_per_sample > 0.0;
        if (p->group == group && is_present(p) && known) {
            c->seats[n].key = what == SECONDS  ? p->seconds_per_sample
                              : what == ENERGY ? p->energy_per_sample_j
                                               : p->cost;
            c->seats[n].index = i;
            n++;
        }
    }
    return n > 0 ? median(c->seats, n) : 0.0;
}

static double cost_of(const pl_controller *c, const pl_participant *p, double seconds_median, double energy_median) {
    double time = p->seconds_per_sample / seconds_median;
    double energy = knows_energy(p) && energy_median > 0.0 ? p->energy_per_sample_j / energy_median : time;
    double cost = c->config.w_time * time + c->config.w_energy * energy;
    return cost >= COST_MIN ? (cost <= COST_MAX ? cost : COST_MAX) : COST_MIN;
}

static void price(pl_controller *c, uint32_t group) {
    double seconds_median = group_median(c, group, SECONDS);
    double energy_median = group_median(c, group, ENERGY);
    bool silent = false; /* is there somebody for whom the typical cost has to stand in? */
    for (uint32_t i = 0; i < c->n; i++) {
        pl_participant *p = &c->participants[i];
        if (p->group == group) {
            bool known = p->seconds_per_sample > 0.0 && seconds_median > 0.0;
            silent = silent || p->seconds_per_sample == 0.0;
            p->cost = known ? cost_of(c, p, seconds_median, energy_median) : 1.0;
        }
    }
    double typical = silent ? group_median(c, group, COST) : 0.0;
    for (uint32_t i = 0; typical > 0.0 && i < c->n; i++) {
        pl_participant *p = &c->participants[i];
        if (p->group == group && p->seconds_per_sample == 0.0) {
            p->cost = typical;
        }
    }
}

void pl_controller_costs(pl_controller *c, double costs[]) {
    for (uint32_t g = 0; g < c->n_groups; g++) {
        price(c, g);
    }
    for (uint32_t i = 0; i < c->n; i++) {
        costs[i] = c->participants[i].cost;
    }
}

/* The round's end ---- */

/* Do the limits of a group's present allow its budget? */
static int feasible(const pl_controller *c, uint32_t group, uint64_t *missing) {
    uint64_t least = 0, most = 0, budget = c->groups[group].budget;
    bool anybody = false;
    for (uint32_t i = 0; i < c->n; i++) {
        const pl_participant *p = &c->participants[i];
        if (p->group == group && is_present(p)) {
            least += p->minimum;
            most += p->capacity;
            anybody = true;
        }
    }
    if (!anybody || (least <= budget && budget <= most)) {
        return PL_OK;
    }
    *missing = least > budget ? least - budget : budget - most;
    return least > budget ? PL_ERR_MINIMA : PL_ERR_CAPACITY;
}

/* The new plan of a group into its seats; returns how many. */
static uint32_t plan(pl_controller *c, uint32_t group) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->n; i++) {
        const pl_participant *p = &c->participants[i];
        if (p->group == group && is_present(p)) {
            pl_seat *s = &c->seats[n++];
            s->index = i;
            s->cost = p->cost;
            s->minimum = p->minimum;
            s->capacity = p->capacity;
        }
    }
    pl_split(c->seats, n, n > 0 ? c->groups[group].budget : 0);
    return n;
}

/* Is the plan in seats[n] better than the present shares by no more than the dead-band, as far as can be told? */
static bool hardly_better(const pl_controller *c, uint32_t n) {
    double now = 0.0, then = 0.0;
    for (uint32_t k = 0; k < n; k++) {
        const pl_seat *s = &c->seats[k];
        if (c->participants[s->index].flags & PL_FLAG_LAGS) {
            return false;
        }
        double old_span = s->cost * c->participants[s->index].share, new_span = s->cost * s->share;
        now = old_span > now ? old_span : now;
        then = new_span > then ? new_span : then;
    }
    return c->config.deadband > 0.0 && now <= then * (1.0 + c->config.deadband);
}

int pl_controller_allocate(pl_controller *c, uint32_t shares[], uint64_t *missing, uint32_t *at) {
    for (uint32_t g = 0; g < c->n_groups; g++) {
        uint64_t short_of = 0;
        int status = feasible(c, g, &short_of);
        if (status != PL_OK) {
            if (missing) {
                *missing = short_of;
            }
            if (at) {
                *at = g;
            }
            return status;
        }
    }
    for (uint32_t g = 0; g < c->n_groups; g++) {
        pl_group *group = &c->groups[g];
        price(c, g);
        uint32_t n = plan(c, g);
        if (!group->settled || !hardly_better(c, n)) {
            for (uint32_t k = 0; k < n; k++) {
                c->participants[c->seats[k].index].share = c->seats[k].share;
            }
        }
        group->lapsed = n > 0 ? 0 : group->budget;
        group->settled = 1;
    }
    for (uint32_t i = 0; i < c->n; i++) {
        pl_participant *p = &c->participants[i];
        p->missed_rounds = rounds_missed(p);
        p->flags &= ~(uint32_t)(PL_FLAG_NEW_REPORT | PL_FLAG_NEW_ENERGY | PL_FLAG_LAGS);
        p->share = is_present(p) ? p->share : 0;
        shares[i] = p->share;
    }
    return PL_OK;
}

uint32_t pl_controller_flags(const pl_controller *c, uint32_t i) {
    if (i >= c->n) {
        return 0;
    }
    const pl_participant *p = &c->participants[i];
    uint32_t flags = p->flags & (PL_FLAG_PRESENT | PL_FLAG_REPORTED | PL_FLAG_REPORT_HELD);
    if (knows_energy(p) && rounds_missed(p) > 0) {
        flags |= PL_FLAG_ENERGY_HELD;
    }
    if ((flags & PL_FLAG_REPORTED) && !knows_energy(p)) {
        flags |= PL_FLAG_ENERGY_UNKNOWN;
    }
    return flags;
}

/* Saved bytes ---- */

enum {
    MAGIC = 0x314C5043,
    /* "CPL1" */ HEAD_BYTES = 16 + 4 * 8 + 2 * 4,
    GROUP_BYTES = 12,
    PARTICIPANT_BYTES = 7 * 8 + 6 * 4,
    CRC_BYTES = 4
};

static uint64_t size_of(uint64_t n, uint64_t n_groups) {
    return HEAD_BYTES + GROUP_BYTES * n_groups + PARTICIPANT_BYTES * n + CRC_BYTES; /* both below 2^32: no overflow */
}

uint64_t pl_controller_size(const pl_controller *c) {
    return size_of(c->n, c->n_groups);
}

int pl_controller_save(const pl_controller *c, uint8_t out[], uint64_t size) {
    if (size != pl_controller_size(c)) {
        return PL_ERR_ROOM;
    }
    pl_writer w = { out };
    pl_put_u32(&w, MAGIC);
    pl_put_u32(&w, 0);
    pl_put_u32(&w, c->n);
    pl_put_u32(&w, c->n_groups);
    pl_put_f64(&w, c->config.w_energy);
    pl_put_f64(&w, c->config.w_time);
    pl_put_f64(&w, c->config.ema);
    pl_put_f64(&w, c->config.deadband);
    pl_put_u32(&w, c->config.minimum);
    pl_put_u32(&w, c->config.capacity);
    for (uint32_t g = 0; g < c->n_groups; g++) {
        pl_put_u32(&w, c->groups[g].budget);
        pl_put_u32(&w, c->groups[g].lapsed);
        pl_put_u32(&w, c->groups[g].settled);
    }
    for (uint32_t i = 0; i < c->n; i++) {
        const pl_participant *p = &c->participants[i];
        const double reals[] = { p->seconds_per_sample, p->energy_per_sample_j, p->far_seconds,  p->far_energy_j,
                                 p->fixed_seconds,      p->wait_seconds,        p->wait_energy_j };
        const uint32_t words[] = { p->group, p->minimum, p->capacity, p->share, p->missed_rounds, p->flags };
        for (int k = 0; k < 7; k++) {
            pl_put_f64(&w, reals[k]);
        }
        for (int k = 0; k < 6; k++) {
            pl_put_u32(&w, words[k]);
        }
    }
    pl_put_u32(&w, pl_crc32(out, size - CRC_BYTES));
    return PL_OK;
}

int pl_controller_shape(const uint8_t in[], uint64_t size, uint32_t *n, uint32_t *n_groups) {
    if (size < HEAD_BYTES + CRC_BYTES) {
        return PL_ERR_STATE;
    }
    pl_reader head = { in }, tail = { in + size - CRC_BYTES };
    uint32_t magic = pl_get_u32(&head), version = pl_get_u32(&head);
    *n = pl_get_u32(&head);
    *n_groups = pl_get_u32(&head);
    if (magic != MAGIC || version != 0 || *n_groups == 0 || size != size_of(*n, *n_groups) ||
        pl_get_u32(&tail) != pl_crc32(in, size - CRC_BYTES)) {
        return PL_ERR_STATE;
    }
    return PL_OK;
}

static bool read_participant(pl_participant *p, pl_reader *r, uint32_t n_groups) {
    double *reals[] = { &p->seconds_per_sample, &p->energy_per_sample_j, &p->far_seconds,  &p->far_energy_j,
                        &p->fixed_seconds,      &p->wait_seconds,        &p->wait_energy_j };
    uint32_t *words[] = { &p->group, &p->minimum, &p->capacity, &p->share, &p->missed_rounds, &p->flags };
    bool good = true;
    for (int k = 0; k < 7; k++) {
        *reals[k] = pl_get_f64(r);
        good = good && pl_is_amount(*reals[k]);
    }
    for (int k = 0; k < 6; k++) {
        *words[k] = pl_get_u32(r);
    }
    p->cost = 1.0;
    return good && p->group < n_groups && p->minimum <= p->capacity;
}

/* Are the shares of a settled group what an allocation gave? Others would be kept within the dead-band. */
static bool adds_up(const pl_controller *c, uint32_t group) {
    uint64_t sum = 0;
    bool anybody = false;
    for (uint32_t i = 0; i < c->n; i++) {
        const pl_participant *p = &c->participants[i];
        if (p->group == group && is_present(p)) {
            if (p->share < p->minimum || p->share > p->capacity) {
                return false;
            }
            sum += p->share;
            anybody = true;
        }
    }
    return !anybody || sum == c->groups[group].budget;
}

int pl_controller_load(pl_controller *c, const uint8_t in[], uint64_t size, uint32_t room,
                       pl_participant participants[], pl_seat seats[], pl_group groups[]) {
    pl_controller fresh = { .participants = participants, .groups = groups, .seats = seats, .room = room };
    int status = pl_controller_shape(in, size, &fresh.n, &fresh.n_groups);
    if (status != PL_OK || room < fresh.n) {
        return status != PL_OK ? status : PL_ERR_ROOM;
    }
    pl_reader r = { in + 16 };
    fresh.config.w_energy = pl_get_f64(&r);
    fresh.config.w_time = pl_get_f64(&r);
    fresh.config.ema = pl_get_f64(&r);
    fresh.config.deadband = pl_get_f64(&r);
    fresh.config.minimum = pl_get_u32(&r);
    fresh.config.capacity = pl_get_u32(&r);
    bool good = pl_is_amount(fresh.config.w_energy) && pl_is_amount(fresh.config.w_time) &&
                pl_is_positive(fresh.config.w_energy + fresh.config.w_time) && pl_is_positive(fresh.config.ema) &&
                fresh.config.ema <= 1.0;
    for (uint32_t g = 0; g < fresh.n_groups; g++) {
        groups[g].budget = pl_get_u32(&r);
        groups[g].lapsed = pl_get_u32(&r);
        groups[g].settled = pl_get_u32(&r);
    }
    for (uint32_t i = 0; i < fresh.n; i++) {
        good = read_participant(&participants[i], &r, fresh.n_groups) && good;
    }
    for (uint32_t g = 0; g < fresh.n_groups && good; g++) {
        good = !groups[g].settled || adds_up(&fresh, g);
    }
    if (!good) {
        return PL_ERR_STATE;
    }
    *c = fresh;
    return PL_OK;
}
