#include "quant/matrix.h"

#include "quant/dequant.h"
#include "quant/half.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What the functions that open a matrix work on. */
struct opening {
    struct matrix *m;
    const struct model_file *file;
    const char *module;
    struct error *err;
};

static size_t div_up(size_t a, size_t b) {
    return a / b + (a % b != 0);
}

static size_t n_elements(const struct tensor *t) {
    size_t n = 1;
    for (size_t i = 0; i < t->n_dims; i++) {
        n *= t->shape[i]; /* model_file checked the product */
    }
    return n;
}

static bool has_type(const struct tensor *t, const char *type) {
    return strcmp(t->type, type) == 0;
}

/* ---- elements ---- */

static bool is_real(const struct tensor *t) {
    return t->dtype == DTYPE_F32 || t->dtype == DTYPE_F16 || t->dtype == DTYPE_BF16;
}

static bool is_scale_type(const struct tensor *t) {
    return is_real(t) || has_type(t, "F8_E8M0");
}

static float real(const struct tensor *t, size_t i) {
    const uint8_t *p = t->data;
    float x;
    uint16_t half;
    switch (t->dtype) {
    case DTYPE_F32:
        memcpy(&x, p + 4 * i, sizeof x);
        return x;
    case DTYPE_F16:
        memcpy(&half, p + 2 * i, sizeof half);
        return float_from_half(half);
    case DTYPE_BF16:
        memcpy(&half, p + 2 * i, sizeof half);
        return float_from_bf16(half);
    default:
        return float_from_e8m0(p[i]);
    }
}

static uint32_t word(const struct tensor *t, size_t i) {
    uint32_t w;
    memcpy(&w, (const uint8_t *)t->data + 4 * i, sizeof w);
    return w;
}

/* ---- opening ---- */

static void part_name(const struct opening *o, const char *part, char name[TENSOR_NAME_MAX]) {
    int n = snprintf(name, TENSOR_NAME_MAX, "%s.%s", o->module, part);
    if (n >= TENSOR_NAME_MAX) {
        name[0] = '\0'; /* no tensor has a name that long */
    }
}

static const struct tensor *find(const struct opening *o, const char *part) {
    char name[TENSOR_NAME_MAX];
    part_name(o, part, name);
    return model_file_find(o->file, name);
}

static int need(const struct opening *o, const char *part, const struct tensor **out) {
    char name[TENSOR_NAME_MAX];
    part_name(o, part, name);
    const struct tensor *t = model_file_find(o->file, name);
    if (!t) {
        return error_set(o->err, ERROR_MODEL, "the tensor %s is missing", name);
    }
    *out = t;
    o->m->size += t->size;
    return 0;
}

static int need_type(const struct opening *o, const struct tensor *t, const char *type) {
    if (!has_type(t, type)) {
        return error_set(o->err, ERROR_UNSUPPORTED, "the tensor %s has the type %s; as it is quantised it should be %s",
                         t->name, t->type, type);
    }
    return 0;
}

static int need_shape(const struct opening *o, const struct tensor *t, size_t a, size_t b) {
    if (t->n_dims != 2 || t->shape[0] != a || t->shape[1] != b) {
        return error_set(o->err, ERROR_MODEL,
                         "the tensor %s has not the shape [%zu][%zu] that the configuration asks for", t->name, a, b);
    }
    return 0;
}

static int need_scale_type(const struct opening *o, const struct tensor *t) {
    return is_scale_type(t) ? 0
                            : error_set(o->err, ERROR_UNSUPPORTED, "the tensor %s has the type %s, which is not supported for scales",
                                        t->name, t->type);
}

static int open_plain(struct opening *o) {
    struct matrix *m = o->m;
    if (need(o, "weight", &m->data) < 0 || need_shape(o, m->data, m->n, m->k) < 0) {
        return -1;
    }
    size_t bytes;
    if (m->data->dtype == DTYPE_I8 || m->data->dtype == DTYPE_I32 || !dtype_row_bytes(m->data->dtype, m->k, &bytes)) {
        return error_set(o->err, ERROR_UNSUPPORTED,
                         "the tensor %s has the type %s, which is not supported for weights that are not quantised",
                         m->data->name, m->data->type);
    }
    return 0;
}

