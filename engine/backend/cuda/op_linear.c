/*
 * Which kernel multiplies: by the weight's type, the form its activations take, and the number of rows. A run of parts
 * that go the same way share a launch where the kernel takes several.
 */
#include "cublas.h"
#include "cuda.h"

#define GEMV_PARTS 3 /* of one launch */

static const struct cuda_weight *weight_of(const struct linear_part *p) {
    return &((const struct cuda_loaded *)p->w->packed)->w;
}

static struct cuda_part part_of(const struct linear_part *p) {
    return (struct cuda_part){weight_of(p), p->bias, p->y, p->ldy, p->y_dtype};
}

/* A rank may have no features of the feed-forward, or no rows of the vocabulary. */
static bool is_empty(const struct linear_part *p) {
    return p->w->n == 0 || p->w->k == 0;
}

static int product_of_nothing(struct backend *b, const struct linear_part *p, size_t rows, struct error *err) {
    return cuda_check(b, cuda_add_bias(p->y, p->ldy, p->y_dtype, NULL, 0, p->y_dtype, p->bias, rows, p->w->n, b->stream),
                      "a product", err);
}

/* ---- W8A8 ---------------------------------------------------------------------------------------------------- */

/* All parts take the same quantised rows. zeros: NULL where these are 0. */
static int product_i8(struct backend *b, const struct rows_i8 *x, const int32_t *zeros, size_t rows,
                      const struct linear_part *parts, size_t n_parts, struct error *err) {
    struct cuda_part p[GEMV_PARTS];
    for (size_t i = 0; i < n_parts && rows > CUDA_GEMV_ROWS; i++) {
        p[0] = part_of(&parts[i]);
        TRY(cuda_check(b, cuda_gemm_i8(&b->device, x, zeros, rows, &p[0], b->scratch.data, b->scratch.bytes, b->stream),
                       "the product of I8", err));
    }
    for (size_t i = 0; i < n_parts && rows <= CUDA_GEMV_ROWS;) {
        size_t n = 0;
        for (; n < GEMV_PARTS && i < n_parts; n++, i++) {
            p[n] = part_of(&parts[i]);
        }
        TRY(cuda_check(b, cuda_gemv_i8(&b->device, x, zeros, rows, p, n, b->stream), "the product of I8", err));
    }
    return 0;
}

int cuda_op_linear_i8(struct backend *b, const struct rows_i8 *x, size_t rows, const struct linear_part *parts,
                      size_t n_parts, struct error *err) {
    TRY(cuda_alive(b, err));
    for (size_t i = 0, n; rows > 0 && i < n_parts; i += n) {
        if (is_empty(&parts[i])) {
            n = 1;
            TRY(product_of_nothing(b, &parts[i], rows, err));
            continue;
        }
        for (n = 1; i + n < n_parts && !is_empty(&parts[i + n]);) {
            n++;
        }
        TRY(product_i8(b, x, NULL, rows, parts + i, n, err));
    }
    return 0;
}

/* Rows quantised for p are good for q too. */
static bool same_rows(const struct cuda_weight *p, const struct cuda_weight *q) {
    return p->dtype == DTYPE_I8 && q->dtype == DTYPE_I8 && p->activation == q->activation &&
           (p->activation != ACTIVATION_I8_STATIC ||
            (p->input_scale == q->input_scale && p->input_zero_point == q->input_zero_point));
}

static int quantise_and_multiply(struct backend *b, const void *x, size_t ldx, size_t rows, const struct linear_part *parts,
                                 size_t n_parts, struct error *err) {
    const struct cuda_weight *w = weight_of(&parts[0]);
    const struct rows_i8 q = {b->rows_q.data, w->k_padded, b->rows_scales.data};
    bool zeros = w->row_sums != NULL;
    if (rows > b->max_rows) {
        return error_set(err, ERROR_INTERNAL, "a product of %zu rows, and %zu are the most", rows, b->max_rows);
    }
    TRY(cuda_check(b, cuda_quantise_rows(&q, b->rows_zeros.data, x, ldx, rows, w->k, w->activation, w->input_scale,
                                         w->input_zero_point, b->stream),
                   "quantising rows", err));
    return product_i8(b, &q, zeros ? b->rows_zeros.data : NULL, rows, parts, n_parts, err);
}

/* ---- floats -------------------------------------------------------------------------------------------------- */

static bool by_cublas(const struct backend *b, const struct cuda_weight *w, size_t rows) {
    return w->dtype == DTYPE_F32 || (w->dtype == DTYPE_BF16 && (b->batch_invariant || rows > CUDA_GEMV_ROWS));
}

