/*
 * I8 weights: every way to quantise the input, at odd sizes, against a reference in whole numbers; the same bits in
 * every variant, alone and in company, on any threads; and what must not break: -128, NaN, infinities, the longest
 * sums.
 */
#include "ops.h"

#include <float.h>
#include <math.h>

enum { MAX_ROWS = 70, PAD = 3, MAX_CASES = 256 };
static const float guard = -54321.5f;
static const size_t row_counts[] = {1, 2, 3, 4, 5, 6, 7, 11, 12, 13, 16, 17, 31, 32, 33, 48, 70};

struct i8_case {
    const struct fixture *f;
    size_t n, k, ldx, ldy, rows;
    int8_t *q; /* [n][k] */
    float *scales, *bias, *x;
    struct weight w[MAX_TEST_THREADS]; /* loaded by each backend */
    float *expected;                   /* [rows][ldy] */
};

static float *run(const struct i8_case *c, size_t threads, size_t first, size_t rows) {
    float *y = xmalloc(rows * c->ldy * sizeof *y);
    for (size_t i = 0; i < rows * c->ldy; i++) {
        y[i] = guard;
    }
    struct linear_part part = {&c->w[threads - 1], c->bias, y, c->ldy};
    OK(c->f->ops->linear(c->f->b[threads - 1], c->x + first * c->ldx, c->ldx, rows, &part, 1, &err));
    return y;
}

/* One row by the formulas of inferd/backend.h: q[k] - z in whole numbers, and its scale. */
static double quantise(const struct weight *w, const float *x, int32_t *q) {
    double low = 0, high = 0;
    for (size_t i = 0; i < w->k; i++) {
        low = fmin(low, (double)x[i]);
        high = fmax(high, (double)x[i]);
    }
    double s = (double)w->input_scale, z = w->input_zero_point, least = -128;
    if (w->activation == ACTIVATION_I8_TOKEN) {
        s = (double)(float)(fmax(high, -low) / 127), z = 0, least = -127;
    } else if (w->activation == ACTIVATION_I8_TOKEN_ZERO) {
        double range = (double)(float)(high - low);
        s = isinf(range) ? (double)(float)((double)(float)(high / 255) - (double)(float)(low / 255))
                         : (double)(float)(range / 255);
    }
    s = s == 0 ? 1 : s;
    if (w->activation == ACTIVATION_I8_TOKEN_ZERO) {
        z = -128 - rint((double)(float)(low / s));
    }
    for (size_t i = 0; i < w->k; i++) {
        double v = rint((double)(float)((double)x[i] / s)) + z;
        q[i] = (int32_t)(fmax(least, fmin(127, v)) - z);
    }
    return s;
}

static void check_values(const struct i8_case *c) {
    const struct weight *w = &c->w[0];
    int32_t *q = xmalloc(c->k * sizeof *q);
    double worst = 0;
    for (size_t r = 0; r < c->rows; r++) {
        const float *x = c->x + r * c->ldx;
        double s = w->activation == ACTIVATION_FLOAT ? 1 : quantise(w, x, q);
        for (size_t j = 0; j < c->n; j++) {
            double sum = 0, size = 0; /* of whole numbers below 2^53, unless weight-only */
            for (size_t i = 0; i < c->k; i++) {
                double product = (w->activation == ACTIVATION_FLOAT ? (double)x[i] : q[i]) * c->q[j * c->k + i];
                sum += product;
                size += fabs(product);
            }
            size = w->activation == ACTIVATION_FLOAT ? size : fabs(sum);
            double bias = c->bias ? (double)c->bias[j] : 0, factor = s * (double)c->scales[j];
            if (fabs(factor * sum + bias) > (double)FLT_MAX) {
                continue;
            }
            double error = fabs((double)c->expected[r * c->ldy + j] - (factor * sum + bias));
            error /= factor * size + fabs(bias) + 1e-31; /* near the least normal float scales lose bits */
            worst = error > worst || isnan(error) ? error : worst;
        }
        for (size_t j = c->n; j < c->ldy; j++) {
            CHECK(c->expected[r * c->ldy + j] == guard, "row %zu writes column %zu of %zu", r, j, c->n);
        }
    }
    double most =
        w->activation == ACTIVATION_FLOAT ? 1e-6 : 3e-7; /* the latter: sum, scale, product, bias round once each */
    CHECK(worst < most, "activation %d, n %zu, k %zu: relative error %.2g", (int)w->activation, c->n, c->k, worst);
    free(q);
}

