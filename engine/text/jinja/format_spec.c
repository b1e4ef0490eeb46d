/* One value laid out as a format specification says: numbers to digits, then sign, prefix, padding. */
#include "text/jinja/big.h"
#include "text/jinja/format.h"
#include "text/jinja/number.h"
#include "text/jinja/render.h"
#include "text/jinja/str.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static void add_fill(struct render *r, struct sb *out, const struct format_spec *f, size_t n) {
    static const struct str space = {.bytes = " ", .len = 1, .trusted = true, .ascii = true};
    const struct str *fill = f->fill ? f->fill : &space;
    jj_steps(r, n / 16);
    if (fill->len == 1) { /* by the block */
        char block[256];
        memset(block, fill->bytes[0], sizeof block);
        for (size_t part; n > 0 && !r->failed; n -= part) {
            part = n < sizeof block ? n : sizeof block;
            jj_sb_add(out, block, part, jj_mark(fill, 0));
        }
        return;
    }
    for (size_t i = 0; i < n && !r->failed; i++) {
        jj_sb_add_str(out, fill);
    }
}

const struct str *jj_char_of(struct render *r, struct value v) {
    struct sb b;
    int64_t code_point;
    if (!value_is_integer(v) || !jj_as_int64(v, &code_point) || code_point < 0 || code_point > 0x10ffff ||
        (code_point >= 0xd800 && code_point <= 0xdfff)) {
        return NULL;
    }
    jj_sb_init(&b, r);
    jj_sb_add_char(&b, (uint32_t)code_point, !v.untrusted);
    return jj_sb_finish(&b);
}

void jj_format_text(struct render *r, struct sb *out, const struct str *s, const struct format_spec *f) {
    size_t n = f->width || f->precision >= 0 ? jj_str_length(s) : 0;
    if (f->precision >= 0 && n > (size_t)f->precision) {
        n = (size_t)f->precision;
        s = jj_str_cut(r, s, 0, jj_str_offset(s, n));
    }
    size_t pad = f->width > n ? f->width - n : 0;
    size_t before = f->align == '>' ? pad : f->align == '^' ? pad / 2 : 0;
    add_fill(r, out, f, before);
    jj_sb_add_str(out, s);
    add_fill(r, out, f, pad - before);
}

/* Digits of |v| without sign, prefix and grouping. */
static void integer_digits(struct sb *out, struct value v, char type) {
    unsigned base = type == 'x' || type == 'X' ? 16 : type == 'o' ? 8 : type == 'b' ? 2 : 10;
    jj_write_magnitude(out, v, base, type == 'X', !v.untrusted);
}

static void float_digits(struct render *r, struct sb *out, struct value v, const struct format_spec *f) {
    char text[JJ_MAX_FLOAT_PRECISION + 400], fmt[8];
    double d = fabs(jj_as_double(v));
    size_t n;
    if (isnan(d) || isinf(d)) {
        bool upper = f->type && isupper((unsigned char)f->type);
        n = (size_t)snprintf(text, sizeof text, "%s", isnan(d) ? (upper ? "NAN" : "nan") : upper ? "INF" : "inf");
    } else if (!f->type && f->precision < 0) {
        n = jj_format_double(d, text);
    } else {
        char type = f->type == '%' ? 'f' : f->type == 'n' || !f->type ? 'g' : f->type;
        int precision = f->precision < 0 ? 6 : f->precision;
        if (precision > JJ_MAX_FLOAT_PRECISION) {
            jj_fail(r, "a format specification has too large a precision");
            return;
        }
        snprintf(fmt, sizeof fmt, f->alternate ? "%%#.*%c" : "%%.*%c", type);
        d = f->type == '%' ? d * 100 : d;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        n = (size_t)snprintf(text, sizeof text, fmt, precision, d);
#pragma GCC diagnostic pop
        if (!f->type && !strpbrk(text, ".e")) { /* without a type there is a digit behind the point */
            memcpy(text + n, ".0", 3);
            n += 2;
        }
    }
    jj_sb_add(out, text, n, !v.untrusted);
}

/* The digits with separators in the whole part, led by zeros up to `width` characters. */
static const struct str *group_digits(struct render *r, const struct str *digits, const struct format_spec *f,
                                      size_t width) {
    size_t whole = 0, step = strchr("xXob", f->type) && f->type ? 4 : 3;
    while (whole < digits->len && isxdigit((unsigned char)digits->bytes[whole]) &&
           (f->type == 'x' || f->type == 'X' || isdigit((unsigned char)digits->bytes[whole]))) {
        whole++;
    }
    size_t rest = digits->len - whole, zeros = 0;
    while (whole > 0 && whole + zeros + (whole + zeros - 1) / step + rest < width && jj_steps(r, 1)) {
        zeros++;
    }
    struct sb b;
    jj_sb_init(&b, r);
    for (size_t i = 0; i < zeros + whole && !r->failed; i++) {
        if (i && (zeros + whole - i) % step == 0) {
            jj_sb_add(&b, &f->group, 1, true);
        }
        if (i < zeros) {
            jj_sb_add(&b, "0", 1, true);
        } else {
            jj_sb_add_cut(&b, digits, i - zeros, i - zeros + 1);
        }
    }
    jj_sb_add_cut(&b, digits, whole, digits->len);
    return jj_sb_finish(&b);
}

static bool is_float_type(char type) {
    return type && strchr("eEfFgG%", type);
}

/* '+', '-', ' ' or 0 */
static char sign_of(struct value v, const struct format_spec *f) {
    bool negative = v.type == V_FLOAT ? signbit(v.u.f) != 0 && !isnan(v.u.f)
                    : v.type == V_BIG ? v.u.big->negative
                                      : v.type == V_INT && v.u.i < 0;
    return negative ? '-' : f->sign;
}

void jj_format_number(struct render *r, struct sb *out, struct value v, const struct format_spec *f) {
    bool as_float = v.type == V_FLOAT || is_float_type(f->type);
    if (as_float && f->type && !is_float_type(f->type) && f->type != 'n') {
        jj_fail(r, "unknown format code '%c' for object of type 'float'", f->type);
        return;
    }
    struct sb b;
    jj_sb_init(&b, r);
    if (as_float) {
        float_digits(r, &b, v, f);
    } else {
        integer_digits(&b, v, f->type);
    }
    const struct str *digits = jj_sb_finish(&b);
    char head[4] = {0}; /* sign and prefix */
    size_t n = 0;
    char sign = sign_of(v, f);
    if (sign) {
        head[n++] = sign;
    }
    if (f->alternate && !as_float && f->type && strchr("xXob", f->type)) {
        head[n++] = '0';
        head[n++] = f->type;
    }
    size_t tail = f->type == '%';
    bool zeros = f->align == '=' && f->fill && f->fill->bytes[0] == '0';
    if (f->group) {
        digits = group_digits(r, digits, f, zeros && f->width > n + tail ? f->width - n - tail : 0);
    }
    size_t length = n + digits->len + tail;
    size_t pad = f->width > length ? f->width - length : 0;
    char align = f->align ? f->align : '>';
    size_t before = align == '>' ? pad : align == '^' ? pad / 2 : 0;
    add_fill(r, out, f, before);
    jj_sb_add(out, head, n, !v.untrusted);
    add_fill(r, out, f, align == '=' ? pad : 0);
    jj_sb_add_str(out, digits);
    jj_sb_add(out, "%", tail, !v.untrusted);
    add_fill(r, out, f, align == '=' ? 0 : pad - before);
}
