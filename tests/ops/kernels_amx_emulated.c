/* The very sources of the variant "amx", on a tile unit in software (backend/cpu/amx.h): for machines without one. */
#define VARIANT_AVX512
#define VARIANT_VNNI
#define VARIANT_AMX
#define AMX_EMULATED
#include "backend/cpu/kernels.h"

extern const struct cpu_kernels cpu_kernels_amx_emulated;
const struct cpu_kernels cpu_kernels_amx_emulated = CPU_KERNELS("amx-emulated");
