#include "sampler_passes.h"

#include <inferd/sampler_math.h>

#include <math.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

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

/* Each term is at most 0.54 (1 / (e ln 2)), so the halves of a chunk fit as above. */
SAMPLER_INLINE uint64_t moment_of_chunk(const float *e, const float *z, size_t n, float z_max, float scale) {
    uint32_t high = 0, low = 0;
    for (size_t i = 0; i < n; i++) {
        float x = e[i] * -sampler_clamp((z[i] - z_max) * scale) * 1048576.0f;
        int32_t whole = (int32_t)x;
        high += (uint32_t)whole;
        low += (uint32_t)(int32_t)((x - (float)whole) * 1048576.0f);
    }
    return ((uint64_t)high << 20) + low;
}

SAMPLER_INLINE uint64_t moment_body(const float *e, const float *z, size_t n, float z_max, float scale) {
    uint64_t sum = 0;
    size_t i = 0;
    for (; i + SAMPLER_CHUNK <= n; i += SAMPLER_CHUNK) {
        sum += moment_of_chunk(e + i, z + i, SAMPLER_CHUNK, z_max, scale);
    }
    return sum + moment_of_chunk(e + i, z + i, n - i, z_max, scale);
}

/*
 * Of a chunk: the sum of (z - shift)^power over what is not masked, and how many these are. 16 sums side by side, added
 * up in one order: the same bits whatever the width of the processor's vectors.
 */
SAMPLER_INLINE float spread_of_chunk(const float *z, float shift, bool squared, uint32_t *count) {
    float sums[16] = {0};
    uint32_t counts[16] = {0};
    for (size_t i = 0; i < SAMPLER_CHUNK; i += 16) {
        for (size_t k = 0; k < 16; k++) {
            uint32_t bits;
            memcpy(&bits, &z[i + k], sizeof bits);
            uint32_t there = bits == 0xff800000u ? 0 : UINT32_MAX; /* -infinity */
            float d = z[i + k] - shift;
            d = squared ? d * d : d;
            memcpy(&bits, &d, sizeof bits);
            bits &= there;
            memcpy(&d, &bits, sizeof d);
            sums[k] += d;
            counts[k] += there & 1;
        }
    }
    for (size_t width = 8; width > 0; width /= 2) {
        for (size_t k = 0; k < width; k++) {
            sums[k] += sums[k + width];
            counts[k] += counts[k + width];
        }
    }
    *count = counts[0];
    return sums[0];
}

SAMPLER_INLINE double spread_body(const float *z, size_t n, float shift, bool squared, size_t *count) {
    double sum = 0;
    uint32_t in_chunk;
    size_t i = 0, total = 0;
    for (; i + SAMPLER_CHUNK <= n; i += SAMPLER_CHUNK) {
        sum += (double)spread_of_chunk(z + i, shift, squared, &in_chunk);
        total += in_chunk;
    }
    float rest[SAMPLER_CHUNK];
    for (size_t k = 0; k < SAMPLER_CHUNK; k++) {
        rest[k] = i + k < n ? z[i + k] : -INFINITY;
    }
    sum += (double)spread_of_chunk(rest, shift, squared, &in_chunk);
    *count = total + in_chunk;
    return sum;
}

SAMPLER_INLINE uint64_t mask_body(const float *e, size_t n, float floor) {
    uint64_t mask = 0;
    for (size_t i = 0; i < n; i++) {
        mask |= (uint64_t)(e[i] >= floor) << i;
    }
    return mask;
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) static uint64_t mask_avx2(const float *e, size_t n, float floor) {
    uint64_t mask = 0;
    if (n != SAMPLER_CHUNK) {
        return mask_body(e, n, floor);
    }
    __m256 least = _mm256_set1_ps(floor);
    for (size_t i = 0; i < SAMPLER_CHUNK; i += 8) {
        int eight = _mm256_movemask_ps(_mm256_cmp_ps(_mm256_loadu_ps(e + i), least, _CMP_GE_OQ));
        mask |= (uint64_t)(uint32_t)eight << i;
    }
    return mask;
}

__attribute__((target("avx2,fma"))) static uint32_t max_avx2(const float *z, size_t n, uint32_t *chunk_max,
                                                             uint32_t *infinite) {
    return max_body(z, n, chunk_max, infinite);
}

__attribute__((target("avx2,fma"))) static uint64_t exp_avx2(float *e, const float *z, size_t n, float z_max,
                                                             float scale, uint64_t *chunk_sum) {
    return exp_body(e, z, n, z_max, scale, chunk_sum);
}

__attribute__((target("avx2,fma"))) static uint64_t moment_avx2(const float *e, const float *z, size_t n, float z_max,
                                                                float scale) {
    return moment_body(e, z, n, z_max, scale);
}

__attribute__((target("avx2,fma"))) static double spread_avx2(const float *z, size_t n, float shift, bool squared,
                                                              size_t *count) {
    return spread_body(z, n, shift, squared, count);
}

static bool have_avx2(void) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}
#else
#define max_avx2 max_body
#define exp_avx2 exp_body
#define mask_avx2 mask_body
#define moment_avx2 moment_body
#define spread_avx2 spread_body

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

uint64_t sampler_moment(const float *e, const float *z, size_t n, float z_max, float scale) {
    return have_avx2() ? moment_avx2(e, z, n, z_max, scale) : moment_body(e, z, n, z_max, scale);
}

static double spread(const float *z, size_t n, float shift, bool squared, size_t *count) {
    return have_avx2() ? spread_avx2(z, n, shift, squared, count) : spread_body(z, n, shift, squared, count);
}

size_t sampler_spread(const float *z, size_t n, double *mean, double *deviation) {
    size_t count;
    double sum = spread(z, n, 0, false, &count), about = count > 0 ? sum / (double)count : 0;
    double squares = spread(z, n, (float)about, true, &count);
    *mean = about;
    *deviation = count > 0 ? sqrt(squares / (double)count) : 0;
    return count;
}

uint64_t sampler_mask(const float *e, size_t n, float floor) {
    return have_avx2() ? mask_avx2(e, n, floor) : mask_body(e, n, floor);
}