static void check_company(const struct i8_case *c) {
    for (size_t i = 0; i < sizeof row_counts / sizeof *row_counts && row_counts[i] <= c->rows; i++) {
        size_t rows = row_counts[i], first = 7 * i % (c->rows - rows + 1), threads = 1 + i % MAX_TEST_THREADS;
        float *y = run(c, threads, first, rows);
        CHECK(same_bits(y, c->expected + first * c->ldy, rows * c->ldy),
              "activation %d, n %zu, k %zu: rows %zu..%zu on %zu threads differ from those in a batch of %zu",
              (int)c->w[0].activation, c->n, c->k, first, first + rows, threads, c->rows);
        free(y);
    }
}

/* What the first variant computed, to compare the next ones with. FNV-1a. */
static void check_variants(const struct i8_case *c, size_t number) {
    static struct {
        const char *variant;
        uint64_t hash;
    } first[MAX_CASES];
    const unsigned char *p = (const unsigned char *)c->expected;
    uint64_t hash = 0xcbf29ce484222325u;
    for (size_t i = 0; i < c->rows * c->ldy * sizeof(float); i++) {
        hash = (hash ^ p[i]) * 0x100000001b3u;
    }
    if (number >= MAX_CASES || c->w[0].activation == ACTIVATION_FLOAT) {
        CHECK(number < MAX_CASES, "more than %d cases", MAX_CASES);
        return;
    }
    if (!first[number].variant) {
        first[number].variant = c->f->variant;
        first[number].hash = hash;
    }
    CHECK(hash == first[number].hash, "activation %d, n %zu, k %zu: not the bits of variant %s",
          (int)c->w[0].activation, c->n, c->k, first[number].variant);
}

/* A row of each size that activations can have, and some that they should not. */
static void fill_rows(struct random *r, float *x, size_t rows, size_t ldx, size_t k) {
    static const double sizes[] = {1, 30, 1e-3, 1e30, 3.4e38, 1e-30, 1e-38, 1e-44, 0};
    for (size_t i = 0; i < rows; i++) {
        double size = i % 3 == 0 ? sizes[i / 3 % 9] : 2;
        size_t n = i + 1 < rows ? ldx : k; /* the last ends where the allocation does */
        random_floats(r, x + i * ldx, n, size);
        if (i % 4 == 1) { /* an outlier, and ties between two integers */
            for (size_t j = 0; j < k; j++) {
                x[i * ldx + j] = ldexpf((float)(random_u64(r) % 509) - 254, -1);
            }
            x[i * ldx + random_u64(r) % k] = 127;
        }
        if (i % 4 == 2) { /* one sign only */
            for (size_t j = 0; j < k; j++) {
                x[i * ldx + j] = i % 8 == 2 ? fabsf(x[i * ldx + j]) : -fabsf(x[i * ldx + j]);
            }
        }
    }
}

