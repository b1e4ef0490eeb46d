/*
 * The CPU backend's inside. cpu.c holds the table of operations: it checks arguments, cuts the work into tasks and
 * hands them to the pool. The kernels behind it are the same source files compiled once a variant
 * (kernels_<variant>.c); cpu_open() picks one by what the machine offers.
 */
#ifndef CPU_CPU_H
#define CPU_CPU_H

#include "arena.h"
#include "pool.h"
#include "topology.h"

#include <inferd/backend.h>

enum {
    LINEAR_CHUNK = 1024,  /* elements of k summed at once: a multiple of every block */
    LINEAR_PANEL = 32,    /* weight rows unpacked together: LINEAR_PANEL * LINEAR_CHUNK floats stay in the L2 cache */
    LINEAR_FEW_ROWS = 12, /* up to here a variant may unpack weights in registers, and tasks are cut by bytes */
    ATTENTION_KEYS = 64,  /* keys of a tile */
    ATTENTION_SEGMENT =
        1024, /* keys of a segment, the unit that a long context is split by: a multiple of ATTENTION_KEYS */
    ATTENTION_QUERIES = 48, /* most queries of a task */
    MAX_HEAD_DIM = 1024,
    QUANT_BLOCK = 32, /* activations that share a scale where weights are GGUF blocks (linear_block.h) */
    QUANT_TOP = 8191, /* their largest magnitude */
};

/*
 * A row of k activations as integers of 14 bits, 128 h + l each: [k / QUANT_BLOCK][h: QUANT_BLOCK, l: QUANT_BLOCK]
 * bytes, then [k / QUANT_BLOCK] of these.
 */
struct quant_meta {
    float scale, sum; /* sum: of the block's activations, scale included */
    int32_t sums[2];  /* of the integers of the block's halves */
};

static inline size_t quant_row_bytes(size_t k) {
    return (k / QUANT_BLOCK * (2 * QUANT_BLOCK + sizeof(struct quant_meta)) + 63) / 64 * 64;
}

/* Bytes of BF16_GROUP rows of x as pairs of BF16 (linear_bf16_amx.h). */
#define BF16_GROUP ((size_t)16)
static inline size_t bf16_group_bytes(size_t k) {
    return (k + 31) / 32 * 2048;
}

/* The product of x[rows][ldx] with rows [n0, n1) of w, into columns [n0, n1) of y. */
struct linear_tile {
    const struct weight *w;
    const float *bias; /* [w->n] or NULL */
    const float *x;
    size_t ldx, rows;
    float *y;
    size_t ldy;
    size_t n0, n1;
    float *scratch; /* [LINEAR_PANEL * LINEAR_CHUNK] */
    const uint8_t *quants; /* the same rows as integers, quants_stride bytes from one to the next; of linear_block. Of linear_bf16 what
                              bf16_pack made of them, from one BF16_GROUP to the next */
    size_t quants_stride;
};

/* The product of some rows with panels [panel0, panel1) of an I8 weight (weight_i8.h), into their columns of y. */
struct i8_tile {
    const struct i8_weight *w;
    const float *bias; /* [w->n] or NULL */
    const void *q;     /* [rows rounded up to 32][ldq] quantised rows, of the variant's own integers (quantise_i8.h) */
    size_t ldq;
    const float *scales;    /* [rows] of q */
    const int32_t *offsets; /* [rows] */
    const float *x;         /* [rows][ldx] for the weight-only kernel */
    size_t ldx, rows;
    float *y;
    size_t ldy;
    size_t panel0, panel1;
};

/* Queries of one sequence that share a KV head: rows [first_row, +n_rows) by query heads [first_head, +n_heads). */
struct attention_task {
    const struct attention_args *args;
    size_t sequence, kv_head;
    size_t first_row, n_rows, first_position; /* row in the batch, and the position it sits at */
    size_t first_head, n_heads;
    float *scratch;
    const struct attention_task *next; /* what this thread computes after it, to fetch its first keys; or NULL */
};

