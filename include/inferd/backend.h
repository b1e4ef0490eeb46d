/*
 * The backend interface: what the forward pass asks of a device. One table of functions that execute at once,
 * in order, on the backend's queue (no graph language). model/decoder.c is written once against it.
 *
 * Conventions
 *  - Device memory is addressed by plain pointers (`void *`); on the CPU backend these are host pointers.
 *  - Activations are row-major [rows][features] of info.activation_dtype (F32 on the CPU, BF16 on CUDA). A row stride
 *    `ld` is counted in elements. The residual stream is F32 everywhere.
 *  - Index arrays (token_ids, positions, slot_mapping, block_tables, ...) are what step_begin returned; of a backend
 *    without step_begin they are host memory.
 *  - Batches are ragged: `rows` tokens of `n_sequences` sequences, cu_seqlens[n_sequences + 1] says where each begins.
 *  - Every function returns 0, or -1 with *err filled. All are called from the one rank thread of that backend.
 *  - Results do not depend on the company: each row's sums are taken in one fixed order whatever `rows` is.
 */
#ifndef INFERD_BACKEND_H
#define INFERD_BACKEND_H

#include <inferd/error.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BACKEND_ABI 10u /* raise on every change of this header */

enum dtype {
    DTYPE_F32,
    DTYPE_F16,
    DTYPE_BF16,
    DTYPE_I8,
    DTYPE_Q4_0, /* GGUF blocks of 32 */
    DTYPE_Q4_1,
    DTYPE_Q5_0,
    DTYPE_Q5_1,
    DTYPE_Q8_0,
    DTYPE_Q4_K, /* GGUF super-blocks of 256 */
    DTYPE_Q5_K,
    DTYPE_Q6_K,
    DTYPE_I32, /* never computed with */
    DTYPE_COUNT,
};

/* The layout of a type: `block` elements take `bytes`. A row of n elements needs n % block == 0. */
struct dtype_info {
    const char *name; /* "F32", "Q4_K" */
    size_t block;
    size_t bytes;
};
const struct dtype_info *dtype_info(enum dtype t);
/* Bytes of n elements, false if n is not a multiple of the block or the product overflows. */
bool dtype_row_bytes(enum dtype t, size_t n, size_t *bytes);

/* How the rows that meet an I8 weight become integers; s is their scale, z their zero point. The product is
 * y[m][j] = s[m] * scales[j] * sum_i (q[m][i] - z[m]) * W[j][i], the sum exact in 32 bits, the scales applied once. */
enum activation_quant {
    ACTIVATION_FLOAT,    /* weight-only: x as it is, the product summed as floats */
    ACTIVATION_I8_TOKEN, /* per row: s = absmax / 127, q = x / s to nearest even, z = 0; a row of zeros has s = 1 */
    ACTIVATION_I8_TOKEN_ZERO, /* per row, asymmetric: s = (max(x, 0) - min(x, 0)) / 255, z = -128 - min / s to nearest
                                 even */
    ACTIVATION_I8_STATIC,     /* s = input_scale, z = input_zero_point: q saturates at -128 and 127 */
};

/* A weight matrix W[n][k] (n output features, k input features) as it lies on the device. */
struct weight {
    enum dtype dtype;
    size_t n, k;
    size_t row_bytes;
    const void *data; /* [n] rows of row_bytes; owned by whoever loaded it (the mapping, or backend memory) */
    void *packed;     /* the backend's own form, NULL if none; owned by the backend */
    /* I8 alone: */
    const float *scales; /* [n], host memory until weight_load returns; each finite and >= 0 */
    enum activation_quant activation;
    float input_scale;        /* ACTIVATION_I8_STATIC, > 0 */
    int32_t input_zero_point; /* ACTIVATION_I8_STATIC, -128..127 */
    /* A rank's rows [first_row, first_row + n) of a larger table, for embed: any other token gives a row of zeros. */
    bool is_shard;
    size_t first_row;
};

