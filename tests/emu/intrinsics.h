/* Intrinsics and overloads of CUDA C++ that kernels use by their real names. Included by device.h. */
#ifndef EMU_INTRINSICS_H
#define EMU_INTRINSICS_H

template <typename T> static inline T __ldg(const T *p) {
    emu_check_aligned("__ldg", p, alignof(T));
    EMU_CONSTANT(p, sizeof(T));
    return *p;
}

template <typename To, typename From> static inline To emu_bits(From v) {
    static_assert(sizeof(To) == sizeof(From), "same size");
    To to;
    memcpy(&to, &v, sizeof to);
    return to;
}
static inline unsigned __float_as_uint(float x) {
    return emu_bits<unsigned>(x);
}
static inline int __float_as_int(float x) {
    return emu_bits<int>(x);
}
static inline float __uint_as_float(unsigned x) {
    return emu_bits<float>(x);
}
static inline float __int_as_float(int x) {
    return emu_bits<float>(x);
}

/* ---- numbers ---- */

#define EMU_MIN_MAX(T)                                                                                                 \
    static inline T min(T a, T b) {                                                                                    \
        return b < a ? b : a;                                                                                          \
    }                                                                                                                  \
    static inline T max(T a, T b) {                                                                                    \
        return a < b ? b : a;                                                                                          \
    }
EMU_MIN_MAX(int)
EMU_MIN_MAX(unsigned)
EMU_MIN_MAX(long)
EMU_MIN_MAX(unsigned long)
EMU_MIN_MAX(long long)
EMU_MIN_MAX(unsigned long long)
#undef EMU_MIN_MAX
static inline float min(float a, float b) {
    return fminf(a, b);
}
static inline float max(float a, float b) {
    return fmaxf(a, b);
}
static inline double min(double a, double b) {
    return fmin(a, b);
}
static inline double max(double a, double b) {
    return fmax(a, b);
}

static inline float emu_rsqrtf(float x) {
    return 1.0f / sqrtf(x);
}
static inline float __frsqrt_rn(float x) {
    return (float)(1.0 / sqrt((double)x));
}
static inline float __frcp_rn(float x) {
    return 1.0f / x;
}
static inline float __fsqrt_rn(float x) {
    return sqrtf(x);
}
static inline float __fadd_rn(float a, float b) {
    return a + b;
}
static inline float __fsub_rn(float a, float b) {
    return a - b;
}
static inline float __fmul_rn(float a, float b) {
    return a * b;
}
static inline float __fdiv_rn(float a, float b) {
    return a / b;
}
static inline float __fmaf_rn(float a, float b, float c) {
    return fmaf(a, b, c);
}
static inline float __fdividef(float a, float b) {
    return a / b;
}
/* Macros: libc declares some of these names for itself. */
#define __expf(x) expf(x)
#define __exp2f(x) exp2f(x)
#define __logf(x) logf(x)
#define __log2f(x) log2f(x)
#define __sinf(x) sinf(x)
#define __cosf(x) cosf(x)
#define __powf(x, y) powf(x, y)
#define rsqrtf(x) emu_rsqrtf(x)
static inline float __saturatef(float x) {
    return x >= 1.0f ? 1.0f : x > 0.0f ? x : 0.0f;
}

/* Conversions saturate on a GPU (NaN: 0), where C++ has no meaning. */
template <typename T> static inline T emu_to_integer(float x) {
    if (x != x) {
        return 0;
    }
    constexpr T low = std::is_signed_v<T> ? (T)((T)1 << (8 * sizeof(T) - 1)) : (T)0, high = (T)~low;
    const float end = std::is_signed_v<T> ? ldexpf(1.0f, 8 * sizeof(T) - 1) : ldexpf(1.0f, 8 * sizeof(T));
    return x >= end ? high : x < (float)low ? low : (T)x;
}
static inline int __float2int_rn(float x) {
    return emu_to_integer<int>(rintf(x));
}
static inline int __float2int_rz(float x) {
    return emu_to_integer<int>(truncf(x));
}
static inline int __float2int_rd(float x) {
    return emu_to_integer<int>(floorf(x));
}
static inline int __float2int_ru(float x) {
    return emu_to_integer<int>(ceilf(x));
}
static inline unsigned __float2uint_rn(float x) {
    return emu_to_integer<unsigned>(rintf(x));
}
static inline unsigned __float2uint_rz(float x) {
    return emu_to_integer<unsigned>(truncf(x));
}
static inline float __int2float_rn(int x) {
    return (float)x;
}
static inline float __uint2float_rn(unsigned x) {
    return (float)x;
}

