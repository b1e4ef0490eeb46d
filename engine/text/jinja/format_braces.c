/* "{} and {name!r:>10}".format(values): Python's format strings, with the sandbox's way to attributes. */
#include "text/jinja/format.h"
#include "text/jinja/number.h"
#include "text/jinja/render.h"
#include "text/jinja/str.h"

#include <string.h>

struct braces {
    struct render *r;
    const struct call *call;
    size_t automatic; /* number of the next {} */
    bool manual;      /* {0} was seen */
    bool markup;
};

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

/* A number in [at, end); false when there is none or it is too large. */
static bool read_number(const struct str *s, size_t *at, size_t end, size_t *out) {
    size_t n = 0, start = *at;
    for (; *at < end && is_digit(s->bytes[*at]) && n <= JJ_MAX_FORMAT_WIDTH; ++*at) {
        n = n * 10 + (size_t)(s->bytes[*at] - '0');
    }
    *out = n;
    return *at > start && n <= JJ_MAX_FORMAT_WIDTH;
}

static struct value first_value(struct braces *b, const struct str *field, size_t end) {
    struct render *r = b->r;
    size_t number = 0, at = 0;
    bool is_number = end == 0 || (read_number(field, &at, end, &number) && at == end);
    if (is_number) {
        if (end == 0) {
            number = b->automatic++;
        } else {
            b->manual = true;
        }
        if (b->manual && b->automatic) {
            jj_fail(r, "cannot switch between manual and automatic field numbering");
        } else if (number >= b->call->n) {
            jj_fail(r, "replacement index %zu out of range for positional args tuple", number);
        } else {
            return b->call->positional[number];
        }
        return NONE;
    }
    for (size_t i = 0; i < b->call->n_named; i++) {
        if (jj_str_is(b->call->named[i].name, field->bytes, end)) {
            return b->call->named[i].value;
        }
    }
    jj_fail(r, "a name of the format string was not given");
    return NONE;
}

/* name, name.attribute, name[key] and so on */
static struct value field_value(struct braces *b, const struct str *field) {
    struct render *r = b->r;
    size_t at = 0;
    while (at < field->len && field->bytes[at] != '.' && field->bytes[at] != '[') {
        at++;
    }
    struct value v = first_value(b, field, at);
    while (at < field->len && !r->failed) {
        bool is_item = field->bytes[at] == '[';
        size_t start = ++at, number, digits = start;
        while (at < field->len &&
               (is_item ? field->bytes[at] != ']' : field->bytes[at] != '.' && field->bytes[at] != '[')) {
            at++;
        }
        if (at == start || (is_item && at == field->len)) {
            jj_fail(r, "malformed field in a format string");
            return NONE;
        }
        const struct str *name = jj_str_cut(r, field, start, at);
        at += is_item;
        if (!is_item) {
            v = jj_getattr(r, v, name);
        } else if (read_number(field, &digits, start + name->len, &number) && digits == start + name->len) {
            v = jj_getitem(r, v, value_int((int64_t)number));
        } else {
            v = jj_getitem(r, v, value_str(name));
        }
    }
    return v;
}

/* [[fill]align][sign][#][0][width][group][.precision][type] */
static bool read_spec(struct render *r, const struct str *s, struct format_spec *f) {
    static const struct str zero = {.bytes = "0", .len = 1, .trusted = true, .ascii = true};
    size_t at = 0, n = 0, number;
    *f = (struct format_spec){.precision = -1};
    if (s->len) {
        jj_str_char(s, 0, &n);
    }
    if (n < s->len && n && strchr("<>=^", s->bytes[n]) && s->bytes[n]) {
        f->fill = jj_str_cut(r, s, 0, n);
        f->align = s->bytes[n];
        f->for_numbers = f->align == '=';
        at = n + 1;
    } else if (s->len && s->bytes[0] && strchr("<>=^", s->bytes[0])) {
        f->align = s->bytes[0];
        f->for_numbers = f->align == '=';
        at = 1;
    }
    if (at < s->len && (s->bytes[at] == '+' || s->bytes[at] == '-' || s->bytes[at] == ' ')) {
        f->sign = s->bytes[at] == '-' ? '\0' : s->bytes[at];
        f->for_numbers = true;
        at++;
    }
    if (at < s->len && s->bytes[at] == '#') {
        f->alternate = f->for_numbers = true;
        at++;
    }
    if (at < s->len && s->bytes[at] == '0') {
        f->fill = f->fill ? f->fill : &zero;
        f->align = f->align ? f->align : '=';
        at++;
    }
    if (at < s->len && is_digit(s->bytes[at])) {
        if (!read_number(s, &at, s->len, &number)) {
            return false;
        }
        f->width = number;
    }
    if (at < s->len && (s->bytes[at] == ',' || s->bytes[at] == '_')) {
        f->group = s->bytes[at++];
        f->for_numbers = true;
    }
    if (at < s->len && s->bytes[at] == '.') {
        at++;
        if (!read_number(s, &at, s->len, &number)) {
            return false;
        }
        f->precision = (int)number;
    }
    if (at < s->len) {
        f->type = s->bytes[at++];
    }
    return at == s->len && (!f->type || strchr("bcdeEfFgGnosxX%", f->type));
}

