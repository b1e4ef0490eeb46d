#include "block_pack.h"

#include <string.h>

bool block_layout(enum dtype dtype, struct block_layout *out) {
    static const struct block_layout layouts[DTYPE_COUNT] = {
        [DTYPE_Q4_0] = {1, 0, 4, 2},  [DTYPE_Q4_1] = {2, 0, 4, 4},  [DTYPE_Q5_0] = {1, 0, 5, 2},
        [DTYPE_Q5_1] = {2, 0, 5, 4},  [DTYPE_Q8_0] = {1, 0, 8, 2},  [DTYPE_Q4_K] = {2, 0, 35, 4},
        [DTYPE_Q5_K] = {2, 0, 43, 4}, [DTYPE_Q6_K] = {1, 208, 52, 0},
    };
    if (layouts[dtype].halves == 0) {
        return false;
    }
    *out = layouts[dtype];
    return true;
}

static size_t halves_bytes(const struct block_layout *l, size_t n_blocks) {
    return (n_blocks * l->halves * BLOCK_GROUP * 2 + 63) / 64 * 64;
}

size_t block_group_bytes(enum dtype dtype, size_t k) {
    struct block_layout l;
    size_t n_blocks = k / dtype_info(dtype)->block;
    return block_layout(dtype, &l) ? halves_bytes(&l, n_blocks) + n_blocks * l.dwords * BLOCK_GROUP * 4 : 0;
}

/* Bit u of byte e = bit 4u + e. */
static uint32_t transpose_bits(uint32_t bits) {
    uint32_t out = 0;
    for (unsigned e = 0; e < 4; e++) {
        uint32_t b = bits >> e & 0x11111111u; /* one bit a nibble: draw them together */
        b = (b | b >> 3) & 0x03030303u;
        b = (b | b >> 6) & 0x000f000fu;
        b = (b | b >> 12) & 0xffu;
        out |= b << 8 * e;
    }
    return out;
}

/* And back: bit 4u + e = bit u of byte e. */
static uint32_t transpose_back(uint32_t bits) {
    uint32_t out = 0;
    for (unsigned i = 0; i < 32; i++) {
        out |= (bits >> (i % 4 * 8 + i / 4) & 1) << i;
    }
    return out;
}

static bool has_fifth_bits(enum dtype dtype, size_t dword) {
    return dword == 0 && (dtype == DTYPE_Q5_0 || dtype == DTYPE_Q5_1);
}

void block_pack_group(const struct weight *w, size_t group, uint8_t *out) {
    struct block_layout l;
    if (!block_layout(w->dtype, &l)) {
        return;
    }
    const struct dtype_info *info = dtype_info(w->dtype);
    size_t n_blocks = w->k / info->block, first = group * BLOCK_GROUP;
    size_t rows = w->n - first < BLOCK_GROUP ? w->n - first : BLOCK_GROUP;
    uint8_t *dwords = out + halves_bytes(&l, n_blocks);
    if (rows < BLOCK_GROUP) {
        memset(out, 0, block_group_bytes(w->dtype, w->k));
    }
    for (size_t r = 0; r < rows; r++) {
        const uint8_t *block = (const uint8_t *)w->data + (first + r) * w->row_bytes;
        uint8_t *half = out + 2 * r, *dword = dwords + 4 * r;
        for (size_t b = 0; b < n_blocks; b++, block += info->bytes) {
            for (size_t i = 0; i < l.halves; i++, half += 2 * BLOCK_GROUP) {
                memcpy(half, block + l.half_at + 2 * i, 2);
            }
            for (size_t i = 0; i < l.dwords; i++, dword += 4 * BLOCK_GROUP) {
                uint32_t u;
                memcpy(&u, block + l.dword_at + 4 * i, sizeof u);
                if (w->dtype == DTYPE_Q8_0) {
                    u ^= 0x80808080u;
                } else if (has_fifth_bits(w->dtype, i)) {
                    u = transpose_bits(u);
                }
                memcpy(dword, &u, sizeof u);
            }
        }
    }
}

void block_unpack(const struct weight *w, size_t row, size_t block, uint8_t *out) {
    struct block_layout l;
    if (!block_layout(w->dtype, &l)) {
        return;
    }
    size_t n_blocks = w->k / dtype_info(w->dtype)->block, r = row % BLOCK_GROUP;
    const uint8_t *group = (const uint8_t *)w->packed + row / BLOCK_GROUP * block_group_bytes(w->dtype, w->k);
    const uint8_t *half = group + 2 * (block * l.halves * BLOCK_GROUP + r);
    const uint8_t *dword = group + halves_bytes(&l, n_blocks) + 4 * (block * l.dwords * BLOCK_GROUP + r);
    for (size_t i = 0; i < l.halves; i++) {
        memcpy(out + l.half_at + 2 * i, half + 2 * i * BLOCK_GROUP, 2);
    }
    for (size_t i = 0; i < l.dwords; i++) {
        uint32_t u;
        memcpy(&u, dword + 4 * i * BLOCK_GROUP, sizeof u);
        if (w->dtype == DTYPE_Q8_0) {
            u ^= 0x80808080u;
        } else if (has_fifth_bits(w->dtype, i)) {
            u = transpose_back(u);
        }
        memcpy(out + l.dword_at + 4 * i, &u, sizeof u);
    }
}
