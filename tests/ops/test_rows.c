/* rms_norm, rope, silu_mul, gather_rows, kv_store, kv_copy at odd sizes against the reference. */
#include "ops.h"

#include <math.h>

enum {
    PAD = 3 /* columns between rows that nobody may touch */
};
static const float guard = -777.25f;
static const size_t row_counts[] = {1, 2, 3, 5, 17, 33};
#define N_ROW_COUNTS (sizeof row_counts / sizeof *row_counts)

static float *rows_random(struct random *r, size_t rows, size_t ld, size_t n, double size) {
    float *p = xmalloc(rows * ld * sizeof *p);
    for (size_t i = 0; i < rows; i++) {
        random_floats(r, p + i * ld, n, size);
        for (size_t j = n; j < ld; j++) {
            p[i * ld + j] = guard;
        }
    }
    return p;
}

static float *rows_copy(const float *p, size_t n) {
    float *q = xmalloc(n * sizeof *q);
    memcpy(q, p, n * sizeof *q);
    return q;
}

static void check_guard(const char *op, const float *p, size_t rows, size_t ld, size_t n) {
    for (size_t i = 0; i < rows; i++) {
        for (size_t j = n; j < ld; j++) {
            CHECK(p[i * ld + j] == guard, "%s of %zu x %zu writes beyond row %zu", op, rows, n, i);
        }
    }
}

static double relative(double got, double want, double floor) {
    double error = fabs(got - want) / (fabs(want) + floor);
    return isnan(error) ? (double)INFINITY : error;
}

static void test_rms_norm_shape(const struct fixture *f, struct random *r, size_t rows, size_t groups, size_t dim,
                                bool residual, size_t threads) {
    size_t n = groups * dim, ld = n + PAD;
    float *x = rows_random(r, rows, ld, n, 3), *y = rows_random(r, rows, ld, n, 1), *w = xmalloc(dim * sizeof *w);
    float *res = rows_random(r, rows, ld, n, 1), *before = rows_copy(x, rows * ld);
    random_floats(r, w, dim, 1);
    const float eps = 1e-5f;
    OK(f->ops->rms_norm(f->b[threads - 1], y, ld, x, ld, residual ? res : NULL, residual ? ld : 0, w, rows, groups, dim,
                        eps, &err));
    double *want = xmalloc(n * sizeof *want), *in = xmalloc(n * sizeof *in), worst = 0;
    for (size_t i = 0; i < rows; i++) {
        for (size_t j = 0; j < n; j++) {
            float sum = before[i * ld + j] + (residual ? res[i * ld + j] : 0);
            CHECK(x[i * ld + j] == sum, "rms_norm: x is not x + residual");
            in[j] = (double)sum;
        }
        for (size_t g = 0; g < groups; g++) {
            reference_rms_norm(in + g * dim, w, dim, (double)eps, want + g * dim);
        }
        for (size_t j = 0; j < n; j++) {
            worst = fmax(worst, relative((double)y[i * ld + j], want[j], 0));
        }
    }
    CHECK(worst < 1e-6, "rms_norm %zu x %zu x %zu: relative error %.2g", rows, groups, dim, worst);
    check_guard("rms_norm", y, rows, ld, n);
    check_guard("rms_norm", x, rows, ld, n);
    /* in place, and the last row alone: the same bits */
    float *again = rows_copy(x, rows * ld);
    OK(f->ops->rms_norm(f->b[0], again, ld, again, ld, NULL, 0, w, rows, groups, dim, eps, &err));
    CHECK(same_bits(again, y, rows * ld), "rms_norm in place differs");
    OK(f->ops->rms_norm(f->b[0], again, ld, x + (rows - 1) * ld, ld, NULL, 0, w, 1, groups, dim, eps, &err));
    CHECK(same_bits(again, y + (rows - 1) * ld, n), "rms_norm of a row alone differs");
    free(x), free(y), free(w), free(res), free(before), free(want), free(in), free(again);
}

