/* What the two files of the stand-in of cuBLASLt share: the insides of its descriptors, and a product to be done. */
#ifndef EMU_CUBLASLT_INSIDE_H
#define EMU_CUBLASLT_INSIDE_H

#include "cublasLt.h"

namespace emu {

struct __attribute__((may_alias)) Layout {
    cudaDataType type;
    uint64_t rows, cols;
    int64_t ld;
    int32_t order, batch;
};
static_assert(sizeof(Layout) <= sizeof(cublasLtMatrixLayoutOpaque_t), "fits the opaque one");

struct __attribute__((may_alias)) Desc {
    cublasComputeType_t compute;
    cudaDataType_t scale;
    int32_t pointer_mode, transa, transb, transc;
    uint32_t epilogue;
    int32_t bias_type, sm_count;
    const void *bias;
};
static_assert(sizeof(Desc) <= sizeof(cublasLtMatmulDescOpaque_t), "fits the opaque one");

struct __attribute__((may_alias)) Preference {
    uint64_t workspace;
    uint32_t search, reduction, align[4];
};
static_assert(sizeof(Preference) <= sizeof(cublasLtMatmulPreferenceOpaque_t), "fits the opaque one");

struct __attribute__((may_alias)) Algo {
    int32_t id;
    uint32_t tile;
    int32_t split_k;
    uint32_t reduction, swizzle, custom, stages;
    uint16_t inner, cluster;
    int32_t input; /* type of A: an algorithm belongs to it */
};
static_assert(sizeof(Algo) <= sizeof(cublasLtMatmulAlgo_t), "fits the opaque one");

/* The two families: blocks of 16-byte vectors, and one that takes any alignment. */
enum { ALGO_TILED = 6, ALGO_PLAIN = 1 };
struct Problem {
    Desc desc;
    Layout a, b, c, d;
    uint64_t m, n, k;
};

struct Product {
    Problem p;
    Algo algo;
    float alpha, beta;
    int32_t alpha_int, beta_int;
    const void *alpha_device, *beta_device; /* NULL: the values above */
    bool alpha_vector;
    const void *a, *b, *c;
    void *d, *workspace;
};

static inline size_t size_of(int type) {
    return type == CUDA_R_8I ? 1 : type == CUDA_R_16F || type == CUDA_R_16BF ? 2 : 4;
}

static inline bool is_int8(const Problem &p) {
    return p.a.type == CUDA_R_8I;
}

static inline size_t workspace_of(const Algo &algo, const Problem &p) {
    return algo.split_k > 1 ? size_t(algo.split_k) * p.m * p.n * 4 : 0;
}

/* Do it, as work of a device. */
cudaError_t run_product(const Product &q, int device);

} // namespace emu

#endif
