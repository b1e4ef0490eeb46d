#include "text/normalizer.h"

#include "base/utf8.h"
#include "text/unicode_class.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

struct normalizer_step *normalizer_add(struct normalizer *n, enum normalizer_kind kind, struct error *err) {
    if (n->n == NORMALIZER_MAX_STEPS) {
        error_set(err, ERROR_MODEL, "the normalizer has more than %d steps", NORMALIZER_MAX_STEPS);
        return NULL;
    }
    struct normalizer_step *step = &n->steps[n->n++];
    *step = (struct normalizer_step){.kind = kind};
    return step;
}

void normalizer_free(struct normalizer *n) {
    for (size_t i = 0; i < n->n; i++) {
        regex_free(n->steps[i].regex);
        charsmap_free(n->steps[i].charsmap);
    }
    n->n = 0;
}

void normalizer_scratch_free(struct normalizer_scratch *s) {
    buf_free(&s->text);
    buf_free(&s->spare_text);
    buf_free(&s->marks);
    buf_free(&s->spare_marks);
}

/* ---- writing text with its marks ---- */

static void copy(struct normalizer_scratch *s, size_t from, size_t to) {
    buf_append(&s->spare_text, s->text.data + from, to - from);
    if (s->with_marks) {
        buf_append(&s->spare_marks, s->marks.data + from, to - from);
    }
}

/* Write bytes that stand for text[from..to) (nothing: they are trusted). */
static void write_for(struct normalizer_scratch *s, const char *bytes, size_t len, size_t from, size_t to) {
    buf_append(&s->spare_text, bytes, len);
    if (s->with_marks && buf_reserve(&s->spare_marks, len)) {
        char mark = to == from || !memchr(s->marks.data + from, 0, to - from);
        memset(s->spare_marks.data + s->spare_marks.len, mark, len);
        s->spare_marks.len += len;
    }
}

/* ---- Unicode normal forms ---- */

/* Characters that are in NFC by themselves and change nothing before them: a quick test that spares most text. */
static bool is_inert_nfc(uint32_t cp) {
    return cp < 0x300 || (cp >= 0x400 && cp <= 0x482) || (cp >= 0x3041 && cp <= 0x3096) ||
           (cp >= 0x30a1 && cp <= 0x30fa) || (cp >= 0x3001 && cp <= 0x3029) || (cp >= 0x3400 && cp <= 0x9fff) ||
           (cp >= 0xac00 && cp <= 0xd7a3) || (cp >= 0xff01 && cp <= 0xff60) || (cp >= 0x2010 && cp <= 0x2027);
}

static bool is_inert(enum normalizer_kind kind, const char *s, size_t len) {
    if (kind != NORMALIZE_NFC) {
        return false;
    }
    for (size_t i = 0; i < len; i += utf8_length(s[i])) {
        if (!is_inert_nfc(utf8_get(s + i))) {
            return false;
        }
    }
    return true;
}

static utf8proc_option_t form_options(enum normalizer_kind kind) {
    switch (kind) {
    case NORMALIZE_NFC:
        return UTF8PROC_STABLE | UTF8PROC_COMPOSE;
    case NORMALIZE_NFD:
        return UTF8PROC_STABLE | UTF8PROC_DECOMPOSE;
    case NORMALIZE_NFKC:
        return UTF8PROC_STABLE | UTF8PROC_COMPAT | UTF8PROC_COMPOSE;
    default:
        return UTF8PROC_STABLE | UTF8PROC_COMPAT | UTF8PROC_DECOMPOSE;
    }
}

/*
 * A normal form never reaches back across an ASCII character, so the text is taken in parts that begin with one
 * (with what hangs on it): ASCII costs nothing, and marks stay with their characters.
 */
static int normal_form(enum normalizer_kind kind, struct normalizer_scratch *s, struct error *err) {
    const char *text = s->text.data;
    size_t len = s->text.len, plain = 0; /* start of what is not yet copied */
    for (size_t i = 0; i < len;) {
        if ((unsigned char)text[i] < 0x80) {
            i++;
            continue;
        }
        size_t end = i;
        while (end < len && (unsigned char)text[end] >= 0x80) {
            end++;
        }
        size_t start = i > plain ? i - 1 : i; /* with the ASCII character before */
        i = end;
        if (is_inert(kind, text + start, end - start)) {
            continue;
        }
        copy(s, plain, start);
        utf8proc_uint8_t *form = NULL;
        utf8proc_ssize_t n = utf8proc_map((const utf8proc_uint8_t *)text + start, (utf8proc_ssize_t)(end - start),
                                          &form, form_options(kind));
        if (n < 0) {
            free(form);
            return n == UTF8PROC_ERROR_NOMEM
                       ? error_memory(err)
                       : error_set(err, ERROR_INVALID, "the text cannot be brought into its normal form");
        }
        size_t ascii =
            start < end && n > 0 && (unsigned char)text[start] < 0x80 && form[0] == (unsigned char)text[start];
        write_for(s, (const char *)form, ascii, start, start + ascii);
        write_for(s, (const char *)form + ascii, (size_t)n - ascii, start, end);
        free(form);
        plain = end;
    }
    copy(s, plain, len);
    return 0;
}

