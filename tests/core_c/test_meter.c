/* SPDX-License-Identifier: Apache-2.0 */
/* The microcontroller meter against simulated chips in simulated time, and everything that a bus and a line can do. */
#include "check.h"

#include "sim_ina.h"

#include <string.h>

/* The world around a meter ------------------------------------------------------------------------------------------ */

enum { STEP_US = 500, TRANSFER_US = 100, LINE = 1 << 16 };

enum fault { FINE, NACK, STUCK, BROWN_OUT, STILL, BACKWARD, OTHER_CHIP };

static struct world {
    uint64_t now_us;
    uint64_t offset_us; /* of the port's microseconds */
    sim_ina chips[2];
    enum fault fault;
    size_t takes; /* bytes of the line in one turn */
    uint8_t line[LINE], said[64];
    size_t n_line, n_said;
} world;

static uint32_t micros(void *port) {
    const struct world *w = (const struct world *)port;
    return (uint32_t)(w->now_us + w->offset_us);
}

static int i2c(void *port, uint8_t address, const uint8_t *out, size_t n_out, uint8_t *in, size_t n_in) {
    struct world *w = (struct world *)port;
    w->now_us += TRANSFER_US;
    if (w->fault == NACK || w->fault == STUCK) {
        return w->fault == NACK ? PL_BUS_NACK : PL_BUS_STUCK;
    }
    if (w->fault == BROWN_OUT) { /* once */
        sim_ina_power_on(&w->chips[0], w->now_us);
        w->fault = FINE;
    }
    int status = sim_ina_transfer(w->chips, 2, w->now_us, address, out, n_out, in, n_in);
    if (n_in == 2 && w->fault == STILL && out[0] == (w->chips[0].chip == PL_CHIP_INA219 ? 0x02 : 0x0F)) {
        in[1] &= (uint8_t)~3u;
    }
    if (n_in == 2 && w->fault == BACKWARD && out[0] == 0x01) {
        uint32_t word = 0x10000u - ((uint32_t)in[0] << 8 | in[1]);
        in[0] = (uint8_t)(word >> 8), in[1] = (uint8_t)word;
    }
    if (n_in == 2 && w->fault == OTHER_CHIP && out[0] >= 0xFE) {
        in[0] = in[1] = 0;
    }
    return status;
}

static size_t uart_read(void *port, uint8_t *bytes, size_t most) {
    struct world *w = (struct world *)port;
    size_t n = w->n_said < most ? w->n_said : most;
    memcpy(bytes, w->said, n);
    w->n_said -= n;
    memmove(w->said, w->said + n, w->n_said);
    return n;
}

static size_t uart_write(void *port, const uint8_t *bytes, size_t n) {
    struct world *w = (struct world *)port;
    n = n < w->takes ? n : w->takes;
    n = n < LINE - w->n_line ? n : LINE - w->n_line;
    memcpy(w->line + w->n_line, bytes, n);
    w->n_line += n;
    return n;
}

static const pl_hal HAL = { &world, i2c, uart_read, uart_write, micros };

/* What comes over the line ------------------------------------------------------------------------------------------ */

typedef struct heard {
    uint32_t idents, readings, stale, saturated, faults[6], texts, edges, damaged, lost;
    uint32_t sequence, edge_number, edge_flags;
    uint64_t t_us, edge_us; /* as told, 32 bits */
    int64_t uj[3], edge_uj[3];
    uint32_t backwards; /* counters that fell */
    char fault[129], note[129]; /* what FAULT and TEXT said last */
} heard;

static uint32_t crc32(const uint8_t *bytes, size_t n) {
    uint32_t crc = UINT32_MAX;
    for (size_t k = 0; k < n; k++) {
        for (unsigned bit = 0; bit < 8; bit++) {
            uint32_t odd = (crc ^ (uint32_t)bytes[k] >> bit) & 1;
            crc = crc >> 1 ^ (odd ? 0xEDB88320u : 0);
        }
    }
    return ~crc;
}

static uint64_t number(const uint8_t *bytes, unsigned n) {
    uint64_t value = 0;
    while (n-- > 0) {
        value = value << 8 | bytes[n];
    }
    return value;
}

