#include "model/convert.h"

#include "base/checked.h"
#include "base/parallel.h"
#include "quant/dequant.h"
#include "quant/half.h"
#include "quant/int8.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static const char *const format_names[] = {
    [WEIGHTS_AUTO] = "auto",
    [WEIGHTS_INT8] = "int8",
    [WEIGHTS_INT8_WEIGHT_ONLY] = "int8-weight-only",
    [WEIGHTS_BF16] = "bf16",
};

int weights_format_parse(const char *name, enum weights_format *out, struct error *err) {
    for (size_t i = 0; i < sizeof format_names / sizeof format_names[0]; i++) {
        if (!name || strcmp(name, format_names[i]) == 0) {
            *out = (enum weights_format)i;
            return 0;
        }
    }
    return error_set_param(err, ERROR_INVALID, "weights", "weights must be auto, int8, int8-weight-only or bf16");
}

/* ---- what becomes of a matrix ---- */

enum how {
    AS_IS, /* the file's own bytes */
    CODES, /* I8: the file's own integers */
    ROUND, /* I8: floats quantised again, a scale a row */
    ROUND_BLOCKS, /* Q8_0: the same with a scale for each 32 */
    BLOCKS,
    FLOATS, /* BF16 */
    PLAIN,  /* F32: a part that begins or ends within the file's blocks */
    ROUND_PLAIN, /* the same of ROUND_BLOCKS */
};

/* Do all groups have this zero point? */
static bool has_zero(const struct matrix *m, const float *zero, float value) {
    for (size_t g = 0; g < m->n_groups; g++) {
        if (zero[g] != value) {
            return false;
        }
    }
    return true;
}

/* Are scale and, with an offset, -scale * zero as good in F16 as the matrix would be in BF16? */
static bool fits_half(const struct matrix *m, const float *scale, const float *zero, bool offset) {
    for (size_t g = 0; g < m->n_groups; g++) {
        float s = scale[g], o = -s * zero[g];
        if (!(fabsf(float_from_half(half_from_float(s)) - s) <= fabsf(s) * 0x1p-10f) ||
            (offset && !(fabsf(float_from_half(half_from_float(o)) - o) <= fabsf(s) * 0x1p-6f))) {
            return false;
        }
    }
    return true;
}

/* What a look at all scales and zero points says of a matrix of packed integers. */
struct survey {
    bool centred;  /* every zero point is the middle, 8 or 128 */
    bool positive; /* no scale is negative */
    bool half_scales, half_offsets;
};

/* What every rank found of its part; host NULL: there is one alone. */
static int agree(struct survey *s, struct collective *host, struct error *err) {
    struct survey all[COLLECTIVE_MAX_RANKS];
    if (!host) {
        return 0;
    }
    if (host->ops->all_gather(host, s, sizeof *s, all, err) < 0) {
        return -1;
    }
    for (size_t i = 0; i < host->size; i++) {
        s->centred = s->centred && all[i].centred;
        s->positive = s->positive && all[i].positive;
        s->half_scales = s->half_scales && all[i].half_scales;
        s->half_offsets = s->half_offsets && all[i].half_offsets;
    }
    return 0;
}

static int survey_groups(const struct matrix *m, struct collective *host, struct survey *out, struct error *err) {
    float *scale = malloc(2 * m->n_groups * sizeof *scale), middle = (float)(1u << (m->scheme.bits - 1));
    if (!scale) {
        return error_memory(err);
    }
    float *zero = scale + m->n_groups;
    struct survey s = {true, true, true, true};
    for (size_t row = 0; row < m->n; row++) {
        matrix_groups(m, row, scale, zero);
        s.centred = s.centred && has_zero(m, zero, middle);
        s.half_scales = s.half_scales && fits_half(m, scale, zero, false);
        s.half_offsets = s.half_offsets && fits_half(m, scale, zero, true);
        for (size_t g = 0; g < m->n_groups; g++) {
            s.positive = s.positive && scale[g] >= 0;
        }
    }
    free(scale);
    *out = s;
    return agree(out, host, err);
}