static int read_scalar(const struct opening *o, const struct tensor *t, float *out) {
    if (n_elements(t) != 1 || !is_scale_type(t) || !isfinite(real(t, 0)) || real(t, 0) < 0) {
        return error_set(o->err, ERROR_MODEL, "the tensor %s is not one number of a float type, finite and above 0", t->name);
    }
    *out = real(t, 0);
    return 0;
}

/* The scale, and the zero point if there is one, of an input that is quantised the same for all tokens. */
static int open_static_input(struct opening *o) {
    const struct tensor *scale = NULL;
    if (need(o, "input_scale", &scale) < 0 || read_scalar(o, scale, &o->m->input_scale) < 0) {
        return -1;
    }
    if (!(o->m->input_scale > 0)) {
        return error_set(o->err, ERROR_MODEL, "the tensor %s is not above 0", scale->name);
    }
    const struct tensor *zero = find(o, "input_zero_point");
    if (zero) {
        if (zero->dtype != DTYPE_I8 || zero->size != 1) {
            return error_set(o->err, ERROR_MODEL, "the tensor %s is not one number of type I8", zero->name);
        }
        o->m->input_zero_point = *(const int8_t *)zero->data;
    }
    return 0;
}

static bool is_all_zero(const struct tensor *t) {
    const uint8_t *p = t->data;
    size_t i = 0;
    while (i < t->size && p[i] == 0) {
        i++;
    }
    return i == t->size;
}

/* Zero points beside whole bytes: nearly always zeros, which say nothing. */
static int open_byte_zeros(struct opening *o) {
    struct matrix *m = o->m;
    const struct tensor *t = find(o, "weight_zero_point");
    if (!t) {
        return m->scheme.symmetric ? 0 : need(o, "weight_zero_point", &t);
    }
    if (is_all_zero(t)) {
        return 0;
    }
    if (m->scheme.layout != QUANT_I8 || t->dtype != DTYPE_I8 || (t->size != m->n && t->size != 1)) {
        return error_set(o->err, ERROR_UNSUPPORTED,
                         "the tensor %s has zero points that are not a number of type I8 for each row, or for all", t->name);
    }
    m->zeros = t;
    return 0;
}

static int open_bytes(struct opening *o) {
    struct matrix *m = o->m;
    const struct quant_scheme *s = &m->scheme;
    if (need(o, "weight", &m->data) < 0 ||
        need_type(o, m->data, s->layout == QUANT_I8 ? "I8" : "F8_E4M3") < 0 ||
        need_shape(o, m->data, m->n, m->k) < 0 || need(o, s->scale, &m->scales) < 0) {
        return -1;
    }
    size_t n = n_elements(m->scales);
    m->group = m->k;
    if (s->block_n > 0) {
        m->group = s->block_k;
        if (need_shape(o, m->scales, div_up(m->n, s->block_n), div_up(m->k, s->block_k)) < 0) {
            return -1;
        }
    } else if (n != 1 && (n != m->n || m->scales->shape[0] != n)) { /* [n] or [n][1] */
        return error_set(o->err, ERROR_MODEL, "the tensor %s has %zu scales, neither one nor one for each of %zu rows",
                         m->scales->name, n, m->n);
    }
    if (need_scale_type(o, m->scales) < 0 || open_byte_zeros(o) < 0) {
        return -1;
    }
    const struct tensor *format = find(o, "weight_format"); /* bitsandbytes: 0 = by rows */
    if (format && !is_all_zero(format)) {
        return error_set(o->err, ERROR_UNSUPPORTED, "the tensor %s says that %s.weight is not stored by rows",
                         format->name, o->module);
    }
    return s->activation == ACTIVATION_I8_STATIC ? open_static_input(o) : 0;
}

