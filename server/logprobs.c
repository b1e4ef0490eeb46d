#include "logprobs.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define FLOOR (-9999.0) /* JSON has no minus infinity */

void logprobs_init(struct logprobs *l, const struct text *text, bool skip_special, size_t n_top_max,
                   size_t first_offset) {
    *l = (struct logprobs){
        .text = text, .skip_special = skip_special, .n_top_max = n_top_max, .characters = first_offset};
}

void logprobs_free(struct logprobs *l) {
    free(l->entries);
    free(l->top);
    *l = (struct logprobs){0};
}

static int grow(struct logprobs *l, struct error *err) {
    size_t cap = l->cap ? l->cap * 2 : 16;
    struct logprob_entry *entries = realloc(l->entries, cap * sizeof *entries);
    if (!entries) {
        return error_memory(err);
    }
    l->entries = entries;
    struct token_logprob *top = realloc(l->top, cap * (l->n_top_max + 1) * sizeof *top);
    if (!top) {
        return error_memory(err);
    }
    l->top = top;
    l->cap = cap;
    return 0;
}

static size_t count_characters(const char *s, size_t len) {
    size_t n = 0;
    for (size_t i = 0; i < len; i++) {
        n += ((unsigned char)s[i] & 0xc0) != 0x80;
    }
    return n;
}

/* One more entry, at the end of what there is. */
static int append(struct logprobs *l, const struct engine_event *event, struct error *err) {
    if (l->n == l->cap && grow(l, err)) {
        return -1;
    }
    size_t n_top = event->n_top < l->n_top_max ? event->n_top : l->n_top_max;
    l->entries[l->n] = (struct logprob_entry){.id = event->token,
                                              .logprob = event->logprob,
                                              .rank = event->rank,
                                              .start = l->bytes,
                                              .offset = l->characters,
                                              .n_top = n_top};
    if (n_top) {
        memcpy(&l->top[l->n * (l->n_top_max + 1)], event->top, n_top * sizeof *l->top);
    }
    l->n++;
    return 0;
}

int logprobs_push(struct logprobs *l, const struct engine_event *event, struct error *err) {
    size_t len;
    if (l->skip_special && text_token_is_special(l->text, event->token)) {
        return 0; /* it has no place in the text */
    }
    if (append(l, event, err)) {
        return -1;
    }
    const char *bytes = text_token_bytes(l->text, event->token, &len);
    l->bytes += len;
    l->characters += count_characters(bytes, len);
    return 0;
}

int logprobs_push_prompt(struct logprobs *l, const struct engine_event *event, const char *echo, size_t len,
                         struct error *err) {
    size_t n, left = len - l->echoed;
    if (append(l, event, err)) {
        return -1;
    }
    const char *bytes = text_token_bytes(l->text, event->token, &n);
    const char *at = left ? echo + l->echoed : "";
    if (n > 0 && bytes[0] == ' ' && !(left >= n && memcmp(at, bytes, n) == 0) && left >= n - 1 &&
        memcmp(at, bytes + 1, n - 1) == 0) {
        n--; /* a space that the tokenizer put before the text */
    } else if (text_token_is_special(l->text, event->token) && !(left >= n && memcmp(at, bytes, n) == 0)) {
        n = 0;
    }
    n = n < left ? n : left;
    l->characters += count_characters(at, n);
    l->echoed += n;
    l->n_prompt = l->n;
    return 0;
}

void logprobs_end_prompt(struct logprobs *l, const char *echo, size_t len) {
    l->characters = count_characters(echo, len);
}

static size_t end_of(const struct logprobs *l, size_t i) {
    return i + 1 < l->n ? l->entries[i + 1].start : l->bytes;
}

void logprobs_cut(struct logprobs *l, size_t shown) {
    while (l->n > l->taken && l->n > l->n_prompt && l->entries[l->n - 1].start >= shown) {
        l->bytes = l->entries[--l->n].start;
    }
    l->bytes = l->bytes < shown ? l->bytes : shown;
}

size_t logprobs_ready(const struct logprobs *l, size_t shown, bool all) {
    size_t n = 0;
    while (l->taken + n < l->n && (all || end_of(l, l->taken + n) <= shown)) {
        n++;
    }
    return n;
}

/* What is shown of the bytes of entry i: all but of one that was cut. */
static const char *shown_bytes(const struct logprobs *l, size_t i, size_t *len) {
    const char *bytes = text_token_bytes(l->text, l->entries[i].id, len);
    size_t shown = end_of(l, i) - l->entries[i].start;
    if (i >= l->n_prompt) {
        *len = *len < shown ? *len : shown;
    }
    return bytes;
}

static void write_number(struct buf *out, double v) {
    buf_printf(out, "%.8g", isfinite(v) && v > FLOOR ? v : FLOOR);
}

static const struct token_logprob *top_of(const struct logprobs *l, size_t i) {
    return &l->top[i * (l->n_top_max + 1)];
}

/* ---- chat ---------------------------------------------------------------------------------------------------- */

/* "token":"…","logprob":…,"bytes":[…] */
static void write_token(const char *bytes, size_t len, float logprob, struct buf *out) {
    buf_puts(out, "\"token\":");
    buf_json_string(out, bytes, len);
    buf_puts(out, ",\"logprob\":");
    write_number(out, (double)logprob);
    buf_puts(out, ",\"bytes\":[");
    for (size_t i = 0; i < len; i++) {
        buf_printf(out, i ? ",%u" : "%u", (unsigned)(unsigned char)bytes[i]);
    }
    buf_putc(out, ']');
}

