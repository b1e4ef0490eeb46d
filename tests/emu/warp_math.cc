#include "warp_math.h"

#include "cuda_bf16.h"

#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

static bool have_avx2() {
#if defined(__x86_64__)
    static const bool have = __builtin_cpu_supports("avx2");
    return have;
#else
    return false;
#endif
}

/* ---- mma.m16n8k32, bytes ----
 * With g = lane / 4 and t = lane % 4, the four bytes of a register are neighbours in k:
 *   a0: row g, k 4t ..     a1: row g + 8, k 4t ..      a2: row g, k 16 + 4t ..   a3: row g + 8, k 16 + 4t ..
 *   b0: column g, k 4t ..  b1: column g, k 16 + 4t ..
 *   d0, d1: row g, columns 2t, 2t + 1                  d2, d3: row g + 8 */

struct i8_tiles {
    uint32_t a[16][8]; /* [row][k / 4] */
    uint32_t b[8][8];  /* [k / 4][column] */
    int32_t d[16][8];
};

static void multiply_i8(struct i8_tiles *t) {
    for (int row = 0; row < 16; row++) {
        for (int column = 0; column < 8; column++) {
            uint32_t sum = (uint32_t)t->d[row][column]; /* wraps */
            for (int k = 0; k < 8; k++) {
                uint32_t a = t->a[row][k], b = t->b[k][column];
                for (int i = 0; i < 32; i += 8) {
                    sum += (uint32_t)((int)(int8_t)(a >> i) * (int)(int8_t)(b >> i));
                }
            }
            t->d[row][column] = (int32_t)sum;
        }
    }
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) static void multiply_i8_avx2(struct i8_tiles *t) {
    /* Pairs of bytes, each in the upper half of 16 bits, for every column; the shift spreads the sign. */
    const __m256i low = _mm256_setr_epi8(-1, 0, -1, 1, -1, 4, -1, 5, -1, 8, -1, 9, -1, 12, -1, 13, -1, 0, -1, 1, -1, 4,
                                         -1, 5, -1, 8, -1, 9, -1, 12, -1, 13);
    const __m256i high = _mm256_add_epi8(low, _mm256_set1_epi16(0x0200));
    __m256i b[16];
    for (int k = 0; k < 8; k++) {
        __m256i word = _mm256_loadu_si256((const __m256i *)t->b[k]);
        b[2 * k] = _mm256_srai_epi16(_mm256_shuffle_epi8(word, low), 8);
        b[2 * k + 1] = _mm256_srai_epi16(_mm256_shuffle_epi8(word, high), 8);
    }
    for (int row = 0; row < 16; row++) {
        int32_t a[16];
        __m256i bytes = _mm256_loadu_si256((const __m256i *)t->a[row]);
        _mm256_storeu_si256((__m256i *)a, _mm256_cvtepi8_epi16(_mm256_castsi256_si128(bytes)));
        _mm256_storeu_si256((__m256i *)(a + 8), _mm256_cvtepi8_epi16(_mm256_extracti128_si256(bytes, 1)));
        __m256i sum0 = _mm256_loadu_si256((const __m256i *)t->d[row]), sum1 = _mm256_setzero_si256();
        for (int k = 0; k < 16; k += 2) {
            sum0 = _mm256_add_epi32(sum0, _mm256_madd_epi16(_mm256_set1_epi32(a[k]), b[k]));
            sum1 = _mm256_add_epi32(sum1, _mm256_madd_epi16(_mm256_set1_epi32(a[k + 1]), b[k + 1]));
        }
        _mm256_storeu_si256((__m256i *)t->d[row], _mm256_add_epi32(sum0, sum1));
    }
}
#endif

void emu_compute_mma_i8(const struct emu_mma_lane *lanes) {
    struct i8_tiles tiles;
    for (unsigned lane = 0; lane < 32; lane++) {
        unsigned g = lane / 4, t = lane % 4;
        const uint32_t *a = lanes[lane].a, *b = lanes[lane].b;
        tiles.a[g][t] = a[0];
        tiles.a[g + 8][t] = a[1];
        tiles.a[g][4 + t] = a[2];
        tiles.a[g + 8][4 + t] = a[3];
        tiles.b[t][g] = b[0];
        tiles.b[4 + t][g] = b[1];
        memcpy(&tiles.d[g][2 * t], lanes[lane].d, 8);
        memcpy(&tiles.d[g + 8][2 * t], (const char *)lanes[lane].d + 8, 8);
    }
#if defined(__x86_64__)
    if (have_avx2()) {
        multiply_i8_avx2(&tiles);
    } else
#endif
        multiply_i8(&tiles);
    for (unsigned lane = 0; lane < 32; lane++) {
        unsigned g = lane / 4, t = lane % 4;
        memcpy(lanes[lane].d, &tiles.d[g][2 * t], 8);
        memcpy((char *)lanes[lane].d + 8, &tiles.d[g + 8][2 * t], 8);
    }
}

