/*
 * A model as planning sees it: its numbers, and its tensors with how ranks share them. Read leniently: what inferd cannot run
 * yet can still be planned for, and says so. Private to engine/planning.
 */
#ifndef INFERD_PLANNING_SHAPE_H
#define INFERD_PLANNING_SHAPE_H

#include "model/config.h"
#include "model/convert.h"

enum shape_cut {
    CUT_NONE,    /* each rank has all of it */
    CUT_ROWS,    /* column-parallel: the outputs are shared */
    CUT_KV_ROWS, /* the same by KV heads, which ranks beyond their number repeat */
    CUT_COLUMNS, /* row-parallel: the inputs are shared */
    CUT_VOCAB,   /* rows of a vocabulary, padded to the ranks */
};

#define SHAPE_FIRST (-1) /* `layer` of the embedding */
#define SHAPE_LAST (-2)  /* of the last norm and the head */

struct shape_tensor {
    enum shape_cut cut;
    int layer;
    size_t count;     /* alike (experts) */
    size_t n, k;      /* [n][k]; a vector has k 1 and is_vector */
    enum dtype dtype; /* DTYPE_UNSUPPORTED: `bytes` is all that is known */
    size_t bytes;     /* of one in its own type */
    bool is_vector;
    bool is_expert;
    bool is_pair; /* gate and up in one entry */
    bool is_ff;   /* its rows or columns are features of the feed-forward */
    bool converted; /* a matrix of a quantised checkpoint: `made` is what loading makes of it */
    enum dtype made[N_WEIGHTS_FORMATS];
};

struct shape {
    char name[128], architecture[64];
    size_t n_layers, n_embd, n_heads, n_kv_heads, head_dim, n_ff, vocab_size, context_length;
    size_t n_experts, n_experts_used, n_ff_expert, n_ff_shared; /* 0: no experts */
    size_t window, n_sliding; /* a sliding window and how many layers have it */
    size_t ff_unit; /* features that ranks do not part, in the file's types */
    bool tied, gated, qkv_bias, qk_norm, post_norms;
    bool widened; /* a quantised matrix becomes BF16 at load */
    bool sees;    /* it has a part for images, which is not in its numbers */
    bool runs; /* inferd can; else why_not says what not */
    char why_not[192];
    bool has_config;
    struct model_config config;      /* if has_config */
    struct shape_tensor *tensors;    /* [n_tensors], owned: the file's, or those that follow from the numbers */
    size_t n_tensors;
    struct shape_tensor *plain; /* [n_plain], owned: those that follow from the numbers, where the file's are packed */
    size_t n_plain;
    size_t n_types; /* different types of matrices */
};

int shape_open(const char *model, struct shape *out, struct error *err);
void shape_close(struct shape *s);

/* Features of the feed-forward that rank 0 has. */
size_t shape_ff_share(const struct shape *s, enum weights_format format, size_t tp);

/* Bytes of rank 0's part of a tensor among `tp`, as `format` makes it; `pad` the columns of INT8 are padded to (1 = not).
 * False on overflow. */
bool shape_tensor_bytes(const struct shape *s, const struct shape_tensor *t, enum weights_format format, size_t tp,
                        size_t pad, size_t *out);
/* The list to count: the file's own, or the plain one when a format is made of packed tensors. */
const struct shape_tensor *shape_tensors(const struct shape *s, enum weights_format format, size_t *n);

#endif
