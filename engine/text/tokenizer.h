/*
 * A tokenizer: added tokens are cut out of the text, the rest is normalized, pre-tokenized into words, and the
 * model encodes the words. Built from plain arrays (a GGUF's) or from the bytes of a tokenizer.json; immutable
 * afterwards but for the memo in struct bpe.
 */
#ifndef INFERD_TEXT_TOKENIZER_H
#define INFERD_TEXT_TOKENIZER_H

#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/normalizer.h"
#include "text/pre_tokenizer.h"
#include "text/unigram.h"
#include "text/vocab.h"

#include <inferd/text.h>

#define TEXT_MAX_BYTES ((size_t)1 << 30) /* the longest text that is encoded */
#define TEMPLATE_MAX_TOKENS 8            /* tokens put before or behind by the post-processor */

/* What becomes of the beginning of a decoded text. */
enum decode_start {
    DECODE_START_PLAIN,
    DECODE_START_STRIP,       /* one leading space goes */
    DECODE_START_FIRST_TOKEN, /* all spaces of the first token go (Metaspace) */
};

struct tokenizer {
    struct vocab vocab;
    bool is_unigram;
    struct bpe bpe; /* or */
    struct unigram unigram;
    struct added_tokens added;            /* looked for in the text as it is */
    struct added_tokens added_normalized; /* looked for after normalizing */
    struct normalizer normalizer;
    struct pre_tokenizer pre;

    int32_t prefix[TEMPLATE_MAX_TOKENS], suffix[TEMPLATE_MAX_TOKENS]; /* what TEXT_ADD_SPECIAL adds */
    size_t n_prefix, n_suffix;

    enum decode_start decode_start;
    bool byte_runs;    /* a run of byte tokens that is not UTF-8 becomes one U+FFFD a byte (ByteFallback) */
    bool clean_spaces; /* what llama.cpp's detokenizer does besides, see text_decode_cleaned */
};

/* Token types as GGUF numbers them. */
enum vocab_type { VOCAB_NORMAL = 1, VOCAB_UNKNOWN, VOCAB_CONTROL, VOCAB_USER_DEFINED, VOCAB_UNUSED, VOCAB_BYTE };

/* A vocabulary as a GGUF has it. Everything is borrowed for the call. */
struct vocab_source {
    const char *model; /* "llama" or "gpt2" */
    const char *pre;   /* tokenizer.ggml.pre, NULL if not said */
    size_t n_tokens;
    const struct span *tokens;
    const float *scores;  /* [n_tokens], NULL: all 0 */
    const uint8_t *types; /* [n_tokens] enum vocab_type, NULL: all normal; others count as unused */
    size_t n_merges;
    const struct span *merges;              /* "left right" */
    int32_t bos_id, eos_id, unknown_id;     /* -1: none */
    int add_bos, add_eos, add_space_prefix; /* 1, 0, or -1: not said */
    bool rstrip_special;                    /* Phi-3: special tokens swallow the white space behind them */
};

/* Is this token recognised in trusted text only? Does it swallow the white space behind it? */
bool vocab_needs_trust(const struct vocab_source *source, size_t id);
bool vocab_strips_right(const struct vocab_source *source, size_t id);

int tokenizer_from_vocab(const struct vocab_source *source, struct tokenizer **out, struct error *err);
/* The same as a tokenizer.json. The scores of a SentencePiece vocabulary become an order of merges. */
int tokenizer_vocab_json(const struct vocab_source *source, struct buf *out, struct error *err);
int tokenizer_from_json(const char *json, size_t len, struct tokenizer **out, struct error *err);
void tokenizer_free(struct tokenizer *t);

/* As text_encode (trusted NULL) and text_encode_marked (trusted[len]). bos_id: the one never put twice, or -1. */
int tokenizer_encode(const struct tokenizer *t, int32_t bos_id, const char *bytes, size_t len, const char *trusted,
                     unsigned flags, struct tokens *out, struct error *err);

/* What an encoding took, for tests of growth: the same on every machine. */
struct encode_cost {
    size_t steps; /* words, symbols, pairs, trie steps, regex searches */
    size_t bytes; /* working memory */
};
int tokenizer_encode_counting(const struct tokenizer *t, const char *bytes, size_t len, unsigned flags,
                              struct tokens *out, struct encode_cost *cost, struct error *err);

int tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t n, bool skip_special, struct buf *out,
                     struct error *err);

/* The id whose piece is exactly this text, special ones first; -1 if none. Linear. */
int32_t tokenizer_find(const struct tokenizer *t, const char *text, size_t len);

#endif
