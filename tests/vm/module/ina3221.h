/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* An INA3221 as its datasheet (SBOS576B) describes its registers, conversions and averaging filter, without its
 * analogue errors and without its alerts: limits are kept, the flags of mask/enable but CVRF stay 0. */
#ifndef PACELINE_BENCH_INA3221_H
#define PACELINE_BENCH_INA3221_H

#include "load.h"

#define INA3221_CHANNELS 3

struct ina3221 {
    struct ina3221_channel {
        struct loads rail;
        struct track track;
        int64_t shunt_nv, bus_uv; /* what the filter holds */
    } channels[INA3221_CHANNELS];
    uint32_t shunt_uohm;     /* of all three */
    uint32_t clock_permille; /* length of conversions; 1000: the typical ones */
    uint32_t stuck;          /* 1: the results stay as they are, CVRF goes on; 2: that stays too */
    uint16_t die;            /* register FF */

    uint16_t config, mask;
    uint16_t limits[8];  /* 07..0C, 0E, and nothing */
    uint16_t valid[2];   /* 10, 11 */
    bool is_converted;   /* CVRF */
    bool is_converting;
    int turn;         /* of which channel */
    int64_t began_us; /* the conversion in progress: a shunt, then its bus voltage */
};

void ina3221_power_on(struct ina3221 *chip, int64_t now_us);
void ina3221_advance(struct ina3221 *chip, int64_t now_us);
uint16_t ina3221_read(struct ina3221 *chip, uint8_t reg, int64_t now_us);
void ina3221_write(struct ina3221 *chip, uint8_t reg, uint16_t value, int64_t now_us);

#endif