/* Group indices: in range; dropped where they say no more than the order of the elements. */
static int open_order(struct opening *o, const char *part) {
    struct matrix *m = o->m;
    const struct tensor *t = find(o, part);
    if (!t) {
        return m->scheme.ordered ? need(o, part, &t) : 0;
    }
    if (t->dtype != DTYPE_I32 || t->n_dims != 1 || t->shape[0] != m->k) {
        return error_set(o->err, ERROR_MODEL, "the tensor %s is not a group index of type I32 for each of %zu elements",
                         t->name, m->k);
    }
    bool trivial = true, none = true;
    for (size_t i = 0; i < m->k; i++) {
        none = none && word(t, i) == UINT32_MAX; /* -1 throughout: never set */
    }
    for (size_t i = 0; i < m->k && !none; i++) {
        uint32_t g = word(t, i);
        if (g >= m->n_groups) {
            return error_set(o->err, ERROR_MODEL, "the tensor %s has a group index that is not one of the %zu groups",
                             t->name, m->n_groups);
        }
        trivial = trivial && g == i / m->group;
    }
    m->g_idx = trivial ? NULL : t;
    m->size += t->size;
    return 0;
}

static int set_groups(struct opening *o) {
    struct matrix *m = o->m;
    m->group = m->scheme.group == 0 || m->scheme.group > m->k ? m->k : m->scheme.group;
    m->n_groups = div_up(m->k, m->group);
    m->default_zero = (float)(1u << (m->scheme.bits - 1));
    return 0;
}

static int open_packed(struct opening *o) {
    struct matrix *m = o->m;
    size_t per_word = 32 / m->scheme.bits;
    set_groups(o);
    if (need(o, "weight_packed", &m->data) < 0 || need_type(o, m->data, "I32") < 0 ||
        need_shape(o, m->data, m->n, div_up(m->k, per_word)) < 0 || need(o, "weight_scale", &m->scales) < 0 ||
        need_scale_type(o, m->scales) < 0) {
        return -1;
    }
    const struct tensor *shape = find(o, "weight_shape");
    if (shape) {
        int64_t want[2] = {(int64_t)m->n, (int64_t)m->k};
        if (!has_type(shape, "I64") || shape->size != sizeof want || memcmp(shape->data, want, sizeof want) != 0) {
            return error_set(o->err, ERROR_MODEL, "the tensor %s does not say [%zu][%zu], as the configuration does",
                             shape->name, m->n, m->k);
        }
    }
    if (n_elements(m->scales) != 1 || m->n * m->n_groups == 1) {
        bool column = m->n_groups == 1 && m->scales->n_dims == 1 && m->scales->shape[0] == m->n;
        if (!column && need_shape(o, m->scales, m->n, m->n_groups) < 0) {
            return -1;
        }
    }
    if (!m->scheme.symmetric &&
        (need(o, "weight_zero_point", &m->zeros) < 0 || need_type(o, m->zeros, "I32") < 0 ||
         need_shape(o, m->zeros, div_up(m->n, per_word), m->n_groups) < 0)) {
        return -1;
    }
    return open_order(o, "weight_g_idx");
}

/* GPTQ and AWQ: the transposed layouts. */
static int open_transposed(struct opening *o) {
    struct matrix *m = o->m;
    size_t per_word = 32 / m->scheme.bits;
    bool gptq = m->scheme.layout == QUANT_GPTQ;
    set_groups(o);
    if (m->n % per_word != 0 || (gptq && m->k % per_word != 0)) {
        return error_set(o->err, ERROR_MODEL, "%s: a matrix of [%zu][%zu] does not fit words of %zu elements", o->module,
                         m->n, m->k, per_word);
    }
    if (need(o, "qweight", &m->data) < 0 || need_type(o, m->data, "I32") < 0 ||
        need_shape(o, m->data, gptq ? m->k / per_word : m->k, gptq ? m->n : m->n / per_word) < 0 ||
        need(o, "scales", &m->scales) < 0 || need_scale_type(o, m->scales) < 0 ||
        need_shape(o, m->scales, m->n_groups, m->n) < 0) {
        return -1;
    }
    if ((!gptq || !m->scheme.symmetric || find(o, "qzeros")) &&
        (need(o, "qzeros", &m->zeros) < 0 || need_type(o, m->zeros, "I32") < 0 ||
         need_shape(o, m->zeros, m->n_groups, m->n / per_word) < 0)) {
        return -1;
    }
    return gptq ? open_order(o, "g_idx") : 0;
}