static struct i8_case case_open(const struct fixture *f, struct random *r, enum activation_quant activation, size_t n,
                                size_t k, size_t rows, bool bias) {
    struct i8_case c = {.f = f, .n = n, .k = k, .ldx = k + PAD, .ldy = n + PAD, .rows = rows};
    c.q = xmalloc(n * k);
    c.scales = xmalloc(n * sizeof *c.scales);
    for (size_t i = 0; i < n * k; i++) {
        c.q[i] = (int8_t)random_u64(r);
    }
    c.q[random_u64(r) % (n * k)] = -128;
    for (size_t i = 0; i < n; i++) {
        c.scales[i] = (float)(0.011 + 0.01 * random_unit(r));
    }
    c.x = xmalloc(((rows - 1) * c.ldx + k) * sizeof *c.x);
    fill_rows(r, c.x, rows, c.ldx, k);
    if (activation == ACTIVATION_FLOAT) { /* its sums may overflow where whole numbers do not */
        random_floats(r, c.x, (rows - 1) * c.ldx + k, 3);
    }
    if (bias) {
        c.bias = xmalloc(n * sizeof *c.bias);
        random_floats(r, c.bias, n, 1);
    }
    /* Rows and scales apart from what was loaded: the backend must have its own. */
    size_t row_bytes = k + n % 3;
    int32_t zero_point = n % 2 == 0 ? 0 : (int32_t)(random_u64(r) % 256) - 128;
    for (size_t i = 0; i < MAX_TEST_THREADS; i++) {
        int8_t *q = xmalloc(1 + (n - 1) * row_bytes + k);
        float *scales = xmalloc(n * sizeof *scales);
        for (size_t j = 0; j < n; j++) {
            memcpy(q + 1 + j * row_bytes, c.q + j * k, k);
        }
        memcpy(scales, c.scales, n * sizeof *scales);
        c.w[i] = (struct weight){.dtype = DTYPE_I8,
                                 .n = n,
                                 .k = k,
                                 .row_bytes = row_bytes,
                                 .data = q + 1,
                                 .scales = scales,
                                 .activation = activation,
                                 .input_scale = 0.0173f,
                                 .input_zero_point = zero_point};
        OK(f->ops->weight_load(f->b[i], &c.w[i], &err));
        CHECK(c.w[i].data != NULL, "a loaded weight has no data");
        free(q);
        free(scales);
    }
    return c;
}

static void case_close(struct i8_case *c) {
    for (size_t i = 0; i < MAX_TEST_THREADS; i++) {
        c->f->ops->weight_unload(c->f->b[i], &c->w[i]);
    }
    free(c->q), free(c->scales), free(c->bias), free(c->x), free(c->expected);
}

static void test_shapes(const struct fixture *f, struct random *r) {
    static const struct {
        size_t n, k;
    } shapes[] = {{1, 1}, {16, 64}, {17, 65}, {3, 37}, {70, 130}, {129, 200}, {64, 1039}, {5, 2053}, {113, 576}};
    size_t number = 0;
    for (enum activation_quant a = ACTIVATION_FLOAT; a <= ACTIVATION_I8_STATIC; a++) {
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++, number++) {
            struct i8_case c = case_open(f, r, a, shapes[i].n, shapes[i].k, MAX_ROWS, i % 2 == 1);
            c.expected = run(&c, 1, 0, MAX_ROWS);
            check_values(&c);
            check_company(&c);
            check_variants(&c, number);
            case_close(&c);
        }
    }
}

/* The longest row there may be, at the largest products. */
static void test_longest(const struct fixture *f, struct random *r) {
    enum { K = 65536, N = 2, ROWS = 5 };
    for (enum activation_quant a = ACTIVATION_I8_TOKEN; a <= ACTIVATION_I8_STATIC; a++) {
        struct i8_case c = case_open(f, r, a, N, K, ROWS, false);
        for (size_t i = 0; i < MAX_TEST_THREADS; i++) { /* once more, with extreme values */
            f->ops->weight_unload(f->b[i], &c.w[i]);
            memset(c.q, -128, N * K);
            c.w[i].data = c.q, c.w[i].row_bytes = K, c.w[i].scales = c.scales;
            c.w[i].input_scale = 1, c.w[i].input_zero_point = -128;
            OK(f->ops->weight_load(f->b[i], &c.w[i], &err));
        }
        for (size_t m = 0; m < ROWS; m++) {
            for (size_t i = 0; i < K; i++) {
                c.x[m * c.ldx + i] = m % 2 == 0 ? 255 : -255;
            }
        }
        c.expected = run(&c, 1, 0, ROWS);
        check_values(&c);
        check_company(&c);
        case_close(&c);
    }
}

