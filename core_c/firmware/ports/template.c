/* SPDX-License-Identifier: Apache-2.0 */
/* A port to copy: fill in what says TODO (firmware_notes/porting.md). As it stands it builds, and measures nothing. */
#include "pl_meter.h"

/* TODO microseconds of a timer that is never set back; it may wrap at 2^32, and nowhere else. */
static uint32_t micros(void *port) {
    (void)port;
    return 0;
}

/* TODO one transfer: start, address, out[n_out]; for n_in > 0 a repeated start, in[n_in]; stop. It ends within 10 ms:
 * whoever holds the bus longer is PL_BUS_STUCK, after nine clocks and a stop. No answer to the address: PL_BUS_NACK. */
static int i2c(void *port, uint8_t address, const uint8_t *out, size_t n_out, uint8_t *in, size_t n_in) {
    (void)port, (void)address, (void)out, (void)n_out, (void)in, (void)n_in;
    return PL_BUS_NACK;
}

/* TODO what lies in the receiver's FIFO, without waiting. Errors of the line (framing, overrun) are bytes like any other. */
static size_t uart_read(void *port, uint8_t *bytes, size_t most) {
    (void)port, (void)bytes, (void)most;
    return 0;
}

/* TODO as many bytes as the transmitter's FIFO takes, without waiting. */
static size_t uart_write(void *port, const uint8_t *bytes, size_t n) {
    (void)port, (void)bytes;
    return n;
}

/* TODO a hardware watchdog that bites after a second or two. */
static void watchdog_start(void) {}

static void watchdog_feed(void) {}

static const pl_hal HAL = { .i2c = i2c, .uart_read = uart_read, .uart_write = uart_write, .micros = micros };

/* TODO your rails: shunt (R100 is 100000), address, name. */
static const pl_meter_rail RAILS[] = { { .name = "VIN", .address = 0x40, .counted = 1, .shunt_uohm = 100000 } };

static const pl_meter_config CONFIG = {
    .chip = PL_CHIP_INA219,
    .n_rails = sizeof RAILS / sizeof RAILS[0],
    .rails = RAILS,
    .device = { 0 }, /* TODO the chip's own number */
    .firmware = "my meter 1.0",
};

/* In RAM that the start code leaves alone: counts resets, and is chance after power came. */
__attribute__((section(".preserve"))) static uint32_t boots;

int main(void) {
    static pl_meter meter;
    /* TODO clocks, pins, UART at 115200 baud, I2C at 400 kHz. */
    watchdog_start();
    const char *cause = "power"; /* TODO "watchdog" where that was it */
    if (pl_meter_init(&meter, &HAL, &CONFIG, ++boots, cause) != PL_OK) {
        return 1; /* the watchdog tries again, and again; a figure of the config is wrong */
    }
    for (;;) {
        pl_meter_step(&meter);
        watchdog_feed(); /* here alone: so it bites whatever it is that hangs */
    }
}
