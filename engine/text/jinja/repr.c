/* str() and repr() of values, and HTML escapes. */
#include "text/jinja/ast.h"
#include "text/jinja/functions.h"
#include "text/jinja/loop.h"
#include "text/jinja/number.h"
#include "text/jinja/render.h"
#include "text/jinja/str.h"
#include "text/jinja/unicode.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static void write_char_escape(struct sb *out, uint32_t c, bool trusted) {
    char text[16];
    int n = c == '\n'     ? snprintf(text, sizeof text, "\\n")
            : c == '\r'   ? snprintf(text, sizeof text, "\\r")
            : c == '\t'   ? snprintf(text, sizeof text, "\\t")
            : c < 0x100   ? snprintf(text, sizeof text, "\\x%02x", c)
            : c < 0x10000 ? snprintf(text, sizeof text, "\\u%04x", c)
                          : snprintf(text, sizeof text, "\\U%08x", c);
    jj_sb_add(out, text, (size_t)n, trusted);
}

static void repr_string(struct sb *out, const struct str *s) {
    bool single = memchr(s->bytes, '\'', s->len) != NULL, twice = memchr(s->bytes, '"', s->len) != NULL;
    char quote = single && !twice ? '"' : '\'';
    jj_sb_add(out, &quote, 1, true);
    size_t plain = 0;
    for (size_t at = 0, n; at < s->len && !out->r->failed; at += n) {
        uint32_t c = jj_str_char(s, at, &n);
        bool escaped = c == (unsigned char)quote || c == '\\';
        if (!escaped && jj_is_printable(c)) {
            continue;
        }
        jj_sb_add_cut(out, s, plain, at);
        if (escaped) {
            jj_sb_add(out, "\\", 1, jj_mark(s, at));
            jj_sb_add_cut(out, s, at, at + 1);
        } else {
            write_char_escape(out, c, jj_mark(s, at));
        }
        plain = at + n;
    }
    jj_sb_add_cut(out, s, plain, s->len);
    jj_sb_add(out, &quote, 1, true);
}

static void repr_items(struct render *r, struct sb *out, const struct seq *seq) {
    for (size_t i = 0; i < seq->n && !r->failed; i++) {
        if (i) {
            jj_sb_puts(out, ", ");
        }
        jj_write_repr(r, out, seq->items[i]);
    }
}

static void repr_dict(struct render *r, struct sb *out, const struct dict *d) {
    jj_sb_puts(out, "{");
    for (size_t i = 0; i < d->n && !r->failed; i++) {
        if (i) {
            jj_sb_puts(out, ", ");
        }
        jj_write_repr(r, out, d->entries[i].key);
        jj_sb_puts(out, ": ");
        jj_write_repr(r, out, d->entries[i].value);
    }
    jj_sb_puts(out, "}");
}

static void repr_printf(struct sb *out, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static void repr_printf(struct sb *out, const char *fmt, ...) {
    char text[160];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    jj_sb_puts(out, text);
}

static void repr_range(struct sb *out, const struct range *range) {
    if (range->step == 1) {
        repr_printf(out, "range(%lld, %lld)", (long long)range->start, (long long)range->stop);
    } else {
        repr_printf(out, "range(%lld, %lld, %lld)", (long long)range->start, (long long)range->stop,
                    (long long)range->step);
    }
}

static void repr_container(struct render *r, struct sb *out, struct value v) {
    switch (v.type) {
    case V_LIST:
        jj_sb_puts(out, "[");
        repr_items(r, out, v.u.seq);
        jj_sb_puts(out, "]");
        break;
    case V_TUPLE:
        jj_sb_puts(out, "(");
        repr_items(r, out, v.u.seq);
        jj_sb_puts(out, v.u.seq->n == 1 ? ",)" : ")");
        break;
    case V_VIEW:
        repr_printf(out, "%s([", jj_type_name(v));
        repr_items(r, out, v.u.seq);
        jj_sb_puts(out, "])");
        break;
    case V_DICT:
        repr_dict(r, out, v.u.dict);
        break;
    default:
        jj_sb_puts(out, "<Namespace ");
        repr_dict(r, out, v.u.ns);
        jj_sb_puts(out, ">");
        break;
    }
}

void jj_write_repr(struct render *r, struct sb *out, struct value v) {
    if (!jj_steps(r, 1) || !jj_enter(r)) {
        return;
    }
    switch (v.type) {
    case V_NONE:
        jj_sb_add(out, "None", 4, !v.untrusted);
        break;
    case V_BOOL:
        jj_sb_add(out, v.u.b ? "True" : "False", v.u.b ? 4 : 5, !v.untrusted);
        break;
    case V_INT:
    case V_BIG:
    case V_FLOAT:
        jj_write_number(out, v);
        break;
    case V_STR:
        jj_sb_puts(out, v.u.s->markup ? "Markup(" : "");
        repr_string(out, v.u.s);
        jj_sb_puts(out, v.u.s->markup ? ")" : "");
        break;
    case V_LIST:
    case V_TUPLE:
    case V_VIEW:
    case V_DICT:
    case V_NAMESPACE:
        repr_container(r, out, v);
        break;
    case V_RANGE:
        repr_range(out, v.u.range);
        break;
    case V_LOOP:
        repr_printf(out, "<LoopContext %zu/%zu>", v.u.loop->index0 + 1, jj_loop_length(r, v.u.loop));
        break;
    case V_MACRO: {
        const struct str *name = v.u.macro->node->u.macro->text;
        if (name) {
            jj_sb_puts(out, "<Macro ");
            repr_string(out, name);
            jj_sb_puts(out, ">");
        } else {
            jj_sb_puts(out, "<Macro anonymous>");
        }
        break;
    }
    case V_MISSING:
    case V_UNDEFINED:
        jj_sb_puts(out, "Undefined");
        break;
    default: /* Python shows an address here */
        repr_printf(out, "<%s object>", jj_type_name(v));
        break;
    }
    jj_leave(r);
}

void jj_write_str(struct render *r, struct sb *out, struct value v) {
    if (v.type == V_STR) {
        jj_sb_add_str(out, v.u.s);
    } else if (v.type != V_UNDEFINED && v.type != V_MISSING) {
        jj_write_repr(r, out, v);
    }
}

const struct str *jj_to_str(struct render *r, struct value v) {
    if (v.type == V_STR) {
        return v.u.s;
    }
    struct sb b;
    jj_sb_init(&b, r);
    jj_write_str(r, &b, v);
    return jj_sb_finish(&b);
}

const struct str *jj_escape_html(struct render *r, struct value v) {
    const struct str *s = jj_to_str(r, v);
    if (s->markup) {
        return s;
    }
    static const struct {
        char c;
        const char *entity;
    } table[] = {{'&', "&amp;"}, {'<', "&lt;"}, {'>', "&gt;"}, {'\'', "&#39;"}, {'"', "&#34;"}};
    struct sb b;
    jj_sb_init(&b, r);
    size_t plain = 0;
    for (size_t at = 0; at < s->len && !r->failed; at++) {
        for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
            if (s->bytes[at] == table[i].c) {
                jj_sb_add_cut(&b, s, plain, at);
                jj_sb_add(&b, table[i].entity, strlen(table[i].entity), jj_mark(s, at));
                plain = at + 1;
            }
        }
    }
    if (plain == 0) {
        return jj_str_as_markup(r, s, true);
    }
    jj_sb_add_cut(&b, s, plain, s->len);
    return jj_str_as_markup(r, jj_sb_finish(&b), true);
}
