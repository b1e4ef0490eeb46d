/* From ids to text: whole, and token by token. */
#include "text/text_impl.h"

#include "base/utf8.h"
#include "text/unicode_class.h"

#include <string.h>

#define REPLACEMENT "\xef\xbf\xbd"

static const struct token *token_of(const struct tokenizer *t, int32_t id, bool skip_special) {
    if (id < 0 || (size_t)id >= t->vocab.n) {
        return NULL;
    }
    const struct token *token = &t->vocab.tokens[id];
    return skip_special && (token->flags & TOKEN_SPECIAL) ? NULL : token;
}

static void put_replacements(struct buf *out, size_t n) {
    for (size_t i = 0; i < n; i++) {
        buf_puts(out, REPLACEMENT);
    }
}

/* A run of byte tokens: its text, or one U+FFFD a byte. */
static void put_run(struct buf *run, struct buf *out) {
    if (utf8_is_valid(run->data, run->len)) {
        buf_append(out, run->data, run->len);
    } else {
        put_replacements(out, run->len);
    }
    buf_reset(run);
}

static void put_without_spaces(struct span s, struct buf *out) {
    for (size_t i = 0; i < s.len; i++) {
        if (s.data[i] != ' ') {
            buf_putc(out, s.data[i]);
        }
    }
}

int tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t n, bool skip_special, struct buf *out,
                     struct error *err) {
    struct buf raw = BUF_INIT, run = BUF_INIT;
    bool first = true;
    for (size_t i = 0; i < n; i++) {
        const struct token *token = token_of(t, ids[i], skip_special);
        if (!token) {
            continue;
        }
        struct span piece = vocab_piece(&t->vocab, (uint32_t)ids[i]);
        if (t->byte_runs && (token->flags & TOKEN_BYTE)) {
            buf_append(&run, piece.data, piece.len);
        } else {
            put_run(&run, &raw);
            if (first && t->decode_start == DECODE_START_FIRST_TOKEN) {
                put_without_spaces(piece, &raw);
            } else {
                buf_append(&raw, piece.data, piece.len);
            }
        }
        first = false;
    }
    put_run(&run, &raw);
    size_t skip = t->decode_start == DECODE_START_STRIP && raw.len > 0 && raw.data[0] == ' ';
    size_t before = out->len;
    if (raw.len > skip) {
        utf8_sanitize(raw.data + skip, raw.len - skip, out);
    }
    int rc = raw.failed || run.failed || out->failed ? error_memory(err) : 0;
    if (rc < 0) {
        out->len = before;
    }
    buf_free(&raw);
    buf_free(&run);
    return rc;
}

int text_decode(const struct text *t, const int32_t *ids, size_t n, bool skip_special, struct buf *out,
                struct error *err) {
    return tokenizer_decode(t->tokenizer, ids, n, skip_special, out, err);
}

/* ---- llama.cpp's cleaning ---- */

/* Three passes over s[0..len), each may drop spaces; returns the new length. */
static size_t clean_spaces(char *s, size_t len) {
    size_t n = len ? 1 : 0;
    for (size_t i = 1; i < len; i++) { /* " ?" " !" " ." " ," */
        n -= s[i - 1] == ' ' && strchr("?!.,", s[i]) && s[i];
        s[n++] = s[i];
    }
    len = n;
    n = len ? 1 : 0;
    for (size_t i = 1; i < len; i++) { /* " ' " */
        bool alone = s[i] == '\'' && i + 1 < len && s[i - 1] == ' ' && s[i + 1] == ' ';
        char c = s[i];
        n -= alone;
        if (alone) {
            s[++i] = '\0';
        }
        s[n++] = c;
    }
    len = n;
    n = len ? 1 : 0;
    for (size_t i = 1; i < len; i++) { /* " 's" " 'm" " 're" " 've" */
        if (s[i - 1] == ' ' && s[i] == '\'' && i + 1 < len) {
            char a = s[i + 1], b = i + 2 < len ? s[i + 2] : '\0';
            n -= a == 's' || a == 'm' || ((a == 'r' || a == 'v') && b == 'e');
        }
        s[n++] = s[i];
    }
    return n;
}

int text_decode_cleaned(const struct text *t, const int32_t *ids, size_t n, bool skip_special, struct buf *out,
                        struct error *err) {
    size_t before = out->len;
    if (text_decode(t, ids, n, skip_special, out, err) < 0) {
        return -1;
    }
    if (t->tokenizer->clean_spaces && out->len > before) {
        out->len = before + clean_spaces(out->data + before, out->len - before);
        out->data[out->len] = '\0';
    }
    return 0;
}

