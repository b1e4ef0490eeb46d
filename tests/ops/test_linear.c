/* linear and embed: every weight type at odd sizes against the reference; the same bits alone, in company, on any
 * threads. */
#include "ops.h"

#include "golden_blocks.h"

#include <math.h>

enum {
    MAX_ROWS = 70,
    PAD = 3 /* columns between rows that nobody may touch */
};
static const float guard = 12345.5f;
static const size_t row_counts[] = {1, 2, 3, 4, 5, 6, 7, 8, 13, 16, 17, 32, 33, 48, 70};

struct linear_case {
    const struct fixture *f;
    struct matrix m;
    float *bias, *x;
    size_t ldx, ldy;
    float *expected; /* [MAX_ROWS][ldy]: MAX_ROWS at once on one thread */
};

static float *run(const struct linear_case *c, size_t threads, size_t first, size_t rows) {
    size_t floats = rows * c->ldy;
    float *y = xmalloc(floats * sizeof *y);
    for (size_t i = 0; i < floats; i++) {
        y[i] = guard;
    }
    struct linear_part part = {&c->m.w, c->bias, y, c->ldy};
    OK(c->f->ops->linear(c->f->b[threads - 1], c->x + first * c->ldx, c->ldx, rows, &part, 1, &err));
    return y;
}

/*
 * Sum over blocks of 32 of what rounding activations to 14 bits may add: half a step, 1/8191 of the block's largest
 * magnitude, times the weights' magnitudes.
 */
static double quantisation_error(const struct linear_case *c, size_t row, size_t j) {
    double bound = 0;
    for (size_t b = 0; b < c->m.w.k; b += 32) {
        double top = 0, weights = 0;
        for (size_t i = b; i < b + 32; i++) {
            top = fmax(top, fabs((double)c->x[row * c->ldx + i]));
            weights += fabs(c->m.values[j * c->m.w.k + i]);
        }
        bound += top / 8191 / 2 * weights;
    }
    return bound;
}

/* On the tile unit BF16 weights meet activations of two BF16 each, which leaves at most 2^-16 of them. */
static bool is_tiled(const struct linear_case *c) {
    return c->m.w.dtype == DTYPE_BF16 && strncmp(c->f->variant, "amx", 3) == 0;
}

/*
 * Floats: sixteen sums of k / 16 products each and rounding of the weights themselves, a few times 2^-24 of the sum of
 * magnitudes. Packed blocks: what activations lose besides, and all of y together within 1e-3 of its norm.
 */
static void check_values(const struct linear_case *c) {
    size_t n = c->m.w.n, k = c->m.w.k;
    double *x = to_double(c->x, MAX_ROWS, c->ldx, k);
    double *y = xmalloc(MAX_ROWS * n * sizeof *y), *size = xmalloc(MAX_ROWS * n * sizeof *size);
    reference_linear(x, MAX_ROWS, k, c->m.values, n, c->bias, y, size);
    double worst = 0, difference = 0, norm = 0;
    bool packed = c->m.w.packed && dtype_info(c->m.w.dtype)->block > 1;
    for (size_t r = 0; r < MAX_ROWS; r++) {
        for (size_t j = 0; j < n; j++) {
            double error = fabs((double)c->expected[r * c->ldy + j] - y[r * n + j]);
            difference += error * error;
            norm += y[r * n + j] * y[r * n + j];
            error = fmax(error - (packed ? quantisation_error(c, r, j) : 0), error * 0) / (size[r * n + j] + 1e-30);
            worst = error > worst || isnan(error) ? error : worst;
        }
        for (size_t j = n; j < c->ldy; j++) {
            CHECK(c->expected[r * c->ldy + j] == guard, "row %zu writes column %zu of %zu", r, j, n);
        }
    }
    CHECK(worst < (is_tiled(c) ? 1e-6 + 0x1p-16 : 1e-6), "%s n %zu k %zu: relative error %.2g", dtype_info(c->m.w.dtype)->name, n, k, worst);
    CHECK(sqrt(difference) <= 1e-3 * sqrt(norm), "%s n %zu k %zu: %.2g of the norm", dtype_info(c->m.w.dtype)->name, n, k,
          sqrt(difference / norm));
    free(x);
    free(y);
    free(size);
}

