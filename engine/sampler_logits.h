/*
 * What is done to logits before any becomes a probability: bias, the ids that may and may not come, penalties, DRY.
 */
#ifndef INFERD_SAMPLER_LOGITS_H
#define INFERD_SAMPLER_LOGITS_H

#include "sampler_types.h"

bool sampler_has_penalties(const struct sampling *p);
bool sampler_has_dry(const struct sampling *p);

/* The first of the last `last_n` tokens (-1 = all). */
size_t sampler_window_begin(const struct sample_input *in, int32_t last_n);
/* Are the word's tokens but the last what was generated last? Then its last one must not come. */
bool sampler_ends_bad_word(const struct sample_input *in, const struct token_sequence *word);

/* Both change logits z[vocab_size] of tokens that were there already, and touch no others. */
void sampler_penalise(struct sampler *s, const struct sample_input *in, float *z);
void sampler_dry(struct sampler *s, const struct sample_input *in, float *z);

/*
 * logit_bias; the `n` stages (penalties and dry only); then masks: ids that are not allowed, in->masked, the last
 * tokens of bad words. Returns in->logits when nothing applies, else s->z.
 */
const float *sampler_modify(struct sampler *s, const struct sample_input *in, const uint8_t *stages, size_t n);

#endif