/* ---- token by token ---- */

void detokenizer_init(struct detokenizer *d, const struct text *t, bool skip_special, bool continuing) {
    *d = (struct detokenizer){.text = t, .skip_special = skip_special, .started = continuing};
}

static size_t put_replacement(char *out) {
    memcpy(out, REPLACEMENT, 3);
    return 3;
}

/* The bytes held and these: whole characters go out, an incomplete one at the end is held. */
static size_t put_bytes(struct detokenizer *d, const char *bytes, size_t len, char *out) {
    char all[sizeof d->held + VOCAB_MAX_TOKEN_BYTES];
    memcpy(all, d->held, d->n_held);
    memcpy(all + d->n_held, bytes, len);
    len += d->n_held;
    d->n_held = 0;
    size_t written = 0;
    for (size_t i = 0; i < len;) {
        bool valid;
        size_t n = utf8_sequence(all + i, len - i, &valid);
        if (valid) {
            memcpy(out + written, all + i, n);
            written += n;
        } else if (i + n == len && utf8_is_prefix(all + i, n)) {
            memcpy(d->held, all + i, n);
            d->n_held = n;
        } else {
            written += put_replacement(out + written);
        }
        i += n;
    }
    return written;
}

static size_t put_held_as_replacements(struct detokenizer *d, char *out) {
    size_t written = 0;
    for (size_t i = 0; i < d->n_held; i++) {
        written += put_replacement(out + written);
    }
    d->n_held = 0;
    return written;
}

/* One more byte of a run of byte tokens; once the run is broken, each byte is U+FFFD. */
static size_t put_run_byte(struct detokenizer *d, char byte, char *out) {
    if (d->broken) {
        return put_replacement(out);
    }
    d->held[d->n_held++] = (unsigned char)byte;
    bool valid;
    size_t n = utf8_sequence((const char *)d->held, d->n_held, &valid);
    if (valid) {
        memcpy(out, d->held, n);
        d->n_held = 0;
        return n;
    }
    if (utf8_is_prefix((const char *)d->held, d->n_held)) {
        return 0;
    }
    d->broken = true;
    return put_held_as_replacements(d, out);
}

static size_t put_token(struct detokenizer *d, const struct token *token, struct span piece, char *out) {
    const struct tokenizer *t = d->text->tokenizer;
    if (t->byte_runs && (token->flags & TOKEN_BYTE)) {
        return put_run_byte(d, piece.data[0], out);
    }
    size_t written = 0;
    if (t->byte_runs) { /* a run, if there was one, is over */
        written = put_held_as_replacements(d, out);
        d->broken = false;
    }
    return written + put_bytes(d, piece.data, piece.len, out + written);
}

size_t detokenizer_push(struct detokenizer *d, int32_t id, char *out) {
    const struct tokenizer *t = d->text->tokenizer;
    const struct token *token = token_of(t, id, d->skip_special);
    if (!token) {
        return 0;
    }
    struct span piece = vocab_piece(&t->vocab, (uint32_t)id);
    bool start = !d->started;
    size_t written = put_token(d, token, piece, out);
    if (start && t->decode_start == DECODE_START_FIRST_TOKEN) {
        size_t kept = 0;
        for (size_t i = 0; i < written; i++) {
            if (out[i] != ' ') {
                out[kept++] = out[i];
            }
        }
        d->started = true;
        return kept;
    }
    if (start && written > 0) {
        d->started = true;
        if (t->decode_start == DECODE_START_STRIP && out[0] == ' ') {
            memmove(out, out + 1, --written);
        }
    }
    return written;
}

void text_prefetch(const struct text *t, const int32_t *ids, size_t n) {
    const struct vocab *v = &t->tokenizer->vocab;
    for (size_t i = 0; i < n; i++) {
        if (ids[i] >= 0 && (size_t)ids[i] < v->n) {
            __builtin_prefetch(vocab_piece(v, (uint32_t)ids[i]).data);
        }
    }
}

size_t detokenizer_finish(struct detokenizer *d, char *out) {
    bool byte_runs = d->text->tokenizer->byte_runs;
    size_t written = d->n_held == 0 ? 0 : byte_runs ? put_held_as_replacements(d, out) : put_replacement(out);
    d->n_held = 0;
    d->broken = false;
    return written;
}
