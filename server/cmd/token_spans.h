/* Which bytes of a text each of its tokens stands for. */
#ifndef INFERD_TOKEN_SPANS_H
#define INFERD_TOKEN_SPANS_H

#include <inferd/error.h>
#include <inferd/text.h>
#include <stddef.h>

struct token_span {
    size_t start, end; /* of the text, in bytes */
};

/*
 * *out = one span a token, to be freed. Tokens spell the text but for what a tokenizer changes: spaces put before it,
 * characters normalized, white space swallowed by a special token, broken bytes replaced. Where the spelling differs,
 * the tokens there share the bytes up to where it agrees again; a token of nothing in the text has an empty span.
 */
int token_spans(const struct text *t, const char *text, size_t len, const struct tokens *ids, struct token_span **out,
                struct error *err);

#endif
