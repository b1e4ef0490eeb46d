/*
 * Symmetric INT8 of a row of floats: x is about scale * q, q in [-127, 127]. One definition for weights made at load, for
 * `inferd quantize` and for tests. Pure functions, any thread.
 */
#ifndef INFERD_INT8_H
#define INFERD_INT8_H

#include <stddef.h>
#include <stdint.h>

/* The largest magnitude. x[n] finite. */
float int8_absmax(const float *x, size_t n);

/* absmax / 127; 1 for a row of zeros, so that nothing divides by zero. x[n] finite. */
float int8_scale_absmax(const float *x, size_t n);

/* The scale of the smallest squared error, sum_i (x[i] - scale * q[i])^2, among `INT8_CLIP_STEPS` clipped ones between half
 * of absmax / 127 and all of it. */
enum { INT8_CLIP_STEPS = 64 };
float int8_scale_mse(const float *x, size_t n);

/* q[i] = x[i] / scale to nearest even, saturated at -127 and 127; scale > 0 */
void int8_quantize(const float *x, size_t n, float scale, int8_t *q);

#endif