int matrix_open(struct matrix *out, const struct model_file *file, const char *module, const struct quant_scheme *scheme,
                size_t n, size_t k, struct error *err) {
    struct matrix m = {.n = n, .k = k, .group = k, .n_groups = 1};
    struct opening o = {&m, file, module, err};
    if (scheme) {
        m.scheme = *scheme;
    }
    const struct tensor *weight = find(&o, "weight");
    if (weight && is_real(weight)) {
        m.scheme = (struct quant_scheme){.layout = QUANT_PLAIN};
    }
    int rc = -1;
    switch (m.scheme.layout) {
    case QUANT_PLAIN:
        rc = open_plain(&o);
        break;
    case QUANT_I8:
    case QUANT_F8:
        rc = open_bytes(&o);
        m.n_groups = div_up(k, m.group);
        break;
    case QUANT_PACKED:
        rc = open_packed(&o);
        break;
    case QUANT_GPTQ:
    case QUANT_AWQ:
        rc = open_transposed(&o);
        break;
    }
    if (rc == 0) {
        m.whole_n = n;
        m.whole_k = k;
        m.whole_groups = m.n_groups;
        *out = m;
    }
    return rc;
}

void matrix_cut(struct matrix *m, size_t first_row, size_t n, size_t first_column, size_t k) {
    m->first_row = first_row;
    m->n = n;
    m->first_column = first_column;
    m->k = k;
    if (!m->g_idx && k > 0) {
        m->first_group = first_column / m->group;
        m->phase = first_column % m->group;
        m->n_groups = div_up(m->phase + k, m->group);
    }
}

/* ---- reading ---- */

/* All of these take rows of the whole matrix, and columns of the part. */

static void packed_codes(const struct matrix *m, size_t row, uint8_t *dst) {
    unsigned bits = m->scheme.bits, per_word = 32 / bits, mask = (1u << bits) - 1;
    size_t words = div_up(m->whole_k, per_word);
    for (size_t i = 0; i < m->k;) {
        size_t at = (m->first_column + i) % per_word;
        uint32_t v = word(m->data, row * words + (m->first_column + i) / per_word) >> (at * bits);
        for (; at < per_word && i < m->k; at++, i++, v >>= bits) {
            dst[i] = (uint8_t)(v & mask);
        }
    }
}

/* A word holds consecutive elements of one row; the rows lie side by side. */
static void gptq_codes(const struct matrix *m, size_t row, size_t rows, uint8_t *dst) {
    unsigned bits = m->scheme.bits, per_word = 32 / bits, mask = (1u << bits) - 1;
    for (size_t begin = 0, end; begin < m->k; begin = end) {
        size_t w = (m->first_column + begin) / per_word, at = (m->first_column + begin) % per_word;
        end = begin + per_word - at < m->k ? begin + per_word - at : m->k;
        for (size_t r = 0; r < rows; r++) {
            uint32_t v = word(m->data, w * m->whole_n + row + r) >> (at * bits);
            for (size_t i = begin; i < end; i++, v >>= bits) {
                dst[r * m->k + i] = (uint8_t)(v & mask);
            }
        }
    }
}

/* A word holds the same element of eight rows; row r of them is nibble awq_nibble[r]. */
static const uint8_t awq_nibble[8] = {0, 4, 1, 5, 2, 6, 3, 7};

