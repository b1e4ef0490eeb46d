/*
 * Values of a template, as Python has them. A value is 16 bytes, passed by value; what it points to lies in the arena
 * of the template (constants) or of the render (everything else), never moves and is never freed alone. Everything but
 * namespaces, loops, cyclers, joiners and iterators is immutable once it can be seen by the template, so values are
 * shared freely.
 *
 * Errors are sticky: the first failure is kept in the render, every function then returns some valid value, and loops
 * look at `r->failed`. No function here returns NULL.
 */
#ifndef INFERD_JINJA_VALUE_H
#define INFERD_JINJA_VALUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct render;
struct node;

enum value_type {
    V_MISSING, /* no value: an argument not given, a name not bound */
    V_UNDEFINED,
    V_NONE,
    V_BOOL,
    V_INT,
    V_BIG, /* an integer beyond int64 */
    V_FLOAT,
    V_STR,
    V_LIST,
    V_TUPLE,
    V_DICT,
    V_RANGE,
    V_VIEW, /* dict.keys(), .values(), .items() */
    V_ITER, /* what generators and reversed() give: read once, no length, no index */
    V_NAMESPACE,
    V_FUNCTION, /* a global function */
    V_METHOD,   /* a method of a value */
    V_MACRO,    /* also the caller() of a call block */
    V_LOOP,
    V_CYCLER,
    V_JOINER,
};

enum undefined_kind {
    UNDEFINED_NAME,     /* u.undefined: the name */
    UNDEFINED_MEMBER,   /* u.undefined: the attribute or key, `of` the type of the object; NULL when it was no string */
    UNDEFINED_UNSAFE,   /* a member that the sandbox refuses */
    UNDEFINED_SENTENCE, /* u.undefined: the whole sentence */
};

struct value {
    uint8_t type;
    bool untrusted; /* of None, booleans and numbers: came from the input. Strings carry their own marks. */
    uint8_t sub;    /* V_UNDEFINED: enum undefined_kind; V_VIEW: enum view_kind */
    uint8_t of;     /* V_UNDEFINED: the type of the object */
    uint32_t aux;   /* V_FUNCTION: enum function_id */
    union {
        bool b;
        int64_t i;
        double f;
        const struct big *big;
        const struct str *s;
        const struct seq *seq; /* V_LIST, V_TUPLE, V_VIEW */
        const struct dict *dict;
        const struct range *range;
        const struct str *undefined;
        struct iter *iter;
        struct dict *ns;
        struct method *method;
        struct macro *macro;
        struct loop *loop;
        struct cycler *cycler;
        struct joiner *joiner;
        const void *p;
    } u;
};

#define MISSING ((struct value){.type = V_MISSING})
#define NONE ((struct value){.type = V_NONE})

static inline struct value value_bool(bool b) {
    return (struct value){.type = V_BOOL, .u.b = b};
}
static inline struct value value_int(int64_t i) {
    return (struct value){.type = V_INT, .u.i = i};
}
static inline struct value value_float(double f) {
    return (struct value){.type = V_FLOAT, .u.f = f};
}
static inline struct value value_str(const struct str *s) {
    return (struct value){.type = V_STR, .u.s = s};
}
static inline struct value value_seq(enum value_type type, const struct seq *seq) {
    return (struct value){.type = (uint8_t)type, .u.seq = seq};
}
static inline struct value value_dict(const struct dict *d) {
    return (struct value){.type = V_DICT, .u.dict = d};
}
static inline bool value_is_integer(struct value v) { /* as Python's arithmetic takes it: booleans count */
    return v.type == V_INT || v.type == V_BIG || v.type == V_BOOL;
}
static inline bool value_is_number(struct value v) {
    return value_is_integer(v) || v.type == V_FLOAT;
}

struct seq {
    struct value *items; /* [n] */
    size_t n, cap;
    bool group; /* a tuple of groupby: has .grouper and .list */
};

struct dict_entry {
    struct value key, value;
    uint64_t hash;
};

struct dict {
    struct dict_entry *entries; /* [n], in order of insertion */
    size_t n, cap;
    uint32_t *index; /* [mask + 1], entry + 1 or 0 for free; NULL while the dict is small */
    size_t mask;
};

struct range {
    int64_t start, stop, step;
    size_t n;
};

enum view_kind { VIEW_KEYS, VIEW_VALUES, VIEW_ITEMS };

struct iter {
    const struct seq *seq;
    size_t at;
    const char *type_name; /* "generator", "list_reverseiterator" */
};

struct method {
    struct value self;
    const struct function_info *function;
};

struct macro {
    const struct node *node; /* the macro or call block statement */
    struct scope *scope;     /* where it was defined */
};

struct cycler {
    const struct seq *items;
    size_t at;
};

struct joiner {
    struct value separator;
    bool used;
};

/* A class of Python, for messages: "str", "NoneType". */
const char *jj_type_name(struct value v);
const char *jj_type_name_of(enum value_type type);

bool jj_truth(struct value v);

/* --- lists and tuples: built once, then immutable --- */

struct seq *jj_seq_new(struct render *r, size_t capacity);
void jj_seq_push(struct render *r, struct seq *s, struct value v);

/* --- dicts --- */

struct dict *jj_dict_new(struct render *r, size_t capacity);
/* Set or replace. Fails on keys that cannot be hashed. */
void jj_dict_set(struct render *r, struct dict *d, struct value key, struct value v);
/* V_MISSING if there is none. */
struct value jj_dict_get(struct render *r, const struct dict *d, struct value key);
struct value jj_dict_get_str(struct render *r, const struct dict *d, const struct str *key);
struct dict *jj_dict_copy(struct render *r, const struct dict *d);

/* --- comparison --- */

bool jj_equal(struct render *r, struct value a, struct value b);
/* -1, 0, 1; fails when Python has no order for the two. `op` ("<") is for the message. */
int jj_order(struct render *r, struct value a, struct value b, const char *op);
/* Python's hash classes: equal values have equal hashes. Fails on lists and dicts. */
uint64_t jj_hash(struct render *r, struct value v);
uint64_t jj_hash_bytes(const char *bytes, size_t len);
/* `needle in haystack` */
bool jj_contains(struct render *r, struct value haystack, struct value needle);

/* --- iteration --- */

/*
 * Everything that a for loop over v would visit, as an array: shared where v has one. An iterator is used up.
 * Fails when v cannot be iterated.
 */
const struct seq *jj_items_of(struct render *r, struct value v);
/* len(v), fails when it has none. */
size_t jj_length(struct render *r, struct value v);
bool jj_has_length(struct value v);
bool jj_is_iterable(struct value v);

struct value jj_iter_new(struct render *r, const struct seq *seq, const char *type_name);
struct value jj_undefined_sentence(struct render *r, const char *sentence);
struct value jj_undefined_member(struct value object, struct value key, enum undefined_kind kind);
/* Fail with the sentence of an undefined value that was used. */
void jj_fail_undefined(struct render *r, struct value v);

#endif
