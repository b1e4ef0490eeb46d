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
};

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
