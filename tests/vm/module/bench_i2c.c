/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* The I2C adapter "paceline-bench", the chips on it, and the faults that can be switched on while it runs. */
#include <linux/delay.h>
#include <linux/i2c.h>
#include <linux/module.h>
#include <linux/vmalloc.h>

#include "bench.h"
#include "ina219.h"
#include "ina3221.h"

#define NOT_FORCED 0x10000

struct bench_chip {
    uint8_t address;
    bool is_ina3221;
    uint32_t shunt_uohm; /* 10 mohm is what the kernel's drivers take a shunt for that nobody told them about */

    struct mutex lock;
    union {
        struct ina219 ina219;
        struct ina3221 ina3221;
    } *model;
    struct bench_rail rails[INA3221_CHANNELS];
    uint8_t pointer; /* kept between transfers */

    uint32_t nack;    /* so many transfers fail; 0xFFFFFFFF: all of them */
    uint32_t error;   /* with this errno */
    uint32_t slow_us; /* each transfer takes longer by it */
    uint32_t forced;  /* each read gives this word, unless NOT_FORCED: 0xFFFF for SDA that hangs high, 0 for low */
    uint64_t n_transfers, n_bytes;
};

static struct bench_chip chips[] = {
    { .address = 0x40, .is_ina3221 = false, .shunt_uohm = 100000 }, /* read over /dev/i2c */
    { .address = 0x41, .is_ina3221 = true, .shunt_uohm = 100000 },
    { .address = 0x44, .is_ina3221 = false, .shunt_uohm = 10000 }, /* bound to the kernel's drivers */
    { .address = 0x42, .is_ina3221 = true, .shunt_uohm = 10000 },
};

/* Chips ------------------------------------------------------------------------------------------------------ */

static void power_on(struct bench_chip *chip) {
    if (chip->is_ina3221)
        ina3221_power_on(&chip->model->ina3221, bench_now_us());
    else
        ina219_power_on(&chip->model->ina219, bench_now_us());
}

static void advance(void *owner, int64_t now_us) {
    struct bench_chip *chip = owner;

    if (chip->is_ina3221)
        ina3221_advance(&chip->model->ina3221, now_us);
    else
        ina219_advance(&chip->model->ina219, now_us);
}

static uint16_t read_word(struct bench_chip *chip) {
    uint16_t word = chip->is_ina3221 ? ina3221_read(&chip->model->ina3221, chip->pointer, bench_now_us())
                                     : ina219_read(&chip->model->ina219, chip->pointer, bench_now_us());

    return chip->forced < NOT_FORCED ? chip->forced : word;
}

static void write_word(struct bench_chip *chip, uint16_t word) {
    if (chip->is_ina3221)
        ina3221_write(&chip->model->ina3221, chip->pointer, word, bench_now_us());
    else
        ina219_write(&chip->model->ina219, chip->pointer, word, bench_now_us());
}

/* Adapter ---------------------------------------------------------------------------------------------------- */

static struct bench_chip *find(uint16_t address) {
    int i;

    for (i = 0; i < ARRAY_SIZE(chips); i++)
        if (chips[i].address == address)
            return &chips[i];
    return NULL;
}

static int answer(struct bench_chip *chip, struct i2c_msg *message) {
    int i;

    chip->n_bytes += message->len;
    if (chip->nack) {
        if (chip->nack != 0xFFFFFFFF)
            chip->nack--;
        return -(int)chip->error;
    }
    if (message->flags & I2C_M_RD) {
        uint16_t word = read_word(chip); /* latched, so that both bytes are of one conversion */

        for (i = 0; i < message->len; i++)
            message->buf[i] = i == 0 ? word >> 8 : i == 1 ? word & 0xFF : 0xFF;
        return 0;
    }
    if (message->len > 0)
        chip->pointer = message->buf[0];
    if (message->len > 2)
        write_word(chip, (uint16_t)(message->buf[1] << 8 | message->buf[2]));
    return 0;
}

static int transfer(struct i2c_adapter *adapter, struct i2c_msg *messages, int n) {
    struct bench_chip *before = NULL;
    int i, error;

    for (i = 0; i < n; i++) {
        struct bench_chip *chip = find(messages[i].addr);

        if (chip == NULL)
            return -ENXIO;
        if (chip != before) {
            chip->n_transfers++;
            if (chip->slow_us)
                usleep_range(chip->slow_us, chip->slow_us + chip->slow_us / 10 + 10);
        }
        before = chip;
        mutex_lock(&chip->lock);
        error = answer(chip, &messages[i]);
        mutex_unlock(&chip->lock);
        if (error)
            return error;
    }
    return n;
}

