/*
 * The forward pass: one transformer decoder for every architecture of the table, against a backend's operations, over a
 * ragged batch. All memory is taken at open; a step allocates nothing. One thread (the backend's rank thread).
 */
#ifndef INFERD_DECODER_H
#define INFERD_DECODER_H

#include "model/weights.h"

/*
 * One step's rows: tokens of n_sequences sequences, one after the other. Arrays are memory of host_alloc.
 */
struct decoder_batch {
    size_t rows, n_sequences, n_logits;
    int32_t *token_ids;    /* [rows] */
    int32_t *positions;    /* [rows] */
    int32_t *slot_mapping; /* [rows] where K and V go: block * block_size + offset */
    int32_t *cu_seqlens;   /* [n_sequences + 1] */
    int32_t *context_lens; /* [n_sequences] tokens in KV including this step's */
    int32_t *block_tables; /* [n_sequences][max_blocks] */
    size_t max_blocks;
    size_t n_copies; /* before anything is computed, KV block copy_to[i] becomes a copy of copy_from[i], in order */
    int32_t *copy_from, *copy_to;
    int32_t *logit_rows;           /* [n_logits], n_logits <= rows: whose logits are asked for, ascending */
    size_t max_query, max_context; /* decoder_forward fills its own copy: rows and context of the longest sequence */
};

/* Who wants to see what the products of a layer read, as calibration does: x[rows][ld], `n` features of each row,
 * device memory. */
enum decoder_input { DECODER_INPUT_QKV, DECODER_INPUT_O, DECODER_INPUT_GATE_UP, DECODER_INPUT_DOWN, DECODER_INPUTS };
struct decoder_observer {
    int (*see)(void *arg, enum decoder_input input, const void *x, size_t ld, size_t rows, size_t n, struct error *err);
    void *arg;
};

struct decoder_limits {
    size_t max_rows, max_logits; /* rows of a step; rows of logits that lie in memory at once */
    size_t kv_blocks, kv_block_size;
    enum dtype kv_dtype;
    size_t max_context; /* tokens of a sequence; for graphs alone */
};

/* The ranks that have the other parts of the model; NULL in place of it: there are none. */
struct decoder_ranks {
    struct collective *group; /* on device memory; must outlive the decoder. NULL: it has all of its layers */
    const struct shard *shard;
    float *logits; /* of a group with shared memory: rank 0's, NULL for rank 0 itself */
    struct collective *stages; /* of a pipeline, the processes that have the other layers: of rank 0 alone. Else NULL */
};

struct decoder_graphs; /* model/decoder_graph.h */

struct decoder {
    const struct backend_ops *ops;
    struct backend *backend;
    struct model_config config; /* with the heads, features and layers of this rank */
    struct collective *group;   /* NULL: it is alone */
    struct collective *stages;  /* NULL: it has all layers, or is not the rank that speaks to other stages */
    float *stream;              /* [max_rows][n_embd] host memory for what goes to other stages: of a device that has its own; owned */
    struct shard shard;
    struct weights weights;
    struct rope_table rope, rope_local; /* local: for the sliding layers of an architecture that has one */
    float *inv_freq;                    /* [2][n_rot / 2] device memory of the tables, owned */
    struct kv_layer *kv;                /* [n_layers], owned, with their device memory */
    struct decoder_limits limits;
    enum dtype activation;            /* of all activations but x, x_last and logits, which are F32 */
    struct decoder_graphs *graphs;    /* decode steps that were recorded, NULL if none; owned */
    struct decoder_observer observer; /* see NULL: nobody; set after decoder_open */

