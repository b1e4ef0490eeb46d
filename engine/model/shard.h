/*
 * Which part of a model a rank has: some layers (its pipeline stage), and of these some heads, features of the feed-forward and
 * rows of the vocabulary (its place among the tensor-parallel ranks). Column-parallel: q, k, v, gate, up are cut by rows of
 * [n][k], whole heads each; row-parallel: o and down by columns, at borders of blocks; embedding and head by rows of the
 * vocabulary. (Shoeybi et al. 2019, Megatron-LM; Huang et al. 2019, GPipe.)
 */
#ifndef INFERD_SHARD_H
#define INFERD_SHARD_H

#include "model/convert.h"
#include "model/roles.h"

struct range {
    size_t first, n;
};

struct shard {
    size_t rank, n_ranks;   /* among the tensor-parallel ranks */
    size_t stage, n_stages; /* of the pipeline */
    struct range layers;
    struct range heads;     /* query heads, equally many each */
    struct range kv_heads;  /* fewer than ranks: neighbours have the same one */
    struct range ff;        /* features, whole units of `ff_unit` where there are as many as ranks; n >= 1 if n_ff >= n_ranks */
    struct range vocab;     /* real rows of the embedding and of the head; n may be 0 */
    size_t vocab_padded;    /* rows of every rank: ceil(vocab_size / n_ranks) */
};

/* The whole model. */
void shard_whole(const struct model_config *c, struct shard *out);

/* N is valid if the query heads divide by it and (the KV heads divide by N, or N by the KV heads). */
bool shard_is_valid_tp(size_t n_heads, size_t n_kv_heads, size_t n);

/*
 * The part of rank `rank` of n_ranks in stage `stage` of n_stages. ff_unit: features that stay together (shard_ff_unit).
 * ERROR_INVALID, param "tensor_parallel" with the valid ones listed, or "pipeline_parallel" (more stages than layers).
 */
int shard_make(const struct model_config *c, size_t rank, size_t n_ranks, size_t stage, size_t n_stages, size_t ff_unit,
               struct shard *out, struct error *err);

/* Features of the feed-forward that stay together, so that the down matrices are cut at borders of blocks and groups. */
int shard_ff_unit(const struct model_file *file, const struct model_config *c, enum weights_format format, size_t *out,
                  struct error *err);

/* A rank's features of n_ff: whole units, of which there are enough for all ranks, if need be smaller ones. */
struct range shard_cut_ff(size_t n_ff, size_t unit, size_t n_ranks, size_t rank);

/* The configuration that a rank computes with: its layers, heads and features; vocab_size stays that of the model. */
void shard_config(const struct model_config *c, const struct shard *s, struct model_config *out);

/* What of a role's tensor [n][k] the rank has: rows and columns (all of a vector's elements are rows). The embedding is of the
 * first stage (and of the last, where it is the head), the last norm and the head of the last; `layer` is that of the model.
 * False: nothing of it. */
bool shard_tensor(const struct shard *s, const struct model_config *c, const struct role *r, int layer, struct range *rows,
                  struct range *columns);

#endif
