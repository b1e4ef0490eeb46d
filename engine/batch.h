/* From the scheduler's choice to one ragged step: token_ids, positions, cu_seqlens, slot_mapping, block_tables. */
#ifndef INFERD_BATCH_H
#define INFERD_BATCH_H

#include "model/decoder.h"
#include "sequence.h"

/*
 * Fill *b (its arrays have room for the step) from sequences[0..n), each with n_scheduled > 0 and blocks for
 * n_computed + n_scheduled tokens. Logits are asked for the rows that sequence_wants_logits names, in the
 * same order.
 */
void batch_fill(struct decoder_batch *b, struct sequence *const *sequences, size_t n, size_t block_size);
/* KV blocks that must be copied before the step. */
void batch_copies(struct decoder_batch *b, const int32_t *from, const int32_t *to, size_t n);

#endif
