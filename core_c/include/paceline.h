/* SPDX-License-Identifier: Apache-2.0 */
/* libpaceline: who gets how many samples, which ones, and what that cost in joules. C11, freestanding.
 *
 * The caller owns all memory: state is a struct, what grows with the fleet is an array whose length the comment gives,
 * and it must stay where it is while the state is in use. No call allocates, reads a clock, does I/O or keeps a global,
 * so calls on different states may run at once; calls on one state may not.
 * The same input gives the same output, bit for bit, on every machine: integers where they do, else doubles with
 * + - * / and comparisons only. Build with the flags of core_c/flags.txt, or a fused a*b+c breaks that promise.
 * A zeroed config struct is valid and means the defaults.
 * Units are suffixes: _us microseconds, _uw microwatts, _uj microjoules, _j joules. Instants are microseconds on any one
 * monotonic clock.
 */
#ifndef PACELINE_H
#define PACELINE_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* clang-format off */ /* laid out by hand, so that comments rhyme */
/* cffi: begin */

/* Status ---------------------------------------------------------------------------------------------------------- */

/* What a call returns. A call that fails has changed nothing. */
enum pl_status {
    PL_OK = 0,
    PL_ERR_ARGUMENT = -1,   /* a count, index, pointer or setting outside its contract */
    PL_ERR_REPORT = -2,     /* no measurement: seconds not finite and above 0, or a waiting time or joule below 0 */
    PL_ERR_LIMITS = -3,     /* a minimum above its capacity */
    PL_ERR_MINIMA = -4,     /* the budget is below the sum of the minima */
    PL_ERR_CAPACITY = -5,   /* the budget is above the sum of the capacities */
    PL_ERR_ROOM = -6,       /* the caller's array is full or too small */
    PL_ERR_STATE = -7,      /* saved bytes that are damaged, cut short, or of another version */
    PL_ERR_ORDER = -8,      /* a reading that is not after the last one, or further ahead than PL_SPAN_MAX_US */
    PL_ERR_KIND = -9,       /* an integrator is fed with one kind of reading only */
    PL_ERR_NOT_FINAL = -10, /* no reading at or after the window's end yet: ask again */
    PL_ERR_FORGOTTEN = -11, /* the window begins before the oldest knot that is still kept */
    PL_ERR_TOTAL = -12,     /* the pools sum to more than UINT32_MAX */
    PL_ERR_STEPS = -13,     /* a share is too small for so many steps */
    PL_ERR_EMPTY = -14,     /* fewer samples are left than are asked for */
    PL_ERR_REACH = -20      /* a limit that no plan keeps; the nearest one that can be kept is told */
};

/* Random words ---------------------------------------------------------------------------------------------------- */

/* Philox4x32-10. key = (low, high half of the seed), counter = (block, step, epoch, purpose); the words x0..x3 of block
 * 0, 1, ... are given out in that order. A stream is named by (seed, purpose, epoch, step), so what one step consumes
 * never shifts the next. 2^34 words a stream. */
enum pl_purpose {
    PL_PURPOSE_PERMUTATION = 1, /* order of the samples of an epoch; step 0 */
    PL_PURPOSE_SAMPLER = 2,     /* draws of a step; PL_PURPOSE_SAMPLER + 256 * r for its r-th redraw */
    PL_PURPOSE_LOCAL = 3,          /* a client's own order of its own samples; the client stands where the step does */
    PL_PURPOSE_HYPERGEOMETRIC = 4, /* pl_engine_draw_by_client; + 256 * r likewise */
    PL_PURPOSE_PARTITION = 16,     /* who holds which sample: epoch is the try, step the class or the purpose within */
    PL_PURPOSE_AUGMENT = 17        /* one sample's crop and flip: step is the sample */
};

typedef struct pl_rng {
    uint32_t key[2];
    uint32_t counter[4]; /* of the next block */
    uint32_t word[4];    /* the present block ... */
    uint32_t used;       /* ... and how many of its words are gone, 0 to 4 */
} pl_rng;

/* One block of the generator: out = Philox4x32-10 of counter under key. */
void pl_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);

/* Begin the stream (seed, purpose, epoch, step). */
void pl_rng_start(pl_rng *rng, uint64_t seed, uint32_t purpose, uint32_t epoch, uint32_t step);

/* The next word of the stream. */
uint32_t pl_rng_word(pl_rng *rng);

/* An unbiased integer in [0, n), n >= 1: the high half of word * n; a word whose low half is below 2^32 mod n is
 * skipped. n = 0 gives 0 and takes no word. */
uint32_t pl_rng_below(pl_rng *rng, uint32_t n);

/* Local draw ------------------------------------------------------------------------------------------------------ */

