/* SPDX-License-Identifier: Apache-2.0 */
/* RV32 reference port: QEMU's `virt`; one simulated INA3221 of three channels. UART is an NS16550, the clock the CLINT's
 * at 10 MHz. There is no watchdog: the timer's interrupt stands in for one, and resets by the machine's test device. */
#include "pl_meter.h"
#include "sim_ina.h"

#define BYTE(address) (*(volatile uint8_t *)(address))
#define WORD(address) (*(volatile uint32_t *)(address))

#define UART_DATA BYTE(0x10000000)
#define UART_FIFO BYTE(0x10000002)
#define UART_LINE BYTE(0x10000005)
#define TIMER_COMPARE_LOW WORD(0x02004000)
#define TIMER_COMPARE_HIGH WORD(0x02004004)
#define TIMER_LOW WORD(0x0200BFF8)
#define TIMER_HIGH WORD(0x0200BFFC)
#define TEST_DEVICE WORD(0x00100000)
#define CALENDAR_LOW WORD(0x00101000) /* nanoseconds since 1970: chance enough for a boot's number */

/* Beyond the memory that the program is given: what is there outlives a reset. */
#define KEPT_BITTEN WORD(0x80800000)

enum {
    RX_READY = 1,
    TX_EMPTY = 0x20,
    TICKS_PER_US = 10,
    TICK = 5000, /* half a millisecond: we look so often, and sleep in between */
    WATCHDOG_TICKS = 2000, /* a second */
    RESET = 0x7777,
    BITTEN = 0x62697465
};

static volatile uint32_t hungry; /* ticks since the watchdog was fed */

static uint64_t timer(void) {
    uint32_t high, low;
    do {
        high = TIMER_HIGH;
        low = TIMER_LOW;
    } while (high != TIMER_HIGH);
    return (uint64_t)high << 32 | low;
}

static void next_tick(void) {
    uint64_t then = timer() + TICK;
    TIMER_COMPARE_HIGH = UINT32_MAX; /* never too early in between */
    TIMER_COMPARE_LOW = (uint32_t)then;
    TIMER_COMPARE_HIGH = (uint32_t)(then >> 32);
}

__attribute__((interrupt("machine"), aligned(4))) static void tick(void) {
    next_tick();
    if (++hungry > WATCHDOG_TICKS) {
        KEPT_BITTEN = BITTEN;
        TEST_DEVICE = RESET;
    }
}

static const sim_load LOADS[] = {
    { .bus_mv = 5000, .low_ma = 200, .high_ma = 1000, .period_us = 1000000, .high_us = 400000 },
    { .bus_mv = 3304, .low_ma = 100, .high_ma = 350, .period_us = 730000, .high_us = 200000 },
    { .bus_mv = 12000, .low_ma = 50, .high_ma = 50, .period_us = 1000000, .high_us = 0 },
};
static sim_ina chip = {
    .chip = PL_CHIP_INA3221,
    .address = 0x40,
    .shunt_uohm = 100000,
    .slow_percent = 3,
    .loads = LOADS,
};

static uint32_t micros(void *port) {
    (void)port;
    return (uint32_t)(timer() / TICKS_PER_US);
}

static int i2c(void *port, uint8_t address, const uint8_t *out, size_t n_out, uint8_t *in, size_t n_in) {
    (void)port;
    return sim_ina_transfer(&chip, 1, timer() / TICKS_PER_US, address, out, n_out, in, n_in);
}

static size_t uart_read(void *port, uint8_t *bytes, size_t most) {
    size_t n = 0;
    (void)port;
    while (n < most && UART_LINE & RX_READY) {
        bytes[n++] = UART_DATA;
    }
    return n;
}

static size_t uart_write(void *port, const uint8_t *bytes, size_t n) {
    size_t sent = 0;
    (void)port;
    while (sent < n && UART_LINE & TX_EMPTY) {
        UART_DATA = bytes[sent++];
    }
    return sent;
}

static const pl_hal HAL = { .i2c = i2c, .uart_read = uart_read, .uart_write = uart_write, .micros = micros };
static const pl_meter_rail RAILS[] = {
    { .name = "5V", .address = 0x40, .channel = 1, .counted = 1, .shunt_uohm = 100000 },
    { .name = "3V3", .address = 0x40, .channel = 2, .counted = 1, .shunt_uohm = 100000 },
    { .name = "fan", .address = 0x40, .channel = 3, .counted = 0, .shunt_uohm = 100000, .bus_most_mv = 13000 },
};

static const pl_meter_config CONFIG = {
    .chip = PL_CHIP_INA3221,
    .n_rails = 3,
    .rails = RAILS,
    .device = { 'v', 'i', 'r', 't' },
    .firmware = "paceline virt-rv32",
    .may_hang = 1,
};

int main(void) {
    static pl_meter meter;
    const char *cause = KEPT_BITTEN == BITTEN ? "watchdog" : "power";
    KEPT_BITTEN = 0;
    UART_FIFO = 1;
    sim_ina_power_on(&chip, timer() / TICKS_PER_US);
    next_tick();
    __asm__ volatile(".option push\n.option arch, +zicsr\n"
                     "csrw mtvec, %0\ncsrs mie, %1\ncsrsi mstatus, 8\n"
                     ".option pop" ::"r"(tick),
                     "r"(1 << 7));
    if (pl_meter_init(&meter, &HAL, &CONFIG, CALENDAR_LOW, cause) != PL_OK) {
        return 1;
    }
    for (;;) {
        pl_meter_step(&meter);
        hungry = 0;
        __asm__ volatile("wfi");
    }
}
