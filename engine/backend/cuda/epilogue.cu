/*
 * y[r][j] = x[r][j] (+ bias[j]), the sum in F32 and one rounding: what a product of cuBLASLt leaves to do, and rows from
 * one type to another. y may be x; x NULL is zeros: the sum of no products.
 *
 * A thread takes one column of a band of rows, so that a warp reads 32 neighbours; a bias is read once a band.
 */
#include "launch.h"

#include "device.cuh"

#define THREADS 128
#define BAND 8 /* rows */

template <typename Y, typename X>
static __global__ void add_bias(Y *y, size_t ldy, const X *x, size_t ldx, const float *bias, size_t rows, size_t n) {
    size_t j = (size_t)blockIdx.x * THREADS + threadIdx.x, first = (size_t)blockIdx.y * BAND;
    if (j < n) {
        float addend = bias ? bias[j] : 0.0f;
        for (size_t r = first; r < first + BAND && r < rows; r++) {
            float v = x ? to_f32(x[r * ldx + j]) : 0.0f;
            y[r * ldy + j] = from_f32<Y>(bias ? add_f32(v, addend) : v);
        }
    }
}

template <typename Y, typename X>
static cudaError_t launch(void *y, size_t ldy, const void *x, size_t ldx, const float *bias, size_t rows, size_t n,
                          cudaStream_t stream) {
    dim3 grid((unsigned)((n + THREADS - 1) / THREADS), (unsigned)((rows + BAND - 1) / BAND));
    return LAUNCH((add_bias<Y, X>), grid, THREADS, 0, stream, (Y *)y, ldy, (const X *)x, ldx, bias, rows, n);
}

extern "C" cudaError_t cuda_add_bias(void *y, size_t ldy, enum dtype y_dtype, const void *x, size_t ldx,
                                     enum dtype x_dtype, const float *bias, size_t rows, size_t n, cudaStream_t stream) {
    if (rows == 0 || n == 0) {
        return cudaSuccess;
    }
    if (y_dtype == DTYPE_F32) {
        return x_dtype == DTYPE_F32 ? launch<float, float>(y, ldy, x, ldx, bias, rows, n, stream)
                                    : launch<float, bf16>(y, ldy, x, ldx, bias, rows, n, stream);
    }
    return x_dtype == DTYPE_F32 ? launch<bf16, float>(y, ldy, x, ldx, bias, rows, n, stream)
                                : launch<bf16, bf16>(y, ldy, x, ldx, bias, rows, n, stream);
}
