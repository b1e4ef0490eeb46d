/*
 * attention over ragged batches against the reference, and its promise: the same bits however a prompt is cut into
 * chunks, whoever else is in the batch, on any number of threads. Memory that no query may see is filled with NaN.
 */
#include "ops.h"

#include <math.h>

enum { MAX_SEQUENCES = 5, PAD = 3 };

struct attention_case {
    size_t n_heads, n_kv_heads, head_dim, block_size, window;
    enum dtype dtype;
    size_t n_sequences;
    size_t context[MAX_SEQUENCES]; /* tokens in all */
    size_t rows[MAX_SEQUENCES];    /* of these, computed in the one call that all others are compared with */
};

/* A case laid out in memory: K and V of whole contexts in shuffled blocks, and a query for each token of `rows`. */
struct state {
    const struct fixture *f;
    const struct attention_case *c;
    struct kv_layer kv;
    uint8_t *full; /* the KV memory with every token of every sequence, NaN elsewhere */
    size_t bytes;
    size_t max_blocks;
    int32_t *tables;         /* [MAX_SEQUENCES][max_blocks] */
    float *q[MAX_SEQUENCES]; /* [context][ldq] */
    size_t ldq, ldo;
    float *out[MAX_SEQUENCES]; /* [rows][n_heads * head_dim] of the one call */
    float scale;
};

/* Where a head's K or V of a token lies: a row of head_dim elements, and for I8 its scale. */
struct place {
    size_t row, scale;
};

static struct place kv_place(const struct state *s, size_t sequence, size_t position, size_t head, size_t is_v) {
    const struct attention_case *c = s->c;
    size_t block = (size_t)s->tables[sequence * s->max_blocks + position / c->block_size];
    size_t at = block * kv_layer_bytes(c->dtype, 1, c->block_size, c->n_kv_heads, c->head_dim);
    size_t token = (is_v * c->n_kv_heads + head) * c->block_size + position % c->block_size;
    size_t values = 2 * c->n_kv_heads * c->block_size * c->head_dim; /* of an I8 block, in bytes */
    return (struct place){at + token * c->head_dim * dtype_info(c->dtype)->bytes, at + values + token * 2};
}

static void put_u16(uint8_t *p, uint16_t u) {
    memcpy(p, &u, sizeof u);
}

static uint16_t get_u16(const uint8_t *p) {
    uint16_t u;
    memcpy(&u, p, sizeof u);
    return u;
}

/* A row of random values within +-size. */
static void put_row(struct state *s, struct random *r, struct place p, double size) {
    for (size_t d = 0; d < s->c->head_dim; d++) {
        double value = random_unit(r) * size;
        if (s->c->dtype == DTYPE_I8) {
            s->full[p.row + d] = (uint8_t)(int8_t)lrint(127 * value / size);
        } else {
            put_u16(s->full + p.row + 2 * d,
                    s->c->dtype == DTYPE_F16 ? reference_to_f16(value) : reference_to_bf16(value));
        }
    }
    if (s->c->dtype == DTYPE_I8) {
        put_u16(s->full + p.scale, reference_to_f16((0.75 + random_unit(r) / 4) * size / 127));
    }
}

static double get_element(const struct state *s, struct place p, size_t d) {
    if (s->c->dtype == DTYPE_I8) {
        return (double)(int8_t)s->full[p.row + d] * reference_f16(get_u16(s->full + p.scale));
    }
    uint16_t u = get_u16(s->full + p.row + 2 * d);
    return s->c->dtype == DTYPE_F16 ? reference_f16(u) : reference_bf16(u);
}