static uint8_t awq_code(const struct tensor *t, size_t line, size_t words, size_t row) {
    return (uint8_t)(word(t, line * words + row / 8) >> (4 * awq_nibble[row % 8]) & 15);
}

static void awq_codes(const struct matrix *m, size_t row, size_t rows, uint8_t *dst) {
    for (size_t i = 0; i < m->k; i++) {
        for (size_t r = 0; r < rows; r++) {
            dst[r * m->k + i] = awq_code(m->data, m->first_column + i, m->whole_n / 8, row + r);
        }
    }
}

static void byte_codes(const struct matrix *m, size_t row, size_t rows, uint8_t *dst) {
    const uint8_t *from = (const uint8_t *)m->data->data + row * m->whole_k + m->first_column;
    if (matrix_has_whole_rows(m)) {
        memcpy(dst, from, rows * m->k);
        return;
    }
    for (size_t r = 0; r < rows; r++) {
        memcpy(dst + r * m->k, from + r * m->whole_k, m->k);
    }
}

void matrix_codes(const struct matrix *m, size_t first, size_t rows, uint8_t *dst) {
    size_t row = m->first_row + first;
    switch (m->scheme.layout) {
    case QUANT_PLAIN:
        break;
    case QUANT_I8:
    case QUANT_F8:
        byte_codes(m, row, rows, dst);
        break;
    case QUANT_PACKED:
        for (size_t r = 0; r < rows; r++) {
            packed_codes(m, row + r, dst + r * m->k);
        }
        break;
    case QUANT_GPTQ:
        gptq_codes(m, row, rows, dst);
        break;
    case QUANT_AWQ:
        awq_codes(m, row, rows, dst);
        break;
    }
}

/* `g`: of the whole row's groups. */
static float zero_point(const struct matrix *m, size_t row, size_t g) {
    unsigned bits = m->scheme.bits, per_word = bits ? 32 / bits : 1, mask = (1u << bits) - 1;
    if (!m->zeros) {
        return m->default_zero;
    }
    switch (m->scheme.layout) {
    case QUANT_I8:
        return (float)((const int8_t *)m->zeros->data)[m->zeros->size == 1 ? 0 : row];
    case QUANT_PACKED:
        return (float)(word(m->zeros, row / per_word * m->whole_groups + g) >> (row % per_word * bits) & mask);
    case QUANT_GPTQ: {
        uint32_t v = word(m->zeros, g * (m->whole_n / per_word) + row / per_word) >> (row % per_word * bits);
        return (float)((m->scheme.zero_less_one ? v + 1 : v) & mask);
    }
    default:
        return (float)awq_code(m->zeros, g, m->whole_n / 8, row);
    }
}

static size_t scale_index(const struct matrix *m, size_t row, size_t g) {
    if (m->scheme.layout == QUANT_GPTQ || m->scheme.layout == QUANT_AWQ) {
        return g * m->whole_n + row;
    }
    return (m->scheme.block_n > 0 ? row / m->scheme.block_n : row) * m->whole_groups + g;
}

void matrix_groups(const struct matrix *m, size_t row, float *scale, float *zero) {
    bool one = n_elements(m->scales) == 1;
    row += m->first_row;
    for (size_t g = 0; g < m->n_groups; g++) {
        float s = real(m->scales, one ? 0 : scale_index(m, row, m->first_group + g));
        scale[g] = m->scheme.scale_divisor > 0 ? s / m->scheme.scale_divisor : s;
        zero[g] = zero_point(m, row, m->first_group + g);
    }
}

