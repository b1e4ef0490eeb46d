/*
 * Attention over paged K and V: the kernel behind `attention`, compiled once a variant.
 *
 * The order of a sum. Positions are cut into segments of ATTENTION_SEGMENT and these into tiles of ATTENTION_KEYS, both
 * at multiples of their size, whatever is asked. A query runs the online softmax (Milakov & Gimelshein 2018) over
 * its keys of a segment, tile by tile, and merges the segments in order. Scores are dot products in lanes (tile.h),
 * values add up key by key. So a query's result depends on its position and its keys alone: not on the other queries of
 * its tile, not on how a prompt was cut into chunks, and not on whether the segments were computed by one thread or by
 * many.
 *
 * A task is one KV head and a tile of queries (all heads of the group, several tokens): each K and V row is read and
 * converted once for all of them.
 */
#include "tile.h"

#include <math.h>

/* One task's memory, cut out of the worker's scratch. P = head_dim rounded up to 16; Q = queries of the tile. */
struct attention_work {
    const struct attention_task *t;
    size_t dim, padded, queries;
    float *k, *v;          /* [ATTENTION_KEYS][P] */
    float *q;              /* [Q][P] */
    float *s;              /* [Q][ATTENTION_KEYS], scores, then probabilities */
    float *o, *m, *l;      /* of the segment: [Q][P] values, [Q] maximum, [Q] sum; l = 0 while no key was seen */
    float *to, *tm, *tl;   /* of all segments so far */
    uint32_t *begin, *end; /* [Q], the keys of the current tile that the query sees, relative to the tile */
};

static float *carve(float **p, size_t n) {
    float *r = *p;
    *p += (n + 15) / 16 * 16;
    return r;
}

static void attention_carve(struct attention_work *w, const struct attention_task *t) {
    float *p = t->scratch;
    *w = (struct attention_work){.t = t, .dim = t->args->head_dim, .queries = t->n_rows * t->n_heads};
    w->padded = (w->dim + 15) / 16 * 16;
    w->k = carve(&p, ATTENTION_KEYS * w->padded);
    w->v = carve(&p, ATTENTION_KEYS * w->padded);
    w->q = carve(&p, w->queries * w->padded);
    w->s = carve(&p, w->queries * ATTENTION_KEYS);
    w->o = carve(&p, w->queries * w->padded);
    w->to = carve(&p, w->queries * w->padded);
    w->m = carve(&p, w->queries);
    w->l = carve(&p, w->queries);
    w->tm = carve(&p, w->queries);
    w->tl = carve(&p, w->queries);
    w->begin = (uint32_t *)carve(&p, w->queries);
    w->end = (uint32_t *)carve(&p, w->queries);
}

/* The absolute positions [*begin, *end) that the tile's row r sees. */
static void visible(const struct attention_task *t, size_t r, size_t *begin, size_t *end) {
    size_t position = t->first_position + r, window = t->args->window;
    *end = position + 1;
    *begin = window > 0 && *end > window ? *end - window : 0;
}

VEC_INLINE void load_half_row(enum dtype dtype, const uint16_t *p, size_t dim, float *out) {
    size_t d = 0;
    if (dtype == DTYPE_F16) {
        for (; d + 16 <= dim; d += 16) {
            v16_store(out + d, v16_load_f16(p + d));
        }
        if (d < dim) {
            v16_store(out + d, v16_load_f16_n(p + d, dim - d));
        }
    } else {
        for (; d + 16 <= dim; d += 16) {
            v16_store(out + d, v16_load_bf16(p + d));
        }
        if (d < dim) {
            v16_store(out + d, v16_load_bf16_n(p + d, dim - d));
        }
    }
}

/* K and V of positions [begin, end) to rows position - tile. */
static void load_tile(const struct attention_work *w, size_t tile, size_t begin, size_t end) {
    const struct attention_args *a = w->t->args;
    const struct kv_layer *kv = a->kv;
    const int32_t *table = a->block_tables + w->t->sequence * a->max_blocks;
    size_t head_elements = kv->block_size * kv->head_dim;
    for (size_t pos = begin; pos < end; pos++) {
        size_t block = (size_t)table[pos / kv->block_size], offset = pos % kv->block_size;
        const uint16_t *k = (const uint16_t *)kv->data + (2 * block * kv->n_kv_heads + w->t->kv_head) * head_elements +
                            offset * kv->head_dim;
        const uint16_t *v = k + kv->n_kv_heads * head_elements;
        load_half_row(kv->dtype, k, w->dim, w->k + (pos - tile) * w->padded);
        load_half_row(kv->dtype, v, w->dim, w->v + (pos - tile) * w->padded);
    }
}

