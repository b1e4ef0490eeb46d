#include "text/jinja/functions.h"
#include "text/jinja/json.h"
#include "text/jinja/number.h"
#include "text/jinja/render.h"
#include "text/jinja/str.h"

#include <math.h>
#include <stdio.h>

struct writer {
    struct render *r;
    struct sb *out;
    const struct json_style *style;
    size_t level;
};

/* Does the character need an escape? */
static bool is_special(const struct writer *w, unsigned char c) {
    return c < 0x20 || c == '"' || c == '\\' || (c >= 0x80 && w->style->ensure_ascii);
}

static void write_escape(struct writer *w, uint32_t c, bool trusted) {
    static const char from[] = "\"\\\n\r\t\f\b", to[] = "\"\\nrtfb";
    char text[16];
    int n = 0;
    for (size_t i = 0; from[i]; i++) {
        if (c == (unsigned char)from[i]) {
            n = snprintf(text, sizeof text, "\\%c", to[i]);
        }
    }
    if (n == 0 && c < 0x10000) {
        n = snprintf(text, sizeof text, "\\u%04x", c);
    } else if (n == 0) {
        n = snprintf(text, sizeof text, "\\u%04x\\u%04x", 0xd800 + ((c - 0x10000) >> 10), 0xdc00 + (c & 0x3ff));
    }
    jj_sb_add(w->out, text, (size_t)n, trusted);
}

static void write_string(struct writer *w, const struct str *s) {
    jj_sb_puts(w->out, "\"");
    size_t plain = 0;
    for (size_t at = 0; at < s->len && !w->r->failed;) {
        if (!is_special(w, (unsigned char)s->bytes[at])) {
            at++;
            continue;
        }
        size_t n;
        jj_sb_add_cut(w->out, s, plain, at);
        uint32_t c = jj_str_char(s, at, &n);
        write_escape(w, c, jj_mark(s, at));
        at += n;
        plain = at;
    }
    jj_sb_add_cut(w->out, s, plain, s->len);
    jj_sb_puts(w->out, "\"");
}

static void write_double(struct writer *w, struct value v) {
    if (isfinite(v.u.f)) {
        jj_write_number(w->out, v);
    } else {
        const char *text = isnan(v.u.f) ? "NaN" : v.u.f < 0 ? "-Infinity" : "Infinity";
        jj_sb_add(w->out, text, __builtin_strlen(text), !v.untrusted);
    }
}

/* None, booleans and numbers. */
static void write_scalar(struct writer *w, struct value v) {
    const char *word = v.type == V_NONE ? "null" : v.type == V_BOOL ? (v.u.b ? "true" : "false") : NULL;
    if (word) {
        jj_sb_add(w->out, word, __builtin_strlen(word), !v.untrusted);
    } else if (v.type == V_FLOAT) {
        write_double(w, v);
    } else {
        jj_write_number(w->out, v);
    }
}

static void write_key(struct writer *w, struct value key) {
    if (key.type == V_STR) {
        write_string(w, key.u.s);
    } else if (key.type == V_NONE || value_is_number(key)) {
        jj_sb_puts(w->out, "\"");
        write_scalar(w, key);
        jj_sb_puts(w->out, "\"");
    } else {
        jj_fail(w->r, "keys must be str, int, float, bool or None, not %s", jj_type_name(key));
    }
}

static void new_line(struct writer *w) {
    if (w->style->indent) {
        jj_sb_puts(w->out, "\n");
        for (size_t i = 0; i < w->level && !w->r->failed; i++) {
            jj_sb_add_str(w->out, w->style->indent);
        }
    }
}

static void write_value(struct writer *w, struct value v);

static void write_list(struct writer *w, const struct seq *seq) {
    if (seq->n == 0) {
        jj_sb_puts(w->out, "[]");
        return;
    }
    jj_sb_puts(w->out, "[");
    w->level++;
    for (size_t i = 0; i < seq->n && !w->r->failed; i++) {
        if (i) {
            jj_sb_add_str(w->out, w->style->item_separator);
        }
        new_line(w);
        write_value(w, seq->items[i]);
    }
    w->level--;
    new_line(w);
    jj_sb_puts(w->out, "]");
}

static void write_dict(struct writer *w, const struct dict *d) {
    if (d->n == 0) {
        jj_sb_puts(w->out, "{}");
        return;
    }
    const struct seq *order = NULL; /* the keys, sorted */
    if (w->style->sort_keys) {
        struct seq *keys = jj_seq_new(w->r, d->n);
        for (size_t i = 0; i < d->n; i++) {
            jj_seq_push(w->r, keys, d->entries[i].key);
        }
        order = jj_sorted(w->r, keys, keys, false);
    }
    jj_sb_puts(w->out, "{");
    w->level++;
    for (size_t i = 0; i < d->n && !w->r->failed; i++) {
        struct value key = order ? order->items[i] : d->entries[i].key;
        if (i) {
            jj_sb_add_str(w->out, w->style->item_separator);
        }
        new_line(w);
        write_key(w, key);
        jj_sb_add_str(w->out, w->style->key_separator);
        write_value(w, order ? jj_dict_get(w->r, d, key) : d->entries[i].value);
    }
    w->level--;
    new_line(w);
    jj_sb_puts(w->out, "}");
}

static void write_value(struct writer *w, struct value v) {
    struct render *r = w->r;
    if (!jj_steps(r, 1) || !jj_enter(r)) {
        return;
    }
    if (v.type == V_STR) {
        write_string(w, v.u.s);
    } else if (v.type == V_NONE || value_is_number(v)) {
        write_scalar(w, v);
    } else if (v.type == V_LIST || v.type == V_TUPLE) {
        write_list(w, v.u.seq);
    } else if (v.type == V_DICT) {
        write_dict(w, v.u.dict);
    } else {
        jj_fail(r, "Object of type %s is not JSON serializable", jj_type_name(v));
    }
    jj_leave(r);
}

void jj_write_json(struct render *r, struct sb *out, struct value v, const struct json_style *style) {
    struct writer w = {.r = r, .out = out, .style = style};
    write_value(&w, v);
}
