/* All kernels of one variant, and its table: a kernels_<variant>.c defines VARIANT_* and includes this. */
#include "linear.h"
#if defined(VARIANT_AVX2) || defined(VARIANT_AVX512)
#include "linear_block.h"
#if defined(VARIANT_AMX)
#include "linear_bf16_amx.h"
#include "linear_block_amx.h"
#define linear_block_best linear_block_amx
#define BF16_KERNELS .linear_bf16 = linear_bf16_amx, .bf16_pack = bf16_pack,
#else
#define linear_block_best linear_block
#endif
#define BLOCK_KERNELS .linear_block = linear_block_best, .quantise_row = quantise_row
#else
#define BLOCK_KERNELS .linear_block = NULL
#endif

#if !defined(BF16_KERNELS)
#define BF16_KERNELS
#endif

#include "attention.h"
#include "linear_i8_float.h"
#include "measure.h"
#include "rows.h"

#define CPU_KERNELS(NAME)                                                                                              \
    {                                                                                                                  \
        .variant = (NAME), .linear = linear, .dequantise = dequantise, .attention_whole = attention_whole,             \
        .attention_segment = attention_segment, .attention_merge = attention_merge, .scale_row = scale_row_by,         \
        .add_row = add_row, .rms_norm_row = rms_norm_row, .silu_mul_row = silu_mul_row, .gelu_mul_row = gelu_mul_row,  \
        .rope_halves = rope_halves, .rope_interleaved = rope_interleaved, .to_half = to_half, .to_i8 = to_i8,          \
        MEASURE_KERNELS, .i8_element = sizeof(i8_q), .i8_pack = i8_pack, .i8_quantise = i8_quantise,                   \
        .i8_linear = i8_linear_tile, .i8_linear_float = i8_linear_float_tile,                                          \
        BF16_KERNELS BLOCK_KERNELS,                                                                                    \
    }
