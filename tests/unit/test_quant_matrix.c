/* quant/matrix.h: what the tensors of a quantised matrix must be like, and what they are read as. */
#include "gguf_build.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "model_file/internal.h"
#include "quant/half.h"
#include "quant/matrix.h"

static struct error err;

/* One tensor of the file: `data` repeated over its bytes. */
struct part_of {
    const char *name, *type, *shape;
    size_t bytes;
    const char *data;
    size_t data_len;
};
#define PART(name, type, shape, bytes, data) {name, type, shape, bytes, data, sizeof(data) - 1}

static struct buf bytes;

static struct model_file *file_of(const struct part_of *parts, size_t n) {
    struct buf header = BUF_INIT, data = BUF_INIT;
    buf_putc(&header, '{');
    for (size_t i = 0; i < n; i++) {
        size_t begin = data.len;
        for (size_t b = 0; b < parts[i].bytes; b++) {
            buf_putc(&data, parts[i].data[b % parts[i].data_len]);
        }
        buf_printf(&header, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[%zu,%zu]}", i ? "," : "", parts[i].name,
                   parts[i].type, parts[i].shape, begin, data.len);
    }
    buf_putc(&header, '}');
    buf_free(&bytes);
    put_u64(&bytes, header.len);
    buf_append(&bytes, header.data, header.len);
    buf_append(&bytes, data.data, data.len);
    buf_free(&header);
    buf_free(&data);
    struct model_file *f = NULL;
    cr_assert_eq(model_file_open_memory(MODEL_FORMAT_SAFETENSORS, bytes.data, bytes.len, &f, &err), 0, "%s", err.message);
    return f;
}

static void refused(const struct part_of *parts, size_t n, const struct quant_scheme *s, size_t rows, size_t k,
                    enum error_code code, const char *words) {
    struct model_file *f = file_of(parts, n);
    struct matrix m;
    cr_expect(matrix_open(&m, f, "p", s, rows, k, &err) < 0 || matrix_check(&m, &err) < 0, "%s", words);
    cr_expect_eq(err.code, code, "%s", err.message);
    cr_expect_not_null(strstr(err.message, words), "%s: %s", words, err.message);
    model_file_close(f);
}
#define REFUSED(parts, s, n, k, code, words) refused(parts, sizeof(parts) / sizeof(parts)[0], s, n, k, code, words)

#define ONE "\0\0\x80\x3f"      /* 1.0f */
#define NOT_A_NUMBER "\0\0\xc0\x7f"
#define INFINITE "\0\0\x80\x7f"
#define MINUS_ONE "\0\0\x80\xbf"

static const struct quant_scheme i8 = {.layout = QUANT_I8, .bits = 8, .symmetric = true, .scale = "weight_scale"};
static const struct quant_scheme i8_static = {
    .layout = QUANT_I8, .bits = 8, .symmetric = true, .scale = "weight_scale", .activation = ACTIVATION_I8_STATIC};
static const struct quant_scheme f8_block = {
    .layout = QUANT_F8, .bits = 8, .block_n = 2, .block_k = 4, .symmetric = true, .scale = "weight_scale_inv"};
static const struct quant_scheme packed = {.layout = QUANT_PACKED, .bits = 4, .group = 8, .scale = "weight_scale", .symmetric = true};
static const struct quant_scheme packed_zeros = {.layout = QUANT_PACKED, .bits = 4, .group = 8, .scale = "weight_scale"};
static const struct quant_scheme ordered = {
    .layout = QUANT_PACKED, .bits = 4, .group = 8, .scale = "weight_scale", .symmetric = true, .ordered = true};
static const struct quant_scheme gptq = {
    .layout = QUANT_GPTQ, .bits = 4, .group = 8, .scale = "scales", .symmetric = true, .zero_less_one = true};
static const struct quant_scheme awq = {.layout = QUANT_AWQ, .bits = 4, .group = 8, .scale = "scales"};

