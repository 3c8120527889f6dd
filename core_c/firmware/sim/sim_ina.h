/* SPDX-License-Identifier: Apache-2.0 */
/* A model of INA219 and INA3221 under a load that is a function of time, so that its joules are known at every instant.
 * For reference ports and tests, where there is no sensor. */
#ifndef SIM_INA_H
#define SIM_INA_H

#include "pl_meter.h"

/* A rail whose current is high_ma for high_us of each period_us, low_ma otherwise. */
typedef struct sim_load {
    uint32_t bus_mv, low_ma, high_ma, period_us, high_us;
} sim_load;

typedef struct sim_ina {
    uint32_t chip; /* enum pl_chip */
    uint8_t address;
    uint32_t shunt_uohm;
    uint32_t slow_percent; /* its oscillator is slower than is typical */
    const sim_load *loads; /* by channel */
    /* Inside, and for tests that play with it. */
    uint16_t config;
    uint8_t place; /* register that is read */
    uint64_t begun_us; /* when it was configured */
    uint64_t seen; /* conversions up to when the flag was cleared */
} sim_ina;

/* The chip as its supply leaves it. */
void sim_ina_power_on(sim_ina *chip, uint64_t now_us);

/* A transfer as pl_hal has it, at now_us. */
int sim_ina_transfer(sim_ina *chips, uint32_t n_chips, uint64_t now_us, uint8_t address, const uint8_t *out,
                     size_t n_out, uint8_t *in, size_t n_in);

/* The charge up to t_us, in milliampere microseconds. */
uint64_t sim_charge(const sim_load *load, uint64_t t_us);

#endif
