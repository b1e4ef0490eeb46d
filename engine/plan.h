/*
 * What goes where in the memory of a device (of each rank), and how much of it becomes KV: one arithmetic for whoever takes
 * the memory and for whoever only wants to know.
 */
#ifndef INFERD_PLAN_H
#define INFERD_PLAN_H

#include <inferd/engine.h>
#include <inferd/error.h>
#include <stdbool.h>
#include <stddef.h>

struct plan_input {
    size_t total;       /* bytes of the device, or of memory_available before anything was loaded */
    double utilization; /* (0, 1]: the share of it that may be used */
    size_t context_bytes; /* of `total`, taken before anything was loaded: the device's context and libraries, others */
    size_t weight_bytes, workspace_bytes, graph_bytes;
    size_t token_bytes; /* KV of one token */
    size_t block_size;
    size_t context_length; /* the model's own */
    size_t max_model_len;  /* 0 = the model's own, cut down to what KV holds */
    size_t max_sequences;
    size_t kv_tokens; /* 0 = choose; else exactly (rounded up to blocks) */
    bool fill;        /* without kv_tokens, KV gets all that the budget leaves */
};

struct plan {
    size_t n_blocks, max_model_len;
    size_t bytes[ENGINE_MEMORY_KINDS]; /* together `total`, when the margin is not cut off at 0 */
};

/*
 * Without kv_tokens, KV gets what the budget leaves; unless `fill`, not more than max_sequences sequences of the longest
 * length have use for, and not more than a PLAN_KV_SHARE-th of `total`, but one sequence of max_model_len where it is given.
 * ERROR_DOES_NOT_FIT with the numbers. On success n_blocks * block_size >= max_model_len.
 */
#define PLAN_KV_SHARE 4
int plan_make(const struct plan_input *in, struct plan *out, struct error *err);

/* Tokens of KV, whole blocks, that the budget has room for beside the rest; 0 = none. */
size_t plan_affordable_tokens(const struct plan_input *in);

/* Bytes that `n` graphs of a model of n_layers take on a device: an allowance, made before there are any. */
size_t plan_graph_bytes(size_t n, size_t n_layers);

#endif
