/*
 * Every operation of the backend interface, slow and obvious, in double precision, written from the formulas and from
 * the GGUF format's description, sharing no code with the backends.
 */
#ifndef TESTS_OPS_REFERENCE_H
#define TESTS_OPS_REFERENCE_H

#include <inferd/backend.h>

double reference_f16(uint16_t h);
double reference_bf16(uint16_t h);
/* The F16, or BF16, nearest to x, ties to even. */
uint16_t reference_to_f16(double x);
uint16_t reference_to_bf16(double x);

/* out[0..n) = the elements of a row of any weight type */
void reference_dequantise(enum dtype dtype, const uint8_t *row, size_t n, double *out);

/* y[rows][n] = x[rows][k] w[n][k]^T + bias (NULL: none); scale[rows][n] = sum of |x w|, what rounding errors are
 * measured by */
void reference_linear(const double *x, size_t rows, size_t k, const double *w, size_t n, const float *bias, double *y,
                      double *scale);

/* y[dim] = x / sqrt(mean x^2 + eps) * w */
void reference_rms_norm(const double *x, const float *w, size_t dim, double eps, double *y);

double reference_silu(double x);
double reference_gelu_tanh(double x);

/* one head, in place */
void reference_rope(double *x, size_t n_rot, enum rope_style style, const float *inv_freq, double mscale,
                    int32_t position);

/* out[dim] = softmax(scale q . k[j]) v[j] over j in [begin, end); k, v: [end][dim] */
void reference_attention(const double *q, const double *k, const double *v, size_t dim, size_t begin, size_t end,
                         double scale, double *out);

#endif
