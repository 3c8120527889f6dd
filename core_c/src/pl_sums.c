/* SPDX-License-Identifier: Apache-2.0 */
#include "pl_internal.h"

void *memcpy(void *restrict to, const void *restrict from, size_t n); /* no string.h where there is no C library */

/* Sums ------------------------------------------------------------------------------------------------------------ */

/* So many items at a time: a count that compilers know, so that they use the vector registers there are. memcpy, as what
 * has come off a link need not lie where a float may. */
enum { LANES = 16, BYTES = 4 * LANES };

static inline void add(double weight, const uint8_t values[BYTES], double sums[LANES]) {
    float v[LANES];
    memcpy(v, values, BYTES);
    for (int k = 0; k < LANES; k++) {
        sums[k] += weight * v[k];
    }
}

static inline void square(const uint8_t values[BYTES], const uint8_t base[BYTES], double squares[LANES]) {
    float v[LANES], b[LANES];
    memcpy(v, values, BYTES);
    memcpy(b, base, BYTES);
    for (int k = 0; k < LANES; k++) {
        double off = (double)v[k] - b[k];
        squares[k] += off * off;
    }
}

static inline void mix(double weight, const uint8_t model[BYTES], const uint8_t update[BYTES], uint8_t out[BYTES]) {
    float m[LANES], u[LANES], mixed[LANES];
    memcpy(m, model, BYTES);
    memcpy(u, update, BYTES);
    for (int k = 0; k < LANES; k++) {
        mixed[k] = (float)((1.0 - weight) * m[k] + weight * u[k]);
    }
    memcpy(out, mixed, BYTES);
}

void pl_sums_add(uint64_t n, double weight, const uint8_t values[], double sums[]) {
    uint64_t whole = n - n % LANES;
    for (uint64_t i = 0; i < whole; i += LANES) {
        add(weight, values + 4 * i, sums + i);
    }
    uint8_t rest[BYTES] = { 0 };
    double last[LANES] = { 0 };
    memcpy(rest, values + 4 * whole, (size_t)(4 * (n - whole)));
    memcpy(last, sums + whole, (size_t)(n - whole) * sizeof last[0]);
    add(weight, rest, last);
    memcpy(sums + whole, last, (size_t)(n - whole) * sizeof last[0]);
}

double pl_sums_distance(uint64_t n, const uint8_t values[], const uint8_t base[]) {
    double squares[LANES] = { 0 };
    uint64_t whole = n - n % LANES;
    for (uint64_t i = 0; i < whole; i += LANES) {
        square(values + 4 * i, base + 4 * i, squares);
    }
    uint8_t rest[2][BYTES] = { 0 };
    memcpy(rest[0], values + 4 * whole, (size_t)(4 * (n - whole)));
    memcpy(rest[1], base + 4 * whole, (size_t)(4 * (n - whole)));
    square(rest[0], rest[1], squares);
    for (int half = LANES / 2; half > 0; half /= 2) {
        for (int k = 0; k < half; k++) {
            squares[k] += squares[k + half];
        }
    }
    return squares[0];
}

void pl_sums_mix(uint64_t n, double weight, const uint8_t model[], const uint8_t update[], uint8_t out[]) {
    uint64_t whole = n - n % LANES;
    for (uint64_t i = 0; i < whole; i += LANES) {
        mix(weight, model + 4 * i, update + 4 * i, out + 4 * i);
    }
    uint8_t rest[2][BYTES] = { 0 };
    memcpy(rest[0], model + 4 * whole, (size_t)(4 * (n - whole)));
    memcpy(rest[1], update + 4 * whole, (size_t)(4 * (n - whole)));
    mix(weight, rest[0], rest[1], rest[0]);
    memcpy(out + 4 * whole, rest[0], (size_t)(4 * (n - whole)));
}