static void take(heard *h, const uint8_t *body, size_t n) {
    unsigned channels = n > 3 ? body[3] : 0;
    if (body[0] == 1) {
        h->idents++;
    } else if (body[0] == 2 && n == 12 + 8 * channels) {
        uint32_t sequence = (uint32_t)number(body + 4, 4);
        h->lost += h->readings + h->stale > 0 ? sequence - h->sequence - 1 : 0;
        h->sequence = sequence;
        h->saturated += body[1] & 1;
        h->stale += body[1] >> 1 & 1;
        for (unsigned k = 0; k < channels; k++) {
            int64_t uj = (int64_t)number(body + 12 + 8 * k, 8);
            h->backwards += uj < h->uj[k];
            h->uj[k] = uj;
        }
        if (!(body[1] & 2)) {
            h->readings++;
            h->t_us = number(body + 8, 4);
        }
    } else if (body[0] == 3 && body[1] <= 5) {
        h->faults[body[1]]++;
        memcpy(h->fault, body + 3, n - 3), h->fault[n - 3] = '\0';
    } else if (body[0] == 4) {
        h->texts++;
        memcpy(h->note, body + 1, n - 1), h->note[n - 1] = '\0';
    } else if (body[0] == 5 && n == 12 + 8 * channels) {
        h->edges++;
        h->edge_flags = body[1];
        h->edge_number = (uint32_t)number(body + 4, 4);
        h->edge_us = number(body + 8, 4);
        for (unsigned k = 0; k < channels; k++) {
            h->edge_uj[k] = (int64_t)number(body + 12 + 8 * k, 8);
        }
    } else {
        h->damaged++;
    }
}

/* Take all frames that are whole. A second decoder, written apart from the one under test. */
static void hear(heard *h) {
    size_t begin = 0;
    for (size_t end = 0; end < world.n_line; end++) {
        if (world.line[end] != 0) {
            continue;
        }
        uint8_t body[256];
        size_t n = 0;
        for (size_t at = begin; at < end && n < 250;) {
            size_t code = world.line[at++];
            for (size_t k = 1; k < code && at < end; k++) {
                body[n++] = world.line[at++];
            }
            if (at < end) {
                body[n++] = 0;
            }
        }
        if (n >= 5 && number(body + n - 4, 4) == crc32(body, n - 4)) {
            take(h, body, n - 4);
        } else if (n > 0) {
            h->damaged++;
        }
        begin = end + 1;
    }
    world.n_line -= begin;
    memmove(world.line, world.line + begin, world.n_line);
}

static void say(const uint8_t *body, size_t n) {
    uint8_t frame[32];
    size_t at = 0, code = at++;
    for (size_t k = 0; k < n + 4; k++) {
        uint8_t byte = (uint8_t)(k < n ? body[k] : crc32(body, n) >> 8 * (k - n));
        if (byte == 0) {
            frame[code] = (uint8_t)(at - code);
            code = at++;
        } else {
            frame[at++] = byte;
        }
    }
    frame[code] = (uint8_t)(at - code);
    frame[at++] = 0;
    memcpy(world.said + world.n_said, frame, at);
    world.n_said += at;
}

static void ask_edge(uint32_t which) {
    const uint8_t body[] = { 0x40, (uint8_t)which, (uint8_t)(which >> 8), (uint8_t)(which >> 16),
                             (uint8_t)(which >> 24) };
    say(body, sizeof body);
}

/* Cases ------------------------------------------------------------------------------------------------------------- */

static const sim_load LOADS[3] = { { 5000, 200, 1000, 1000000, 400000 },
                                   { 3304, 100, 350, 730000, 200000 },
                                   { 12000, 50, 50, 1000000, 0 } };
static const pl_meter_rail TWO_219[] = { { "5V", 0x40, 0, 1, 100000, 0, 0 }, { "3V3", 0x41, 0, 1, 100000, 0, 0 } };
static const pl_meter_rail THREE_3221[] = { { "5V", 0x40, 1, 1, 100000, 0, 0 },
                                            { "3V3", 0x40, 2, 1, 100000, 0, 0 },
                                            { "fan", 0x40, 3, 0, 100000, 0, 13000 } };
static const pl_meter_config CONFIGS[] = {
    { PL_CHIP_INA219, 2, TWO_219, 0, { 1, 2, 3 }, "test 1", 0 },
    { PL_CHIP_INA3221, 3, THREE_3221, 0, { 1, 2, 3 }, "test 1", 0 },
};