static bool are_integers(const struct matrix *m) {
    return m->scheme.layout == QUANT_I8 ||
           (m->scheme.layout != QUANT_PLAIN && m->scheme.layout != QUANT_F8 && m->scheme.bits == 8 && m->whole_groups == 1);
}

/* Is a plain tensor of this type already what the format would make of it? */
static bool is_in_format(enum dtype type, enum weights_format format) {
    return (format == WEIGHTS_BF16 && type == DTYPE_BF16) || (format == WEIGHTS_INT8_WEIGHT_ONLY && type == DTYPE_Q8_0);
}

/* Do the parts consist of whole blocks of `block` elements, on all ranks? */
static int find_blocks(const struct matrix *m, size_t block, struct collective *host, bool *out, struct error *err) {
    bool all[COLLECTIVE_MAX_RANKS];
    *out = m->first_column % block == 0 && m->k % block == 0;
    if (!host || matrix_has_whole_rows(m)) {
        return 0;
    }
    if (host->ops->all_gather(host, out, sizeof *out, all, err) < 0) {
        return -1;
    }
    for (size_t i = 0; i < host->size; i++) {
        *out = *out && all[i];
    }
    return 0;
}

/* Fills w->dtype. Ranks come to the same for their parts of a matrix. */
static int choose(const struct matrix *m, enum weights_format format, struct collective *host, struct weight *w,
                  enum how *how, struct error *err) {
    bool plain = m->scheme.layout == QUANT_PLAIN, packed = !plain && m->scheme.layout != QUANT_I8 && m->scheme.layout != QUANT_F8;
    struct survey s = {0};
    bool whole;
    *how = FLOATS;
    w->dtype = DTYPE_BF16;
    if (find_blocks(m, plain && format == WEIGHTS_AUTO ? dtype_info(m->data->dtype)->block : 32, host, &whole, err) < 0) {
        return -1;
    }
    if (plain && (format == WEIGHTS_AUTO || is_in_format(m->data->dtype, format))) {
        whole = whole || dtype_info(m->data->dtype)->block == 1; /* BF16 in BF16 */
        *how = whole ? AS_IS : PLAIN;
        w->dtype = whole ? m->data->dtype : DTYPE_F32;
        return 0;
    }
    if (format == WEIGHTS_BF16) {
        return 0;
    }
    if (packed && survey_groups(m, host, &s, err) < 0) {
        return -1;
    }
    if (are_integers(m) && (packed ? s.centred && s.positive : !m->zeros)) {
        *how = CODES;
        w->dtype = DTYPE_I8;
        return 0;
    }
    bool four = m->scheme.bits == 4, blocks = packed && !m->g_idx && m->group % 32 == 0 && m->whole_k % 32 == 0;
    if (blocks && (format == WEIGHTS_AUTO || (format == WEIGHTS_INT8_WEIGHT_ONLY && !four)) &&
        (s.centred ? s.half_scales : four && s.half_offsets)) {
        *how = whole ? BLOCKS : PLAIN;
        w->dtype = *how == PLAIN ? DTYPE_F32 : !four ? DTYPE_Q8_0 : s.centred ? DTYPE_Q4_0 : DTYPE_Q4_1;
    } else if (format == WEIGHTS_INT8_WEIGHT_ONLY && m->whole_k % 32 == 0) {
        *how = whole ? ROUND_BLOCKS : ROUND_PLAIN;
        w->dtype = *how == ROUND_PLAIN ? DTYPE_F32 : DTYPE_Q8_0;
    } else if (format != WEIGHTS_AUTO) {
        *how = ROUND;
        w->dtype = DTYPE_I8;
    }
    return 0;
}

