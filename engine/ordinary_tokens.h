/*
 * The ordinary tokens of a vocabulary: those whose own text can be printed, is whole, and ends nothing. A device that
 * chooses tokens without looking at logits chooses among them.
 */
#ifndef INFERD_ORDINARY_TOKENS_H
#define INFERD_ORDINARY_TOKENS_H

#include <inferd/text.h>

/* Ids below vocab_size, ascending, to *out (tokens_free it). ERROR_MODEL if there is none. */
int ordinary_tokens(const struct text *text, size_t vocab_size, struct tokens *out, struct error *err);

#endif