/* A row that is not finite gives NaN everywhere, and disturbs no other. */
static void test_not_finite(const struct fixture *f, struct random *r) {
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    enum { ROWS = 20 };
    for (enum activation_quant a = ACTIVATION_FLOAT; a <= ACTIVATION_I8_STATIC; a++) {
        struct i8_case c = case_open(f, r, a, 50, 131, ROWS, true);
        c.expected = run(&c, 1, 0, ROWS);
        for (size_t b = 0; b < 3; b++) {
            size_t row = 4 * b + 1, at = row * c.ldx + (b == 1 ? c.k - 1 : 5 * b);
            float before = c.x[at];
            c.x[at] = bad[b];
            for (size_t i = 0; i < sizeof row_counts / sizeof *row_counts && row_counts[i] <= ROWS; i++) {
                size_t rows = row_counts[i], first = row + rows < ROWS ? row : ROWS - rows;
                float *y = run(&c, 1 + i % MAX_TEST_THREADS, first, rows);
                for (size_t m = 0; m < rows; m++) {
                    if (first + m != row) {
                        CHECK(same_bits(y + m * c.ldy, c.expected + (first + m) * c.ldy, c.n),
                              "activation %d: a row beside one with %g is not what it was", (int)a, (double)bad[b]);
                        continue;
                    }
                    size_t finite = 0;
                    for (size_t j = 0; j < c.n; j++) {
                        finite += isfinite(y[m * c.ldy + j]) || (a != ACTIVATION_FLOAT && !isnan(y[m * c.ldy + j]));
                    }
                    /* weight-only: an infinity times 0 is NaN, times another weight it is infinite */
                    CHECK(finite == 0, "activation %d: of a row with %g %zu columns are finite", (int)a, (double)bad[b],
                          finite);
                }
                free(y);
            }
            c.x[at] = before;
        }
        case_close(&c);
    }
}

/* Parts of other types and other inputs in one call, against one call each. */
static void test_parts(const struct fixture *f, struct random *r) {
    static const enum activation_quant kinds[] = {ACTIVATION_I8_TOKEN, ACTIVATION_I8_TOKEN, ACTIVATION_FLOAT,
                                                  ACTIVATION_I8_STATIC, ACTIVATION_I8_TOKEN_ZERO};
    enum { N_I8 = 5, K = 288, PARTS = N_I8 + 1 };
    struct i8_case c[N_I8];
    struct matrix m = matrix_random(r, DTYPE_Q8_0, 41, K, 0);
    struct linear_part parts[PARTS];
    float *y[PARTS], *alone[PARTS];
    for (size_t i = 0; i < N_I8; i++) {
        c[i] = case_open(f, r, kinds[i], 20 + 13 * i, K, MAX_ROWS, i == 1);
    }
    for (size_t i = 0; i < sizeof row_counts / sizeof *row_counts; i++) {
        size_t rows = row_counts[i], threads = 1 + i % MAX_TEST_THREADS;
        for (size_t p = 0; p < PARTS; p++) { /* the one of another type is the third */
            const struct i8_case *of = p < 2 ? &c[p] : p == 2 ? NULL : &c[p - 1];
            const struct weight *w = of ? &of->w[threads - 1] : &m.w;
            y[p] = xmalloc(rows * w->n * sizeof(float));
            alone[p] = xmalloc(rows * w->n * sizeof(float));
            parts[p] = (struct linear_part){w, of ? of->bias : NULL, alone[p], w->n};
            OK(f->ops->linear(f->b[threads - 1], c[0].x, c[0].ldx, rows, &parts[p], 1, &err));
            parts[p].y = y[p];
        }
        OK(f->ops->linear(f->b[threads - 1], c[0].x, c[0].ldx, rows, parts, PARTS, &err));
        for (size_t p = 0; p < PARTS; p++) {
            CHECK(same_bits(y[p], alone[p], rows * parts[p].w->n), "part %zu of %zu rows differs from the part alone",
                  p, rows);
            free(y[p]), free(alone[p]);
        }
    }
    for (size_t i = 0; i < N_I8; i++) {
        case_close(&c[i]);
    }
    matrix_free(&m);
}

