/*
 * Strings: UTF-8 bytes, and the mark of each byte (1: the template wrote it, 0: it came from the input). A string of
 * one mark only has no array of marks. Slices share the bytes and marks of what they are cut from.
 */
#ifndef INFERD_JINJA_STR_H
#define INFERD_JINJA_STR_H

#include "text/jinja/value.h"

#include <stdint.h>

/* Room behind a string made by concatenation, so that `x = x + y` in a loop does not copy x each time. */
struct store {
    char *bytes;
    uint8_t *marks; /* NULL while all of `used` has the mark `trusted` */
    size_t used, cap;
    bool trusted;
};

struct str {
    const char *bytes;    /* [len], not NUL-terminated */
    const uint8_t *marks; /* [len], or NULL: all are `trusted` */
    size_t len;
    struct store *store;
    bool trusted;
    bool markup; /* escaped HTML (the safe and escape filters): joins with other strings escape these */
    bool ascii;  /* surely all below 0x80: indices are offsets. false: not known */
};

static inline uint8_t jj_mark(const struct str *s, size_t at) {
    return s->marks ? s->marks[at] : (uint8_t)s->trusted;
}

bool jj_is_ascii(const char *bytes, size_t len);

/* A string over borrowed bytes. */
const struct str *jj_str_new(struct render *r, const char *bytes, size_t len, bool trusted);
/* The template's own: a trusted string over a literal. */
const struct str *jj_str_literal(struct render *r, const char *literal);
const struct str *jj_str_empty(void);
/* Bytes [from, to) of s, which must be borders of characters. */
const struct str *jj_str_cut(struct render *r, const struct str *s, size_t from, size_t to);
const struct str *jj_str_concat(struct render *r, const struct str *a, const struct str *b);
const struct str *jj_str_as_markup(struct render *r, const struct str *s, bool markup);

static inline bool jj_str_is(const struct str *s, const char *literal, size_t len) {
    return s->len == len && __builtin_memcmp(s->bytes, literal, len) == 0;
}
bool jj_str_equals(const struct str *s, const char *literal);
bool jj_str_same(const struct str *a, const struct str *b);
int jj_str_order(const struct str *a, const struct str *b); /* by code point */

/* Length in code points, and the byte offset of code point `index` <= length. */
size_t jj_str_length(const struct str *s);
size_t jj_str_offset(const struct str *s, size_t index);
/* Code point index of a byte offset. */
size_t jj_str_index(const struct str *s, size_t offset);
/* First occurrence at or after `from`, last one that ends at or before `to`; SIZE_MAX if none. Bytes. Charges steps. */
size_t jj_str_find(struct render *r, const struct str *s, const struct str *what, size_t from);
size_t jj_str_rfind(struct render *r, const struct str *s, const struct str *what, size_t from, size_t to);
/* The code point at a byte offset, and its length in bytes. */
uint32_t jj_str_char(const struct str *s, size_t at, size_t *len);

/* str.islower, str.isupper */
bool jj_str_is_lower(const struct str *s);
bool jj_str_is_upper(const struct str *s);

/* --- builder --- */

struct sb {
    struct render *r;
    char *bytes;
    uint8_t *marks; /* NULL while there is one mark only */
    size_t len, cap;
    bool trusted; /* the mark of all so far, when marks is NULL */
    bool ascii;
    bool is_output; /* counts against the limit of the output */
};

void jj_sb_init(struct sb *b, struct render *r);
void jj_sb_reserve(struct sb *b, size_t more);
void jj_sb_add(struct sb *b, const char *bytes, size_t len, bool trusted);
void jj_sb_add_cut(struct sb *b, const struct str *s, size_t from, size_t to);
void jj_sb_add_char(struct sb *b, uint32_t code_point, bool trusted);
static inline void jj_sb_add_str(struct sb *b, const struct str *s) {
    jj_sb_add_cut(b, s, 0, s->len);
}
void jj_sb_puts(struct sb *b, const char *literal); /* trusted */
/* The string; the builder must not be used after. */
const struct str *jj_sb_finish(struct sb *b);

#endif
