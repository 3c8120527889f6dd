/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* RAPL as the kernel shows it: package-0 with core inside it, and dram beside it. Counts move each millisecond and wrap
 * after 2^32 units, as those of a processor do; the unit is chosen so that a test sees it happen. */
#include <linux/module.h>
#include <linux/powercap.h>
#include <linux/slab.h>

#include "bench.h"

static uint unit_nj = 116; /* 61035 on most processors, which wrap after 262 kJ; this after 498 J */
module_param(unit_nj, uint, 0444);

struct bench_zone {
    struct powercap_zone zone; /* first: what the kernel hands back is this */
    const char *name;
    struct bench_zone *parent; /* NULL: at the top */
    bool is_part; /* core: a quarter of the parent's */
    struct loads loads;
    struct bench_rail rail;
    int64_t begun_fj; /* what the counter counts from */
};

static struct bench_zone package = { .name = "package-0" };
static struct bench_zone core = { .name = "core", .parent = &package, .is_part = true };
static struct bench_zone dram = { .name = "dram", .parent = &package };
static struct bench_zone *const ZONES[] = { &package, &core, &dram };
static struct powercap_control_type *control_type;
static DEFINE_MUTEX(lock);

/* Zones ------------------------------------------------------------------------------------------------------ */

static int get_energy_uj(struct powercap_zone *zone, u64 *energy_uj) {
    struct bench_zone *of = container_of(zone, struct bench_zone, zone);
    struct bench_zone *drawn = of->is_part ? of->parent : of;
    int64_t nj;

    mutex_lock(&lock);
    nj = (loads_until(&drawn->loads, bench_now_us() / 1000 * 1000).fj - of->begun_fj) / 1000000;
    mutex_unlock(&lock);
    nj = nj < 0 ? 0 : nj;
    if (of->is_part)
        nj /= 4;
    *energy_uj = ((uint64_t)nj / unit_nj & 0xFFFFFFFF) * unit_nj / 1000;
    return 0;
}

static int get_max_energy_range_uj(struct powercap_zone *zone, u64 *range_uj) {
    *range_uj = 0xFFFFFFFFULL * unit_nj / 1000;
    return 0;
}

/* A counter that begins anew, as one does after a suspend. */
static int reset_energy_uj(struct powercap_zone *zone) {
    struct bench_zone *of = container_of(zone, struct bench_zone, zone);

    mutex_lock(&lock);
    of->begun_fj = loads_until(of->is_part ? &of->parent->loads : &of->loads, bench_now_us()).fj;
    mutex_unlock(&lock);
    return 0;
}

static int release(struct powercap_zone *zone) {
    return 0;
}

static const struct powercap_zone_ops zone_ops = {
    .get_energy_uj = get_energy_uj,
    .get_max_energy_range_uj = get_max_energy_range_uj,
    .reset_energy_uj = reset_energy_uj,
    .release = release,
};

/* A zone must have limits; nobody sets these. */
static int get_limit(struct powercap_zone *zone, int id, u64 *value) {
    *value = 0;
    return 0;
}

static int set_limit(struct powercap_zone *zone, int id, u64 value) {
    return -EPERM;
}

static const struct powercap_zone_constraint_ops constraint_ops = {
    .get_power_limit_uw = get_limit,
    .set_power_limit_uw = set_limit,
    .get_time_window_us = get_limit,
    .set_time_window_us = set_limit,
};

/* Life ------------------------------------------------------------------------------------------------------- */

static void nothing_converts(void *owner, int64_t now_us) {}

int bench_powercap_start(struct dentry *root) {
    int i, error = 0;

    control_type = powercap_register_control_type(NULL, "intel-rapl", NULL);
    if (IS_ERR(control_type))
        return PTR_ERR(control_type);
    for (i = 0; i < ARRAY_SIZE(ZONES); i++) {
        struct bench_zone *of = ZONES[i];
        struct powercap_zone *parent = of->parent ? &of->parent->zone : NULL, *zone;

        zone = powercap_register_zone(&of->zone, control_type, of->name, parent, &zone_ops, 1, &constraint_ops);
        if (IS_ERR(zone)) {
            error = PTR_ERR(zone);
            break;
        }
        if (!of->is_part) {
            of->rail = (struct bench_rail){ .loads = &of->loads, .lock = &lock, .advance = nothing_converts };
            bench_rail_files(debugfs_create_dir(of->name, root), "", &of->rail);
        }
    }
    while (error && i-- > 0)
        powercap_unregister_zone(control_type, &ZONES[i]->zone);
    if (error)
        powercap_unregister_control_type(control_type);
    return error;
}

void bench_powercap_stop(void) {
    int i = ARRAY_SIZE(ZONES);

    while (i-- > 0)
        powercap_unregister_zone(control_type, &ZONES[i]->zone);
    powercap_unregister_control_type(control_type);
}