/* Which of its own n samples a client takes when the schedule asks it for some: the next ones of a random order of its
 * own, made as far as it is needed (place i changes with i + pl_rng_below(n - i)), so that a draw takes constant time and
 * no memory but the index. The order is that of (seed, epoch, client) however many are drawn at a time. To resume, make
 * it anew and draw `given` into NULL. */
typedef struct pl_local {
    uint32_t *index; /* the caller's, 4 bytes a sample */
    uint32_t n;
    uint32_t given;   /* drawn and not given back */
    uint32_t settled; /* places of the order that are made, >= given */
    pl_rng rng;
} pl_local;

/* index[n] */
void pl_local_init(pl_local *l, uint64_t seed, uint32_t epoch, uint32_t client, uint32_t n, uint32_t index[]);

/* The next `count` of the order; out may be NULL. PL_ERR_EMPTY: fewer are left, and none are drawn. */
int pl_local_draw(pl_local *l, uint32_t count, uint32_t out[]);

/* The last `count` were not used, their step is void: they will be drawn again. */
int pl_local_give_back(pl_local *l, uint32_t count);

/* Permutation ----------------------------------------------------------------------------------------------------- */

/* Fill out[0..n-1] with the permutation of 0..n-1 that (seed, epoch) names: from the identity, for i = n-1 down to 1,
 * swap places i and pl_rng_below(i + 1), stream (seed, PL_PURPOSE_PERMUTATION, epoch, step 0). */
void pl_permutation(uint64_t seed, uint32_t epoch, uint32_t n, uint32_t out[]);

/* Allocation ------------------------------------------------------------------------------------------------------ */

#define PL_NO_CAPACITY 0xFFFFFFFFu /* a capacity: as many as there are */
#define PL_NO_MINIMUM 0xFFFFFFFFu  /* pl_controller_config.minimum: none; everywhere else a minimum of 0 is just 0 */

/* Scratch of an allocation, one a participant; the content means nothing between calls. */
typedef struct pl_seat {
    double key;
    double cost;
    uint32_t index;
    uint32_t minimum;
    uint32_t capacity;
    uint32_t share;
    uint32_t open;
} pl_seat;

/* Split `budget` samples over n participants: shares[i] = clamp(lambda / costs[i], minimum[i], capacity[i]) with the
 * lambda that makes the sum exactly budget, in whole samples by largest remainder among the unclamped (ties: the lower
 * index). Permuted participants get permuted shares, ties apart.
 * costs: each within [1e-100, 1e100], in any unit. minimum, capacity: NULL means 1 and PL_NO_CAPACITY for all.
 * seats: scratch of n. missing: set with PL_ERR_MINIMA and PL_ERR_CAPACITY to the samples that the budget is short of,
 * or that find no place; may be NULL. n = 0 with budget = 0 is fine, else it is PL_ERR_CAPACITY. */
int pl_allocate(uint32_t n, const double costs[], uint32_t budget, const uint32_t minimum[], const uint32_t capacity[],
                pl_seat seats[], uint32_t shares[], uint64_t *missing);

/* Controller ------------------------------------------------------------------------------------------------------ */

#define PL_ENERGY_PATIENCE 5 /* rounds for which an old energy estimate stands in for a missing one */
#define PL_WILD_FACTOR 100   /* a report this many times off its board's estimate, either way, is held back once ... */
#define PL_CONFIRM_FACTOR 2  /* ... and believed when the next one lies within this factor of it */
#define PL_LAG_FACTOR 3      /* a report off by so many dead-bands: the estimates lag behind, no dead-band */
#define PL_STEP_PERCENT 15   /* two in a row off by so much or more, yet closer to each other: a step */

/* How costs are formed and when shares move. Zero is the default in every field. */
typedef struct pl_controller_config {
    double w_energy;   /* weight of relative joules per sample, >= 0; 0: time only */
    double w_time;     /* weight of relative seconds per sample; 0: 1 - w_energy; negative: none */
    double ema;        /* share of a new report in the estimate, in (0, 1]; 0: 0.5 */
    double deadband;   /* predicted relative gain up to which the shares stay; 0: 0.05; negative: none */
    uint32_t minimum;  /* samples everybody gets; 0: 1; PL_NO_MINIMUM: none */
    uint32_t capacity; /* samples nobody exceeds; 0: PL_NO_CAPACITY */
} pl_controller_config;

/* What a participant measured of one contribution. Only compute belongs into seconds and energy_j, never waiting. */
typedef struct pl_report {
    double seconds;       /* of the compute window, > 0 */
    double energy_j;      /* gross joules of that window; not finite or not above 0: unknown (never 0) */
    double fixed_seconds; /* the part of seconds that does not depend on samples, where timed apart; 0: not timed */
    double wait_seconds;  /* at the barrier, apart from seconds, >= 0 */
    double wait_energy_j; /* joules of wait_seconds, >= 0; 0: unknown */
    uint32_t samples;     /* 0: the report is looked at no further and changes nothing */
} pl_report;