static pl_meter meter;

static void begin(unsigned chip, uint64_t offset_us) {
    world = (struct world){ .now_us = 1000, .offset_us = offset_us, .takes = SIZE_MAX };
    for (unsigned k = 0; k < 2; k++) {
        sim_ina one = { .chip = chip, .address = (uint8_t)(0x40 + k), .shunt_uohm = 100000, .slow_percent = 3 * k };
        world.chips[k] = one;
        world.chips[k].loads = &LOADS[k];
        sim_ina_power_on(&world.chips[k], world.now_us);
    }
    CHECK(pl_meter_init(&meter, &HAL, &CONFIGS[chip], 7, chip ? "watchdog" : "power") == PL_OK,
          "a sound config is taken", chip);
}

static void run(heard *h, uint64_t us) {
    for (uint64_t end_us = world.now_us + us; world.now_us < end_us; world.now_us += STEP_US) {
        pl_meter_step(&meter);
        hear(h);
    }
}

/* What a rail takes up to an instant, in microjoules. */
static int64_t truth_uj(unsigned k, uint64_t t_us) {
    return (int64_t)(sim_charge(&LOADS[k], t_us) * LOADS[k].bus_mv / 1000000);
}

static int64_t distance(int64_t a, int64_t b) {
    return a > b ? a - b : b - a;
}

static void test_joules(unsigned chip, uint64_t offset_us) {
    heard h = { 0 };
    begin(chip, offset_us);
    run(&h, 1000000);
    ask_edge(4000000000u);
    run(&h, 1000000);
    heard first = h;
    CHECK(h.edges == 1 && h.edge_number == 4000000000u && h.edge_flags == 0, "an edge is answered once", chip);
    run(&h, 60000000);
    ask_edge(1);
    run(&h, 1000000);
    CHECK(h.edges == 2 && h.edge_number == 1, "and the next", chip);
    for (unsigned k = 0; k < CONFIGS[chip].n_rails; k++) {
        uint64_t from_us = (uint32_t)(first.edge_us - offset_us), to_us = (uint32_t)(h.edge_us - offset_us);
        int64_t found = h.edge_uj[k] - first.edge_uj[k], truth = truth_uj(k, to_us) - truth_uj(k, from_us);
        CHECK(distance(found, truth) < truth / 200, "joules between two edges are the load's to half a percent",
              10 * chip + k);
        from_us = (uint32_t)(first.t_us - offset_us), to_us = (uint32_t)(h.t_us - offset_us);
        found = h.uj[k] - first.uj[k], truth = truth_uj(k, to_us) - truth_uj(k, from_us);
        CHECK(distance(found, truth) < truth / 200, "and between two readings", 10 * chip + k);
    }
    CHECK(h.idents >= 63 && h.stale == 0 && h.lost == 0 && h.damaged == 0, "IDENT once a second, nothing lost", chip);
    CHECK(h.readings > 60 * 9, "nine readings a second at the least", chip);
    CHECK(h.texts == 1 && strncmp(h.note, "self-test ok; 5V 5000 mV; 3V3 330", 33) == 0, h.note, chip);
    CHECK(strstr(h.note, chip ? "reset by watchdog" : "reset by power") != NULL, h.note, chip);
}

/* clang-format off */
static const struct {
    const char *what;
    unsigned chip, fault, code;
    const char *text;
    bool stale;
} FAULTS[] = {
    { "a sensor that does not answer", 0, NACK, 1, "3V3: no INA219 at 0x41", true },
    { "the other kind", 1, NACK, 1, "5V: no INA3221 at 0x40", true },
    { "another chip in its place", 1, OTHER_CHIP, 1, "5V: no INA3221 at 0x40", true },
    { "a bus that is stuck", 0, STUCK, 3, "3V3: the I2C bus is stuck", true },
    { "a sensor that lost its supply for a moment", 0, BROWN_OUT, 2, "5V: the sensor was reset, is its supply steady?", false },
    { "likewise", 1, BROWN_OUT, 2, "5V: the sensor was reset, is its supply steady?", false },
    { "a sensor that converts nothing", 0, STILL, 5, "3V3: the sensor converts nothing", true },
    { "likewise", 1, STILL, 5, "5V: the sensor converts nothing", true },
    { "a shunt the wrong way round", 0, BACKWARD, 5, "3V3: current flows backwards, swap the shunt's wires", false },
};
/* clang-format on */

