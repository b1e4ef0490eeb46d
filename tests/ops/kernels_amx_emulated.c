/* The very sources of the variant "amx", on a tile unit in software (backend/cpu/amx.h): for machines without one. */
#define VARIANT_AVX512
#define VARIANT_VNNI
#define VARIANT_AMX
#define AMX_EMULATED
#include "backend/cpu/kernels.h"

extern const struct cpu_kernels cpu_kernels_amx_emulated;
const struct cpu_kernels cpu_kernels_amx_emulated = CPU_KERNELS("amx-emulated");

/* For test_amx.c */
void amx_emulated_product(char kind, const void *a, const void *b, void *c);
void amx_emulated_product(char kind, const void *a, const void *b, void *c) {
    amx_begin(&amx_whole_tiles);
    amx_load(0, c, 64);
    amx_load(1, a, 64);
    amx_load(2, b, 64);
    if (kind == 's') {
        amx_dpbssd(0, 1, 2);
    } else if (kind == 'u') {
        amx_dpbusd(0, 1, 2);
    } else {
        amx_dpbf16ps(0, 1, 2);
    }
    amx_store(0, c, 64);
    amx_end();
}