/* State of a participant; read it, change it through the calls below. */
typedef struct pl_participant {
    double seconds_per_sample;  /* smoothed; 0: never reported */
    double energy_per_sample_j; /* smoothed; 0: never known */
    double far_seconds;         /* the last seconds per sample, where off by PL_STEP_PERCENT, or held back; else 0 */
    double far_energy_j;        /* likewise joules per sample */
    double fixed_seconds;       /* smoothed; 0: never timed */
    double wait_seconds;        /* sum over the reports whose waiting joules were known ... */
    double wait_energy_j;       /* ... and those joules: watts at the barrier are their ratio */
    double cost;                /* as last computed */
    uint32_t group;
    uint32_t minimum;
    uint32_t capacity;
    uint32_t share;         /* of the last allocation */
    uint32_t missed_rounds; /* rounds in a row that were reported without a known energy */
    uint32_t flags;         /* enum pl_flag, as the core needs them; for reading use pl_controller_flags */
} pl_participant;

enum pl_flag {
    PL_FLAG_PRESENT = 1,        /* takes part */
    PL_FLAG_REPORTED = 2,       /* has an estimate of its own; without it the median cost of its group stands in */
    PL_FLAG_ENERGY_HELD = 4,    /* the last energy is missing, an estimate of at most five rounds stands in */
    PL_FLAG_ENERGY_UNKNOWN = 8, /* no energy, so the energy term equals the time term */
    PL_FLAG_REPORT_HELD = 16,   /* the last report was too wild to believe without a second one */
    PL_FLAG_NEW_REPORT = 256,   /* inside: believed since the last allocation */
    PL_FLAG_NEW_ENERGY = 512,   /* inside: with a known energy */
    PL_FLAG_LAGS = 1024         /* inside: off its estimate by PL_LAG_FACTOR dead-bands or more */
};

/* A group (silo): a budget of its own, of which nothing crosses to another group. */
typedef struct pl_group {
    uint32_t budget;
    uint32_t lapsed;  /* samples of the last allocation that nobody was there to take */
    uint32_t settled; /* 0: members, budget or limits changed since the last allocation, so no dead-band */
} pl_group;

typedef struct pl_controller {
    pl_controller_config config; /* with the defaults filled in */
    pl_participant *participants;
    pl_group *groups;
    pl_seat *seats;
    uint32_t n;
    uint32_t room;
    uint32_t n_groups;
} pl_controller;

/* Make a controller over participants[n], all present and never reported, and groups[n_groups].
 * room >= n: length of participants and of the scratch seats. group_of[n]: NULL puts all into group 0.
 * budget[n_groups]: samples a round of each group. */
int pl_controller_init(pl_controller *c, const pl_controller_config *config, uint32_t n, const uint32_t group_of[],
                       uint32_t n_groups, const uint32_t budget[], uint32_t room, pl_participant participants[],
                       pl_seat seats[], pl_group groups[]);

/* Add a participant to a group, as index c->n. PL_ERR_ROOM: copy both arrays to longer ones and set the three fields. */
int pl_controller_add(pl_controller *c, uint32_t group);

/* Give participant i limits of its own, taken literally: minimum 0 is none, capacity 0 is nothing. */
int pl_controller_limit(pl_controller *c, uint32_t i, uint32_t minimum, uint32_t capacity);

/* Change a group's samples a round. */
int pl_controller_budget(pl_controller *c, uint32_t group, uint32_t budget);

/* Take a report of participant i, present or not; several a round are fine. PL_ERR_REPORT changes nothing.
 * Estimates are smoothed (ema), but for the second value in a row that is off by PL_STEP_PERCENT or more: where the two
 * are closer to each other than that, something has changed, and their mean is the estimate from then on. */
int pl_controller_observe(pl_controller *c, uint32_t i, const pl_report *report);

/* Take i out of its group, or bring it back with the estimates it had. */
int pl_controller_remove(pl_controller *c, uint32_t i);
int pl_controller_restore(pl_controller *c, uint32_t i);

/* costs[n] by present estimates: w_time * tau / median(tau) + w_energy * eps / median(eps), medians over the present
 * of the group with a known value (even count: mean of the middle two), kept within [1e-30, 1e30]. Nobody of the group
 * reported: 1. Not reported: the median cost of those who did. */
void pl_controller_costs(pl_controller *c, double costs[]);

