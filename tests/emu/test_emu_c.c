/* The headers of the emulator from C, by the flags of the daemon: a copy there and back, and a product. */
#include "cublasLt.h"
#include "cuda_runtime.h"
#include "emu.h"
#include "machine.h"

/* 0, or the line that failed. */
int emu_from_c(void);

#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        if ((int)(call) != 0) {                                                                                        \
            return __LINE__;                                                                                           \
        }                                                                                                              \
    } while (0)

static int product(cudaStream_t stream, const int8_t *a, const int8_t *b, int32_t *d) {
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t la, lb, ld;
    cublasOperation_t transposed = CUBLAS_OP_T;
    int32_t one = 1, zero = 0;
    TRY(cublasLtCreate(&handle));
    TRY(cublasLtMatmulDescCreate(&desc, CUBLAS_COMPUTE_32I, CUDA_R_32I));
    TRY(cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed));
    TRY(cublasLtMatrixLayoutCreate(&la, CUDA_R_8I, 4, 4, 4));
    TRY(cublasLtMatrixLayoutCreate(&lb, CUDA_R_8I, 4, 1, 4));
    TRY(cublasLtMatrixLayoutCreate(&ld, CUDA_R_32I, 4, 1, 4));
    TRY(cublasLtMatmul(handle, desc, &one, a, la, b, lb, &zero, d, ld, d, ld, NULL, NULL, 0, stream));
    TRY(cublasLtMatrixLayoutDestroy(ld));
    TRY(cublasLtMatrixLayoutDestroy(lb));
    TRY(cublasLtMatrixLayoutDestroy(la));
    TRY(cublasLtMatmulDescDestroy(desc));
    TRY(cublasLtDestroy(handle));
    return 0;
}

int emu_from_c(void) {
    static const int8_t a[16] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}, b[4] = {1, -1, 2, -2};
    static const int32_t expected[4] = {-3, -3, -3, -3};
    dim3 grid = {1, 2, 3};
    float4 vector = {0, 0, 0, 0};
    int32_t d[4] = {0};
    int8_t *on_device;
    int32_t *result;
    cudaStream_t stream;
    (void)grid;
    (void)vector;
    TRY(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    TRY(cudaMalloc((void **)&on_device, 20));
    TRY(cudaMalloc((void **)&result, sizeof d));
    TRY(cudaMemcpyAsync(on_device, a, 16, cudaMemcpyHostToDevice, stream));
    TRY(cudaMemcpyAsync(on_device + 16, b, 4, cudaMemcpyHostToDevice, stream));
    int line = product(stream, on_device, on_device + 16, result);
    if (line != 0) {
        return line;
    }
    TRY(cudaMemcpyAsync(d, result, sizeof d, cudaMemcpyDeviceToHost, stream));
    TRY(cudaStreamSynchronize(stream));
    for (int i = 0; i < 4; i++) {
        TRY(d[i] != expected[i]);
    }
    TRY(cudaFree(result));
    TRY(cudaFree(on_device));
    TRY(cudaStreamDestroy(stream));
    return 0;
}