static void check_company(const struct linear_case *c) {
    for (size_t threads = 1; threads <= MAX_TEST_THREADS; threads++) {
        for (size_t i = 0; i < sizeof row_counts / sizeof *row_counts; i++) {
            size_t rows = row_counts[i], first = (7 * i + threads) % (MAX_ROWS - rows + 1);
            float *y = run(c, threads, first, rows);
            CHECK(same_bits(y, c->expected + first * c->ldy, rows * c->ldy),
                  "%s n %zu k %zu: rows %zu..%zu on %zu threads differ from those in a batch of %d",
                  dtype_info(c->m.w.dtype)->name, c->m.w.n, c->m.w.k, first, first + rows, threads, MAX_ROWS);
            free(y);
        }
    }
}

static void test_shape(const struct fixture *f, struct random *r, enum dtype dtype, size_t n, size_t k, bool bias) {
    struct linear_case c = {.f = f, .m = matrix_random(r, dtype, n, k, n % 4), .ldx = k + PAD, .ldy = n + PAD};
    c.x = xmalloc(((MAX_ROWS - 1) * c.ldx + k) * sizeof *c.x);
    random_floats(r, c.x, (MAX_ROWS - 1) * c.ldx + k, 2);
    if (bias) {
        c.bias = xmalloc(n * sizeof *c.bias);
        random_floats(r, c.bias, n, 1);
    }
    OK(f->ops->weight_load(f->b[0], &c.m.w, &err));
    c.expected = run(&c, 1, 0, MAX_ROWS);
    check_values(&c);
    check_company(&c);
    f->ops->weight_unload(f->b[0], &c.m.w);
    matrix_free(&c.m);
    free(c.x);
    free(c.bias);
    free(c.expected);
}

/*
 * Blocks at the ends of what integers hold: all quants the largest or the smallest, scales up to the largest F16, and
 * activations whose two halves are both extreme (8127 of 8191 is 128 * 63 + 63).
 */
static void extreme_matrix(struct random *r, enum dtype dtype, struct matrix *m, double top) {
    const struct dtype_info *info = dtype_info(dtype);
    *m = matrix_random(r, dtype, 37, 512, 0);
    uint16_t d = reference_to_f16(top);
    for (size_t i = 0; i < m->w.n; i++) {
        for (size_t b = 0; b < m->w.k / info->block; b++) {
            uint8_t *block = m->memory + i * m->w.row_bytes + b * info->bytes;
            memset(block, i % 3 == 0 ? 0xff : i % 3 == 1 ? 0x00 : 0x80, info->bytes);
            uint8_t *at = block + (dtype == DTYPE_Q6_K ? 208 : 0);
            at[0] = (uint8_t)d, at[1] = (uint8_t)(d >> 8);
            if (dtype == DTYPE_Q4_1 || dtype == DTYPE_Q5_1 || dtype == DTYPE_Q4_K || dtype == DTYPE_Q5_K) {
                block[2] = block[3] = 0;
            }
        }
        reference_dequantise(dtype, m->memory + i * m->w.row_bytes, m->w.k, m->values + i * m->w.k);
    }
}

