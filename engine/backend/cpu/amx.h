/*
 * The tile unit of AMX (Intel Architecture Instruction Set Extensions Programming Reference, chapter 3): eight
 * registers of up to 16 rows by 64 bytes. Tile numbers are literals 0 to 7.
 *
 *   amx_begin(&config), amx_end()   around every use, in the thread that uses it
 *   amx_zero(t), amx_load(t, base, stride), amx_store(t, base, stride)   stride in bytes from row to row
 *   amx_dpbssd(c, a, b)    c[m][n] += sum over 4k bytes of a[m][k][j] * b[k][n][j], signed, int32
 *   amx_dpbusd(c, a, b)    the same with a unsigned
 *   amx_dpbf16ps(c, a, b)  the same of pairs of BF16 in F32; subnormals are zeros, roundings to nearest even
 *
 * With AMX_EMULATED the same operations in software, following the reference's pseudo-code, so that tests run the
 * kernels on any machine with AVX-512. What the hardware would refuse aborts there.
 */
#ifndef CPU_AMX_H
#define CPU_AMX_H

#include <stddef.h>
#include <stdint.h>

/* What LDTILECFG reads. Keep it in static const storage: gcc 12 takes only its first 8 bytes for the instruction's
 * input, and deletes stores to the others. */
struct amx_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};
_Static_assert(sizeof(struct amx_config) == 64, "LDTILECFG reads 64 bytes");

/* All eight tiles whole. */
_Alignas(64) static const struct amx_config amx_whole_tiles = {
    .palette = 1,
    .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
    .rows = {16, 16, 16, 16, 16, 16, 16, 16},
};

#if !defined(AMX_EMULATED)
#include <immintrin.h>

/* gcc 12's intrinsics do not say that they read memory: what was stored before must be there. */
#define AMX_BARRIER() __asm__ volatile("" ::: "memory")
#define amx_begin(config)                                                                                              \
    do {                                                                                                               \
        AMX_BARRIER();                                                                                                 \
        _tile_loadconfig(config);                                                                                      \
    } while (0)
#define amx_end() _tile_release()
#define amx_zero(t) _tile_zero(t)
#define amx_load(t, base, stride)                                                                                      \
    do {                                                                                                               \
        AMX_BARRIER();                                                                                                 \
        _tile_loadd(t, base, stride);                                                                                  \
    } while (0)
#define amx_store(t, base, stride) _tile_stored(t, base, stride)
#define amx_dpbssd(c, a, b) _tile_dpbssd(c, a, b)
#define amx_dpbusd(c, a, b) _tile_dpbusd(c, a, b)
#define amx_dpbf16ps(c, a, b) _tile_dpbf16ps(c, a, b)
#else
#include "amx_emulated.h"
#endif

#endif
