/*
 * The host part of the CUDA backend: one device, one stream that everything runs on in order, and memory that is taken
 * at start-up. Kernels stand behind the launchers of launch.h, 16-bit products of many rows behind cuBLASLt (cublas.h).
 *
 * Buffers grow while the model is loaded; reserve sizes them for the largest shapes, and from then on they stay where
 * they are (graphs remember addresses). An error of CUDA becomes ERROR_DEVICE with what was called; after one that
 * spoils the context everything fails at once.
 */
#ifndef INFERD_CUDA_H
#define INFERD_CUDA_H

#include "launch.h"

#include <inferd/backend.h>

#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        if ((call) < 0) {                                                                                              \
            return -1;                                                                                                 \
        }                                                                                                              \
    } while (0)

struct cublas;     /* cublas.h */
struct cuda_group; /* collective.h */

/* Device memory that only grows. */
struct cuda_buffer {
    void *data;
    size_t bytes;
};

/* Host memory that is filled and copied to the device by turns: a slot is filled again when its copy has run. */
#define CUDA_SLOTS 2
struct cuda_slots {
    struct {
        void *host; /* pinned */
        cudaEvent_t copied;
        bool used;
    } slots[CUDA_SLOTS];
    size_t bytes; /* of each */
    size_t next;
};

/* Where the arrays of a step lie, in elements of the slot and of the device's buffer alike. */
struct cuda_step {
    struct cuda_buffer arrays;
    struct cuda_slots slots;
    size_t max_rows, max_sequences, max_blocks;
};

/* Of choose: what is asked, its choices first, and the tokens that come back by turns. */
struct cuda_chooser {
    struct cuda_buffer input, tokens;
    struct cuda_slots slots;   /* of input */
    struct cuda_slots results; /* int32 [max_rows] each; the next one is the oldest that was not taken, if any */
    size_t n_waiting;          /* results that were not taken, <= CUDA_SLOTS */
    size_t max_rows;
};

#define CUDA_COPY_PAIRS 1024 /* of kv_copy, uploaded at a time */

struct backend {
    int ordinal;
    size_t rank, n_ranks; /* of backend_config */
    struct cuda_device device;
    char variant[16];
    char name[320]; /* for people */
    char model[256];
    size_t memory_total, memory_overhead;
    size_t max_rows;
    size_t threads; /* of the host, for who converts weights */
    bool batch_invariant;
    bool fixed; /* reserve was called: no buffer moves any more */
    bool ready; /* start-up is over */
    bool capturing;
    struct error lost; /* code != ERROR_NONE: why nothing goes any more */

    cudaStream_t stream;
    struct cublas *cublas;
    struct cuda_group *group; /* NULL: it is the only rank */
    struct cuda_slots staging;
    struct cuda_step step;
    struct cuda_chooser chooser;

    /* Scratch of one operation. */
    struct cuda_buffer scratch; /* partial sums of products and of attention; cuBLASLt's workspace */
    struct cuda_buffer rows_q, rows_scales, rows_zeros; /* rows that are quantised for a product */
    struct cuda_buffer wide_x, wide_y;                  /* F32, for weights of F32 */

    struct cuda_slots copy_slots;                                     /* of kv_copy */
    struct cuda_buffer copy_pairs;                                    /* int32 [2][CUDA_COPY_PAIRS]: from, to */
    int32_t copied_from[CUDA_COPY_PAIRS], copied_to[CUDA_COPY_PAIRS]; /* what lies in copy_pairs */
    size_t n_copied;
};

/* What weight.packed points to. */
struct cuda_loaded {
    struct cuda_weight w;
    void *memory; /* data, scales and row sums */
};

/* ---- cuda.c ---- */

/* Returns 0 where rc is cudaSuccess. */
int cuda_check(struct backend *b, cudaError_t rc, const char *what, struct error *err);
/* -1 once the device is lost. Makes it the calling thread's. */
int cuda_alive(const struct backend *b, struct error *err);
void cuda_use(const struct backend *b);
/* Until the event, or (NULL) all that is queued, is done. Of several ranks, no longer than their group allows. */
int cuda_wait(struct backend *b, cudaEvent_t event, const char *what, struct error *err);
/* What is gone of the device's memory now is overhead. */
int cuda_memory_overhead(struct backend *b, struct error *err);
/* At least `bytes`; moves it, so only before reserve is over. */
int cuda_grow(struct backend *b, struct cuda_buffer *buffer, size_t bytes, const char *what, struct error *err);
int cuda_slots_open(struct backend *b, struct cuda_slots *s, size_t bytes, struct error *err);
void cuda_slots_close(struct cuda_slots *s);
/* The next slot's memory, once its last copy has run. After filling it: copy, then cuda_slot_sent. */
int cuda_slot(struct backend *b, struct cuda_slots *s, void **host, struct error *err);
int cuda_slot_sent(struct backend *b, struct cuda_slots *s, struct error *err);

/* ---- probe.c ---- */

