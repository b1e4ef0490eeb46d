/*
 * What a GPU can do at most, and what the kernels reach: one JSON object a line, for report.py. `--small`: shapes that the
 * emulator gets through, to see that everything runs; its figures mean nothing and are left out.
 *
 *   {"what": "gemv_i8", "shape": "22016x4096", "rows": 1, "seconds": ..., "bytes": ..., "operations": ...}
 *
 * bytes: what must be read and written at least; operations: multiplications and additions. The limits are measured
 * first: reading, copying, and the tensor cores by mma.sync alone (which on an H100 is less than its data sheet has).
 */
extern "C" {
#include <inferd/backend.h>
}
#include "device.cuh"
#include "launch.h"

#include <cublasLt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool small_shapes;
static struct cuda_device device;

static void need(cudaError_t rc, const char *what) {
    if (rc != cudaSuccess) {
        fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(rc));
        exit(1);
    }
}

/* ---- memory of random bits, so that the device's power is spent as with weights ---- */

static __global__ void fill_kernel(uint32_t *p, size_t n, uint32_t keep, uint32_t set) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) {
        uint32_t z = (uint32_t)i * 2654435769u + 12345u; /* mixed as by the finaliser of MurmurHash3 */
        z = (z ^ z >> 16) * 0x85ebca6bu;
        z = (z ^ z >> 13) * 0xc2b2ae35u;
        p[i] = ((z ^ z >> 16) & keep) | set;
    }
}

enum fill { FILL_BYTES, FILL_BF16, FILL_F16, FILL_F32 };

static void *memory(size_t bytes, enum fill fill) {
    /* floats of both signs between 2^-8 and 2^-7 in size, whatever their type */
    static const uint32_t keep[] = {0xffffffffu, 0x807f807fu, 0x83ff83ffu, 0x807fffffu};
    static const uint32_t set[] = {0, 0x3b803b80u, 0x1c001c00u, 0x3b800000u};
    uint32_t *p;
    size_t words = (bytes + 3) / 4;
    need(cudaMalloc((void **)&p, words * 4), "cudaMalloc");
    need(LAUNCH(fill_kernel, small_shapes ? 1u : 1024u, 256, 0, 0, p, words, keep[fill], set[fill]), "fill");
    return p;
}

static void *upload(const void *host, size_t bytes) {
    void *p;
    need(cudaMalloc(&p, bytes), "cudaMalloc");
    need(cudaMemcpy(p, host, bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
    return p;
}

/* ---- timing ---- */

struct what {
    const char *name;
    char shape[64];
    size_t rows;
    double bytes, operations;
};

/* call(i) queues the i-th piece of work; the shortest of five rounds of about 20 ms counts. */
template <typename F> static void measure(const struct what &w, F call) {
    cudaEvent_t from, to;
    need(cudaEventCreate(&from), "event");
    need(cudaEventCreate(&to), "event");
    size_t n = 1, at = 0;
    double best = INFINITY;
    need(call(at++), w.name);
    need(cudaDeviceSynchronize(), w.name);
    for (int round = 0; round < (small_shapes ? 1 : 8); round++) {
        float ms;
        need(cudaEventRecord(from, 0), "event");
        for (size_t i = 0; i < n; i++) {
            need(call(at++), w.name);
        }
        need(cudaEventRecord(to, 0), "event");
        need(cudaEventSynchronize(to), w.name);
        need(cudaEventElapsedTime(&ms, from, to), "event");
        double each = (double)ms * 1e-3 / (double)n;
        if (round >= 3) { /* those before find n, and warm up */
            best = each < best ? each : best;
        }
        double wanted = 0.02 / (each > 1e-7 ? each : 1e-7);
        n = round < 3 ? (size_t)(wanted < 1 ? 1 : wanted > 10000 ? 10000 : wanted) : n;
    }
    need(cudaEventDestroy(from), "event");
    need(cudaEventDestroy(to), "event");
    char seconds[32] = "null";
    if (!small_shapes) {
        snprintf(seconds, sizeof seconds, "%.9g", best);
    }
    printf("{\"what\": \"%s\", \"shape\": \"%s\", \"rows\": %zu, \"seconds\": %s, \"bytes\": %.0f, \"operations\": %.0f}\n", w.name,
           w.shape, w.rows, seconds, w.bytes, w.operations);
    fflush(stdout);
}

/* ---- limits ---- */

static __global__ void read_kernel(uint32_t *out, const uint4 *p, size_t n) {
    uint32_t sum = 0;
    size_t stride = (size_t)gridDim.x * blockDim.x;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += 4 * stride) {
        for (int j = 0; j < 4; j++) {
            if (i + (size_t)j * stride < n) {
                uint4 v = load_16(p + i + (size_t)j * stride);
                sum ^= v.x ^ v.y ^ v.z ^ v.w;
            }
        }
    }
    if (sum == 0x12345678u) { /* so that it must be read */
        out[0] = sum;
    }
}

/* Eight independent products a warp, `rounds` times. */
template <bool BYTES> static __global__ void mma_kernel(uint32_t *out, uint32_t seed, int rounds) {
    uint32_t a[4] = {seed + threadIdx.x, seed * 3, seed * 5, seed * 7}, b[2] = {seed * 11, seed * 13};
    int di[8][4] = {};
    float df[8][4] = {};
    for (int r = 0; r < rounds; r++) {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            if (BYTES) {
                mma_i8(di[i], a, b);
            } else {
                mma_bf16(df[i], a, b);
            }
        }
    }
    uint32_t sum = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            sum ^= BYTES ? (uint32_t)di[i][j] : bits_of(df[i][j]);
        }
    }
    if (sum == 0x12345678u) {
        out[0] = sum;
    }
}

