/*
 * y[r] = scale * table[token_ids[r]], dequantised to F32: the residual stream begins here. The same values, and the
 * same bits, as the CPU backend's: one multiplication of a block's scale and integer, then one by `scale`. A row whose
 * id is none of the table's becomes zeros.
 */
#include "device.cuh"
#include "launch.h"

#define EMBED_THREADS 256

/* Element i of the row at `row`. */
template <typename T> struct embed_plain {
    static __device__ __forceinline__ float at(const void *row, size_t i, const float *, size_t) {
        return to_f32(((const T *)row)[i]);
    }
};
struct embed_i8 {
    static __device__ __forceinline__ float at(const void *row, size_t i, const float *scales, size_t id) {
        return mul_f32((float)((const int8_t *)row)[i], scales[id]);
    }
};

template <typename ELEMENT>
static __global__ void __launch_bounds__(EMBED_THREADS)
    embed(float *y, size_t ldy, const uint8_t *table, size_t row_bytes, const float *scales, size_t n, size_t k,
          const int32_t *token_ids, float scale) {
    const int32_t id = token_ids[blockIdx.x];
    const bool known = id >= 0 && (size_t)id < n;
    const size_t row = known ? (size_t)id : 0;
    for (size_t i = threadIdx.x; i < k; i += blockDim.x) {
        float v = known ? ELEMENT::at(table + row * row_bytes, i, scales, row) : 0.0f;
        y[blockIdx.x * ldy + i] = mul_f32(v, scale);
    }
}

template <typename ELEMENT>
static cudaError_t embed_rows(float *y, size_t ldy, const struct cuda_weight *table, size_t row_bytes,
                              const int32_t *token_ids, size_t rows, float scale, cudaStream_t stream) {
    return LAUNCH((embed<ELEMENT>), (unsigned)rows, EMBED_THREADS, 0, stream, y, ldy, (const uint8_t *)table->data,
                  row_bytes, table->scales, table->n, table->k, token_ids, scale);
}

extern "C" cudaError_t cuda_embed(float *y, size_t ldy, const struct cuda_weight *table, const int32_t *token_ids,
                                  size_t rows, float scale, cudaStream_t stream) {
    if (rows == 0) {
        return cudaSuccess;
    }
    switch (table->dtype) {
    case DTYPE_F32:
        return embed_rows<embed_plain<float>>(y, ldy, table, table->k * sizeof(float), token_ids, rows, scale, stream);
    case DTYPE_F16:
        return embed_rows<embed_plain<f16>>(y, ldy, table, table->k * sizeof(f16), token_ids, rows, scale, stream);
    case DTYPE_BF16:
        return embed_rows<embed_plain<bf16>>(y, ldy, table, table->k * sizeof(bf16), token_ids, rows, scale, stream);
    case DTYPE_I8:
        return embed_rows<embed_i8>(y, ldy, table, table->k_padded, token_ids, rows, scale, stream);
    default:
        return cudaErrorInvalidValue;
    }
}
