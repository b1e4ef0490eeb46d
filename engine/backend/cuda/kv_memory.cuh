/* Where a head's K or V of a token lies in a layer's KV memory (backend.h, struct kv_layer), on the device. */
#ifndef INFERD_CUDA_KV_MEMORY_CUH
#define INFERD_CUDA_KV_MEMORY_CUH

#include "device.cuh"
#include "launch.h"

/* A kv_layer as kernels take it. block_size is a power of two, 1 << block_shift. */
struct kv_memory {
    uint8_t *data;
    size_t block_bytes;
    uint32_t block_shift, n_kv_heads, head_dim, row_bytes; /* row: one head's K or V of one token */
};

/* False where block_size is no power of two, or the type none that KV is kept in. */
static inline bool kv_memory_of(const struct kv_layer *kv, kv_memory *out) {
    uint32_t shift = 0;
    while (shift < 31 && (size_t)1 << shift < kv->block_size) {
        shift++;
    }
    if ((size_t)1 << shift != kv->block_size ||
        (kv->dtype != DTYPE_F16 && kv->dtype != DTYPE_BF16 && kv->dtype != DTYPE_I8)) {
        return false;
    }
    size_t row = kv->head_dim * (kv->dtype == DTYPE_I8 ? 1 : 2), scales = kv->dtype == DTYPE_I8 ? 2 : 0;
    out->data = (uint8_t *)kv->data;
    out->block_bytes = 2 * kv->n_kv_heads * kv->block_size * (row + scales);
    out->block_shift = shift;
    out->n_kv_heads = (uint32_t)kv->n_kv_heads;
    out->head_dim = (uint32_t)kv->head_dim;
    out->row_bytes = (uint32_t)row;
    return true;
}

/* Which of a block's tokens, counted over K (of all heads) and then V: the row's number, and that of its scale. */
static __device__ __forceinline__ size_t kv_token(const kv_memory &kv, uint32_t head, bool is_v, uint32_t offset) {
    return ((size_t)((is_v ? kv.n_kv_heads : 0u) + head) << kv.block_shift) + offset;
}
static __device__ __forceinline__ uint8_t *kv_row(const kv_memory &kv, size_t block, size_t token) {
    return kv.data + block * kv.block_bytes + token * kv.row_bytes;
}
/* I8 alone */
static __device__ __forceinline__ f16 *kv_scale(const kv_memory &kv, size_t block, size_t token) {
    size_t rows = (size_t)(2 * kv.n_kv_heads) << kv.block_shift;
    return (f16 *)(kv.data + block * kv.block_bytes + rows * kv.row_bytes) + token;
}

#endif
