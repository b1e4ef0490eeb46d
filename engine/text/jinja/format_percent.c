/* "%s and %5.2f" % values: Python's printf-style formatting. */
#include "text/jinja/format.h"
#include "text/jinja/number.h"
#include "text/jinja/render.h"
#include "text/jinja/str.h"

#include <math.h>
#include <string.h>

struct percent {
    struct render *r;
    const struct str *format;
    size_t at;
    struct value values;
    size_t next; /* of a tuple */
    bool used;   /* the one value */
    struct sb out;
};

static char peek(const struct percent *p) {
    return p->at < p->format->len ? p->format->bytes[p->at] : '\0';
}

static struct value next_value(struct percent *p) {
    if (p->values.type == V_TUPLE) {
        if (p->next < p->values.u.seq->n) {
            return p->values.u.seq->items[p->next++];
        }
    } else if (!p->used) {
        p->used = true;
        return p->values;
    }
    jj_fail(p->r, "not enough arguments for format string");
    return NONE;
}

/* The value of %(key); the parenthesis is the current character. */
static struct value keyed_value(struct percent *p) {
    size_t start = ++p->at, open = 1;
    for (; p->at < p->format->len; p->at++) {
        char c = p->format->bytes[p->at];
        open += c == '(';
        open -= c == ')';
        if (open == 0) {
            break;
        }
    }
    if (open) {
        jj_fail(p->r, "incomplete format key");
        return NONE;
    }
    const struct str *key = jj_str_cut(p->r, p->format, start, p->at++);
    if (p->values.type != V_DICT) {
        jj_fail(p->r, "format requires a mapping");
        return NONE;
    }
    struct value v = jj_dict_get_str(p->r, p->values.u.dict, key);
    if (v.type == V_MISSING) {
        jj_fail(p->r, "a key of the format string is not in the mapping");
    }
    return v;
}

/* Digits or * */
static int64_t read_size(struct percent *p) {
    int64_t n = 0;
    if (peek(p) == '*') {
        p->at++;
        n = jj_to_index(p->r, next_value(p), "* wants int");
    } else {
        for (; peek(p) >= '0' && peek(p) <= '9' && n <= JJ_MAX_FORMAT_WIDTH; p->at++) {
            n = n * 10 + (peek(p) - '0');
        }
    }
    if (n > JJ_MAX_FORMAT_WIDTH || n < -JJ_MAX_FORMAT_WIDTH) {
        jj_fail(p->r, "a width in a format string is too large");
        return 0;
    }
    return n;
}

static void format_number(struct percent *p, struct value v, struct format_spec *f) {
    struct render *r = p->r;
    bool integer = strchr("diuxXo", f->type) != NULL;
    if (!value_is_number(v) || (v.type == V_FLOAT && integer && !strchr("diu", f->type))) {
        jj_fail(r, "%%%c format: a number is required, not %s", f->type, jj_type_name(v));
        return;
    }
    if (integer && v.type == V_FLOAT) {
        if (!isfinite(v.u.f)) {
            jj_fail(r, "cannot convert float infinity or NaN to integer");
            return;
        }
        bool untrusted = v.untrusted;
        v = jj_integer_of_double(r, v.u.f);
        v.untrusted = untrusted;
    }
    f->type = strchr("diu", f->type) ? 'd' : f->type;
    if (integer && f->precision > 0) { /* %.3d: at least that many digits */
        static const struct str zero = {.bytes = "0", .len = 1, .trusted = true, .ascii = true};
        struct format_spec inner = {.fill = &zero, .align = '=', .sign = f->sign, .type = f->type, .precision = -1};
        inner.alternate = f->alternate;
        inner.width = (size_t)f->precision + (f->sign || jj_number_order(v, value_int(0)) < 0) +
                      (f->alternate && f->type != 'd' ? 2 : 0);
        inner.width = f->align == '=' && f->width > inner.width ? f->width : inner.width;
        struct sb b;
        jj_sb_init(&b, r);
        jj_format_number(r, &b, v, &inner);
        struct format_spec outer = *f;
        outer.precision = -1;
        outer.align = f->align == '=' ? '>' : f->align;
        jj_format_text(r, &p->out, jj_sb_finish(&b), &outer);
        return;
    }
    jj_format_number(r, &p->out, v, f);
}

