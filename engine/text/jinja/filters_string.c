/* Filters that change strings. */
#include "text/jinja/filters.h"
#include "text/jinja/format.h"
#include "text/jinja/number.h"
#include "text/jinja/text.h"
#include "text/jinja/unicode.h"

#include <stdio.h>
#include <string.h>

static const struct str space = {.bytes = " ", .len = 1, .trusted = true, .ascii = true};
static const struct str newline = {.bytes = "\n", .len = 1, .trusted = true, .ascii = true};

#define CASE_FILTER(name, to)                                                                                          \
    FILTER(name) {                                                                                                     \
        UNUSED;                                                                                                        \
        return value_str(jj_change_case(r, jj_to_str(r, self), to));                                                   \
    }
CASE_FILTER(upper, TEXT_UPPER)
CASE_FILTER(lower, TEXT_LOWER)
CASE_FILTER(capitalize, TEXT_CAPITALIZE)

static bool begins_word(uint32_t c) {
    return jj_is_space(c) || (c < 0x80 && c && strchr("-({[<", (int)c));
}

/* The first letter behind white space, a hyphen or an opening bracket becomes upper case, all others lower case. */
FILTER(title) {
    UNUSED;
    const struct str *s = jj_to_str(r, self);
    struct sb b;
    jj_sb_init(&b, r);
    for (size_t at = 0, n; at < s->len && jj_steps(r, 1);) {
        size_t start = at;
        bool separator = begins_word(jj_str_char(s, at, &n));
        size_t first = n;
        while (at < s->len && begins_word(jj_str_char(s, at, &n)) == separator) {
            at += n;
        }
        if (separator) {
            jj_sb_add_cut(&b, s, start, at);
        } else {
            jj_sb_add_str(&b, jj_change_case(r, jj_str_cut(r, s, start, start + first), TEXT_UPPER));
            jj_sb_add_str(&b, jj_change_case(r, jj_str_cut(r, s, start + first, at), TEXT_LOWER));
        }
    }
    return value_str(jj_sb_finish(&b));
}

FILTER(trim) {
    UNUSED;
    const struct str *chars = absent(a[0]) ? NULL : jj_need_str(r, a[0], "trim");
    return value_str(jj_strip(r, jj_to_str(r, self), chars, STRIP_LEFT | STRIP_RIGHT));
}

static const struct str *plain(struct render *r, struct value v) {
    return jj_str_as_markup(r, jj_to_str(r, v), false);
}

FILTER(replace) {
    UNUSED;
    int64_t most = absent(a[2]) ? -1 : jj_to_index(r, a[2], "replace");
    const struct str *s = plain(r, self), *old = plain(r, a[0]), *new = plain(r, a[1]);
    return value_str(jj_replace(r, s, old, new, most));
}

FILTER(string) {
    UNUSED;
    return value_str(jj_to_str(r, self));
}

FILTER(escape) {
    UNUSED;
    return value_str(jj_escape_html(r, self));
}

FILTER(forceescape) {
    UNUSED;
    return value_str(jj_escape_html(r, value_str(plain(r, self))));
}

FILTER(safe) {
    UNUSED;
    return value_str(jj_str_as_markup(r, jj_to_str(r, self), true));
}

FILTER(center) {
    UNUSED;
    int64_t width = a[0].type == V_MISSING ? 80 : jj_to_index(r, a[0], "center");
    return value_str(jj_pad(r, jj_to_str(r, self), width, &space, '^'));
}

FILTER(format) {
    UNUSED;
    const struct str *s = jj_to_str(r, self);
    if (call->n && call->n_named) {
        jj_fail(r, "format: can't handle positional and keyword arguments at the same time");
        return NONE;
    }
    if (call->n_named) {
        struct dict *d = jj_dict_new(r, call->n_named);
        for (size_t i = 0; i < call->n_named; i++) {
            jj_dict_set(r, d, value_str(call->named[i].name), call->named[i].value);
        }
        return value_str(jj_format_percent(r, s, value_dict(d)));
    }
    struct seq *seq = jj_seq_new(r, call->n);
    for (size_t i = 0; i < call->n; i++) {
        jj_seq_push(r, seq, call->positional[i]);
    }
    return value_str(jj_format_percent(r, s, value_seq(V_TUPLE, seq)));
}