int matrix_converted_type(const struct matrix *m, enum weights_format format, enum dtype *out, struct error *err) {
    struct weight w;
    enum how how;
    if (choose(m, format, NULL, &w, &how, err) < 0) {
        return -1;
    }
    *out = w.dtype;
    return 0;
}

static void set_activation(const struct matrix *m, enum weights_format format, struct weight *w) {
    if (w->dtype != DTYPE_I8 || format == WEIGHTS_INT8_WEIGHT_ONLY) {
        w->activation = ACTIVATION_FLOAT;
    } else if (m->scheme.layout == QUANT_I8 && m->scheme.activation != ACTIVATION_FLOAT) {
        w->activation = m->scheme.activation; /* what the scales of the checkpoint were made for */
        w->input_scale = m->input_scale;
        w->input_zero_point = m->input_zero_point;
    } else {
        w->activation = format == WEIGHTS_INT8 ? ACTIVATION_I8_TOKEN : ACTIVATION_FLOAT;
    }
}

/* ---- the conversion ---- */

struct job {
    const struct matrix *m;
    struct weight w;
    enum how how;
    struct collective *host; /* the ranks that have the other parts, or NULL */
    bool only_look;          /* ROUND: scales[] become the largest of each row alone */
    bool scaled;             /* ROUND: scales[] are there */
    uint8_t *data; /* [n][row_bytes] */
    float *scales; /* [n] of I8 */
    size_t rows;   /* of a task */
    atomic_bool no_memory, not_finite;
    _Atomic float largest_scale; /* ROUND_BLOCKS: of all blocks, before rounding */
};

static bool is_finite(const float *x, size_t n) {
    uint32_t most = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        bits &= 0x7fffffff;
        most = bits > most ? bits : most;
    }
    return most < 0x7f800000;
}

/* bf16_from_float of finite numbers, without its branch. */
static void to_bf16(const float *x, size_t n, uint8_t *dst) {
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        bits += 0x7fff + (bits >> 16 & 1);
        uint16_t v = (uint16_t)(bits >> 16);
        memcpy(dst + 2 * i, &v, sizeof v);
    }
}

/* Of numbers without a sign. */
static void raise(_Atomic float *most, float x) {
    float seen = *most;
    while (x > seen && !atomic_compare_exchange_weak(most, &seen, x)) {
    }
}

/* A row as Q8_0: blocks of a scale in F16 and 32 codes, rounded for the scale as it is stored. A subnormal scale, which
 * F16 may hold badly, is rounded up, so that the step grows by at most 2^-24 and nothing is clipped. */
static void round_blocks(struct job *j, const float *x, size_t k, uint8_t *dst) {
    for (size_t i = 0; i < k; i += 32, dst += 34) {
        float scale = int8_absmax(x + i, 32) / 127.0f;
        uint16_t h = half_from_float(scale);
        h = (uint16_t)(h + (scale < 0x1p-14f && float_from_half(h) < scale));
        memcpy(dst, &h, sizeof h);
        if (h == 0) {
            memset(dst + 2, 0, 32);
        } else {
            int8_quantize(x + i, 32, float_from_half(h), (int8_t *)dst + 2);
        }
        raise(&j->largest_scale, scale);
    }
}

/* A part of a Q8_0 matrix that begins or ends within its blocks: these are rounded whole, and the part is what they stand for. */
static void convert_rounded(struct job *j, size_t first, size_t rows) {
    const struct matrix *m = j->m;
    struct matrix outer = *m;
    struct error err;
    size_t begin = m->first_column / 32 * 32, end = (m->first_column + m->k + 31) / 32 * 32, k = end - begin;
    float *x = malloc(rows * k * sizeof *x);
    uint8_t *blocks = malloc(k / 32 * 34);
    matrix_cut(&outer, m->first_row, m->n, begin, k);
    if (!x || !blocks || matrix_read(&outer, first, rows, x, &err) < 0) {
        j->no_memory = true;
    } else if (!is_finite(x, rows * k)) {
        j->not_finite = true;
    } else {
        for (size_t r = 0; r < rows; r++) {
            round_blocks(j, x + r * k, k, blocks);
            dequantize_row(DTYPE_Q8_0, blocks, x + r * k, k);
            memcpy(j->data + (first + r) * j->w.row_bytes, x + r * k + (m->first_column - begin), m->k * sizeof *x);
        }
    }
    free(x);
    free(blocks);
}