static void test_extremes(const struct fixture *f, struct random *r, enum dtype dtype) {
    static const double tops[] = {0, 0.01, 65504};
    for (size_t i = 0; i < 3; i++) {
        struct linear_case c = {.f = f, .ldx = 512, .ldy = 37 + PAD};
        extreme_matrix(r, dtype, &c.m, tops[i]);
        c.x = xmalloc(MAX_ROWS * c.ldx * sizeof *c.x);
        for (size_t j = 0; j < MAX_ROWS * c.ldx; j++) {
            float size = j % 32 == 0 ? 8191 : j / c.ldx % 2 == 0 ? 8127 : 8128;
            c.x[j] = (j / c.ldx % 3 == 0 ? -size : size) / 4096;
        }
        OK(f->ops->weight_load(f->b[0], &c.m.w, &err));
        c.expected = run(&c, 1, 0, MAX_ROWS);
        check_values(&c);
        f->ops->weight_unload(f->b[0], &c.m.w);
        matrix_free(&c.m);
        free(c.x);
        free(c.expected);
    }
}

/* What is no number stays where it is: a weight's scale in its output, an activation in its row. */
static void test_no_numbers(const struct fixture *f, struct random *r, enum dtype dtype) {
    enum { ROWS = 21, BAD_ROW = 4, BAD_OUTPUT = 7 };
    const float bad[] = {NAN, INFINITY, -INFINITY};
    struct linear_case c = {.f = f, .m = matrix_random(r, dtype, 37, 512, 0), .ldx = 512, .ldy = 37};
    c.x = xmalloc(ROWS * c.ldx * sizeof *c.x);
    random_floats(r, c.x, ROWS * c.ldx, 1);
    OK(f->ops->weight_load(f->b[0], &c.m.w, &err));
    float *good = run(&c, 1, 0, ROWS);
    f->ops->weight_unload(f->b[0], &c.m.w);
    uint8_t *block = c.m.memory + BAD_OUTPUT * c.m.w.row_bytes + (dtype == DTYPE_Q6_K ? 208 : 0);
    block[0] = dtype == DTYPE_BF16 ? 0xc1 : 0x01, block[1] = dtype == DTYPE_BF16 ? 0x7f : 0x7e;
    c.m.w.data = c.m.memory;
    OK(f->ops->weight_load(f->b[0], &c.m.w, &err));
    for (size_t i = 0; i < 3; i++) {
        c.x[BAD_ROW * c.ldx + 100] = bad[i];
        float *y = run(&c, 1, 0, ROWS);
        for (size_t j = 0; j < ROWS * c.ldy; j++) {
            bool is_bad = j / c.ldy == BAD_ROW || j % c.ldy == BAD_OUTPUT;
            CHECK(is_bad ? !isfinite(y[j]) : same_bits(&y[j], &good[j], 1), "%s: row %zu output %zu is %g",
                  dtype_info(dtype)->name, j / c.ldy, j % c.ldy, (double)y[j]);
        }
        free(y);
    }
    f->ops->weight_unload(f->b[0], &c.m.w);
    matrix_free(&c.m);
    free(c.x);
    free(good);
}

/* Packed blocks: every variant computes the same bits. */
static void test_variants(const struct fixture *f, struct random *r, enum dtype dtype) {
    enum { ROWS = 39 };
    struct backend_config config = {.threads = 2, .max_rows = ROWS, .variant = "avx2"};
    struct backend *other;
    if (f->ops->open(&config, &other, &err) < 0) {
        return;
    }
    struct matrix m = matrix_random(r, dtype, 101, 7680, 0);
    struct weight w = m.w;
    float *x = xmalloc(ROWS * m.w.k * sizeof *x), *y[2];
    random_floats(r, x, ROWS * m.w.k, 3);
    for (size_t i = 0; i < 2; i++) {
        y[i] = xmalloc(ROWS * m.w.n * sizeof *y[i]);
    }
    struct linear_part here = {&m.w, NULL, y[0], m.w.n}, there = {&w, NULL, y[1], m.w.n};
    OK(f->ops->weight_load(f->b[0], &m.w, &err));
    OK(f->ops->weight_load(other, &w, &err));
    if (m.w.packed && w.packed) {
        OK(f->ops->linear(f->b[0], x, m.w.k, ROWS, &here, 1, &err));
        OK(f->ops->linear(other, x, m.w.k, ROWS, &there, 1, &err));
        CHECK(same_bits(y[0], y[1], ROWS * m.w.n), "%s: %s and avx2 differ", dtype_info(dtype)->name, f->variant);
    }
    f->ops->weight_unload(f->b[0], &m.w);
    f->ops->weight_unload(other, &w);
    f->ops->close(other);
    matrix_free(&m);
    free(x);
    free(y[0]);
    free(y[1]);
}