FILTER(indent) {
    UNUSED;
    if (self.type != V_STR) {
        return jj_binary(r, 0 /* OP_ADD */, self, value_str(&newline)); /* fails as Python's s += "\n" does */
    }
    const struct str *s = self.u.s, *width = &space;
    int64_t times = 4;
    if (a[0].type == V_STR) {
        width = s->markup ? jj_str_as_markup(r, a[0].u.s, true) : a[0].u.s;
        times = 1;
    } else if (a[0].type != V_MISSING) {
        times = jj_to_index(r, a[0], "indent");
    }
    bool first = a[1].type != V_MISSING && jj_truth(a[1]), blank = a[2].type != V_MISSING && jj_truth(a[2]);
    /* the line that a newline at the end begins counts, and an empty string is one line */
    const struct seq *lines = jj_split_lines(r, jj_str_concat(r, s, &newline), false);
    struct sb b;
    jj_sb_init(&b, r);
    for (size_t i = 0; i < lines->n && jj_steps(r, 1); i++) {
        const struct str *line = lines->items[i].u.s;
        if (i) {
            jj_sb_add_str(&b, &newline);
        }
        for (int64_t k = 0; k < times && (i ? blank || line->len : first) && jj_steps(r, (k & 3) == 3); k++) {
            jj_sb_add_str(&b, width);
        }
        jj_sb_add_str(&b, line);
    }
    return value_str(jj_str_as_markup(r, jj_sb_finish(&b), s->markup));
}

FILTER(truncate) {
    UNUSED;
    static const struct str dots = {.bytes = "...", .len = 3, .trusted = true, .ascii = true};
    int64_t length = a[0].type == V_MISSING ? 255 : jj_to_index(r, a[0], "truncate");
    struct value end = a[2].type == V_MISSING ? value_str(&dots) : a[2];
    int64_t leeway = absent(a[3]) ? 5 : jj_to_index(r, a[3], "truncate");
    int64_t end_length = (int64_t)jj_length(r, end), self_length = (int64_t)jj_length(r, self);
    if (r->failed) {
        return NONE;
    }
    if (length < end_length || leeway < 0) {
        jj_fail(r, "truncate: expected length >= %lld and leeway >= 0", (long long)end_length);
        return NONE;
    }
    if (self_length - leeway <= length) {
        return self;
    }
    const struct str *s = jj_need_str(r, self, "truncate");
    const struct str *head = jj_str_cut(r, s, 0, jj_str_offset(s, (size_t)(length - end_length)));
    if (a[1].type == V_MISSING || !jj_truth(a[1])) {
        size_t at = jj_str_rfind(r, head, &space, 0, head->len);
        head = at == SIZE_MAX ? head : jj_str_cut(r, head, 0, at);
    }
    return jj_binary(r, 0 /* OP_ADD */, value_str(head), end);
}

FILTER(wordcount) {
    UNUSED;
    const struct str *s = jj_to_str(r, self);
    int64_t words = 0;
    bool inside = false;
    jj_steps(r, s->len / 8);
    for (size_t at = 0, n; at < s->len; at += n) {
        uint32_t c = jj_str_char(s, at, &n);
        bool is_word = c == '_' || jj_is_word(c);
        words += is_word && !inside;
        inside = is_word;
    }
    return value_int(words);
}

/* --- URLs and markup --- */