static void convert_floats(struct job *j, size_t first, size_t rows, float *x) {
    size_t k = j->m->k;
    struct error err;
    if (matrix_read(j->m, first, rows, x, &err) < 0) {
        j->no_memory = true;
        return;
    }
    if (!is_finite(x, rows * k)) {
        j->not_finite = true;
        return;
    }
    for (size_t r = 0; r < rows; r++, x += k) {
        uint8_t *to = j->data + (first + r) * j->w.row_bytes;
        if (j->only_look) {
            j->scales[first + r] = int8_absmax(x, k);
        } else if (j->how == PLAIN) {
            memcpy(to, x, k * sizeof *x);
        } else if (j->how == ROUND) {
            j->scales[first + r] = j->scaled ? j->scales[first + r] : int8_scale_absmax(x, k);
            int8_quantize(x, k, j->scales[first + r], (int8_t *)to);
        } else if (j->how == ROUND_BLOCKS) {
            round_blocks(j, x, k, to);
        } else {
            to_bf16(x, k, to);
        }
    }
}

/* Bytes of 0..255 about 128 to signed ones; those of QUANT_I8 are signed. */
static void convert_codes(struct job *j, size_t first, size_t rows) {
    const struct matrix *m = j->m;
    uint8_t *to = j->data ? j->data + first * m->k : NULL;
    if (to) {
        matrix_codes(m, first, rows, to);
        for (size_t i = 0; i < rows * m->k && m->scheme.layout != QUANT_I8; i++) {
            to[i] ^= 0x80;
        }
    }
    for (size_t r = first; r < first + rows; r++) {
        float zero;
        matrix_groups(m, r, &j->scales[r], &zero);
    }
}

static void put_half(uint8_t *p, float x) {
    uint16_t h = half_from_float(x);
    memcpy(p, &h, sizeof h);
}

/* The blocks of quant/dequant.c from a row of codes. */
static void put_blocks(const struct job *j, const uint8_t *codes, const float *scale, const float *zero, uint8_t *dst) {
    size_t bytes = dtype_info(j->w.dtype)->bytes;
    for (size_t i = 0; i < j->m->k; i += 32, dst += bytes, codes += 32) {
        size_t g = (j->m->phase + i) / j->m->group;
        uint8_t *q = dst + 2;
        put_half(dst, scale[g]);
        if (j->w.dtype == DTYPE_Q4_1) {
            put_half(q, -scale[g] * zero[g]);
            q += 2;
        }
        for (size_t e = 0; e < 16; e++) {
            if (j->w.dtype == DTYPE_Q8_0) {
                q[e] = codes[e] ^ 0x80;
                q[e + 16] = codes[e + 16] ^ 0x80;
            } else {
                q[e] = (uint8_t)(codes[e] | codes[e + 16] << 4);
            }
        }
    }
}

/* x: room for rows * k floats, of which the codes take a quarter; groups: 2 * n_groups floats. */
static void convert_blocks(struct job *j, size_t first, size_t rows, float *x, float *groups) {
    const struct matrix *m = j->m;
    uint8_t *codes = (uint8_t *)x;
    matrix_codes(m, first, rows, codes);
    for (size_t r = 0; r < rows; r++) {
        matrix_groups(m, first + r, groups, groups + m->n_groups);
        put_blocks(j, codes + r * m->k, groups, groups + m->n_groups, j->data + (first + r) * j->w.row_bytes);
    }
}

