/* Rows of activations as integers of 14 bits (see linear_block.h), in AVX2. */
#include <math.h>

VEC_INLINE uint32_t quant_top(__m256i a) {
    __m128i t = _mm_max_epu32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    t = _mm_max_epu32(t, _mm_shuffle_epi32(t, 0x4e));
    t = _mm_max_epu32(t, _mm_shuffle_epi32(t, 0xb1));
    return (uint32_t)_mm_cvtsi128_si32(t);
}
VEC_INLINE int32_t quant_sum(__m256i a) {
    __m128i t = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    t = _mm_add_epi32(t, _mm_shuffle_epi32(t, 0x4e));
    t = _mm_add_epi32(t, _mm_shuffle_epi32(t, 0xb1));
    return _mm_cvtsi128_si32(t);
}
/* Two vectors of 16 bits as one of 8: the packing works within halves of a register. */
VEC_INLINE __m256i quant_bytes(__m256i a, __m256i b) {
    return _mm256_permute4x64_epi64(_mm256_packs_epi16(a, b), 0xd8);
}

/* 32 elements. Without a finite number each, all products are NaN; below 2^-100 they are zeros. */
static void quantise_block(const float *x, int8_t *q, struct quant_meta *meta) {
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
    __m256 v[4];
    __m256i top = _mm256_setzero_si256(), i[4];
    UNROLL for (unsigned j = 0; j < 4; j++) {
        v[j] = _mm256_loadu_ps(x + 8 * j);
        top = _mm256_max_epu32(top, _mm256_and_si256(_mm256_castps_si256(v[j]), magnitude));
    }
    uint32_t bits = quant_top(top); /* magnitudes are in the order of their bits, infinity and NaN above all */
    float absmax = f32_from_bits(bits), inverse = QUANT_TOP / absmax;
    if (bits >= 0x7f800000u || absmax < 0x1p-100f) {
        float scale = bits >= 0x7f800000u ? NAN : 0;
        memset(q, 0, 2 * QUANT_BLOCK);
        *meta = (struct quant_meta){.scale = scale, .sum = scale};
        return;
    }
    UNROLL for (unsigned j = 0; j < 4; j++) {
        i[j] = _mm256_cvtps_epi32(_mm256_mul_ps(v[j], _mm256_set1_ps(inverse))); /* to nearest even */
    }
    meta->scale = absmax / QUANT_TOP;
    meta->sums[0] = quant_sum(_mm256_add_epi32(i[0], i[1]));
    meta->sums[1] = quant_sum(_mm256_add_epi32(i[2], i[3]));
    meta->sum = meta->scale * (float)(meta->sums[0] + meta->sums[1]);
    __m256i half[2] = {_mm256_permute4x64_epi64(_mm256_packs_epi32(i[0], i[1]), 0xd8),
                       _mm256_permute4x64_epi64(_mm256_packs_epi32(i[2], i[3]), 0xd8)};
    __m256i high[2], low[2];
    UNROLL for (unsigned j = 0; j < 2; j++) {
        high[j] = _mm256_srai_epi16(_mm256_add_epi16(half[j], _mm256_set1_epi16(64)), 7);
        low[j] = _mm256_sub_epi16(half[j], _mm256_slli_epi16(high[j], 7));
    }
    _mm256_storeu_si256((__m256i_u *)q, quant_bytes(high[0], high[1]));
    _mm256_storeu_si256((__m256i_u *)(q + QUANT_BLOCK), quant_bytes(low[0], low[1]));
}

static void quantise_row(const float *x, size_t k, uint8_t *out) {
    struct quant_meta *meta = (struct quant_meta *)(out + 2 * k);
    for (size_t b = 0; b < k / QUANT_BLOCK; b++) {
        quantise_block(x + b * QUANT_BLOCK, (int8_t *)out + b * 2 * QUANT_BLOCK, meta + b);
    }
}