void logprobs_write_chat(struct logprobs *l, size_t n, struct buf *out) {
    buf_puts(out, "{\"content\":[");
    for (size_t i = l->taken; i < l->taken + n; i++) {
        const struct logprob_entry *e = &l->entries[i];
        buf_puts(out, i > l->taken ? ",{" : "{");
        size_t len;
        const char *bytes = shown_bytes(l, i, &len);
        write_token(bytes, len, e->logprob, out);
        buf_puts(out, ",\"top_logprobs\":[");
        for (size_t k = 0; k < e->n_top; k++) {
            buf_puts(out, k ? ",{" : "{");
            bytes = text_token_bytes(l->text, top_of(l, i)[k].id, &len);
            write_token(bytes, len, top_of(l, i)[k].logprob, out);
            buf_putc(out, '}');
        }
        buf_puts(out, "]}");
    }
    buf_puts(out, "],\"refusal\":null}");
    l->taken += n;
}

/* ---- completions --------------------------------------------------------------------------------------------- */

/* Names must differ, and a part of a character has no name of its own: then its bytes, as OpenAI writes them. */
static void write_name(const char *bytes, size_t len, struct buf *out) {
    struct buf name = BUF_INIT;
    buf_json_string(&name, bytes, len);
    if (!memmem(name.data ? name.data : "", name.len, "\xef\xbf\xbd", 3)) {
        buf_append(out, name.data, name.len);
    } else {
        buf_puts(out, "\"bytes:");
        for (size_t i = 0; i < len; i++) {
            buf_printf(out, "\\\\x%02x", (unsigned)(unsigned char)bytes[i]);
        }
        buf_putc(out, '"');
    }
    out->failed = out->failed || name.failed;
    buf_free(&name);
}

static void write_top(const struct logprobs *l, size_t i, struct buf *out) {
    const struct logprob_entry *e = &l->entries[i];
    bool chosen = false;
    const char *bytes;
    size_t len;
    if (l->n_top_max == 0 || isnan(e->logprob)) {
        buf_puts(out, "null");
        return;
    }
    buf_putc(out, '{');
    for (size_t k = 0; k < e->n_top; k++) {
        buf_puts(out, k ? "," : "");
        bytes = text_token_bytes(l->text, top_of(l, i)[k].id, &len);
        write_name(bytes, len, out);
        buf_putc(out, ':');
        write_number(out, (double)top_of(l, i)[k].logprob);
        chosen = chosen || top_of(l, i)[k].id == e->id;
    }
    if (!chosen) { /* the token that was taken is always among them */
        buf_puts(out, e->n_top ? "," : "");
        bytes = shown_bytes(l, i, &len);
        write_name(bytes, len, out);
        buf_putc(out, ':');
        write_number(out, (double)e->logprob);
    }
    buf_putc(out, '}');
}

void logprobs_write_completions(struct logprobs *l, size_t n, struct buf *out) {
    size_t from = l->taken, to = l->taken + n;
    buf_puts(out, "{\"tokens\":[");
    for (size_t i = from; i < to; i++) {
        buf_puts(out, i > from ? "," : "");
        size_t len;
        const char *bytes = shown_bytes(l, i, &len);
        write_name(bytes, len, out);
    }
    buf_puts(out, "],\"token_logprobs\":[");
    for (size_t i = from; i < to; i++) {
        buf_puts(out, i > from ? "," : "");
        if (isnan(l->entries[i].logprob)) {
            buf_puts(out, "null");
        } else {
            write_number(out, (double)l->entries[i].logprob);
        }
    }
    buf_puts(out, "],\"top_logprobs\":[");
    for (size_t i = from; i < to; i++) {
        buf_puts(out, i > from ? "," : "");
        write_top(l, i, out);
    }
    buf_puts(out, "],\"text_offset\":[");
    for (size_t i = from; i < to; i++) {
        buf_printf(out, i > from ? ",%zu" : "%zu", l->entries[i].offset);
    }
    buf_puts(out, "]}");
    l->taken = to;
}

/* ---- prompt_logprobs ----------------------------------------------------------------------------------------- */

/* "ID":{"logprob":…,"rank":…,"decoded_token":"…"} */
static void write_prompt_token(const struct logprobs *l, int32_t id, float logprob, size_t rank, struct buf *out) {
    size_t len;
    const char *bytes = text_token_bytes(l->text, id, &len);
    buf_printf(out, "\"%d\":{\"logprob\":", id);
    write_number(out, (double)logprob);
    buf_printf(out, ",\"rank\":%zu,\"decoded_token\":", rank);
    buf_json_string(out, bytes, len);
    buf_putc(out, '}');
}

void logprobs_write_prompt(const struct logprobs *l, struct buf *out) {
    buf_putc(out, '[');
    for (size_t i = 0; i < l->n; i++) {
        const struct logprob_entry *e = &l->entries[i];
        buf_puts(out, i ? "," : "");
        if (isnan(e->logprob)) {
            buf_puts(out, "null");
            continue;
        }
        buf_putc(out, '{');
        write_prompt_token(l, e->id, e->logprob, e->rank, out);
        for (size_t k = 0; k < e->n_top; k++) {
            if (top_of(l, i)[k].id != e->id) {
                buf_putc(out, ',');
                write_prompt_token(l, top_of(l, i)[k].id, top_of(l, i)[k].logprob, k + 1, out);
            }
        }
        buf_putc(out, '}');
    }
    buf_putc(out, ']');
}
