/*
 * The largest of logits that lie on several ranks, of equal ones the lowest id: each rank's own columns first, then what the ranks
 * found. A find is one number, the key (sampler_math.h) above the complement of the id, so the largest find is the choice; all bits:
 * a logit is NaN or infinite; zero: there are no columns. One block a row, then one thread a row.
 */
#include "device.cuh"
#include "launch.h"

#define SAMPLER_INLINE static __device__ __forceinline__
#define SAMPLER_FMA(a, b, c) fma_f32(a, b, c)
#include <inferd/sampler_math.h>

#define THREADS 256
#define WARPS (THREADS / WARP)
#define NOT_FINITE (~(uint64_t)0)

struct best_shared {
    uint64_t finds[WARPS];
};

static __device__ __forceinline__ uint64_t larger(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

static __device__ __forceinline__ uint64_t warp_largest(uint64_t v) {
    for (int i = WARP / 2; i > 0; i /= 2) {
        v = larger(v, warp_shfl_xor(v, i));
    }
    return v;
}

static __global__ void __launch_bounds__(THREADS)
    best_of_part(const float *part, size_t ld, size_t first, size_t n, const struct cuda_choice *choices, uint64_t *finds) {
    SHARED(best_shared, s);
    const float *z = part + (size_t)choices[blockIdx.x].logits_row * ld;
    uint64_t best = 0;
    for (size_t i = threadIdx.x; i < n; i += THREADS) {
        const bool finite = (bits_of(z[i]) & 0x7f800000u) != 0x7f800000u;
        const uint64_t find = (uint64_t)sampler_key(z[i]) << 32 | (0xffffffffu - (uint32_t)(first + i));
        best = larger(best, finite ? find : NOT_FINITE);
    }
    best = warp_largest(best);
    if (threadIdx.x % WARP == 0) {
        s.finds[threadIdx.x / WARP] = best;
    }
    block_sync();
    if (threadIdx.x == 0) {
        for (int w = 1; w < WARPS; w++) {
            best = larger(best, s.finds[w]);
        }
        finds[blockIdx.x] = best;
    }
}

static __global__ void best_of_ranks(const uint64_t *finds, size_t size, size_t n, int32_t *tokens) {
    const size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < n) {
        uint64_t best = 0;
        for (size_t r = 0; r < size; r++) {
            best = larger(best, finds[r * n + i]);
        }
        tokens[i] = best == NOT_FINITE ? CHOICE_NONFINITE : (int32_t)(0xffffffffu - (uint32_t)best);
    }
}

extern "C" cudaError_t cuda_best_of_part(const float *part, size_t ld, size_t first, size_t n, const struct cuda_choice *choices,
                                         size_t rows, uint64_t *finds, cudaStream_t stream) {
    if (rows == 0) {
        return cudaSuccess;
    }
    return LAUNCH(best_of_part, (unsigned)rows, THREADS, sizeof(best_shared), stream, part, ld, first, n, choices, finds);
}

extern "C" cudaError_t cuda_best_of_ranks(const uint64_t *finds, size_t size, size_t rows, int32_t *tokens, cudaStream_t stream) {
    if (rows == 0) {
        return cudaSuccess;
    }
    return LAUNCH(best_of_ranks, (unsigned)((rows + THREADS - 1) / THREADS), THREADS, 0, stream, finds, size, rows, tokens);
}
