/*
 * From logits to one token. In this order:
 *
 *   logit_bias; end ids masked before min_tokens; repetition penalty (Keskar et al. 2019, section 4.1: over prompt and
 * generated tokens, z > 0 ? z / r : z * r); frequency and presence penalty (OpenAI: z - count * f - (count > 0) * p,
 * over generated tokens); greedy: the largest, of equal ones the lowest id; else temperature; min_p (kept: p >= min_p *
 * p_best); top_k; top_p (the fewest best whose share of what is left reaches top_p); one choice by a random number that
 * depends on (seed, position, choice) alone.
 *
 * Equal logits at an edge of top_k or top_p are kept by lowest id. Logprobs are those of the unmodified logits.
 * Engine thread only; nothing allocates after sampler_init. Cost: one or two walks over the vocabulary, no sort.
 */
#ifndef INFERD_SAMPLER_H
#define INFERD_SAMPLER_H

#include <inferd/engine.h>

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
    struct candidate *kept; /* [vocab_size] in order of id */
    int32_t *counts;        /* [vocab_size] zero between calls */
    uint64_t bucket_mass[SAMPLER_BUCKETS];
    uint32_t bucket_count[SAMPLER_BUCKETS];
};

int sampler_init(struct sampler *s, size_t vocab_size, struct error *err);
void sampler_destroy(struct sampler *s); /* NULL and a zeroed one are fine */

struct sample_input {
    const float *logits; /* [vocab_size] */
    const struct sampling *sampling;
    uint64_t seed, position; /* position: how many tokens come before the one to choose */
    const int32_t *tokens;   /* [n_tokens] prompt and generated */
    size_t n_prompt, n_tokens;
    const int32_t *masked; /* [n_masked] ids that must not be chosen */
    size_t n_masked;
};

struct sample {
    int32_t token;
    float logprob;
    uint32_t rank; /* of sampler_score alone: 1 is the likeliest token; of equal ones the lowest id comes first */
    uint16_t n_top;
    struct token_logprob top[ENGINE_MAX_TOP_LOGPROBS];
};

enum sample_result {
    SAMPLE_OK,
    SAMPLE_NONFINITE, /* a logit is NaN or infinite */
    SAMPLE_NO_TOKEN,  /* every token is masked */
};

/* logprob and top are filled when sampling->n_logprobs >= 0. */
enum sample_result sampler_sample(struct sampler *s, const struct sample_input *in, struct sample *out);

/*
 * How likely was `token`, by the unmodified logits: its logprob as sampler_sample would tell it, its rank and the n_top
 * best. SAMPLE_OK or SAMPLE_NONFINITE.
 */
enum sample_result sampler_score(struct sampler *s, const float *logits, int32_t token, int32_t n_top,
                                 struct sample *out);

#endif
