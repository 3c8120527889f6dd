/* SPDX-License-Identifier: Apache-2.0 */
#include "pl_meter_internal.h"

/* Sensors: each conversion of each chip, as it ends, goes into its rail's integrator. ---------------------------------- */

/* INA219 (SBOS448G): the shunt averaged over 128 samples, the bus voltage taken once, gain /8 and 32 V, continuous.
 * INA3221 (SBOS576B): 2.116 ms for a shunt, 332 us for a bus voltage, no filter, continuous; we have time to take all of
 * them, so shorter ones see more of a load's course, and are told sooner. What was written is read back with each conversion: a chip that lost its supply converts otherwise, and says so by nothing else. */
enum {
    CONFIG = 0x00,
    SHUNT = 0x01,
    BUS = 0x02,
    POWER = 0x03,
    MASK = 0x0F,
    MAKER = 0xFE,
    DIE = 0xFF,
    CONFIG_219 = 0x2000 | 3 << 11 | 0x3 << 7 | 0xF << 3 | 7,
    CONFIG_3221 = 2 << 6 | 5 << 3 | 7,
    CYCLE_219_US = 68100 + 532,
    SHUNT_US = 2116, /* INA3221 ... */
    PAIR_US = 2116 + 332,
    POLL_US = 500,    /* between two looks where a conversion's end is near: so well is its instant known */
    AGAIN_US = 100000 /* after a failure */
};

uint32_t pl_meter_cycle_us(const pl_meter_config *config) {
    return config->chip == PL_CHIP_INA219 ? CYCLE_219_US : PAIR_US * config->n_rails;
}

/* Of the datasheets' maxima over temperature, as the agent has them: 1 % or 0.55 % of shunt and of bus, 246 or 130 uV. */
uint32_t pl_meter_gain_ppm(const pl_meter_config *config, const pl_meter_rail *rail) {
    uint32_t tolerance = rail->tolerance_ppm > 0 ? rail->tolerance_ppm : 10000;
    uint32_t sum = (config->chip == PL_CHIP_INA219 ? 20000u : 11000u) + tolerance;
    return sum + sum / 32; /* that they multiply is less than that, up to a tolerance of 6 % */
}

uint32_t pl_meter_offset_uw(const pl_meter_config *config, const pl_meter_rail *rail) {
    uint64_t offset_uv = config->chip == PL_CHIP_INA219 ? 246 : 130,
             bus_mv = rail->bus_most_mv > 0 ? rail->bus_most_mv : 5500;
    return (uint32_t)(offset_uv * bus_mv * 1000 / rail->shunt_uohm) + 2;
}

static int read_word(pl_meter *m, uint8_t address, uint8_t place, uint8_t wire[2]) {
    return m->hal->i2c(m->hal->port, address, &place, 1, wire, 2);
}

static bool is_word(const uint8_t wire[2], uint32_t value) {
    return wire[0] == (uint8_t)(value >> 8) && wire[1] == (uint8_t)value;
}

static uint8_t fault_of(int status) {
    return status == PL_BUS_OK ? 0 : status == PL_BUS_NACK ? FAULT_NO_SENSOR : FAULT_BUS;
}

static uint32_t config_word(const pl_meter_config *config) {
    uint32_t word = CONFIG_3221;
    if (config->chip == PL_CHIP_INA219) {
        return CONFIG_219;
    }
    for (uint32_t k = 0; k < config->n_rails; k++) {
        word |= 0x8000u >> config->rails[k].channel;
    }
    return word;
}

/* The instant on the wide clock of one that was read after the last step began, or shortly before it. */
static uint64_t widened(const pl_meter *m, uint32_t t_us) {
    return m->now_us + (uint64_t)(int64_t)(int32_t)(t_us - (uint32_t)m->now_us);
}