/* End the round: write shares[n] (0 for the absent), which sum to each group's budget; a group with nobody present lets
 * its budget lapse. A group keeps the shares it has unless the largest cost * share of the new plan is smaller by more
 * than the dead-band. There is none in a round in which somebody's report was off its estimate by PL_LAG_FACTOR
 * dead-bands or more: smoothed estimates know only a part of such a step, and the foretold gain is too small.
 * PL_ERR_MINIMA, PL_ERR_CAPACITY: as pl_allocate, *at is the group; both pointers may be NULL. */
int pl_controller_allocate(pl_controller *c, uint32_t shares[], uint64_t *missing, uint32_t *at);

/* The flags of participant i that are not marked "inside"; 0 when there is no such participant. */
uint32_t pl_controller_flags(const pl_controller *c, uint32_t i);

/* Write the state as bytes that mean the same on every machine. pl_controller_size: how many.
 * pl_controller_shape: n and n_groups of such bytes, so that the arrays for pl_controller_load can be made
 * (room = n or more). */
uint64_t pl_controller_size(const pl_controller *c);
int pl_controller_save(const pl_controller *c, uint8_t out[], uint64_t size);
int pl_controller_shape(const uint8_t in[], uint64_t size, uint32_t *n, uint32_t *n_groups);
int pl_controller_load(pl_controller *c, const uint8_t in[], uint64_t size, uint32_t room,
                       pl_participant participants[], pl_seat seats[], pl_group groups[]);

/* Frontier -------------------------------------------------------------------------------------------------------- */

/* What a synchronised round costs, as a model: board i takes t_i = fixed_seconds + seconds_per_sample * n_i, the round
 * T = max t_i, and E = sum of fixed_j + energy_per_sample_j * n_i + wait_w * (T - t_i) joules. A board without samples
 * pays its fixed part too. Unknown waiting watts are the caller's to guess; 0 would reward waiting. */
typedef struct pl_pace {
    double fixed_seconds;       /* >= 0 */
    double seconds_per_sample;  /* within [1e-100, 1e100] */
    double fixed_j;             /* joules of the fixed seconds, >= 0 */
    double energy_per_sample_j; /* while computing, >= 0 */
    double wait_w;              /* watts at the barrier, >= 0 */
    double spared_w;            /* of those, what is saved from its group's end to the round's; 0: all wait for all */
    uint32_t minimum;
    uint32_t capacity;
    uint32_t group;
} pl_pace;

enum pl_goal_kind {
    PL_GOAL_TIME = 0,     /* least T; of all such plans the one of least E */
    PL_GOAL_ENERGY = 1,   /* least E */
    PL_GOAL_EDP = 2,      /* least E * T */
    PL_GOAL_DEADLINE = 3, /* least E with T <= limit, in seconds ... */
    PL_GOAL_FACTOR = 4,   /* ... or in units of the least T in whole samples, >= 1 */
    PL_GOAL_BUDGET = 5    /* least T with E <= limit, in joules */
};

typedef struct pl_goal {
    double limit;
    uint32_t kind; /* enum pl_goal_kind */
} pl_goal;

/* Scratch, and, once a plan is made, the curve: (T, least E at that T). */
typedef struct pl_corner {
    double seconds;
    double joules;
} pl_corner;

/* Scratch, one a board. */
typedef struct pl_lane {
    double marginal_j;
    double fixed_seconds;
    double seconds_per_sample;
    uint32_t least;
    uint32_t room;
    uint32_t index;
} pl_lane;

/* Scratch, one a group. */
typedef struct pl_lot {
    uint64_t least;
    uint64_t most;
    double low;
    double rate;
    double slack;
    double inside_w;
    double t_min;
    double t_alone;
    double t_whole;
    double end;
    double joules;
    double chosen;
    uint32_t rest;
    uint32_t start;
    uint32_t n;
} pl_lot;

typedef struct pl_frontier {
    double seconds;       /* T and ... */
    double energy_j;      /* ... E of the plan in whole samples */
    double real_seconds;  /* the optimum in real samples, which no whole plan beats; the plan's distance to it is ... */
    double real_j;
    double slack_j;       /* ... at most this in joules (PL_GOAL_ENERGY) */
    double least_seconds; /* the least T in whole samples */
    double least_j;       /* the least E in real samples */
    double nearest;       /* with PL_ERR_REACH: the limit next to the one asked for that can be kept */
    uint64_t missing;     /* with PL_ERR_MINIMA and PL_ERR_CAPACITY: samples, as in pl_allocate */
    uint32_t at;          /* the board (PL_ERR_ARGUMENT, PL_ERR_LIMITS) or the group concerned; else the latest group */
    uint32_t n_corners;   /* of the curve, from least E to least T; E is linear in between */
} pl_frontier;

