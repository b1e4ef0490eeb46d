/*
 * What a kernel may use: every PTX instruction, warp and block operation goes through this header, so that the same .cu
 * files run on a GPU and, compiled by the host compiler with INFERD_EMU, on the SIMT emulator of tests/emu, which brings
 * its own twin of everything below (tests/emu/device.h).
 *
 * Rules of the kernels (the emulator enforces what it can)
 *  - Every warp operation is called by all 32 lanes; no return before a barrier that others wait at.
 *  - Shared memory is one structure a kernel, declared by SHARED alone; its size is given at launch.
 *  - Vector access is by load_16 / store_16, 16-byte aligned.
 *  - Sums are taken in a fixed order. No <<<>>>: LAUNCH.
 *  - nvcc does not fuse a * b + c by itself here (-fmad=false), for then a sum could have other bits in another kernel:
 *    say fma_f32 wherever one rounding is meant, which is what is fast.
 *  - Launch geometry is computed in plain C++ outside of kernels.
 */
#ifndef INFERD_CUDA_DEVICE_CUH
#define INFERD_CUDA_DEVICE_CUH

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define WARP 32

#ifdef INFERD_EMU
#include "device.h" /* tests/emu */
#else
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

/* The dynamic shared memory of the block, seen as one T. */
#define SHARED(T, name)                                                                                                \
    extern __shared__ __align__(128) unsigned char shared_bytes[];                                                     \
    T &name = *reinterpret_cast<T *>(shared_bytes)
/* Between arrays of that structure: nothing on a GPU; the emulator checks that nobody writes there. */
#define RED_ZONE(n)

/* Of a kernel whose blocks wait for those of other devices: the ranks of `key` launch it, each its own, as often as one another, and
 * all of its blocks fit on the device at once. The emulator runs all ranks' at the same time. */
#define LAUNCH_PEERS(kernel, key, rank, ranks, grid, block, shared, stream, ...)                                       \
    LAUNCH(kernel, grid, block, shared, stream, __VA_ARGS__)

/* kernel may hold commas in brackets: LAUNCH((f<a, b>), grid, block, shared, stream, arguments...). A cudaError_t. */
#define LAUNCH(kernel, grid, block, shared, stream, ...)                                                               \
    (kernel<<<(grid), (block), (shared), (stream)>>>(__VA_ARGS__), cudaGetLastError())

static __device__ __forceinline__ void block_sync() {
    __syncthreads();
}
static __device__ __forceinline__ void warp_sync() {
    __syncwarp();
}
template <typename T> static __device__ __forceinline__ T warp_shfl(T v, int lane) {
    return __shfl_sync(0xffffffffu, v, lane);
}
template <typename T> static __device__ __forceinline__ T warp_shfl_xor(T v, int mask) {
    return __shfl_xor_sync(0xffffffffu, v, mask);
}
template <typename T> static __device__ __forceinline__ T warp_shfl_down(T v, unsigned delta) {
    return __shfl_down_sync(0xffffffffu, v, delta);
}
template <typename T> static __device__ __forceinline__ T warp_shfl_up(T v, unsigned delta) {
    return __shfl_up_sync(0xffffffffu, v, delta);
}
static __device__ __forceinline__ unsigned warp_ballot(bool p) {
    return __ballot_sync(0xffffffffu, p);
}

/* c + sum of four products of signed bytes */
static __device__ __forceinline__ int dot_i8(uint32_t a, uint32_t b, int c) {
    return __dp4a((int)a, (int)b, c);
}
static __device__ __forceinline__ uint32_t byte_permute(uint32_t a, uint32_t b, uint32_t selector) {
    return __byte_perm(a, b, selector);
}

/* Flags that devices show one another: what was written before store_flag is seen behind a load_flag that finds it (PTX ISA, memory
 * consistency: release and acquire at the scope of the system; of a whole block with fence_system and a barrier in front). */
static __device__ __forceinline__ void fence_system() {
    __threadfence_system();
}
static __device__ __forceinline__ void store_flag(uint32_t *p, uint32_t v) {
    asm volatile("st.release.sys.global.u32 [%0], %1;\n" ::"l"(p), "r"(v) : "memory");
}
static __device__ __forceinline__ uint32_t load_flag(const uint32_t *p) {
    uint32_t v;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];\n" : "=r"(v) : "l"(p) : "memory");
    return v;
}
/* Between looks at a flag. */
static __device__ __forceinline__ void spin() {
}

/* 16 bytes of global memory that nobody writes while the kernel runs. */
static __device__ __forceinline__ uint4 load_16(const void *p) {
    return __ldg((const uint4 *)p);
}
static __device__ __forceinline__ void store_16(void *p, uint4 v) { /* one instruction, which *p = v need not become */
    __stwb((uint4 *)p, v);
}

