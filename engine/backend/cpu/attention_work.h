/*
 * What an attention task works with: its queries, and one tile of keys at a time. Rows of K and V are read where they
 * lie, converted in registers; where many queries will read them, they are first copied, converted, to a panel.
 */
#ifndef CPU_ATTENTION_WORK_H
#define CPU_ATTENTION_WORK_H

#include "dot16.h"
#include "tile.h"

/* Up to as many queries K and V are converted as often as a group of TILE_ROWS queries reads them. */
#ifndef ATTENTION_DIRECT
#define ATTENTION_DIRECT (2 * TILE_ROWS)
#endif

/* P = head_dim rounded up to 32; Q = queries of the task. Cut out of the worker's scratch. */
struct attention_work {
    const struct attention_task *t;
    size_t dim, padded, queries;
    float *k, *v;          /* [ATTENTION_KEYS][P], the panels: of I8 keys, the same bytes with zeros behind */
    float *q;              /* [Q][P] */
    int16_t *q16;          /* [Q][P], for I8 keys: q = q_scale * q16 */
    float *q_scale;        /* [Q] */
    float *s;              /* [Q][ATTENTION_KEYS], scores, then probabilities */
    float *o, *m, *l;      /* of the segment: [Q][P] values, [Q] maximum, [Q] sum; l = 0 while no key was seen */
    float *to, *tm, *tl;   /* of all segments so far */
    uint32_t *begin, *end; /* [Q], the keys of the current tile that the query sees, relative to the tile */

    /* Of the tile: where its rows lie, and of which type they are there. Keys that no query sees stand for others. */
    const uint8_t *k_rows[ATTENTION_KEYS], *v_rows[ATTENTION_KEYS];
    enum dtype k_type, v_type;
    float k_scales[ATTENTION_KEYS], v_scales[ATTENTION_KEYS]; /* I8; 0 where no query sees the key */

    /* The keys to be read after this tile: fetched piece by piece meanwhile, for no hardware guesses the next block. */
    struct {
        const struct attention_task *t; /* NULL: none */
        size_t begin, end;
    } ahead;
};

VEC_INLINE size_t kv_element_bytes(enum dtype type) {
    return type == DTYPE_I8 ? 1 : 2;
}

/* Where keys of one block lie, from a position on. */
struct kv_run {
    const uint8_t *k, *v; /* rows of `row` bytes */
    size_t row, n;
    const uint8_t *k_scales, *v_scales; /* I8: F16 each */
};

VEC_INLINE struct kv_run kv_run_at(const struct attention_task *t, size_t begin, size_t end) {
    const struct kv_layer *kv = t->args->kv;
    size_t row = kv->head_dim * kv_element_bytes(kv->dtype), offset = begin % kv->block_size;
    size_t tokens = kv->n_kv_heads * kv->block_size, at = t->kv_head * kv->block_size + offset;
    size_t block = 2 * tokens * (row + (kv->dtype == DTYPE_I8 ? sizeof(uint16_t) : 0));
    int32_t index = t->args->block_tables[t->sequence * t->args->max_blocks + begin / kv->block_size];
    const uint8_t *data = (const uint8_t *)kv->data + (size_t)index * block, *scales = data + 2 * tokens * row;
    return (struct kv_run){.k = data + at * row,
                           .v = data + (tokens + at) * row,
                           .row = row,
                           .n = min_size(kv->block_size - offset, end - begin),
                           .k_scales = scales + at * sizeof(uint16_t),
                           .v_scales = scales + (tokens + at) * sizeof(uint16_t)};
}

/* Fetch the next `n` of the keys ahead, or what is left of them. */
static inline void fetch_ahead(struct attention_work *w, size_t n) {
    enum { LINE = 64 };
    while (n > 0 && w->ahead.begin < w->ahead.end) {
        struct kv_run run = kv_run_at(w->ahead.t, w->ahead.begin, w->ahead.end);
        run.n = min_size(run.n, n);
        for (size_t at = 0; at < run.n * run.row; at += LINE) {
            __builtin_prefetch(run.k + at, 0, 2);
            __builtin_prefetch(run.v + at, 0, 2);
        }
        __builtin_prefetch(run.k_scales, 0, 2);
        __builtin_prefetch(run.v_scales, 0, 2);
        w->ahead.begin += run.n;
        n -= run.n;
    }
}

/* Sixteen elements from d on of a row. */
VEC_INLINE v16 load_elements(const enum dtype type, const uint8_t *row, size_t d) {
    switch (type) {
    case DTYPE_F16:
        return v16_load_f16(row + 2 * d);
    case DTYPE_BF16:
        return v16_load_bf16(row + 2 * d);
    case DTYPE_I8:
        return v16_load_i8(row + d);
    default:
        return v16_load((const float *)(const void *)row + d);
    }
}

/* CALL(r) with the constant r = rows, 1 .. TILE_ROWS */
#define ROWS_CASE(r, CALL)                                                                                             \
    case r:                                                                                                            \
        CALL(r);                                                                                                       \
        break;
#if TILE_ROWS == 6
#define ROWS_CASES(CALL) ROWS_CASE(2, CALL) ROWS_CASE(3, CALL) ROWS_CASE(4, CALL) ROWS_CASE(5, CALL) ROWS_CASE(6, CALL)
#elif TILE_ROWS == 3
#define ROWS_CASES(CALL) ROWS_CASE(2, CALL) ROWS_CASE(3, CALL)
#else
#define ROWS_CASES(CALL)
#endif
#define WITH_ROWS(rows, CALL)                                                                                          \
    switch (rows) {                                                                                                    \
        ROWS_CASES(CALL)                                                                                               \
    default:                                                                                                           \
        CALL(1);                                                                                                       \
        break;                                                                                                         \
    }

#endif