/* The plan that serves a goal best by the model: exact in real samples, in O(n log n). In whole ones it is the best of
 * all up to 2,048 boards, unless joules (with PL_GOAL_EDP: joules times seconds) hardly depend on when the round ends, so
 * that very many makespans (about 2^15 / n) might be better; then, and with more boards, the best of some makespans around the real optimum. It is never longer and
 * dearer than what the caller's times[n_times] (makespans of other plans) lead to. Sums are budget[n_groups], limits are
 * kept, so is the goal's.
 * Scratch: lanes[n], lots[n_groups], corners[4 n + 2 n_groups], whose first n_corners are the curve afterwards. */
int pl_frontier_plan(const pl_goal *goal, uint32_t n, const pl_pace paces[], uint32_t n_groups,
                     const uint32_t budget[], uint32_t n_times, const double times[], pl_lane lanes[], pl_lot lots[],
                     pl_corner corners[], uint32_t shares[], pl_frontier *out);

/* Fixed seconds and pace of a board that only tells how long it took, by a recursive fit that leans towards pace alone.
 * Zeroed: nothing known. Time the fixed part apart where that can be done; nothing need be inferred then. */
typedef struct pl_fit {
    double fixed_seconds;      /* the affine model */
    double seconds_per_sample;
    double proportional;       /* seconds per sample of the other model: smoothed seconds / samples */
    double error_affine;       /* smoothed squares of the relative errors with which each foretold the next report */
    double error_proportional;
    double var_fixed;
    double covariance;
    double var_pace;
    double typical_samples;
    uint32_t reports;
} pl_fit;

/* Take a report. PL_ERR_REPORT: no samples, or seconds out of range; nothing has changed. */
int pl_fit_observe(pl_fit *f, double seconds, uint32_t samples);

/* Whether the affine model foretells clearly better (an error below 0.8 of the other's). */
bool pl_fit_is_affine(const pl_fit *f);

/* Sampler --------------------------------------------------------------------------------------------------------- */

/* K pools of samples; a step draws from all of them without replacement, each client with probability (what it has
 * left) / (what all have left), so a step's counts are exactly multivariate hypergeometric and an epoch uses each sample
 * once. Draw i of a step takes r = pl_rng_below(total - i) of the stream (seed, PL_PURPOSE_SAMPLER + 256 * redraw,
 * epoch, step); the client is the one in whose cumulative range r falls, clients by index, and its pool falls by one at
 * once. So every data structure gives the same schedule. */
typedef struct pl_sampler {
    uint32_t *tree; /* Fenwick tree of what is left; the caller's, 4 bytes a client */
    uint32_t n;
    uint32_t room;  /* length of tree */
    uint32_t total; /* what is left in all */
    uint64_t seed;
    uint32_t epoch;
    uint32_t step;   /* the next to be drawn, or the one drawn and not yet committed */
    uint32_t redraw; /* how often this step has been void, below 2^24 */
} pl_sampler;

/* Make a sampler over pools of counts[n], at step 0 of the epoch. tree[room], room >= n >= 0. */
int pl_sampler_init(pl_sampler *s, uint64_t seed, uint32_t epoch, uint32_t n, const uint32_t counts[], uint32_t room,
                    uint32_t tree[]);

/* Draw the step's samples: n_ids clients in increasing order with how many of each. ids and counts have room for `batch`.
 * Fewer than batch are drawn only where fewer are left. The step is not over: commit it, or give it back. */
void pl_sampler_draw(pl_sampler *s, uint32_t batch, uint32_t ids[], uint32_t counts[], uint32_t *n_ids);

/* The step is done: on to the next one. */
void pl_sampler_commit(pl_sampler *s);

/* The step is void: its draws (as they came from pl_sampler_draw) go back, and it will be drawn anew with other words;
 * the same words would favour the clients that are still there. */
int pl_sampler_void(pl_sampler *s, uint32_t n_ids, const uint32_t ids[], const uint32_t counts[]);

/* Draw and commit `steps` steps without telling what came. */
void pl_sampler_skip(pl_sampler *s, uint32_t steps, uint32_t batch);

/* What client k has left; 0 where there is no such client. pl_sampler_counts: counts[n] of all, in O(n). */
uint32_t pl_sampler_count(const pl_sampler *s, uint32_t k);
void pl_sampler_counts(const pl_sampler *s, uint32_t counts[]);

/* Let client k have `count` left, in O(log n): 0 removes it, and what it had before brings it back. */
int pl_sampler_set_count(pl_sampler *s, uint32_t k, uint32_t count);

/* Add a client with `count` samples, as index s->n. PL_ERR_ROOM: copy the tree to a longer one and set both fields. */
int pl_sampler_add(pl_sampler *s, uint32_t count);

/* Write the state as bytes that mean the same on every machine; a drawn step must be committed or void before.
 * pl_sampler_size: how many. pl_sampler_shape: n of such bytes. */