/* s[q][j] = q . k[j] for j in [begin, end) of the tile, which begins at a multiple of TILE_COLS or earlier */
static void scores(const struct attention_work *w, size_t begin, size_t end) {
    for (size_t j = begin / TILE_COLS * TILE_COLS; j < end; j += TILE_COLS) {
        for (size_t q = 0; q < w->queries; q += TILE_ROWS) {
            float part[TILE_ROWS * TILE_COLS];
            size_t rows = min_size(TILE_ROWS, w->queries - q);
            tile_rows(rows, w->q + q * w->padded, w->padded, w->k + j * w->padded, w->padded, w->padded, part);
            for (size_t r = 0; r < rows; r++) {
                memcpy(w->s + (q + r) * ATTENTION_KEYS + j, part + r * TILE_COLS, TILE_COLS * sizeof *part);
            }
        }
    }
}

/* Lanes before `begin` and from `end` on become -INFINITY; chunk i holds keys 16i .. 16i+15 of the tile. */
VEC_INLINE v16 mask_lanes(v16 s, size_t chunk, size_t begin, size_t end) {
    static const float iota[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const v16 never = v16_set1(-INFINITY);
    v16 key = v16_add(v16_load(iota), v16_set1((float)(16 * chunk)));
    s = v16_select_lt(key, v16_set1((float)begin), never, s);
    return v16_select_lt(key, v16_set1((float)end), s, never);
}

VEC_INLINE void scale_row(float *o, size_t n, float by) {
    for (size_t d = 0; d < n; d += 16) {
        v16_store(o + d, v16_mul(v16_load(o + d), v16_set1(by)));
    }
}

static float exp1(float x) {
    float t[16];
    v16_store(t, v16_exp(v16_set1(x)));
    return t[0];
}

/* Scores of query q become exp(score - maximum); what was summed so far is rescaled to the new maximum. */
static void softmax_row(const struct attention_work *w, size_t q) {
    float *s = w->s + q * ATTENTION_KEYS;
    size_t begin = w->begin[q], end = w->end[q];
    size_t first = begin / 16, last = (end + 15) / 16;
    const v16 scale = v16_set1(w->t->args->scale);
    v16 top = v16_set1(-INFINITY);
    for (size_t i = first; i < last; i++) {
        v16 x = mask_lanes(v16_mul(v16_load(s + 16 * i), scale), i, begin, end);
        v16_store(s + 16 * i, x);
        top = v16_max(top, x);
    }
    float old = w->m[q], m = v16_hmax(top);
    m = m > old ? m : old;
    v16 sum = v16_zero();
    for (size_t i = first; i < last; i++) {
        v16 p = v16_exp(v16_sub(v16_load(s + 16 * i), v16_set1(m)));
        v16_store(s + 16 * i, p);
        sum = v16_add(sum, p);
    }
    float l = w->l[q];
    if (m != old && l != 0) {
        float rescale = exp1(old - m);
        l *= rescale;
        scale_row(w->o + q * w->padded, w->padded, rescale);
    }
    w->l[q] = l + v16_sum(sum);
    w->m[q] = m;
}

/* o[r] += sum over keys j in [begin, end) of p[r][j] * v[j], `rows` queries (a constant) by TILE_COLS * 16 columns */
VEC_INLINE void values_tile(const unsigned rows, const unsigned cols, const float *p, const float *v, size_t ldv,
                            size_t begin, size_t end, float *o) {
    v16 acc[TILE_ROWS * TILE_COLS];
    UNROLL for (unsigned r = 0; r < rows; r++) {
        UNROLL for (unsigned c = 0; c < cols; c++) {
            acc[r * cols + c] = v16_load(o + r * ldv + 16 * c);
        }
    }
    for (size_t j = begin; j < end; j++) {
        v16 vv[TILE_COLS];
        UNROLL for (unsigned c = 0; c < cols; c++) {
            vv[c] = v16_load(v + j * ldv + 16 * c);
        }
        UNROLL for (unsigned r = 0; r < rows; r++) {
            v16 pv = v16_set1(p[r * ATTENTION_KEYS + j]);
            UNROLL for (unsigned c = 0; c < cols; c++) {
                acc[r * cols + c] = v16_fma(pv, vv[c], acc[r * cols + c]);
            }
        }
    }
    UNROLL for (unsigned r = 0; r < rows; r++) {
        UNROLL for (unsigned c = 0; c < cols; c++) {
            v16_store(o + r * ldv + 16 * c, acc[r * cols + c]);
        }
    }
}

VEC_INLINE void values_cols(const unsigned rows, const float *p, const float *v, size_t dim, size_t begin, size_t end,
                            float *o) {
    size_t d = 0;
    for (; d + 16 * TILE_COLS <= dim; d += 16 * TILE_COLS) {
        values_tile(rows, TILE_COLS, p, v + d, dim, begin, end, o + d);
    }
    for (; d < dim; d += 16) {
        values_tile(rows, 1, p, v + d, dim, begin, end, o + d);
    }
}

static void values_rows(const struct attention_work *w, size_t q, size_t rows, size_t begin, size_t end) {
    const float *p = w->s + q * ATTENTION_KEYS;
    float *o = w->o + q * w->padded;
    switch (rows) {
#if TILE_ROWS > 1
    case 2:
        values_cols(2, p, w->v, w->padded, begin, end, o);
        break;
    case 3:
        values_cols(3, p, w->v, w->padded, begin, end, o);
        break;
#endif
#if TILE_ROWS > 3
    case 4:
        values_cols(4, p, w->v, w->padded, begin, end, o);
        break;
    case 5:
        values_cols(5, p, w->v, w->padded, begin, end, o);
        break;
    case 6:
        values_cols(6, p, w->v, w->padded, begin, end, o);
        break;
#endif
    default:
        values_cols(1, p, w->v, w->padded, begin, end, o);
        break;
    }
}

/* The keys that all of some queries see are taken together, those before and behind one query at a time: no query ever
 * touches a key that it does not see, and each takes its keys in rising order. */
static void values(const struct attention_work *w) {
    for (size_t q = 0; q < w->queries; q += TILE_ROWS) {
        size_t rows = min_size(TILE_ROWS, w->queries - q);
        size_t begin = 0, end = ATTENTION_KEYS;
        for (size_t r = 0; r < rows; r++) {
            begin = max_size(begin, w->begin[q + r]);
            end = min_size(end, w->end[q + r]);
        }
        if (begin >= end) {
            for (size_t r = 0; r < rows; r++) {
                values_rows(w, q + r, 1, w->begin[q + r], w->end[q + r]);
            }
            continue;
        }
        for (size_t r = 0; r < rows; r++) {
            if (w->begin[q + r] < begin) {
                values_rows(w, q + r, 1, w->begin[q + r], begin);
            }
        }
        values_rows(w, q, rows, begin, end);
        for (size_t r = 0; r < rows; r++) {
            if (w->end[q + r] > end) {
                values_rows(w, q + r, 1, end, w->end[q + r]);
            }
        }
    }
}

static void attend_tile(const struct attention_work *w, size_t tile, size_t begin, size_t end) {
    load_tile(w, tile, begin, end);
    scores(w, begin - tile, end - tile);
    for (size_t q = 0; q < w->queries; q++) {
        size_t from, to;
        visible(w->t, q / w->t->n_heads, &from, &to);
        from = max_size(from, tile);
        to = min_size(to, tile + ATTENTION_KEYS);
        w->begin[q] = w->end[q] = 0;
        if (from < to) {
            w->begin[q] = (uint32_t)(from - tile);
            w->end[q] = (uint32_t)(to - tile);
            softmax_row(w, q);
        }
    }
    values(w);
}

/* o, m, l over the keys of one segment that the tile's queries see */
static void attend_segment(const struct attention_work *w, size_t segment) {
    size_t begin, end, unused;
    visible(w->t, 0, &begin, &unused);
    visible(w->t, w->t->n_rows - 1, &unused, &end);
    begin = max_size(begin, segment * ATTENTION_SEGMENT);
    end = min_size(end, (segment + 1) * ATTENTION_SEGMENT);
    for (size_t q = 0; q < w->queries; q++) {
        w->m[q] = -INFINITY;
        w->l[q] = 0;
    }
    memset(w->o, 0, w->queries * w->padded * sizeof *w->o);
    for (size_t tile = begin / ATTENTION_KEYS * ATTENTION_KEYS; tile < end; tile += ATTENTION_KEYS) {
        attend_tile(w, tile, max_size(begin, tile), min_size(end, tile + ATTENTION_KEYS));
    }
}

/* Add a segment (o, *m, *l) to the total (to, *tm, *tl) of one query. */
static void merge(size_t padded, const float *o, float m, float l, float *to, float *tm, float *tl) {
    if (l == 0) {
        return;
    }
    if (*tl == 0) {
        memcpy(to, o, padded * sizeof *to);
        *tm = m;
        *tl = l;
        return;
    }
    float top = m > *tm ? m : *tm;
    float keep = exp1(*tm - top), take = exp1(m - top);
    for (size_t d = 0; d < padded; d += 16) {
        v16 x = v16_mul(v16_load(to + d), v16_set1(keep));
        v16_store(to + d, v16_add(x, v16_mul(v16_load(o + d), v16_set1(take))));
    }
    *tl = *tl * keep + l * take;
    *tm = top;
}

static void attention_finish(const struct attention_work *w) {
    const struct attention_task *t = w->t;
    for (size_t q = 0; q < w->queries; q++) {
        size_t row = t->first_row + q / t->n_heads, head = t->first_head + q % t->n_heads;
        float *out = (float *)t->args->out + row * t->args->ldo + head * w->dim;
        const float *o = w->to + q * w->padded;
        v16 sum = v16_set1(w->tl[q]);
        size_t d = 0;
        for (; d + 16 <= w->dim; d += 16) {
            v16_store(out + d, v16_div(v16_load(o + d), sum));
        }
        if (d < w->dim) {
            v16_store_n(out + d, w->dim - d, v16_div(v16_load(o + d), sum));
        }
    }
}

static void load_queries(const struct attention_work *w) {
    const struct attention_task *t = w->t;
    for (size_t q = 0; q < w->queries; q++) {
        size_t row = t->first_row + q / t->n_heads, head = t->first_head + q % t->n_heads;
        const float *from = (const float *)t->args->q + row * t->args->ldq + head * w->dim;
        float *to = w->q + q * w->padded;
        memcpy(to, from, w->dim * sizeof *to);
        memset(to + w->dim, 0, (w->padded - w->dim) * sizeof *to);
    }
}

/* The segments that the task's queries see, [*first, *last). */
static void task_segments(const struct attention_task *t, size_t *first, size_t *last) {
    size_t begin, end, unused;
    visible(t, 0, &begin, &unused);
    visible(t, t->n_rows - 1, &unused, &end);
    *first = begin / ATTENTION_SEGMENT;
    *last = (end + ATTENTION_SEGMENT - 1) / ATTENTION_SEGMENT;
}

/* All segments, one after the other. */
static void attention_whole(const struct attention_task *t) {
    struct attention_work w;
    attention_carve(&w, t);
    load_queries(&w);
    for (size_t q = 0; q < w.queries; q++) {
        w.tl[q] = 0;
    }
    size_t first, last;
    task_segments(t, &first, &last);
    for (size_t s = first; s < last; s++) {
        attend_segment(&w, s);
        for (size_t q = 0; q < w.queries; q++) {
            merge(w.padded, w.o + q * w.padded, w.m[q], w.l[q], w.to + q * w.padded, &w.tm[q], &w.tl[q]);
        }
    }
    attention_finish(&w);
}

/* One segment into `partial`: [Q][P] values, [Q] maxima, [Q] sums. */
static void attention_segment(const struct attention_task *t, size_t segment, float *partial) {
    struct attention_work w;
    attention_carve(&w, t);
    load_queries(&w);
    attend_segment(&w, segment);
    memcpy(partial, w.o, w.queries * w.padded * sizeof *partial);
    memcpy(partial + w.queries * w.padded, w.m, w.queries * sizeof *partial);
    memcpy(partial + w.queries * (w.padded + 1), w.l, w.queries * sizeof *partial);
}

/* The segments' results, `stride` floats apart, merged in order. */
static void attention_merge(const struct attention_task *t, const float *partials, size_t stride, size_t n_segments) {
    struct attention_work w;
    attention_carve(&w, t);
    for (size_t q = 0; q < w.queries; q++) {
        w.tl[q] = 0;
        for (size_t s = 0; s < n_segments; s++) {
            const float *partial = partials + s * stride;
            float m = partial[w.queries * w.padded + q], l = partial[w.queries * (w.padded + 1) + q];
            merge(w.padded, partial + q * w.padded, m, l, w.to + q * w.padded, &w.tm[q], &w.tl[q]);
        }
    }
    attention_finish(&w);
}
