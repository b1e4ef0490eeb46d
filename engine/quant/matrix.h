/*
 * A matrix of a model file as plain floats, whatever its format: GGUF types, 16-bit, INT8, FP8, packed 4 and 8 bits, GPTQ,
 * AWQ. Opening checks every tensor it is made of (shapes, types, group indices) and matrix_check the scales of what is read, so
 * that reading cannot fail.
 */
#ifndef INFERD_QUANT_MATRIX_H
#define INFERD_QUANT_MATRIX_H

#include "model_file/model_file.h"
#include "quant/scheme.h"

/* x[i] = scale[g] * (code[i] - zero[g]), g the group of element i. */
struct matrix {
    struct quant_scheme scheme;
    size_t n, k; /* of the part that is looked at; all of it when it is opened */
    size_t first_row, first_column, whole_n, whole_k;
    const struct tensor *data;   /* weight, weight_packed or qweight */
    const struct tensor *scales; /* NULL for QUANT_PLAIN */
    const struct tensor *zeros;  /* NULL: all the same, default_zero */
    const struct tensor *g_idx;  /* NULL: element i is of group i / group */
    float default_zero;
    size_t group, n_groups; /* of a row of the part; group whole_k and 1 when a row has one scale */
    size_t first_group, phase, whole_groups; /* element i of the part is of its group (phase + i) / group */
    float input_scale;      /* ACTIVATION_I8_STATIC */
    int32_t input_zero_point;
    size_t size; /* bytes of its tensors */
};

/* `module`: without ".weight", as the file's tensors are called ("model.layers.0.mlp.up_proj", "blk.0.ffn_up").
 * `scheme` NULL: QUANT_PLAIN. A module whose scheme is quantised but whose weight is stored as floats is taken so. */
int matrix_open(struct matrix *out, const struct model_file *file, const char *module, const struct quant_scheme *scheme,
                size_t n, size_t k, struct error *err);

/* A part of a matrix that is whole: rows [first, first + n) and columns [first, first + k). Nothing else of it is read then,
 * but for the words, blocks and groups that it shares. */
void matrix_cut(struct matrix *m, size_t first_row, size_t n, size_t first_column, size_t k);
/* The part's scales are finite, and not negative where a sign would have no meaning; ERROR_MODEL. Before it is read. */
int matrix_check(const struct matrix *m, struct error *err);
/* Are its rows whole? */
static inline bool matrix_has_whole_rows(const struct matrix *m) {
    return m->k == m->whole_k;
}

/* dst[rows][k] = rows [first, first + rows) of the matrix; any thread. ERROR_MEMORY alone. Best in runs of eight and more. */
int matrix_read(const struct matrix *m, size_t first, size_t rows, float *dst, struct error *err);

/* The parts of it, for layouts other than QUANT_PLAIN. Codes: signed for QUANT_I8, else unsigned. */
void matrix_codes(const struct matrix *m, size_t first, size_t rows, uint8_t *dst);
void matrix_groups(const struct matrix *m, size_t row, float *scale, float *zero); /* [n_groups] each */

#endif
