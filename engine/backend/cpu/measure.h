/*
 * What this machine can do at most with a variant's instructions: loops that do nothing else. Included by
 * kernels_<variant>.c; what an instruction set lacks is NULL. Chains are as many as hide the latency of two units.
 */
#ifndef CPU_MEASURE_H
#define CPU_MEASURE_H

#include "cpu.h"
#include "vec16.h"
#if defined(VARIANT_AMX)
#include "amx.h"
#endif

enum { MEASURE_CHAINS = 12, MEASURE_STREAMS = 4 };

typedef uint64_t measure_line __attribute__((vector_size(64), aligned(64)));

/* Read [bytes] from p, a multiple of MEASURE_STREAMS * 64 and aligned to 64, as several streams side by side. */
static void measure_read(const void *p, size_t bytes) {
    size_t n = bytes / MEASURE_STREAMS / sizeof(measure_line);
    const measure_line *a = p, *b = a + n, *c = b + n, *d = c + n;
    measure_line sums[MEASURE_STREAMS] = {{0}};
    for (size_t i = 0; i < n; i++) {
        sums[0] ^= a[i];
        sums[1] ^= b[i];
        sums[2] ^= c[i];
        sums[3] ^= d[i];
    }
    measure_line all = sums[0] ^ sums[1] ^ sums[2] ^ sums[3];
    __asm__ volatile("" : : "m"(all));
}

#if defined(__AVX512F__)
#define MEASURE_REGISTER "+v"
#else
#define MEASURE_REGISTER "+x"
#endif

/*
 * A function NAME(rounds) that returns how many operations it did: OPS a step, STEP(sum, x, y) one instruction or the few
 * that stand for it. The compiler may not look through the registers, so it removes nothing.
 */
#define MEASURE_LOOP(NAME, TYPE, ZERO, OPS, STEP)                                                                      \
    static double NAME(size_t rounds) {                                                                                \
        TYPE sums[MEASURE_CHAINS], x = ZERO, y = ZERO;                                                                 \
        UNROLL for (unsigned j = 0; j < MEASURE_CHAINS; j++) {                                                         \
            sums[j] = ZERO;                                                                                            \
            __asm__ volatile("" : MEASURE_REGISTER(sums[j])); /* or all chains were seen to be one */                  \
        }                                                                                                              \
        for (size_t i = 0; i < rounds; i++) {                                                                          \
            __asm__ volatile("" : MEASURE_REGISTER(y));                                                                \
            UNROLL for (unsigned j = 0; j < MEASURE_CHAINS; j++) {                                                     \
                __asm__ volatile("" : MEASURE_REGISTER(x)); /* or a part of the step was done once for all chains */   \
                sums[j] = STEP(sums[j], x, y);                                                                         \
            }                                                                                                          \
        }                                                                                                              \
        UNROLL for (unsigned j = 0; j < MEASURE_CHAINS; j++) {                                                         \
            __asm__ volatile("" : MEASURE_REGISTER(sums[j]));                                                          \
        }                                                                                                              \
        return (double)(OPS)*MEASURE_CHAINS * (double)rounds;                                                          \
    }

#if defined(__AVX512F__)
#define FMA_STEP(s, x, y) _mm512_fmadd_ps(x, y, s)
MEASURE_LOOP(measure_f32, __m512, _mm512_setzero_ps(), 32, FMA_STEP)
#if defined(__AVX512VNNI__)
#define I8_STEP(s, x, y) _mm512_dpbusd_epi32(s, x, y)
#elif defined(__AVX512BW__) /* saturates at 16 bits in between: no more than a limit for those who avoid it */
#define I8_STEP(s, x, y) _mm512_add_epi32(s, _mm512_madd_epi16(_mm512_maddubs_epi16(x, y), _mm512_set1_epi16(1)))
#endif
#if !defined(VARIANT_AMX)
MEASURE_LOOP(measure_i8_vectors, __m512i, _mm512_setzero_si512(), 128, I8_STEP)
#endif
#if defined(__AVX512BF16__) && !defined(VARIANT_AMX)
#define BF16_STEP(s, x, y) _mm512_dpbf16_ps(s, (__m512bh)(x), (__m512bh)(y))
MEASURE_LOOP(measure_bf16_vectors, __m512, _mm512_setzero_ps(), 64, BF16_STEP)
#else
#define measure_bf16_vectors NULL
#endif
#elif defined(__AVX2__)
#define FMA_STEP(s, x, y) _mm256_fmadd_ps(x, y, s)
MEASURE_LOOP(measure_f32, __m256, _mm256_setzero_ps(), 16, FMA_STEP)
#define I8_STEP(s, x, y) _mm256_add_epi32(s, _mm256_madd_epi16(_mm256_maddubs_epi16(x, y), _mm256_set1_epi16(1)))
MEASURE_LOOP(measure_i8_vectors, __m256i, _mm256_setzero_si256(), 64, I8_STEP)
#define measure_bf16_vectors NULL
#else
static double measure_f32(size_t rounds) {
    typedef float lanes __attribute__((vector_size(16)));
    lanes sums[MEASURE_CHAINS] = {{0}}, x = {0}, y = {0};
    __asm__ volatile("" : "+m"(sums));
    for (size_t i = 0; i < rounds; i++) {
        __asm__ volatile("" : "+m"(x), "+m"(y));
        UNROLL for (unsigned j = 0; j < MEASURE_CHAINS; j++) {
            sums[j] += x * y;
        }
    }
    __asm__ volatile("" : : "m"(sums));
    return 8.0 * MEASURE_CHAINS * (double)rounds;
}
#define measure_i8_vectors NULL
#define measure_bf16_vectors NULL
#endif

#if defined(VARIANT_AMX)
/* Four sums, each of its own pair of operands, as in a product that keeps 2 x 2 tiles. */
#define MEASURE_TILES(NAME, PRODUCT, OPS)                                                                              \
    static double NAME(size_t rounds) {                                                                                \
        amx_begin(&amx_whole_tiles);                                                                                   \
        for (size_t i = 0; i < rounds; i++) {                                                                          \
            PRODUCT(0, 4, 6);                                                                                          \
            PRODUCT(1, 4, 7);                                                                                          \
            PRODUCT(2, 5, 6);                                                                                          \
            PRODUCT(3, 5, 7);                                                                                          \
        }                                                                                                              \
        amx_end();                                                                                                     \
        return 4.0 * (OPS) * (double)rounds;                                                                           \
    }
MEASURE_TILES(measure_i8_tiles, amx_dpbssd, 16 * 16 * 64 * 2)
MEASURE_TILES(measure_bf16_tiles, amx_dpbf16ps, 16 * 16 * 32 * 2)
#define measure_i8 measure_i8_tiles
#define measure_bf16 measure_bf16_tiles
#else
#define measure_i8 measure_i8_vectors
#define measure_bf16 measure_bf16_vectors
#endif

#define MEASURE_KERNELS                                                                                                \
    .measure_read = measure_read, .measure_i8_peak = measure_i8, .measure_bf16_peak = measure_bf16,                    \
    .measure_f32_peak = measure_f32

#endif
