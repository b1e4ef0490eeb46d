/*
 * The twin of engine/backend/cuda/device.cuh for the host compiler: keywords, built-in variables, intrinsics and the
 * same wrappers with the same signatures. Definitions are those of the PTX ISA; what needs several threads is in
 * machine.cc.
 */
#ifndef EMU_DEVICE_H
#define EMU_DEVICE_H

#include "cuda_bf16.h"
#include "cuda_fp16.h"
#include "emu_launch.h"
#include "machine_kernel.h"
#include <cuda_runtime.h>

#include <emmintrin.h>
#include <math.h>
#include <new>
#include <string.h>
#include <tuple>
#include <type_traits>
#include <utility>

#define __global__
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __align__(n) alignas(n)
#define __launch_bounds__(...)
#define __grid_constant__
#define __restrict__ __restrict
#define __shared__ static_assert(false, "shared memory is declared by SHARED");

#define threadIdx (emu_self->index)
#define blockIdx (emu_here.index)
#define blockDim (emu_here.block_dim)
#define gridDim (emu_here.grid_dim)
#define warpSize 32

/* ---- shared memory ---- */

/* At least n bytes that nobody may write. A multiple of 128, so that members behind it lie as on a GPU. */
template <size_t N> struct emu_red_zone_bytes {
    unsigned char bytes[(N + 127) / 128 * 128];
    emu_red_zone_bytes() {
        emu_red_zone(bytes, sizeof bytes);
    }
};
#define EMU_JOIN_(a, b) a##b
#define EMU_JOIN(a, b) EMU_JOIN_(a, b)
#define RED_ZONE(n) emu_red_zone_bytes<(n)> EMU_JOIN(red_zone_, __COUNTER__);

template <typename T> void emu_build_shared(void *p) {
    new (p) T; /* default-initialised: its plain members keep the pattern that lies there */
}
template <typename T> static inline T *emu_shared_as() {
    return static_cast<T *>(emu_shared(sizeof(T), alignof(T), emu_build_shared<T>));
}
#define SHARED(T, name) T &name = *emu_shared_as<T>()

/* ---- launches ---- */

