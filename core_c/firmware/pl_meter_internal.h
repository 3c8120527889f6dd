/* SPDX-License-Identifier: Apache-2.0 */
/* What the meter's three parts say to one another: sensors (I2C -> joules), frames (bytes), and the meter itself. */
#ifndef PL_METER_INTERNAL_H
#define PL_METER_INTERNAL_H

#include "pl_meter.h"

/* Codes of FAULT; 0 is none. */
enum { FAULT_NO_SENSOR = 1, FAULT_RESET = 2, FAULT_BUS = 3, FAULT_OTHER = 5 };

/* Types of frames. */
enum { IDENT = 1, READING = 2, FAULT = 3, TEXT = 4, EDGE = 5, ASK_EDGE = 0x40, ASK_SELFTEST = 0x41, ASK_HANG = 0x42 };

/* Is `then` not after now, on a clock that wraps? */
static inline bool is_due(uint32_t now_us, uint32_t then_us) {
    return (int32_t)(now_us - then_us) >= 0;
}

/* Sensors */
uint32_t pl_meter_cycle_us(const pl_meter_config *config); /* from one conversion's end to the next, as is typical */
uint32_t pl_meter_gain_ppm(const pl_meter_config *config, const pl_meter_rail *rail);
uint32_t pl_meter_offset_uw(const pl_meter_config *config, const pl_meter_rail *rail);
void pl_meter_look(pl_meter *m); /* at all sensors whose time has come */

/* Frames. Between begin and end each byte is put; a frame for which there is no room is left out as a whole. */
void pl_meter_begin(pl_meter *m, uint8_t type);
void pl_meter_put(pl_meter *m, uint64_t value, uint32_t n_bytes); /* little-endian */
void pl_meter_put_text(pl_meter *m, const char *text);
void pl_meter_put_number(pl_meter *m, uint32_t value); /* as decimal digits */
bool pl_meter_end(pl_meter *m); /* false: it was left out */
void pl_meter_flush(pl_meter *m); /* what the line takes now */
/* Take a byte off the line. Returns the length of the body that it completes in m->rx, else 0. */
uint32_t pl_meter_hear(pl_meter *m, uint8_t byte);
uint32_t pl_meter_crc(uint32_t crc, uint8_t byte); /* CRC-32, before its last inversion; begins with all ones */

#endif
