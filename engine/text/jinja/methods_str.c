/* Methods of str that make strings, and the table of them all. */
#include "text/jinja/format.h"
#include "text/jinja/functions.h"
#include "text/jinja/methods.h"
#include "text/jinja/render.h"
#include "text/jinja/text.h"

#include <string.h>

#define METHOD(name)                                                                                                   \
    static struct value name(struct render *r, struct value self, const struct value *a, const struct call *call)
#define UNUSED ((void)r, (void)self, (void)a, (void)call)

static const struct str *optional_chars(struct render *r, struct value v) {
    return v.type == V_MISSING || v.type == V_NONE ? NULL : jj_need_str(r, v, "strip()");
}

static struct value strip(struct render *r, struct value self, struct value chars, unsigned sides) {
    const struct str *set = optional_chars(r, chars);
    return value_str(jj_strip(r, self.u.s, set, sides));
}
METHOD(str_strip) {
    UNUSED;
    return strip(r, self, a[0], STRIP_LEFT | STRIP_RIGHT);
}
METHOD(str_lstrip) {
    UNUSED;
    return strip(r, self, a[0], STRIP_LEFT);
}
METHOD(str_rstrip) {
    UNUSED;
    return strip(r, self, a[0], STRIP_RIGHT);
}

static struct value split(struct render *r, struct value self, const struct value *a, bool from_right) {
    int64_t most = a[1].type == V_MISSING ? -1 : jj_to_index(r, a[1], "split()");
    if (a[0].type == V_MISSING || a[0].type == V_NONE) {
        return value_seq(V_LIST, jj_split_space(r, self.u.s, most, from_right));
    }
    const struct str *separator = jj_need_str(r, a[0], "split()");
    return value_seq(V_LIST, r->failed ? jj_seq_new(r, 0) : jj_split(r, self.u.s, separator, most, from_right));
}
METHOD(str_split) {
    UNUSED;
    return split(r, self, a, false);
}
METHOD(str_rsplit) {
    UNUSED;
    return split(r, self, a, true);
}
METHOD(str_splitlines) {
    UNUSED;
    return value_seq(V_LIST, jj_split_lines(r, self.u.s, jj_to_flag(r, a[0], "splitlines()")));
}

static struct value partition(struct render *r, const struct str *s, struct value separator, bool from_right) {
    const struct str *by = jj_need_str(r, separator, "partition()");
    if (!r->failed && by->len == 0) {
        jj_fail(r, "empty separator");
    }
    struct seq *seq = jj_seq_new(r, 3);
    if (r->failed) {
        return value_seq(V_TUPLE, seq);
    }
    size_t at = from_right ? jj_str_rfind(r, s, by, 0, s->len) : jj_str_find(r, s, by, 0);
    const struct str *part[3];
    if (at != SIZE_MAX) {
        part[0] = jj_str_cut(r, s, 0, at);
        part[1] = jj_str_cut(r, s, at, at + by->len);
        part[2] = jj_str_cut(r, s, at + by->len, s->len);
    } else {
        const struct str *none = jj_str_as_markup(r, jj_str_empty(), s->markup);
        part[0] = from_right ? none : s;
        part[1] = none;
        part[2] = from_right ? s : none;
    }
    for (int i = 0; i < 3; i++) {
        jj_seq_push(r, seq, value_str(part[i]));
    }
    return value_seq(V_TUPLE, seq);
}
METHOD(str_partition) {
    UNUSED;
    return partition(r, self.u.s, a[0], false);
}
METHOD(str_rpartition) {
    UNUSED;
    return partition(r, self.u.s, a[0], true);
}

METHOD(str_replace) {
    UNUSED;
    const struct str *old = jj_need_str(r, a[0], "replace()"), *new = jj_need_str(r, a[1], "replace()");
    int64_t most = a[2].type == V_MISSING ? -1 : jj_to_index(r, a[2], "replace()");
    if (self.u.s->markup && !r->failed) {
        new = jj_escape_html(r, value_str(new));
    }
    return r->failed ? self : value_str(jj_replace(r, self.u.s, old, new, most));
}

#define CASE_METHOD(name, to)                                                                                          \
    METHOD(name) {                                                                                                     \
        UNUSED;                                                                                                        \
        return value_str(jj_change_case(r, self.u.s, to));                                                             \
    }
CASE_METHOD(str_upper, TEXT_UPPER)
CASE_METHOD(str_lower, TEXT_LOWER)
CASE_METHOD(str_title, TEXT_TITLE)
CASE_METHOD(str_capitalize, TEXT_CAPITALIZE)
CASE_METHOD(str_swapcase, TEXT_SWAP)
CASE_METHOD(str_casefold, TEXT_FOLD)

METHOD(str_join) {
    UNUSED;
    const struct seq *items = jj_items_of(r, a[0]);
    return r->failed ? self : value_str(jj_join(r, self.u.s, items, true));
}

METHOD(str_format) {
    UNUSED;
    return value_str(jj_format_braces(r, self.u.s, call));
}

