/*
 * Tokens that a device chooses by a rule of its own, without telling logits (backend_ops.sample). They are asked for
 * ahead, many rows in one call, and their texts are asked for from memory. The engine takes them sequence by sequence, and
 * where it wants something else than was foreseen (a fork's own choice, another try because the first token is masked)
 * the device is asked again. The result is the same as asking for each when it is due: it depends on the row alone.
 *
 * A token's log-probability is that of equally likely ones, and there are no top ones but the token itself.
 */
#ifndef INFERD_RULE_SAMPLER_H
#define INFERD_RULE_SAMPLER_H

#include "runner.h"
#include "sampler.h"
#include "sequence.h"

#define RULE_SAMPLER_ROWS 64 /* of one call */

struct rule_sampler {
    struct runner *runner;
    const struct text *text;
    struct tokens candidates;
    float logprob; /* of each of vocab_size equally likely tokens */

    /* Chosen ahead: of the step's rows of logits from `first` on. */
    struct sample_row rows[RULE_SAMPLER_ROWS];
    int32_t tokens[RULE_SAMPLER_ROWS];
    size_t first, n;
};

/* Candidates are what the text writes plainly. runner and text must outlive it. */
int rule_sampler_init(struct rule_sampler *d, struct runner *r, const struct text *t, size_t vocab_size,
                        struct error *err);
void rule_sampler_destroy(struct rule_sampler *d); /* a zeroed one is fine */

/* A step was run: what is held belongs to the one before. */
void rule_sampler_begin(struct rule_sampler *d);
/* sequences[i] of the n of the step comes next, its first row of logits is `row`: choose ahead if nothing is held. */
void rule_sampler_look_ahead(struct rule_sampler *d, struct sequence *const *sequences, size_t n, size_t i,
                               size_t row);
enum sample_result rule_sampler_sample(struct rule_sampler *d, const struct sequence *s, size_t row,
                                         const struct sample_input *in, struct sample *out);

#endif