/* One of several products of the same input: y[rows][ldy], the first w->n columns written. */
struct linear_part {
    const struct weight *w; /* [n][k] */
    const float *bias;      /* [n] F32 or NULL */
    void *y;
    size_t ldy;
    enum dtype y_dtype; /* activation_dtype or F32 */
};

/* Rows already quantised for weights of ACTIVATION_I8_TOKEN: q[rows][ld] int8, columns from k to ld are zero;
 * scales[rows]. Device memory. ld is k rounded up to ROWS_I8_PAD. */
#define ROWS_I8_PAD 64u
struct rows_i8 {
    int8_t *q;
    size_t ld;
    float *scales;
};

enum rope_style {
    ROPE_INTERLEAVED, /* rotates pairs (2i, 2i+1): GGUF's permuted Llama */
    ROPE_HALVES,      /* rotates pairs (i, i + n_rot/2): Hugging Face, Qwen, Gemma */
};

/* cos and sin of position p, pair i are of angle p * inv_freq[i]; both are multiplied by `mscale` (YaRN). */
struct rope_table {
    const float *inv_freq; /* [n_rot / 2], device memory, lives as long as the model */
    size_t n_rot;          /* rotated features of a head, even, <= head_dim */
    float mscale;          /* 1 unless YaRN */
    enum rope_style style;
};

enum activation { ACTIVATION_SILU, ACTIVATION_GELU_TANH };

/* KV memory of one layer: [block][2: K, V][kv_head][block_size tokens][head_dim] of `dtype`. With I8 a block's values
 * are followed by its scales, [2: K, V][kv_head][block_size tokens] F16: x = scale * q, symmetric, scale = absmax /
 * 127. */
struct kv_layer {
    void *data;
    enum dtype dtype; /* F16, BF16 or I8 */
    size_t n_blocks, block_size, n_kv_heads, head_dim;
};
/* Bytes of such memory, SIZE_MAX if they overflow. I8 has one F16 scale beside each head's K and each head's V of a
 * token. */
size_t kv_layer_bytes(enum dtype dtype, size_t n_blocks, size_t block_size, size_t n_kv_heads, size_t head_dim);

/*
 * Paged causal attention over sequences. Row r of sequence s sits at position
 * context_lens[s] - (cu_seqlens[s+1] - cu_seqlens[s]) + (r - cu_seqlens[s]) and sees keys 0..position, or the last
 * `window` of them when window > 0.  out = softmax(scale * q k^T) v   (Vaswani et al. 2017, eq. 1; softmax taken
 * online over KV blocks in position order, Milakov & Gimelshein 2018).
 */
struct attention_args {
    const void *q; /* [rows][ldq], head h at column h * head_dim */
    size_t ldq;
    void *out; /* [rows][ldo], head h at column h * head_dim */
    size_t ldo;
    const struct kv_layer *kv;
    const int32_t *block_tables; /* [n_sequences][max_blocks], block index of each block_size run of positions */
    size_t max_blocks;
    const int32_t *cu_seqlens;   /* [n_sequences + 1] */
    const int32_t *context_lens; /* [n_sequences], tokens in KV including this step's */
    size_t n_sequences, rows;
    size_t max_query;   /* most rows of one sequence, at least that (the host's: a launch is sized by it) */
    size_t max_context; /* largest of context_lens, at least that */
    size_t n_heads, n_kv_heads,
        head_dim; /* n_heads % n_kv_heads == 0; query head h reads kv head h / (n_heads / n_kv_heads) */
    float scale;
    size_t window; /* 0 = no limit */
};

struct backend_config {
    size_t threads;      /* 0 = as many as the process may keep busy */
    size_t max_rows;     /* most rows in one call: workspace is taken for it at open */
    const char *variant; /* CPU: "generic", "avx2", "avx512", "vnni", "amx" to force one; NULL = best */
    uint64_t step_ns;    /* "null" alone: steps end at multiples of this */
    /* Which of n_ranks backends in this process it is, 0 = the only one. CPU: they share the processors out, whole NUMA nodes
     * where that comes out even; `threads` is that of this one, 0 = its share. */
    size_t rank, n_ranks;
    /* CUDA alone: */
    size_t ordinal;           /* which device */
    bool batch_invariant;     /* one order of summing whatever the company is, for 16-bit products too */
    const char *cache_folder; /* where the timed choices of algorithms are kept; NULL: nowhere */
};