uint64_t pl_sampler_size(const pl_sampler *s);
int pl_sampler_save(const pl_sampler *s, uint8_t out[], uint64_t size);
int pl_sampler_shape(const uint8_t in[], uint64_t size, uint32_t *n);
int pl_sampler_load(pl_sampler *s, const uint8_t in[], uint64_t size, uint32_t room, uint32_t tree[]);

/* Engine ---------------------------------------------------------------------------------------------------------- */

/* The same sampler for a server: the same schedule and the same saved bytes from a tree with 16 sums to a line, through
 * which a chunk of draws goes level by level (which client a draw takes depends at each level on earlier draws at that
 * level only), with the vector instructions that are there. 4.27 bytes a client. Its sources, pl_engine*.c, are no part
 * of the core that a microcontroller links in: bare-metal builds leave them out and use pl_sampler. */
enum pl_simd {
    PL_SIMD_BEST = 0,     /* what this machine has; never in pl_engine.simd */
    PL_SIMD_PORTABLE = 1, /* C alone */
    PL_SIMD_SSE2 = 2,
    PL_SIMD_AVX2 = 3,
    PL_SIMD_AVX512 = 4,   /* F, VL, DQ and BW */
    PL_SIMD_NEON = 5
};

typedef struct pl_engine {
    pl_sampler at;   /* place in the schedule, clients, room, total, as there; its tree is not used */
    uint32_t *lines; /* in the caller's memory, at a multiple of 64 bytes */
    uint32_t first[8];
    uint32_t n_lines[8];
    uint32_t top;  /* the level of the root */
    uint32_t simd; /* enum pl_simd; the result does not depend on it */
} pl_engine;

/* Whether this machine and this build have such instructions; 10 us and more on x86, so ask once. */
bool pl_engine_has(uint32_t simd);

/* How many words of memory an engine of room for so many clients takes: 4.27 bytes a client and 64. */
uint64_t pl_engine_words(uint32_t room);

/* As pl_sampler_init. memory[pl_engine_words(room)]. simd: PL_SIMD_BEST, or one of which pl_engine_has said yes; it is not
 * asked again. PL_ERR_ARGUMENT: this build knows no such instructions. */
int pl_engine_init(pl_engine *e, uint32_t simd, uint64_t seed, uint32_t epoch, uint32_t n, const uint32_t counts[],
                   uint32_t room, uint32_t memory[]);

/* Go on in other memory, for more clients or fewer places. */
int pl_engine_move(pl_engine *e, uint32_t room, uint32_t memory[]);

/* These are what their namesakes of pl_sampler are. Scratch is on the stack: 21 KiB at most. */
void pl_engine_draw(pl_engine *e, uint32_t batch, uint32_t ids[], uint32_t counts[], uint32_t *n_ids);
void pl_engine_commit(pl_engine *e);
int pl_engine_void(pl_engine *e, uint32_t n_ids, const uint32_t ids[], const uint32_t counts[]);
void pl_engine_skip(pl_engine *e, uint32_t steps, uint32_t batch);
uint32_t pl_engine_count(const pl_engine *e, uint32_t k);
void pl_engine_counts(const pl_engine *e, uint32_t counts[]);
int pl_engine_set_count(pl_engine *e, uint32_t k, uint32_t count);
int pl_engine_add(pl_engine *e, uint32_t count); /* PL_ERR_ROOM: pl_engine_move to more */

/* Draw the step's samples into counts[at.n], 0s included. */
void pl_engine_draw_dense(pl_engine *e, uint32_t batch, uint32_t counts[]);

/* Draw the step by client, not by sample, in about 0.15 us a client whatever the batch; ids and counts have room for at.n.
 * As exact, but words are spent otherwise: NOT the schedule that all other structures draw. It is faster from some 100
 * samples a client and step. */
void pl_engine_draw_by_client(pl_engine *e, uint32_t batch, uint32_t ids[], uint32_t counts[], uint32_t *n_ids);

/* Pairs of a draw -> dense[n]. */
void pl_spread(uint32_t n_ids, const uint32_t ids[], const uint32_t counts[], uint32_t n, uint32_t dense[]);

/* What no sampler of this kind beats: n times a bounded word and an update of one of size cells that waits for none before
 * it. For benchmarks; simd as in pl_engine_init. */
void pl_random_updates(uint32_t simd, uint64_t seed, uint32_t n, uint32_t size, uint32_t cells[]);

/* How many of `sample` draws without replacement from `total` samples hit `good` of them; good, sample <= total. Ratio of
 * uniforms with logarithms of its own: the same on every machine, exact up to the rounding of doubles (1e-9). */
uint32_t pl_hypergeometric(pl_rng *rng, uint32_t good, uint32_t total, uint32_t sample);

