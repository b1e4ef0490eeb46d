/* The kernels for the variant "generic". */
#define VARIANT_GENERIC
#include "kernels.h"

const struct cpu_kernels cpu_kernels_generic = CPU_KERNELS("generic");