/* A matrix [3][8] of whole bytes. */
#define WEIGHT_I8 PART("p.weight", "I8", "[3,8]", 24, "\1\x80\x7f")

Test(quant_matrix, bytes) {
    const struct part_of parts[] = {WEIGHT_I8, PART("p.weight_scale", "F32", "[3,1]", 12, ONE)};
    struct model_file *f = file_of(parts, 2);
    struct matrix m;
    float x[24];
    cr_assert_eq(matrix_open(&m, f, "p", &i8, 3, 8, &err), 0, "%s", err.message);
    cr_assert_eq(matrix_read(&m, 0, 3, x, &err), 0);
    cr_expect(x[0] == 1 && x[1] == -128 && x[2] == 127); /* -128 is a weight like others */
    cr_assert_eq(matrix_read(&m, 1, 2, x, &err), 0);
    cr_expect(x[0] == 127 && x[1] == 1);
    model_file_close(f);
}

Test(quant_matrix, bytes_refused) {
    const struct part_of shape[] = {PART("p.weight", "I8", "[8,3]", 24, "\1"), PART("p.weight_scale", "F32", "[3,1]", 12, ONE)};
    REFUSED(shape, &i8, 3, 8, ERROR_MODEL, "p.weight has not the shape [3][8]");
    const struct part_of missing[] = {WEIGHT_I8};
    REFUSED(missing, &i8, 3, 8, ERROR_MODEL, "p.weight_scale is missing");
    const struct part_of no_weight[] = {PART("p.weight_scale", "F32", "[3,1]", 12, ONE)};
    REFUSED(no_weight, &i8, 3, 8, ERROR_MODEL, "p.weight is missing");
    const struct part_of type[] = {PART("p.weight", "U8", "[3,8]", 24, "\1"), PART("p.weight_scale", "F32", "[3,1]", 12, ONE)};
    REFUSED(type, &i8, 3, 8, ERROR_UNSUPPORTED, "p.weight has the type U8");
    const struct part_of count[] = {WEIGHT_I8, PART("p.weight_scale", "F32", "[2,1]", 8, ONE)};
    REFUSED(count, &i8, 3, 8, ERROR_MODEL, "2 scales");
    const struct part_of across[] = {WEIGHT_I8, PART("p.weight_scale", "F32", "[1,3]", 12, ONE)};
    REFUSED(across, &i8, 3, 8, ERROR_MODEL, "3 scales");
    const struct part_of none[] = {WEIGHT_I8, PART("p.weight_scale", "F32", "[0]", 0, ONE)};
    REFUSED(none, &i8, 3, 8, ERROR_MODEL, "0 scales");
    const struct part_of scale_type[] = {WEIGHT_I8, PART("p.weight_scale", "I32", "[3]", 12, ONE)};
    REFUSED(scale_type, &i8, 3, 8, ERROR_UNSUPPORTED, "not supported for scales");
    const struct part_of nan[] = {WEIGHT_I8, PART("p.weight_scale", "F32", "[3]", 12, NOT_A_NUMBER)};
    REFUSED(nan, &i8, 3, 8, ERROR_MODEL, "finite");
    const struct part_of infinite[] = {WEIGHT_I8, PART("p.weight_scale", "F32", "[3]", 12, INFINITE)};
    REFUSED(infinite, &i8, 3, 8, ERROR_MODEL, "finite");
    const struct part_of negative[] = {WEIGHT_I8, PART("p.weight_scale", "F32", "[3]", 12, MINUS_ONE)};
    REFUSED(negative, &i8, 3, 8, ERROR_MODEL, "0 or more");
    const struct part_of zeros[] = {WEIGHT_I8, PART("p.weight_scale", "F32", "[3]", 12, ONE), PART("p.weight_zero_point", "I8", "[2]", 2, "\1")};
    REFUSED(zeros, &i8, 3, 8, ERROR_UNSUPPORTED, "zero points");
    const struct part_of format[] = {WEIGHT_I8, PART("p.weight_scale", "F32", "[3]", 12, ONE), PART("p.weight_format", "U8", "[]", 1, "\1")};
    REFUSED(format, &i8, 3, 8, ERROR_UNSUPPORTED, "not stored by rows");
    const struct part_of plain[] = {WEIGHT_I8, PART("p.weight_scale", "F32", "[3]", 12, ONE)};
    REFUSED(plain, NULL, 3, 8, ERROR_UNSUPPORTED, "not supported for weights that are not quantised");
}

