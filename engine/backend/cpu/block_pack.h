/*
 * GGUF blocks at their own bits, laid out for the kernels of linear_block.h: rows of a matrix in groups of BLOCK_GROUP,
 * so that one vector holds the same four bytes of sixteen rows and a kernel computes sixteen outputs side by side.
 *
 *   group = halves[n_blocks][layout.halves][BLOCK_GROUP] F16, padded to 64 bytes
 *           dwords[n_blocks][layout.dwords][BLOCK_GROUP][4 bytes]
 *
 * halves: the one or two F16 of a block; dwords: its other bytes in the file's order, four by four. Two changes make
 * kernels shorter: Q8_0's quants have 128 added (an unsigned byte, as all others), and the fifth bits of Q5_0 and
 * Q5_1 are transposed: bit u of byte e is that of element 4u + e. Rows beyond the matrix are zeros.
 */
#ifndef CPU_BLOCK_PACK_H
#define CPU_BLOCK_PACK_H

#include <inferd/backend.h>

enum { BLOCK_GROUP = 16, BLOCK_BYTES_MAX = 210 /* of Q6_K */ };

struct block_layout {
    size_t halves, half_at; /* F16 of a block, and the byte they begin at */
    size_t dwords, dword_at;
};

/* False for types that are no GGUF blocks. */
bool block_layout(enum dtype dtype, struct block_layout *out);
/* Bytes of a group of rows of k elements; a multiple of 64. */
size_t block_group_bytes(enum dtype dtype, size_t k);
/* Group `group` of w into out[block_group_bytes]. */
void block_pack_group(const struct weight *w, size_t group, uint8_t *out);
/* A block of a row of w, whose packed is set, as the file has it: out[dtype_info(w->dtype)->bytes]. */
void block_unpack(const struct weight *w, size_t row, size_t block, uint8_t *out);

#endif
