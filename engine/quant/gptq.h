/*
 * GPTQ (Frantar et al. 2023): the columns of W[n][k] are rounded one after the other, and the error of each is made up for
 * by those that follow, as the inputs' second moments H = X^T X tell, so that |X W^T - X (scale Q)^T|^2 stays small. Column
 * order as it is; scales are given and stay.
 */
#ifndef INFERD_GPTQ_H
#define INFERD_GPTQ_H

#include <inferd/error.h>
#include <stddef.h>
#include <stdint.h>

/*
 * From h[k][k] (symmetric, H = sum of x x^T; overwritten) to u[k][k], upper triangular with U^T U = (H + damping * mean of H's
 * diagonal * I)^-1, below the diagonal 0. Factorised in double precision. ERROR_MODEL if H is not positive definite even so.
 */
int gptq_prepare(double *h, size_t k, double damping, size_t threads, float *u, struct error *err);

/* Round w[n][k] with scales[n] > 0 to q[n][k] in [-127, 127]. Rows do not depend on each other. */
int gptq_quantize(const float *w, size_t n, size_t k, const float *u, const float *scales, size_t threads, int8_t *q,
                  struct error *err);

#endif