Test(quant_matrix, static_input_refused) {
    const struct part_of missing[] = {WEIGHT_I8, PART("p.weight_scale", "F32", "[3]", 12, ONE)};
    REFUSED(missing, &i8_static, 3, 8, ERROR_MODEL, "p.input_scale is missing");
    const struct part_of zero[] = {WEIGHT_I8, PART("p.weight_scale", "F32", "[3]", 12, ONE), PART("p.input_scale", "F32", "[1]", 4, "\0")};
    REFUSED(zero, &i8_static, 3, 8, ERROR_MODEL, "not above 0");
    const struct part_of two[] = {WEIGHT_I8, PART("p.weight_scale", "F32", "[3]", 12, ONE), PART("p.input_scale", "F32", "[2]", 8, ONE)};
    REFUSED(two, &i8_static, 3, 8, ERROR_MODEL, "not one number");
    const struct part_of wide[] = {WEIGHT_I8, PART("p.weight_scale", "F32", "[3]", 12, ONE), PART("p.input_scale", "F32", "[1]", 4, ONE),
                                   PART("p.input_zero_point", "I32", "[1]", 4, "\1")};
    REFUSED(wide, &i8_static, 3, 8, ERROR_MODEL, "p.input_zero_point");
}

Test(quant_matrix, eight_bit_floats) {
    const struct part_of parts[] = {PART("p.weight", "F8_E4M3", "[3,8]", 24, "\x38\xb8\x7e"), /* 1 -1 448 */
                                    PART("p.weight_scale_inv", "F8_E8M0", "[2,2]", 4, "\x7f\x80\x81\x82")}; /* 1 2 4 8 */
    struct model_file *f = file_of(parts, 2);
    struct matrix m;
    float x[24];
    cr_assert_eq(matrix_open(&m, f, "p", &f8_block, 3, 8, &err), 0, "%s", err.message);
    cr_assert_eq(matrix_read(&m, 0, 3, x, &err), 0);
    cr_expect(x[0] == 1 && x[1] == -1 && x[2] == 448 && x[3] == 1 && x[4] == -2 && x[5] == 2 * 448.0f);
    cr_expect(x[16] == -1 * 4.0f && x[23] == 8 * 448.0f);
    model_file_close(f);
    const struct part_of shape[] = {parts[0], PART("p.weight_scale_inv", "F32", "[1,2]", 8, ONE)};
    REFUSED(shape, &f8_block, 3, 8, ERROR_MODEL, "p.weight_scale_inv has not the shape [2][2]");
    const struct part_of nan[] = {parts[0], PART("p.weight_scale_inv", "F8_E8M0", "[2,2]", 4, "\xff")};
    REFUSED(nan, &f8_block, 3, 8, ERROR_MODEL, "finite");
}

/* [8][16] in words of eight 4-bit elements, two groups a row. */
#define PACKED PART("p.weight_packed", "I32", "[8,2]", 64, "\x10\x32\x54\x76\x98\xba\xdc\xfe")
#define SCALES PART("p.weight_scale", "F32", "[8,2]", 64, ONE)
#define SHAPE PART("p.weight_shape", "I64", "[2]", 16, "\10\0\0\0\0\0\0\0\20\0\0\0\0\0\0\0")