static void quote(struct render *r, struct sb *out, struct value v, bool query) {
    static const char safe[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-~";
    const struct str *s = plain(r, v);
    for (size_t i = 0; i < s->len && jj_steps(r, (i & 15) == 0); i++) {
        unsigned char c = (unsigned char)s->bytes[i];
        char text[4];
        if ((c && strchr(safe, c)) || (c == '/' && !query)) {
            jj_sb_add_cut(out, s, i, i + 1);
        } else if (c == ' ' && query) {
            jj_sb_add(out, "+", 1, jj_mark(s, i));
        } else {
            snprintf(text, sizeof text, "%%%02X", c);
            jj_sb_add(out, text, 3, jj_mark(s, i));
        }
    }
}

FILTER(urlencode) {
    UNUSED;
    struct sb b;
    jj_sb_init(&b, r);
    if (self.type == V_STR || !jj_is_iterable(self)) {
        quote(r, &b, self, false);
        return value_str(jj_sb_finish(&b));
    }
    const struct seq *items = jj_items_of(r, self);
    for (size_t i = 0; i < items->n && !r->failed; i++) {
        struct value key = items->items[i], v = key;
        if (self.type == V_DICT) {
            v = self.u.dict->entries[i].value;
        } else {
            const struct seq *pair = jj_items_of(r, key);
            if (!r->failed && pair->n != 2) {
                jj_fail(r, "urlencode: expected pairs");
            }
            if (r->failed) {
                break;
            }
            key = pair->items[0];
            v = pair->items[1];
        }
        jj_sb_puts(&b, i ? "&" : "");
        quote(r, &b, key, true);
        jj_sb_puts(&b, "=");
        quote(r, &b, v, true);
    }
    return value_str(jj_sb_finish(&b));
}

FILTER(xmlattr) {
    UNUSED;
    bool autospace = a[0].type == V_MISSING || jj_truth(a[0]);
    struct sb b;
    jj_sb_init(&b, r);
    if (self.type != V_DICT) {
        jj_fail(r, "xmlattr: expected a dict, not %s", jj_type_name(self));
        return NONE;
    }
    for (size_t i = 0; i < self.u.dict->n && !r->failed; i++) {
        const struct dict_entry *e = &self.u.dict->entries[i];
        if (e->value.type == V_NONE || e->value.type == V_UNDEFINED) {
            continue;
        }
        const struct str *key = jj_need_str(r, e->key, "xmlattr");
        for (size_t k = 0; k < key->len; k++) {
            if (key->bytes[k] && strchr(" \t\n\r\f\v/>=", key->bytes[k])) {
                jj_fail(r, "invalid character in attribute name");
            }
        }
        jj_sb_puts(&b, b.len || autospace ? " " : "");
        jj_sb_add_str(&b, jj_escape_html(r, e->key));
        jj_sb_puts(&b, "=\"");
        jj_sb_add_str(&b, jj_escape_html(r, e->value));
        jj_sb_puts(&b, "\"");
    }
    return value_str(jj_sb_finish(&b));
}

/* s without <tags> and <!-- comments -->. An unclosed one stays, and what is behind it. */
static const struct str *without_tags(struct render *r, const struct str *s) {
    static const struct str less = {.bytes = "<", .len = 1}, more = {.bytes = ">", .len = 1},
                            comment_end = {.bytes = "-->", .len = 3};
    struct sb b;
    jj_sb_init(&b, r);
    size_t at = 0;
    while (!r->failed) {
        size_t start = jj_str_find(r, s, &less, at);
        if (start == SIZE_MAX) {
            break;
        }
        bool comment = s->len - start >= 4 && memcmp(s->bytes + start, "<!--", 4) == 0;
        size_t end = comment ? jj_str_find(r, s, &comment_end, start + 4) : jj_str_find(r, s, &more, start);
        if (end == SIZE_MAX) {
            break;
        }
        jj_sb_add_cut(&b, s, at, start);
        at = end + (comment ? 3 : 1);
    }
    jj_sb_add_cut(&b, s, at, s->len);
    return jj_sb_finish(&b);
}

/* The character of the entity at s[at] == '&' and its length, or 0. The five of XML and numbers. */
static size_t entity(const struct str *s, size_t at, uint32_t *c) {
    static const struct {
        const char *name;
        char c;
    } table[] = {{"&amp;", '&'}, {"&lt;", '<'}, {"&gt;", '>'}, {"&quot;", '"'}, {"&apos;", '\''}};
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        size_t n = strlen(table[i].name);
        if (s->len - at >= n && memcmp(s->bytes + at, table[i].name, n) == 0) {
            *c = (unsigned char)table[i].c;
            return n;
        }
    }
    if (s->len - at < 4 || s->bytes[at + 1] != '#') {
        return 0;
    }
    bool hex = (s->bytes[at + 2] | 0x20) == 'x';
    size_t p = at + 2 + hex, digits = p;
    uint32_t value = 0;
    for (; p < s->len && value < 0x110000; p++) {
        char d = s->bytes[p], low = (char)(d | 0x20);
        if (d >= '0' && d <= '9') {
            value = value * (hex ? 16 : 10) + (uint32_t)(d - '0');
        } else if (hex && low >= 'a' && low <= 'f') {
            value = value * 16 + (uint32_t)(low - 'a' + 10);
        } else {
            break;
        }
    }
    if (p == digits) {
        return 0;
    }
    *c = value == 0 || value > 0x10ffff || (value >= 0xd800 && value <= 0xdfff) ? 0xfffd : value;
    return p + (p < s->len && s->bytes[p] == ';') - at;
}

FILTER(striptags) {
    UNUSED;
    const struct str *s = without_tags(r, plain(r, self));
    s = jj_join(r, &space, jj_split_space(r, s, -1, false), false);
    struct sb b;
    jj_sb_init(&b, r);
    for (size_t at = 0; at < s->len && jj_steps(r, (at & 15) == 0);) {
        uint32_t c;
        size_t n = s->bytes[at] == '&' ? entity(s, at, &c) : 0;
        if (n) {
            jj_sb_add_char(&b, c, jj_mark(s, at));
            at += n;
        } else {
            jj_sb_add_cut(&b, s, at, at + 1);
            at++;
        }
    }
    return value_str(jj_sb_finish(&b));
}

const struct function_info jj_string_filters[] = {
    {"upper", upper, {0}},
    {"lower", lower, {0}},
    {"capitalize", capitalize, {0}},
    {"title", title, {0}},
    {"trim", trim, {"chars"}},
    {"replace", replace, {"old", "new", "count"}, 2},
    {"string", string, {0}},
    {"escape", escape, {0}},
    {"e", escape, {0}},
    {"forceescape", forceescape, {0}},
    {"safe", safe, {0}},
    {"center", center, {"width"}},
    {"format", format, {0}, .variadic = true},
    {"indent", indent, {"width", "first", "blank"}},
    {"truncate", truncate, {"length", "killwords", "end", "leeway"}},
    {"wordcount", wordcount, {0}},
    {"urlencode", urlencode, {0}},
    {"xmlattr", xmlattr, {"autospace"}},
    {"striptags", striptags, {0}},
    {0},
};