/* ---- the other steps ---- */

static void lowercase(struct normalizer_scratch *s) {
    for (size_t i = 0, n; i < s->text.len; i += n) {
        n = utf8_length(s->text.data[i]);
        uint32_t cp = utf8_get(s->text.data + i);
        char out[8];
        size_t len;
        if (cp == 0x130) { /* the one character whose full lower case is two: i and a dot above */
            memcpy(out, "i\xcc\x87", 3);
            len = 3;
        } else {
            len = utf8_encode((uint32_t)utf8proc_tolower((utf8proc_int32_t)cp), out);
        }
        write_for(s, out, len, i, i + n);
    }
}

static int replace(const struct normalizer_step *step, struct normalizer_scratch *s, struct error *err) {
    const char *text = s->text.data;
    size_t len = s->text.len, plain = 0, from = 0;
    while (from <= len) {
        size_t start, end;
        if (step->regex) {
            int found = regex_find(step->regex, s->run, text, len, from, &start, &end, err);
            if (found < 0) {
                return -1;
            }
            if (!found) {
                break;
            }
        } else {
            const char *hit = from < len ? memmem(text + from, len - from, step->pattern, step->pattern_len) : NULL;
            if (!hit) {
                break;
            }
            start = (size_t)(hit - text);
            end = start + step->pattern_len;
        }
        copy(s, plain, start);
        write_for(s, step->content, step->content_len, start, end);
        plain = end;
        from = end > start ? end : end < len ? end + utf8_length(text[end]) : len + 1;
    }
    copy(s, plain, len);
    return 0;
}

static void strip(const struct normalizer_step *step, struct normalizer_scratch *s) {
    const char *text = s->text.data;
    size_t start = 0, end = s->text.len, n;
    while (step->left && start < end && (unicode_class_at(text + start, &n) & CLASS_SPACE)) {
        start += n;
    }
    while (step->right && end > start) {
        size_t last = end - 1;
        while (((unsigned char)text[last] & 0xc0) == 0x80) {
            last--;
        }
        if (!(unicode_class_at(text + last, &n) & CLASS_SPACE)) {
            break;
        }
        end = last;
    }
    copy(s, start, end);
}

/* Write the replacement of text[from..to) if it has one. */
static bool map(const struct charsmap *m, struct normalizer_scratch *s, size_t from, size_t to) {
    size_t len;
    const char *replacement = charsmap_find(m, s->text.data + from, to - from, &len);
    if (replacement) {
        write_for(s, replacement, len, from, to);
    }
    return replacement;
}

/* The end of the grapheme cluster that begins at text[at] (Unicode annex 29). */
static size_t grapheme_end(const char *text, size_t at, size_t len) {
    utf8proc_int32_t state = 0;
    size_t end = at + utf8_length(text[at]);
    uint32_t before = utf8_get(text + at);
    while (end < len) {
        uint32_t next = utf8_get(text + end);
        if (utf8proc_grapheme_break_stateful((utf8proc_int32_t)before, (utf8proc_int32_t)next, &state)) {
            break;
        }
        before = next;
        end += utf8_length(text[end]);
    }
    return end;
}

/* As the tokenizers library does it: short grapheme clusters as one, else character by character. */
static void precompiled(const struct charsmap *m, struct normalizer_scratch *s) {
    const char *text = s->text.data;
    for (size_t i = 0, end; i < s->text.len; i = end) {
        end = grapheme_end(text, i, s->text.len);
        if (end - i < 6 && map(m, s, i, end)) {
            continue;
        }
        for (size_t j = i, n; j < end; j += n) {
            n = utf8_length(text[j]);
            if (!map(m, s, j, j + n)) {
                copy(s, j, j + n);
            }
        }
    }
}

static int run_step(const struct normalizer_step *step, struct normalizer_scratch *s, struct error *err) {
    switch (step->kind) {
    case NORMALIZE_LOWERCASE:
        lowercase(s);
        return 0;
    case NORMALIZE_PREPEND:
        write_for(s, step->content, step->content_len, 0, 0);
        copy(s, 0, s->text.len);
        return 0;
    case NORMALIZE_REPLACE:
        return replace(step, s, err);
    case NORMALIZE_STRIP:
        strip(step, s);
        return 0;
    case NORMALIZE_PRECOMPILED:
        precompiled(step->charsmap, s);
        return 0;
    default:
        return normal_form(step->kind, s, err);
    }
}

int normalize(const struct normalizer *n, struct normalizer_scratch *s, struct error *err) {
    for (size_t i = 0; i < n->n && s->text.len > 0; i++) {
        buf_reset(&s->spare_text);
        buf_reset(&s->spare_marks);
        if (run_step(&n->steps[i], s, err) < 0) {
            return -1;
        }
        if (s->spare_text.failed || s->spare_marks.failed) {
            return error_memory(err);
        }
        struct buf text = s->text, marks = s->marks;
        s->text = s->spare_text;
        s->marks = s->spare_marks;
        s->spare_text = text;
        s->spare_marks = marks;
    }
    return 0;
}
