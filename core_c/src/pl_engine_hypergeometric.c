/* SPDX-License-Identifier: Apache-2.0 */
#include "pl_internal.h"

/* Engine: a number a client instead of a draw a sample ------------------------------------------------------------ */

/* Of `total` samples, `good` of them a client's, `sample` are drawn; how many of them are the client's has the
 * hypergeometric law. Doubles with + - * / alone, so these numbers too are the same on every machine. */

/* 2 atanh(t) for |t| <= 0.1716: the series up to t^19, what is left out is below 1e-17; in pairs, which do not wait for
 * each other. */
static double twice_atanh(double t) {
    double s = t * t, q = s * s, q2 = q * q;
    double a = (1 + s * (1.0 / 3)) + q * (1.0 / 5 + s * (1.0 / 7));
    double b = (1.0 / 9 + s * (1.0 / 11)) + q * (1.0 / 13 + s * (1.0 / 15));
    return 2 * t * (a + q2 * (b + q2 * (1.0 / 17 + s * (1.0 / 19))));
}

union bits {
    double value;
    uint64_t bits;
};

/* ln x, x > 0 and normal. */
static double ln(double x) {
    union bits b = { .value = x };
    int exponent = (int)(b.bits >> 52) - 1023;
    b.bits = (b.bits & 0xFFFFFFFFFFFFFu) | 0x3FF0000000000000u;
    if (b.value > 1.4142135623730951) {
        b.value /= 2;
        exponent++;
    }
    return exponent * 0.69314718055994531 + twice_atanh((b.value - 1) / (b.value + 1));
}

/* ln(1 + x) */
static double ln_1p(double x) {
    return x > -0.29 && x < 0.41 ? twice_atanh(x / (2 + x)) : ln(1 + x);
}

/* A root for the width of the hat, x >= 0.5; four Newton steps from a start within 7 % leave 1e-16. */
static double root(double x) {
    union bits b = { .value = x };
    b.bits = (b.bits >> 1) + 0x1FF8000000000000u;
    for (int i = 0; i < 4; i++) {
        b.value = (b.value + x / b.value) / 2;
    }
    return b.value;
}

/* ln(n!) less (n + 1/2) ln n - n + ln(2 pi) / 2, n >= 1; from 8 on the next term is below 1e-10 / 2. */
static double stirling(double n) {
    static const double EXACT[] = { 0,
                                    0.081061466795327258,
                                    0.041340695955409294,
                                    0.027677925684998339,
                                    0.020790672103765093,
                                    0.016644691189821193,
                                    0.013876128823070748,
                                    0.011896709945891770 };
    if (n < 8) {
        return EXACT[(int)n];
    }
    double i = 1 / n, s = i * i;
    return i * (1.0 / 12 - s * (1.0 / 360 - s * (1.0 / 1260 - s * (1.0 / 1680))));
}

/* ln((m + d)! / m!) less d ln(m + d), which the caller adds for all four at once; m and m + d whole, at least 0.
 * rest: stirling(m), where m is 1 or more. */
static double ratio(double m, double d, double rest) {
    double x = m + d;
    if (m < 1 || x < 1) { /* 0! has no (n + 1/2) ln n */
        double sum = 0;
        for (double n = m < x ? x : m; n > 1; n--) {
            sum += ln(n);
        }
        return (m < x ? sum : -sum) - (x < 1 ? 0 : d * ln(x));
    }
    return (m + 0.5) * ln_1p(d / m) - d + stirling(x) - rest;
}

/* One of 2^53 values, inside (0, 1). */
static double uniform(pl_rng *rng) {
    double high = pl_rng_word(rng) >> 5, low = pl_rng_word(rng) >> 6;
    return (high * 67108864.0 + low + 0.5) * (1 / 9007199254740992.0);
}

/* Draw by draw: `sample` of total, for few of them. */
static uint32_t one_by_one(pl_rng *rng, uint32_t good, uint32_t total, uint32_t sample) {
    uint32_t got = 0;
    for (uint32_t i = 0; i < sample; i++) {
        got += pl_rng_below(rng, total - i) < good - got;
    }
    return got;
}

/* Ratio of uniforms (Stadlober): a point (u, v) under the hat is the law's where u^2 <= f(x) / f(mode). */
static uint32_t by_ratio(pl_rng *rng, uint32_t good, uint32_t total, uint32_t sample) {
    double g = good, n = total, m = sample, bad = n - g;
    double mean = m * g / n, variance = mean * (bad / n) * ((n - m) / (n - 1));
    double width = 1.7155277699214135 * root(variance + 0.5) + 0.8989161620588988; /* 2 sqrt(2/e), 3 - 2 sqrt(3/e) */
    double mode = (double)(uint64_t)((m + 1) * (g + 1) / (n + 2));
    double least = m > bad ? m - bad : 0, most = g < m ? g : m;
    /* f(x) is the inverse of x! (g - x)! (m - x)! (bad - m + x)!, up to a factor */
    double at[] = { mode, g - mode, m - mode, bad - m + mode }, rest[4];
    for (int i = 0; i < 4; i++) {
        rest[i] = at[i] < 1 ? 0 : stirling(at[i]);
    }
    for (;;) {
        double u = uniform(rng), place = mean + 0.5 + width * (uniform(rng) - 0.5) / u;
        if (place < least || place >= most + 1) {
            continue;
        }
        double d = (double)(uint64_t)place - mode, up = 1, down = 1, sum = 0;
        for (int i = 0; i < 4; i++) {
            bool grows = i == 0 || i == 3;
            double by = grows ? d : -d, x = at[i] + by, *side = grows ? &up : &down;
            sum -= ratio(at[i], by, rest[i]);
            *side *= x < 1 ? 1 : x; /* what a 0 among them adds is in its ratio */
        }
        sum -= d * ln(up / down);
        if (u * (4 - u) - 3 <= sum || (u * (u - sum) < 1 && 2 * ln(u) <= sum)) { /* bounds of 2 ln u, mostly enough */
            return (uint32_t)(mode + d);
        }
    }
}

uint32_t pl_hypergeometric(pl_rng *rng, uint32_t good, uint32_t total, uint32_t sample) {
    uint32_t bad = total - good, rest = total - sample;
    uint32_t least = good < bad ? good : bad;
    if (sample < least) {
        least = sample;
    }
    if (rest < least) {
        least = rest;
    }
    if (least > 16) {
        return by_ratio(rng, good, total, sample);
    }
    /* The law is the same with `good` and `sample` exchanged; either may be counted by what it leaves. */
    if (least == sample) {
        return one_by_one(rng, good, total, sample);
    }
    if (least == good) {
        return one_by_one(rng, sample, total, good);
    }
    return least == rest ? good - one_by_one(rng, good, total, rest) : sample - one_by_one(rng, sample, total, bad);
}