static void run_task(void *arg, size_t i) {
    struct job *j = arg;
    size_t first = i * j->rows, rows = j->m->n - first < j->rows ? j->m->n - first : j->rows;
    if (j->how == CODES) {
        convert_codes(j, first, rows);
        return;
    }
    if (j->how == ROUND_PLAIN) {
        convert_rounded(j, first, rows);
        return;
    }
    float *x = malloc((rows * j->m->k + 2 * j->m->n_groups) * sizeof *x);
    if (!x) {
        j->no_memory = true;
    } else if (j->how == BLOCKS) {
        convert_blocks(j, first, rows, x, x + rows * j->m->k);
    } else {
        convert_floats(j, first, rows, x);
    }
    free(x);
}

/* Rows of a task: what stays in a core's cache as floats; a multiple of 16, where GPTQ's words of 16 rows share a line. */
static size_t task_rows(size_t k) {
    enum { FLOATS_A_TASK = 65536 };
    size_t rows = FLOATS_A_TASK / k / 16 * 16;
    return rows < 16 ? 16 : rows > 256 ? 256 : rows;
}

static int allocate(struct job *j, struct error *err) {
    size_t bytes;
    bool own_codes = j->how == CODES && j->m->scheme.layout == QUANT_I8 && matrix_has_whole_rows(j->m); /* read from the mapping */
    if (!checked_mul(j->m->n, j->w.row_bytes, &bytes) || bytes > SIZE_MAX - 64) {
        return error_memory(err);
    }
    j->data = own_codes ? NULL : aligned_alloc(64, bytes > 0 ? (bytes + 63) / 64 * 64 : 64);
    j->scales = j->w.dtype == DTYPE_I8 ? malloc((j->m->n > 0 ? j->m->n : 1) * sizeof *j->scales) : NULL;
    if ((!own_codes && !j->data) || (j->w.dtype == DTYPE_I8 && !j->scales)) {
        return error_memory(err);
    }
    j->w.data = own_codes ? (const uint8_t *)j->m->data->data + j->m->first_row * j->m->k : j->data;
    j->w.scales = j->scales;
    return 0;
}

static int run_rows(struct job *j, size_t threads, struct error *err) {
    enum { WORTH = 1 << 18 }; /* elements: a fraction of a millisecond, several times what starting a thread takes */
    j->rows = task_rows(j->m->k);
    parallel_for(j->m->n * j->m->k < WORTH ? 1 : threads, (j->m->n + j->rows - 1) / j->rows, run_task, j);
    if (j->no_memory) {
        return error_memory(err);
    }
    if (j->not_finite) {
        return error_set(err, ERROR_MODEL, "the tensor %s has an element that is not a finite number", j->m->data->name);
    }
    return 0;
}

/* x[n] of each rank becomes the largest over all of them. */
static int largest_of_all(struct collective *host, float *x, size_t n, struct error *err) {
    float *all = calloc(n * host->size, sizeof *all);
    if (!all) {
        return error_memory(err);
    }
    int rc = host->ops->all_gather(host, x, n * sizeof *x, all, err);
    for (size_t i = 0; rc == 0 && i < n * host->size; i++) {
        x[i % n] = all[i] > x[i % n] ? all[i] : x[i % n];
    }
    free(all);
    return rc;
}

/* A rank that has a part of each row takes the scale of the whole row: the weights are those that one rank would have. */
static int find_scales(struct job *j, size_t threads, struct error *err) {
    j->only_look = true;
    if (run_rows(j, threads, err) < 0 || largest_of_all(j->host, j->scales, j->m->n, err) < 0) {
        return -1;
    }
    for (size_t r = 0; r < j->m->n; r++) {
        j->scales[r] = int8_scale_absmax(&j->scales[r], 1);
    }
    j->only_look = false;
    j->scaled = true;
    return 0;
}

