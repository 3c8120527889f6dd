/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* An INA219 as its datasheet (SBOS448G) describes its registers, conversions and flags, without its analogue errors. */
#ifndef PACELINE_BENCH_INA219_H
#define PACELINE_BENCH_INA219_H

#include "load.h"

struct ina219 {
    struct loads rail;
    struct track track;
    uint32_t shunt_uohm;
    uint32_t clock_permille; /* length of conversions; 1000: the typical ones; the chip may be 10 % off */
    uint32_t stuck; /* 1: the results stay as they are, the flags go on; 2: that stays too */

    uint16_t config, calibration;
    int16_t shunt; /* 10 uV */
    uint16_t bus; /* 4 mV */
    int16_t current_reg; /* LSB by the calibration */
    uint16_t power_reg; /* 20 times that LSB */
    bool is_converted; /* CNVR */
    bool overflowed; /* OVF */
    bool is_converting;
    int64_t began_us; /* the conversion in progress */
};

void ina219_power_on(struct ina219 *chip, int64_t now_us);
void ina219_advance(struct ina219 *chip, int64_t now_us);
uint16_t ina219_read(struct ina219 *chip, uint8_t reg, int64_t now_us);
void ina219_write(struct ina219 *chip, uint8_t reg, uint16_t value, int64_t now_us);

#endif
