/*
 * y[r] = scale * table[token_ids[r]], dequantised to F32: the residual stream begins here. The same values, and the
 * same bits, as the CPU backend's: a block's scale times its integer, plus its minimum, then times `scale`. A row whose
 * id is none of the table's, which begins with that of `first`, becomes zeros.
 */
#include "block_decode.cuh"
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
          const int32_t *token_ids, int32_t first, float scale) {
    const int32_t id = token_ids[blockIdx.x] - first;
    const bool known = id >= 0 && (size_t)id < n;
    const size_t row = known ? (size_t)id : 0;
    for (size_t i = threadIdx.x; i < k; i += blockDim.x) {
        float v = known ? ELEMENT::at(table + row * row_bytes, i, scales, row) : 0.0f;
        y[blockIdx.x * ldy + i] = mul_f32(v, scale);
    }
}

template <typename ELEMENT>
static cudaError_t embed_rows(float *y, size_t ldy, const struct cuda_weight *table, size_t row_bytes,
                              const int32_t *token_ids, int32_t first, size_t rows, float scale,
                              cudaStream_t stream) {
    return LAUNCH((embed<ELEMENT>), (unsigned)rows, EMBED_THREADS, 0, stream, y, ldy, (const uint8_t *)table->data,
                  row_bytes, table->scales, table->n, table->k, token_ids, first, scale);
}

/* GGUF blocks: a thread takes a share of eight elements at a time. */
template <enum dtype T>
static __global__ void __launch_bounds__(EMBED_THREADS)
    embed_blocks(float *y, size_t ldy, const uint8_t *table, size_t row_bytes, size_t n, size_t k,
                 const int32_t *token_ids, int32_t first, float scale) {
    typedef decoder<T> D;
    const int32_t id = token_ids[blockIdx.x] - first;
    const bool known = id >= 0 && (size_t)id < n;
    const decode_row row = {table + (known ? (size_t)id : 0) * row_bytes, (uint32_t)k, false};
    const uint32_t shares = (uint32_t)((k + GROUP - 1) / GROUP * SHARES);
    y += blockIdx.x * ldy;
    for (uint32_t i = threadIdx.x; i < shares; i += blockDim.x) {
        const uint32_t group = i / SHARES, t = i % SHARES;
        if (!has_share<T>(row, group, t)) {
            continue;
        }
        float q[SHARE], scales[2] = {0, 0}, minima[2] = {0, 0};
        D::decode(D::load(row, group, t), group, t, q, scales, minima);
#pragma unroll
        for (unsigned j = 0; j < SHARE; j++) {
            const unsigned piece = j / PIECE, s = D::SCALES == 2 ? piece : 0;
            float v = mul_f32(scales[s], q[j]);
            if constexpr (D::MIN) {
                v = add_f32(v, minima[s]);
            }
            y[group * GROUP + D::piece(t, piece) + j % PIECE] = known ? mul_f32(v, scale) : 0.0f;
        }
    }
}

template <enum dtype T>
static cudaError_t embed_block_rows(float *y, size_t ldy, const struct cuda_weight *table, const int32_t *token_ids,
                                    int32_t first, size_t rows, float scale, cudaStream_t stream) {
    return LAUNCH((embed_blocks<T>), (unsigned)rows, EMBED_THREADS, 0, stream, y, ldy, (const uint8_t *)table->data,
                  table->row_bytes, table->n, table->k, token_ids, first, scale);
}

extern "C" cudaError_t cuda_embed(float *y, size_t ldy, const struct cuda_weight *table, const int32_t *token_ids,
                                  int32_t first, size_t rows, float scale, cudaStream_t stream) {
    if (rows == 0) {
        return cudaSuccess;
    }
    switch (table->dtype) {
    case DTYPE_F32:
        return embed_rows<embed_plain<float>>(y, ldy, table, table->k * sizeof(float), token_ids, first, rows, scale, stream);
    case DTYPE_F16:
        return embed_rows<embed_plain<f16>>(y, ldy, table, table->k * sizeof(f16), token_ids, first, rows, scale, stream);
    case DTYPE_BF16:
        return embed_rows<embed_plain<bf16>>(y, ldy, table, table->k * sizeof(bf16), token_ids, first, rows, scale, stream);
    case DTYPE_I8:
        return embed_rows<embed_i8>(y, ldy, table, table->k_padded, token_ids, first, rows, scale, stream);
    case DTYPE_Q4_0:
        return embed_block_rows<DTYPE_Q4_0>(y, ldy, table, token_ids, first, rows, scale, stream);
    case DTYPE_Q4_1:
        return embed_block_rows<DTYPE_Q4_1>(y, ldy, table, token_ids, first, rows, scale, stream);
    case DTYPE_Q5_0:
        return embed_block_rows<DTYPE_Q5_0>(y, ldy, table, token_ids, first, rows, scale, stream);
    case DTYPE_Q5_1:
        return embed_block_rows<DTYPE_Q5_1>(y, ldy, table, token_ids, first, rows, scale, stream);
    case DTYPE_Q8_0:
        return embed_block_rows<DTYPE_Q8_0>(y, ldy, table, token_ids, first, rows, scale, stream);
    case DTYPE_Q4_K:
        return embed_block_rows<DTYPE_Q4_K>(y, ldy, table, token_ids, first, rows, scale, stream);
    case DTYPE_Q5_K:
        return embed_block_rows<DTYPE_Q5_K>(y, ldy, table, token_ids, first, rows, scale, stream);
    case DTYPE_Q6_K:
        return embed_block_rows<DTYPE_Q6_K>(y, ldy, table, token_ids, first, rows, scale, stream);
    default:
        return cudaErrorInvalidValue;
    }
}
