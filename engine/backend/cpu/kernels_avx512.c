/* The kernels for the variant "avx512". */
#define VARIANT_AVX512
#include "kernels.h"

const struct cpu_kernels cpu_kernels_avx512 = CPU_KERNELS("avx512");