static void test_rms_norm(const struct fixture *f, struct random *r) {
    static const size_t dims[] = {1, 2, 15, 16, 33, 576, 2050};
    for (size_t i = 0; i < N_ROW_COUNTS; i++) {
        for (size_t j = 0; j < sizeof dims / sizeof *dims; j++) {
            test_rms_norm_shape(f, r, row_counts[i], 1, dims[j], j % 2 == 0, 1 + (i + j) % MAX_TEST_THREADS);
            test_rms_norm_shape(f, r, row_counts[i], 1 + (i + j) % 4, dims[j], false, 1 + (i + j) % MAX_TEST_THREADS);
        }
    }
    /* all zeros: eps keeps it finite */
    float zero[5] = {0}, w[5] = {1, 1, 1, 1, 1}, y[5];
    OK(f->ops->rms_norm(f->b[0], y, 5, zero, 5, NULL, 0, w, 1, 1, 5, 1e-6f, &err));
    CHECK(same_bits(y, zero, 5), "rms_norm of zeros is not zero");
}

static void test_rope_shape(const struct fixture *f, struct random *r, size_t rows, size_t heads, size_t head_dim,
                            size_t n_rot, enum rope_style style, size_t threads) {
    size_t n = heads * head_dim, ld = n + PAD;
    float *x = rows_random(r, rows, ld, n, 2), *before = rows_copy(x, rows * ld);
    float *inv_freq = xmalloc(n_rot / 2 * sizeof *inv_freq);
    int32_t *positions = xmalloc(rows * sizeof *positions);
    for (size_t i = 0; i < n_rot / 2; i++) {
        inv_freq[i] = (float)pow(10000, -2.0 * (double)i / (double)n_rot);
    }
    for (size_t i = 0; i < rows; i++) {
        positions[i] = (int32_t)(i % 3 == 0 ? i : random_u64(r) % 1000000);
    }
    struct rope_table table = {inv_freq, n_rot, rows % 2 == 0 ? 1.0f : 1.25f, style};
    OK(f->ops->rope(f->b[threads - 1], x, ld, heads, head_dim, positions, rows, &table, &err));
    double worst = 0, *want = xmalloc(head_dim * sizeof *want);
    for (size_t i = 0; i < rows; i++) {
        for (size_t h = 0; h < heads; h++) {
            for (size_t d = 0; d < head_dim; d++) {
                want[d] = (double)before[i * ld + h * head_dim + d];
            }
            reference_rope(want, n_rot, style, inv_freq, (double)table.mscale, positions[i]);
            for (size_t d = 0; d < head_dim; d++) {
                float got = x[i * ld + h * head_dim + d];
                worst = fmax(worst, relative((double)got, want[d], 1));
                CHECK(d < n_rot || got == before[i * ld + h * head_dim + d], "rope touches feature %zu of %zu", d,
                      n_rot);
            }
        }
    }
    CHECK(worst < 5e-7, "rope %zu x %zu x %zu: error %.2g", rows, heads, head_dim, worst);
    check_guard("rope", x, rows, ld, n);
    /* Tables by turns, then the same call again: whatever is remembered between calls is the right table's. */
    float *again = rows_copy(before, rows * ld), *other = rows_copy(before, rows * ld);
    inv_freq[0] = 0.5f;
    OK(f->ops->rope(f->b[threads - 1], other, ld, heads, head_dim, positions, rows, &table, &err));
    inv_freq[0] = 1;
    OK(f->ops->rope(f->b[threads - 1], again, ld, heads, head_dim, positions, rows, &table, &err));
    CHECK(same_bits(again, x, rows * ld), "rope of %zu rows differs the second time", rows);
    memcpy(again, before, rows * ld * sizeof *again);
    OK(f->ops->rope(f->b[0], again + (rows - 1) * ld, ld, heads, head_dim, positions + rows - 1, 1, &table, &err));
    CHECK(same_bits(again + (rows - 1) * ld, x + (rows - 1) * ld, ld), "rope of a row alone differs");
    free(x), free(before), free(inv_freq), free(positions), free(want), free(again), free(other);
}

