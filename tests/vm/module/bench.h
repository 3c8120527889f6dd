/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* What the parts of the test module share: files in debugfs that set a load and tell the truth about it. */
#ifndef PACELINE_BENCH_H
#define PACELINE_BENCH_H

#include <linux/debugfs.h>
#include <linux/ktime.h>
#include <linux/mutex.h>

#include "load.h"

/* One rail, as its files see it. `advance` brings its converter up to an instant; called with the lock held. */
struct bench_rail {
    struct loads *loads;
    const struct track *track; /* NULL: nothing converts, the delivered energy is what is counted */
    struct mutex *lock;
    void (*advance)(void *owner, int64_t now_us);
    void *owner;
    int64_t asked_us;
};

/* Make dir/load<suffix> and dir/truth<suffix>.
 *
 * load: write lines "us ua mv", at most LOAD_STEPS, which repeat from this instant on; a read begins with the instant.
 * truth: write an instant (CLOCK_MONOTONIC, us); a read gives "instant delivered converted", energies in nanojoules
 * since the module was loaded; without a write, or after writing 0, the instant is that of the read. */
void bench_rail_files(struct dentry *dir, const char *suffix, struct bench_rail *rail);

static inline int64_t bench_now_us(void) {
    return ktime_to_us(ktime_get());
}

int bench_i2c_start(struct dentry *root);
void bench_i2c_stop(void);
#ifdef CONFIG_POWERCAP
int bench_powercap_start(struct dentry *root);
void bench_powercap_stop(void);
#else /* Debian's kernels of other machines than x86 */
static inline int bench_powercap_start(struct dentry *root) {
    (void)root;
    return 0;
}

static inline void bench_powercap_stop(void) {}
#endif

#endif
