/* The kernels for the variant "vnni": AVX-512 with its dot products of bytes. */
#define VARIANT_AVX512
#define VARIANT_VNNI
#include "kernels.h"

const struct cpu_kernels cpu_kernels_vnni = CPU_KERNELS("vnni");
