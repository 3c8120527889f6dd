/* SPDX-License-Identifier: Apache-2.0 */
#include "sim_ina.h"

enum { SHUNT_219_US = 68100, BUS_219_US = 532, SHUNT_3221_US = 2116, BUS_3221_US = 332 };

uint64_t sim_charge(const sim_load *load, uint64_t t_us) {
    uint64_t whole = t_us / load->period_us, rest = t_us % load->period_us;
    uint64_t high_us = whole * load->high_us + (rest < load->high_us ? rest : load->high_us);
    return high_us * load->high_ma + (t_us - high_us) * load->low_ma;
}

static uint32_t n_channels(const sim_ina *chip) {
    uint32_t n = 0;
    for (unsigned bit = 12; bit <= 14; bit++) {
        n += chip->config >> bit & 1;
    }
    return chip->chip == PL_CHIP_INA219 ? 1 : n;
}

static uint64_t stretched(const sim_ina *chip, uint64_t us) {
    return us + us * chip->slow_percent / 100;
}

static uint64_t cycle_us(const sim_ina *chip) {
    uint64_t pair_us = chip->chip == PL_CHIP_INA219 ? SHUNT_219_US + BUS_219_US : SHUNT_3221_US + BUS_3221_US;
    return stretched(chip, pair_us) * n_channels(chip);
}

/* Conversions that have ended since it was configured. Only what the meter asks for converts; all else stands still. */
static uint64_t ended(const sim_ina *chip, uint64_t now_us) {
    uint32_t expected = chip->chip == PL_CHIP_INA219 ? 0x39FF : 0x00AF;
    uint32_t mask = chip->chip == PL_CHIP_INA219 ? 0xFFFF : 0x0FFF;
    uint64_t cycle = cycle_us(chip);
    return (chip->config & mask) == expected && cycle > 0 ? (now_us - chip->begun_us) / cycle : 0;
}

void sim_ina_power_on(sim_ina *chip, uint64_t now_us) {
    chip->config = chip->chip == PL_CHIP_INA219 ? 0x399F : 0x7127;
    chip->begun_us = now_us;
    chip->seen = 0;
}

/* The shunt's mean current over its part of the last conversion, as the converter shows it. */
static uint16_t shunt_word(const sim_ina *chip, uint32_t channel, uint64_t n) {
    bool is_219 = chip->chip == PL_CHIP_INA219;
    if (n == 0) {
        return 0;
    }
    uint32_t before = 0;
    for (uint32_t k = 0; k < channel; k++) {
        before += chip->config >> (14 - k) & 1;
    }
    uint64_t pair_us = stretched(chip, SHUNT_3221_US + BUS_3221_US);
    uint64_t begin_us = chip->begun_us + (n - 1) * cycle_us(chip) + (is_219 ? 0 : before * pair_us);
    uint64_t length_us = stretched(chip, is_219 ? SHUNT_219_US : SHUNT_3221_US);
    const sim_load *load = &chip->loads[channel];
    uint64_t charge = sim_charge(load, begin_us + length_us) - sim_charge(load, begin_us);
    uint64_t step_uv = is_219 ? 10 : 40,
             divisor = length_us * step_uv * 1000; /* milliampere times microohm: nanovolt */
    uint64_t counts = (charge * chip->shunt_uohm + divisor / 2) / divisor;
    uint64_t most = is_219 ? 32000 : 4095; /* where the converter ends */
    counts = counts > most ? most : counts;
    return (uint16_t)(is_219 ? counts : counts << 3);
}

static uint16_t word(sim_ina *chip, uint64_t now_us) {
    uint64_t n = ended(chip, now_us);
    bool is_219 = chip->chip == PL_CHIP_INA219, fresh = n > chip->seen;
    uint32_t channel = (chip->place - 1u) / 2;
    if (chip->place == 0x00) {
        return chip->config;
    }
    if (is_219) {
        switch (chip->place) {
        case 0x01:
            return shunt_word(chip, 0, n);
        case 0x02:
            return (uint16_t)(chip->loads[0].bus_mv / 4 << 3 | (fresh ? 2u : 0u));
        case 0x03:
            chip->seen = n;
            return 0;
        default:
            return 0;
        }
    }
    switch (chip->place) {
    case 0x0F:
        chip->seen = n;
        return fresh ? 1 : 0;
    case 0xFE:
        return 0x5449;
    case 0xFF:
        return 0x3220;
    default:
        if (channel >= 3) {
            return 0;
        }
        return chip->place & 1 ? shunt_word(chip, channel, n) : (uint16_t)(chip->loads[channel].bus_mv & ~7u);
    }
}

int sim_ina_transfer(sim_ina *chips, uint32_t n_chips, uint64_t now_us, uint8_t address, const uint8_t *out,
                     size_t n_out, uint8_t *in, size_t n_in) {
    for (uint32_t k = 0; k < n_chips; k++) {
        sim_ina *chip = &chips[k];
        if (chip->address != address) {
            continue;
        }
        if (n_out >= 1) {
            chip->place = out[0];
        }
        if (n_out == 3 && chip->place == 0x00) {
            chip->config = (uint16_t)(out[1] << 8 | out[2]);
            chip->begun_us = now_us;
            chip->seen = 0;
        }
        if (n_in == 2) {
            uint16_t value = word(chip, now_us);
            in[0] = (uint8_t)(value >> 8);
            in[1] = (uint8_t)value;
        }
        return PL_BUS_OK;
    }
    return PL_BUS_NACK;
}