static void test_faults(void) {
    for (unsigned k = 0; k < LENGTH(FAULTS); k++) {
        heard h = { 0 };
        begin(FAULTS[k].chip, 0);
        run(&h, 2000000);
        if (FAULTS[k].fault == OTHER_CHIP) { /* seen when it is set up */
            sim_ina_power_on(&world.chips[0], world.now_us);
        }
        heard before = h;
        world.fault = (enum fault)FAULTS[k].fault;
        run(&h, 5000000);
        CHECK(h.faults[FAULTS[k].code] > 0, FAULTS[k].what, k);
        CHECK(strcmp(h.fault, FAULTS[k].text) == 0, h.fault, k);
        CHECK((h.stale > before.stale + 5) == FAULTS[k].stale, "without a value it says so, and says it on", k);
        world.fault = FINE;
        run(&h, 8000000);
        heard late = h;
        run(&h, 3000000);
        CHECK(h.readings > late.readings + 20 && h.stale == late.stale, "it comes back by itself", k);
        CHECK(memcmp(h.faults, late.faults, sizeof h.faults) == 0, "and then complains no more", k);
        CHECK(h.backwards == 0 && h.damaged == 0, "no counter ever falls", k);
    }
}

static void test_the_line(void) {
    heard h = { 0 };
    begin(0, 0);
    world.takes = 1;
    run(&h, 10000000);
    CHECK(h.damaged == 0 && h.lost == 0 && h.readings > 100, "one byte at a time", 0);
    world.takes = 0;
    run(&h, 10000000);
    world.takes = SIZE_MAX;
    run(&h, 2000000);
    CHECK(h.damaged == 0 && h.lost > 50, "nobody takes anything: what is lost is counted, what comes is whole", 0);
    CHECK(distance(h.uj[0], truth_uj(0, h.t_us)) < truth_uj(0, h.t_us) / 50, "and no joule is lost", 0);
}

static void test_noise(void) {
    heard h = { 0 };
    uint32_t dice = 12345;
    begin(0, 0);
    run(&h, 2000000);
    heard before = h;
    for (unsigned k = 0; k < 20000; k++) {
        for (unsigned n = 0; n < 8; n++) {
            dice = dice * 1664525u + 1013904223u;
            world.said[world.n_said++] = (uint8_t)(dice >> 24 & (dice >> 8 & 1 ? 0x1F : 0xFF));
        }
        run(&h, 1000);
        world.n_said = 0;
    }
    CHECK(h.edges == 0 && h.texts == before.texts && h.damaged == 0, "noise is no command", 0);
    CHECK(h.readings > before.readings + 150 && h.stale == 0, "and disturbs nothing", 0);
    const uint8_t selftest[] = { 0x41 }, unknown[] = { 0x55, 1 }, odd[] = { 0x41, 0 }, hang[] = { 0x42 };
    world.said[world.n_said++] = 0;
    say(unknown, sizeof unknown);
    say(odd, sizeof odd);
    say(hang, sizeof hang);
    run(&h, 100000);
    CHECK(h.texts == before.texts, "nor is what it does not know, and it hangs only where it may", 0);
    world.said[world.n_said++] = 9; /* half a frame in front costs the first, never the second */
    say(selftest, sizeof selftest);
    say(selftest, sizeof selftest);
    run(&h, 100000);
    CHECK(h.texts == before.texts + 1 && strncmp(h.note, "self-test ok", 12) == 0, h.note, 0);
    world.fault = NACK;
    run(&h, 2000000);
    say(selftest, sizeof selftest);
    ask_edge(3);
    run(&h, 5000);
    CHECK(strcmp(h.note, "self-test FAILED; 5V: no INA219 at 0x40; 3V3: no INA219 at 0x41; reset by power") == 0,
          h.note, 0);
    run(&h, 4000000);
    CHECK(h.edges == 1 && h.edge_number == 3 && h.edge_flags & 2, "an edge that cannot be known is answered as such",
          0);
}

