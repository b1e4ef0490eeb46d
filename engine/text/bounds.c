/* How few tokens a text of some length can come to, before it is looked at. */
#include "text/text_impl.h"

/*
 * The most bytes of a text that one byte after all normalizing stands for; 0 = no bound is known.
 * NFC: 7 bytes to 2 at most (U+1FBE U+0308 U+0341 to U+0390; Hangul: 9 to 3), taken as 4.
 */
static size_t shrinking(const struct normalizer *n) {
    size_t most = 1;
    for (size_t i = 0; i < n->n; i++) {
        const struct normalizer_step *s = &n->steps[i];
        if (s->kind == NORMALIZE_NFC) {
            most *= 4;
        } else if (s->kind != NORMALIZE_PREPEND &&
                   !(s->kind == NORMALIZE_REPLACE && !s->regex && s->content_len >= s->pattern_len)) {
            return 0;
        }
    }
    return most;
}

/* Does every byte that can be in UTF-8 have a token, so that nothing is left out or swallowed by an unknown one? */
static bool covers_utf8(const int32_t byte_ids[256]) {
    for (int b = 0; b < 256; b++) {
        bool possible = b < 0xc0 || (b >= 0xc2 && b <= 0xf4);
        if (possible && byte_ids[b] < 0) {
            return false;
        }
    }
    return true;
}

static bool drops_words(const struct pre_tokenizer *p) {
    for (size_t i = 0; i < p->n; i++) {
        if (p->steps[i].behavior == SPLIT_REMOVED) {
            return true;
        }
    }
    return false;
}

static bool swallows_space(const struct added_tokens *a) {
    for (size_t i = 0; i < a->n; i++) {
        if (a->tokens[i].lstrip || a->tokens[i].rstrip) {
            return true;
        }
    }
    return false;
}

size_t text_bytes_per_token(const struct text *text) {
    const struct tokenizer *t = text->tokenizer;
    size_t longest = 1;
    if (!covers_utf8(t->is_unigram ? t->unigram.byte_ids : t->bpe.byte_ids) || drops_words(&t->pre) ||
        swallows_space(&t->added) || swallows_space(&t->added_normalized)) {
        return 0;
    }
    for (size_t i = 0; i < t->vocab.n; i++) {
        const struct token *token = &t->vocab.tokens[i];
        longest = token->key_len > longest ? token->key_len : longest;
        longest = token->piece_len > longest ? token->piece_len : longest;
    }
    return longest * shrinking(&t->normalizer);
}