struct backend_info {
    const char *name;    /* "cpu" */
    const char *variant; /* "avx512" */
    const char *device;  /* human readable */
    size_t threads;
    enum dtype activation_dtype;
    size_t memory_total; /* bytes the device may use */
    bool own_memory;     /* these are the device's; else they are a part of the host's */
    size_t
        memory_overhead; /* of these, what is gone when it is open: context, libraries, the backend's own workspace */
    bool memory_is_ours; /* what is left is of no use to others: KV takes all that may be used */
};

/* The largest shapes of all calls to come. */
struct backend_shapes {
    size_t max_rows, max_sequences;
    size_t max_blocks;  /* entries of a sequence in step_arrays.block_tables: always this many from then on */
    size_t max_context; /* tokens of a sequence */
    size_t n_heads, n_kv_heads, head_dim;
    size_t max_logits, vocab_size; /* rows of logits in memory at once; their width */
};

/* The index arrays of one step. */
struct step_arrays {
    int32_t *token_ids;    /* [rows] */
    int32_t *positions;    /* [rows] */
    int32_t *slot_mapping; /* [rows]; -1: a row that only fills up a bucket, stored nowhere */
    int32_t *cu_seqlens;   /* [n_sequences + 1] */
    int32_t *context_lens; /* [n_sequences]; 0: fills up a bucket */
    int32_t *block_tables; /* [n_sequences][max_blocks] */
    int32_t *logit_rows;   /* [n_logits] */
    size_t rows, n_sequences, max_blocks, n_logits;
    size_t used_blocks; /* <= max_blocks: in each row of block_tables, entries behind these are not looked at */
};

/* A token to choose on the device, from row `logits_row` of the last pass's logits. */
struct sample_row {
    size_t logits_row;
    int32_t last_token; /* the one before */
    bool greedy;
    uint64_t seed, position; /* position: how many tokens come before */
    uint32_t choice;
    const int32_t *candidates; /* [n_candidates] ids to choose from; NULL: [0, n_candidates) */
    size_t n_candidates;       /* >= 1 */
};

/*
 * A choice on the device, of the sampler's arithmetic (engine/sampler_math.h): equal choices for equal logits.
 *
 * What happens to one logit first: z += bias; with count != 0 the penalties (count > 0: how often it was generated, -1:
 * it is in the prompt alone); masked: z = -infinity.
 */
struct logit_edit {
    int32_t id;
    int32_t count;
    float bias;
    uint32_t masked;
};
enum choice_stage { CHOICE_TEMPERATURE, CHOICE_TOP_K, CHOICE_TOP_P, CHOICE_MIN_P, CHOICE_STAGES };
struct choice_row {
    size_t logits_row;              /* of the last pass */
    const struct logit_edit *edits; /* [n_edits], host memory, each id once */
    size_t n_edits;
    float repetition_penalty, frequency_penalty, presence_penalty;
    bool greedy;                             /* the largest, of equal ones the lowest id; no stages then */
    uint8_t n_stages, stages[CHOICE_STAGES]; /* enum choice_stage, in the order they act */
    float temperature, top_p, min_p;
    uint32_t top_k, min_keep; /* >= 1 */
    uint64_t random;          /* uniform: decides among what is left */
};
/* In place of a token: a logit is NaN or infinite; none may be chosen. */
#define CHOICE_NONFINITE (-1)
#define CHOICE_NO_TOKEN (-2)