/* ---- mma.m16n8k16, 16-bit ----
 * The same with two elements a register: a0: row g, k 2t, 2t + 1; a2, b1: k 8 + 2t .. . Products are exact in F32; they
 * are added in rising k, each sum rounded (the silicon's own order and rounding are not emulated). */

struct f32_tiles {
    float a[16][16]; /* [row][k] */
    float b[16][8];  /* [k][column] */
    float d[16][8];
};

static inline __attribute__((always_inline)) void multiply_f32(struct f32_tiles *t) {
    for (int row = 0; row < 16; row++) {
        for (int k = 0; k < 16; k++) {
            for (int column = 0; column < 8; column++) {
                t->d[row][column] += t->a[row][k] * t->b[k][column];
            }
        }
    }
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) static void multiply_f32_avx2(struct f32_tiles *t) {
    __m256 b[16];
    for (int k = 0; k < 16; k++) {
        b[k] = _mm256_loadu_ps(t->b[k]);
    }
    for (int row = 0; row < 16; row += 2) { /* two chains at once */
        __m256 sum0 = _mm256_loadu_ps(t->d[row]), sum1 = _mm256_loadu_ps(t->d[row + 1]);
        for (int k = 0; k < 16; k++) {
            sum0 = _mm256_add_ps(sum0, _mm256_mul_ps(_mm256_set1_ps(t->a[row][k]), b[k]));
            sum1 = _mm256_add_ps(sum1, _mm256_mul_ps(_mm256_set1_ps(t->a[row + 1][k]), b[k]));
        }
        _mm256_storeu_ps(t->d[row], sum0);
        _mm256_storeu_ps(t->d[row + 1], sum1);
    }
}
#endif

template <float (*convert)(uint16_t)> static void compute_mma_16(const struct emu_mma_lane *lanes) {
    struct f32_tiles tiles;
    for (unsigned lane = 0; lane < 32; lane++) {
        unsigned g = lane / 4, t = lane % 4;
        const uint32_t *a = lanes[lane].a, *b = lanes[lane].b;
        for (unsigned i = 0; i < 2; i++) {
            unsigned k = 2 * t + i, shift = 16 * i;
            tiles.a[g][k] = convert((uint16_t)(a[0] >> shift));
            tiles.a[g + 8][k] = convert((uint16_t)(a[1] >> shift));
            tiles.a[g][8 + k] = convert((uint16_t)(a[2] >> shift));
            tiles.a[g + 8][8 + k] = convert((uint16_t)(a[3] >> shift));
            tiles.b[k][g] = convert((uint16_t)(b[0] >> shift));
            tiles.b[8 + k][g] = convert((uint16_t)(b[1] >> shift));
        }
        memcpy(&tiles.d[g][2 * t], lanes[lane].d, 8);
        memcpy(&tiles.d[g + 8][2 * t], (const char *)lanes[lane].d + 8, 8);
    }
#if defined(__x86_64__)
    if (have_avx2()) {
        multiply_f32_avx2(&tiles);
    } else
#endif
        multiply_f32(&tiles);
    for (unsigned lane = 0; lane < 32; lane++) {
        unsigned g = lane / 4, t = lane % 4;
        memcpy(lanes[lane].d, &tiles.d[g][2 * t], 8);
        memcpy((char *)lanes[lane].d + 8, &tiles.d[g + 8][2 * t], 8);
    }
}

void emu_compute_mma_f16(const struct emu_mma_lane *lanes) {
    compute_mma_16<emu_f16_to_f32>(lanes);
}
void emu_compute_mma_bf16(const struct emu_mma_lane *lanes) {
    compute_mma_16<emu_bf16_to_f32>(lanes);
}

void emu_compute_ldmatrix(uint32_t *const *r, const void *const *rows, unsigned matrices, bool transposed) {
    for (unsigned i = 0; i < matrices; i++) {
        uint16_t m[8][8];
        for (unsigned row = 0; row < 8; row++) {
            memcpy(m[row], rows[8 * i + row], 16);
        }
        for (unsigned lane = 0; lane < 32; lane++) {
            unsigned g = lane / 4, t = lane % 4;
            uint16_t low = transposed ? m[2 * t][g] : m[g][2 * t],
                     high = transposed ? m[2 * t + 1][g] : m[g][2 * t + 1];
            r[lane][i] = (uint32_t)high << 16 | low;
        }
    }
}