static struct value pad(struct render *r, struct value self, const struct value *a, char align) {
    static const struct str space = {.bytes = " ", .len = 1, .trusted = true, .ascii = true};
    const struct str *fill = a[1].type == V_MISSING ? &space : jj_need_str(r, a[1], "padding");
    int64_t width = jj_to_index(r, a[0], "padding");
    if (!r->failed && jj_str_length(fill) != 1) {
        jj_fail(r, "the fill character must be exactly one character long");
    }
    return r->failed ? self : value_str(jj_pad(r, self.u.s, width, fill, align));
}
METHOD(str_ljust) {
    UNUSED;
    return pad(r, self, a, '<');
}
METHOD(str_rjust) {
    UNUSED;
    return pad(r, self, a, '>');
}
METHOD(str_center) {
    UNUSED;
    return pad(r, self, a, '^');
}
METHOD(str_zfill) {
    UNUSED;
    static const struct str zero = {.bytes = "0", .len = 1, .trusted = true, .ascii = true};
    const struct str *s = self.u.s;
    int64_t width = jj_to_index(r, a[0], "zfill()");
    bool sign = s->len && (s->bytes[0] == '-' || s->bytes[0] == '+');
    if (!sign || r->failed) {
        return value_str(jj_pad(r, s, width, &zero, '>'));
    }
    const struct str *digits = jj_pad(r, jj_str_cut(r, s, 1, s->len), width - (width > 0), &zero, '>');
    return value_str(jj_str_concat(r, jj_str_cut(r, s, 0, 1), digits));
}

METHOD(str_removeprefix) {
    UNUSED;
    const struct str *s = self.u.s, *p = jj_need_str(r, a[0], "removeprefix()");
    bool there = p->len <= s->len && memcmp(s->bytes, p->bytes, p->len) == 0;
    return value_str(there ? jj_str_cut(r, s, p->len, s->len) : s);
}
METHOD(str_removesuffix) {
    UNUSED;
    const struct str *s = self.u.s, *p = jj_need_str(r, a[0], "removesuffix()");
    bool there = p->len <= s->len && memcmp(s->bytes + s->len - p->len, p->bytes, p->len) == 0;
    return value_str(there ? jj_str_cut(r, s, 0, s->len - p->len) : s);
}

METHOD(str_expandtabs) {
    UNUSED;
    static const struct str space = {.bytes = " ", .len = 1, .trusted = true, .ascii = true};
    int64_t size = a[0].type == V_MISSING ? 8 : jj_to_index(r, a[0], "expandtabs()");
    const struct str *s = self.u.s;
    struct sb b;
    jj_sb_init(&b, r);
    int64_t column = 0;
    for (size_t at = 0, n; at < s->len && jj_steps(r, 1); at += n) {
        uint32_t c = jj_str_char(s, at, &n);
        if (c == '\t') {
            int64_t spaces = size > 0 ? size - column % size : 0;
            if (!jj_steps(r, (uint64_t)spaces)) {
                break;
            }
            column += spaces;
            for (; spaces > 0; spaces--) {
                jj_sb_add(&b, space.bytes, 1, jj_mark(s, at));
            }
            continue;
        }
        column = c == '\n' || c == '\r' ? 0 : column + 1;
        jj_sb_add_cut(&b, s, at, at + n);
    }
    return value_str(jj_str_as_markup(r, jj_sb_finish(&b), s->markup));
}

const struct function_info jj_str_methods[] = {
    {"strip", str_strip, {"chars"}, .positional_only = true},
    {"lstrip", str_lstrip, {"chars"}, .positional_only = true},
    {"rstrip", str_rstrip, {"chars"}, .positional_only = true},
    {"split", str_split, {"sep", "maxsplit"}},
    {"rsplit", str_rsplit, {"sep", "maxsplit"}},
    {"splitlines", str_splitlines, {"keepends"}},
    {"partition", str_partition, {"sep"}, 1, .positional_only = true},
    {"rpartition", str_rpartition, {"sep"}, 1, .positional_only = true},
    {"replace", str_replace, {"old", "new", "count"}, 2, .positional_only = true},
    {"upper", str_upper, {0}},
    {"lower", str_lower, {0}},
    {"title", str_title, {0}},
    {"capitalize", str_capitalize, {0}},
    {"swapcase", str_swapcase, {0}},
    {"casefold", str_casefold, {0}},
    {"join", str_join, {"iterable"}, 1, .positional_only = true},
    {"format", str_format, {0}, .variadic = true},
    {"ljust", str_ljust, {"width", "fillchar"}, 1, .positional_only = true},
    {"rjust", str_rjust, {"width", "fillchar"}, 1, .positional_only = true},
    {"center", str_center, {"width", "fillchar"}, 1, .positional_only = true},
    {"zfill", str_zfill, {"width"}, 1, .positional_only = true},
    {"removeprefix", str_removeprefix, {"prefix"}, 1, .positional_only = true},
    {"removesuffix", str_removesuffix, {"suffix"}, 1, .positional_only = true},
    {"expandtabs", str_expandtabs, {"tabsize"}},
    {0},
};