static int run(struct job *j, size_t threads, struct error *err) {
    if (allocate(j, err) < 0 ||
        (j->how == ROUND && j->host && !matrix_has_whole_rows(j->m) && find_scales(j, threads, err) < 0) ||
        run_rows(j, threads, err) < 0) {
        return -1;
    }
    float largest = j->largest_scale;
    if (j->host && (j->how == ROUND_BLOCKS || j->how == ROUND_PLAIN)) {
        if (largest_of_all(j->host, &largest, 1, err) < 0) {
            return -1;
        }
        j->largest_scale = largest;
    }
    return 0;
}

/* The file's own bytes: where they lie, or a copy of the columns. */
static int take_as_is(const struct matrix *m, struct weight *w, struct converted *out, struct error *err) {
    size_t whole_bytes, bytes;
    if (!dtype_row_bytes(w->dtype, m->whole_k, &whole_bytes) || !checked_mul(m->n, w->row_bytes, &bytes) || bytes > SIZE_MAX - 64) {
        return error_memory(err);
    }
    const struct dtype_info *type = dtype_info(w->dtype);
    const uint8_t *from = (const uint8_t *)m->data->data + m->first_row * whole_bytes + m->first_column / type->block * type->bytes;
    void *copy = NULL;
    if (!matrix_has_whole_rows(m)) {
        copy = aligned_alloc(64, bytes > 0 ? (bytes + 63) / 64 * 64 : 64);
        if (!copy) {
            return error_memory(err);
        }
        for (size_t r = 0; r < m->n; r++) {
            memcpy((uint8_t *)copy + r * w->row_bytes, from + r * whole_bytes, w->row_bytes);
        }
    }
    w->data = copy ? copy : from;
    *out = (struct converted){.w = *w, .data = copy, .size = bytes};
    return 0;
}

static void release(const struct matrix *m, const struct model_file *file) {
    const struct tensor *const tensors[] = {m->data, m->scales, m->zeros};
    for (size_t i = 0; i < 3; i++) {
        if (tensors[i]) {
            model_file_release(file, tensors[i]->data, tensors[i]->size);
        }
    }
}

/* Does F16 hold the scales of a matrix with this largest one? Its steps of 2^-24 must be small beside that of the codes. */
static bool suits_half(float largest_scale) {
    return largest_scale == 0 || (largest_scale >= 0x1p-21f && largest_scale <= 65504.0f);
}

int matrix_convert(const struct matrix *m, const struct model_file *file, enum weights_format format, size_t threads,
                   struct collective *host, struct converted *out, struct error *err) {
    struct job j = {.m = m, .w = {.n = m->n, .k = m->k}, .host = host};
    if (choose(m, format, host, &j.w, &j.how, err) < 0) {
        return -1;
    }
    set_activation(m, format, &j.w);
    if (!dtype_row_bytes(j.w.dtype, m->k, &j.w.row_bytes)) {
        return error_set(err, ERROR_INTERNAL, "%s: no whole number of blocks", m->data->name);
    }
    if (j.how == AS_IS) {
        return take_as_is(m, &j.w, out, err);
    }
    int rc = run(&j, threads, err);
    if (rc == 0 && (j.how == ROUND_BLOCKS || j.how == ROUND_PLAIN) && !suits_half(j.largest_scale)) {
        free(j.data);
        j = (struct job){.m = m, .how = ROUND, .host = host, .w = {.dtype = DTYPE_I8, .n = m->n, .k = m->k, .row_bytes = m->k}};
        rc = run(&j, threads, err);
    }
    if (rc < 0) {
        free(j.data);
        free(j.scales);
        return -1;
    }
    if (j.data && !host) { /* else other ranks may still read their parts of these pages */
        release(m, file);
    }
    *out = (struct converted){j.w, j.data, j.scales, m->n * j.w.row_bytes + (j.scales ? m->n * sizeof *j.scales : 0)};
    return 0;
}
