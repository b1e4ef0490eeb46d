/* What the parts of the sampler share: its workspace, and what it is asked. */
#ifndef INFERD_SAMPLER_TYPES_H
#define INFERD_SAMPLER_TYPES_H

#include "sampler_state.h"

#define SAMPLER_BUCKETS 2048

struct candidate {
    int32_t id;
    uint32_t key;    /* the logit's order (sampler_key) */
    uint64_t weight; /* probability in 2^-40 of the best token's */
};

struct sampler {
    size_t vocab_size;
    float *z;               /* [vocab_size] logits after bias, masks and penalties */
    float *e;               /* [vocab_size] probability over the best token's */
    uint32_t *chunk_max;    /* [chunks] largest key of each SAMPLER_CHUNK ids */
    uint64_t *chunk_sum;    /* [chunks] sum of their weights */
    struct candidate *kept; /* [n_kept], room for vocab_size, in order of id: what the last choice was drawn from */
    size_t n_kept;          /* 0 = all of the vocabulary, or it was not drawn */
    int32_t *counts;        /* [vocab_size] zero between calls */
    int32_t *lengths;       /* [max_tokens] of dry */
    uint64_t bucket_mass[SAMPLER_BUCKETS];
    uint32_t bucket_count[SAMPLER_BUCKETS];
};

struct sample_input {
    const float *logits; /* [vocab_size] */
    const struct sampling *sampling;
    uint64_t seed, position; /* position: how many tokens come before the one to choose */
    const int32_t *tokens;   /* [n_tokens] prompt and generated */
    size_t n_prompt, n_tokens;
    const int32_t *masked; /* [n_masked] ids that must not be chosen */
    size_t n_masked;
    const uint64_t *allowed; /* a bit for each id: may it be chosen; NULL = all may */
    const struct text *text; /* for dry's breakers; NULL = none */
    struct sampler_state state;
};

#endif