static void test_rope(const struct fixture *f, struct random *r) {
    static const struct {
        size_t heads, head_dim, n_rot;
    } shapes[] = {{1, 2, 2},   {3, 64, 64},   {9, 64, 64},   {2, 80, 80},
                  {5, 96, 24}, {4, 128, 128}, {1, 256, 256}, {3, 10, 6}};
    for (size_t i = 0; i < N_ROW_COUNTS; i++) {
        for (size_t j = 0; j < sizeof shapes / sizeof *shapes; j++) {
            size_t threads = 1 + (i + j) % MAX_TEST_THREADS;
            test_rope_shape(f, r, row_counts[i], shapes[j].heads, shapes[j].head_dim, shapes[j].n_rot, ROPE_HALVES,
                            threads);
            test_rope_shape(f, r, row_counts[i], shapes[j].heads, shapes[j].head_dim, shapes[j].n_rot, ROPE_INTERLEAVED,
                            threads);
        }
    }
    float x[8] = {0}, inv_freq[4] = {1, 1, 1, 1};
    int32_t position = 0;
    struct rope_table table = {inv_freq, 8, 1, ROPE_HALVES};
    CHECK(f->ops->rope(f->b[0], x, 8, 2, 4, &position, 1, &table, &err) < 0, "more rotated features than the head has");
}

static void test_silu_mul_shape(const struct fixture *f, struct random *r, size_t rows, size_t dim, enum activation act,
                                size_t threads) {
    size_t ld = dim + PAD;
    float *gate = rows_random(r, rows, ld, dim, 12), *up = rows_random(r, rows, ld, dim, 2);
    float *y = rows_random(r, rows, ld, dim, 1);
    gate[0] = -100; /* far out on the flat side, and 0 */
    gate[dim - 1] = 0;
    OK(f->ops->silu_mul(f->b[threads - 1], y, ld, gate, ld, up, ld, rows, dim, act, &err));
    double worst = 0;
    for (size_t i = 0; i < rows; i++) {
        for (size_t j = 0; j < dim; j++) {
            double g = (double)gate[i * ld + j], u = (double)up[i * ld + j];
            double want = (act == ACTIVATION_SILU ? reference_silu(g) : reference_gelu_tanh(g)) * u;
            worst = fmax(worst, relative((double)y[i * ld + j], want, 1e-30));
        }
    }
    /* gelu's exponent is a cubic that reaches some tens: its rounding shows in e^u */
    CHECK(worst < (act == ACTIVATION_SILU ? 2e-6 : 2e-5), "activation %d of %zu x %zu: relative error %.2g", (int)act,
          rows, dim, worst);
    check_guard("silu_mul", y, rows, ld, dim);
    OK(f->ops->silu_mul(f->b[0], gate, ld, gate, ld, up, ld, rows, dim, act, &err));
    CHECK(same_bits(gate, y, rows * ld), "silu_mul in place differs");
    free(gate), free(up), free(y);
}

static void test_gather(const struct fixture *f, struct random *r, size_t rows, size_t dim, size_t threads) {
    size_t ld = dim + PAD;
    float *x = rows_random(r, rows, ld, dim, 12);
    enum { N = 7 };
    int32_t index[N];
    for (size_t i = 0; i < N; i++) {
        index[i] = (int32_t)(random_u64(r) % rows);
    }
    float *z = rows_random(r, N, ld, dim, 1);
    OK(f->ops->gather_rows(f->b[threads - 1], DTYPE_F32, z, ld, x, ld, index, N, dim, &err));
    for (size_t i = 0; i < N; i++) {
        CHECK(same_bits(z + i * ld, x + (size_t)index[i] * ld, dim), "gather_rows of %zu", dim);
    }
    check_guard("gather_rows", z, N, ld, dim);
    index[3] = -1;
    CHECK(f->ops->gather_rows(f->b[0], DTYPE_F32, z, ld, x, ld, index, N, dim, &err) < 0, "gather_rows takes row -1");
    free(x), free(z);
}

