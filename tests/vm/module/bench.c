/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* The test module: an I2C adapter with power monitors on it, and RAPL zones, whose true joules are known. */
#include <linux/init.h>
#include <linux/module.h>
#include <linux/seq_file.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "bench.h"

/* Load ------------------------------------------------------------------------------------------------------- */

static int parse(char *text, struct load *load) {
    char *line;

    while ((line = strsep(&text, "\n;")) != NULL) {
        struct load_step *step = &load->steps[load->n_steps];
        long long us;

        if (*skip_spaces(line) == '\0')
            continue;
        if (load->n_steps == LOAD_STEPS || sscanf(line, "%lld %d %d", &us, &step->ua, &step->mv) != 3 || us <= 0)
            return -EINVAL;
        step->us = us;
        load->n_steps++;
    }
    return 0;
}

static ssize_t load_write(struct file *file, const char __user *from, size_t count, loff_t *offset) {
    struct bench_rail *rail = ((struct seq_file *)file->private_data)->private;
    struct load *next = kzalloc(sizeof(*next), GFP_KERNEL);
    char *text = memdup_user_nul(from, count);
    int error = next == NULL ? -ENOMEM : PTR_ERR_OR_ZERO(text);

    if (!error)
        error = parse(text, next);
    if (!error) {
        int64_t now_us;

        mutex_lock(rail->lock);
        now_us = bench_now_us();
        rail->advance(rail->owner, now_us);
        loads_change(rail->loads, now_us, next);
        mutex_unlock(rail->lock);
    }
    if (!IS_ERR(text))
        kfree(text);
    kfree(next);
    return error ? error : count;
}

static int load_show(struct seq_file *out, void *unused) {
    struct bench_rail *rail = out->private;
    const struct load *load = &rail->loads->now;
    int i;

    mutex_lock(rail->lock);
    seq_printf(out, "%lld\n", load->epoch_us);
    for (i = 0; i < load->n_steps; i++)
        seq_printf(out, "%lld %d %d\n", load->steps[i].us, load->steps[i].ua, load->steps[i].mv);
    mutex_unlock(rail->lock);
    return 0;
}

static int load_open(struct inode *inode, struct file *file) {
    return single_open(file, load_show, inode->i_private);
}

static const struct file_operations load_file = {
    .owner = THIS_MODULE,
    .open = load_open,
    .read = seq_read,
    .write = load_write,
    .llseek = seq_lseek,
    .release = single_release,
};

/* Truth ------------------------------------------------------------------------------------------------------ */

static ssize_t truth_write(struct file *file, const char __user *from, size_t count, loff_t *offset) {
    struct bench_rail *rail = ((struct seq_file *)file->private_data)->private;
    int error;

    mutex_lock(rail->lock);
    error = kstrtoll_from_user(from, count, 10, &rail->asked_us);
    mutex_unlock(rail->lock);
    return error ? error : count;
}

static int truth_show(struct seq_file *out, void *unused) {
    struct bench_rail *rail = out->private;
    int64_t now_us, t_us, delivered_fj, converted_fj;
    bool is_known = true;

    mutex_lock(rail->lock);
    now_us = bench_now_us();
    t_us = rail->asked_us ? rail->asked_us : now_us;
    rail->advance(rail->owner, now_us);
    converted_fj = delivered_fj = loads_until(rail->loads, t_us).fj;
    if (rail->track)
        is_known = track_until(rail->track, t_us, &converted_fj);
    if (t_us > now_us || t_us < rail->loads->before.epoch_us)
        is_known = false;
    mutex_unlock(rail->lock);
    if (!is_known)
        return -ERANGE;
    seq_printf(out, "%lld %lld %lld\n", t_us, delivered_fj / 1000000, converted_fj / 1000000);
    return 0;
}

static int truth_open(struct inode *inode, struct file *file) {
    return single_open(file, truth_show, inode->i_private);
}

static const struct file_operations truth_file = {
    .owner = THIS_MODULE,
    .open = truth_open,
    .read = seq_read,
    .write = truth_write,
    .llseek = seq_lseek,
    .release = single_release,
};

void bench_rail_files(struct dentry *dir, const char *suffix, struct bench_rail *rail) {
    char name[16];

    snprintf(name, sizeof(name), "load%s", suffix);
    debugfs_create_file(name, 0600, dir, rail, &load_file);
    snprintf(name, sizeof(name), "truth%s", suffix);
    debugfs_create_file(name, 0600, dir, rail, &truth_file);
}

/* Module ----------------------------------------------------------------------------------------------------- */

static struct dentry *root;

static int __init bench_start(void) {
    int error;

    root = debugfs_create_dir("paceline_bench", NULL);
    error = bench_i2c_start(root);
    if (error)
        goto no_i2c;
    error = bench_powercap_start(root);
    if (error)
        goto no_powercap;
    return 0;

no_powercap:
    bench_i2c_stop();
no_i2c:
    debugfs_remove(root);
    return error;
}

static void __exit bench_stop(void) {
    debugfs_remove(root);
    bench_powercap_stop();
    bench_i2c_stop();
}

module_init(bench_start);
module_exit(bench_stop);
MODULE_DESCRIPTION("Power monitors on an I2C adapter and RAPL zones, whose true joules are known");
MODULE_LICENSE("GPL"); /* one of the two that each file offers; powercap gives its symbols to nothing else */