static void state_init(struct state *s, const struct fixture *f, const struct attention_case *c, struct random *r) {
    *s = (struct state){
        .f = f, .c = c, .ldq = c->n_heads * c->head_dim + PAD, .ldo = c->n_heads * c->head_dim + 2 * PAD};
    s->scale = (float)(1 / sqrt((double)c->head_dim));
    size_t n_blocks = 1;
    for (size_t i = 0; i < c->n_sequences; i++) {
        size_t blocks = (c->context[i] + c->block_size - 1) / c->block_size;
        n_blocks += blocks;
        s->max_blocks = blocks > s->max_blocks ? blocks : s->max_blocks;
    }
    s->tables = xmalloc(MAX_SEQUENCES * s->max_blocks * sizeof *s->tables);
    s->kv = (struct kv_layer){.dtype = c->dtype,
                              .n_blocks = n_blocks,
                              .block_size = c->block_size,
                              .n_kv_heads = c->n_kv_heads,
                              .head_dim = c->head_dim};
    s->bytes = kv_layer_bytes(c->dtype, n_blocks, c->block_size, c->n_kv_heads, c->head_dim);
    OK(f->ops->alloc(f->b[0], s->bytes, &s->kv.data, &err));
    s->full = xmalloc(s->bytes);
    memset(s->full, 0x7f, s->bytes); /* NaN in F16 and BF16, and so are the scales of I8 */
    /* Blocks are dealt from the end with a stride, so that neighbours in a sequence are none in memory. */
    size_t dealt = 0, stride = n_blocks % 7 == 0 ? 11 : 7;
    for (size_t i = 0; i < c->n_sequences; i++) {
        for (size_t j = 0; j * c->block_size < c->context[i]; j++) {
            s->tables[i * s->max_blocks + j] = (int32_t)(n_blocks - 1 - dealt++ * stride % n_blocks);
        }
        for (size_t p = 0; p < c->context[i]; p++) {
            for (size_t h = 0; h < c->n_kv_heads; h++) {
                put_row(s, r, kv_place(s, i, p, h, 0), 2);
                put_row(s, r, kv_place(s, i, p, h, 1), 1);
            }
        }
        s->q[i] = xmalloc(c->context[i] * s->ldq * sizeof *s->q[i]);
        random_floats(r, s->q[i], c->context[i] * s->ldq, 3);
        s->out[i] = xmalloc(c->rows[i] * c->n_heads * c->head_dim * sizeof *s->out[i]);
    }
}

static void state_free(struct state *s) {
    for (size_t i = 0; i < s->c->n_sequences; i++) {
        free(s->q[i]);
        free(s->out[i]);
    }
    s->f->ops->free(s->f->b[0], s->kv.data);
    free(s->full);
    free(s->tables);
}

/* Only what queries up to context[i] may see is in the memory the backend is given. */
static void expose(struct state *s, const size_t *sequences, const size_t *context, size_t n) {
    uint8_t *data = s->kv.data;
    size_t row = s->c->head_dim * dtype_info(s->c->dtype)->bytes;
    memset(data, 0x7f, s->bytes);
    for (size_t i = 0; i < n; i++) {
        for (size_t p = 0; p < context[i]; p++) {
            for (size_t h = 0; h < s->c->n_kv_heads; h++) {
                for (size_t v = 0; v < 2; v++) {
                    struct place at = kv_place(s, sequences[i], p, h, v);
                    memcpy(data + at.row, s->full + at.row, row);
                    if (s->c->dtype == DTYPE_I8) {
                        memcpy(data + at.scale, s->full + at.scale, 2);
                    }
                }
            }
        }
    }
}

/* One call over some sequences, context[i] tokens of which the last rows[i] are queries. Returns [rows][n_heads *
 * head_dim]. */
