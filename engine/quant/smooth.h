/*
 * SmoothQuant (Xiao et al. 2023): outliers among the input channels of a product move into its weights, where a scale per
 * output channel copes with them. Channel j of the input is divided by s[j] in what makes it (a norm's weight, or the rows
 * of the product before), column j of the weights is multiplied by it; the product stays the same.
 * Matrices are float [rows][cols]. Pure functions, any thread.
 */
#ifndef INFERD_SMOOTH_H
#define INFERD_SMOOTH_H

#include <inferd/backend.h>
#include <stddef.h>

#define SMOOTH_MAX_FACTOR 1e4f /* factors lie between this and its inverse, far inside the range of F16 */

/* max[j] = the larger of max[j] and the largest |x[r][j]|; ld: floats from row to row */
void smooth_column_max(const float *x, size_t ld, size_t rows, size_t cols, float *max);

/* s[j] = x_max[j]^alpha / w_max[j]^(1 - alpha) (equation 4), between the bounds; 1 where either is 0. s may be x_max. */
void smooth_factors(const float *x_max, const float *w_max, size_t n, double alpha, float *s);

/* Of query heads that share a key-value head, the largest of the group: out[n_kv][dim] from heads[n_heads][dim]. */
void smooth_share_heads(const float *heads, size_t n_heads, size_t n_kv, size_t dim, float *out);

/* A norm's weight[n] divided by s as it will be stored: less `offset` (1 where the model adds it), in `stored` (F32, F16
 * or BF16). weight becomes what a reader will see, with the offset in it, and s what it was really divided by, so that the columns
 * multiplied by s make up for the rounding. A channel that would be rounded to nothing keeps its weight. */
void smooth_norm(float *weight, size_t n, float offset, enum dtype stored, float *s);

void smooth_columns(float *w, size_t rows, size_t cols, const float *s); /* w[r][j] *= s[j] */
void smooth_rows(float *w, size_t rows, size_t cols, const float *s);    /* w[r][j] /= s[r] */

/* x as it comes back from `stored`: F32, F16 or BF16, to nearest even */
float smooth_round(float x, enum dtype stored);

#endif
