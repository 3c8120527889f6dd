/* SPDX-License-Identifier: Apache-2.0 */
/* What all C tests share: a check that names the case, and the exit status. Needs printf and nothing else of libc. */
#ifndef CHECK_H
#define CHECK_H

#include "paceline.h"

#include <stdio.h>

static int failures;

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

/* `what` is a sentence that the failure prints; `k` numbers the case or step. */
static void check(int good, const char *what, unsigned long k, int line) {
    if (!good) {
        failures++;
        printf("line %d: case %lu: not so: %s\n", line, k, what);
    }
}

#define CHECK(good, what, k) check((good) ? 1 : 0, what, (unsigned long)(k), __LINE__)

static int verdict(const char *name) {
    printf("%s: %s\n", name, failures ? "FAILED" : "ok");
    return failures ? 1 : 0;
}

#endif