/* Where the time of the calls since profiling was switched on went. */
enum backend_op {
    BACKEND_OP_EMBED,
    BACKEND_OP_RMS_NORM,
    BACKEND_OP_LINEAR,
    BACKEND_OP_ROPE,
    BACKEND_OP_KV_STORE,
    BACKEND_OP_ATTENTION,
    BACKEND_OP_SILU_MUL,
    BACKEND_OP_GATHER_ROWS,
    BACKEND_OP_COUNT,
};
struct backend_profile {
    struct {
        uint64_t calls;
        uint64_t ns;      /* of the rank thread, from call to return */
        uint64_t idle_ns; /* within these, of all threads together, what was not spent in the operation's own work:
                             waiting for a task, for another thread, waking up (at most threads * ns) */
    } ops[BACKEND_OP_COUNT];
};

/* What this machine does at most with the threads of this backend, measured by small loops (about a second); 0: not
 * known, or no such instruction. An operation is a multiplication or an addition. */
struct backend_limits {
    double read_bytes_per_s; /* memory, far beyond the caches */
    double i8_ops_per_s, bf16_ops_per_s, f32_ops_per_s;
};

struct collective;    /* collective.h */
struct backend;       /* the module's own */
struct backend_graph; /* operations recorded, the module's own */

struct backend_ops {
    uint32_t abi; /* BACKEND_ABI */
    const char *name;

    int (*open)(const struct backend_config *config, struct backend **out, struct error *err);
    void (*close)(struct backend *b); /* NULL is fine */
    void (*info)(const struct backend *b, struct backend_info *out);
    int (*sync)(struct backend *b, struct error *err); /* wait for everything queued */

    int (*alloc)(struct backend *b, size_t bytes, void **out, struct error *err); /* 64-byte aligned, zeroed */
    void (*free)(struct backend *b, void *p);
    int (*upload)(struct backend *b, void *dst, const void *src, size_t bytes, struct error *err);
    int (*download)(struct backend *b, void *dst, const void *src, size_t bytes, struct error *err);
    int (*host_alloc)(struct backend *b, size_t bytes, void **out, struct error *err); /* memory both sides read fast */
    void (*host_free)(struct backend *b, void *p);

    /* Take a weight from host memory (the file's mapping, which outlives the backend; of an I8 weight neither data nor
     * scales need to live on: the backend keeps its own). The CPU computes from the mapping in place or repacks at the
     * same bits. *w has dtype, n, k, row_bytes and data (host) set; on return data/packed are the device's, and data is
     * not NULL. */
    int (*weight_load)(struct backend *b, struct weight *w, struct error *err);
    void (*weight_unload)(struct backend *b, struct weight *w);

    /* y[rows][ldy] = scale * table[token_ids[r]][0..k) dequantised; y is the residual stream, F32 */
    int (*embed)(struct backend *b, void *y, size_t ldy, const struct weight *table, const int32_t *token_ids,
                 size_t rows, float scale, struct error *err);

    /* if residual: x[r] += residual[r] (in place); then y[r][i] = x[r][i] / sqrt(mean_i x[r][i]^2 + eps) * w[i].
     * (Zhang & Sennrich 2019.) `groups`: each row holds `groups` vectors of `dim` side by side, normed one by one
     * with the same w (qk-norm: groups = heads). y may be x. residual needs groups == 1. */
    int (*rms_norm)(struct backend *b, void *y, size_t ldy, void *x, size_t ldx, const void *residual, size_t ldr,
                    const float *w, size_t rows, size_t groups, size_t dim, float eps, struct error *err);

    /* Each part: y[r][j] = sum_k x[r][k] W[j][k] (+ bias[j]). All parts share x[rows][ldx] and k. */
    int (*linear)(struct backend *b, const void *x, size_t ldx, size_t rows, const struct linear_part *parts,
                  size_t n_parts, struct error *err);

    /* Rotate x[rows][heads * head_dim] in place by positions[rows] (Su et al. 2021, eq. 34). */
    int (*rope)(struct backend *b, void *x, size_t ldx, size_t heads, size_t head_dim, const int32_t *positions,
                size_t rows, const struct rope_table *table, struct error *err);