Test(quant_matrix, packed_words) {
    const struct part_of parts[] = {PACKED, SCALES, SHAPE};
    struct model_file *f = file_of(parts, 3);
    struct matrix m;
    float x[128];
    cr_assert_eq(matrix_open(&m, f, "p", &packed, 8, 16, &err), 0, "%s", err.message);
    cr_assert_eq(matrix_read(&m, 0, 8, x, &err), 0);
    for (int i = 0; i < 128; i++) {
        cr_expect_eq(x[i], (float)(i % 16 - 8), "%d", i);
    }
    model_file_close(f);
}

Test(quant_matrix, packed_words_refused) {
    const struct part_of no_scale[] = {PACKED, SHAPE};
    REFUSED(no_scale, &packed, 8, 16, ERROR_MODEL, "p.weight_scale is missing");
    const struct part_of shape[] = {PACKED, SCALES, PART("p.weight_shape", "I64", "[2]", 16, "\7\0\0\0\0\0\0\0")};
    REFUSED(shape, &packed, 8, 16, ERROR_MODEL, "p.weight_shape does not say [8][16]");
    const struct part_of words[] = {PART("p.weight_packed", "I32", "[8,3]", 96, "\1"), SCALES};
    REFUSED(words, &packed, 8, 16, ERROR_MODEL, "p.weight_packed has not the shape [8][2]");
    const struct part_of scales[] = {PACKED, PART("p.weight_scale", "F32", "[2,8]", 64, ONE)};
    REFUSED(scales, &packed, 8, 16, ERROR_MODEL, "p.weight_scale has not the shape [8][2]");
    const struct part_of nan[] = {PACKED, PART("p.weight_scale", "F32", "[8,2]", 64, NOT_A_NUMBER)};
    REFUSED(nan, &packed, 8, 16, ERROR_MODEL, "finite");
    const struct part_of no_zeros[] = {PACKED, SCALES};
    REFUSED(no_zeros, &packed_zeros, 8, 16, ERROR_MODEL, "p.weight_zero_point is missing");
    const struct part_of zeros[] = {PACKED, SCALES, PART("p.weight_zero_point", "I32", "[8,2]", 64, "\1")};
    REFUSED(zeros, &packed_zeros, 8, 16, ERROR_MODEL, "p.weight_zero_point has not the shape [1][2]");
    const struct part_of no_order[] = {PACKED, SCALES};
    REFUSED(no_order, &ordered, 8, 16, ERROR_MODEL, "p.weight_g_idx is missing");
    const struct part_of far[] = {PACKED, SCALES, PART("p.weight_g_idx", "I32", "[16]", 64, "\2\0\0\0")};
    REFUSED(far, &ordered, 8, 16, ERROR_MODEL, "not one of the 2 groups");
    const struct part_of negative[] = {PACKED, SCALES, PART("p.weight_g_idx", "I32", "[16]", 64, "\0\0\0\0\xfe\xff\xff\xff")};
    REFUSED(negative, &ordered, 8, 16, ERROR_MODEL, "not one of the 2 groups");
    const struct part_of few[] = {PACKED, SCALES, PART("p.weight_g_idx", "I32", "[15]", 60, "\0")};
    REFUSED(few, &ordered, 8, 16, ERROR_MODEL, "p.weight_g_idx");
}

Test(quant_matrix, order_that_was_never_set) {
    const struct part_of parts[] = {PACKED, SCALES, PART("p.weight_g_idx", "I32", "[16]", 64, "\xff")};
    struct model_file *f = file_of(parts, 3);
    struct matrix m;
    cr_assert_eq(matrix_open(&m, f, "p", &ordered, 8, 16, &err), 0, "%s", err.message);
    cr_expect_null(m.g_idx);
    model_file_close(f);
}

/* The transposed layouts, [8][16] again. */
#define GPTQ_WEIGHT PART("p.qweight", "I32", "[2,8]", 64, "\x10\x32\x54\x76")
#define GPTQ_ZEROS PART("p.qzeros", "I32", "[2,1]", 8, "\x77")
#define GPTQ_SCALES PART("p.scales", "F16", "[2,8]", 32, "\0\x3c")

