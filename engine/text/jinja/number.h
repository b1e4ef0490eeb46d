/* Numbers as Python has them: integers of any size (within limits), doubles, their text and arithmetic. */
#ifndef INFERD_JINJA_NUMBER_H
#define INFERD_JINJA_NUMBER_H

#include "text/jinja/arena.h"
#include "text/jinja/value.h"

#include <stdbool.h>
#include <stddef.h>

struct sb;

/* A number as the lexer found it (0x, underscores). False: too large, or no memory. */
bool jj_number_literal(struct arena *arena, const char *text, size_t len, bool is_float, struct value *out);

/* int(text, base) and float(text) of Python; false when the text is no such number. */
bool jj_parse_integer(struct render *r, const char *text, size_t len, int base, struct value *out);
bool jj_parse_float(const char *text, size_t len, double *out);

/* Does v (V_INT, V_BIG, V_BOOL, V_FLOAT) fit, and as what? */
double jj_as_double(struct value v);
/* An integer value as int64; false when beyond. */
bool jj_as_int64(struct value v, int64_t *out);

/* -1, 0, 1, or 2 when not ordered (NaN). Exact between integers and doubles. */
int jj_number_order(struct value a, struct value b);

/* Operators of enum operator_kind OP_ADD..OP_POW on two numbers. */
struct value jj_number_binary(struct render *r, int op, struct value a, struct value b);
struct value jj_number_negate(struct render *r, struct value v);
/* The integer part of a finite double, exact. */
struct value jj_integer_of_double(struct render *r, double d);

void jj_write_number(struct sb *out, struct value v);
/* Digits of an integer in a base of 2..16, without sign or prefix. */
void jj_write_magnitude(struct sb *out, struct value v, unsigned base, bool upper, bool trusted);
/* repr of a double into out[32]; its length. */
size_t jj_format_double(double d, char *out);

#endif
