/* SPDX-License-Identifier: Apache-2.0 */
#include "pl_internal.h"

/* Checks and saved bytes ------------------------------------------------------------------------------------------ */

bool pl_is_positive(double x) {
    return x > 0.0 && pl_is_amount(x);
}

bool pl_is_amount(double x) {
    return x >= 0.0 && x <= 1.7976931348623157e308;
}

union pl_bits {
    double value;
    uint64_t bits;
};

void pl_put_u32(pl_writer *w, uint32_t value) {
    for (unsigned shift = 0; shift < 32; shift += 8) {
        *w->at++ = (uint8_t)(value >> shift);
    }
}

void pl_put_u64(pl_writer *w, uint64_t value) {
    pl_put_u32(w, (uint32_t)value);
    pl_put_u32(w, (uint32_t)(value >> 32));
}

void pl_put_f64(pl_writer *w, double value) {
    union pl_bits b = { .value = value };
    pl_put_u64(w, b.bits);
}

uint32_t pl_get_u32(pl_reader *r) {
    uint32_t value = 0;
    for (unsigned shift = 0; shift < 32; shift += 8) {
        value |= (uint32_t)*r->at++ << shift;
    }
    return value;
}

uint64_t pl_get_u64(pl_reader *r) {
    uint64_t low = pl_get_u32(r);
    return low | (uint64_t)pl_get_u32(r) << 32;
}

double pl_get_f64(pl_reader *r) {
    union pl_bits b = { .bits = pl_get_u64(r) };
    return b.value;
}

uint32_t pl_crc32(const uint8_t bytes[], uint64_t n) {
    uint32_t crc = 0xFFFFFFFFu;
    for (uint64_t i = 0; i < n; i++) {
        crc ^= bytes[i];
        for (int bit = 0; bit < 8; bit++) {
            crc = (crc >> 1) ^ (0xEDB88320u & (0u - (crc & 1u)));
        }
    }
    return ~crc;
}