static void format_value(struct braces *b, struct sb *out, struct value v, const struct str *spec) {
    struct render *r = b->r;
    struct format_spec f;
    if (spec->len == 0) {
        jj_write_str(r, out, v);
        return;
    }
    if (!read_spec(r, spec, &f)) {
        jj_fail(r, "invalid format specifier");
    } else if (v.type == V_STR) {
        if ((f.type && f.type != 's') || f.for_numbers) {
            jj_fail(r, "invalid format specifier for a string");
            return;
        }
        f.align = f.align == '=' ? '<' : f.align; /* a 0 before the width fills on the right since Python 3.10 */
        jj_format_text(r, out, v.u.s, &f);
    } else if (value_is_number(v)) {
        const struct str *c =
            f.type == 'c' && (!f.for_numbers || f.align == '=') && f.precision < 0 ? jj_char_of(r, v) : NULL;
        if (c) {
            f.align = f.align == '=' || !f.align ? '>' : f.align;
            jj_format_text(r, out, c, &f);
            return;
        }
        if (f.type == 'c' || f.type == 's' ||
            (f.precision >= 0 && v.type != V_FLOAT && (!f.type || strchr("bdnoxX", f.type)))) {
            jj_fail(r, "format specifier does not fit a number");
            return;
        }
        if (v.type != V_FLOAT && (!f.type || f.type == 'n')) {
            f.type = 'd';
        }
        jj_format_number(r, out, v, &f);
    } else {
        jj_fail(r, "unsupported format string passed to %s.__format__", jj_type_name(v));
    }
}

static void expand(struct braces *b, struct sb *out, const struct str *s, unsigned depth);

/* {field!conversion:spec}, from behind the { to before the }. */
static void expand_field(struct braces *b, struct sb *out, const struct str *s, unsigned depth) {
    struct render *r = b->r;
    size_t end = 0, bracket = 0;
    while (end < s->len && (bracket || (s->bytes[end] != '!' && s->bytes[end] != ':'))) {
        bracket = s->bytes[end] == '[' ? 1 : s->bytes[end] == ']' ? 0 : bracket;
        end++;
    }
    struct value v = field_value(b, jj_str_cut(r, s, 0, end));
    if (end < s->len && s->bytes[end] == '!' && !r->failed) {
        char conversion = end + 1 < s->len ? s->bytes[end + 1] : '\0';
        struct sb text;
        jj_sb_init(&text, r);
        if (conversion == 'r' || conversion == 'a') {
            jj_write_repr(r, &text, v);
        } else if (conversion == 's') {
            jj_write_str(r, &text, v);
        } else {
            jj_fail(r, "unknown conversion in a format string");
        }
        v = value_str(jj_sb_finish(&text));
        end += 2;
        if (end < s->len && s->bytes[end] != ':') {
            jj_fail(r, "expected ':' after conversion specifier");
        }
    }
    struct sb spec;
    jj_sb_init(&spec, r);
    if (end < s->len && !r->failed) {
        expand(b, &spec, jj_str_cut(r, s, end + 1, s->len), depth + 1);
    }
    if (r->failed) {
        return;
    }
    struct sb text;
    jj_sb_init(&text, r);
    format_value(b, b->markup && depth == 0 ? &text : out, v, jj_sb_finish(&spec));
    if (b->markup && depth == 0 && !r->failed) {
        const struct str *plain = v.type == V_STR && v.u.s->markup ? v.u.s : jj_sb_finish(&text);
        jj_sb_add_str(out, jj_escape_html(r, value_str(plain)));
    }
}

static void expand(struct braces *b, struct sb *out, const struct str *s, unsigned depth) {
    struct render *r = b->r;
    if (depth > 1) {
        jj_fail(r, "max string recursion exceeded");
        return;
    }
    for (size_t at = 0; at < s->len && jj_steps(r, 1);) {
        char c = s->bytes[at];
        if (c != '{' && c != '}') {
            size_t start = at;
            while (at < s->len && s->bytes[at] != '{' && s->bytes[at] != '}') {
                at++;
            }
            jj_sb_add_cut(out, s, start, at);
            continue;
        }
        if (at + 1 < s->len && s->bytes[at + 1] == c && !(depth && c == '}')) {
            jj_sb_add_cut(out, s, at, at + 1);
            at += 2;
            continue;
        }
        if (c == '}') {
            jj_fail(r, "single '}' encountered in format string");
            return;
        }
        size_t start = ++at, open = 1;
        for (; at < s->len; at++) {
            open += s->bytes[at] == '{';
            open -= s->bytes[at] == '}';
            if (open == 0) {
                break;
            }
        }
        if (open) {
            jj_fail(r, "expected '}' before end of string");
            return;
        }
        expand_field(b, out, jj_str_cut(r, s, start, at), depth);
        at++;
    }
}

const struct str *jj_format_braces(struct render *r, const struct str *format, const struct call *call) {
    struct braces b = {.r = r, .call = call, .markup = format->markup};
    struct sb out;
    jj_sb_init(&out, r);
    expand(&b, &out, format, 0);
    return jj_str_as_markup(r, jj_sb_finish(&out), format->markup);
}
