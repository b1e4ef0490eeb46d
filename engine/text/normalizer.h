/*
 * Normalizers: steps that change a text before it is cut. Trust marks travel with the bytes: a byte that a step
 * writes is trusted if all bytes that it stands for are.
 */
#ifndef INFERD_TEXT_NORMALIZER_H
#define INFERD_TEXT_NORMALIZER_H

#include "text/charsmap.h"
#include "base/regex.h"
#include "text/vocab.h"

enum normalizer_kind {
    NORMALIZE_NFC,
    NORMALIZE_NFD,
    NORMALIZE_NFKC,
    NORMALIZE_NFKD,
    NORMALIZE_LOWERCASE,
    NORMALIZE_PREPEND, /* `content` before a text that is not empty */
    NORMALIZE_REPLACE, /* `pattern` or `regex` by `content` */
    NORMALIZE_STRIP,
    NORMALIZE_PRECOMPILED, /* by `charsmap` */
};

struct normalizer_step {
    enum normalizer_kind kind;
    char pattern[64], content[64]; /* bytes */
    size_t pattern_len, content_len;
    struct regex *regex;       /* owned; NULL: the literal pattern */
    struct charsmap *charsmap; /* owned */
    bool left, right;          /* STRIP */
};

#define NORMALIZER_MAX_STEPS 16
struct normalizer {
    struct normalizer_step steps[NORMALIZER_MAX_STEPS];
    size_t n;
};

struct normalizer_step *normalizer_add(struct normalizer *n, enum normalizer_kind kind, struct error *err);
void normalizer_free(struct normalizer *n);

/* Working memory; `text` and `marks` are input and result. */
struct normalizer_scratch {
    struct buf text, spare_text;
    struct buf marks, spare_marks; /* [text.len] when with_marks */
    bool with_marks;
    struct regex_run *run; /* not owned */
};
void normalizer_scratch_free(struct normalizer_scratch *s);

/* Run all steps over s->text (well-formed UTF-8, stays so). */
int normalize(const struct normalizer *n, struct normalizer_scratch *s, struct error *err);

#endif
