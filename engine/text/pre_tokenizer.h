/*
 * Pre-tokenization: a text is cut into words by steps that run one after another, each inside the words of the one
 * before. The words are then encoded one by one.
 */
#ifndef INFERD_TEXT_PRE_TOKENIZER_H
#define INFERD_TEXT_PRE_TOKENIZER_H

#include "text/pattern.h"
#include "base/regex.h"
#include "text/vocab.h"

/* What becomes of the text that matches (as in the tokenizers library). */
enum split_behavior {
    SPLIT_ISOLATED,
    SPLIT_REMOVED,
    SPLIT_CONTIGUOUS, /* neighbours of the same kind stay together */
    SPLIT_MERGED_WITH_PREVIOUS,
    SPLIT_MERGED_WITH_NEXT,
};

enum pre_kind {
    PRE_PATTERN, /* hand-written, always isolated */
    PRE_REGEX,
    PRE_LITERAL,
    PRE_CLASS, /* characters of `classes`, one by one */
    PRE_RUN,   /* characters of `set`: a run (or each, if `single`), with one white space before (space_before) */
    PRE_TRAILING_SPACE, /* white space at the end */
    PRE_METASPACE,      /* spaces become `literal`, put before the text too; then cut before each, if `split` */
    PRE_PREFIX_SPACE,   /* a space before each word that has none (ByteLevel's add_prefix_space) */
    PRE_TO_ALPHABET,    /* bytes become the printable alphabet (vocab.h), for steps behind ByteLevel */
    PRE_FROM_ALPHABET,  /* and bytes again: words may then begin and end inside a character */
};

/* Characters of some classes or ranges; of white space only ASCII can be in a range. */
struct char_range {
    uint32_t first, last;
};
struct char_set {
    unsigned classes; /* bits of enum unicode_class */
    size_t n;
    const struct char_range *ranges; /* [n], in order */
};

enum prepend_scheme { PREPEND_ALWAYS, PREPEND_FIRST, PREPEND_NEVER };

struct pre_step {
    enum pre_kind kind;
    enum split_behavior behavior;
    bool invert; /* what does not match counts as the match */
    struct pattern pattern;
    struct regex *regex; /* owned */
    char literal[64];    /* NUL-terminated */
    size_t literal_len;
    unsigned classes;           /* PRE_CLASS: bits of enum unicode_class */
    bool ascii_symbols;         /* and ASCII symbols such as $ and + */
    const struct char_set *set; /* not owned */
    bool space_before, single;
    enum prepend_scheme scheme;
    bool split;
};

#define PRE_MAX_STEPS 16
struct pre_tokenizer {
    struct pre_step steps[PRE_MAX_STEPS];
    size_t n;
};

/* A new zeroed step at the end, NULL with *err when there are too many. */
struct pre_step *pre_add(struct pre_tokenizer *p, enum pre_kind kind, struct error *err);
/* Is there a step of this kind? */
bool pre_has(const struct pre_tokenizer *p, enum pre_kind kind);
int pre_add_pattern(struct pre_tokenizer *p, struct pattern pattern, struct error *err);
/* A regex, by hand if it is a known one and the behaviour allows. */
int pre_add_regex(struct pre_tokenizer *p, const char *regex, enum split_behavior behavior, bool invert,
                  struct error *err);
void pre_free(struct pre_tokenizer *p);

/* The steps of a GGUF's tokenizer.ggml.pre for byte-level BPE. */
struct pre_kind_info {
    bool ignore_merges, add_bos;
    bool clean_spaces; /* see text_decode_cleaned */
};
int pre_from_kind(const char *kind, struct pre_tokenizer *out, struct pre_kind_info *info, struct error *err);

/* The same steps as a list of pre-tokenizers of a tokenizer.json, each followed by a comma. */
int pre_kind_json(const char *kind, struct pre_kind_info *info, struct buf *out, struct error *err);

struct word {
    uint32_t start, len;
};
struct words {
    struct word *items; /* owned */
    size_t n, cap;
};

/* Working memory of one encoding. */
struct pre_scratch {
    struct words words, spare; /* `words` is the result, in `text` */
    struct buf text, spare_text;
    struct regex_run *run; /* not owned */
};
void pre_scratch_free(struct pre_scratch *s);

/*
 * Cut s->text (well-formed UTF-8, under 1 GiB), leaving the words in s->words (well-formed too, if there is no
 * PRE_FROM_ALPHABET); steps that change characters rewrite s->text. at_start: the text begins where the whole input
 * does.
 */
int pre_tokenize(const struct pre_tokenizer *p, struct pre_scratch *s, bool at_start, struct error *err);

#endif