/* Draw and commit up to `most` steps, until the pool is empty or less than a batch of the room is left; returns how many.
 * ids[room] and counts[room] take the pairs of step after step, ends[most] how many there are after each. Steps below
 * n_larger draw `batch`, those from there on one less; UINT32_MAX: all draw `batch`, the last one what is left.
 * by_client: as pl_engine_draw_by_client draws, and a step needs room for at.n. */
uint32_t pl_engine_steps(pl_engine *e, uint32_t batch, uint32_t n_larger, bool by_client, uint32_t most, uint64_t room,
                         uint32_t ids[], uint32_t counts[], uint64_t ends[]);

/* The least number of steps of at most `batch` samples, and sizes that differ by at most one: n_larger steps of `larger`,
 * then the rest of one less. A total of 0 takes no step. PL_ERR_ARGUMENT: batch is 0. */
int pl_near_equal(uint32_t total, uint32_t batch, uint32_t *steps, uint32_t *larger, uint32_t *n_larger);

/* pl_sampler_size(&e->at) and pl_sampler_shape tell the sizes; either structure loads what the other saved. */
int pl_engine_save(const pl_engine *e, uint8_t out[], uint64_t size);
int pl_engine_load(pl_engine *e, uint32_t simd, const uint8_t in[], uint64_t size, uint32_t room, uint32_t memory[]);

/* Schedule -------------------------------------------------------------------------------------------------------- */

/* The round's places are numbered rank by rank and place j belongs to step j mod steps. So a rank's batches, and the
 * sums of a step, are each the floor or the ceiling of their mean, and no rank skips a step. */

/* The batch of one rank at one step: `before` is the sum of the shares of the ranks before it. steps > 0. */
uint32_t pl_schedule_batch(uint64_t before, uint32_t share, uint32_t steps, uint32_t step);

/* Write batches[steps * n], the batches of step 0, of step 1, ... shares[n]; minimum: of each batch; 0 is allowed.
 * PL_ERR_STEPS: a share is below steps * minimum; *most is the greatest number of steps the shares allow (may be NULL). */
int pl_schedule(uint32_t n, const uint32_t shares[], uint32_t steps, uint32_t minimum, uint32_t batches[],
                uint32_t *most);

/* Energy ---------------------------------------------------------------------------------------------------------- */

#define PL_GAP_PERIODS 3             /* more than so many periods without a reading are a gap */
#define PL_POWER_MAX_UW 100000000000 /* 100 kW either way; a reading above is PL_ERR_ARGUMENT */
#define PL_SPAN_MAX_US 4398046511104 /* 2^42, 51 days: the longest time between two readings */

/* Point of the cumulative energy E(t), and the course of power on the way to it. The caller owns a ring of them. */
typedef struct pl_knot {
    uint64_t t_us;
    int64_t energy_uj;     /* E(t) since the first knot, rounded down ... */
    uint64_t uncovered_us; /* cumulative: inside gaps */
    uint64_t bound_uj;     /* cumulative: worst case of |true - E|, rounded down ... */
    int64_t begin_uw;      /* power runs from begin_uw, just after the knot before, ... */
    int64_t end_uw;        /* ... straight to end_uw; both unused when `linear` */
    uint32_t energy_part;  /* ... and the rest, in halves of a picojoule, below 2000000 */
    uint32_t bound_part;   /* ... and the rest, likewise */
    uint32_t resets;       /* cumulative: counter resets */
    uint32_t linear;       /* 1: E itself runs straight to this knot (counters) */
} pl_knot;

enum pl_energy_kind { PL_KIND_NONE = 0, PL_KIND_INTERVAL = 1, PL_KIND_POINT = 2, PL_KIND_COUNTER = 3 };

enum pl_energy_flag {
    PL_ENERGY_UNKNOWN = 1, /* the window begins before the first reading: energy_uj says nothing */
    PL_ENERGY_GAP = 2,     /* a part of the window lies in a gap: bridged by interpolation, counted as uncovered */
    PL_ENERGY_RESET = 4    /* a counter began anew in the window: bridged at the rate before, counted as uncovered */
};

typedef struct pl_integrator {
    pl_knot *knots;
    uint32_t n_knots;
    uint32_t first; /* place of the oldest knot */
    uint32_t count;
    uint32_t kind;      /* enum pl_energy_kind */
    uint32_t forgotten; /* 1: knots have been overwritten */
    uint32_t period_us; /* above 0; may be set anew between readings, and counts from the next one on */
    uint64_t modulus_uj;
    uint64_t max_power_uw;
    uint64_t last_count_uj;
    uint64_t last_error_uw;
    int64_t last_uw; /* power at the end of the last reading (counters: its mean) */
    int64_t low_uw;  /* least and greatest power seen: what a gap may hide lies between them */
    int64_t high_uw;
} pl_integrator;