static void limits() {
    size_t bytes = small_shapes ? 1 << 14 : (size_t)2 << 30;
    unsigned blocks = small_shapes ? 1 : (unsigned)device.sm_count * 8;
    char *a = (char *)memory(bytes, FILL_BYTES), *b = (char *)memory(bytes, FILL_BYTES);
    struct what read = {"read", "", 0, (double)bytes, 0}, copy = {"copy", "", 0, 2 * (double)bytes, 0};
    measure(read, [&](size_t) { return LAUNCH(read_kernel, blocks, 256, 0, 0, (uint32_t *)b, (const uint4 *)a, bytes / 16); });
    measure(copy, [&](size_t) { return cudaMemcpyAsync(b, a, bytes, cudaMemcpyDeviceToDevice, 0); });
    int rounds = small_shapes ? 1 : 4096;
    unsigned threads = small_shapes ? WARP : 256;
    double products = 8.0 * rounds * blocks * (threads / WARP);
    struct what i8 = {"mma_i8", "", 0, 0, products * 2 * 16 * 8 * 32}, bf16 = {"mma_bf16", "", 0, 0, products * 2 * 16 * 8 * 16};
    measure(i8, [&](size_t) { return LAUNCH((mma_kernel<true>), blocks, threads, 0, 0, (uint32_t *)a, 3u, rounds); });
    measure(bf16, [&](size_t) { return LAUNCH((mma_kernel<false>), blocks, threads, 0, 0, (uint32_t *)a, 0x3c003b80u, rounds); });
    need(cudaFree(a), "cudaFree");
    need(cudaFree(b), "cudaFree");
}

/* ---- products ---- */

/* As many copies of the matrix as no cache holds. */
struct matrices {
    struct cuda_weight w[64];
    size_t count;
};

static struct matrices matrices_make(enum dtype dtype, size_t n, size_t k) {
    struct matrices m = {};
    size_t row = dtype == DTYPE_I8 ? (k + ROWS_I8_PAD - 1) / ROWS_I8_PAD * ROWS_I8_PAD : 2 * k;
    m.count = small_shapes ? 1 : ((size_t)200 << 20) / (n * row) + 1;
    m.count = m.count > 64 ? 64 : m.count;
    for (size_t i = 0; i < m.count; i++) {
        struct cuda_weight w = {};
        w.dtype = dtype;
        w.activation = dtype == DTYPE_I8 ? ACTIVATION_I8_TOKEN : ACTIVATION_FLOAT;
        w.n = n;
        w.k = k;
        w.k_padded = row;
        w.row_bytes = row;
        w.data = memory(n * row, dtype == DTYPE_I8 ? FILL_BYTES : FILL_BF16);
        w.scales = (float *)memory(n * sizeof(float), FILL_F32);
        m.w[i] = w;
    }
    return m;
}

