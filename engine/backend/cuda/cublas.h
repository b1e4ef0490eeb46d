/*
 * Products with 16-bit and F32 weights of many rows, by cuBLASLt.
 *
 * Which algorithm: for each (n, k, types, bucket of rows) the heuristic's best few are timed at start-up and the fastest
 * is kept, on disk too where a folder is given. With batch_invariant nothing is timed: one algorithm for each (n, k, types)
 * whatever the rows, which splits no sum.
 */
#ifndef INFERD_CUDA_CUBLAS_H
#define INFERD_CUDA_CUBLAS_H

#include "cuda.h"

#define CUBLAS_WORKSPACE ((size_t)32 << 20)

/* folder NULL: nothing is kept. A file there that is damaged, or of another device or version, counts as none. */
int cublas_open(struct backend *b, const char *folder, struct cublas **out, struct error *err);
void cublas_close(struct cublas *c); /* NULL is fine */
/* Writes what was timed since open; the file is complete or not there. A folder that cannot be written to is none. */
void cublas_save(struct cublas *c);

/* y[rows][ldy] = x[rows][ldx] W^T. W BF16: x BF16, y BF16 or F32. W F32: x and y F32, multiplied as TF32. */
int cublas_product(struct cublas *c, const struct cuda_weight *w, const void *x, size_t ldx, void *y, size_t ldy,
                   enum dtype y_dtype, size_t rows, struct error *err);

/* Rows are counted in buckets, the last of which is that of decode graphs of this size too: 1 to 8, then steps of 8 to 64,
 * of 16 to 256, of 64 to 512, then powers of two. The largest number of rows in the bucket of `rows`. */
size_t cublas_bucket(size_t rows);

#endif
