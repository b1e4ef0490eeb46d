/* Filters, tests, methods and global functions: their tables, and how arguments reach them. */
#ifndef INFERD_JINJA_FUNCTIONS_H
#define INFERD_JINJA_FUNCTIONS_H

#include "text/jinja/value.h"

#include <stdbool.h>
#include <stddef.h>

struct sb;

struct named_argument {
    const struct str *name;
    struct value value;
};

/* The arguments of one call, evaluated. */
struct call {
    const struct value *positional; /* [n] */
    size_t n;
    const struct named_argument *named; /* [n_named] */
    size_t n_named;
};

enum { JJ_MAX_PARAMETERS = 6 };

/*
 * `self` is what stands before the `|`, `is` or `.`; a[] are the declared parameters in order, V_MISSING where not
 * given. Variadic functions get no a[] and read `call`.
 */
typedef struct value native_function(struct render *r, struct value self, const struct value *a,
                                     const struct call *call);

struct function_info {
    const char *name;
    native_function *run;
    const char *parameters[JJ_MAX_PARAMETERS];
    unsigned char required; /* how many of the parameters must be given */
    bool variadic;
    bool positional_only;
};

/* NULL: no such filter or test. */
const struct function_info *jj_find_filter(const char *name, size_t len);
const struct function_info *jj_find_test(const char *name, size_t len);

/* The tables that the two above search, one a file; the last entry has no name. */
extern const struct function_info jj_string_filters[];
extern const struct function_info jj_layout_filters[];
extern const struct function_info jj_sequence_filters[];
extern const struct function_info jj_value_filters[];
extern const struct function_info jj_tests[];

/* Bind the arguments to the parameters and run. `what` ("filter") is for messages. */
struct value jj_run(struct render *r, const struct function_info *f, const char *what, struct value self,
                    const struct call *call);

/* --- calls of values --- */

struct value jj_call(struct render *r, struct value callee, const struct call *call);
bool jj_is_callable(struct value v);

/* object.name and object[key], as Jinja2's sandbox finds them; an undefined value when there is none. */
struct value jj_getattr(struct render *r, struct value object, const struct str *name);
/* object.name without object[name] for when there is none */
struct value jj_attribute(struct render *r, struct value object, const struct str *name);
struct value jj_getitem(struct render *r, struct value object, struct value key);
struct value jj_slice(struct render *r, struct value object, struct value from, struct value to, struct value step);

/* A method of a type, NULL if it has none of this name. `unsafe`: it is there but the sandbox refuses it. */
const struct function_info *jj_find_method(enum value_type type, const struct str *name, bool *unsafe);

/* --- conversions --- */

/* An integer argument: integers and booleans as they are, else fails. Clamped to int64 when beyond. */
int64_t jj_to_index(struct render *r, struct value v, const char *what);
/* A switch of one of Python's own functions: an integer or boolean; false when it was not given. */
static inline bool jj_to_flag(struct render *r, struct value v, const char *what) {
    if (v.type == V_BOOL || v.type == V_MISSING) {
        return v.type == V_BOOL && v.u.b;
    }
    return jj_to_index(r, v, what) != 0;
}
/* The string argument of a method or filter; fails when v is no string. */
const struct str *jj_need_str(struct render *r, struct value v, const char *what);

/* sorted(items, key=keys[i]), stable; items and keys may be the same. */
const struct seq *jj_sorted(struct render *r, const struct seq *items, const struct seq *keys, bool reverse);

/* --- operators --- */

struct value jj_binary(struct render *r, int op, struct value a, struct value b);
struct value jj_negate(struct render *r, struct value v);

/* --- text of values --- */

const struct str *jj_to_str(struct render *r, struct value v);        /* str(v); strings as they are */
void jj_write_str(struct render *r, struct sb *out, struct value v);  /* the same, into a builder */
void jj_write_repr(struct render *r, struct sb *out, struct value v); /* repr(v) */
const struct str *jj_escape_html(struct render *r, struct value v);   /* markupsafe.escape */

#endif