template <typename... P, typename... A>
static inline cudaError_t emu_launch(const char *name, void (*kernel)(P...), dim3 grid, dim3 block, size_t shared,
                                     cudaStream_t stream, A &&...arguments) {
    static_assert(sizeof...(P) == sizeof...(A), "a kernel is launched with all of its arguments");
    static_assert((std::is_trivially_copyable_v<P> && ...), "arguments of a kernel are copied as bytes");
    static_assert((sizeof(P) + ... + 0) <= 4096, "arguments of a kernel are 4 KB at most");
    std::tuple<P...> values(std::forward<A>(arguments)...);
    emu_kernel launch{name, reinterpret_cast<const void *>(kernel), grid, block, shared, 0, [kernel, values]() {
                          std::apply(kernel, values);
                      }};
    launch.shared_allowed = emu_shared_allowed(stream, launch.function);
    emu_limits limits = emu_stream_limits(stream);
    cudaError_t error = emu_check_launch(&launch, &limits);
    if (error != cudaSuccess) {
        return error;
    }
    return emu_enqueue(stream, name,
                       [launch = std::move(launch)](int device) { return emu_run_kernel(&launch, device); });
}
#define LAUNCH(kernel, grid, block, shared, stream, ...)                                                               \
    emu_launch(#kernel, kernel, (grid), (block), (shared), (stream), ##__VA_ARGS__)

template <typename... P, typename... A>
static inline cudaError_t emu_launch_peers(const char *name, void (*kernel)(P...), const void *key, unsigned rank, unsigned ranks,
                                           dim3 grid, dim3 block, size_t shared, cudaStream_t stream, A &&...arguments) {
    std::tuple<P...> values(std::forward<A>(arguments)...);
    emu_kernel launch{name, reinterpret_cast<const void *>(kernel), grid, block, shared, 0, [kernel, values]() {
                          std::apply(kernel, values);
                      }};
    launch.in_order = true;
    launch.shared_allowed = emu_shared_allowed(stream, launch.function);
    emu_limits limits = emu_stream_limits(stream);
    cudaError_t error = emu_check_launch(&launch, &limits);
    return error != cudaSuccess ? error : emu_enqueue_peers(stream, name, key, rank, ranks, launch);
}
#define LAUNCH_PEERS(kernel, key, rank, ranks, grid, block, shared, stream, ...)                                       \
    emu_launch_peers(#kernel, kernel, (key), (rank), (ranks), (grid), (block), (shared), (stream), ##__VA_ARGS__)

static inline void fence_system() {
}
static inline void store_flag(uint32_t *p, uint32_t v) {
    __atomic_store_n(p, v, __ATOMIC_RELEASE);
}
static inline uint32_t load_flag(const uint32_t *p) {
    return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}
static inline void spin() {
    emu_let_others_run();
}

/* ---- barriers, warps ---- */

static inline void block_sync() {
    emu_block_sync();
}
static inline void warp_sync() {
    emu_warp_sync();
}
template <typename T> static inline const uint64_t *emu_exchange(unsigned operation, unsigned operand, T v) {
    static_assert(std::is_trivially_copyable_v<T> && (sizeof(T) == 2 || sizeof(T) == 4 || sizeof(T) == 8),
                  "what shuffles carry");
    uint64_t bits = 0;
    memcpy(&bits, &v, sizeof v);
    return emu_warp_exchange(operation | (operand & 0xffu) << 8 | (unsigned)sizeof(T) << 16, bits);
}
template <typename T> static inline T emu_exchanged(const uint64_t *slots, unsigned lane) {
    T v;
    memcpy(&v, &slots[lane], sizeof v);
    return v;
}
template <typename T> static inline T warp_shfl(T v, int lane) {
    const uint64_t *all = emu_exchange(EMU_SHFL, 0, v); /* the source may differ from lane to lane */
    return emu_exchanged<T>(all, (unsigned)lane & 31u);
}
template <typename T> static inline T warp_shfl_xor(T v, int mask) {
    const uint64_t *all = emu_exchange(EMU_SHFL_XOR, (unsigned)mask, v);
    unsigned from = emu_self->lane ^ (unsigned)mask;
    return emu_exchanged<T>(all, from < 32 ? from : emu_self->lane);
}
template <typename T> static inline T warp_shfl_down(T v, unsigned delta) {
    const uint64_t *all = emu_exchange(EMU_SHFL_DOWN, delta, v);
    unsigned from = emu_self->lane + delta;
    return emu_exchanged<T>(all, from < 32 ? from : emu_self->lane);
}
template <typename T> static inline T warp_shfl_up(T v, unsigned delta) {
    const uint64_t *all = emu_exchange(EMU_SHFL_UP, delta, v);
    return emu_exchanged<T>(all, emu_self->lane >= delta ? emu_self->lane - delta : emu_self->lane);
}
static inline unsigned warp_ballot(bool p) {
    return emu_warp_ballot(p);
}

/* ---- integers ---- */

/* What takes the time of a GEMV: the odd bytes, then the even ones, as pairs of 16 bits. Sums wrap, as those of dp4a. */
static inline int dot_i8(uint32_t a, uint32_t b, int c) {
    __m128i x = _mm_cvtsi32_si128((int)a), y = _mm_cvtsi32_si128((int)b);
    __m128i odd = _mm_madd_epi16(_mm_srai_epi16(x, 8), _mm_srai_epi16(y, 8));
    __m128i even = _mm_madd_epi16(_mm_srai_epi16(_mm_slli_epi16(x, 8), 8), _mm_srai_epi16(_mm_slli_epi16(y, 8), 8));
    return (int)((uint32_t)c + (uint32_t)_mm_cvtsi128_si32(_mm_add_epi32(odd, even)));
}
static inline uint32_t byte_permute(uint32_t a, uint32_t b, uint32_t selector) {
    uint64_t both = (uint64_t)b << 32 | a;
    uint32_t result = 0;
    for (int i = 0; i < 4; i++) {
        uint32_t nibble = selector >> 4 * i & 15u, byte = (uint32_t)(both >> 8 * (nibble & 7u)) & 255u;
        if (nibble & 8u) { /* the byte's sign, spread */
            byte = byte & 128u ? 255u : 0u;
        }
        result |= byte << 8 * i;
    }
    return result;
}

/* ---- memory ---- */

/* Checked kernels (checked_access.cc) tell of loads by the cache that sees no writes of the grid. */
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define EMU_CONSTANT(p, size) emu_constant_load(p, size)
#endif
#elif defined(__SANITIZE_THREAD__)
#define EMU_CONSTANT(p, size) emu_constant_load(p, size)
#endif
#ifndef EMU_CONSTANT
#define EMU_CONSTANT(p, size) ((void)0)
#endif

static inline void emu_check_aligned(const char *operation, const void *p, size_t alignment) {
    if (__builtin_expect(((uintptr_t)p & (alignment - 1)) != 0, 0)) {
        emu_misaligned(operation, p, alignment);
    }
}
static inline uint4 load_16(const void *p) {
    emu_check_aligned("load_16", p, 16);
    EMU_CONSTANT(p, 16);
    uint4 v;
    memcpy(&v, p, 16);
    return v;
}
static inline void store_16(void *p, uint4 v) {
    emu_check_aligned("store_16", p, 16);
    memcpy(p, &v, 16);
}
static inline void async_copy_16(void *shared, const void *p, bool valid) {
    emu_async_copy_16(shared, p, valid);
}
static inline void async_commit() {
    emu_async_commit();
}
template <int N> static inline void async_wait() {
    emu_async_wait(N);
}

static inline void load_matrix_x4(uint32_t (&r)[4], const void *row) {
    emu_load_matrix(EMU_LDMATRIX_X4, r, row);
}
static inline void load_matrix_x2(uint32_t (&r)[2], const void *row) {
    emu_load_matrix(EMU_LDMATRIX_X2, r, row);
}
static inline void load_matrix_x4_transposed(uint32_t (&r)[4], const void *row) {
    emu_load_matrix(EMU_LDMATRIX_X4_TRANSPOSED, r, row);
}
static inline void load_matrix_x2_transposed(uint32_t (&r)[2], const void *row) {
    emu_load_matrix(EMU_LDMATRIX_X2_TRANSPOSED, r, row);
}
static inline void mma_i8(int (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    emu_mma(EMU_MMA_I8, d, a, b);
}
static inline void mma_f16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    emu_mma(EMU_MMA_F16, d, a, b);
}
static inline void mma_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    emu_mma(EMU_MMA_BF16, d, a, b);
}

/* ---- numbers ---- */

static inline uint32_t pack_bf16(float low, float high) {
    return (uint32_t)emu_f32_to_bf16(high) << 16 | emu_f32_to_bf16(low);
}
static inline uint32_t pack_f16(float low, float high) {
    return (uint32_t)emu_f32_to_f16(high) << 16 | emu_f32_to_f16(low);
}
static inline uint32_t sub_f16x2(uint32_t a, uint32_t b) { /* F32 has bits enough for one rounding in effect */
    return pack_f16(emu_f16_to_f32((uint16_t)a) - emu_f16_to_f32((uint16_t)b),
                    emu_f16_to_f32((uint16_t)(a >> 16)) - emu_f16_to_f32((uint16_t)(b >> 16)));
}
static inline uint32_t mul_f16x2(uint32_t a, uint32_t b) {
    return pack_f16(emu_f16_to_f32((uint16_t)a) * emu_f16_to_f32((uint16_t)b),
                    emu_f16_to_f32((uint16_t)(a >> 16)) * emu_f16_to_f32((uint16_t)(b >> 16)));
}
static inline float fma_f32(float a, float b, float c) {
    return fmaf(a, b, c);
}
static inline float mul_f32(float a, float b) {
    return a * b; /* the emulator is compiled with -ffp-contract=off */
}
static inline float add_f32(float a, float b) {
    return a + b;
}
static inline float exp2_fast(float x) { /* subnormal results and arguments are zeros, as with .ftz */
    float y = exp2f(fabsf(x) < 0x1p-126f ? 0.0f : x);
    return y < 0x1p-126f ? 0.0f : y;
}

#include "intrinsics.h"

#endif