static void test_embed(const struct fixture *f, struct random *r) {
    enum { ROWS = 50 };
    static const size_t ks[] = {1, 15, 64, 577};
    for (size_t i = 0; i < sizeof ks / sizeof *ks; i++) {
        struct i8_case c = case_open(f, r, ACTIVATION_I8_TOKEN, 37, ks[i], 1, false);
        int32_t ids[ROWS];
        float *y = xmalloc(ROWS * (c.k + PAD) * sizeof *y), scale = i % 2 == 0 ? 1 : 25.25f;
        for (size_t m = 0; m < ROWS; m++) {
            ids[m] = (int32_t)(random_u64(r) % c.n);
            y[m * (c.k + PAD) + c.k] = guard;
        }
        OK(f->ops->embed(f->b[i], y, c.k + PAD, &c.w[i], ids, ROWS, scale, &err));
        bool right = true;
        for (size_t m = 0; m < ROWS; m++) {
            for (size_t d = 0; d < c.k; d++) {
                float value = c.scales[ids[m]] * (float)c.q[(size_t)ids[m] * c.k + d];
                right = right && y[m * (c.k + PAD) + d] == value * scale;
            }
            right = right && y[m * (c.k + PAD) + c.k] == guard;
        }
        CHECK(right, "embed of I8, k %zu, is wrong", c.k);
        free(y);
        case_close(&c);
    }
}

static void test_refused(const struct fixture *f) {
    static const int8_t q[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    static const float scales[4] = {1, 2, 0, 3}, bad[][2] = {{1, -1}, {NAN, 1}, {1, INFINITY}};
    const struct weight good = {.dtype = DTYPE_I8,
                                .n = 4,
                                .k = 2,
                                .row_bytes = 2,
                                .data = q,
                                .scales = scales,
                                .activation = ACTIVATION_I8_STATIC,
                                .input_scale = 1};
    struct weight w = good;
    float x[2] = {1, 1}, y[4];
    struct linear_part part = {&w, NULL, y, 4};
    CHECK(f->ops->linear(f->b[0], x, 2, 1, &part, 1, &err) < 0, "a weight that was not loaded is multiplied");
    OK(f->ops->weight_load(f->b[0], &w, &err));
    OK(f->ops->linear(f->b[0], x, 2, 1, &part, 1, &err));
    CHECK(y[0] == 3 && y[1] == 14 && y[2] == 0 && y[3] == 45, "a small product is wrong");
    f->ops->weight_unload(f->b[0], &w);
    CHECK(w.packed == NULL, "an unloaded weight keeps what was packed");
    f->ops->weight_unload(f->b[0], &w);
    for (size_t i = 0; i < 3; i++) {
        w = good, w.n = 2, w.scales = bad[i];
        CHECK(f->ops->weight_load(f->b[0], &w, &err) < 0, "a scale that is none");
    }
    w = good, w.scales = NULL;
    CHECK(f->ops->weight_load(f->b[0], &w, &err) < 0, "no scales");
    w = good, w.input_scale = 0;
    CHECK(f->ops->weight_load(f->b[0], &w, &err) < 0, "an input scale of 0");
    w = good, w.input_scale = NAN;
    CHECK(f->ops->weight_load(f->b[0], &w, &err) < 0, "an input scale of NaN");
    w = good, w.input_zero_point = 128;
    CHECK(f->ops->weight_load(f->b[0], &w, &err) < 0, "an input zero point of 128");
    w = good, w.n = 1, w.k = 65537, w.row_bytes = 65537;
    CHECK(f->ops->weight_load(f->b[0], &w, &err) < 0 && err.code == ERROR_UNSUPPORTED, "sums that may overflow");
    w = good, w.row_bytes = 1;
    CHECK(f->ops->weight_load(f->b[0], &w, &err) < 0, "a row of 2 in 1 byte");
}

void test_i8(const struct fixture *f) {
    struct random r = {5};
    test_refused(f);
    test_shapes(f, &r);
    test_longest(f, &r);
    test_not_finite(f, &r);
    test_parts(f, &r);
    test_embed(f, &r);
}
