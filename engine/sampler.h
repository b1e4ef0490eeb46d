/*
 * From logits to one token.
 *
 * First logit_bias and masks: ids that are not allowed, end ids before min_tokens, the last token of a bad word. Then
 * the stages of the request in its order; those that are neutral or left out do nothing:
 *
 *   penalties    over the last repeat_last_n tokens: repetition (Keskar et al. 2019, section 4.1: prompt and generated
 *                tokens, z > 0 ? z / r : z * r); frequency and presence (OpenAI: z - count * f - (count > 0) * p,
 * generated ones) dry          z - multiplier * base^(length - allowed_length) for a token that would go on with a
 * repetition (dry.h) temperature  z / t; dynamic: t between t - range and t + range, by (entropy / most possible
 * entropy)^exponent (Zhu et al. 2023, as in llama.cpp) top_n_sigma  kept: z >= z_best - n * standard deviation of the
 * logits (Tang et al. 2024) min_p        kept: p >= min_p * p_best (Nguyen et al. 2024) top_k        the k best typ_p
 * those whose -log p is nearest to the entropy until typical_p is reached (Meister et al. 2022) top_p        the fewest
 * best whose share of what is left reaches top_p (Holtzman et al. 2019) xtc          with xtc_probability: of the
 * tokens with p >= xtc_threshold all but the least likely go (p-e-w, oobabooga/text-generation-webui pull request 6335)
 *
 * Last one choice by a random number that depends on (seed, position, choice) alone. With a temperature of 0 the
 * largest logit after penalties and dry is taken, of equal ones the lowest id, whatever the filters say.
 *
 * mirostat (Basu et al. 2021, algorithms 1 and 2) takes the filters' place and steers its own from token to token:
 * mu begins at 2 tau and falls by eta * (surprise - tau). As in llama.cpp the surprise is that of the token among those
 * kept; unlike there, penalties and dry act as well.
 *
 * Equal logits at an edge of top_k or top_p are kept by lowest id. typ_p, top_p, min_p and xtc leave at least min_keep
 * tokens. Logprobs are those of the unmodified logits. Engine thread only; nothing allocates after sampler_init. Usual
 * cost: one or two walks over the vocabulary, no sort.
 */
#ifndef INFERD_SAMPLER_H
#define INFERD_SAMPLER_H

#include "sampler_types.h"

/* max_tokens: the longest sequence. */
int sampler_init(struct sampler *s, size_t vocab_size, size_t max_tokens, struct error *err);
void sampler_destroy(struct sampler *s); /* NULL and a zeroed one are fine */

struct sample {
    int32_t token;
    float logprob;
    uint32_t rank; /* of sampler_score alone: 1 is the likeliest token; of equal ones the lowest id comes first */
    struct sampler_state state; /* for the next token */
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
