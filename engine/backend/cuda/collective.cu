/*
 * What ranks gave, side by side in memory, is put together.
 *
 *  - cuda_join_columns: all[r][i * bytes ..] = parts[i][r][..], i < size: rows of several ranks become one row each.
 *  - cuda_sum_parts: y[j] = part 0 [j] + part 1 [j] + ..., in F32, rounded once; part `own` lies at `mine`.
 */
#include "device.cuh"
#include "launch.h"

#define THREADS 256

/* Units of T: bytes divide by it, and so do all addresses. */
template <typename T>
static __global__ void __launch_bounds__(THREADS)
    join_columns(T *all, const T *parts, size_t rows, size_t width, size_t size) {
    const size_t n = rows * size * width;
    for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < n; i += (size_t)gridDim.x * THREADS) {
        const size_t column = i % width, rank = i / width % size, row = i / width / size;
        all[i] = parts[(rank * rows + row) * width + column];
    }
}

template <typename T>
static cudaError_t join(void *all, const void *parts, size_t rows, size_t bytes, size_t size, cudaStream_t stream) {
    const size_t blocks = (rows * size * (bytes / sizeof(T)) + THREADS - 1) / THREADS;
    return LAUNCH((join_columns<T>), (unsigned)(blocks < 4096 ? blocks : 4096), THREADS, 0, stream, (T *)all, (const T *)parts,
                  rows, bytes / sizeof(T), size);
}

extern "C" cudaError_t cuda_join_columns(void *all, const void *parts, size_t rows, size_t bytes, size_t size,
                                         cudaStream_t stream) {
    const uintptr_t low = bytes | (uintptr_t)all | (uintptr_t)parts;
    if (rows == 0 || bytes == 0) {
        return cudaSuccess;
    }
    return low % sizeof(uint4) == 0      ? join<uint4>(all, parts, rows, bytes, size, stream)
           : low % sizeof(uint32_t) == 0 ? join<uint32_t>(all, parts, rows, bytes, size, stream)
                                         : join<uint8_t>(all, parts, rows, bytes, size, stream);
}

template <typename T>
static __global__ void __launch_bounds__(THREADS)
    sum_parts(T *y, const T *parts, size_t stride, const T *mine, size_t size, size_t own, size_t n) {
    for (size_t j = (size_t)blockIdx.x * THREADS + threadIdx.x; j < n; j += (size_t)gridDim.x * THREADS) {
        float sum = to_f32(mine && own == 0 ? mine[j] : parts[j]);
        for (size_t r = 1; r < size; r++) {
            sum = add_f32(sum, to_f32(mine && own == r ? mine[j] : parts[r * stride + j]));
        }
        y[j] = from_f32<T>(sum);
    }
}

template <typename T>
static cudaError_t sum(void *y, const void *parts, size_t stride, const void *mine, size_t size, size_t own, size_t n,
                       cudaStream_t stream) {
    const size_t blocks = (n + THREADS - 1) / THREADS;
    return LAUNCH((sum_parts<T>), (unsigned)(blocks < 4096 ? blocks : 4096), THREADS, 0, stream, (T *)y, (const T *)parts, stride,
                  (const T *)mine, size, own, n);
}

extern "C" cudaError_t cuda_sum_parts(void *y, const void *parts, size_t stride, const void *mine, size_t size, size_t own,
                                      enum dtype dtype, size_t n, cudaStream_t stream) {
    if (n == 0) {
        return cudaSuccess;
    }
    switch (dtype) {
    case DTYPE_F32:
        return sum<float>(y, parts, stride, mine, size, own, n, stream);
    case DTYPE_F16:
        return sum<f16>(y, parts, stride, mine, size, own, n, stream);
    case DTYPE_BF16:
        return sum<bf16>(y, parts, stride, mine, size, own, n, stream);
    default:
        return cudaErrorInvalidValue;
    }
}