static int product_bf16(struct backend *b, const void *x, size_t ldx, size_t rows, const struct linear_part *p,
                        struct error *err) {
    TRY(cublas_product(b->cublas, weight_of(p), x, ldx, p->y, p->ldy, p->y_dtype, rows, err));
    return p->bias ? cuda_check(b, cuda_add_bias(p->y, p->ldy, p->y_dtype, p->y, p->ldy, p->y_dtype, p->bias, rows, p->w->n,
                                                 b->stream),
                                "adding a bias", err)
                   : 0;
}

static int product_f32(struct backend *b, const void *x, size_t ldx, size_t rows, const struct linear_part *p,
                       struct error *err) {
    const struct cuda_weight *w = weight_of(p);
    bool direct = p->y_dtype == DTYPE_F32 && !p->bias;
    void *y = direct ? p->y : b->wide_y.data;
    size_t ldy = direct ? p->ldy : w->n;
    if (rows > b->max_rows) {
        return error_set(err, ERROR_INTERNAL, "a product of %zu rows, and %zu are the most", rows, b->max_rows);
    }
    TRY(cuda_check(b, cuda_add_bias(b->wide_x.data, w->k, DTYPE_F32, x, ldx, DTYPE_BF16, NULL, rows, w->k, b->stream),
                   "converting rows", err));
    TRY(cublas_product(b->cublas, w, b->wide_x.data, w->k, y, ldy, DTYPE_F32, rows, err));
    return direct ? 0
                  : cuda_check(b, cuda_add_bias(p->y, p->ldy, p->y_dtype, y, ldy, DTYPE_F32, p->bias, rows, w->n, b->stream),
                               "adding a bias", err);
}

/* Weight-only I8, GGUF blocks, few rows of BF16. A run of equal types goes in one launch. */
static int product_float(struct backend *b, const void *x, size_t ldx, size_t rows, const struct linear_part *parts,
                         size_t n_parts, struct error *err) {
    struct cuda_part p[GEMV_PARTS];
    if (rows <= CUDA_GEMV_ROWS && !b->batch_invariant) {
        for (size_t i = 0; i < n_parts; i++) {
            p[i] = part_of(&parts[i]);
        }
        return cuda_check(b, cuda_gemv_float(&b->device, x, ldx, rows, p, n_parts, b->stream), "a product", err);
    }
    for (size_t i = 0; i < n_parts; i++) {
        p[0] = part_of(&parts[i]);
        TRY(cuda_check(b, cuda_gemm_float(&b->device, x, ldx, rows, &p[0], b->stream), "a product", err));
    }
    return 0;
}

/* ---- the operation ------------------------------------------------------------------------------------------- */

/* How many parts from the first on go the same way, with one launch. */
static size_t run_of(const struct backend *b, const struct linear_part *parts, size_t n_parts, size_t rows) {
    const struct cuda_weight *w = weight_of(&parts[0]);
    size_t n = 1;
    if (by_cublas(b, w, rows)) {
        return 1;
    }
    if (w->dtype == DTYPE_I8 && w->activation != ACTIVATION_FLOAT) {
        while (n < n_parts && !is_empty(&parts[n]) && same_rows(w, weight_of(&parts[n]))) {
            n++;
        }
        return n;
    }
    while (n < n_parts && n < GEMV_PARTS && !is_empty(&parts[n]) && weight_of(&parts[n])->dtype == w->dtype &&
           (w->dtype != DTYPE_I8 || weight_of(&parts[n])->activation == ACTIVATION_FLOAT)) {
        n++;
    }
    return n;
}

int cuda_op_linear(struct backend *b, const void *x, size_t ldx, size_t rows, const struct linear_part *parts,
                   size_t n_parts, struct error *err) {
    TRY(cuda_alive(b, err));
    for (size_t i = 0, n; rows > 0 && i < n_parts; i += n) {
        const struct cuda_weight *w = weight_of(&parts[i]);
        if (is_empty(&parts[i])) {
            n = 1;
            TRY(product_of_nothing(b, &parts[i], rows, err));
            continue;
        }
        n = run_of(b, parts + i, n_parts - i, rows);
        if (w->dtype == DTYPE_I8 && w->activation != ACTIVATION_FLOAT) {
            TRY(quantise_and_multiply(b, x, ldx, rows, parts + i, n, err));
        } else if (w->dtype == DTYPE_F32) {
            TRY(product_f32(b, x, ldx, rows, &parts[i], err));
        } else if (by_cublas(b, w, rows)) {
            TRY(product_bf16(b, x, ldx, rows, &parts[i], err));
        } else {
            TRY(product_float(b, x, ldx, rows, parts + i, n, err));
        }
    }
    return 0;
}