static void matrices_free(struct matrices *m) {
    for (size_t i = 0; i < m->count; i++) {
        need(cudaFree((void *)m->w[i].data), "cudaFree");
        need(cudaFree((void *)m->w[i].scales), "cudaFree");
    }
}

static void products_i8(size_t n, size_t k, const size_t *rows, size_t n_rows) {
    struct matrices m = matrices_make(DTYPE_I8, n, k);
    size_t most = rows[n_rows - 1], ld = m.w[0].k_padded, workspace_bytes = cuda_gemm_i8_workspace(&device, most, n, k);
    struct rows_i8 x = {(int8_t *)memory(most * ld, FILL_BYTES), ld, (float *)memory(most * sizeof(float), FILL_F32)};
    void *y = memory(most * n * 2, FILL_BF16), *workspace = memory(workspace_bytes + 16, FILL_BYTES);
    for (size_t i = 0; i < n_rows; i++) {
        size_t r = rows[i];
        struct what w = {"", "", r, (double)(n * ld + r * (ld + 2 * n)), 2.0 * (double)r * (double)n * (double)k};
        snprintf(w.shape, sizeof w.shape, "%zux%zu", n, k);
        auto part = [&](size_t at) { return cuda_part{&m.w[at % m.count], NULL, y, n, DTYPE_BF16}; };
        if (r <= CUDA_GEMV_ROWS) {
            w.name = "gemv_i8";
            measure(w, [&](size_t at) {
                struct cuda_part p = part(at);
                return cuda_gemv_i8(&device, &x, NULL, r, &p, 1, 0);
            });
        }
        w.name = "gemm_i8";
        measure(w, [&](size_t at) {
            struct cuda_part p = part(at);
            return cuda_gemm_i8(&device, &x, NULL, r, &p, workspace, workspace_bytes, 0);
        });
    }
    matrices_free(&m);
    for (void *p : {(void *)x.q, (void *)x.scales, y, workspace}) {
        need(cudaFree(p), "cudaFree");
    }
}

static void need_blas(cublasStatus_t rc, const char *what) {
    if (rc != CUBLAS_STATUS_SUCCESS) {
        fprintf(stderr, "%s: cuBLASLt says %d\n", what, (int)rc);
        exit(1);
    }
}

/* y[r][n] = x[r][k] W[n][k]^T by cuBLASLt: what a library reaches on the same shape. */
static void product_library(const struct matrices &m, const void *x, void *y, size_t r, size_t n, size_t k, struct what w) {
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t wl, xl, yl;
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t found;
    cublasOperation_t transposed = CUBLAS_OP_T;
    size_t workspace_bytes = small_shapes ? 1 << 16 : (size_t)32 << 20;
    void *workspace = memory(workspace_bytes, FILL_BYTES);
    int n_found = 0;
    float one = 1, zero = 0;
    need_blas(cublasLtCreate(&handle), "cublasLtCreate");
    need_blas(cublasLtMatmulDescCreate(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F), "product");
    need_blas(cublasLtMatmulDescSetAttribute(product, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed), "transposed");
    need_blas(cublasLtMatrixLayoutCreate(&wl, CUDA_R_16BF, k, n, (int64_t)k), "layout");
    need_blas(cublasLtMatrixLayoutCreate(&xl, CUDA_R_16BF, k, r, (int64_t)k), "layout");
    need_blas(cublasLtMatrixLayoutCreate(&yl, CUDA_R_16BF, n, r, (int64_t)n), "layout");
    need_blas(cublasLtMatmulPreferenceCreate(&preference), "preference");
    need_blas(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace_bytes,
                                                   sizeof workspace_bytes),
              "preference");
    need_blas(cublasLtMatmulAlgoGetHeuristic(handle, product, wl, xl, yl, yl, preference, 1, &found, &n_found), "heuristic");
    w.name = "cublaslt_bf16";
    measure(w, [&](size_t at) {
        need_blas(cublasLtMatmul(handle, product, &one, m.w[at % m.count].data, wl, x, xl, &zero, y, yl, y, yl, &found.algo,
                                 workspace, workspace_bytes, 0),
                  "cublasLtMatmul");
        return cudaSuccess;
    });
    need_blas(cublasLtMatmulPreferenceDestroy(preference), "preference");
    need_blas(cublasLtMatrixLayoutDestroy(wl), "layout");
    need_blas(cublasLtMatrixLayoutDestroy(xl), "layout");
    need_blas(cublasLtMatrixLayoutDestroy(yl), "layout");
    need_blas(cublasLtMatmulDescDestroy(product), "product");
    need_blas(cublasLtDestroy(handle), "handle");
    need(cudaFree(workspace), "cudaFree");
}