static float *attend(struct state *s, size_t threads, const size_t *sequences, const size_t *context,
                     const size_t *rows, size_t n) {
    const struct attention_case *c = s->c;
    int32_t cu_seqlens[MAX_SEQUENCES + 1] = {0}, context_lens[MAX_SEQUENCES];
    int32_t *tables = xmalloc(n * s->max_blocks * sizeof *tables);
    size_t total = 0, width = c->n_heads * c->head_dim;
    for (size_t i = 0; i < n; i++) {
        memcpy(tables + i * s->max_blocks, s->tables + sequences[i] * s->max_blocks, s->max_blocks * sizeof *tables);
        total += rows[i];
        cu_seqlens[i + 1] = (int32_t)total;
        context_lens[i] = (int32_t)context[i];
    }
    float *q = xmalloc(total * s->ldq * sizeof *q), *out = xmalloc(total * s->ldo * sizeof *out);
    for (size_t i = 0; i < n; i++) {
        memcpy(q + (size_t)cu_seqlens[i] * s->ldq, s->q[sequences[i]] + (context[i] - rows[i]) * s->ldq,
               rows[i] * s->ldq * sizeof *q);
    }
    expose(s, sequences, context, n);
    struct attention_args args = {
        .q = q,
        .ldq = s->ldq,
        .out = out,
        .ldo = s->ldo,
        .kv = &s->kv,
        .block_tables = tables,
        .max_blocks = s->max_blocks,
        .cu_seqlens = cu_seqlens,
        .context_lens = context_lens,
        .n_sequences = n,
        .rows = total,
        .n_heads = c->n_heads,
        .n_kv_heads = c->n_kv_heads,
        .head_dim = c->head_dim,
        .scale = s->scale,
        .window = c->window,
    };
    OK(s->f->ops->attention(s->f->b[threads - 1], &args, &err));
    float *packed = xmalloc(total * width * sizeof *packed);
    for (size_t i = 0; i < total; i++) {
        memcpy(packed + i * width, out + i * s->ldo, width * sizeof *packed);
        for (size_t j = width; j < s->ldo; j++) {
            CHECK(out[i * s->ldo + j] == 0, "attention writes beyond row %zu", i);
        }
    }
    free(q);
    free(out);
    free(tables);
    return packed;
}

static void check_values(const struct state *s, size_t sequence) {
    const struct attention_case *c = s->c;
    size_t context = c->context[sequence], rows = c->rows[sequence], dim = c->head_dim;
    double *k = xmalloc(context * dim * sizeof *k), *v = xmalloc(context * dim * sizeof *v);
    double *q = xmalloc(dim * sizeof *q), *want = xmalloc(dim * sizeof *want), worst = 0;
    for (size_t h = 0; h < c->n_heads; h++) {
        size_t kv_head = h / (c->n_heads / c->n_kv_heads);
        for (size_t p = 0; p < context; p++) {
            for (size_t d = 0; d < dim; d++) {
                k[p * dim + d] = get_element(s, kv_place(s, sequence, p, kv_head, 0), d);
                v[p * dim + d] = get_element(s, kv_place(s, sequence, p, kv_head, 1), d);
            }
        }
        for (size_t r = 0; r<rows; r += rows> 64 ? 5 : 1) {
            size_t position = context - rows + r, end = position + 1;
            size_t begin = c->window > 0 && end > c->window ? end - c->window : 0;
            for (size_t d = 0; d < dim; d++) {
                q[d] = (double)s->q[sequence][position * s->ldq + h * dim + d];
            }
            reference_attention(q, k, v, dim, begin, end, (double)s->scale, want);
            for (size_t d = 0; d < dim; d++) {
                double error = fabs((double)s->out[sequence][r * c->n_heads * dim + h * dim + d] - want[d]);
                worst = error > worst || isnan(error) ? error : worst;
            }
        }
    }
    /* Values lie in [-1, 1). To meet I8 keys a query is rounded to 16 bits: a score is some 1e-4 off at worst. */
    CHECK(worst < (c->dtype == DTYPE_I8 ? 5e-5 : 2e-6), "attention heads %zu/%zu x %zu context %zu: error %.2g",
          c->n_heads, c->n_kv_heads, dim, context, worst);
    free(k), free(v), free(q), free(want);
}

