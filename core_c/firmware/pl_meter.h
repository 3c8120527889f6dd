/* SPDX-License-Identifier: Apache-2.0 */
/* The meter on a microcontroller: INA219 or INA3221 over I2C -> joules over a serial line (docs/PROTOCOL.md, section 9).
 *
 * A port brings the four functions of pl_hal, a pl_meter_config and a main that calls pl_meter_step for ever and feeds
 * its watchdog after each call; firmware_notes/porting.md shows one. Freestanding C11; all state is the caller's. */
#ifndef PL_METER_H
#define PL_METER_H

#include "paceline.h"

#include <stddef.h>

/* HAL ------------------------------------------------------------------------------------------------------------- */

enum pl_bus_status {
    PL_BUS_OK = 0,
    PL_BUS_NACK = -1, /* nobody answers at that address */
    PL_BUS_STUCK = -2 /* a line is held low, or a transfer came to no end: the port gives up within 10 ms, and has tried
                       * to free the bus (nine clocks, then a stop) */
};

typedef struct pl_hal {
    void *port; /* handed to each function */
    /* Write out[n_out], then, for n_in > 0, read in[n_in] after a repeated start. Returns enum pl_bus_status. */
    int (*i2c)(void *port, uint8_t address, const uint8_t *out, size_t n_out, uint8_t *in, size_t n_in);
    /* Both at once, without waiting: what has come, up to `most`; how many of n bytes were taken. */
    size_t (*uart_read)(void *port, uint8_t *bytes, size_t most);
    size_t (*uart_write)(void *port, const uint8_t *bytes, size_t n);
    uint32_t (*micros)(void *port); /* microseconds since any instant; wraps at 2^32 */
} pl_hal;

/* Meter ----------------------------------------------------------------------------------------------------------- */

enum { PL_METER_RAILS = 3, PL_METER_TX = 160, PL_METER_RX = 12, PL_METER_EDGES = 2 };

enum pl_chip { PL_CHIP_INA219 = 0, PL_CHIP_INA3221 = 1 };

typedef struct pl_meter_rail {
    const char *name; /* 1 to 12 bytes */
    uint8_t address; /* INA219: of its chip; INA3221: one for all rails */
    uint8_t channel; /* INA3221: 1 to 3, growing from rail to rail; INA219: unused */
    uint8_t counted; /* 1: part of the board's total */
    uint32_t shunt_uohm;
    uint32_t tolerance_ppm; /* of the shunt; 0: 10000 */
    uint32_t bus_most_mv; /* the rail's voltage at the most: makes watts of a shunt's offset; 0: 5500 */
} pl_meter_rail;

typedef struct pl_meter_config {
    uint32_t chip; /* enum pl_chip, of all rails */
    uint32_t n_rails;
    const pl_meter_rail *rails;
    uint32_t period_us; /* from one READING to the next; 0: 100000. A conversion's length at the least */
    uint8_t device[8]; /* this device's own number, for ever */
    const char *firmware; /* up to 24 bytes */
    uint32_t may_hang; /* 1: obey HANG, which tries the watchdog; for test builds */
} pl_meter_config;

/* Inside. */
typedef struct pl_meter_state {
    pl_knot knots[4];
    pl_integrator energy;
    int64_t told_uj; /* what the counter was told to be, which never falls */
    uint32_t due_us; /* when to look again */
    uint32_t idle_us; /* when the chip was last seen without a new conversion */
    uint16_t polls; /* in vain, since it was set up or had converted something */
    uint16_t bus_mv; /* at the last conversion */
    uint8_t is_set; /* configured by us, and never seen otherwise since ... */
    uint8_t follows; /* ... and has converted since: the next conversion follows the last */
    uint8_t fault; /* code of FAULT; 0: none */
} pl_meter_state;

typedef struct pl_meter {
    const pl_hal *hal;
    const pl_meter_config *config;
    const char *reset_cause;
    uint32_t boot;
    pl_meter_state rails[PL_METER_RAILS];
    uint64_t now_us;
    uint64_t reading_us; /* the instant of the last READING with a value */
    uint32_t began_us;
    uint32_t spoke_us; /* when the last READING was made ... */
    uint32_t ident_us; /* ... IDENT ... */
    uint32_t fault_us; /* ... FAULT */
    uint32_t sequence;
    uint32_t crc; /* of the frame that is being written */
    uint32_t edge_number[PL_METER_EDGES];
    uint64_t edge_us[PL_METER_EDGES]; /* 0: none */
    uint8_t tx_from, tx_to, tx_begin, tx_code; /* sent; written; where the last frame and its last run begin */
    uint8_t tx_room; /* what the frame may still hold */
    uint8_t tx_full, saturated, tested;
    uint8_t rx_n; /* bytes held; above PL_METER_RX: too long, skipped to the next 0x00 */
    uint8_t rx[PL_METER_RX];
    uint8_t tx[PL_METER_TX];
} pl_meter;

/* All but m is kept, not copied. boot: another number at each boot, a counter that survives or chance; reset_cause: up to
 * 16 bytes, told with the self-test. PL_ERR_ARGUMENT: a figure or name is outside its contract. */
int pl_meter_init(pl_meter *m, const pl_hal *hal, const pl_meter_config *config, uint32_t boot,
                  const char *reset_cause);

/* One turn: listen, look at the sensors, speak. Call it every millisecond or oftener; it never waits. */
void pl_meter_step(pl_meter *m);

#endif