Test(quant_matrix, transposed_words) {
    const struct part_of parts[] = {GPTQ_WEIGHT, GPTQ_ZEROS, GPTQ_SCALES};
    struct model_file *f = file_of(parts, 3);
    struct matrix m;
    float x[16];
    cr_assert_eq(matrix_open(&m, f, "p", &gptq, 8, 16, &err), 0, "%s", err.message); /* g_idx may be missing */
    cr_assert_eq(matrix_read(&m, 7, 1, x, &err), 0);
    for (int i = 0; i < 16; i++) {
        cr_expect_eq(x[i], (float)(i % 8 - 8), "%d: %g", i, (double)x[i]);
    }
    model_file_close(f);
}

Test(quant_matrix, transposed_words_refused) {
    const struct part_of no_scales[] = {GPTQ_WEIGHT, GPTQ_ZEROS};
    REFUSED(no_scales, &gptq, 8, 16, ERROR_MODEL, "p.scales is missing");
    const struct part_of shape[] = {PART("p.qweight", "I32", "[8,2]", 64, "\1"), GPTQ_ZEROS, GPTQ_SCALES};
    REFUSED(shape, &gptq, 8, 16, ERROR_MODEL, "p.qweight has not the shape [2][8]");
    const struct part_of zeros[] = {GPTQ_WEIGHT, PART("p.qzeros", "I32", "[1,2]", 8, "\1"), GPTQ_SCALES};
    REFUSED(zeros, &gptq, 8, 16, ERROR_MODEL, "p.qzeros has not the shape [2][1]");
    const struct part_of order[] = {GPTQ_WEIGHT, GPTQ_ZEROS, GPTQ_SCALES, PART("p.g_idx", "I32", "[16]", 64, "\0\1\0\0")};
    REFUSED(order, &gptq, 8, 16, ERROR_MODEL, "p.g_idx has a group index");
    const struct part_of infinite[] = {GPTQ_WEIGHT, GPTQ_ZEROS, PART("p.scales", "F16", "[2,8]", 32, "\0\x7c")};
    REFUSED(infinite, &gptq, 8, 16, ERROR_MODEL, "finite");
    const struct part_of fit[] = {GPTQ_WEIGHT};
    REFUSED(fit, &gptq, 7, 16, ERROR_MODEL, "does not fit words");
    const struct part_of no_zeros[] = {PART("p.qweight", "I32", "[16,1]", 64, "\1"), GPTQ_SCALES};
    REFUSED(no_zeros, &awq, 8, 16, ERROR_MODEL, "p.qzeros is missing");
}

/* A part's scales are looked at, and no others: those are another rank's. One of 16 is bad, by rows [8][2] or by groups [2][8]. */
static void checked_in_parts(const struct part_of *weight, const char *scale_name, const char *shape, size_t bad, const struct quant_scheme *s) {
    float scales[16];
    for (size_t i = 0; i < 16; i++) {
        scales[i] = i == bad ? INFINITY : 1;
    }
    const struct part_of parts[] = {weight[0], {scale_name, "F32", shape, sizeof scales, (const char *)scales, sizeof scales}, weight[1]};
    struct model_file *f = file_of(parts, weight[1].name ? 3 : 2);
    struct matrix whole, m;
    cr_assert_eq(matrix_open(&whole, f, "p", s, 8, 16, &err), 0, "%s", err.message);
    cr_expect(matrix_check(&whole, &err) < 0 && err.code == ERROR_MODEL && strstr(err.message, scale_name), "%s", scale_name);
    for (size_t row = 0; row < 8; row += 2) { /* row 5, group 1 */
        m = whole;
        matrix_cut(&m, row, 2, 0, 16);
        cr_expect_eq(matrix_check(&m, &err) < 0, row == 4, "%s, rows from %zu on", scale_name, row);
    }
    for (size_t column = 0; column < 16; column += 8) {
        m = whole;
        matrix_cut(&m, 0, 8, column, 8);
        cr_expect_eq(matrix_check(&m, &err) < 0, column == 8, "%s, columns from %zu on", scale_name, column);
    }
    model_file_close(f);
}

