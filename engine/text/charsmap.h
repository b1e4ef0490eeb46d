/*
 * SentencePiece's precompiled character map (normalizer `Precompiled`): a double-array trie (Aoe 1989, in the form of
 * darts-clone) from texts to their replacements.
 */
#ifndef INFERD_TEXT_CHARSMAP_H
#define INFERD_TEXT_CHARSMAP_H

#include <inferd/buf.h>
#include <inferd/error.h>
#include <stddef.h>

struct charsmap; /* immutable, usable from any thread */

/* From the base64 of the file. ERROR_MODEL if it is cut short or points outside itself. */
int charsmap_new(const char *base64, size_t len, struct charsmap **out, struct error *err);
void charsmap_free(struct charsmap *m);

/* The replacement of a text, NULL if it has none. Of several prefixes that the map knows the shortest counts. */
const char *charsmap_find(const struct charsmap *m, const char *text, size_t len, size_t *replacement_len);

#endif
