/* SPDX-License-Identifier: Apache-2.0 */
/* The loops of a kernel, written once. Before it is included stand: TARGET (the attribute of its functions), NAME, and
 *   W, LANES          lanes of 64 bits, of which a product uses the low half and leaves both
 *   w_all, w_steps    all lanes x; x in lane 0, x + step in lane 1, ...
 *   w_mul, w_high, w_xor3, w_up   product of low halves, high half down, a ^ b ^ c, low half up
 *   w_store           out[4 l .. 4 l + 3] = low half of a, high of b, low of c, high of d, for each lane l
 *   F, f_none, f_below, f_any     whether in any lane the low half of p is below that of n
 *   line_take(line, r, &before)   child in which r falls; the sums of all later children fall by one; its own sum
 *   flat_take, top_take           as pl_kernel.flat and .top, with n_lines known when compiled
 *   SORT, RUNS                    functions for pl_kernel.sort and .runs, or NULL */

#define ROUND(s)                                                                                                       \
    {                                                                                                                  \
        W p = w_mul(m0, s##0), q = w_mul(m1, s##2);                                                                    \
        s##0 = w_xor3(w_high(q), s##1, k0);                                                                            \
        s##1 = q;                                                                                                      \
        s##2 = w_xor3(w_high(p), s##3, k1);                                                                            \
        s##3 = p;                                                                                                      \
    }

/* Two groups of LANES blocks side by side, since one alone would wait for its own products. */
#define TWO_GROUPS(block)                                                                                              \
    W m0 = w_all(0xD2511F53u), m1 = w_all(0xCD9E8D57u);                                                                \
    W a0 = w_steps(block, 1), b0 = w_steps((block) + LANES, 1), a1 = w_all(s->tail[0]), b1 = a1;                       \
    W a2 = w_all(s->tail[1]), b2 = a2, a3 = w_all(s->tail[2]), b3 = a3;                                                \
    uint32_t key0 = s->key[0], key1 = s->key[1];                                                                       \
    for (int round = 0; round < 10; round++) {                                                                         \
        W k0 = w_all(key0), k1 = w_all(key1);                                                                          \
        ROUND(a)                                                                                                       \
        ROUND(b)                                                                                                       \
        key0 += 0x9E3779B9u;                                                                                           \
        key1 += 0xBB67AE85u;                                                                                           \
    }

TARGET static void kernel_words(const pl_stream *s, uint32_t n, uint32_t out[]) {
    for (uint32_t i = 0; i < n; i += 8 * LANES) {
        TWO_GROUPS(s->block + i / 4)
        w_store(out + i, a0, w_up(a1), a2, w_up(a3));
        w_store(out + i + 4 * LANES, b0, w_up(b1), b2, w_up(b3));
    }
}

#define BOUND(s, left, to)                                                                                             \
    {                                                                                                                  \
        W n0 = w_steps(left, 0u - 4), n1 = w_steps((left) - 1, 0u - 4);                                                \
        W n2 = w_steps((left) - 2, 0u - 4), n3 = w_steps((left) - 3, 0u - 4);                                          \
        s##0 = w_mul(s##0, n0);                                                                                        \
        s##1 = w_mul(s##1, n1);                                                                                        \
        s##2 = w_mul(s##2, n2);                                                                                        \
        s##3 = w_mul(s##3, n3);                                                                                        \
        bad = f_below(f_below(f_below(f_below(bad, s##0, n0), s##1, n1), s##2, n2), s##3, n3);                         \
        w_store(to, w_high(s##0), s##1, w_high(s##2), s##3);                                                           \
    }

TARGET static bool kernel_bounded(const pl_stream *s, uint32_t total, uint32_t n, uint32_t r[]) {
    F bad = f_none();
    for (uint32_t i = 0; i < n; i += 8 * LANES) {
        TWO_GROUPS(s->block + i / 4)
        BOUND(a, total - i, r + i)
        BOUND(b, total - i - 4 * LANES, r + i + 4 * LANES)
    }
    return !f_any(bad);
}

TARGET static void kernel_flat(uint32_t lines[], uint32_t n_lines, const uint32_t r[], uint32_t n) {
    switch (n_lines) {
    case 1:
        flat_take(lines, 1, r, n);
        break;
    case 2:
        flat_take(lines, 2, r, n);
        break;
    case 3:
        flat_take(lines, 3, r, n);
        break;
    default:
        flat_take(lines, 4, r, n);
    }
}

TARGET static void kernel_top(uint32_t lines[], uint32_t n_lines, uint32_t r[], uint32_t at[], uint32_t n,
                              const uint32_t next[]) {
    if (n_lines == 1) {
        top_take(lines, 1, r, at, n, next);
    } else {
        top_take(lines, 2, r, at, n, next);
    }
}

TARGET static void kernel_level(uint32_t lines[], uint32_t r[], uint32_t at[], uint32_t n, const uint32_t next[]) {
    if (next == NULL) { /* the clients: what is left of r matters no more */
        for (uint32_t i = 0; i < n; i++) {
            uint32_t before;
            at[i] = PL_LINE * at[i] + line_take(lines + (size_t)PL_LINE * at[i], r[i], &before);
        }
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        uint32_t before, child = PL_LINE * at[i] + line_take(lines + (size_t)PL_LINE * at[i], r[i], &before);
        PL_PREFETCH(next + (size_t)PL_LINE * child);
        r[i] -= before;
        at[i] = child;
    }
}

const pl_kernel NAME = { kernel_words, kernel_bounded, kernel_flat, kernel_top, kernel_level, RUNS, SORT };
