#include "text/tokenizer.h"

#include "base/utf8.h"
#include "text/unicode_class.h"

#include <stdlib.h>
#include <string.h>

void tokenizer_free(struct tokenizer *t) {
    if (!t) {
        return;
    }
    bpe_free(&t->bpe);
    unigram_free(&t->unigram);
    vocab_free(&t->vocab);
    added_tokens_free(&t->added);
    added_tokens_free(&t->added_normalized);
    normalizer_free(&t->normalizer);
    pre_free(&t->pre);
    free(t);
}

void tokens_free(struct tokens *t) {
    if (t) {
        free(t->ids);
        *t = (struct tokens){0};
    }
}

int tokens_push(struct tokens *t, int32_t id, struct error *err) {
    if (t->n == t->cap) {
        size_t cap = t->cap ? t->cap * 2 : 64;
        int32_t *ids = cap > t->cap && cap < SIZE_MAX / sizeof *ids ? realloc(t->ids, cap * sizeof *ids) : NULL;
        if (!ids) {
            return error_memory(err);
        }
        t->ids = ids;
        t->cap = cap;
    }
    t->ids[t->n++] = id;
    return 0;
}

int32_t tokenizer_find(const struct tokenizer *t, const char *text, size_t len) {
    int32_t found = -1;
    for (size_t id = 0; id < t->vocab.n; id++) {
        const struct token *token = &t->vocab.tokens[id];
        if (!(token->flags & TOKEN_PRESENT) || token->piece_len != len ||
            memcmp(vocab_piece(&t->vocab, (uint32_t)id).data, text, len) != 0) {
            continue;
        }
        if (token->flags & TOKEN_SPECIAL) {
            return (int32_t)id;
        }
        found = found < 0 ? (int32_t)id : found;
    }
    return found;
}

/* ---- encoding ---- */

struct encoding {
    const struct tokenizer *t;
    struct normalizer_scratch normalizer;
    struct pre_scratch pre;
    struct bpe_scratch bpe;
    struct unigram_scratch unigram;
    struct regex_run regexes;
    struct fragments fragments, inner;
    struct tokens *out;
    size_t n_words;
};

static void encoding_free(struct encoding *e) {
    normalizer_scratch_free(&e->normalizer);
    pre_scratch_free(&e->pre);
    bpe_scratch_free(&e->bpe);
    free(e->unigram.nodes);
    regex_run_free(&e->regexes);
    free(e->fragments.items);
    free(e->inner.items);
}

static int encode_word(struct encoding *e, const char *word, size_t len, struct error *err) {
    e->n_words++;
    return e->t->is_unigram ? unigram_encode(&e->t->unigram, &e->unigram, word, len, e->out, err)
                            : bpe_encode(&e->t->bpe, &e->bpe, word, len, e->out, err);
}

/* A text without added tokens. */
static int encode_plain(struct encoding *e, const char *text, size_t len, bool at_start, struct error *err) {
    if (e->t->pre.n == 0) {
        return encode_word(e, text, len, err);
    }
    buf_reset(&e->pre.text);
    buf_append(&e->pre.text, text, len);
    if (e->pre.text.failed) {
        return error_memory(err);
    }
    if (pre_tokenize(&e->t->pre, &e->pre, at_start, err) < 0) {
        return -1;
    }
    for (size_t i = 0; i < e->pre.words.n; i++) {
        struct word w = e->pre.words.items[i];
        if (encode_word(e, e->pre.text.data + w.start, w.len, err) < 0) {
            return -1;
        }
    }
    return 0;
}

/* A text between added tokens: normalize, cut out the added tokens that are looked for after that. */
static int encode_fragment(struct encoding *e, const char *text, struct fragment f, const char *trusted,
                           bool all_trusted, struct error *err) {
    const struct tokenizer *t = e->t;
    const char *s = text + f.start;
    size_t len = f.len;
    const char *marks = trusted ? trusted + f.start : NULL;
    if (t->normalizer.n > 0) {
        struct normalizer_scratch *n = &e->normalizer;
        buf_reset(&n->text);
        buf_append(&n->text, s, len);
        n->with_marks = marks && t->added_normalized.n > 0;
        buf_reset(&n->marks);
        if (n->with_marks) {
            buf_append(&n->marks, marks, len);
        }
        if (n->text.failed || n->marks.failed) {
            return error_memory(err);
        }
        if (normalize(&t->normalizer, n, err) < 0) {
            return -1;
        }
        s = n->text.data;
        len = n->text.len;
        marks = n->with_marks ? n->marks.data : NULL;
    }
    if (t->added_normalized.n == 0) {
        return encode_plain(e, s, len, f.start == 0, err);
    }
    e->inner.n = 0;
    if (added_tokens_split(&t->added_normalized, s, 0, len, marks, all_trusted, &e->inner, err) < 0) {
        return -1;
    }
    for (size_t i = 0; i < e->inner.n; i++) {
        struct fragment g = e->inner.items[i];
        int rc = g.id >= 0 ? tokens_push(e->out, g.id, err)
                           : encode_plain(e, s + g.start, g.len, f.start == 0 && g.start == 0, err);
        if (rc < 0) {
            return -1;
        }
    }
    return 0;
}

static int encode_body(struct encoding *e, const char *text, size_t len, const char *trusted, bool all_trusted,
                       struct error *err) {
    if (added_tokens_split(&e->t->added, text, 0, len, trusted, all_trusted, &e->fragments, err) < 0) {
        return -1;
    }
    for (size_t i = 0; i < e->fragments.n; i++) {
        struct fragment f = e->fragments.items[i];
        int rc = f.id >= 0 ? tokens_push(e->out, f.id, err) : encode_fragment(e, text, f, trusted, all_trusted, err);
        if (rc < 0) {
            return -1;
        }
    }
    return 0;
}