    /* Workspace, device memory; q_dim = n_heads * head_dim, kv_dim = n_kv_heads * head_dim. */
    void *workspace;
    size_t workspace_bytes;
    float *x;        /* [max_rows][n_embd] the residual stream */
    void *h;         /* [max_rows][n_embd] normed input of a product; after a step, the head's for all logit_rows */
    void *delta;     /* [max_rows][n_embd] what a block adds to the stream */
    void *qkv;       /* [max_rows][q_dim + 2 kv_dim] */
    void *attn;      /* [max_rows][q_dim] */
    void *gate_up;   /* [max_rows][2 n_ff] */
    float *x_last;   /* [max_rows][n_embd] rows that go on to the head */
    void *attn_last; /* [max_rows][q_dim] */
    float *part;     /* [max_logits][shard.vocab_padded] this rank's logits, where they are gathered */
    size_t n_part;   /* rows of it that the last step has */
    bool gathered;   /* they are in logits too */
    float *logits;   /* [max_logits][logits_ld] of which vocab_size count; shared memory: rank 0's */
    size_t logits_ld;
    struct rows_i8 h_i8,
        ff_i8; /* [max_rows] h and the down product's input, quantised; of a backend with linear_i8 alone */
};

/*
 * Bytes of one KV token over all layers; of the workspace. False if a product overflows. *c is a rank's. logit_columns: floats
 * that the workspace has for each row of logits, decoder_logit_columns of rank `rank` of n_ranks.
 */
bool decoder_kv_token_bytes(const struct model_config *c, enum dtype kv_dtype, size_t *bytes);
size_t decoder_logit_columns(size_t vocab_size, size_t rank, size_t n_ranks, bool shared_memory);
bool decoder_workspace_bytes(const struct model_config *c, const struct backend_ops *ops, enum dtype activation,
                             size_t max_rows, size_t max_logits, size_t logit_columns, size_t *bytes);

/* The decoder takes *weights over (also when it fails). The backend must outlive it. config: the rank's (shard_config). */
int decoder_open(struct decoder *d, const struct model_config *config, struct weights *weights,
                 const struct decoder_limits *limits, const struct decoder_ranks *ranks, struct error *err);
void decoder_close(struct decoder *d); /* NULL, a zeroed and a half-open one are fine */

/*
 * Compute a step: K and V of every row are stored; the logits of the first max_logits of logit_rows (or of all, if they
 * are fewer) lie in d->logits when it returns, after a sync.
 */
int decoder_forward(struct decoder *d, const struct decoder_batch *batch, struct error *err);

/* The pass of decoder_forward without its copies, its sync and what it gets from other stages and sends them, from arrays that lie
 * where operations read them, max_query and max_context set: what a graph records. */
int decoder_queue(struct decoder *d, const struct decoder_batch *batch, struct error *err);
/* Puts b's arrays there (for a device alone), and sets max_query and max_context to the largest of the batch. */
int decoder_place(struct decoder *d, struct decoder_batch *b, struct error *err);

/* Arrays filled up to what a graph has, if there is one for the step; so each rank then finds it. decoder_start does it, too. */
void decoder_pad(const struct decoder *d, struct decoder_batch *b);
/* decoder_start of a batch that is padded: its arrays are not written. */
int decoder_start_padded(struct decoder *d, const struct decoder_batch *batch, bool fed, struct error *err);

/* The same without waiting, and without gathering the ranks' logits (decoder_gather, decoder_choose). `fed`: token_ids below 0 are the last choice's tokens, by row (backend.h, feed). */
int decoder_start(struct decoder *d, const struct decoder_batch *batch, bool fed, struct error *err);

/* Where each rank has a part of the logits of the last step: all of them come to d->logits, if they are not there. Queued. */
int decoder_gather(struct decoder *d, struct error *err);
/* backend_ops.choose from these logits, gathered only if a row wants more than the best. */
int decoder_choose(struct decoder *d, size_t vocab_size, const struct choice_row *rows, size_t n, struct error *err);

/* Until the next step: put the logits of logit_rows[first..first + n) into d->logits instead, n <= max_logits. */
int decoder_logits(struct decoder *d, size_t first, size_t n, struct error *err);

#endif
