/*
 * Regexes of tokenizer files, by Oniguruma (the engine that the tokenizers library uses), with limits on stack and
 * retries. Patterns come from model files only, never from clients.
 */
#ifndef INFERD_TEXT_REGEX_H
#define INFERD_TEXT_REGEX_H

#include <inferd/error.h>
#include <stdbool.h>
#include <stddef.h>

struct regex; /* immutable, usable from any thread */

int regex_new(const char *pattern, size_t len, struct regex **out, struct error *err);
void regex_free(struct regex *r);

/*
 * The first match in s[0..len) that begins at `from` or later: 1 and its bounds, 0 if there is none, -1 with *err when
 * a limit is passed.
 */
int regex_find(const struct regex *r, const char *s, size_t len, size_t from, size_t *start, size_t *end,
               struct error *err);

#endif
