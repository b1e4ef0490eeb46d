/* What a whole warp computes at once, from the registers of its lanes (PTX ISA: fragments of mma and ldmatrix). */
#ifndef EMU_WARP_MATH_H
#define EMU_WARP_MATH_H

#include <stdint.h>

/* The registers of the 32 lanes. */
struct emu_mma_lane {
    void *d; /* int[4] or float[4] */
    const uint32_t *a, *b;
};
void emu_compute_mma_i8(const struct emu_mma_lane *lanes);
void emu_compute_mma_f16(const struct emu_mma_lane *lanes);
void emu_compute_mma_bf16(const struct emu_mma_lane *lanes);

/* r[lane][i]: of matrix i, whose row j begins at rows[8 i + j]. */
void emu_compute_ldmatrix(uint32_t *const *r, const void *const *rows, unsigned matrices, bool transposed);

#endif
