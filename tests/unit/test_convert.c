/* model/convert.h: which type a matrix becomes, and that what cannot be converted is refused. What the values are is
 * tests/golden/test_quantized.c's. */
#include "gguf_build.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "model/convert.h"
#include "model_file/internal.h"
#include "quant/dequant.h"

static struct error err;

Test(convert, names_of_formats) {
    enum weights_format f = WEIGHTS_BF16;
    cr_expect(weights_format_parse(NULL, &f, &err) == 0 && f == WEIGHTS_AUTO);
    cr_expect(weights_format_parse("int8-weight-only", &f, &err) == 0 && f == WEIGHTS_INT8_WEIGHT_ONLY);
    cr_expect(weights_format_parse("int8", &f, &err) == 0 && f == WEIGHTS_INT8);
    cr_expect(weights_format_parse("int4", &f, &err) < 0 && err.code == ERROR_INVALID && !strcmp(err.param, "weights"));
    cr_expect_eq(f, WEIGHTS_INT8);
}

/* A matrix [n][64] of 4 bits in groups of `group`, all codes 9, with this scale and zero point everywhere. */
static struct converted packed(size_t group, uint32_t scale_bits, int zero, enum weights_format format) {
    enum { N = 8, K = 64 };
    size_t groups = K / group;
    struct buf header = BUF_INIT, file = BUF_INIT;
    buf_printf(&header,
               "{\"p.weight_packed\":{\"dtype\":\"I32\",\"shape\":[8,8],\"data_offsets\":[0,256]},"
               "\"p.weight_scale\":{\"dtype\":\"F32\",\"shape\":[8,%zu],\"data_offsets\":[256,%zu]},"
               "\"p.weight_zero_point\":{\"dtype\":\"I32\",\"shape\":[1,%zu],\"data_offsets\":[%zu,%zu]}}",
               groups, 256 + 32 * groups, groups, 256 + 32 * groups, 256 + 36 * groups);
    put_u64(&file, header.len);
    buf_append(&file, header.data, header.len);
    for (int i = 0; i < 64; i++) {
        put_u32(&file, 0x99999999);
    }
    for (size_t i = 0; i < N * groups; i++) {
        put_u32(&file, scale_bits);
    }
    for (size_t i = 0; i < groups; i++) {
        put_u32(&file, 0x11111111u * (uint32_t)zero);
    }
    struct model_file *f = NULL;
    struct matrix m;
    struct converted c;
    const struct quant_scheme s = {.layout = QUANT_PACKED, .bits = 4, .group = group, .scale = "weight_scale"};
    cr_assert_eq(model_file_open_memory(MODEL_FORMAT_SAFETENSORS, file.data, file.len, &f, &err), 0, "%s", err.message);
    cr_assert_eq(matrix_open(&m, f, "p", &s, N, K, &err), 0, "%s", err.message);
    cr_assert_eq(matrix_convert(&m, f, format, 2, NULL, &c, &err), 0, "%s", err.message);
    model_file_close(f);
    buf_free(&header);
    buf_free(&file);
    return c;
}

static void becomes(size_t group, uint32_t scale_bits, int zero, enum weights_format format, enum dtype want, float value) {
    struct converted c = packed(group, scale_bits, zero, format);
    float x[64];
    cr_expect_eq(c.w.dtype, want, "%s", dtype_info(c.w.dtype)->name);
    cr_expect_not_null(c.data);
    if (c.w.dtype == DTYPE_I8) {
        cr_expect_float_eq(c.scales[7] * ((const int8_t *)c.w.data)[0], value, 1e-6f * value);
        cr_expect_eq(c.size, 8 * 64 + 8 * sizeof(float));
    } else {
        cr_assert_eq(dequantize_row(c.w.dtype, (const char *)c.w.data + 7 * c.w.row_bytes, x, 64), 0);
        cr_expect_float_eq(x[63], value, 0.005f * value, "%g", (double)x[63]);
        cr_expect_eq(c.size, 8 * c.w.row_bytes);
    }
    free(c.data);
    free(c.scales);
}

enum { HALF_OK = 0x3c800000 /* 2^-6 */, TINY = 0x33580000 /* 5e-8: a step of an F16 */, HUGE_SCALE = 0x47c80000 /* 102400 */ };

