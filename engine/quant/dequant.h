/*
 * The element types as plain floats: one obvious scalar loop a type, in the arithmetic of the format's own description
 * (ggml's block layouts). The reference for tests and for whatever is not worth a kernel; not for speed.
 */
#ifndef INFERD_DEQUANT_H
#define INFERD_DEQUANT_H

#include <inferd/backend.h>

/* dst[0..n) from a row of n elements at src (any alignment). -1 when t is not a type of weights (I8 has no scale of its
 * own, I32 is not computed with) or n is not a multiple of its block; dst is untouched then. */
int dequantize_row(enum dtype t, const void *src, float *dst, size_t n);

#endif
