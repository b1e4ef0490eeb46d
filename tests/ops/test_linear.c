/* linear and embed: every weight type at odd sizes against the reference; the same bits alone, in company, on any
 * threads. */
#include "ops.h"

#include "golden_blocks.h"

#include <math.h>

enum {
    MAX_ROWS = 33,
    PAD = 3 /* columns between rows that nobody may touch */
};
static const float guard = 12345.5f;
static const size_t row_counts[] = {1, 2, 3, 4, 5, 6, 7, 8, 13, 17, 32, 33};

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

static void check_values(const struct linear_case *c) {
    size_t n = c->m.w.n, k = c->m.w.k;
    double *x = to_double(c->x, MAX_ROWS, c->ldx, k);
    double *y = xmalloc(MAX_ROWS * n * sizeof *y), *size = xmalloc(MAX_ROWS * n * sizeof *size);
    reference_linear(x, MAX_ROWS, k, c->m.values, n, c->bias, y, size);
    double worst = 0;
    for (size_t r = 0; r < MAX_ROWS; r++) {
        for (size_t j = 0; j < n; j++) {
            double error = fabs((double)c->expected[r * c->ldy + j] - y[r * n + j]) / (size[r * n + j] + 1e-30);
            worst = error > worst || isnan(error) ? error : worst;
        }
        for (size_t j = n; j < c->ldy; j++) {
            CHECK(c->expected[r * c->ldy + j] == guard, "row %zu writes column %zu of %zu", r, j, n);
        }
    }
    /* Sixteen sums of k / 16 products each and rounding of the weights themselves: a few times 2^-24. */
    CHECK(worst < 1e-6, "%s n %zu k %zu: relative error %.2g", dtype_info(c->m.w.dtype)->name, n, k, worst);
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
        OK(f->ops->embed(f->b[threads - 1], y, ldy, &m.w, ids, ROWS, scale, &err));
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
        const struct weight w = {
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
    test_parts(f, &r);
}
