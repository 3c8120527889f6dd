/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
#include "ina3221.h"

enum {
    CONFIG = 0,
    FIRST = 1,
    LAST = 6,
    LIMITS = 7,
    SUM = 0x0D,
    SUM_LIMIT = 0x0E,
    MASK = 0x0F,
    UPPER = 0x10,
    LOWER = 0x11,
    MAKER = 0xFE,
    DIE = 0xFF
};

static const int32_t TIMES_US[8] = { 140, 204, 332, 588, 1100, 2116, 4156, 8244 };
static const int32_t AVERAGES[8] = { 1, 4, 16, 64, 128, 256, 512, 1024 };

static int64_t time_us(const struct ina3221 *chip, int code) {
    int64_t us = (int64_t)TIMES_US[code] * chip->clock_permille / 1000;

    return us > 0 ? us : 1;
}

/* Counts as the register shows them: 13 bits, signed, at the left. */
static uint16_t counts(int64_t value, int64_t lsb) {
    int64_t n = (value + (value < 0 ? -lsb : lsb) / 2) / lsb;

    n = n < -4096 ? -4096 : n > 4095 ? 4095 : n;
    return (uint16_t)((uint16_t)n << 3);
}

static void restart(struct ina3221 *chip, int64_t now_us) {
    chip->is_converting = (chip->config & 3) != 0 && (chip->config & 0x7000) != 0;
    chip->is_converted = false;
    chip->began_us = now_us;
    chip->turn = 0;
}

void ina3221_power_on(struct ina3221 *chip, int64_t now_us) {
    int i;

    chip->config = 0x7127;
    chip->mask = 0x0002;
    for (i = 0; i < 6; i++)
        chip->limits[i] = 0x7FF8;
    chip->limits[SUM_LIMIT - LIMITS] = 0x7FFE;
    chip->valid[0] = 0x2710;
    chip->valid[1] = 0x2328;
    for (i = 0; i < INA3221_CHANNELS; i++) {
        chip->channels[i].shunt_nv = chip->channels[i].bus_uv = 0;
        if (chip->channels[i].track.n == 0)
            track_start(&chip->channels[i].track, now_us);
    }
    restart(chip, now_us);
}

static void convert(struct ina3221 *chip, struct ina3221_channel *channel, int64_t from_us, int64_t shunt_us,
                    int64_t bus_us) {
    int64_t middle_us = from_us + shunt_us, end_us = middle_us + bus_us;
    int64_t ua = loads_mean_ua(&channel->rail, from_us, shunt_us ? middle_us : end_us);
    int64_t mv = loads_mean_mv(&channel->rail, bus_us ? middle_us : from_us, end_us);
    int64_t n = AVERAGES[chip->config >> 9 & 7];

    track_add(&channel->track, end_us, ua * mv);
    if (chip->stuck)
        return;
    if (shunt_us)
        channel->shunt_nv += (ua * chip->shunt_uohm / 1000 - channel->shunt_nv) / n;
    if (bus_us)
        channel->bus_uv += (mv * 1000 - channel->bus_uv) / n;
}

void ina3221_advance(struct ina3221 *chip, int64_t now_us) {
    while (chip->is_converting) {
        int mode = chip->config & 7;
        int64_t shunt_us = mode & 1 ? time_us(chip, chip->config >> 3 & 7) : 0;
        int64_t bus_us = mode & 2 ? time_us(chip, chip->config >> 6 & 7) : 0;

        if (chip->turn == INA3221_CHANNELS) {
            chip->turn = 0;
            chip->is_converted |= chip->stuck < 2;
            chip->is_converting = mode > 4; /* the single-shot modes convert once */
        } else if (!(chip->config >> (14 - chip->turn) & 1)) {
            chip->turn++;
        } else if (chip->began_us + shunt_us + bus_us > now_us) {
            return;
        } else {
            convert(chip, &chip->channels[chip->turn++], chip->began_us, shunt_us, bus_us);
            chip->began_us += shunt_us + bus_us;
        }
    }
}

static uint16_t shunt_sum(const struct ina3221 *chip) {
    int64_t sum = 0;
    int i;

    for (i = 0; i < INA3221_CHANNELS; i++)
        if (chip->mask >> (14 - i) & 1)
            sum += (int16_t)counts(chip->channels[i].shunt_nv, 40000) / 8;
    return (uint16_t)((uint16_t)sum << 1);
}

uint16_t ina3221_read(struct ina3221 *chip, uint8_t reg, int64_t now_us) {
    uint16_t value;

    ina3221_advance(chip, now_us);
    if (reg >= FIRST && reg <= LAST) {
        const struct ina3221_channel *channel = &chip->channels[(reg - FIRST) / 2];

        return reg % 2 ? counts(channel->shunt_nv, 40000) : counts(channel->bus_uv, 8000);
    }
    switch (reg) {
    case CONFIG:
        return chip->config;
    case SUM:
        return shunt_sum(chip);
    case MASK:
        value = (uint16_t)(chip->mask | chip->is_converted);
        chip->is_converted = false;
        return value;
    case UPPER:
    case LOWER:
        return chip->valid[reg - UPPER];
    case MAKER:
        return 0x5449;
    case DIE:
        return chip->die;
    default:
        return reg >= LIMITS && reg <= SUM_LIMIT ? chip->limits[reg - LIMITS] : 0xFFFF;
    }
}

void ina3221_write(struct ina3221 *chip, uint8_t reg, uint16_t value, int64_t now_us) {
    ina3221_advance(chip, now_us);
    if (reg == CONFIG && value & 0x8000) {
        ina3221_power_on(chip, now_us);
    } else if (reg == CONFIG) {
        chip->config = value;
        restart(chip, now_us);
    } else if (reg == MASK) {
        chip->mask = value & 0x7C02;
    } else if (reg == UPPER || reg == LOWER) {
        chip->valid[reg - UPPER] = value & 0xFFF8;
    } else if (reg == SUM_LIMIT) {
        chip->limits[SUM_LIMIT - LIMITS] = value & 0xFFFE;
    } else if (reg >= LIMITS && reg < SUM) {
        chip->limits[reg - LIMITS] = value & 0xFFF8;
    }
}