/* Each sequence's rows again, alone, in chunks of `chunk`. */
static void check_chunks(struct state *s, size_t chunk, size_t threads) {
    const struct attention_case *c = s->c;
    size_t width = c->n_heads * c->head_dim;
    for (size_t i = 0; i < c->n_sequences; i++) {
        size_t first = c->context[i] - c->rows[i];
        size_t start = chunk == 1 && c->rows[i] > 70 ? c->rows[i] - 70 : 0; /* token by token the last ones only */
        for (size_t done = start; done < c->rows[i]; done += chunk) {
            size_t n = c->rows[i] - done < chunk ? c->rows[i] - done : chunk, context = first + done + n;
            float *out = attend(s, threads, &i, &context, &n, 1);
            CHECK(same_bits(out, s->out[i] + done * width, n * width),
                  "attention heads %zu/%zu x %zu window %zu: rows %zu..%zu in chunks of %zu on %zu threads differ",
                  c->n_heads, c->n_kv_heads, c->head_dim, c->window, first + done, first + done + n, chunk, threads);
            free(out);
        }
    }
}

static void test_case(const struct fixture *f, const struct attention_case *c, struct random *r) {
    struct state s;
    state_init(&s, f, c, r);
    size_t sequences[MAX_SEQUENCES] = {0, 1, 2, 3, 4}, width = c->n_heads * c->head_dim, total = 0;
    for (size_t threads = 1; threads <= MAX_TEST_THREADS; threads++) {
        float *all = attend(&s, threads, sequences, c->context, c->rows, c->n_sequences), *at = all;
        for (size_t i = 0; i < c->n_sequences; i++) {
            if (threads == 1) {
                memcpy(s.out[i], at, c->rows[i] * width * sizeof *at);
                check_values(&s, i);
            }
            CHECK(same_bits(at, s.out[i], c->rows[i] * width), "attention on %zu threads differs", threads);
            at += c->rows[i] * width;
            total += c->rows[i];
        }
        free(all);
    }
    check_chunks(&s, TEST_ROWS, 1);
    check_chunks(&s, 37, 2);
    check_chunks(&s, 5, 3);
    check_chunks(&s, 1, 1 + total % MAX_TEST_THREADS);
    state_free(&s);
}

/* What is no number in a query, a key or a value is none in the results that see it, and in no other. */
static void test_nan(const struct fixture *f, enum dtype dtype) {
    const struct attention_case c = {4, 2, 32, 16, 0, dtype, 2, {40, 90}, {1, 3}};
    const size_t sequences[] = {0, 1}, width = c.n_heads * c.head_dim, half = width / 2;
    struct random r = {10};
    struct state s;
    for (size_t what = 0; what < 3; what++) { /* the query, K, V of sequence 1, heads of the second half */
        state_init(&s, f, &c, &r);
        struct place at = kv_place(&s, 1, 20, 1, what == 2);
        if (what == 0) {
            s.q[1][89 * s.ldq + half + 3] = NAN;
        } else {
            put_u16(s.full + (dtype == DTYPE_I8 ? at.scale : at.row + 6), 0x7fff);
        }
        float *out = attend(&s, 1, sequences, c.context, c.rows, 2);
        size_t wrong = 0;
        for (size_t row = 0; row < 4; row++) {
            for (size_t i = 0; i < width; i++) {
                bool sees = i >= half && (what == 0 ? row == 3 && i < half + 32 : row >= 1);
                /* A value's NaN is in its own feature; an I8 scale's in all of the head. */
                sees = sees && (what != 2 || dtype == DTYPE_I8 || i % 32 == 3);
                wrong += isnan(out[row * width + i]) != sees;
            }
        }
        CHECK(wrong == 0, "attention %s, NaN in %zu: %zu results", dtype_info(dtype)->name, what, wrong);
        free(out);
        state_free(&s);
    }
}