static int push_all(struct tokens *out, const int32_t *ids, size_t n, struct error *err) {
    for (size_t i = 0; i < n; i++) {
        if (tokens_push(out, ids[i], err) < 0) {
            return -1;
        }
    }
    return 0;
}

/* A template that writes BOS itself and also a text that begins with it: of the run at `first` one remains. */
static void keep_one(struct tokens *out, size_t first, int32_t bos_id) {
    size_t end = first;
    while (end < out->n && out->ids[end] == bos_id) {
        end++;
    }
    if (end > first + 1) {
        memmove(out->ids + first + 1, out->ids + end, (out->n - end) * sizeof *out->ids);
        out->n -= end - first - 1;
    }
}

/* The prefix, the body, the suffix; the prefix is taken back where the body already begins with BOS. */
static int encode_all(struct encoding *e, int32_t bos_id, const char *text, size_t len, const char *trusted,
                      unsigned flags, struct error *err) {
    const struct tokenizer *t = e->t;
    bool add = flags & (TEXT_ADD_SPECIAL | TEXT_ADD_SPECIAL_ALWAYS);
    size_t first = e->out->n;
    if (add && push_all(e->out, t->prefix, t->n_prefix, err) < 0) {
        return -1;
    }
    size_t body = e->out->n;
    if (encode_body(e, text, len, trusted, flags & TEXT_PARSE_SPECIAL, err) < 0) {
        return -1;
    }
    if (add && !(flags & TEXT_ADD_SPECIAL_ALWAYS) && bos_id >= 0 && t->n_prefix > 0 && t->prefix[0] == bos_id &&
        body < e->out->n && e->out->ids[body] == bos_id) {
        memmove(e->out->ids + body - t->n_prefix, e->out->ids + body, (e->out->n - body) * sizeof *e->out->ids);
        e->out->n -= t->n_prefix;
    }
    if (trusted && bos_id >= 0) {
        keep_one(e->out, first, bos_id);
    }
    return add ? push_all(e->out, t->suffix, t->n_suffix, err) : 0;
}

/* Replace ill-formed parts by U+FFFD, which is trusted if all its bytes were. */
static int sanitize_marked(const char *bytes, size_t len, const char *trusted, struct buf *text, struct buf *marks,
                           struct error *err) {
    for (size_t i = 0; i < len;) {
        bool valid;
        size_t n = utf8_sequence(bytes + i, len - i, &valid);
        size_t before = text->len;
        buf_append(text, valid ? bytes + i : "\xef\xbf\xbd", valid ? n : 3);
        char mark = trusted && !memchr(trusted + i, 0, n);
        for (size_t j = before; trusted && j < text->len; j++) {
            buf_putc(marks, mark);
        }
        i += n;
    }
    return text->failed || marks->failed ? error_memory(err) : 0;
}

static struct encode_cost cost_of(const struct encoding *e) {
    return (struct encode_cost){
        .steps = e->n_words + e->bpe.steps + e->unigram.steps + e->regexes.n_searches +
                 e->fragments.steps + e->inner.steps,
        .bytes = e->normalizer.text.cap + e->normalizer.spare_text.cap + e->normalizer.marks.cap +
                 e->normalizer.spare_marks.cap + e->pre.text.cap + e->pre.spare_text.cap +
                 (e->pre.words.cap + e->pre.spare.cap) * sizeof(struct word) +
                 e->bpe.cap_symbols * sizeof(struct bpe_symbol) + e->bpe.cap_heap * sizeof(struct bpe_candidate) +
                 e->unigram.cap * sizeof(struct unigram_node) +
                 (e->fragments.cap + e->inner.cap) * sizeof(struct fragment) + e->out->cap * sizeof *e->out->ids,
    };
}

static int encode(const struct tokenizer *t, int32_t bos_id, const char *bytes, size_t len, const char *trusted,
                  unsigned flags, struct tokens *out, struct encode_cost *cost, struct error *err) {
    if (len > TEXT_MAX_BYTES) {
        return error_set(err, ERROR_INVALID, "the text is longer than %zu bytes", TEXT_MAX_BYTES);
    }
    struct buf text = BUF_INIT, marks = BUF_INIT;
    struct encoding e = {.t = t, .out = out};
    e.pre.run = e.normalizer.run = &e.regexes;
    size_t before = out->n;
    int rc = 0;
    if (!utf8_is_valid(bytes, len)) {
        rc = sanitize_marked(bytes, len, trusted, &text, &marks, err);
        bytes = text.data;
        len = text.len;
        trusted = trusted ? marks.data : NULL;
    }
    if (rc == 0) {
        rc = encode_all(&e, bos_id, bytes, len, trusted, flags, err);
    }
    if (rc < 0) {
        out->n = before; /* untouched on failure */
    }
    *cost = cost_of(&e);
    encoding_free(&e);
    buf_free(&text);
    buf_free(&marks);
    return rc;
}

int tokenizer_encode(const struct tokenizer *t, int32_t bos_id, const char *bytes, size_t len, const char *trusted,
                     unsigned flags, struct tokens *out, struct error *err) {
    struct encode_cost cost;
    return encode(t, bos_id, bytes, len, trusted, flags, out, &cost, err);
}

int tokenizer_encode_counting(const struct tokenizer *t, const char *bytes, size_t len, unsigned flags,
                              struct tokens *out, struct encode_cost *cost, struct error *err) {
    return encode(t, -1, bytes, len, NULL, flags, out, cost, err);
}