Test(convert, four_bits) {
    becomes(32, HALF_OK, 8, WEIGHTS_AUTO, DTYPE_Q4_0, 0x1p-6f);
    becomes(64, HALF_OK, 8, WEIGHTS_AUTO, DTYPE_Q4_0, 0x1p-6f);
    becomes(32, HALF_OK, 5, WEIGHTS_AUTO, DTYPE_Q4_1, 4 * 0x1p-6f);
    becomes(16, HALF_OK, 8, WEIGHTS_AUTO, DTYPE_BF16, 0x1p-6f); /* blocks have 32 elements */
    becomes(32, TINY, 8, WEIGHTS_AUTO, DTYPE_BF16, 5.0291e-8f);  /* a scale that F16 holds badly, or not at all */
    becomes(32, HUGE_SCALE, 8, WEIGHTS_AUTO, DTYPE_BF16, 102400);
    becomes(32, HALF_OK, 8, WEIGHTS_BF16, DTYPE_BF16, 0x1p-6f);
    becomes(32, HALF_OK, 8, WEIGHTS_INT8, DTYPE_I8, 0x1p-6f);
    becomes(32, HALF_OK, 5, WEIGHTS_INT8_WEIGHT_ONLY, DTYPE_Q8_0, 4 * 0x1p-6f);
}

/* `x` as a matrix [n][k] of F32, converted. */
static struct converted floats(const float *x, size_t n, size_t k, enum weights_format format) {
    struct buf header = BUF_INIT, file = BUF_INIT;
    buf_printf(&header, "{\"p.weight\":{\"dtype\":\"F32\",\"shape\":[%zu,%zu],\"data_offsets\":[0,%zu]}}", n, k, 4 * n * k);
    put_u64(&file, header.len);
    buf_append(&file, header.data, header.len);
    buf_append(&file, x, 4 * n * k);
    struct model_file *f = NULL;
    struct matrix m;
    struct converted c;
    cr_assert_eq(model_file_open_memory(MODEL_FORMAT_SAFETENSORS, file.data, file.len, &f, &err), 0, "%s", err.message);
    cr_assert_eq(matrix_open(&m, f, "p", NULL, n, k, &err), 0, "%s", err.message);
    cr_assert_eq(matrix_convert(&m, f, format, 2, NULL, &c, &err), 0, "%s", err.message);
    cr_expect_eq(c.w.activation, ACTIVATION_FLOAT);
    model_file_close(f);
    buf_free(&header);
    buf_free(&file);
    return c;
}

/* A large element costs its own 32 neighbours precision, not the row: with one scale a row all others would be 0. */
Test(convert, weight_only_has_a_scale_a_block) {
    enum { N = 3, K = 96 };
    float x[N * K], y[K];
    for (int i = 0; i < N * K; i++) {
        x[i] = i % K == 40 ? 1000.0f : i % K < 32 ? 0.01f * (float)(i % 32 - 16) : 0;
    }
    struct converted c = floats(x, N, K, WEIGHTS_INT8_WEIGHT_ONLY);
    cr_assert_eq(c.w.dtype, DTYPE_Q8_0);
    cr_expect_eq(c.w.row_bytes, 3 * 34);
    cr_expect_eq(c.size, N * c.w.row_bytes);
    for (size_t r = 0; r < N; r++) {
        cr_assert_eq(dequantize_row(DTYPE_Q8_0, (const char *)c.w.data + r * c.w.row_bytes, y, K), 0);
        for (size_t i = 0; i < K; i++) {
            float step = i < 32 ? 0.16f / 127 : i < 64 ? 1000.0f / 127 : 0;
            cr_expect(y[i] - x[r * K + i] <= 0.501f * step && x[r * K + i] - y[i] <= 0.501f * step, "%zu: %g", i, (double)y[i]);
        }
    }
    free(c.data);
}

/* No whole blocks, or scales beyond F16: a scale of F32 a row. Between, a small scale may be subnormal. */
Test(convert, weight_only_where_blocks_do_not_serve) {
    static const struct {
        size_t k;
        float largest;
        enum dtype want;
    } cases[] = {{32, 1.0f, DTYPE_Q8_0},  {48, 1.0f, DTYPE_I8},     {32, 1e-6f, DTYPE_I8},
                 {32, 1e-3f, DTYPE_Q8_0}, {32, 8.0e6f, DTYPE_Q8_0}, {32, 9.0e6f, DTYPE_I8}, {32, 0, DTYPE_Q8_0}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        float x[2 * 48] = {0}, y[48], step = 1.02f * cases[i].largest / 127;
        size_t k = cases[i].k;
        for (size_t j = 0; j < 2 * k; j++) {
            x[j] = cases[i].largest * (float)((int)(j * 37 % 65) - 32) / 32;
        }
        x[3] = -cases[i].largest;
        struct converted c = floats(x, 2, k, WEIGHTS_INT8_WEIGHT_ONLY);
        cr_expect_eq(c.w.dtype, cases[i].want, "%g of %zu: %s", (double)cases[i].largest, k, dtype_info(c.w.dtype)->name);
        if (c.w.dtype == DTYPE_I8) {
            for (size_t j = 0; j < k; j++) {
                y[j] = c.scales[0] * ((const int8_t *)c.w.data)[j];
            }
        } else {
            cr_expect_null(c.scales);
            cr_assert_eq(dequantize_row(DTYPE_Q8_0, c.w.data, y, k), 0);
        }
        for (size_t j = 0; j < k; j++) {
            cr_expect(y[j] - x[j] <= step / 2 && x[j] - y[j] <= step / 2, "%g: %g is %g", (double)cases[i].largest,
                      (double)x[j], (double)y[j]);
        }
        free(c.data);
        free(c.scales);
    }
}