/* Rounding of every interesting F32 to F16 and BF16 is checked through kv_store, which is where it happens. */
static float interesting(struct random *r) {
    static const float edges[] = {0.0f,   -0.0f,          65504.0f, 65519.99f, 65520.0f, -65520.0f,  1e30f,
                                  -3e38f, 6.1e-5f,        5.96e-8f, 2.98e-8f,  2.99e-8f, 1e-10f,     1e-40f,
                                  1.0f,   1.00048828125f, -6.0e-5f, 2049.0f,   2051.0f,  1.00390625f};
    uint64_t u = random_u64(r);
    if (u % 4 == 0) {
        return edges[u / 4 % (sizeof edges / sizeof *edges)];
    }
    return (float)(random_unit(r) * pow(2, (double)(u / 4 % 50) - 30));
}

static void test_kv_store_shape(const struct fixture *f, struct random *r, enum dtype dtype, size_t heads,
                                size_t head_dim, size_t block_size, size_t threads) {
    enum { ROWS = 19, BLOCKS = 9 };
    size_t n = heads * head_dim, ld = n + PAD, bytes = kv_layer_bytes(dtype, BLOCKS, block_size, heads, head_dim);
    float *k = xmalloc(ROWS * ld * sizeof *k), *v = xmalloc(ROWS * ld * sizeof *v);
    for (size_t i = 0; i < ROWS * ld; i++) {
        k[i] = interesting(r);
        v[i] = interesting(r);
    }
    CHECK(bytes == 2 * BLOCKS * block_size * n * 2, "kv_layer_bytes gives %zu", bytes);
    struct kv_layer kv = {
        .dtype = dtype, .n_blocks = BLOCKS, .block_size = block_size, .n_kv_heads = heads, .head_dim = head_dim};
    OK(f->ops->alloc(f->b[0], bytes, &kv.data, &err));
    uint16_t *want = xmalloc(bytes);
    int32_t slots[ROWS];
    for (size_t i = 0; i < ROWS; i++) { /* all different, out of order */
        slots[i] = (int32_t)((i * 7 + 3) % (BLOCKS * block_size));
    }
    size_t stored = BLOCKS * block_size < ROWS ? BLOCKS * block_size : ROWS;
    for (size_t i = 0; i < stored; i++) {
        size_t block = (size_t)slots[i] / block_size, offset = (size_t)slots[i] % block_size;
        for (size_t j = 0; j < n; j++) {
            size_t head = j / head_dim, d = j % head_dim;
            size_t at = ((2 * block * heads + head) * block_size + offset) * head_dim + d;
            uint16_t (*convert)(double) = dtype == DTYPE_F16 ? reference_to_f16 : reference_to_bf16;
            want[at] = convert((double)k[i * ld + j]);
            want[at + heads * block_size * head_dim] = convert((double)v[i * ld + j]);
        }
    }
    OK(f->ops->kv_store(f->b[threads - 1], &kv, k, ld, v, ld, slots, stored, &err));
    CHECK(memcmp(kv.data, want, bytes) == 0, "kv_store %s, %zu heads of %zu, blocks of %zu", dtype_info(dtype)->name,
          heads, head_dim, block_size);
    slots[0] = (int32_t)(BLOCKS * block_size);
    CHECK(f->ops->kv_store(f->b[0], &kv, k, ld, v, ld, slots, 1, &err) < 0, "kv_store takes a slot beyond the memory");
    slots[0] = -1;
    CHECK(f->ops->kv_store(f->b[0], &kv, k, ld, v, ld, slots, 1, &err) < 0, "kv_store takes slot -1");
    f->ops->free(f->b[0], kv.data);
    free(k), free(v), free(want);
}