    /* Write K and V rows, [rows][n_kv_heads * head_dim] each, to slots: slot = block * block_size + offset. */
    int (*kv_store)(struct backend *b, struct kv_layer *kv, const void *k, size_t ldk, const void *v, size_t ldv,
                    const int32_t *slot_mapping, size_t rows, struct error *err);

    /* Block to[i] becomes a copy of block from[i], i = 0, 1, .. n - 1 in this order. from and to are host memory. */
    int (*kv_copy)(struct backend *b, struct kv_layer *kv, const int32_t *from, const int32_t *to, size_t n,
                   struct error *err);

    int (*attention)(struct backend *b, const struct attention_args *args, struct error *err);

    /* y[r][i] = act(gate[r][i]) * up[r][i]; y may be gate. */
    int (*silu_mul)(struct backend *b, void *y, size_t ldy, const void *gate, size_t ldg, const void *up, size_t ldu,
                    size_t rows, size_t dim, enum activation activation, struct error *err);

    /* y[i] = x[index[i]], i < n; both of dtype (activation_dtype or F32) */
    int (*gather_rows)(struct backend *b, enum dtype dtype, void *y, size_t ldy, const void *x, size_t ldx,
                       const int32_t *index, size_t n, size_t dim, struct error *err);

    /* NULL: logits are read and tokens chosen on the host (engine/sampler.c). Else tokens[i] for rows[i], i < n. */
    int (*sample)(struct backend *b, const struct sample_row *rows, size_t n, int32_t *tokens, struct error *err);

    /*
     * All that follows may be NULL.
     *
     * step_begin: the arrays of the next step, host memory, are copied (they may change when it returns); *device has
     * the same sizes and where the operations find them, always the same places (a graph remembers them).
     */
    int (*step_begin)(struct backend *b, const struct step_arrays *host, struct step_arrays *device, struct error *err);

    /* reserve: after the weights and before KV memory; all memory that calls of these shapes need is taken, and nothing
     * later. memory_used: bytes of the device that anybody has now. ready: start-up is over, nothing is measured or
     * taken from now on. */
    int (*reserve)(struct backend *b, const struct backend_shapes *shapes, struct error *err);
    int (*memory_used)(struct backend *b, size_t *bytes, struct error *err);
    int (*ready)(struct backend *b, struct error *err);

    /* With this, the residual stream differs in type from other activations. x[r] += residual[r] (in place, x F32,
     * residual activation_dtype or NULL); then the rms_norm of x[r] goes to y, or quantised to *q where that is not
     * NULL. */
    int (*add_rms_norm)(struct backend *b, void *y, size_t ldy, const struct rows_i8 *q, float *x, size_t ldx,
                        const void *residual, size_t ldr, const float *w, size_t rows, size_t dim, float eps,
                        struct error *err);

    /* Fused forms. silu_mul_i8: silu_mul whose result is quantised. linear_i8: every part's weight is I8 with
     * ACTIVATION_I8_TOKEN. rope_kv_store: rope of q and k, then kv_store; qkv[rows][ld] holds q, k and v side by side.
     * All three together, or none. */
    int (*silu_mul_i8)(struct backend *b, const struct rows_i8 *q, const void *gate, size_t ldg, const void *up,
                       size_t ldu, size_t rows, size_t dim, enum activation activation, struct error *err);
    int (*linear_i8)(struct backend *b, const struct rows_i8 *x, size_t rows, const struct linear_part *parts,
                     size_t n_parts, struct error *err);
    int (*rope_kv_store)(struct backend *b, void *qkv, size_t ld, size_t n_heads, size_t n_kv_heads, size_t head_dim,
                         const int32_t *positions, const int32_t *slot_mapping, size_t rows,
                         const struct rope_table *table, struct kv_layer *kv, struct error *err);

