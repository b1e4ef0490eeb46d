#include "sampler_passes.h"

#include "sampler_math.h"

/*
 * Each body is written once and inlined into one function an instruction set. __builtin_fmaf is one instruction where
 * the target has it and the C library's exactly rounded fmaf where not, so both give the same bits.
 */
SAMPLER_INLINE uint32_t max_of_chunk(const float *z, size_t n, uint32_t *infinite) {
    uint32_t max = 0, bad = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t key = sampler_key(z[i]), bits;
        memcpy(&bits, &z[i], sizeof bits);
        bad |= (bits & 0x7f800000u) == 0x7f800000u; /* exponent of NaN and infinity */
        max = key > max ? key : max;
    }
    *infinite |= bad;
    return max;
}

SAMPLER_INLINE uint32_t max_body(const float *z, size_t n, uint32_t *chunk_max, uint32_t *infinite) {
    uint32_t max = 0;
    size_t whole = n / SAMPLER_CHUNK, rest = n % SAMPLER_CHUNK;
    for (size_t c = 0; c < whole; c++) {
        chunk_max[c] = max_of_chunk(z + c * SAMPLER_CHUNK, SAMPLER_CHUNK, infinite);
        max = chunk_max[c] > max ? chunk_max[c] : max;
    }
    if (rest > 0) {
        chunk_max[whole] = max_of_chunk(z + whole * SAMPLER_CHUNK, rest, infinite);
        max = chunk_max[whole] > max ? chunk_max[whole] : max;
    }
    return max;
}

/* The weights of a chunk in two halves of 20 bits each, for 32-bit lanes: together sampler_weight, to the bit. */
SAMPLER_INLINE uint64_t exp_of_chunk(float *e, const float *z, size_t n, float z_max, float scale) {
    uint32_t high = 0, low = 0; /* at most 64 * 2^20 */
    for (size_t i = 0; i < n; i++) {
        e[i] = sampler_exp2((z[i] - z_max) * scale);
    }
    for (size_t i = 0; i < n; i++) {
        float x = e[i] * 1048576.0f;
        int32_t whole = (int32_t)x;
        high += (uint32_t)whole;
        low += (uint32_t)(int32_t)((x - (float)whole) * 1048576.0f);
    }
    return ((uint64_t)high << 20) + low;
}

SAMPLER_INLINE uint64_t exp_body(float *e, const float *z, size_t n, float z_max, float scale, uint64_t *chunk_sum) {
    uint64_t sum = 0;
    size_t whole = n / SAMPLER_CHUNK, rest = n % SAMPLER_CHUNK;
    for (size_t c = 0; c < whole; c++) {
        chunk_sum[c] = exp_of_chunk(e + c * SAMPLER_CHUNK, z + c * SAMPLER_CHUNK, SAMPLER_CHUNK, z_max, scale);
        sum += chunk_sum[c];
    }
    if (rest > 0) {
        chunk_sum[whole] = exp_of_chunk(e + whole * SAMPLER_CHUNK, z + whole * SAMPLER_CHUNK, rest, z_max, scale);
        sum += chunk_sum[whole];
    }
    return sum;
}

#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) static uint32_t max_avx2(const float *z, size_t n, uint32_t *chunk_max,
                                                             uint32_t *infinite) {
    return max_body(z, n, chunk_max, infinite);
}

__attribute__((target("avx2,fma"))) static uint64_t exp_avx2(float *e, const float *z, size_t n, float z_max,
                                                             float scale, uint64_t *chunk_sum) {
    return exp_body(e, z, n, z_max, scale, chunk_sum);
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

uint32_t sampler_max(const float *z, size_t n, uint32_t *chunk_max, bool *finite) {
    uint32_t infinite = 0;
    uint32_t max = have_avx2() ? max_avx2(z, n, chunk_max, &infinite) : max_body(z, n, chunk_max, &infinite);
    *finite = infinite == 0;
    return max;
}

uint64_t sampler_exp(float *e, const float *z, size_t n, float z_max, float scale, uint64_t *chunk_sum) {
    return have_avx2() ? exp_avx2(e, z, n, z_max, scale, chunk_sum) : exp_body(e, z, n, z_max, scale, chunk_sum);
}
