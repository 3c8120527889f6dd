/* SPDX-License-Identifier: Apache-2.0 */
#include "pl_internal.h"

/* Schedule -------------------------------------------------------------------------------------------------------- */

uint32_t pl_schedule_batch(uint64_t before, uint32_t share, uint32_t steps, uint32_t step) {
    uint32_t first = (uint32_t)(before % steps); /* the step of the rank's first place */
    uint32_t turn = step >= first ? step - first : steps - (first - step);
    return share / steps + (turn < share % steps ? 1 : 0);
}

int pl_schedule(uint32_t n, const uint32_t shares[], uint32_t steps, uint32_t minimum, uint32_t batches[],
                uint32_t *most) {
    if (steps == 0 || n == 0) {
        return PL_ERR_ARGUMENT;
    }
    uint32_t feasible = UINT32_MAX;
    for (uint32_t i = 0; minimum > 0 && i < n; i++) {
        uint32_t possible = shares[i] / minimum;
        feasible = possible < feasible ? possible : feasible;
    }
    if (steps > feasible) {
        if (most) {
            *most = feasible;
        }
        return PL_ERR_STEPS;
    }
    uint64_t before = 0;
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t step = 0; step < steps; step++) {
            batches[(uint64_t)step * n + i] = pl_schedule_batch(before, shares[i], steps, step);
        }
        before += shares[i];
    }
    return PL_OK;
}