struct cpu_kernels {
    const char *variant;
    void (*linear)(const struct linear_tile *t);
    /* The same of packed blocks (block_pack.h), n0 a multiple of BLOCK_GROUP; and the rows it takes, quant_row_bytes(k)
     * each. NULL: blocks are not packed. */
    void (*linear_block)(const struct linear_tile *t);
    void (*quantise_row)(const float *x, size_t k, uint8_t *out);
    /* The same of BF16 weights, n0 a multiple of 16; and up to BF16_GROUP rows as it takes them, bf16_group_bytes(k), aligned to 64.
     * NULL: `linear` has them. */
    void (*linear_bf16)(const struct linear_tile *t);
    void (*bf16_pack)(const float *x, size_t ldx, size_t rows, size_t k, uint8_t *out);
    /* out[0..n) = a row's first n elements */
    void (*dequantise)(enum dtype dtype, const void *row, size_t n, float *out);
    /* I8 weights (quantise_i8.h, linear_i8.h, linear_i8_float.h) */
    size_t i8_element; /* bytes of a quantised activation */
    void (*i8_pack)(const int8_t *w, size_t row_bytes, size_t rows, size_t k, size_t groups, int8_t *panel,
                    int32_t *sums);
    void (*i8_quantise)(const float *x, size_t k, const struct weight *w, void *q, float *scale, int32_t *offset);
    void (*i8_linear)(const struct i8_tile *t);
    void (*i8_linear_float)(const struct i8_tile *t);
    void (*attention_whole)(const struct attention_task *t);
    void (*attention_segment)(const struct attention_task *t, size_t segment, float *partial);
    void (*attention_merge)(const struct attention_task *t, const float *partials, size_t stride, size_t n_segments);
    void (*scale_row)(float *y, size_t n, float scale);
    void (*add_row)(float *x, const float *y, size_t n);
    void (*rms_norm_row)(float *y, const float *x, const float *w, size_t n, float eps); /* y may be x */
    void (*silu_mul_row)(float *y, const float *gate, const float *up, size_t n);        /* y may be gate */
    void (*gelu_mul_row)(float *y, const float *gate, const float *up, size_t n);
    void (*rope_halves)(float *x, const float *cosines, const float *sines, size_t half);
    void (*rope_interleaved)(float *x, const float *cosines, const float *sines, size_t half);
    void (*to_half)(enum dtype dtype, uint16_t *y, const float *x, size_t n); /* F16 or BF16, nearest even */
    /* measure.h; each peak returns the operations that its rounds did, NULL: there is no such instruction */
    void (*measure_read)(const void *p, size_t bytes);
    double (*measure_i8_peak)(size_t rounds);
    double (*measure_bf16_peak)(size_t rounds);
    double (*measure_f32_peak)(size_t rounds);
    /* One head's K or V of a token: q[n]; returns the F16 that they are to be multiplied by. */
    uint16_t (*to_i8)(uint8_t *q, const float *x, size_t n);
};

extern const struct cpu_kernels cpu_kernels_generic;
#if defined(__x86_64__)
extern const struct cpu_kernels cpu_kernels_avx2;
extern const struct cpu_kernels cpu_kernels_avx512;
extern const struct cpu_kernels cpu_kernels_vnni;
extern const struct cpu_kernels cpu_kernels_amx;
#endif
/* A variant that a test program adds, found by its name alone; NULL in the server. Set before any backend is opened. */
extern const struct cpu_kernels *cpu_test_kernels;

/* Cosines and sines of the positions of the last call, which every layer asks for again. */
struct rope_cache {
    size_t rows, n_rot; /* 0 rows: empty */
    float mscale;
    float *inv_freq;    /* [MAX_HEAD_DIM / 2], a copy: the caller's may be another model's by now */
    int32_t *positions; /* [max_rows] */
    float *cosines;     /* [max_rows][n_rot / 2] */
    float *sines;
};

/* Queries of one sequence that are attended together: rows [first_row, +n_rows). */
struct attention_range {
    int32_t sequence, first_row, n_rows, first_position;
};

enum {
    ROPE_CACHES = 2 /* Gemma 3 has two tables, used by turns */
};

struct backend {
    const struct cpu_kernels *kernels;
    struct pool *pool;
    size_t threads, max_rows;
    uint64_t nodes; /* of memory, to spread large pieces over; 0: as they fall (topology.h) */
    size_t memory_total;
    char device[64];
    bool stays;              /* the rank's thread was bound to its share of the CPUs; */
    bool affinity[MAX_CPUS]; /* where it may run when this is closed again */

    /* Workspace, one mapping: pages that are never used take no memory. */
    void *workspace;
    size_t workspace_bytes;
    float *scratch; /* [threads][scratch_floats] */
    size_t scratch_floats;
    struct attention_range *ranges; /* [max_rows] */
    float *partials;                /* [partial_floats], attention split over segments */
    size_t partial_floats;
    float *i8_scales;    /* [max_rows], of the quantised rows of this call (op_linear_i8.c) */
    int32_t *i8_offsets; /* [max_rows] */
    char *i8_rows;       /* [max_rows rounded up to 32] rows, room for the largest k of the I8 weights loaded so far */
    size_t i8_row_bytes;
    struct i8_chunk *i8_chunks; /* memory of I8 weights (weight_i8.c) */
    uint8_t *quants;            /* max_rows rows of x as integers or pairs of BF16, of the largest k of a weight that takes them */
    size_t quants_bytes;
    struct arena packed; /* weights */
    struct rope_cache rope[ROPE_CACHES];
    size_t rope_next; /* the cache to give up next */

    bool profiling;
    struct backend_profile profile;
};

static inline float *worker_scratch(const struct backend *b, size_t worker) {
    return b->scratch + worker * b->scratch_floats;
}

/* Are the products with this weight those of linear_bf16? */
static inline bool cpu_is_tiled(const struct backend *b, const struct weight *w) {
    return w->dtype == DTYPE_BF16 && b->kernels->linear_bf16;
}
/* Room for max_rows rows of x as this weight takes them; taken when it is loaded, so that a step takes none. */
int cpu_grow_quants(struct backend *b, const struct weight *w, struct error *err);
/* -1 with a sentence if a call has more rows than the workspace was taken for. */
int check_rows(const struct backend *b, const char *op, size_t rows, struct error *err);
/* -1 with a sentence if there are no kernels for K and V of this type. */
int check_kv_dtype(const struct kv_layer *kv, struct error *err);
/* Run fn over [0, rows) in ranges (begin, end), with threads when rows * cost (about floats touched a row) is worth it.
 */
