/* Launches of kernels, counted on their way to the runtime, by what nvcc's stubs of CUDA 13 call. */
#include "emu.h"

uint64_t launches;

cudaError_t __real___cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream);
cudaError_t __wrap___cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream);

cudaError_t __wrap___cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream) {
    launches++;
    return __real___cudaLaunchKernel(kernel, grid, block, arguments, shared, stream);
}