/* What I8 keeps of x[n]: nearest multiples of an F16 scale, absmax / 127. */
static void want_i8(const float *x, size_t n, uint8_t *q, uint8_t *scale) {
    double top = 0;
    bool finite = true;
    for (size_t i = 0; i < n; i++) {
        finite = finite && isfinite(x[i]);
        top = fmax(top, fabs((double)x[i]));
    }
    uint16_t half = reference_to_f16((double)((float)top / 127));
    double step = reference_f16(half);
    finite = finite && isfinite(step);
    for (size_t i = 0; i < n; i++) {
        double d = finite && step > 0 ? (double)x[i] / step : 0;
        q[i] = (uint8_t)(int8_t)(d > 127 ? 127 : d < -127 ? -127 : nearbyint(d));
    }
    half = finite ? half : 0x7e00;
    memcpy(scale, &half, sizeof half);
}

static void test_kv_store_i8(const struct fixture *f, struct random *r, size_t heads, size_t head_dim,
                             size_t block_size, size_t threads) {
    enum { ROWS = 23, BLOCKS = 9 };
    size_t n = heads * head_dim, ld = n + PAD, bytes = kv_layer_bytes(DTYPE_I8, BLOCKS, block_size, heads, head_dim);
    CHECK(bytes == 2 * BLOCKS * block_size * heads * (head_dim + 2), "kv_layer_bytes gives %zu", bytes);
    float *x[2] = {xmalloc(ROWS * ld * sizeof **x), xmalloc(ROWS * ld * sizeof **x)};
    for (size_t i = 0; i < ROWS; i++) {
        for (size_t v = 0; v < 2; v++) {
            /* rows of all sizes: zeros, some whose scale is subnormal or none, NaN and infinity among numbers */
            static const double sizes[] = {1, 30, 1e-3, 0, 1e-4, 3e-6, 1e6, 1e7, 4};
            random_floats(r, x[v] + i * ld, ld, sizes[i % 9]);
            x[v][i * ld] = i == 11 ? NAN : i == 12 ? -INFINITY : x[v][i * ld];
        }
    }
    struct kv_layer kv = {
        .dtype = DTYPE_I8, .n_blocks = BLOCKS, .block_size = block_size, .n_kv_heads = heads, .head_dim = head_dim};
    OK(f->ops->alloc(f->b[0], bytes, &kv.data, &err));
    uint8_t *want = xmalloc(bytes), *got = kv.data;
    int32_t slots[ROWS];
    size_t stored = BLOCKS * block_size < ROWS ? BLOCKS * block_size : ROWS;
    for (size_t i = 0; i < stored; i++) {
        slots[i] = (int32_t)((i * 7 + 3) % (BLOCKS * block_size));
        size_t block = (size_t)slots[i] / block_size, offset = (size_t)slots[i] % block_size;
        for (size_t j = 0; j < 2 * heads; j++) {
            uint8_t *at = want + block * (bytes / BLOCKS);
            size_t token = j * block_size + offset, head = j % heads;
            want_i8(x[j / heads] + i * ld + head * head_dim, head_dim, at + token * head_dim,
                    at + 2 * n * block_size + 2 * token);
        }
    }
    OK(f->ops->kv_store(f->b[threads - 1], &kv, x[0], ld, x[1], ld, slots, stored, &err));
    /* Halfway between two integers a product and a quotient may round to either side. */
    size_t wrong = 0, off = 0;
    for (size_t i = 0; i < bytes; i++) {
        size_t in_block = i % (bytes / BLOCKS);
        int distance = abs((int)(int8_t)got[i] - (int)(int8_t)want[i]);
        wrong += in_block < 2 * n * block_size ? distance > 1 : distance > 0;
        off += distance == 1;
    }
    CHECK(wrong == 0 && off <= bytes / 1000, "kv_store I8, %zu heads of %zu, blocks of %zu: %zu bytes wrong, %zu off",
          heads, head_dim, block_size, wrong, off);
    f->ops->free(f->b[0], kv.data);
    free(x[0]), free(x[1]), free(want);
}

