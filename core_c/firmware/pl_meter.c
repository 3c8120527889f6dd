/* SPDX-License-Identifier: Apache-2.0 */
#include "pl_meter_internal.h"

/* Meter: what is said and when, and what is obeyed. -------------------------------------------------------------------- */

enum {
    IDENT_EVERY_US = 900000,  /* at least once a second */
    FAULT_EVERY_US = 1000000, /* while it lasts */
    FAULT_WAIT_US = 20000,    /* sensors that get their supply with us may take so long to answer */
    EDGE_PATIENCE_US = 3000000,
    SELFTEST_AFTER_US = 1000000,
    STALE = 2,                /* flag of READING and EDGE */
    LISTEN_BYTES = 64,        /* in one turn: noise without end must not keep us from measuring */
    BACKWARD_UJ = 1000000     /* more than an offset brings about in any time in which nobody looks */
};

static uint32_t length_of(const char *text) {
    uint32_t n = 0;
    while (text != NULL && text[n] != '\0') {
        n++;
    }
    return n;
}

/* The period that is kept: whole conversions. */
static uint32_t period_us(const pl_meter_config *config) {
    uint32_t cycle_us = pl_meter_cycle_us(config), wanted_us = config->period_us > 0 ? config->period_us : 100000;
    uint32_t n = (wanted_us + cycle_us / 2) / cycle_us;
    return n > 0 ? n * cycle_us : cycle_us;
}

static bool is_sound(const pl_meter_config *config, uint32_t k) {
    const pl_meter_rail *rail = &config->rails[k];
    uint32_t n = length_of(rail->name);
    bool is_3221 = config->chip == PL_CHIP_INA3221;
    return n >= 1 && n <= 12 && rail->shunt_uohm > 0 && rail->tolerance_ppm <= 60000 && rail->bus_most_mv <= 32000 &&
           (!is_3221 || (rail->channel >= 1 && rail->channel <= 3 && rail->address == config->rails[0].address)) &&
           (!is_3221 || k == 0 || rail->channel > config->rails[k - 1].channel);
}

int pl_meter_init(pl_meter *m, const pl_hal *hal, const pl_meter_config *config, uint32_t boot,
                  const char *reset_cause) {
    bool good = config->chip <= PL_CHIP_INA3221 && config->n_rails >= 1 && config->n_rails <= PL_METER_RAILS &&
                config->period_us <= 60000000 && length_of(config->firmware) <= 24 && length_of(reset_cause) <= 16;
    for (uint32_t k = 0; good && k < config->n_rails; k++) {
        good = is_sound(config, k);
    }
    if (!good) {
        return PL_ERR_ARGUMENT;
    }
    uint32_t now_us = hal->micros(hal->port);
    *m = (pl_meter){ .hal = hal, .config = config, .boot = boot, .reset_cause = reset_cause };
    m->now_us = (uint64_t)1 << 32 | now_us; /* 0 means never */
    m->ident_us = now_us - IDENT_EVERY_US;
    m->fault_us = now_us - FAULT_EVERY_US + FAULT_WAIT_US;
    m->began_us = m->spoke_us = now_us;
    for (uint32_t k = 0; k < config->n_rails; k++) {
        pl_meter_state *rail = &m->rails[k];
        (void)pl_integrator_init(&rail->energy, pl_meter_cycle_us(config), 0, 0, 4, rail->knots);
        rail->due_us = now_us;
    }
    return PL_OK;
}

/* What is known ---- */

static const pl_knot *oldest(const pl_integrator *e) {
    return &e->knots[e->first];
}

static const pl_knot *newest(const pl_integrator *e) {
    return &e->knots[(e->first + e->count - 1) % e->n_knots];
}

/* Up to when all rails are known; 0: not yet, for they do not begin together. */
static uint64_t final_us(const pl_meter *m) {
    uint64_t from_us = 0, upto_us = UINT64_MAX;
    for (uint32_t k = 0; k < m->config->n_rails; k++) {
        const pl_integrator *e = &m->rails[k].energy;
        if (e->count == 0) {
            return 0;
        }
        from_us = oldest(e)->t_us > from_us ? oldest(e)->t_us : from_us;
        upto_us = newest(e)->t_us < upto_us ? newest(e)->t_us : upto_us;
    }
    return upto_us >= from_us ? upto_us : 0;
}

/* Is a rail's energy at t_us known? Then *uj is what its counter says then: never less than it has said. */
static bool counter_at(const pl_meter_state *rail, uint64_t t_us, int64_t *uj) {
    const pl_integrator *e = &rail->energy;
    pl_energy since;
    *uj = rail->told_uj;
    if (e->count == 0 || t_us < oldest(e)->t_us || pl_integrator_window(e, oldest(e)->t_us, t_us, &since) != PL_OK) {
        return false;
    }
    int64_t now_uj = oldest(e)->energy_uj + since.energy_uj;
    *uj = now_uj > *uj ? now_uj : *uj;
    return true;
}

