/*
 * Tokens that are found in the text before anything else happens to it: special tokens and what a tokenizer was
 * extended with. A trie over their texts; several matches at one place give the longest.
 */
#ifndef INFERD_TEXT_ADDED_TOKENS_H
#define INFERD_TEXT_ADDED_TOKENS_H

#include "text/trie.h"
#include "text/vocab.h"

struct added_token {
    int32_t id;
    bool special;        /* only where every byte is trusted */
    bool lstrip, rstrip; /* swallows the white space on that side */
    bool ascii_space;    /* that white space is ASCII only (GGUF) */
    bool single_word;    /* not inside a word */
};

struct added_tokens {
    struct added_token *tokens; /* [n], owned */
    size_t n, cap;
    struct trie trie;     /* value: index of a token + 1 */
    bool longest_overall; /* of overlapping matches the longest wins (GGUF), not the leftmost */
};
int added_tokens_add(struct added_tokens *a, struct span text, struct added_token token, struct error *err);
void added_tokens_free(struct added_tokens *a);

/* A place in the text: a token, or (id < 0) the text between tokens. */
struct fragment {
    int32_t id;
    size_t start, len;
};
struct fragments {
    struct fragment *items; /* owned */
    size_t n, cap;
    size_t steps; /* characters looked at in search of white space to swallow: what tests count */
};

/*
 * Cut text[from..to) and append the fragments (none empty). trusted: NULL if special tokens are recognised nowhere,
 * else [..to): 1 where the byte is trusted; all_trusted: everywhere.
 */
int added_tokens_split(const struct added_tokens *a, const char *text, size_t from, size_t to, const char *trusted,
                       bool all_trusted, struct fragments *out, struct error *err);

#endif
