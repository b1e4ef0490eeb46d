/*
 * I8 weights as the kernels read them, packed once at load: panels of 16 rows of W, each [groups][16][4] bytes, that is
 * four consecutive k of 16 weight rows side by side. It is what vpdpbusd takes in one register and AMX in one tile row.
 * k is padded with zeros to whole tiles of 64, n to whole panels.
 */
#ifndef CPU_WEIGHT_I8_H
#define CPU_WEIGHT_I8_H

#include <inferd/backend.h>

enum {
    I8_PANEL = 16,
    I8_TILE_K = 64,
    I8_MAX_K = 65536, /* 255 * 128 * k fits in 31 bits: every sum is exact */
};

struct i8_chunk;

/* What weight.packed points to. */
struct i8_weight {
    size_t n, k, groups;    /* groups of four k, padded: a multiple of 16 */
    const int8_t *panels;   /* [n / 16 rounded up][groups][16][4], aligned to 64 */
    const float *scales;    /* [n rounded up to 16], 0 behind n */
    const int32_t *sums;    /* [n rounded up to 16], sum over k of W[n][k] */
    struct i8_chunk *chunk; /* the memory it lies in */
};

static inline const int8_t *i8_panel(const struct i8_weight *w, size_t panel) {
    return w->panels + panel * w->groups * (I8_PANEL * 4);
}

static inline size_t i8_panels(const struct i8_weight *w) {
    return (w->n + I8_PANEL - 1) / I8_PANEL;
}

/* weight_load and weight_unload of this type (inferd/backend.h). */
int i8_weight_load(struct backend *b, struct weight *w, struct error *err);
void i8_weight_unload(struct backend *b, struct weight *w);
/* out[k] = row `row`, scaled */
void i8_weight_row(const struct i8_weight *w, size_t row, float *out);

/* linear of parts that are all of this type and quantise their input alike (backend.h); k fits, checked before. */
void i8_linear(struct backend *b, const float *x, size_t ldx, size_t rows, const struct linear_part *parts,
               size_t n_parts);
/* Has this backend loaded the weight, or another of as many input features? */
bool i8_loaded(const struct backend *b, const struct weight *w);
/* Do both quantise their input to the same integers, or not at all? */
bool i8_same_input(const struct weight *a, const struct weight *b);

#endif
