/* SPDX-License-Identifier: Apache-2.0 */
/* Cortex-M3 reference port: Arm's MPS2 with AN385, as QEMU has it; two simulated INA219. UART0, timer 0 and watchdog are
 * those of Arm's CMSDK (DUI 0479). */
#include "pl_meter.h"
#include "sim_ina.h"

#define REGISTER(address) (*(volatile uint32_t *)(address))

enum {
    CLOCK_HZ = 25000000,
    TICK_HZ = 2000, /* we look so often, and sleep in between */
    WATCHDOG_S = 1, /* then NMI, and after as long again a reset */
    TX_FULL = 1,
    RX_FULL = 2
};

#define TIMER_CTRL REGISTER(0x40000000)
#define TIMER_VALUE REGISTER(0x40000004)
#define TIMER_RELOAD REGISTER(0x40000008)
#define UART_DATA REGISTER(0x40004000)
#define UART_STATE REGISTER(0x40004004)
#define UART_CTRL REGISTER(0x40004008)
#define UART_BAUDDIV REGISTER(0x40004010)
#define WATCHDOG_LOAD REGISTER(0x40008000)
#define WATCHDOG_CTRL REGISTER(0x40008008)
#define WATCHDOG_CLEAR REGISTER(0x4000800C)
#define SYSTICK_CTRL REGISTER(0xE000E010)
#define SYSTICK_RELOAD REGISTER(0xE000E014)

/* Beyond the memory that the program is given: what is there outlives a reset, and is chance after power came. */
#define KEPT_BOOT REGISTER(0x20010000)
#define KEPT_BITTEN REGISTER(0x20010004)
enum { BITTEN = 0x62697465 };

void arm_nmi_isr(void);
void arm_systick_isr(void);

void arm_nmi_isr(void) {
    KEPT_BITTEN = BITTEN;
    for (;;) { /* the second time-out resets */
    }
}

void arm_systick_isr(void) {}

static const sim_load LOADS[] = {
    { .bus_mv = 5000, .low_ma = 200, .high_ma = 1000, .period_us = 1000000, .high_us = 400000 },
    { .bus_mv = 3300, .low_ma = 100, .high_ma = 350, .period_us = 730000, .high_us = 200000 },
};
static sim_ina chips[] = {
    { .chip = PL_CHIP_INA219, .address = 0x40, .shunt_uohm = 100000, .slow_percent = 3, .loads = &LOADS[0] },
    { .chip = PL_CHIP_INA219, .address = 0x41, .shunt_uohm = 100000, .loads = &LOADS[1] },
};

static uint32_t micros(void *port) {
    static uint32_t last = UINT32_MAX, ticks, us;
    (void)port;
    uint32_t now = TIMER_VALUE; /* counts down, and round in 171 s: it is looked at far oftener */
    ticks += last - now;
    last = now;
    us += ticks / (CLOCK_HZ / 1000000);
    ticks %= CLOCK_HZ / 1000000;
    return us;
}

static int i2c(void *port, uint8_t address, const uint8_t *out, size_t n_out, uint8_t *in, size_t n_in) {
    static uint64_t now_us;
    now_us += (uint32_t)(micros(port) - (uint32_t)now_us);
    return sim_ina_transfer(chips, 2, now_us, address, out, n_out, in, n_in);
}

static size_t uart_read(void *port, uint8_t *bytes, size_t most) {
    size_t n = 0;
    (void)port;
    while (n < most && UART_STATE & RX_FULL) {
        bytes[n++] = (uint8_t)UART_DATA;
    }
    return n;
}

static size_t uart_write(void *port, const uint8_t *bytes, size_t n) {
    size_t sent = 0;
    (void)port;
    while (sent < n && !(UART_STATE & TX_FULL)) {
        UART_DATA = bytes[sent++];
    }
    return sent;
}

static const pl_hal HAL = { .i2c = i2c, .uart_read = uart_read, .uart_write = uart_write, .micros = micros };
static const pl_meter_rail RAILS[] = {
    { .name = "5V", .address = 0x40, .counted = 1, .shunt_uohm = 100000 },
    { .name = "3V3", .address = 0x41, .counted = 1, .shunt_uohm = 100000 },
};

static const pl_meter_config CONFIG = {
    .chip = PL_CHIP_INA219,
    .n_rails = 2,
    .rails = RAILS,
    .device = { 'a', 'n', '3', '8', '5' },
    .firmware = "paceline mps2-an385",
    .may_hang = 1,
};

int main(void) {
    static pl_meter meter;
    const char *cause = KEPT_BITTEN == BITTEN ? "watchdog" : "power";
    KEPT_BITTEN = 0;
    UART_BAUDDIV = CLOCK_HZ / 115200;
    UART_CTRL = 3;
    TIMER_RELOAD = TIMER_VALUE = UINT32_MAX;
    TIMER_CTRL = 1;
    SYSTICK_RELOAD = CLOCK_HZ / TICK_HZ - 1;
    SYSTICK_CTRL = 7;
    WATCHDOG_LOAD = CLOCK_HZ * WATCHDOG_S;
    WATCHDOG_CTRL = 3;
    sim_ina_power_on(&chips[0], 0);
    sim_ina_power_on(&chips[1], 0);
    if (pl_meter_init(&meter, &HAL, &CONFIG, ++KEPT_BOOT, cause) != PL_OK) {
        return 1;
    }
    for (;;) {
        pl_meter_step(&meter);
        WATCHDOG_CLEAR = 1;
        __asm__ volatile("wfi");
    }
}
