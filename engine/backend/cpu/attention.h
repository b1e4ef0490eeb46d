/*
 * Attention over paged K and V: the kernel behind `attention`, compiled once a variant.
 *
 * The order of a sum. Positions are cut into segments of ATTENTION_SEGMENT and these into tiles of ATTENTION_KEYS, both
 * at multiples of their size, whatever is asked. A query runs the online softmax (Milakov & Gimelshein 2018) over
 * its keys of a segment, tile by tile, and merges the segments in order. Scores are dot products (attention_scores.h),
 * values add up key by key. So a query's result depends on its position and its keys alone: not on the other queries of
 * its tile, not on how a prompt was cut into chunks, and not on whether the segments were computed by one thread or by
 * many.
 *
 * A task is one KV head and a tile of queries (all heads of the group, several tokens): each K and V row is read
 * once for all of them.
 */
#include "attention_scores.h"
#include "attention_values.h"
#include "half.h"

#include <math.h>

static float *carve(float **p, size_t n) {
    float *r = *p;
    *p += (n + 15) / 16 * 16;
    return r;
}

static void attention_carve(struct attention_work *w, const struct attention_task *t) {
    float *p = t->scratch;
    *w = (struct attention_work){.t = t, .dim = t->args->head_dim, .queries = t->n_rows * t->n_heads};
    w->padded = (w->dim + 31) / 32 * 32;
    w->k = carve(&p, ATTENTION_KEYS * w->padded);
    w->v = carve(&p, ATTENTION_KEYS * w->padded);
    w->q = carve(&p, w->queries * w->padded);
    w->q16 = (int16_t *)carve(&p, (w->queries * w->padded + 1) / 2);
    w->q_scale = carve(&p, w->queries);
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

VEC_INLINE float load_half(const uint8_t *p) {
    uint16_t h;
    memcpy(&h, p, sizeof h);
    return f32_from_half(h);
}

/* Where the rows of positions [begin, end) lie. */
static void locate(struct attention_work *w, size_t tile, size_t begin, size_t end) {
    bool scaled = w->t->args->kv->dtype == DTYPE_I8;
    for (size_t pos = begin; pos < end;) {
        struct kv_run run = kv_run_at(w->t, pos, end);
        size_t j = pos - tile;
        for (size_t i = 0; i < run.n; i++) {
            w->k_rows[j + i] = run.k + i * run.row;
            w->v_rows[j + i] = run.v + i * run.row;
        }
        for (size_t i = 0; scaled && i < run.n; i++) {
            w->k_scales[j + i] = load_half(run.k_scales + 2 * i);
            w->v_scales[j + i] = load_half(run.v_scales + 2 * i);
        }
        pos += run.n;
    }
}

/* A panel's row: the elements as floats, or as they are if they are I8, and zeros behind. */
VEC_INLINE void copy_row(enum dtype from, enum dtype to, const uint8_t *p, size_t dim, size_t padded, float *out) {
    if (to == DTYPE_I8) {
        memcpy(out, p, dim);
        memset((uint8_t *)out + dim, 0, padded - dim);
        return;
    }
    size_t d = 0;
    for (; d + 16 <= dim; d += 16) {
        v16_store(out + d, load_elements(from, p, d));
    }
    if (d < dim) {
        uint8_t rest[sizeof(v16)] = {0};
        memcpy(rest, p + d * kv_element_bytes(from), (dim - d) * kv_element_bytes(from));
        v16_store(out + d, load_elements(from, rest, 0));
        d += 16;
    }
    if (d < padded) {
        v16_store(out + d, v16_zero());
    }
}

static void to_panel(enum dtype from, enum dtype to, const uint8_t **rows, size_t begin, size_t end, size_t dim,
                     size_t padded, float *panel) {
    for (size_t j = begin; j < end; j++) {
        copy_row(from, to, rows[j], dim, padded, panel + j * padded);
        rows[j] = (const uint8_t *)(panel + j * padded);
    }
}

/* K and V of positions [begin, end) of the tile: where they lie, or in panels. */
static void load_tile(struct attention_work *w, size_t tile, size_t begin, size_t end) {
    enum dtype type = w->t->args->kv->dtype;
    size_t from = begin - tile, to = end - tile;
    locate(w, tile, begin, end);
    /* A panel for many queries, and where a row's end is no whole vector. */
    bool many = w->queries > ATTENTION_DIRECT, whole = w->dim == w->padded;
    w->k_type = type == DTYPE_I8 || (!many && whole) ? type : DTYPE_F32;
    w->v_type = !many && w->dim % 16 == 0 ? type : DTYPE_F32;
    if (w->k_type == DTYPE_F32 || !whole) {
        to_panel(type, w->k_type, w->k_rows, from, to, w->dim, w->padded, w->k);
    }
    if (w->v_type == DTYPE_F32) {
        to_panel(type, DTYPE_F32, w->v_rows, from, to, w->dim, w->padded, w->v);
    }
    /* Keys in the same sixteens that no query sees: any readable row, their scores are masked. */
    for (size_t j = from / 16 * 16; j < (to + 15) / 16 * 16; j++) {
        if (j < from || j >= to) {
            w->k_rows[j] = w->k_rows[from];
            w->k_scales[j] = w->v_scales[j] = 0;
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

/* Scores of query q become exp(score - maximum), times the scale of an I8 value; what was summed so far is rescaled to
 * the new maximum. */
static void softmax_row(const struct attention_work *w, size_t q) {
    float *s = w->s + q * ATTENTION_KEYS;
    size_t begin = w->begin[q], end = w->end[q];
    size_t first = begin / 16, last = (end + 15) / 16;
    const v16 scale = v16_set1(w->t->args->scale);
    const bool scaled = w->t->args->kv->dtype == DTYPE_I8; /* V's scales are taken into the probabilities */
    v16 top = v16_set1(-INFINITY);
    for (size_t i = first; i < last; i++) {
        v16 x = v16_mul(v16_load(s + 16 * i), scale);
        if (16 * i < begin || 16 * (i + 1) > end) {
            x = mask_lanes(x, i, begin, end);
        }
        v16_store(s + 16 * i, x);
        top = v16_max(top, x);
    }
    float old = w->m[q], m = v16_hmax(top);
    m = m > old ? m : old;
    v16 sum = v16_zero();
    for (size_t i = first; i < last; i++) {
        v16 p = v16_exp(v16_sub(v16_load(s + 16 * i), v16_set1(m)));
        sum = v16_add(sum, p);
        v16_store(s + 16 * i, scaled ? v16_mul(p, v16_load(w->v_scales + 16 * i)) : p);
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

/* The keys that a task's queries see. */
static void task_keys(const struct attention_task *t, size_t *begin, size_t *end) {
    size_t unused;
    visible(t, 0, begin, &unused);
    visible(t, t->n_rows - 1, &unused, end);
}

/* What is read after the keys before `done`: the task's next tile, or the first one of the next task. */
static void look_ahead(struct attention_work *w, size_t done) {
    const struct attention_task *t = w->t;
    size_t begin, end;
    task_keys(t, &begin, &end);
    if (done >= end) {
        t = t->next;
        if (t) {
            task_keys(t, &begin, &end);
        }
    } else {
        begin = done;
    }
    w->ahead.t = t;
    w->ahead.begin = begin;
    w->ahead.end = t ? min_size(end, (begin / ATTENTION_KEYS + 1) * ATTENTION_KEYS) : begin;
}

static void attend_tile(struct attention_work *w, size_t tile, size_t begin, size_t end) {
    load_tile(w, tile, begin, end);
    look_ahead(w, end);
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
static void attend_segment(struct attention_work *w, size_t segment) {
    size_t begin, end;
    task_keys(w->t, &begin, &end);
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

/* q16 is as fine as the exact sum of products with I8 allows. A query that holds no finite number has the scale NaN. */
static void quantise_query(const struct attention_work *w, size_t q) {
    const float *from = w->q + q * w->padded;
    int16_t *to = w->q16 + q * w->padded;
    float top = magnitude_row(from, w->padded);
    float limit = 2147483647.0f / 128 / (float)w->padded;
    limit = limit < 32767 ? floorf(limit) : 32767;
    float by = top >= 1e-30f ? limit / top : 0;
    w->q_scale[q] = by > 0 ? top / limit : top * 0;
    for (size_t d = 0; d < w->padded; d += 16) {
        v16 x = v16_load(from + d);
        v16_store_i16(to + d, by > 0 ? quantised(x, by, limit) : v16_zero());
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
        if (t->args->kv->dtype == DTYPE_I8) {
            quantise_query(w, q);
        }
    }
}

/* The segments that the task's queries see, [*first, *last). */
static void task_segments(const struct attention_task *t, size_t *first, size_t *last) {
    size_t begin, end;
    task_keys(t, &begin, &end);
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
