/* SPDX-License-Identifier: Apache-2.0 */
/* What the sources share and the caller does not see. */
#ifndef PL_INTERNAL_H
#define PL_INTERNAL_H

#include "paceline.h"

#include <stddef.h>

/* The shares of seats[n] (index, cost, minimum, capacity set) that sum to budget, left in .share; the order of the
 * seats changes. The caller has checked that minima and capacities allow the budget. */
void pl_split(pl_seat seats[], uint32_t n, uint32_t budget);

/* The same, by sorting: what defines the shares. */
void pl_split_sorted(pl_seat seats[], uint32_t n, uint32_t budget);

/* The same for n >= PL_WIDE, and as pl_allocate does it, faster; false: it cannot tell, and shares mean nothing.
 * PL_SMALL leaves both out, where code is dearer than time. */
#define PL_WIDE 64
bool pl_split_wide(pl_seat seats[], uint32_t n, uint32_t budget);
bool pl_allocate_wide(uint32_t n, const double costs[], uint32_t budget, const uint32_t minimum[],
                      const uint32_t capacity[], pl_seat seats[], uint32_t shares[]);

/* Partition seats so that the k least by (key, index) come first. k <= n. */
void pl_seats_select(pl_seat seats[], uint32_t n, uint32_t k);

/* Finite and above 0, or finite and not below 0; false for NaN. */
bool pl_is_positive(double x);
bool pl_is_amount(double x);

/* Saved bytes: little-endian words behind a head of (magic, version), a CRC-32 of all before it at the end. */
typedef struct pl_writer {
    uint8_t *at;
} pl_writer;

typedef struct pl_reader {
    const uint8_t *at;
} pl_reader;

void pl_put_u32(pl_writer *w, uint32_t value);
void pl_put_u64(pl_writer *w, uint64_t value);
void pl_put_f64(pl_writer *w, double value);
uint32_t pl_get_u32(pl_reader *r);
uint64_t pl_get_u64(pl_reader *r);
double pl_get_f64(pl_reader *r);
uint32_t pl_crc32(const uint8_t bytes[], uint64_t n);

/* What of a sampler's saved bytes stands before its counts. */
void pl_sampler_put_head(const pl_sampler *s, pl_writer *w);
void pl_sampler_get_head(pl_sampler *s, pl_reader *r);

#endif