/* Speaking ---- */

static bool say_ident(pl_meter *m) {
    const pl_meter_config *config = m->config;
    pl_meter_begin(m, IDENT);
    pl_meter_put(m, 1, 1);
    pl_meter_put(m, config->n_rails, 2); /* and a zero */
    pl_meter_put(m, period_us(config), 4);
    pl_meter_put(m, m->boot, 4);
    for (uint32_t k = 0; k < 8; k++) {
        pl_meter_put(m, config->device[k], 1);
    }
    pl_meter_put(m, length_of(config->firmware), 1);
    pl_meter_put_text(m, config->firmware != NULL ? config->firmware : "");
    for (uint32_t k = 0; k < config->n_rails; k++) {
        const pl_meter_rail *rail = &config->rails[k];
        pl_meter_put(m, 3, 1); /* energy ... */
        pl_meter_put(m, rail->counted != 0, 1);
        pl_meter_put(m, 1000, 4); /* ... in microjoules */
        pl_meter_put(m, 0, 4);
        pl_meter_put(m, pl_meter_gain_ppm(config, rail), 4);
        pl_meter_put(m, pl_meter_offset_uw(config, rail), 4);
        pl_meter_put(m, length_of(rail->name), 1);
        pl_meter_put_text(m, rail->name);
    }
    return pl_meter_end(m);
}

/* READING and EDGE have one shape: flags, boot, channels, a number, an instant, and the counters as of it. */
static bool say_counters(pl_meter *m, uint8_t type, uint32_t flags, uint32_t number, uint64_t t_us) {
    int64_t uj[PL_METER_RAILS];
    bool known = true;
    for (uint32_t k = 0; k < m->config->n_rails; k++) {
        known = counter_at(&m->rails[k], t_us, &uj[k]) && known;
    }
    pl_meter_begin(m, type);
    pl_meter_put(m, known ? flags : flags | STALE, 1);
    pl_meter_put(m, m->boot & 0xFF, 1);
    pl_meter_put(m, m->config->n_rails, 1);
    pl_meter_put(m, number, 4);
    pl_meter_put(m, t_us & UINT32_MAX, 4);
    for (uint32_t k = 0; k < m->config->n_rails; k++) {
        pl_meter_put(m, (uint64_t)uj[k], 8);
        if (type == READING && known) {
            m->rails[k].told_uj = uj[k];
        }
    }
    pl_meter_end(m);
    return known;
}

static void say_edges(pl_meter *m, uint64_t known_us) {
    for (uint32_t k = 0; k < PL_METER_EDGES; k++) {
        uint64_t t_us = m->edge_us[k];
        if (t_us > 0 && (t_us <= known_us || m->now_us - t_us > EDGE_PATIENCE_US)) {
            (void)say_counters(m, EDGE, 0, m->edge_number[k], t_us);
            m->edge_us[k] = 0;
        }
    }
}

/* A sequence number is spent whether the reading finds room on the line or not: so the listener counts what is lost. */
static void say_reading(pl_meter *m, uint64_t known_us) {
    uint32_t now_us = (uint32_t)m->now_us, period = period_us(m->config);
    if (known_us > 0 && known_us - m->reading_us >= period - pl_meter_cycle_us(m->config) / 2) {
        (void)say_counters(m, READING, m->saturated, m->sequence++, known_us);
        m->reading_us = known_us;
        m->saturated = 0;
        m->spoke_us = now_us;
    } else if (now_us - m->spoke_us > 3 * period) {
        (void)say_counters(m, READING, STALE, m->sequence++, m->now_us);
        m->spoke_us = now_us;
    }
}

static void put_rail(pl_meter *m, uint32_t k, const char *text) {
    pl_meter_put_text(m, m->config->rails[k].name);
    pl_meter_put_text(m, text);
}

static void put_fault(pl_meter *m, uint32_t k, uint8_t fault) {
    static const char HEX[] = "0123456789abcdef";
    bool is_219 = m->config->chip == PL_CHIP_INA219;
    uint8_t address = m->config->rails[k].address;
    switch (fault) {
    case FAULT_NO_SENSOR:
        put_rail(m, k, is_219 ? ": no INA219 at 0x" : ": no INA3221 at 0x");
        pl_meter_put(m, (uint8_t)HEX[address >> 4 & 15], 1);
        pl_meter_put(m, (uint8_t)HEX[address & 15], 1);
        break;
    case FAULT_RESET:
        put_rail(m, k, ": the sensor was reset, is its supply steady?");
        break;
    case FAULT_BUS:
        put_rail(m, k, ": the I2C bus is stuck");
        break;
    default:
        put_rail(m, k, ": the sensor converts nothing");
    }
}

