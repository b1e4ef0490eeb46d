/*
 * A choice put into the words of a device that chooses for itself (backend.h, struct choice_row). It is the token that
 * sampler_sample would take from the same logits. What such a device does not know stays with the host:
 * log-probabilities, DRY, typical_p, top_n_sigma, XTC, mirostat, dynamic temperature, allowed ids, penalties that come
 * behind a filter.
 */
#ifndef INFERD_SAMPLER_DEVICE_H
#define INFERD_SAMPLER_DEVICE_H

#include "sampler_types.h"

#include <inferd/backend.h>

/*
 * True: *row says everything of the choice `in` (its logits are not looked at; logits_row is the caller's), its edits
 * in edits[0..row->n_edits), no more than max_edits. False: the host has to choose. `s` lends its zeroed counts.
 */
bool sampler_for_device(struct sampler *s, const struct sample_input *in, struct logit_edit *edits, size_t max_edits,
                        struct choice_row *row);

#endif