static void format_char(struct percent *p, struct value v, const struct format_spec *f) {
    struct render *r = p->r;
    const struct str *c = v.type == V_STR && jj_str_length(v.u.s) == 1 ? v.u.s : jj_char_of(r, v);
    if (!c) {
        jj_fail(r, "%%c requires int or char");
        return;
    }
    jj_format_text(r, &p->out, c, f);
}

/* One conversion; the current character is the one behind the %. */
static void convert(struct percent *p) {
    static const struct str zero = {.bytes = "0", .len = 1, .trusted = true, .ascii = true};
    struct render *r = p->r;
    struct format_spec f = {.align = '>', .precision = -1};
    struct value v = MISSING;
    if (peek(p) == '(') {
        v = keyed_value(p);
    }
    if (peek(p) == '%' && v.type == V_MISSING) {
        jj_sb_add_cut(&p->out, p->format, p->at, p->at + 1);
        p->at++;
        return;
    }
    bool left = false, zeros = false;
    for (; peek(p) && strchr("#0- +", peek(p)); p->at++) {
        char c = peek(p);
        left = left || c == '-';
        zeros = zeros || c == '0';
        f.alternate = f.alternate || c == '#';
        f.sign = c == '+' ? '+' : c == ' ' && !f.sign ? ' ' : f.sign;
    }
    int64_t width = read_size(p);
    left = left || width < 0;
    f.width = (size_t)(width < 0 ? -width : width);
    if (peek(p) == '.') {
        p->at++;
        int64_t precision = read_size(p);
        f.precision = precision < 0 ? 0 : (int)precision;
    }
    while (peek(p) && strchr("hlL", peek(p))) {
        p->at++;
    }
    f.type = peek(p);
    if (r->failed || !f.type) {
        jj_fail(r, "incomplete format");
        return;
    }
    p->at++;
    if (v.type == V_MISSING) {
        v = next_value(p);
    }
    bool is_text = strchr("sra", f.type) != NULL;
    f.align = left ? '<' : '>';
    if (r->failed) {
        return;
    }
    if (is_text) {
        struct sb b;
        jj_sb_init(&b, r);
        if (f.type == 's') {
            jj_write_str(r, &b, v);
        } else {
            jj_write_repr(r, &b, v);
        }
        const struct str *s = jj_sb_finish(&b);
        s = p->format->markup ? jj_escape_html(r, f.type == 's' && v.type == V_STR ? v : value_str(s)) : s;
        jj_format_text(r, &p->out, s, &f);
    } else if (f.type == 'c') {
        format_char(p, v, &f);
    } else if (strchr("diuoxXeEfFgG", f.type)) {
        if (zeros && !left) {
            f.fill = &zero;
            f.align = '=';
        }
        format_number(p, v, &f);
    } else {
        jj_fail(r, "unsupported format character");
    }
}

const struct str *jj_format_percent(struct render *r, const struct str *format, struct value values) {
    struct percent p = {.r = r, .format = format, .values = values};
    jj_sb_init(&p.out, r);
    while (p.at < format->len && jj_steps(r, 1)) {
        const char *percent = memchr(format->bytes + p.at, '%', format->len - p.at);
        size_t end = percent ? (size_t)(percent - format->bytes) : format->len;
        jj_sb_add_cut(&p.out, format, p.at, end);
        p.at = end;
        if (percent) {
            p.at++;
            convert(&p);
        }
    }
    bool left_over = values.type == V_TUPLE ? p.next < values.u.seq->n
                                            : !p.used && values.type != V_DICT && values.type != V_LIST &&
                                                  values.type != V_RANGE && values.type != V_UNDEFINED;
    if (!r->failed && left_over) {
        jj_fail(r, "not all arguments converted during string formatting");
    }
    return jj_str_as_markup(r, jj_sb_finish(&p.out), format->markup);
}
