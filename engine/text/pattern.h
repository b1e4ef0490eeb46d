/*
 * The well-known word patterns of byte-level vocabularies, matched by hand: many times faster than a regex engine
 * and without its stack. Each is a family with parameters; where a file's regex is not one of these, Oniguruma
 * runs it (pre_tokenizer.c).
 */
#ifndef INFERD_TEXT_PATTERN_H
#define INFERD_TEXT_PATTERN_H

#include <stdbool.h>
#include <stddef.h>

enum pattern_kind {
    /* 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+ */
    PATTERN_GPT2,
    /* (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,digits}| ?[^\s\p{L}\p{N}]+[\r\n]*
     * |\s*[\r\n]+|\s+(?!\S)|\s+ */
    PATTERN_LLAMA3,
    /* [^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?
     * |[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?
     * |\p{N}{1,digits}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+ */
    PATTERN_CASED,
};

struct pattern {
    enum pattern_kind kind;
    bool contractions;
    bool long_s;   /* case-insensitive s also matches U+017F, as Unicode case folding has it */
    bool marks;    /* LLAMA3: \p{M} counts as a letter inside words */
    bool slash;    /* [\r\n/]* after punctuation, not [\r\n]* */
    size_t digits; /* most digits together, 0 = no limit */
};

/* The pattern that a regex of a tokenizer.json is, false if it is none of them. */
bool pattern_from_regex(const char *regex, struct pattern *out);

/* A regex that means the same; NULL for parameters that no file has. */
const char *pattern_regex(const struct pattern *p);

/* Where the match that begins at s[at] ends; every character of a text is in a match. at < len; UTF-8. */
size_t pattern_match(const struct pattern *p, const char *s, size_t at, size_t len);

#endif
