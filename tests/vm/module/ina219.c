/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
#include "ina219.h"

enum { CONFIG, SHUNT, BUS, POWER, CURRENT, CALIBRATION };

static const int32_t ADC_US[16] = {
    /* BADC and SADC codes; with bit 3 clear, bit 2 does not matter */
    84, 148, 276, 532, 84, 148, 276, 532, 532, 1060, 2130, 4260, 8510, 17020, 34050, 68100,
};

static int64_t time_us(const struct ina219 *chip, int code) {
    int64_t us = (int64_t)ADC_US[code] * chip->clock_permille / 1000;

    return us > 0 ? us : 1;
}

static int64_t rounded(int64_t value, int64_t step) {
    return (value + (value < 0 ? -step : step) / 2) / step;
}

static int64_t clamped(int64_t value, int64_t least, int64_t most) {
    return value < least ? least : value > most ? most : value;
}

/* The mean of the samples of one conversion. A sample has 12 bits, so the gain sets its step: 10, 20, 40 or 80 uV. */
static int16_t shunt_counts(const struct ina219 *chip, int code, int64_t from_us, int64_t to_us) {
    int gain = chip->config >> 11 & 3, n = code > 8 ? 1 << (code - 8) : 1, i;
    int64_t step_nv = 10000 << gain, most = 4000, sum = 0;

    for (i = 0; i < n; i++) {
        int64_t a_us = from_us + (to_us - from_us) * i / n, b_us = from_us + (to_us - from_us) * (i + 1) / n;
        int64_t ua = loads_mean_ua(&chip->rail, a_us, b_us > a_us ? b_us : a_us + 1);

        sum += clamped(rounded(ua * chip->shunt_uohm / 1000, step_nv), -most, most) << gain;
    }
    return (int16_t)rounded(sum, n);
}

static void compute(struct ina219 *chip) {
    int64_t current = (int64_t)chip->shunt * chip->calibration / 4096;
    int64_t power = (current < 0 ? -current : current) * chip->bus / 5000;

    chip->overflowed = current != (int16_t)current || power > 0xFFFF;
    chip->current_reg = (int16_t)current;
    chip->power_reg = (uint16_t)power;
}

static void restart(struct ina219 *chip, int64_t now_us) {
    chip->is_converting = (chip->config & 3) != 0; /* 0: powered down, 4: ADC off */
    chip->began_us = now_us;
    if (chip->is_converting)
        chip->is_converted = false;
}

void ina219_power_on(struct ina219 *chip, int64_t now_us) {
    chip->config = 0x399F;
    chip->calibration = 0;
    chip->shunt = chip->current_reg = 0;
    chip->bus = chip->power_reg = 0;
    chip->overflowed = chip->is_converted = false;
    if (chip->track.n == 0)
        track_start(&chip->track, now_us);
    restart(chip, now_us);
}

void ina219_advance(struct ina219 *chip, int64_t now_us) {
    while (chip->is_converting) {
        int mode = chip->config & 7, shunt_code = chip->config >> 3 & 15, bus_code = chip->config >> 7 & 15;
        int64_t shunt_us = mode & 1 ? time_us(chip, shunt_code) : 0, bus_us = mode & 2 ? time_us(chip, bus_code) : 0;
        int64_t middle_us = chip->began_us + shunt_us, end_us = middle_us + bus_us;
        int64_t ua, mv;

        if (end_us > now_us)
            return;
        ua = loads_mean_ua(&chip->rail, chip->began_us, shunt_us ? middle_us : end_us);
        mv = loads_mean_mv(&chip->rail, bus_us ? middle_us : chip->began_us, end_us);
        track_add(&chip->track, end_us, ua * mv);
        if (!chip->stuck) {
            if (shunt_us)
                chip->shunt = shunt_counts(chip, shunt_code, chip->began_us, middle_us);
            if (bus_us)
                chip->bus = (uint16_t)clamped(rounded(mv, 4), 0, chip->config & 0x2000 ? 8000 : 4000);
            compute(chip);
        }
        chip->is_converted |= chip->stuck < 2;
        chip->is_converting = mode > 4; /* the triggered modes convert once */
        chip->began_us = end_us;
    }
}

uint16_t ina219_read(struct ina219 *chip, uint8_t reg, int64_t now_us) {
    ina219_advance(chip, now_us);
    switch (reg) {
    case CONFIG:
        return chip->config;
    case SHUNT:
        return (uint16_t)chip->shunt;
    case BUS:
        return (uint16_t)(chip->bus << 3 | chip->is_converted << 1 | chip->overflowed);
    case POWER:
        chip->is_converted = false;
        return chip->power_reg;
    case CURRENT:
        return (uint16_t)chip->current_reg;
    case CALIBRATION:
        return chip->calibration;
    default:
        return 0xFFFF;
    }
}

void ina219_write(struct ina219 *chip, uint8_t reg, uint16_t value, int64_t now_us) {
    ina219_advance(chip, now_us);
    if (reg == CONFIG && value & 0x8000) {
        ina219_power_on(chip, now_us);
    } else if (reg == CONFIG) {
        chip->config = value & 0x3FFF;
        restart(chip, now_us);
    } else if (reg == CALIBRATION) {
        chip->calibration = value & 0xFFFE;
        compute(chip);
    }
}