/* Prove what is there as far as it can be, configure it, and forget conversions of before. Returns a code of FAULT. */
static uint8_t set_up(pl_meter *m, uint32_t k) {
    const pl_meter_config *config = m->config;
    uint8_t address = config->rails[k].address, wire[2];
    uint32_t word = config_word(config);
    int status = PL_BUS_OK;
    bool is_it = true;
    if (config->chip == PL_CHIP_INA3221) {
        status = read_word(m, address, MAKER, wire);
        is_it = status == PL_BUS_OK && is_word(wire, 0x5449);
        if (is_it) {
            status = read_word(m, address, DIE, wire);
            is_it = status == PL_BUS_OK && is_word(wire, 0x3220);
        }
    }
    if (is_it) {
        const uint8_t write[3] = { CONFIG, (uint8_t)(word >> 8), (uint8_t)word };
        status = m->hal->i2c(m->hal->port, address, write, 3, NULL, 0);
    }
    if (is_it && status == PL_BUS_OK) {
        status = read_word(m, address, CONFIG, wire);
        is_it = is_word(wire, word);
    }
    if (is_it && status == PL_BUS_OK) {
        status = read_word(m, address, config->chip == PL_CHIP_INA219 ? POWER : MASK, wire);
    }
    if (status != PL_BUS_OK || !is_it) {
        return status != PL_BUS_OK ? fault_of(status) : FAULT_NO_SENSOR;
    }
    pl_meter_state *rail = &m->rails[k];
    rail->is_set = 1;
    rail->follows = 0;
    rail->polls = 0;
    rail->idle_us = m->hal->micros(m->hal->port);
    rail->due_us = rail->idle_us + pl_meter_cycle_us(config) * 7 / 8;
    return 0;
}

/* When the last conversion ended, as its integrator knows; precondition: there was one since the chip was set up. */
static uint64_t last_end(const pl_meter *m, uint32_t first) {
    bool is_219 = m->config->chip == PL_CHIP_INA219;
    const pl_integrator *e = &m->rails[is_219 ? first : m->config->n_rails - 1].energy;
    uint64_t t_us = e->knots[(e->first + e->count - 1) % e->n_knots].t_us;
    return is_219 ? t_us : t_us + PAIR_US - SHUNT_US / 2;
}

/* When the conversion ended that was seen at seen_us and was not there at idle_us. Where the two lie far apart, because
 * somebody kept us, conversions follow one another as they do. */
static uint64_t end_of(const pl_meter *m, uint32_t first, uint64_t seen_us) {
    uint64_t idle_us = widened(m, m->rails[first].idle_us), end_us = seen_us, cycle_us = pl_meter_cycle_us(m->config);
    if (m->rails[first].follows) {
        uint64_t last_us = last_end(m, first), n = (seen_us - last_us) / cycle_us;
        end_us = last_us + (n > 0 ? n : 1) * cycle_us;
    }
    end_us = end_us < idle_us ? idle_us : end_us;
    return end_us > seen_us ? seen_us : end_us;
}

static void take_219(pl_meter *m, uint32_t k, const pl_rail *shown, uint64_t end_us) {
    uint64_t begin_us = end_us - CYCLE_219_US;
    if (m->rails[k].follows && end_us - last_end(m, k) < CYCLE_219_US * 5 / 4) {
        begin_us = last_end(m, k); /* they follow one another at once */
    }
    (void)pl_integrator_interval(&m->rails[k].energy, begin_us, end_us, shown->power_uw, 0);
}

/* Channels convert in turn, each its shunt first: the power is of the middle of that. */
static void take_3221(pl_meter *m, uint32_t k, const pl_rail *shown, uint64_t end_us) {
    uint64_t t_us = end_us - (uint64_t)PAIR_US * (m->config->n_rails - k) + SHUNT_US / 2;
    (void)pl_integrator_point(&m->rails[k].energy, t_us, shown->power_uw, 0);
}

