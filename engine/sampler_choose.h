/* From modified logits to a choice: the stages of the request in its order, then one draw. */
#ifndef INFERD_SAMPLER_CHOOSE_H
#define INFERD_SAMPLER_CHOOSE_H

#include "sampler_types.h"

/* The stages that do something for a request, in its order. The first n_leading are penalties and dry: they work on all
 * logits (sampler_modify) before anything becomes a probability. */
struct sampler_plan {
    uint8_t stages[SAMPLER_STAGES];
    uint8_t n, n_leading;
    bool greedy; /* nothing follows the leading ones: the best token is taken */
};
struct sampler_plan sampler_make_plan(const struct sampling *p, size_t vocab_size);

/*
 * z[vocab_size]: not greedy; max_key and s->chunk_max are sampler_max's of it, and the largest is finite. *state is the
 * sequence's, and is brought forward by the choice.
 */
int32_t sampler_choose(struct sampler *s, const struct sample_input *in, const struct sampler_plan *plan,
                       const float *z, uint32_t max_key, struct sampler_state *state);

#endif