static void test_saturation(void) {
    static const sim_load much = { 5000, 4000, 4000, 1000000, 0 };
    heard h = { 0 };
    begin(0, 0);
    world.chips[0].loads = &much;
    run(&h, 2000000);
    CHECK(h.saturated == h.readings, "a converter at its end is told with each reading", 0);
}

/* Forty minutes are more than half of what the port's clock can tell apart: nothing may hang on how long ago it was. */
static void test_long_silence(void) {
    heard h = { 0 };
    begin(0, 0);
    run(&h, 2000000);
    world.takes = 0;
    for (uint64_t end_us = world.now_us + 2400000000u; world.now_us < end_us; world.now_us += 5000) {
        pl_meter_step(&meter);
    }
    world.takes = SIZE_MAX;
    world.fault = NACK;
    heard before = h;
    run(&h, 2500000);
    CHECK(h.idents > before.idents && h.faults[1] > 0, "after a long silence it says who it is and what is wrong", 0);
}

/* The longest names, and all that can be wrong: a text ends where its frame does. */
static void test_long_texts(void) {
    static const pl_meter_rail rails[] = { { "twelve bytes", 0x50, 1, 1, 1, 0, 0 },
                                           { "twelve bites", 0x50, 2, 1, 1, 0, 0 },
                                           { "twelve beats", 0x50, 3, 1, 1, 0, 0 } };
    static const pl_meter_config config = { 0, 3, rails, 0, { 0 }, "twenty-four bytes of nam", 0 };
    heard h = { 0 };
    begin(0, 0);
    CHECK(pl_meter_init(&meter, &HAL, &config, 7, "sixteen letters.") == PL_OK, "none too long", 0);
    run(&h, 5000000);
    CHECK(h.damaged == 0 && h.idents >= 5 && h.texts == 1 && h.faults[1] >= 12, "all frames are whole", 0);
    CHECK(strlen(h.note) == 128 && strlen(h.fault) <= 64, h.note, 0);
}

static void test_configs(void) {
    pl_meter_rail same[] = { { "a", 0x40, 2, 1, 1, 0, 0 }, { "b", 0x40, 2, 1, 1, 0, 0 } };
    pl_meter_rail other[] = { { "a", 0x40, 1, 1, 1, 0, 0 }, { "b", 0x41, 2, 1, 1, 0, 0 } };
    pl_meter_rail nameless[] = { { "", 0x40, 0, 1, 1, 0, 0 } }, longer[] = { { "thirteen byte", 0x40, 0, 1, 1, 0, 0 } };
    pl_meter_rail no_shunt[] = { { "a", 0x40, 0, 1, 0, 0, 0 } }, loose[] = { { "a", 0x40, 0, 1, 1, 60001, 0 } };
    const pl_meter_config bad[] = {
        { 2, 1, TWO_219, 0, { 0 }, "", 0 },
        { 0, 0, TWO_219, 0, { 0 }, "", 0 },
        { 0, 4, TWO_219, 0, { 0 }, "", 0 },
        { 1, 2, same, 0, { 0 }, "", 0 },
        { 1, 2, other, 0, { 0 }, "", 0 },
        { 0, 1, nameless, 0, { 0 }, "", 0 },
        { 0, 1, longer, 0, { 0 }, "", 0 },
        { 0, 1, no_shunt, 0, { 0 }, "", 0 },
        { 0, 1, loose, 0, { 0 }, "", 0 },
        { 0, 2, TWO_219, 60000001, { 0 }, "", 0 },
        { 0, 2, TWO_219, 0, { 0 }, "twenty-five bytes of name", 0 },
    };
    for (unsigned k = 0; k < LENGTH(bad); k++) {
        CHECK(pl_meter_init(&meter, &HAL, &bad[k], 0, "") == PL_ERR_ARGUMENT,
              "a figure outside the contract is refused", k);
    }
    CHECK(pl_meter_init(&meter, &HAL, &CONFIGS[0], 0, "seventeen letters") == PL_ERR_ARGUMENT, "a cause too long", 0);
}

int main(void) {
    for (unsigned chip = 0; chip < 2; chip++) {
        test_joules(chip, 0);
        test_joules(chip, UINT32_MAX - 5000000u); /* the port's microseconds wrap meanwhile */
    }
    test_faults();
    test_the_line();
    test_noise();
    test_saturation();
    test_long_silence();
    test_long_texts();
    test_configs();
    return verdict("meter");
}