static void products_bf16(size_t n, size_t k, const size_t *rows, size_t n_rows) {
    struct matrices m = matrices_make(DTYPE_BF16, n, k);
    size_t most = rows[n_rows - 1];
    void *x = memory(most * k * 2, FILL_BF16), *y = memory(most * n * 2, FILL_BF16);
    for (size_t i = 0; i < n_rows; i++) {
        size_t r = rows[i];
        struct what w = {"gemv_bf16", "", r, 2.0 * (double)(n * k + r * (k + n)), 2.0 * (double)r * (double)n * (double)k};
        snprintf(w.shape, sizeof w.shape, "%zux%zu", n, k);
        if (r <= CUDA_GEMV_ROWS) {
            measure(w, [&](size_t at) {
                struct cuda_part p = {&m.w[at % m.count], NULL, y, n, DTYPE_BF16};
                return cuda_gemv_float(&device, x, k, r, &p, 1, 0);
            });
        }
        product_library(m, x, y, r, n, k, w);
    }
    matrices_free(&m);
    need(cudaFree(x), "cudaFree");
    need(cudaFree(y), "cudaFree");
}

/* ---- attention ---- */

static void attention(enum dtype dtype, size_t sequences, size_t context, size_t query, size_t heads, size_t kv_heads, size_t dim) {
    size_t block = 16, blocks_each = (context + block - 1) / block, blocks = sequences * blocks_each, rows = sequences * query;
    size_t bytes = kv_layer_bytes(dtype, blocks, block, kv_heads, dim), width = heads * dim;
    struct kv_layer kv = {memory(bytes, dtype == DTYPE_I8 ? FILL_F16 : dtype == DTYPE_BF16 ? FILL_BF16 : FILL_F16), dtype, blocks, block,
                          kv_heads, dim};
    int32_t *host = (int32_t *)malloc((blocks + 2 * sequences + 1) * sizeof *host);
    if (!host) {
        exit(1);
    }
    for (size_t i = 0; i < blocks; i++) {
        host[i] = (int32_t)((i * 7919) % blocks); /* not in order; 7919 is prime and divides none of our counts */
    }
    int32_t *begins = host + blocks, *lengths = begins + sequences + 1;
    for (size_t i = 0; i <= sequences; i++) {
        begins[i] = (int32_t)(i * query);
    }
    for (size_t i = 0; i < sequences; i++) {
        lengths[i] = (int32_t)context;
    }
    int32_t *arrays = (int32_t *)upload(host, (blocks + 2 * sequences + 1) * sizeof *host);
    size_t workspace_bytes = cuda_attention_workspace(&device, sequences, heads, kv_heads, dim, context);
    void *q = memory(rows * width * 2, FILL_BF16), *out = memory(rows * width * 2, FILL_BF16);
    void *workspace = memory(workspace_bytes + 16, FILL_BYTES);
    struct attention_args a = {};
    a.q = q;
    a.ldq = width;
    a.out = out;
    a.ldo = width;
    a.kv = &kv;
    a.block_tables = arrays;
    a.max_blocks = blocks_each;
    a.cu_seqlens = arrays + blocks;
    a.context_lens = arrays + blocks + sequences + 1;
    a.n_sequences = sequences;
    a.rows = rows;
    a.max_query = query;
    a.max_context = context;
    a.n_heads = heads;
    a.n_kv_heads = kv_heads;
    a.head_dim = dim;
    a.scale = 1 / sqrtf((float)dim);
    /* of each row's keys, on average those before half of the rows */
    double pairs = (double)rows * ((double)context - (double)(query - 1) / 2);
    struct what w = {query == 1 ? "attention_decode" : "attention_prefill", "", rows, (double)bytes + 4.0 * (double)(rows * width),
                     4.0 * pairs * (double)width};
    snprintf(w.shape, sizeof w.shape, "%zux%zu %zu/%zux%zu %s", sequences, context, heads, kv_heads, dim, dtype_info(dtype)->name);
    measure(w, [&](size_t) { return cuda_attention(&device, &a, workspace, workspace_bytes, 0); });
    free(host);
    for (void *p : {kv.data, (void *)arrays, q, out, workspace}) {
        need(cudaFree(p), "cudaFree");
    }
}