static inline int __popc(unsigned x) {
    return __builtin_popcount(x);
}
static inline int __clz(int x) {
    return x ? __builtin_clz((unsigned)x) : 32;
}
static inline int __clzll(long long x) {
    return x ? __builtin_clzll((unsigned long long)x) : 64;
}
static inline int __ffs(int x) {
    return __builtin_ffs(x);
}
static inline unsigned __brev(unsigned x) {
    unsigned r = 0;
    for (int i = 0; i < 32; i++) {
        r |= (x >> i & 1u) << (31 - i);
    }
    return r;
}
static inline unsigned __umulhi(unsigned a, unsigned b) {
    return (unsigned)((unsigned long long)a * b >> 32);
}
static inline int __mulhi(int a, int b) {
    return (int)((long long)a * b >> 32);
}
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}
static inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
    return (unsigned)(((unsigned long long)high << 32 | low) << (shift & 31u) >> 32);
}
static inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
    return (unsigned)(((unsigned long long)high << 32 | low) >> (shift & 31u));
}

/* ---- atomics: relaxed, as on a GPU; the old value is returned ---- */

template <typename T, typename F> static inline T emu_atomic(T *p, F &&change) {
    emu_check_aligned("an atomic operation", p, sizeof(T));
    T old, next;
    __atomic_load(p, &old, __ATOMIC_RELAXED);
    do {
        next = change(old);
    } while (!__atomic_compare_exchange(p, &old, &next, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return old;
}
#define EMU_ATOMIC(name, T, formula)                                                                                   \
    static inline T name(T *p, T v) {                                                                                  \
        return emu_atomic(p, [v]([[maybe_unused]] T old) { return (T)(formula); });                                    \
    }
EMU_ATOMIC(atomicAdd, int, (unsigned)old + (unsigned)v)
EMU_ATOMIC(atomicAdd, unsigned, old + v)
EMU_ATOMIC(atomicAdd, unsigned long long, old + v)
EMU_ATOMIC(atomicAdd, float, old + v)
EMU_ATOMIC(atomicSub, int, (unsigned)old - (unsigned)v)
EMU_ATOMIC(atomicSub, unsigned, old - v)
EMU_ATOMIC(atomicMax, int, old < v ? v : old)
EMU_ATOMIC(atomicMax, unsigned, old < v ? v : old)
EMU_ATOMIC(atomicMax, unsigned long long, old < v ? v : old)
EMU_ATOMIC(atomicMin, int, v < old ? v : old)
EMU_ATOMIC(atomicMin, unsigned, v < old ? v : old)
EMU_ATOMIC(atomicMin, unsigned long long, v < old ? v : old)
EMU_ATOMIC(atomicExch, int, v)
EMU_ATOMIC(atomicExch, unsigned, v)
EMU_ATOMIC(atomicExch, float, v)
EMU_ATOMIC(atomicOr, unsigned, old | v)
EMU_ATOMIC(atomicAnd, unsigned, old &v)
EMU_ATOMIC(atomicXor, unsigned, old ^ v)
EMU_ATOMIC(atomicInc, unsigned, old >= v ? 0u : old + 1u)
#undef EMU_ATOMIC
/* atomicMax of floats does not exist on a GPU: kernels compare bits. */
template <typename T> static inline T atomicCAS(T *p, T expected, T desired) {
    emu_check_aligned("atomicCAS", p, sizeof(T));
    __atomic_compare_exchange(p, &expected, &desired, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return expected;
}
static inline void __threadfence() {
    __atomic_signal_fence(__ATOMIC_SEQ_CST); /* one OS thread runs all of a device */
}
static inline void __threadfence_block() {
    __atomic_signal_fence(__ATOMIC_SEQ_CST); /* one OS thread runs all of a device */
}
static inline void __threadfence_system() {
    __atomic_signal_fence(__ATOMIC_SEQ_CST); /* one OS thread runs all of a device */
}

#endif
