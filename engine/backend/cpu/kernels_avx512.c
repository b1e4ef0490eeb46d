/* The kernels for the variant "avx512". */
#define VARIANT_AVX512
#include "linear.h"

#include "attention.h"
#include "measure.h"
#include "rows.h"

const struct cpu_kernels cpu_kernels_avx512 = {
    .variant = "avx512",
    .linear = linear,
    .dequantise = dequantise,
    .attention_whole = attention_whole,
    .attention_segment = attention_segment,
    .attention_merge = attention_merge,
    .scale_row = scale_row_by,
    .add_row = add_row,
    .rms_norm_row = rms_norm_row,
    .silu_mul_row = silu_mul_row,
    .gelu_mul_row = gelu_mul_row,
    .rope_halves = rope_halves,
    .rope_interleaved = rope_interleaved,
    .to_half = to_half,
    MEASURE_KERNELS,
};