/* A row of hardly anything among others does not take the blocks from the matrix. */
Test(convert, weight_only_with_a_row_of_almost_nothing) {
    float x[2 * 32], y[32];
    for (int i = 0; i < 64; i++) {
        x[i] = i < 32 ? 1e-9f : 0.5f;
    }
    struct converted c = floats(x, 2, 32, WEIGHTS_INT8_WEIGHT_ONLY);
    cr_assert_eq(c.w.dtype, DTYPE_Q8_0);
    cr_assert_eq(dequantize_row(DTYPE_Q8_0, c.w.data, y, 32), 0);
    cr_expect(y[0] >= 0 && y[0] <= 0x1p-24f);
    cr_assert_eq(dequantize_row(DTYPE_Q8_0, (const char *)c.w.data + 34, y, 32), 0);
    cr_expect_float_eq(y[31], 0.5f, 0.001f);
    free(c.data);
}

/* What has 8 bits already stays as it is, in place. */
Test(convert, weight_only_of_q8_0) {
    struct tensor t = {.name = "p", .dtype = DTYPE_Q8_0, .n_dims = 2, .shape = {32, 2}};
    static const uint8_t data[2 * 34] = {1, 2, 3};
    t.data = data;
    t.size = sizeof data;
    struct matrix m = {.data = &t, .n = 2, .k = 32, .whole_n = 2, .whole_k = 32, .n_groups = 1, .scheme = {.layout = QUANT_PLAIN}};
    struct converted c;
    cr_assert_eq(matrix_convert(&m, NULL, WEIGHTS_INT8_WEIGHT_ONLY, 1, NULL, &c, &err), 0);
    cr_expect(!c.data && c.w.data == data && c.w.dtype == DTYPE_Q8_0 && c.w.row_bytes == 34);
}

/* Rows of many tasks: more than one thread converts them, and each row is where it belongs. */
Test(convert, many_rows) {
    enum { N = 5000, K = 96 };
    struct buf header = BUF_INIT, file = BUF_INIT;
    buf_printf(&header, "{\"p.weight\":{\"dtype\":\"F32\",\"shape\":[%d,%d],\"data_offsets\":[0,%d]}}", N, K, 4 * N * K);
    put_u64(&file, header.len);
    buf_append(&file, header.data, header.len);
    for (int i = 0; i < N * K; i++) {
        float x = (float)(i / K + 1) * (i % 2 ? -1 : 0.25f);
        uint32_t bits;
        memcpy(&bits, &x, 4);
        put_u32(&file, bits);
    }
    struct model_file *f = NULL;
    struct matrix m;
    struct converted c;
    cr_assert_eq(model_file_open_memory(MODEL_FORMAT_SAFETENSORS, file.data, file.len, &f, &err), 0, "%s", err.message);
    cr_assert_eq(matrix_open(&m, f, "p", NULL, N, K, &err), 0);
    cr_assert_eq(matrix_convert(&m, f, WEIGHTS_INT8, 4, NULL, &c, &err), 0);
    cr_expect_eq(c.w.activation, ACTIVATION_I8_TOKEN);
    for (int r = 0; r < N; r++) {
        const int8_t *q = (const int8_t *)c.w.data + (size_t)r * K;
        cr_assert(c.scales[r] == (float)(r + 1) / 127 && q[0] == 32 && q[K - 1] == -127, "row %d", r);
    }
    free(c.data);
    free(c.scales);
    cr_assert_eq(matrix_convert(&m, f, WEIGHTS_AUTO, 4, NULL, &c, &err), 0);
    cr_expect(!c.data && c.w.data == m.data->data && c.w.dtype == DTYPE_F32); /* nothing to do */
    ((uint8_t *)(uintptr_t)m.data->data)[4 * 4000 * K + 3] = 0x7f;
    ((uint8_t *)(uintptr_t)m.data->data)[4 * 4000 * K + 2] = 0x80; /* a NaN or an infinity among them */
    cr_expect_lt(matrix_convert(&m, f, WEIGHTS_INT8, 4, NULL, &c, &err), 0);
    cr_expect_eq(err.code, ERROR_MODEL);
    cr_expect_not_null(strstr(err.message, "p.weight has an element that is not a finite number"));
    model_file_close(f);
    buf_free(&header);
    buf_free(&file);
}