static uint8_t taken(pl_meter *m, uint32_t first, uint64_t end_us) {
    bool is_219 = m->config->chip == PL_CHIP_INA219;
    uint32_t n = is_219 ? 1 : m->config->n_rails, word = config_word(m->config);
    uint8_t address = m->config->rails[first].address, wire[2], shunt[PL_METER_RAILS][2], bus[PL_METER_RAILS][2];
    int status = PL_BUS_OK;
    for (uint32_t k = 0; k < n && status == PL_BUS_OK; k++) {
        uint8_t place = is_219 ? SHUNT : (uint8_t)(2 * m->config->rails[k].channel - 1);
        status = read_word(m, address, place, shunt[k]);
        status = status == PL_BUS_OK ? read_word(m, address, (uint8_t)(place + 1), bus[k]) : status;
    }
    if (status == PL_BUS_OK && is_219) {
        status = read_word(m, address, POWER, wire); /* this clears CNVR; an INA3221's flag fell when it was read */
    }
    status = status == PL_BUS_OK ? read_word(m, address, CONFIG, wire) : status;
    if (status != PL_BUS_OK) {
        return fault_of(status);
    }
    if (!is_word(wire, word)) {
        return FAULT_RESET;
    }
    for (uint32_t k = 0; k < n; k++) {
        pl_rail shown;
        uint32_t shunt_uohm = m->config->rails[first + k].shunt_uohm;
        if (is_219) {
            (void)pl_ina219(word, shunt[k], bus[k], shunt_uohm, &shown);
            take_219(m, first, &shown, end_us);
        } else {
            (void)pl_ina3221(shunt[k], bus[k], shunt_uohm, &shown);
            take_3221(m, k, &shown, end_us);
        }
        m->rails[first + k].bus_mv = (uint16_t)(shown.bus_mv > 0 ? shown.bus_mv : 0);
        m->saturated |= (shown.flags & PL_RAIL_SATURATED) != 0;
    }
    return 0;
}

/* A chip that ends no conversion: was it reset, or does it only hang? Returns a code of FAULT. */
static uint8_t stopped(pl_meter *m, uint32_t k) {
    uint8_t wire[2];
    int status = read_word(m, m->config->rails[k].address, CONFIG, wire);
    return status != PL_BUS_OK ? fault_of(status) : is_word(wire, config_word(m->config)) ? FAULT_OTHER : FAULT_RESET;
}

/* Has a conversion ended? Then take it. Returns a code of FAULT. */
static uint8_t poll(pl_meter *m, uint32_t k) {
    bool is_219 = m->config->chip == PL_CHIP_INA219;
    pl_meter_state *rail = &m->rails[k];
    uint32_t cycle_us = pl_meter_cycle_us(m->config), before_us = m->hal->micros(m->hal->port);
    uint8_t wire[2];
    int status = read_word(m, m->config->rails[k].address, is_219 ? BUS : MASK, wire);
    if (status != PL_BUS_OK) {
        return fault_of(status);
    }
    uint32_t after_us = m->hal->micros(m->hal->port);
    if (!(wire[1] & (is_219 ? 2 : 1))) {
        rail->idle_us = before_us;
        rail->due_us = after_us + POLL_US;
        return ++rail->polls > 3 * cycle_us / POLL_US ? stopped(m, k) : 0;
    }
    uint8_t fault = taken(m, k, end_of(m, k, widened(m, after_us)));
    rail->follows = 1;
    rail->polls = 0;
    rail->idle_us = after_us;
    rail->due_us = after_us + cycle_us * 7 / 8;
    return fault;
}

void pl_meter_look(pl_meter *m) {
    uint32_t n_chips = m->config->chip == PL_CHIP_INA219 ? m->config->n_rails : 1;
    for (uint32_t k = 0; k < n_chips; k++) {
        pl_meter_state *rail = &m->rails[k];
        if (!is_due((uint32_t)m->now_us, rail->due_us)) {
            continue;
        }
        rail->fault = rail->is_set ? poll(m, k) : set_up(m, k);
        if (rail->fault != 0) {
            rail->is_set = 0;
            rail->due_us = m->hal->micros(m->hal->port) + AGAIN_US;
        }
    }
}
