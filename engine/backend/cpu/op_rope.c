/* rope: rotary position embedding (Su et al. 2021, eq. 34). */
#include "cpu.h"

#include <math.h>
#include <string.h>

struct rope_job {
    const struct backend *b;
    const struct rope_cache *cache;
    float *x;
    size_t ldx, heads, head_dim;
    enum rope_style style;
};

static void fill_cache(const void *arg, size_t begin, size_t end) {
    const struct rope_cache *c = arg;
    size_t half = c->n_rot / 2;
    for (size_t r = begin; r < end; r++) {
        for (size_t i = 0; i < half; i++) {
            /* The product is exact in a double, and so its sine is good at any position. */
            double angle = (double)c->positions[r] * (double)c->inv_freq[i];
            c->cosines[r * half + i] = (float)cos(angle) * c->mscale;
            c->sines[r * half + i] = (float)sin(angle) * c->mscale;
        }
    }
}

static bool cache_has(const struct rope_cache *c, const int32_t *positions, size_t rows,
                      const struct rope_table *table) {
    return c->rows == rows && c->n_rot == table->n_rot && c->mscale == table->mscale &&
           memcmp(c->positions, positions, rows * sizeof *positions) == 0 &&
           memcmp(c->inv_freq, table->inv_freq, table->n_rot / 2 * sizeof *c->inv_freq) == 0;
}

static const struct rope_cache *cached(struct backend *b, const int32_t *positions, size_t rows,
                                       const struct rope_table *table) {
    for (size_t i = 0; i < ROPE_CACHES; i++) {
        if (cache_has(&b->rope[i], positions, rows, table)) {
            return &b->rope[i];
        }
    }
    struct rope_cache *c = &b->rope[b->rope_next];
    b->rope_next = (b->rope_next + 1) % ROPE_CACHES;
    c->rows = rows;
    c->n_rot = table->n_rot;
    c->mscale = table->mscale;
    memcpy(c->positions, positions, rows * sizeof *positions);
    memcpy(c->inv_freq, table->inv_freq, table->n_rot / 2 * sizeof *c->inv_freq);
    for_rows(b, rows, 32 * c->n_rot, fill_cache, c); /* a sine takes some tens of multiplications */
    return c;
}

static void rope_rows(const void *arg, size_t begin, size_t end) {
    const struct rope_job *j = arg;
    const struct rope_cache *c = j->cache;
    size_t half = c->n_rot / 2;
    for (size_t r = begin; r < end; r++) {
        const float *cosines = c->cosines + r * half, *sines = c->sines + r * half;
        for (size_t h = 0; h < j->heads; h++) {
            float *head = j->x + r * j->ldx + h * j->head_dim;
            if (j->style == ROPE_HALVES) {
                j->b->kernels->rope_halves(head, cosines, sines, half);
            } else {
                j->b->kernels->rope_interleaved(head, cosines, sines, half);
            }
        }
    }
}

int cpu_rope(struct backend *b, void *x, size_t ldx, size_t heads, size_t head_dim, const int32_t *positions,
             size_t rows, const struct rope_table *table, struct error *err) {
    if (check_rows(b, "rope", rows, err) < 0) {
        return -1;
    }
    if (table->n_rot % 2 != 0 || table->n_rot > head_dim || table->n_rot > MAX_HEAD_DIM) {
        return error_set(err, ERROR_UNSUPPORTED,
                         "rope rotates an even number of features, at most the head's %zu and %d, not %zu", head_dim,
                         MAX_HEAD_DIM, table->n_rot);
    }
    if (rows == 0 || table->n_rot == 0) {
        return 0;
    }
    struct rope_job job = {b, cached(b, positions, rows, table), x, ldx, heads, head_dim, table->style};
    for_rows(b, rows, heads * head_dim, rope_rows, &job);
    return 0;
}
