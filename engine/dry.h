/*
 * DRY: which tokens would go on with a repetition, and how long it is already (p-e-w, "DRY: a modern repetition
 * penalty", oobabooga/text-generation-webui pull request 5677; as in llama.cpp). Time linear in the tokens looked at.
 */
#ifndef INFERD_DRY_H
#define INFERD_DRY_H

#include <inferd/engine.h>

/*
 * How many of the last tokens stand behind the last breaker among them: no repetition reaches across one. A breaker is
 * found in the text of the tokens, wherever tokens begin and end.
 */
size_t dry_reach(const struct text *text, const struct meta_stop *breakers, size_t n_breakers, const int32_t *tokens,
                 size_t n);

/* Does the token's own text hold a breaker? Such a token is not held back. */
bool dry_is_breaker(const struct text *text, const struct meta_stop *breakers, size_t n_breakers, int32_t token);

/*
 * lengths[i] for i < n - 1: how many tokens up to and with tokens[i] are the same as the last ones, at most `reach`;
 * tokens[i + 1] would go on with a repetition of this length. lengths[n - 1] is 0.
 */
void dry_lengths(const int32_t *tokens, size_t n, size_t reach, int32_t *lengths);

#endif