static void say_faults(pl_meter *m) {
    uint32_t now_us = (uint32_t)m->now_us;
    if (!is_due(now_us, m->fault_us + FAULT_EVERY_US)) {
        return;
    }
    m->fault_us = now_us - FAULT_EVERY_US; /* due still, and never so long that a clock that wraps knows it no more */
    for (uint32_t k = 0; k < m->config->n_rails; k++) {
        pl_meter_state *rail = &m->rails[k];
        const pl_integrator *e = &rail->energy;
        bool backward = e->count > 0 && rail->told_uj - newest(e)->energy_uj > BACKWARD_UJ;
        if (rail->fault != 0 || backward) {
            pl_meter_begin(m, FAULT);
            pl_meter_put(m, rail->fault != 0 ? rail->fault : FAULT_OTHER, 1);
            pl_meter_put(m, k, 1);
            if (rail->fault != 0) {
                put_fault(m, k, rail->fault);
            } else {
                put_rail(m, k, ": current flows backwards, swap the shunt's wires");
            }
            pl_meter_end(m);
            m->fault_us = now_us;
        }
    }
}

/* Self-test ---- */

static bool is_crc_right(void) {
    uint32_t crc = 0xFFFFFFFFu;
    for (uint8_t digit = '1'; digit <= '9'; digit++) {
        crc = pl_meter_crc(crc, digit);
    }
    return ~crc == 0xCBF43926u;
}

/* 16 mV over 0.1 ohm at 5 V, as both chips put it on the wire. */
static bool is_decoding_right(void) {
    const uint8_t shunt_219[2] = { 0x06, 0x40 }, bus_219[2] = { 0x27, 0x12 };
    const uint8_t shunt_3221[2] = { 0x0C, 0x80 }, bus_3221[2] = { 0x13, 0x88 };
    pl_rail a, b;
    return pl_ina219(0x399F, shunt_219, bus_219, 100000, &a) == PL_OK && a.power_uw == 800000 &&
           pl_ina3221(shunt_3221, bus_3221, 100000, &b) == PL_OK && b.power_uw == 800000;
}

static void say_selftest(pl_meter *m) {
    bool crc = is_crc_right(), decoding = is_decoding_right(), good = crc && decoding;
    for (uint32_t k = 0; k < m->config->n_rails; k++) {
        good = good && m->rails[k].fault == 0 && m->rails[k].energy.count > 0;
    }
    pl_meter_begin(m, TEXT);
    pl_meter_put_text(m, good ? "self-test ok" : "self-test FAILED");
    pl_meter_put_text(m, crc ? "" : "; CRC");
    pl_meter_put_text(m, decoding ? "" : "; decoding");
    for (uint32_t k = 0; k < m->config->n_rails; k++) {
        pl_meter_put_text(m, "; ");
        if (m->rails[k].fault != 0) {
            put_fault(m, k, m->rails[k].fault);
        } else {
            put_rail(m, k, " ");
            pl_meter_put_number(m, m->rails[k].bus_mv);
            pl_meter_put_text(m, " mV");
        }
    }
    pl_meter_put_text(m, "; reset by ");
    pl_meter_put_text(m, m->reset_cause);
    pl_meter_end(m);
}

/* Listening ---- */

static void obey(pl_meter *m, uint32_t n) {
    if (m->rx[0] == ASK_EDGE && n == 5) {
        uint32_t number = 0;
        for (uint32_t k = 4; k >= 1; k--) {
            number = number << 8 | m->rx[k];
        }
        for (uint32_t k = 0; k < PL_METER_EDGES; k++) {
            if (m->edge_us[k] == 0) {
                m->edge_number[k] = number;
                m->edge_us[k] = m->now_us;
                return;
            }
        }
    } else if (m->rx[0] == ASK_SELFTEST && n == 1) {
        say_selftest(m);
    } else if (m->rx[0] == ASK_HANG && n == 1 && m->config->may_hang) {
        for (;;) {
        }
    }
}

static void listen(pl_meter *m) {
    uint8_t bytes[16];
    for (uint32_t heard = 0; heard < LISTEN_BYTES; heard += sizeof bytes) {
        size_t n = m->hal->uart_read(m->hal->port, bytes, sizeof bytes);
        for (size_t k = 0; k < n && k < sizeof bytes; k++) {
            uint32_t length = pl_meter_hear(m, bytes[k]);
            if (length > 0) {
                obey(m, length);
            }
        }
        if (n < sizeof bytes) {
            return;
        }
    }
}

void pl_meter_step(pl_meter *m) {
    m->now_us += (uint32_t)(m->hal->micros(m->hal->port) - (uint32_t)m->now_us);
    uint32_t now_us = (uint32_t)m->now_us;
    listen(m);
    pl_meter_look(m);
    uint64_t known_us = final_us(m);
    if (is_due(now_us, m->ident_us + IDENT_EVERY_US)) {
        m->ident_us = say_ident(m) ? now_us : now_us - IDENT_EVERY_US;
    }
    say_edges(m, known_us);
    say_reading(m, known_us);
    say_faults(m);
    if (!m->tested && is_due(now_us, m->began_us + SELFTEST_AFTER_US)) {
        say_selftest(m);
        m->tested = 1;
    }
    pl_meter_flush(m);
}