/* Chains and cycles of copies, in order; whole blocks, whatever they hold. */
static void test_kv_copy(const struct fixture *f, struct random *r, enum dtype dtype, size_t heads, size_t head_dim,
                         size_t block_size) {
    enum { BLOCKS = 5 };
    static const int32_t from[] = {0, 1, 3, 2, 4}, to[] = {1, 2, 0, 3, 4};
    static const int ends_as[BLOCKS] = {3, 0, 0, 0, 4}; /* 0 -> 1 -> 2 -> 3, and 3 -> 0 before that */
    size_t bytes = kv_layer_bytes(dtype, BLOCKS, block_size, heads, head_dim), block = bytes / BLOCKS;
    struct kv_layer kv = {
        .dtype = dtype, .n_blocks = BLOCKS, .block_size = block_size, .n_kv_heads = heads, .head_dim = head_dim};
    OK(f->ops->alloc(f->b[0], bytes, &kv.data, &err));
    uint8_t *before = xmalloc(bytes);
    for (size_t i = 0; i < bytes; i++) {
        before[i] = (uint8_t)random_u64(r);
    }
    OK(f->ops->upload(f->b[0], kv.data, before, bytes, &err));
    OK(f->ops->kv_copy(f->b[0], &kv, from, to, 5, &err));
    for (size_t i = 0; i < BLOCKS; i++) {
        CHECK(memcmp((uint8_t *)kv.data + i * block, before + (size_t)ends_as[i] * block, block) == 0,
              "kv_copy %s: block %zu", dtype_info(dtype)->name, i);
    }
    const int32_t good = 1, beyond = BLOCKS, negative = -1;
    CHECK(f->ops->kv_copy(f->b[0], &kv, &beyond, &good, 1, &err) < 0, "kv_copy from a block that is not there");
    CHECK(f->ops->kv_copy(f->b[0], &kv, &good, &negative, 1, &err) < 0, "kv_copy to a block that is not there");
    OK(f->ops->kv_copy(f->b[0], &kv, NULL, NULL, 0, &err));
    f->ops->free(f->b[0], kv.data);
    free(before);
}

void test_rows(const struct fixture *f) {
    struct random r = {2};
    test_rms_norm(f, &r);
    test_rope(f, &r);
    static const size_t dims[] = {1, 16, 31, 1536, 4099};
    for (size_t i = 0; i < N_ROW_COUNTS; i++) {
        for (size_t j = 0; j < sizeof dims / sizeof *dims; j++) {
            size_t threads = 1 + (i + j) % MAX_TEST_THREADS;
            test_silu_mul_shape(f, &r, row_counts[i], dims[j], ACTIVATION_SILU, threads);
            test_silu_mul_shape(f, &r, row_counts[i], dims[j], ACTIVATION_GELU_TANH, threads);
            test_gather(f, &r, row_counts[i], dims[j], threads);
        }
    }
    test_kv_copy(f, &r, DTYPE_F16, 3, 64, 16);
    test_kv_copy(f, &r, DTYPE_BF16, 1, 2, 5);
    test_kv_copy(f, &r, DTYPE_I8, 2, 66, 8); /* the layout of a block is all that counts */
    for (size_t threads = 1; threads <= MAX_TEST_THREADS; threads++) {
        enum dtype dtype = threads % 2 ? DTYPE_F16 : DTYPE_BF16;
        test_kv_store_shape(f, &r, dtype, 3, 64, 16, threads);
        test_kv_store_shape(f, &r, dtype, 1, 2, 5, threads);
        test_kv_store_shape(f, &r, dtype, 5, 1024, 3, threads);
        test_kv_store_shape(f, &r, dtype, 2, 82, 32, threads);
        test_kv_store_i8(f, &r, 3, 64, 16, threads);
        test_kv_store_i8(f, &r, 1, 2, 5, threads);
        test_kv_store_i8(f, &r, 2, 1024, 3, threads);
        test_kv_store_i8(f, &r, 2, 82, 32, threads);
    }
}
