/* SPDX-License-Identifier: Apache-2.0 */
#include "pl_internal.h"

/* Sensors --------------------------------------------------------------------------------------------------------- */

/* Neither microvolts nor an INA219's bus word above 16.384 V fit int16: all is int32 from the wire on. */
static int32_t unsigned_word(const uint8_t wire[2]) {
    return (int32_t)wire[0] << 8 | wire[1];
}

static int32_t signed_word(const uint8_t wire[2]) {
    int32_t word = unsigned_word(wire);
    return word < 0x8000 ? word : word - 0x10000;
}

/* Current and power of the two voltages, rounded towards zero. |shunt_uv| <= 327 680 and |bus_mv| < 2^16, so both
 * products stay below 2^45. */
static int finish(pl_rail *out, int32_t shunt_uv, int32_t bus_mv, uint32_t shunt_uohm, uint32_t flags) {
    if (shunt_uohm == 0) {
        return PL_ERR_ARGUMENT;
    }
    *out = (pl_rail){
        .current_ua = (int64_t)shunt_uv * 1000000 / shunt_uohm,
        .power_uw = (int64_t)shunt_uv * bus_mv * 1000 / shunt_uohm,
        .shunt_uv = shunt_uv,
        .bus_mv = bus_mv,
        .flags = flags,
    };
    return PL_OK;
}

int pl_ina219(uint32_t config, const uint8_t shunt[2], const uint8_t bus[2], uint32_t shunt_uohm, pl_rail *out) {
    int32_t counts = signed_word(shunt), word = unsigned_word(bus), volts = word >> 3;
    int32_t full = 4000 << (config >> 11 & 3), full_bus = config >> 13 & 1 ? 8000 : 4000;
    uint32_t flags = (word & 2 ? PL_RAIL_READY : 0u) | (word & 1 ? PL_RAIL_OVERFLOW : 0u);
    if (counts >= full || counts <= -full || volts >= full_bus) {
        flags |= PL_RAIL_SATURATED;
    }
    return finish(out, counts * 10, volts * 4, shunt_uohm, flags);
}

/* The lowest three bits are none, and 40 uV and 8 mV are 5 and 1 for each count of the whole word: nothing is shifted. */
int pl_ina3221(const uint8_t shunt[2], const uint8_t bus[2], uint32_t shunt_uohm, pl_rail *out) {
    int32_t counts = signed_word(shunt) & ~7, volts = signed_word(bus) & ~7;
    bool clipped = counts == 0x7FF8 || counts == -0x8000 || volts == 0x7FF8 || volts == -0x8000;
    return finish(out, counts * 5, volts, shunt_uohm, clipped ? PL_RAIL_SATURATED : 0u);
}
