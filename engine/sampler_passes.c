#include "sampler_passes.h"

#include "sampler_math.h"

/*
 * Each body is written once and inlined into one function an instruction set. __builtin_fmaf is one instruction where
 * the target has it and the C library's exactly rounded fmaf where not, so both give the same bits.
 */
SAMPLER_INLINE uint32_t max_body(const float *z, size_t n, uint32_t *infinite) {
    uint32_t max = 0, bad = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t key = sampler_key(z[i]), bits;
        memcpy(&bits, &z[i], sizeof bits);
        bad |= (bits & 0x7f800000u) == 0x7f800000u; /* exponent of NaN and infinity */
        max = key > max ? key : max;
    }
    *infinite = bad;
    return max;
}

SAMPLER_INLINE void exp_body(float *e, const float *z, size_t n, float z_max, float scale) {
    for (size_t i = 0; i < n; i++) {
        e[i] = sampler_exp2((z[i] - z_max) * scale);
    }
}

#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) static uint32_t max_avx2(const float *z, size_t n, uint32_t *infinite) {
    return max_body(z, n, infinite);
}

__attribute__((target("avx2,fma"))) static void exp_avx2(float *e, const float *z, size_t n, float z_max, float scale) {
    exp_body(e, z, n, z_max, scale);
}

static bool have_avx2(void) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}
#else
#define max_avx2 max_body
#define exp_avx2 exp_body

static bool have_avx2(void) {
    return false;
}
#endif

static uint32_t max_any(const float *z, size_t n, uint32_t *infinite) {
    return have_avx2() ? max_avx2(z, n, infinite) : max_body(z, n, infinite);
}

bool sampler_max_finite(const float *z, size_t n, uint32_t *max_key) {
    uint32_t infinite;
    *max_key = max_any(z, n, &infinite);
    return infinite == 0;
}

void sampler_max(const float *z, size_t n, uint32_t *max_key) {
    uint32_t infinite;
    *max_key = max_any(z, n, &infinite);
}

void sampler_exp(float *e, const float *z, size_t n, float z_max, float scale) {
    if (have_avx2()) {
        exp_avx2(e, z, n, z_max, scale);
    } else {
        exp_body(e, z, n, z_max, scale);
    }
}
