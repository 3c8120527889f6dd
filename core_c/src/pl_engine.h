/* SPDX-License-Identifier: Apache-2.0 */
/* What the sources of the server's sampler share. One kernel a kind of machine; all of them do the same, bit for bit. */
#ifndef PL_ENGINE_H
#define PL_ENGINE_H

#include "pl_internal.h"

enum {
    PL_LINE = 16, /* prefix sums in a node: 64 bytes, one cache line */
    PL_FLAT_LINES = 4, /* so many lines of clients and no more need no tree: registers hold them while a chunk passes */
    PL_ROOT_LINES = 2, /* the root of a tree likewise; more lines cost more than another level */
    PL_CHUNK = 256, /* draws that go through a level together: 16 KiB of lines, a third of a first-level cache */
    PL_CHUNK_PAD = 64, /* random words are made so many at a time */
    PL_SORT_MOST = 2048, /* longest array for a kernel's sort */
    PL_SORT_LEAST = 32
};

/* A stream's place in Philox: blocks first, first + 1, ... of (step, epoch, purpose) under key. */
typedef struct pl_stream {
    uint32_t key[2];
    uint32_t tail[3]; /* step, epoch, purpose */
    uint32_t block;
} pl_stream;

typedef struct pl_kernel {
    /* out[n rounded up to PL_CHUNK_PAD] = the words of the stream. */
    void (*words)(const pl_stream *s, uint32_t n, uint32_t out[]);

    /* r[i] = high half of word i * (total - i), likewise rounded up; false where a word may have to be skipped. */
    bool (*bounded)(const pl_stream *s, uint32_t total, uint32_t n, uint32_t r[]);

    /* Take n draws out of 1 to PL_FLAT_LINES lines, in order. */
    void (*flat)(uint32_t lines[], uint32_t n_lines, const uint32_t r[], uint32_t n);

    /* Take n draws out of a root of 1 to PL_ROOT_LINES lines, in order: at[i] is the child of each, what is left of r
     * there stays in r; begin to fetch the child's line in `next`. */
    void (*top)(uint32_t lines[], uint32_t n_lines, uint32_t r[], uint32_t at[], uint32_t n, const uint32_t next[]);

    /* Take n draws through one level, in order: at[i] is the node before and its child after. next: NULL at the end. */
    void (*level)(uint32_t lines[], uint32_t r[], uint32_t at[], uint32_t n, const uint32_t next[]);

    /* n <= PL_SORT_MOST sorted clients -> each once, with how often it stood there. Readable are one word before `sorted`
     * and PL_LINE behind. NULL: there is no fast way. */
    uint32_t (*runs)(const uint32_t sorted[], uint32_t n, uint32_t ids[], uint32_t counts[]);

    /* Sort n numbers, a power of two from PL_SORT_LEAST to PL_SORT_MOST; NULL: there is no fast way. */
    void (*sort)(uint32_t a[], uint32_t n);
} pl_kernel;

extern const pl_kernel pl_kernel_portable;
#if defined(__x86_64__) && defined(__GNUC__)
#define PL_X86 1
extern const pl_kernel pl_kernel_sse2, pl_kernel_avx2, pl_kernel_avx512;
#else
#define PL_X86 0
#endif
#if defined(__aarch64__) && defined(__GNUC__)
#define PL_NEON 1
extern const pl_kernel pl_kernel_neon;
#else
#define PL_NEON 0
#endif

/* The kernel of an enum pl_simd, and which one that is where the best is asked for. */
uint32_t pl_engine_chosen(uint32_t simd);
const pl_kernel *pl_engine_kernel(uint32_t simd);

/* The sums of a level; level 0 are the clients. */
uint32_t *pl_engine_level(const pl_engine *e, uint32_t level);

/* Add a difference, modulo 2^32, to the pool of k. */
void pl_engine_shift(pl_engine *e, uint32_t k, uint32_t difference);

#if defined(__GNUC__)
#define PL_INLINE static inline __attribute__((always_inline))
#define PL_PREFETCH(p) __builtin_prefetch((p), 1)
#else
#define PL_INLINE static inline
#define PL_PREFETCH(p) ((void)(p))
#endif

#endif