/* The energy of a window, a difference of E: windows that meet add up exactly, microjoule for microjoule. */
typedef struct pl_energy {
    int64_t energy_uj;
    uint64_t covered_us; /* of the window's length, what lies in no gap */
    uint64_t bound_uj;   /* worst case of the instrument (the readings' error_uw) and of the gaps */
    uint64_t edge_uj;    /* what the two edges may add to it where they fall between readings; 0 on readings */
    uint32_t flags;      /* enum pl_energy_flag */
} pl_energy;

/* Make an integrator over knots[n_knots], n_knots >= 4; an interval that does not follow at once takes two knots, any
 * other reading one. period_us > 0: the time between readings, as intended.
 * modulus_uj: counters wrap there (the count after modulus_uj - 1 is 0); 0: unknown, so going back is a reset.
 * max_power_uw: a counter that ran faster has been reset or misread; 0: PL_POWER_MAX_UW. */
int pl_integrator_init(pl_integrator *e, uint32_t period_us, uint64_t modulus_uj, uint64_t max_power_uw,
                       uint32_t n_knots, pl_knot knots[]);

/* Mean power over [t0_us, t1_us], from a converter that averages. The part before the last reading's end is left out;
 * nothing left: PL_ERR_ORDER. error_uw: worst case of the instrument at this reading. */
int pl_integrator_interval(pl_integrator *e, uint64_t t0_us, uint64_t t1_us, int64_t power_uw, uint64_t error_uw);

/* Power at an instant; between two of them power runs straight (trapezoid). */
int pl_integrator_point(pl_integrator *e, uint64_t t_us, int64_t power_uw, uint64_t error_uw);

/* A counter of microjoules at an instant. The first one, and one after a reset, is a base and adds nothing. */
int pl_integrator_counter(pl_integrator *e, uint64_t t_us, uint64_t count_uj);

/* Energy from t0_us to t1_us >= t0_us. PL_ERR_NOT_FINAL: no reading at or after t1_us yet. PL_ERR_FORGOTTEN: knots
 * around t0_us are overwritten. What it says once about a window it says always. */
int pl_integrator_window(const pl_integrator *e, uint64_t t0_us, uint64_t t1_us, pl_energy *out);

/* Sensors --------------------------------------------------------------------------------------------------------- */

/* Two registers of an INA219 (TI SBOS448G) or of a channel of an INA3221 (SBOS576B), as the two bytes of each that come
 * over the wire, high byte first -> integers. Current and power are those of shunt and bus voltage, by way of no
 * calibration, rounded towards zero; both are negative when the current flows backwards. */
enum pl_rail_flag {
    PL_RAIL_READY = 1,    /* INA219, CNVR: a conversion has ended since register 03 was read */
    PL_RAIL_OVERFLOW = 2, /* INA219, OVF: the chip's own arithmetic overflowed, its registers 03 and 04 are void */
    PL_RAIL_SATURATED = 4 /* shunt or bus at the end of its range: there may be more than is told */
};

typedef struct pl_rail {
    int64_t current_ua;
    int64_t power_uw; /* at the load's side of the shunt, where the bus voltage is taken */
    int32_t shunt_uv;
    int32_t bus_mv;
    uint32_t flags; /* enum pl_rail_flag */
} pl_rail;

/* config: what stands in register 00; shunt, bus: registers 01 and 02. shunt_uohm > 0. */
int pl_ina219(uint32_t config, const uint8_t shunt[2], const uint8_t bus[2], uint32_t shunt_uohm, pl_rail *out);

/* shunt, bus: registers 2 k - 1 and 2 k of channel k. shunt_uohm > 0. */
int pl_ina3221(const uint8_t shunt[2], const uint8_t bus[2], uint32_t shunt_uohm, pl_rail *out);

/* Sums ------------------------------------------------------------------------------------------------------------ */

/* Models are n float32 in this machine's byte order, at any address; sums are doubles. Each item is worked out in
 * double by itself, operation by operation as written, so the bits are the same on every machine. */

/* sums[i] += weight * values[i] */
void pl_sums_add(uint64_t n, double weight, const uint8_t values[], double sums[]);

/* Sum of (values[i] - base[i])^2, in sixteen lanes (i mod 16) that are then added up by halves; it is finite if and
 * only if all values are (and the base). */
double pl_sums_distance(uint64_t n, const uint8_t values[], const uint8_t base[]);

/* out[i] = (1 - weight) * model[i] + weight * update[i], rounded once. out may be model or update. */
void pl_sums_mix(uint64_t n, double weight, const uint8_t model[], const uint8_t update[], uint8_t out[]);

/* cffi: end */
/* clang-format on */

#ifdef __cplusplus
}
#endif

#endif