/* Three matrices of different types over the same rows in one call, against one call each. */
static void test_parts(const struct fixture *f, struct random *r) {
    const enum dtype dtypes[] = {DTYPE_Q4_K, DTYPE_Q6_K, DTYPE_F16};
    const size_t ns[] = {70, 9, 33}, k = 1280;
    struct matrix m[3];
    float *x = xmalloc(MAX_ROWS * k * sizeof *x), *y[3], *alone[3];
    random_floats(r, x, MAX_ROWS * k, 1);
    struct linear_part parts[3];
    for (size_t i = 0; i < 3; i++) {
        m[i] = matrix_random(r, dtypes[i], ns[i], k, i);
        OK(f->ops->weight_load(f->b[0], &m[i].w, &err));
        y[i] = xmalloc(MAX_ROWS * ns[i] * sizeof *y[i]);
        alone[i] = xmalloc(MAX_ROWS * ns[i] * sizeof *alone[i]);
    }
    for (size_t c = 0; c < sizeof row_counts / sizeof *row_counts; c++) {
        size_t rows = row_counts[c];
        struct backend *b = f->b[c % MAX_TEST_THREADS];
        for (size_t i = 0; i < 3; i++) {
            parts[i] = (struct linear_part){&m[i].w, NULL, alone[i], ns[i]};
            OK(f->ops->linear(f->b[0], x, k, rows, &parts[i], 1, &err));
            memset(y[i], 0xff, MAX_ROWS * ns[i] * sizeof *y[i]);
            parts[i].y = y[i];
        }
        OK(f->ops->linear(b, x, k, rows, parts, 3, &err));
        for (size_t i = 0; i < 3; i++) {
            CHECK(same_bits(y[i], alone[i], rows * ns[i]), "part %zu of %zu rows differs from the part alone", i, rows);
        }
    }
    for (size_t i = 0; i < 3; i++) {
        f->ops->weight_unload(f->b[0], &m[i].w);
        matrix_free(&m[i]);
        free(y[i]);
        free(alone[i]);
    }
    free(x);
}

static void test_embed(const struct fixture *f, struct random *r, enum dtype dtype, size_t k) {
    enum { VOCABULARY = 37, ROWS = 50 };
    struct matrix m = matrix_random(r, dtype, VOCABULARY, k, 1);
    size_t ldy = k + PAD;
    float *y = xmalloc(ROWS * ldy * sizeof *y);
    int32_t ids[ROWS];
    for (size_t i = 0; i < ROWS; i++) {
        ids[i] = (int32_t)(random_u64(r) % VOCABULARY);
    }
    ids[1] = VOCABULARY - 1;
    for (size_t threads = 1; threads <= MAX_TEST_THREADS; threads += 2) {
        float scale = threads == 1 ? 1.0f : 25.25f;
        for (size_t i = 0; i < ROWS * ldy; i++) {
            y[i] = guard;
        }
        struct weight w = m.w; /* once from where it is, once from what the backend makes of it */
        struct backend *b = f->b[threads - 1];
        if (threads > 1) {
            OK(f->ops->weight_load(b, &w, &err));
        }
        OK(f->ops->embed(b, y, ldy, &w, ids, ROWS, scale, &err));
        if (threads > 1) {
            f->ops->weight_unload(b, &w);
        }
        double worst = 0;
        for (size_t i = 0; i < ROWS; i++) {
            for (size_t d = 0; d < k; d++) {
                double want = (double)scale * m.values[(size_t)ids[i] * k + d];
                /* A difference of two products may cancel, its rounding is that of the products: up to 1 here. */
                double error = fabs((double)y[i * ldy + d] - want) / (fabs(want) + (double)scale * 1.0);
                worst = error > worst || isnan(error) ? error : worst;
            }
            CHECK(y[i * ldy + k] == guard && y[i * ldy + k + PAD - 1] == guard, "embed writes beyond its row");
        }
        CHECK(worst < 2e-7, "embed %s k %zu: error %.2g", dtype_info(dtype)->name, k, worst);
    }
    for (size_t i = 0; i < 2; i++) {
        ids[ROWS - 1] = i == 0 ? VOCABULARY : -1;
        CHECK(f->ops->embed(f->b[0], y, ldy, &m.w, ids, ROWS, 1, &err) < 0 && err.code == ERROR_INVALID,
              "token id %d is accepted", (int)ids[ROWS - 1]);
    }
    free(y);
    matrix_free(&m);
}