Test(quant_matrix, scales_are_checked_where_they_are_read) {
    static const struct quant_scheme f8 = {.layout = QUANT_F8, .bits = 8, .block_n = 1, .block_k = 8, .symmetric = true, .scale = "weight_scale_inv"};
    const struct part_of bytes8[] = {PART("p.weight", "F8_E4M3", "[8,16]", 128, "\x38"), {0}};
    const struct part_of words[] = {PACKED, {0}};
    const struct part_of lines[] = {GPTQ_WEIGHT, GPTQ_ZEROS};
    checked_in_parts(bytes8, "p.weight_scale_inv", "[8,2]", 11, &f8);
    checked_in_parts(words, "p.weight_scale", "[8,2]", 11, &packed);
    checked_in_parts(lines, "p.scales", "[2,8]", 13, &gptq);
}

/* ---- quant/half.h, the other way ---- */

Test(quant_half, to_half_and_back) {
    for (unsigned h = 0; h < 65536; h++) {
        float x = float_from_half((uint16_t)h);
        if (!isnan(x)) {
            cr_assert_eq(half_from_float(x), h, "%04x", h);
        }
    }
    cr_expect_eq(half_from_float(1 + 0x1p-11f), 0x3c00); /* the middle, to even */
    cr_expect_eq(half_from_float(1 + 3 * 0x1p-11f), 0x3c02);
    cr_expect_eq(half_from_float(65519.0f), 0x7bff);
    cr_expect_eq(half_from_float(65520.0f), 0x7c00);
    cr_expect_eq(half_from_float(0x1p-25f), 0); /* half of the least, to even */
    cr_expect_eq(half_from_float(0x1.8p-24f), 2);
    cr_expect_eq(half_from_float(-0x1.fp-25f), 0x8001);
    cr_expect(isnan(float_from_half(half_from_float(NAN))));
}

Test(quant_half, to_bf16) {
    for (unsigned h = 0; h < 65536; h++) {
        float x = float_from_bf16((uint16_t)h);
        if (!isnan(x)) {
            cr_assert_eq(bf16_from_float(x), h, "%04x", h);
        }
    }
    cr_expect_eq(bf16_from_float(1 + 0x1p-8f), 0x3f80);
    cr_expect_eq(bf16_from_float(1 + 3 * 0x1p-8f), 0x3f82);
    cr_expect_eq(bf16_from_float(1 + 0x1.8p-8f), 0x3f81);
    cr_expect_eq(bf16_from_float(3.4e38f), 0x7f80);
    cr_expect(isnan(float_from_bf16(bf16_from_float(NAN))));
}

Test(quant_half, from_e4m3) { /* values of the OCP specification, table 2 */
    cr_expect_eq(float_from_e4m3(0x7e), 448);
    cr_expect_eq(float_from_e4m3(0xfe), -448);
    cr_expect_eq(float_from_e4m3(0x08), 0x1p-6f);
    cr_expect_eq(float_from_e4m3(0x07), 0.875f * 0x1p-6f);
    cr_expect_eq(float_from_e4m3(0x01), 0x1p-9f);
    cr_expect(isnan(float_from_e4m3(0x7f)) && isnan(float_from_e4m3(0xff)));
    cr_expect(float_from_e4m3(0x80) == 0 && signbit(float_from_e4m3(0x80)));
    cr_expect_eq(float_from_e8m0(127), 1);
    cr_expect_eq(float_from_e8m0(0), 0x1p-127f);
    cr_expect(isnan(float_from_e8m0(255)));
}
