/* The part of linear_block.h that is compiled once for each type: included with T defined. */
#define CAT_(a, b) a##b
#define CAT(a, b) CAT_(a, b)

/* Products of a sub-block's vectors [from, to) with the h and l of `rows` rows: 128 h + l, offset taken off. */
VEC_INLINE void CAT(block_products_, T)(const unsigned rows, const unsigned from, const unsigned to, const uint8_t *p,
                                        unsigned s, const int8_t *const *x, const int32_t *const *sums, bq *out) {
    const struct block_traits t = T_TRAITS;
    bq high[BLOCK_ROWS], low[BLOCK_ROWS];
    UNROLL for (unsigned r = 0; r < rows; r++) {
        high[r] = low[r] = bq_zero();
    }
    UNROLL for (unsigned u = from; u < to; u++) {
        bq w = T_QUANTS(p, s, u);
        UNROLL for (unsigned r = 0; r < rows; r++) {
            high[r] = bq_dot(t.wide, high[r], w, x[r] + 4 * u);
            low[r] = bq_dot(t.wide, low[r], w, x[r] + QUANT_BLOCK + 4 * u);
        }
    }
    UNROLL for (unsigned r = 0; r < rows; r++) {
        bq h = bq_sum(t.wide, high[r]), l = bq_sum(t.wide, low[r]);
        out[r] = bq_add(bq_left7(h), l);
        if (t.offset > 0) {
            int32_t sum = t.split ? sums[r][from / 4] : sums[r][0] + sums[r][1];
            out[r] = bq_add(out[r], bq_set1(-t.offset * sum));
        }
    }
}

VEC_INLINE void CAT(block_rows_, T)(const unsigned rows, const uint8_t *halves, const uint8_t *dwords, size_t n_blocks,
                                    const uint8_t *x, size_t stride, bool first, float *out) {
    const struct block_traits t = T_TRAITS;
    const size_t at_meta = n_blocks * t.sub * 2 * QUANT_BLOCK;
    bf y[BLOCK_ROWS];
    UNROLL for (unsigned r = 0; r < rows; r++) {
        y[r] = bf_zero();
    }
    for (size_t b = 0, k = 0; b < n_blocks; b++) {
        if (first) {
            UNROLL for (size_t i = 0; i < t.dwords; i++) {
                __builtin_prefetch(dwords + BLOCK_PREFETCH + 64 * i, 0, 2); /* into the L2 cache */
            }
        }
        for (unsigned s = 0; s < t.sub; s++, k++) {
            const int8_t *q[BLOCK_ROWS];
            const int32_t *sums[BLOCK_ROWS];
            const struct quant_meta *meta[BLOCK_ROWS];
            bf d[2];
            bq product[BLOCK_ROWS];
            UNROLL for (unsigned r = 0; r < rows; r++) {
                q[r] = (const int8_t *)x + r * stride + k * 2 * QUANT_BLOCK;
                meta[r] = (const struct quant_meta *)(x + r * stride + at_meta) + k;
                sums[r] = meta[r]->sums;
            }
            T_SCALES(dwords, halves, s, d);
            CAT(block_products_, T)(rows, 0, t.split ? 4 : 8, dwords, s, q, sums, product);
            UNROLL for (unsigned r = 0; r < rows; r++) {
                y[r] = bf_fma(bf_from(product[r]), bf_mul(d[0], bf_set1(meta[r]->scale)), y[r]);
                if (t.min) {
                    y[r] = bf_fma(d[1], bf_set1(meta[r]->sum), y[r]);
                }
            }
            if (t.split) {
                CAT(block_products_, T)(rows, 4, 8, dwords, s, q, sums, product);
                UNROLL for (unsigned r = 0; r < rows; r++) {
                    y[r] = bf_fma(bf_from(product[r]), bf_mul(d[1], bf_set1(meta[r]->scale)), y[r]);
                }
            }
        }
        halves += t.halves * 2 * BLOCK_GROUP;
        dwords += t.dwords * 4 * BLOCK_GROUP;
    }
    UNROLL for (unsigned r = 0; r < rows; r++) {
        bf_store(out + r * BV_COLS, y[r]);
    }
}

/* out[rows][BV_COLS] = the products of `rows` rows, 1 to BLOCK_ROWS, with the outputs of a vector; first: its weights
 * have not been read yet */
static void CAT(block_tile_, T)(size_t rows, const uint8_t *halves, const uint8_t *dwords, size_t n_blocks,
                                const uint8_t *x, size_t stride, bool first, float *y) {
    switch (rows) {
    case 1:
        CAT(block_rows_, T)(1, halves, dwords, n_blocks, x, stride, first, y);
        break;
    case 2:
        CAT(block_rows_, T)(2, halves, dwords, n_blocks, x, stride, first, y);
        break;
#if BLOCK_ROWS == 6
    case 4:
        CAT(block_rows_, T)(4, halves, dwords, n_blocks, x, stride, first, y);
        break;
    case 5:
        CAT(block_rows_, T)(5, halves, dwords, n_blocks, x, stride, first, y);
        break;
    case 6:
        CAT(block_rows_, T)(6, halves, dwords, n_blocks, x, stride, first, y);
        break;
#endif
    default:
        CAT(block_rows_, T)(3, halves, dwords, n_blocks, x, stride, first, y);
        break;
    }
}

#if defined(VARIANT_AMX)
static void CAT(block_unpack_, T)(const uint8_t *halves, const uint8_t *dwords, size_t n_blocks,
                                  struct block_panel *out) {
    const struct block_traits t = T_TRAITS;
    for (size_t b = 0; b < n_blocks; b++) {
        for (unsigned s = 0; s < t.sub; s++, out++) {
            bf d[2] = {bf_zero(), bf_zero()};
            T_SCALES(dwords, halves, s, d);
            bf_store(out->d[0], d[0]);
            bf_store(out->d[1], d[1]);
            UNROLL for (unsigned u = 0; u < 8; u++) {
                __m512i q = _mm512_sub_epi8(T_QUANTS(dwords, s, u), _mm512_set1_epi8((char)t.offset));
                _mm512_store_si512(out->quants[u], q);
            }
        }
        halves += t.halves * 2 * BLOCK_GROUP;
        dwords += t.dwords * 4 * BLOCK_GROUP;
    }
}
#endif

#undef CAT_
#undef CAT
#undef T
#undef T_QUANTS
#undef T_SCALES
#undef T_TRAITS