/* What is known when there is no device to use. */
struct cuda_facts {
    cudaError_t rc; /* of cudaGetDeviceCount */
    int n_devices;
    int driver, runtime; /* as CUDA counts: 13000 */
    bool has_library;    /* libcuda.so.1 can be loaded */
    bool has_node;       /* a device node */
    bool may_open;       /* and it may be opened */
    char node[64];       /* the one that matters */
    bool hidden;         /* CUDA_VISIBLE_DEVICES is set */
};
/* -1 with what is missing. */
int cuda_explain(const struct cuda_facts *facts, struct error *err);
/* The number of devices, or what is missing. */
int cuda_count_devices(int *n, struct error *err);
/* Whether n devices are enough for ranks that begin with device `first`. */
int cuda_check_count(size_t first, size_t rank, size_t n_ranks, int n, struct error *err);
/* Whether device `ordinal` of n can be used. */
int cuda_check_device(int ordinal, int n, const char *name, int major, int minor, struct error *err);

/* ---- weight.c ---- */

int cuda_weight_load(struct backend *b, struct weight *w, struct error *err);
void cuda_weight_unload(struct backend *b, struct weight *w);
/* Host memory to the device through the staging slots; src may change when it returns. */
int cuda_upload(struct backend *b, void *dst, const void *src, size_t bytes, struct error *err);

/* ---- operations ---- */

int cuda_op_linear(struct backend *b, const void *x, size_t ldx, size_t rows, const struct linear_part *parts,
                   size_t n_parts, struct error *err);
int cuda_op_linear_i8(struct backend *b, const struct rows_i8 *x, size_t rows, const struct linear_part *parts,
                      size_t n_parts, struct error *err);

int cuda_op_embed(struct backend *b, void *y, size_t ldy, const struct weight *table, const int32_t *token_ids,
                  size_t rows, float scale, struct error *err);
int cuda_op_rms_norm(struct backend *b, void *y, size_t ldy, void *x, size_t ldx, const void *residual, size_t ldr,
                     const float *w, size_t rows, size_t groups, size_t dim, float eps, struct error *err);
int cuda_op_add_rms_norm(struct backend *b, void *y, size_t ldy, const struct rows_i8 *q, float *x, size_t ldx,
                         const void *residual, size_t ldr, const float *w, size_t rows, size_t dim, float eps,
                         struct error *err);
int cuda_op_silu_mul(struct backend *b, void *y, size_t ldy, const void *gate, size_t ldg, const void *up, size_t ldu,
                     size_t rows, size_t dim, enum activation activation, struct error *err);
int cuda_op_silu_mul_i8(struct backend *b, const struct rows_i8 *q, const void *gate, size_t ldg, const void *up,
                        size_t ldu, size_t rows, size_t dim, enum activation activation, struct error *err);
int cuda_op_gather_rows(struct backend *b, enum dtype dtype, void *y, size_t ldy, const void *x, size_t ldx,
                        const int32_t *index, size_t n, size_t dim, struct error *err);

int cuda_op_rope(struct backend *b, void *x, size_t ldx, size_t heads, size_t head_dim, const int32_t *positions,
                 size_t rows, const struct rope_table *table, struct error *err);
int cuda_op_kv_store(struct backend *b, struct kv_layer *kv, const void *k, size_t ldk, const void *v, size_t ldv,
                     const int32_t *slot_mapping, size_t rows, struct error *err);
int cuda_op_rope_kv_store(struct backend *b, void *qkv, size_t ld, size_t n_heads, size_t n_kv_heads, size_t head_dim,
                          const int32_t *positions, const int32_t *slot_mapping, size_t rows,
                          const struct rope_table *table, struct kv_layer *kv, struct error *err);
int cuda_op_kv_copy(struct backend *b, struct kv_layer *kv, const int32_t *from, const int32_t *to, size_t n,
                    struct error *err);
int cuda_op_attention(struct backend *b, const struct attention_args *args, struct error *err);

/* ---- step.c ---- */

int cuda_step_reserve(struct backend *b, size_t max_rows, size_t max_sequences, size_t max_blocks, struct error *err);
void cuda_step_close(struct backend *b);
int cuda_step_begin(struct backend *b, const struct step_arrays *host, struct step_arrays *device, struct error *err);

/* ---- op_choose.c ---- */

int cuda_choose_reserve(struct backend *b, size_t max_rows, size_t vocab_size, struct error *err);
void cuda_choose_close(struct backend *b);
/* Around the kernels of a choice: what is asked is on the device, its edits behind max_rows choices; tokens are on their way. */
int cuda_choose_begin(struct backend *b, size_t vocab_size, const struct choice_row *rows, size_t n, struct error *err);
int cuda_choose_end(struct backend *b, size_t n, struct error *err);
int cuda_op_choose(struct backend *b, const float *logits, size_t ld, size_t vocab_size, const struct choice_row *rows,
                   size_t n, struct error *err);
int cuda_op_chosen(struct backend *b, int32_t *tokens, size_t n, struct error *err);
int cuda_op_feed(struct backend *b, int32_t *token_ids, size_t n, struct error *err);

/* ---- graph.c ---- */

int cuda_graph_begin(struct backend *b, struct error *err);
int cuda_graph_end(struct backend *b, struct backend_graph **out, struct error *err);
int cuda_graph_launch(struct backend *b, struct backend_graph *graph, struct error *err);
void cuda_graph_free(struct backend *b, struct backend_graph *graph);

#endif
