/* Python's two ways to format: "%s" % values, and "{}".format(values). */
#ifndef INFERD_JINJA_FORMAT_H
#define INFERD_JINJA_FORMAT_H

#include "text/jinja/functions.h"

/* format % values, values being a tuple of values, a dict for %(name)s, or the one value. */
const struct str *jj_format_percent(struct render *r, const struct str *format, struct value values);

/* format.format(*positional, **named) */
const struct str *jj_format_braces(struct render *r, const struct str *format, const struct call *call);

/* A format specification, of either way. */
struct format_spec {
    const struct str *fill; /* one character */
    char align;             /* < > ^ or = (between sign and digits); 0: by type */
    char sign;              /* + or space; 0: only minus */
    bool alternate;         /* 0x, 0o, 0b */
    char group;             /* , or _ between thousands; 0: none */
    char type;              /* d x X o b c e E f F g G % s r; 0: by value */
    size_t width;
    int precision;    /* -1: none */
    bool for_numbers; /* something in it that Python refuses for strings */
};

/* The character of a code point; NULL if v is none. */
const struct str *jj_char_of(struct render *r, struct value v);
void jj_format_text(struct render *r, struct sb *out, const struct str *s, const struct format_spec *f);
/* v is a number; fails on a type that does not fit it. */
void jj_format_number(struct render *r, struct sb *out, struct value v, const struct format_spec *f);

#endif
