/*
 * Packing of I8 weights. Memory comes in chunks of many weights, so that huge pages, where the system gives them, hold
 * small matrices too; a chunk goes when its last weight is unloaded.
 */
#include "weight_i8.h"

#include "cpu.h"

#include <math.h>
#include <string.h>
#include <sys/mman.h>

enum { CHUNK_BYTES = 32 << 20, HUGE_PAGE = 2 << 20 };

struct i8_chunk {
    _Alignas(64) struct i8_chunk *next;
    size_t bytes, used, weights;
};

static size_t round_up(size_t n, size_t to) {
    return (n + to - 1) / to * to;
}

/* [bytes] of zeros, aligned to `to`, a power of two. */
static void *map_aligned(size_t bytes, size_t to) {
    char *p = mmap(NULL, bytes + to, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) {
        return NULL;
    }
    size_t before = (to - (uintptr_t)p % to) % to;
    if (before > 0) {
        munmap(p, before);
    }
    munmap(p + before + bytes, to - before);
    return p + before;
}

/* The chunk with room for `bytes`, a new one if need be; NULL without memory. */
static struct i8_chunk *chunk_with_room(struct backend *b, size_t bytes) {
    for (struct i8_chunk *c = b->i8_chunks; c; c = c->next) {
        if (c->bytes - c->used >= bytes) {
            return c;
        }
    }
    size_t total = round_up(sizeof(struct i8_chunk) + bytes, HUGE_PAGE);
    total = total < CHUNK_BYTES ? CHUNK_BYTES : total;
    struct i8_chunk *c = map_aligned(total, HUGE_PAGE);
    if (!c) {
        return NULL;
    }
    madvise(c, total, MADV_HUGEPAGE); /* if not, small pages do */
    *c = (struct i8_chunk){.next = b->i8_chunks, .bytes = total, .used = sizeof *c};
    b->i8_chunks = c;
    return c;
}

static void *chunk_take(struct i8_chunk *c, size_t bytes) {
    void *p = (char *)c + c->used;
    c->used += round_up(bytes, 64);
    return p;
}

static int check_weight(const struct weight *w, struct error *err) {
    if (w->k > I8_MAX_K) {
        return error_set(err, ERROR_UNSUPPORTED,
                         "an I8 weight has %zu input features, at most %d can be summed exactly", w->k, I8_MAX_K);
    }
    if (w->n > SIZE_MAX / 2 / I8_MAX_K || !w->scales) {
        return error_set(err, ERROR_INVALID, "an I8 weight has %zu rows and %s scales", w->n, w->scales ? "" : "no");
    }
    if (w->activation == ACTIVATION_I8_STATIC && (!(w->input_scale > 0) || !isfinite(w->input_scale) ||
                                                  w->input_zero_point < -128 || w->input_zero_point > 127)) {
        return error_set(err, ERROR_MODEL, "an I8 weight has the input scale %g and the input zero point %d",
                         (double)w->input_scale, (int)w->input_zero_point);
    }
    for (size_t i = 0; i < w->n; i++) {
        if (!(w->scales[i] >= 0) || !isfinite(w->scales[i])) {
            return error_set(err, ERROR_MODEL, "the scale of row %zu of an I8 weight is %g", i, (double)w->scales[i]);
        }
    }
    return 0;
}

static size_t rows_bytes(const struct backend *b, size_t k) {
    return round_up(b->max_rows, 2 * I8_PANEL) * i8_row_bytes(b->kernels, k);
}

bool i8_loaded(const struct backend *b, const struct weight *w) {
    return w->packed && rows_bytes(b, w->k) <= b->i8_row_bytes;
}

/* Room for the quantised rows of a step (op_linear_i8.c), for weights of k features. */
static int grow_rows(struct backend *b, size_t k, struct error *err) {
    size_t bytes = rows_bytes(b, k);
    if (bytes <= b->i8_row_bytes) {
        return 0;
    }
    void *rows = map_aligned(round_up(bytes, HUGE_PAGE), HUGE_PAGE);
    if (!rows) {
        return error_memory(err);
    }
    if (b->i8_rows) {
        munmap(b->i8_rows, b->i8_row_bytes);
    }
    b->i8_rows = rows;
    b->i8_row_bytes = round_up(bytes, HUGE_PAGE);
    return 0;
}

struct pack_job {
    const struct cpu_kernels *kernels;
    const struct weight *w;
    size_t groups;
    int8_t *panels;
    int32_t *sums;
};

static void pack_panel(void *arg, size_t i, size_t worker) {
    (void)worker;
    const struct pack_job *job = arg;
    size_t row = i * I8_PANEL, rows = job->w->n - row < I8_PANEL ? job->w->n - row : I8_PANEL;
    job->kernels->i8_pack((const int8_t *)job->w->data + row * job->w->row_bytes, job->w->row_bytes, rows, job->w->k,
                          job->groups, job->panels + i * job->groups * (I8_PANEL * 4), job->sums + row);
}

int i8_weight_load(struct backend *b, struct weight *w, struct error *err) {
    if (check_weight(w, err) < 0 || grow_rows(b, w->k, err) < 0) {
        return -1;
    }
    size_t n = round_up(w->n, I8_PANEL), k = round_up(w->k, I8_TILE_K);
    size_t bytes = round_up(sizeof(struct i8_weight), 64) + 2 * round_up(n * sizeof(float), 64) + n * k;
    struct i8_chunk *c = chunk_with_room(b, bytes);
    if (!c) {
        return error_memory(err);
    }
    struct i8_weight *p = chunk_take(c, sizeof *p);
    float *scales = chunk_take(c, n * sizeof *scales);
    int32_t *sums = chunk_take(c, n * sizeof *sums);
    int8_t *panels = chunk_take(c, n * k);
    *p = (struct i8_weight){w->n, w->k, k / 4, panels, scales, sums, c};
    memset(scales, 0, n * sizeof *scales);
    memcpy(scales, w->scales, w->n * sizeof *scales);
    struct pack_job job = {b->kernels, w, k / 4, panels, sums};
    pool_run(b->pool, n / I8_PANEL, pack_panel, &job);
    c->weights++;
    w->packed = p;
    w->data = panels;
    w->scales = scales;
    return 0;
}

static void chunk_free(struct backend *b, struct i8_chunk *c) {
    struct i8_chunk **at = &b->i8_chunks;
    while (*at != c) {
        at = &(*at)->next;
    }
    *at = c->next;
    munmap(c, c->bytes);
}

void i8_weight_unload(struct backend *b, struct weight *w) {
    struct i8_chunk *c = w->packed ? ((struct i8_weight *)w->packed)->chunk : NULL;
    w->packed = NULL;
    if (c && --c->weights == 0) {
        chunk_free(b, c);
    }
}

void i8_close(struct backend *b) {
    while (b->i8_chunks) {
        chunk_free(b, b->i8_chunks);
    }
    if (b->i8_rows) {
        munmap(b->i8_rows, b->i8_row_bytes);
    }
}

void i8_weight_row(const struct i8_weight *w, size_t row, float *out) {
    const int8_t *p = i8_panel(w, row / I8_PANEL) + row % I8_PANEL * 4;
    float scale = w->scales[row];
    for (size_t k = 0; k < w->k; k++) {
        out[k] = scale * (float)p[k / 4 * (I8_PANEL * 4) + k % 4];
    }
}