static u32 functionality(struct i2c_adapter *adapter) {
    return I2C_FUNC_I2C | I2C_FUNC_SMBUS_EMUL;
}

static const struct i2c_algorithm algorithm = { .master_xfer = transfer, .functionality = functionality };
static struct i2c_adapter adapter = { .owner = THIS_MODULE, .algo = &algorithm, .name = "paceline-bench" };

/* Files ------------------------------------------------------------------------------------------------------ */

static int reset_set(void *data, u64 value) {
    struct bench_chip *chip = data;

    mutex_lock(&chip->lock);
    advance(chip, bench_now_us());
    power_on(chip);
    mutex_unlock(&chip->lock);
    return 0;
}

DEFINE_DEBUGFS_ATTRIBUTE(reset_file, NULL, reset_set, "%llu\n");

static void rail_files(struct dentry *dir, struct bench_chip *chip, int i, struct loads *loads, struct track *track) {
    char suffix[2] = { chip->is_ina3221 ? '1' + i : '\0', '\0' };

    chip->rails[i] =
        (struct bench_rail){ .loads = loads, .track = track, .lock = &chip->lock, .advance = advance, .owner = chip };
    bench_rail_files(dir, suffix, &chip->rails[i]);
}

static void make_files(struct dentry *root, struct bench_chip *chip) {
    struct ina219 *ina219 = &chip->model->ina219;
    struct ina3221 *ina3221 = &chip->model->ina3221;
    struct dentry *dir;
    char name[3];
    int i;

    snprintf(name, sizeof(name), "%02x", chip->address);
    dir = debugfs_create_dir(name, root);
    debugfs_create_u32("nack", 0600, dir, &chip->nack);
    debugfs_create_u32("errno", 0600, dir, &chip->error);
    debugfs_create_u32("slow_us", 0600, dir, &chip->slow_us);
    debugfs_create_x32("forced", 0600, dir, &chip->forced);
    debugfs_create_u64("transfers", 0400, dir, &chip->n_transfers);
    debugfs_create_u64("bytes", 0400, dir, &chip->n_bytes);
    debugfs_create_file("reset", 0200, dir, chip, &reset_file);
    debugfs_create_u32("stuck", 0600, dir, chip->is_ina3221 ? &ina3221->stuck : &ina219->stuck);
    debugfs_create_u32("clock_permille", 0600, dir,
                       chip->is_ina3221 ? &ina3221->clock_permille : &ina219->clock_permille);
    if (!chip->is_ina3221) {
        rail_files(dir, chip, 0, &ina219->rail, &ina219->track);
        return;
    }
    debugfs_create_x16("die", 0600, dir, &ina3221->die);
    for (i = 0; i < INA3221_CHANNELS; i++)
        rail_files(dir, chip, i, &ina3221->channels[i].rail, &ina3221->channels[i].track);
}

static int make_chip(struct dentry *root, struct bench_chip *chip) {
    mutex_init(&chip->lock);
    chip->model = vzalloc(sizeof(*chip->model));
    if (chip->model == NULL)
        return -ENOMEM;
    chip->error = ENXIO;
    chip->forced = NOT_FORCED;
    if (chip->is_ina3221) {
        chip->model->ina3221.shunt_uohm = chip->shunt_uohm;
        chip->model->ina3221.clock_permille = 1000;
        chip->model->ina3221.die = 0x3220;
    } else {
        chip->model->ina219.shunt_uohm = chip->shunt_uohm;
        chip->model->ina219.clock_permille = 1000;
    }
    power_on(chip);
    make_files(root, chip);
    return 0;
}

static void free_chips(void) {
    int i;

    for (i = 0; i < ARRAY_SIZE(chips); i++)
        vfree(chips[i].model);
}

int bench_i2c_start(struct dentry *root) {
    int i, error = 0;

    for (i = 0; i < ARRAY_SIZE(chips) && !error; i++)
        error = make_chip(root, &chips[i]);
    if (!error)
        error = i2c_add_adapter(&adapter);
    if (error)
        free_chips();
    return error;
}

void bench_i2c_stop(void) {
    i2c_del_adapter(&adapter);
    free_chips();
}