static void test_refusals(const struct fixture *f) {
    const struct attention_case c = {2, 1, 8, 4, 0, DTYPE_F16, 1, {9}, {2}};
    struct random r = {9};
    struct state s;
    state_init(&s, f, &c, &r);
    float q[2 * 32] = {0}, out[2 * 32];
    int32_t cu_seqlens[] = {0, 2}, context_lens[] = {9}, table[] = {0, 1, 2};
    const struct attention_args good = {
        .q = q,
        .ldq = 32,
        .out = out,
        .ldo = 32,
        .kv = &s.kv,
        .block_tables = table,
        .max_blocks = 3,
        .cu_seqlens = cu_seqlens,
        .context_lens = context_lens,
        .n_sequences = 1,
        .rows = 2,
        .n_heads = 2,
        .n_kv_heads = 1,
        .head_dim = 8,
        .scale = 1,
    };
    memset(s.kv.data, 0, s.bytes);
    OK(f->ops->attention(f->b[0], &good, &err));
    struct attention_args bad = good;
    bad.max_blocks = 2;
    CHECK(f->ops->attention(f->b[0], &bad, &err) < 0, "a context longer than its blocks");
    bad = good, bad.rows = 1;
    CHECK(f->ops->attention(f->b[0], &bad, &err) < 0, "a sequence beyond the batch");
    bad = good, bad.n_heads = 3, bad.n_kv_heads = 2;
    CHECK(f->ops->attention(f->b[0], &bad, &err) < 0, "three heads over two");
    table[2] = (int32_t)s.kv.n_blocks;
    CHECK(f->ops->attention(f->b[0], &good, &err) < 0, "a block beyond the memory");
    table[2] = -1;
    CHECK(f->ops->attention(f->b[0], &good, &err) < 0, "block -1");
    table[2] = 2, context_lens[0] = 1;
    CHECK(f->ops->attention(f->b[0], &good, &err) < 0, "a context shorter than its rows");
    state_free(&s);
}

void test_attention(const struct fixture *f) {
    static const struct attention_case cases[] = {
        /* heads, kv, dim, block, window */
        {9, 3, 64, 16, 0, DTYPE_F16, 5, {1, 7, 64, 65, 200}, {1, 7, 64, 1, 130}},
        {4, 1, 256, 32, 20, DTYPE_BF16, 3, {33, 100, 150}, {33, 3, 150}},
        {3, 3, 80, 5, 0, DTYPE_BF16, 2, {17, 90}, {17, 41}},
        {8, 2, 96, 16, 64, DTYPE_F16, 3, {64, 130, 129}, {64, 1, 129}},
        {2, 1, 2, 1, 1, DTYPE_F16, 2, {3, 70}, {3, 70}},
        {5, 1, 34, 7, 33, DTYPE_F16, 2, {97, 260}, {97, 50}},
        {50, 1, 16, 16, 0, DTYPE_F16, 1, {70}, {9}},
        {32, 4, 128, 16, 0, DTYPE_F16, 2, {40, 80}, {1, 12}},
        /* several segments; with a window whole segments are out of sight */
        {3, 1, 32, 16, 0, DTYPE_F16, 2, {2600, 1025}, {80, 3}},
        {2, 2, 16, 16, 1100, DTYPE_BF16, 1, {3300}, {40}},
        {9, 3, 64, 16, 0, DTYPE_I8, 5, {1, 7, 64, 65, 200}, {1, 7, 64, 1, 130}},
        {8, 1, 128, 32, 50, DTYPE_I8, 3, {33, 100, 150}, {33, 3, 40}},
        {3, 3, 80, 5, 0, DTYPE_I8, 2, {17, 90}, {17, 41}},
        {5, 1, 34, 7, 33, DTYPE_I8, 2, {97, 160}, {97, 50}},
        {2, 1, 2, 1, 1, DTYPE_I8, 2, {3, 70}, {3, 70}},
        {2, 1, 1024, 16, 0, DTYPE_I8, 2, {30, 20}, {1, 20}},
        {3, 1, 32, 16, 1100, DTYPE_I8, 2, {2600, 1025}, {60, 3}},
    };
    struct random r = {3};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        test_case(f, &cases[i], &r);
    }
    test_nan(f, DTYPE_F16);
    test_nan(f, DTYPE_BF16);
    test_nan(f, DTYPE_I8);
    test_refusals(f);
}
