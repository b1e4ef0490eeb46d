/* The kernels for the variant "amx": AVX-512, VNNI and the tile unit. */
#define VARIANT_AVX512
#define VARIANT_VNNI
#define VARIANT_AMX
#include "kernels.h"

const struct cpu_kernels cpu_kernels_amx = CPU_KERNELS("amx");