void for_rows(struct backend *b, size_t rows, size_t cost, void (*fn)(const void *arg, size_t begin, size_t end),
              const void *arg);

/* The operations, as in inferd/backend.h. */
int cpu_embed(struct backend *b, void *y, size_t ldy, const struct weight *table, const int32_t *token_ids, size_t rows,
              float scale, struct error *err);
int cpu_rms_norm(struct backend *b, void *y, size_t ldy, void *x, size_t ldx, const void *residual, size_t ldr,
                 const float *w, size_t rows, size_t groups, size_t dim, float eps, struct error *err);
int cpu_linear(struct backend *b, const void *x, size_t ldx, size_t rows, const struct linear_part *parts,
               size_t n_parts, struct error *err);
int cpu_rope(struct backend *b, void *x, size_t ldx, size_t heads, size_t head_dim, const int32_t *positions,
             size_t rows, const struct rope_table *table, struct error *err);
int cpu_kv_store(struct backend *b, struct kv_layer *kv, const void *k, size_t ldk, const void *v, size_t ldv,
                 const int32_t *slot_mapping, size_t rows, struct error *err);
int cpu_kv_copy(struct backend *b, struct kv_layer *kv, const int32_t *from, const int32_t *to, size_t n,
                struct error *err);
int cpu_attention(struct backend *b, const struct attention_args *args, struct error *err);
int cpu_silu_mul(struct backend *b, void *y, size_t ldy, const void *gate, size_t ldg, const void *up, size_t ldu,
                 size_t rows, size_t dim, enum activation activation, struct error *err);
int cpu_gather_rows(struct backend *b, enum dtype dtype, void *y, size_t ldy, const void *x, size_t ldx,
                    const int32_t *index, size_t n, size_t dim, struct error *err);

/* The same, timed while profiling is on (profile.c); and the operation `profile`. */
int profiled_embed(struct backend *b, void *y, size_t ldy, const struct weight *table, const int32_t *token_ids,
                   size_t rows, float scale, struct error *err);
int profiled_rms_norm(struct backend *b, void *y, size_t ldy, void *x, size_t ldx, const void *residual, size_t ldr,
                      const float *w, size_t rows, size_t groups, size_t dim, float eps, struct error *err);
int profiled_linear(struct backend *b, const void *x, size_t ldx, size_t rows, const struct linear_part *parts,
                    size_t n_parts, struct error *err);
int profiled_rope(struct backend *b, void *x, size_t ldx, size_t heads, size_t head_dim, const int32_t *positions,
                  size_t rows, const struct rope_table *table, struct error *err);
int profiled_kv_store(struct backend *b, struct kv_layer *kv, const void *k, size_t ldk, const void *v, size_t ldv,
                      const int32_t *slot_mapping, size_t rows, struct error *err);
int profiled_attention(struct backend *b, const struct attention_args *args, struct error *err);
int profiled_silu_mul(struct backend *b, void *y, size_t ldy, const void *gate, size_t ldg, const void *up, size_t ldu,
                      size_t rows, size_t dim, enum activation activation, struct error *err);
int profiled_gather_rows(struct backend *b, enum dtype dtype, void *y, size_t ldy, const void *x, size_t ldx,
                         const int32_t *index, size_t n, size_t dim, struct error *err);
int cpu_profile(struct backend *b, bool on, struct backend_profile *out, struct error *err);
int cpu_measure(struct backend *b, struct backend_limits *out, struct error *err);

/* Bytes from one quantised row of k elements to the next. */
size_t i8_row_bytes(const struct cpu_kernels *kernels, size_t k);
/* Give back the memory of I8 weights and rows. */
void i8_close(struct backend *b);

/* Does this machine, its operating system included, run the variant? */
bool cpu_has_avx2(void);   /* AVX2, FMA, F16C */
bool cpu_has_avx512(void); /* AVX-512 F, BW, DQ, VL, and the above */
bool cpu_has_vnni(void);   /* AVX-512 VNNI, and the above */
bool cpu_has_bf16(void);   /* AVX-512 BF16, and the above: no variant of its own */
bool cpu_has_amx(void);    /* AMX tiles of int8 and BF16, and all of the above; asks the kernel for the tiles' state */

/* Threads that this process may keep busy: one a core of its affinity mask, both of a single core's CPUs, and no more
 * than the cgroup's quota where there is one. At least 1. */
size_t cpu_available_threads(void);
/* Bytes of memory this process may use: the machine's, or the cgroup's limit. */
size_t cpu_available_memory(void);
/* The value of "quota period" as in cgroup's cpu.max, rounded up to whole CPUs; 0 if there is no limit. */
size_t cpu_quota_threads(const char *text);

#endif