    /*
     * choose: queue the choice of a token for each of rows[0..n), n <= max_logits, from the logits [..][ld] of the last
     * pass queued, of whose columns the first vocab_size count; what is asked is copied. chosen: wait for the oldest
     * choice that was not taken yet (there may be two), tokens[0..n). feed: each token_ids[i] below 0, i < n (device
     * memory), becomes the token of row -1 - token_ids[i] of the last choice queued, 0 in place of none: so a pass can
     * be queued whose tokens nobody knows yet. choice_edits is the most that the edits of all rows may be together. All
     * or none.
     */
    int (*choose)(struct backend *b, const float *logits, size_t ld, size_t vocab_size, const struct choice_row *rows,
                  size_t n, struct error *err);
    int (*chosen)(struct backend *b, int32_t *tokens, size_t n, struct error *err);
    int (*feed)(struct backend *b, int32_t *token_ids, size_t n, struct error *err);
    size_t choice_edits;

    /* Graphs: what is called between begin and end is recorded, not done (no sync, alloc, upload or step_begin there;
     * when one of them fails, end must still be called). launch does it again, with what lies in the arrays of
     * step_begin. */
    int (*graph_begin)(struct backend *b, struct error *err);
    int (*graph_end)(struct backend *b, struct backend_graph **out, struct error *err);
    int (*graph_launch)(struct backend *b, struct backend_graph *graph, struct error *err);
    void (*graph_free)(struct backend *b, struct backend_graph *graph);

    /* profile: what was counted since the last call that switched it on (*out may be NULL), then on
     * (from zero) or off. measure: the machine's limits; nothing else may run. */
    int (*profile)(struct backend *b, bool on, struct backend_profile *out, struct error *err);

    /*
     * collective_open: a group of backends like this one, a rank each, whose operations work on device memory and are queued
     * like others (also while a graph is recorded). `host` is the same group on host memory, in whose order of ranks it
     * is made; it must outlive *out. Every rank calls it, each on its own thread, after open and before weights. what[]
     * says in words how it reaches its peers. NULL: device memory is host memory, and `host` itself serves.
     */
#define BACKEND_LINKS 256
    int (*collective_open)(struct backend *b, struct collective *host, struct collective **out, char what[BACKEND_LINKS],
                           struct error *err);

    int (*measure)(struct backend *b, struct backend_limits *out, struct error *err);

    /*
     * nodes_open: a group of `size` processes, this one `rank` of them, on host memory, over what the devices themselves connect by and
     * without MPI: waits until all have come, no longer than deadline_ms, which is the group's then. `ordinal`: by which device. Called
     * before any `open`, by the thread that uses the group.
     */
    int (*nodes_open)(size_t ordinal, size_t rank, size_t size, size_t deadline_ms, struct collective **out, struct error *err);
};

/*
 * The registry (engine/backend/registry.c). Devices by name: "cpu", "null", "cuda" or "cuda:N", "auto". The CUDA
 * backend is a module, inferd-cuda.so, that exports BACKEND_CUDA_SYMBOL, a function without arguments that returns its
 * table. It is `module` where that is not NULL, else it is looked for beside the executable, then in inferd/ of the
 * installed library folder. A module stays loaded.
 */
#define BACKEND_CUDA_SYMBOL "inferd_backend_cuda"

/* The table of a device that is named (not "auto"). ERROR_DEVICE if there is none. */
int backend_find(const char *name, const char *module, const struct backend_ops **out, struct error *err);

/* nodes_open of a device by its name, "auto" being CUDA. ERROR_UNSUPPORTED, param "device": it has none. */
int backend_open_nodes(const char *name, const char *module, size_t rank, size_t size, size_t deadline_ms, struct collective **out,
                       struct error *err);

/*
 * Find and open. "auto": CUDA device 0 where the module is and a GPU that it can use, else the CPU; the null device
 * must be named. config->ordinal is set by the name. *why (of BACKEND_WHY bytes, "" unless "auto") says in a sentence
 * what was chosen and why.
 */
#define BACKEND_WHY 640
int backend_open(const char *name, const char *module, const struct backend_config *config,
                 const struct backend_ops **ops, struct backend **out, char *why, struct error *err);

#endif