/* 16 bytes from global to shared memory, asynchronously; zeros where !valid (p must still be a legal address). */
static __device__ __forceinline__ void async_copy_16(void *shared, const void *p, bool valid) {
    unsigned at = (unsigned)__cvta_generic_to_shared(shared);
    int n = valid ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(at), "l"(p), "r"(n));
}
static __device__ __forceinline__ void async_commit() {
    asm volatile("cp.async.commit_group;\n");
}
/* Until at most N of this thread's groups are under way. Others see the bytes after a block_sync. */
template <int N> static __device__ __forceinline__ void async_wait() {
    asm volatile("cp.async.wait_group %0;\n" ::"n"(N) : "memory"); /* what is read behind it is not read before */
}

/* Fragments of 8x8 matrices of 16-bit elements (or 8x16 of bytes): lanes 8i .. 8i+7 give the addresses of the rows of
 * matrix i, 16 bytes each, in shared memory (PTX ISA, ldmatrix). */
static __device__ __forceinline__ void load_matrix_x4(uint32_t (&r)[4], const void *row) {
    unsigned at = (unsigned)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at));
}
static __device__ __forceinline__ void load_matrix_x2(uint32_t (&r)[2], const void *row) {
    unsigned at = (unsigned)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];\n" : "=r"(r[0]), "=r"(r[1]) : "r"(at));
}
static __device__ __forceinline__ void load_matrix_x4_transposed(uint32_t (&r)[4], const void *row) {
    unsigned at = (unsigned)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at));
}
static __device__ __forceinline__ void load_matrix_x2_transposed(uint32_t (&r)[2], const void *row) {
    unsigned at = (unsigned)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];\n" : "=r"(r[0]), "=r"(r[1]) : "r"(at));
}

/* d += a b, fragments as PTX ISA has them for mma.m16n8k32 (bytes) and mma.m16n8k16 (16-bit, sums in F32). */
static __device__ __forceinline__ void mma_i8(int (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};\n"
                 : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
static __device__ __forceinline__ void mma_f16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};\n"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
static __device__ __forceinline__ void mma_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};\n"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* Two 16-bit elements in one register, the first in the low half; to nearest even. */
static __device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
    __nv_bfloat162 v = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<uint32_t *>(&v);
}
static __device__ __forceinline__ uint32_t pack_f16(float low, float high) {
    __half2 v = __floats2half2_rn(low, high);
    return *reinterpret_cast<uint32_t *>(&v);
}
/* On such pairs, element by element, each result rounded to nearest even. */
static __device__ __forceinline__ uint32_t sub_f16x2(uint32_t a, uint32_t b) {
    __half2 v = __hsub2(*reinterpret_cast<__half2 *>(&a), *reinterpret_cast<__half2 *>(&b));
    return *reinterpret_cast<uint32_t *>(&v);
}
static __device__ __forceinline__ uint32_t mul_f16x2(uint32_t a, uint32_t b) { /* never fused with a subtraction */
    __half2 v = __hmul2_rn(*reinterpret_cast<__half2 *>(&a), *reinterpret_cast<__half2 *>(&b));
    return *reinterpret_cast<uint32_t *>(&v);
}
/* Wrappers of what is an instruction only on a GPU. fma is one rounding; the others IEEE, to nearest even. */
static __device__ __forceinline__ float fma_f32(float a, float b, float c) {
    return __fmaf_rn(a, b, c);
}
static __device__ __forceinline__ float mul_f32(float a, float b) { /* never fused with an addition */
    return __fmul_rn(a, b);
}
static __device__ __forceinline__ float add_f32(float a, float b) {
    return __fadd_rn(a, b);
}
static __device__ __forceinline__ float exp2_fast(float x) { /* 2 ulp: ex2.approx */
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
#endif /* INFERD_EMU */

/* Host code. Dynamic shared memory of a block beyond 48 KB is asked for, once for each kernel and device. Where the
 * device (which gives at most `most`) has not so much, launching will say so. */
template <typename KERNEL> static inline cudaError_t allow_shared(KERNEL kernel, size_t bytes, size_t most) {
    return bytes <= (48u << 10) || bytes > most
               ? cudaSuccess
               : cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
}

typedef __nv_bfloat16 bf16;
typedef __half f16;

static __device__ __forceinline__ float f32_of(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
static __device__ __forceinline__ uint32_t bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static __device__ __forceinline__ float to_f32(bf16 x) {
    return __bfloat162float(x);
}
static __device__ __forceinline__ float to_f32(f16 x) {
    return __half2float(x);
}
static __device__ __forceinline__ float to_f32(float x) {
    return x;
}
template <typename T> static __device__ __forceinline__ T from_f32(float x);
template <> __device__ __forceinline__ bf16 from_f32<bf16>(float x) {
    return __float2bfloat16_rn(x);
}
template <> __device__ __forceinline__ f16 from_f32<f16>(float x) {
    return __float2half_rn(x);
}
template <> __device__ __forceinline__ float from_f32<float>(float x) {
    return x;
}

#endif