int main(int argc, char **argv) {
    small_shapes = argc > 1 && strcmp(argv[1], "--small") == 0;
    int n = 0;
    if (cudaGetDeviceCount(&n) != cudaSuccess || n == 0) {
        fprintf(stderr, "no CUDA device\n");
        return 77;
    }
    cudaDeviceProp p;
    need(cudaGetDeviceProperties(&p, 0), "cudaGetDeviceProperties");
    device.sm_count = p.multiProcessorCount;
    device.shared_optin = p.sharedMemPerBlockOptin;
    device.compute = p.major * 10 + p.minor;
    printf("{\"device\": \"%s\", \"compute\": %d, \"multiprocessors\": %d, \"memory\": %zu}\n", p.name, device.compute, device.sm_count,
           (size_t)p.totalGlobalMem);
    need(cuda_prepare_gemm_i8(&device), "cuda_prepare_gemm_i8");
    need(cuda_prepare_gemm_float(&device), "cuda_prepare_gemm_float");
    need(cuda_prepare_attention(&device), "cuda_prepare_attention");
    limits();
    static const size_t rows[] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 1024, 4096}, few[] = {1, 3, 17};
    /* of the 7B: q, k and v; output; gate and up; down */
    static const size_t shapes[][2] = {{12288, 4096}, {4096, 4096}, {22016, 4096}, {4096, 11008}}, tiny[][2] = {{48, 96}};
    for (size_t i = 0; i < (small_shapes ? 1 : sizeof shapes / sizeof *shapes); i++) {
        const size_t *s = small_shapes ? tiny[i] : shapes[i], *r = small_shapes ? few : rows;
        size_t n_rows = small_shapes ? sizeof few / sizeof *few : sizeof rows / sizeof *rows;
        products_i8(s[0], s[1], r, n_rows);
        products_bf16(s[0], s[1], r, n_rows);
    }
    for (enum dtype t : {DTYPE_F16, DTYPE_I8}) {
        if (small_shapes) {
            attention(t, 2, 40, 1, 4, 2, 64);
            attention(t, 1, 40, 24, 4, 2, 64);
            continue;
        }
        attention(t, 1, 8192, 1, 32, 8, 128); /* the 8B's heads, then the 7B's */
        attention(t, 32, 1024, 1, 32, 8, 128);
        attention(t, 32, 8192, 1, 32, 8, 128);
        attention(t, 256, 1024, 1, 32, 8, 128);
        attention(t, 32, 1024, 1, 32, 32, 128);
        attention(t, 1, 2048, 2048, 32, 8, 128);
        attention(t, 1, 8192, 8192, 32, 8, 128);
    }
    return 0;
}
