/* The tree of a template: made once by the parser, in the template's arena, immutable afterwards. */
#ifndef INFERD_JINJA_AST_H
#define INFERD_JINJA_AST_H

#include "text/jinja/arena.h"
#include "text/jinja/str.h"
#include "text/jinja/value.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum node_kind {
    /* expressions */
    N_CONST,   /* constant */
    N_NAME,    /* name */
    N_TUPLE,   /* list */
    N_LIST,    /* list */
    N_DICT,    /* dict */
    N_COND,    /* three: a if b else c (c may be NULL) */
    N_AND,     /* three: a and b */
    N_OR,      /* three: a or b */
    N_NOT,     /* three: not a */
    N_COMPARE, /* compare */
    N_BINARY,  /* three: a op b */
    N_CONCAT,  /* list: joined by ~ */
    N_NEG,     /* three: -a */
    N_POS,     /* three: +a */
    N_GETATTR, /* member: object.name */
    N_GETITEM, /* three: a[b] */
    N_SLICE,   /* three: a:b:c inside [], each may be NULL */
    N_CALL,    /* call */
    N_FILTER,  /* call: callee | filter(args); callee NULL in filter and set blocks */
    N_TEST,    /* call: callee is [not] test(args) */

    /* statements */
    S_TEXT,         /* constant */
    S_OUTPUT,       /* list */
    S_IF,           /* branches */
    S_FOR,          /* loop */
    S_SET,          /* set: target = value */
    S_SET_BLOCK,    /* set: value is a chain of filters or NULL */
    S_WITH,         /* with */
    S_MACRO,        /* macro */
    S_CALL_BLOCK,   /* macro: `call` is called with it as caller */
    S_FILTER_BLOCK, /* set without target */
    S_GENERATION,   /* macro: without parameters, run where it stands */
    S_BREAK,
    S_CONTINUE,
};

enum operator_kind {
    OP_ADD,
    OP_SUB,
    OP_MUL,
    OP_DIV,
    OP_FLOORDIV,
    OP_MOD,
    OP_POW,
    OP_EQ,
    OP_NE,
    OP_LT,
    OP_LE,
    OP_GT,
    OP_GE,
    OP_IN,
    OP_NOT_IN,
};

/* Names that are undefined when a block begins, even if a variable is passed under that name (symbols.h). */
struct hidden {
    uint32_t *names; /* [n] */
    size_t n;
};

struct nodes {
    struct node **items; /* [n] */
    size_t n;
};

struct operand {
    enum operator_kind op;
    struct node *value;
};

struct keyword {
    const struct str *name;
    uint32_t name_id;
    struct node *value;
};

struct arguments {
    struct nodes positional;
    struct keyword *keywords; /* [n_keywords] */
    size_t n_keywords;
    struct node *star, *star_star; /* *args, **kwargs; NULL if none */
};

/* Where a value goes: a name, a member of a namespace, or a tuple of targets. */
struct target {
    uint32_t name;
    const struct str *member; /* NULL: the name itself */
    struct target *items;     /* [n], unpacked; NULL: not a tuple */
    size_t n;
};

struct branch {
    struct node *condition; /* NULL: else */
    struct nodes body;
};

struct for_loop {
    struct target target;
    struct node *iterable;
    struct node *filter; /* NULL if none */
    struct nodes body, otherwise;
    struct hidden hidden, otherwise_hidden;
    bool recursive;
    bool uses_loop; /* the body names `loop` */
};

struct parameter {
    uint32_t name;
    const struct str *text;
    struct node *default_value; /* NULL: none */
};

struct macro_info {
    uint32_t name;
    const struct str *text;       /* NULL for a call block */
    struct parameter *parameters; /* [n] */
    size_t n;
    struct nodes body;
    struct hidden hidden;
    bool uses_caller, uses_varargs, uses_kwargs; /* the body names them */
    bool caller_is_parameter;
    struct node *call; /* of a call block */
};

struct node {
    uint8_t kind; /* enum node_kind */
    uint8_t op;   /* enum operator_kind */
    uint16_t depth;
    uint32_t line;
    struct hidden hidden; /* of set, filter and with blocks */
    union {
        struct value constant;
        uint32_t name;
        struct nodes list;
        struct {
            struct node **keys, **values;
            size_t n;
        } dict;
        struct {
            struct node *a, *b, *c;
        } three;
        struct {
            struct node *first;
            struct operand *rest;
            size_t n;
        } compare;
        struct {
            struct node *object;
            const struct str *name;
        } member;
        struct {
            struct node *callee;
            const struct arguments *arguments;
            const struct function_info *function; /* of a filter or test; NULL: unknown */
            const struct str *unknown;            /* its name then */
            bool negated;
        } call;
        struct {
            struct branch *items;
            size_t n;
        } branches;
        struct for_loop *loop;
        struct {
            struct target *target;
            struct node *value;
            struct nodes body;
        } set;
        struct {
            struct target *targets;
            struct node **values;
            size_t n;
            struct nodes body;
        } with;
        struct macro_info *macro;
    } u;
};

/* Names that mean something; their ids are these. All other names of a template follow. */
enum well_known_name {
    NAME_LOOP,
    NAME_CALLER,
    NAME_VARARGS,
    NAME_KWARGS,
    NAME_SELF,
    NAME_MESSAGES,
    NAME_TOOLS,
    NAME_DOCUMENTS,
    NAME_ADD_GENERATION_PROMPT,
    NAME_BOS_TOKEN,
    NAME_EOS_TOKEN,
    NAME_RANGE,
    NAME_DICT,
    NAME_LIPSUM,
    NAME_CYCLER,
    NAME_JOINER,
    NAME_NAMESPACE,
    NAME_RAISE_EXCEPTION,
    NAME_STRFTIME_NOW,
    N_WELL_KNOWN_NAMES,
};

/* Every identifier once, so that variables are compared by number. */
struct names {
    const struct str **items; /* [n] */
    size_t n, cap;
    uint32_t *index; /* [mask + 1], id + 1 or 0 */
    size_t mask;
};

struct jinja {
    struct arena arena;
    struct names names;
    struct nodes body;
    struct hidden hidden;
    uint32_t well_known_used; /* a bit for each enum well_known_name that the source names */
};
_Static_assert(N_WELL_KNOWN_NAMES <= 32, "a bit for each");

/* The id of a name in the template, or UINT32_MAX. */
uint32_t jj_names_find(const struct names *names, const char *bytes, size_t len);

#endif