/* Blocks as another implementation reads them: the reference's elements, and the backend's, are exactly those. */
static void test_golden_blocks(const struct fixture *f) {
    for (size_t i = 0; i < sizeof golden_blocks / sizeof *golden_blocks; i++) {
        const struct golden_block *g = &golden_blocks[i];
        const struct dtype_info *info = dtype_info(g->dtype);
        struct weight w = {
            .dtype = g->dtype, .n = 1, .k = info->block, .row_bytes = info->bytes, .data = g->block};
        const int32_t id = 0;
        double values[256];
        float y[256];
        reference_dequantise(g->dtype, g->block, info->block, values);
        OK(f->ops->embed(f->b[0], y, info->block, &w, &id, 1, 1, &err));
        for (size_t j = 0; j < info->block; j++) {
            CHECK((float)values[j] == g->elements[j], "reference: element %zu of a %s block", j, info->name);
            CHECK(y[j] == g->elements[j], "embed: element %zu of a %s block is %g, not %g", j, info->name, (double)y[j],
                  (double)g->elements[j]);
        }
        OK(f->ops->weight_load(f->b[0], &w, &err));
        OK(f->ops->embed(f->b[0], y, info->block, &w, &id, 1, 1, &err));
        for (size_t j = 0; j < info->block; j++) {
            CHECK(y[j] == g->elements[j], "embed: element %zu of a loaded %s block is %g", j, info->name, (double)y[j]);
        }
        f->ops->weight_unload(f->b[0], &w);
    }
}

void test_linear(const struct fixture *f) {
    static const size_t floats_k[] = {1, 15, 17, 100, 1039, 2053};
    static const size_t blocks_k[] = {1, 3, 18, 33, 65}; /* of 32 */
    static const size_t supers_k[] = {1, 3, 5, 9};       /* of 256 */
    static const size_t ns[] = {1, 3, 37, 70, 129};
    struct random r = {1};
    test_golden_blocks(f);
    for (enum dtype dtype = 0; dtype < DTYPE_COUNT; dtype++) {
        if (dtype == DTYPE_I8 || dtype == DTYPE_I32) {
            continue;
        }
        size_t block = dtype_info(dtype)->block;
        const size_t *ks = block == 1 ? floats_k : block == 32 ? blocks_k : supers_k;
        size_t n_ks = block == 1 ? 6 : block == 32 ? 5 : 4;
        for (size_t i = 0; i < n_ks; i++) {
            test_shape(f, &r, dtype, ns[(i + dtype) % 5], ks[i] * block, i % 2 == 1);
            test_embed(f, &r, dtype, ks[i] * block);
        }
    }
    for (enum dtype dtype = DTYPE_Q4_0; dtype <= DTYPE_Q6_K; dtype++) {
        test_extremes(f, &r, dtype);
        test_no_numbers(f, &r, dtype);
        test_variants(f, &r, dtype);
    }
    test_no_numbers(f, &r, DTYPE_BF16);
    test_parts(f, &r);
}