int matrix_check(const struct matrix *m, struct error *err) {
    bool may_be_negative = m->scheme.layout != QUANT_I8 && m->scheme.layout != QUANT_F8; /* whole bytes have a sign themselves */
    if (m->scheme.layout == QUANT_PLAIN) {
        return 0;
    }
    bool one = n_elements(m->scales) == 1;
    for (size_t row = 0; row < (one ? 1 : m->n); row++) {
        for (size_t g = 0; g < (one ? 1 : m->n_groups); g++) {
            float s = real(m->scales, one ? 0 : scale_index(m, m->first_row + row, m->first_group + g));
            if (!isfinite(s) || (s < 0 && !may_be_negative)) {
                return error_set(err, ERROR_MODEL, "the tensor %s has a scale that is not a finite number%s", m->scales->name,
                                 may_be_negative ? "" : " of 0 or more");
            }
        }
    }
    return 0;
}

static void dequantize_codes(const struct matrix *m, const uint8_t *codes, const float *scale, const float *zero,
                             const float e4m3[256], float *dst) {
    for (size_t g = 0; g < m->n_groups && !m->g_idx; g++) {
        size_t begin = g == 0 ? 0 : g * m->group - m->phase, end = (g + 1) * m->group - m->phase;
        end = end < m->k ? end : m->k;
        float s = scale[g], z = zero[g];
        if (m->scheme.layout == QUANT_F8) {
            for (size_t i = begin; i < end; i++) {
                dst[i] = s * e4m3[codes[i]];
            }
        } else if (m->scheme.layout == QUANT_I8) {
            for (size_t i = begin; i < end; i++) {
                dst[i] = s * ((float)(int8_t)codes[i] - z);
            }
        } else {
            for (size_t i = begin; i < end; i++) {
                dst[i] = s * ((float)codes[i] - z);
            }
        }
    }
    for (size_t i = 0; i < m->k && m->g_idx; i++) {
        uint32_t g = word(m->g_idx, m->first_column + i);
        dst[i] = scale[g] * ((float)codes[i] - zero[g]);
    }
}

/* Columns that begin or end within a block are cut out of the blocks that they lie in. */
static int read_plain(const struct matrix *m, size_t first, size_t rows, float *dst, struct error *err) {
    const struct dtype_info *type = dtype_info(m->data->dtype);
    size_t begin = m->first_column / type->block, end = div_up(m->first_column + m->k, type->block), skip = m->first_column % type->block;
    size_t n = (end - begin) * type->block, bytes = m->whole_k / type->block * type->bytes;
    const uint8_t *from = (const uint8_t *)m->data->data + (m->first_row + first) * bytes + begin * type->bytes;
    float *blocks = n == m->k ? NULL : malloc(n * sizeof *blocks);
    if (n != m->k && !blocks) {
        return error_memory(err);
    }
    for (size_t r = 0; r < rows; r++, from += bytes, dst += m->k) {
        dequantize_row(m->data->dtype, from, blocks ? blocks : dst, n);
        if (blocks) {
            memcpy(dst, blocks + skip, m->k * sizeof *dst);
        }
    }
    free(blocks);
    return 0;
}

int matrix_read(const struct matrix *m, size_t first, size_t rows, float *dst, struct error *err) {
    if (m->scheme.layout == QUANT_PLAIN) {
        return read_plain(m, first, rows, dst, err);
    }
    enum { ROWS = 16 };
    float e4m3[256];
    for (unsigned i = 0; i < 256; i++) {
        e4m3[i] = float_from_e4m3((uint8_t)i);
    }
    float *scale = malloc(2 * m->n_groups * sizeof *scale);
    uint8_t *codes = malloc(ROWS * m->k);
    if (!scale || !codes) {
        free(scale);
        free(codes);
        return error_memory(err);
    }
    float *zero = scale + m->n_groups;
    for (size_t begin = 0; begin < rows; begin += ROWS) {
        size_t run = rows - begin < ROWS ? rows - begin : ROWS;
        matrix_codes(m, first + begin, run, codes);
        for (size_t r = 0; r < run; r++) {
            matrix_groups(m, first + begin + r, scale, zero);
            dequantize_codes(m, codes + r * m->k, scale, zero, e4m3, dst + (begin + r) * m->k);
        }
    }
    free(scale);
    free(codes);
    return 0;
}
