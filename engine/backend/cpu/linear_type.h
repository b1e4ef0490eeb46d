/* The part of linear.h that is compiled once for each weight type: included with T defined. */
#define CAT_(a, b) a##b
#define CAT(a, b) CAT_(a, b)
#define BLOCK ((size_t)CAT(T, _BLOCK))
#define BYTES ((size_t)CAT(T, _BYTES))
#define STEP ((size_t)CAT(T, _STEP))

/* out[0..n) = the first n elements at p, n <= LINEAR_CHUNK; zeros behind up to a multiple of 16. */
static void CAT(unpack_, T)(const uint8_t *p, size_t n, float *out) {
    struct scales s;
    CAT(T, _open)(p, n / BLOCK, &s);
    for (size_t k = 0; k + BLOCK <= n; k += BLOCK, p += BYTES) {
        UNROLL for (size_t i = 0; i < BYTES; i += 64) {
            __builtin_prefetch(p + PREFETCH_AHEAD + i);
        }
        UNROLL for (unsigned i = 0; i < BLOCK / STEP; i++) {
            v16 v[STEP / 16];
            CAT(T, _step)(p, k, &s, i, v);
            UNROLL for (unsigned j = 0; j < STEP / 16; j++) {
                v16_store(out + k + i * STEP + 16 * j, v[j]);
            }
        }
    }
#ifdef T_TAIL
    if (n % 16 != 0) {
        v16_store(out + n / 16 * 16, T_TAIL(p, n % 16));
    }
#endif
}

#if FEW_ROWS > 0
/* part[r][c] = sum over n elements of x[r] * W[c], `rows` rows by `cols` weight rows (constants), weights unpacked in
 * registers. */
VEC_INLINE void CAT(direct_tile_, T)(const unsigned rows, const unsigned cols, const uint8_t *const *w, size_t n,
                                     const float *x, size_t ldx, float *part) {
    v16 acc[DIRECT_SUMS];
    const uint8_t *p[ONE_COLS];
    struct scales s[ONE_COLS];
    UNROLL for (unsigned i = 0; i < rows * cols; i++) {
        acc[i] = v16_zero();
    }
    UNROLL for (unsigned c = 0; c < cols; c++) {
        p[c] = w[c];
        CAT(T, _open)(p[c], n / BLOCK, &s[c]);
    }
    for (size_t k = 0; k + BLOCK <= n; k += BLOCK) {
        UNROLL for (unsigned c = 0; c < cols; c++) {
            UNROLL for (size_t i = 0; i < BYTES; i += 64) {
                __builtin_prefetch(p[c] + PREFETCH_AHEAD + i);
            }
        }
        UNROLL for (unsigned i = 0; i < BLOCK / STEP; i++) {
            UNROLL for (unsigned c = 0; c < cols; c++) {
                v16 v[STEP / 16];
                CAT(T, _step)(p[c], k, &s[c], i, v);
                UNROLL for (unsigned j = 0; j < STEP / 16; j++) {
                    UNROLL for (unsigned r = 0; r < rows; r++) {
                        v16 xv = v16_load(x + r * ldx + k + i * STEP + 16 * j);
                        acc[r * cols + c] = v16_fma(xv, v[j], acc[r * cols + c]);
                    }
                }
            }
        }
        UNROLL for (unsigned c = 0; c < cols; c++) {
            p[c] += BYTES;
        }
    }
#ifdef T_TAIL
    if (n % 16 != 0) {
        UNROLL for (unsigned r = 0; r < rows; r++) {
            v16 xv = v16_load_n(x + r * ldx + n / 16 * 16, n % 16);
            UNROLL for (unsigned c = 0; c < cols; c++) {
                acc[r * cols + c] = v16_fma(xv, T_TAIL(p[c], n % 16), acc[r * cols + c]);
            }
        }
    }
#endif
    sum_all(acc, rows * cols, part);
}

static void CAT(direct_, T)(size_t rows, size_t cols, const uint8_t *const *w, size_t n, const float *x, size_t ldx,
                            float *part) {
    switch (rows) {
    case 1:
#if ONE_COLS != DIRECT_COLS
        if (cols == ONE_COLS) {
            CAT(direct_tile_, T)(1, ONE_COLS, w, n, x, ldx, part);
            break;
        }
#else
        (void)cols;
#endif
        CAT(direct_tile_, T)(1, DIRECT_COLS, w, n, x, ldx, part);
        break;
    case 2:
        CAT(direct_tile_, T)(2, DIRECT_COLS, w, n, x, ldx, part);
        break;
    case 3:
        CAT(direct_tile_, T)(3, DIRECT_COLS, w, n, x, ldx, part);
        break;
#if DIRECT_ROWS > 3
    default:
        CAT(direct_tile_, T)(4, DIRECT_COLS, w, n, x, ldx, part);
        break;
#endif
    }
}
#endif

#undef CAT_
#undef CAT
#undef BLOCK
#undef BYTES
#undef STEP
#undef T
#undef T_TAIL
