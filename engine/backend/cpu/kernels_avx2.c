/* The kernels for the variant "avx2". */
#define VARIANT_AVX2
#include "kernels.h"

const struct cpu_kernels cpu_kernels_avx2 = CPU_KERNELS("avx2");
