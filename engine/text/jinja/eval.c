/* Expressions. */
#include "text/jinja/eval.h"

#include "text/jinja/number.h"
#include "text/jinja/str.h"

#include <string.h>

static struct value eval_name(struct render *r, uint32_t name) {
    struct value v = jj_lookup(r, name);
    if (v.type != V_MISSING) {
        return v;
    }
    if ((name >= NAME_RANGE && name <= NAME_STRFTIME_NOW) || name == NAME_SELF) {
        return (struct value){.type = V_FUNCTION, .aux = name};
    }
    return (struct value){.type = V_UNDEFINED, .sub = UNDEFINED_NAME, .u.undefined = r->template->names.items[name]};
}

static struct value eval_list(struct render *r, const struct node *n) {
    struct seq *seq = jj_seq_new(r, n->u.list.n);
    for (size_t i = 0; i < n->u.list.n && !r->failed; i++) {
        jj_seq_push(r, seq, jj_eval(r, n->u.list.items[i]));
    }
    return value_seq(n->kind == N_LIST ? V_LIST : V_TUPLE, seq);
}

static struct value eval_dict(struct render *r, const struct node *n) {
    struct dict *d = jj_dict_new(r, n->u.dict.n);
    for (size_t i = 0; i < n->u.dict.n && !r->failed; i++) {
        struct value key = jj_eval(r, n->u.dict.keys[i]);
        jj_dict_set(r, d, key, jj_eval(r, n->u.dict.values[i]));
    }
    return value_dict(d);
}

static struct value eval_condition(struct render *r, const struct node *n) {
    if (jj_truth(jj_eval(r, n->u.three.b))) {
        return jj_eval(r, n->u.three.a);
    }
    if (n->u.three.c) {
        return jj_eval(r, n->u.three.c);
    }
    return jj_undefined_sentence(r, "the inline if-expression evaluated to false and no else section was defined");
}

static bool compare(struct render *r, enum operator_kind op, struct value a, struct value b) {
    int c;
    switch (op) {
    case OP_EQ:
        return jj_equal(r, a, b);
    case OP_NE:
        return !jj_equal(r, a, b);
    case OP_IN:
        return jj_contains(r, b, a);
    case OP_NOT_IN:
        return !jj_contains(r, b, a);
    case OP_LT:
        return jj_order(r, a, b, "<") == -1;
    case OP_LE:
        c = jj_order(r, a, b, "<=");
        return c == -1 || c == 0;
    case OP_GT:
        return jj_order(r, a, b, ">") == 1;
    default:
        c = jj_order(r, a, b, ">=");
        return c == 1 || c == 0;
    }
}

static struct value eval_comparison(struct render *r, const struct node *n) {
    struct value left = jj_eval(r, n->u.compare.first);
    for (size_t i = 0; i < n->u.compare.n && !r->failed; i++) {
        struct value right = jj_eval(r, n->u.compare.rest[i].value);
        if (r->failed || !compare(r, n->u.compare.rest[i].op, left, right)) {
            return value_bool(false);
        }
        left = right;
    }
    return value_bool(true);
}

static struct value eval_concat(struct render *r, const struct node *n) {
    const struct str *s = jj_str_empty();
    for (size_t i = 0; i < n->u.list.n && !r->failed; i++) {
        const struct str *next = jj_to_str(r, jj_eval(r, n->u.list.items[i]));
        s = jj_str_concat(r, s, jj_str_as_markup(r, next, false));
    }
    return value_str(s);
}

static struct value eval_sign(struct render *r, const struct node *n) {
    struct value v = jj_eval(r, n->u.three.a);
    if (r->failed) {
        return v;
    }
    if (v.type == V_UNDEFINED) {
        jj_fail_undefined(r, v);
        return v;
    }
    if (!value_is_number(v)) {
        jj_fail(r, "bad operand type for unary %s: '%s'", n->kind == N_NEG ? "-" : "+", jj_type_name(v));
        return v;
    }
    if (n->kind == N_NEG) {
        return jj_number_negate(r, v);
    }
    return v.type == V_BOOL ? value_int(v.u.b) : v;
}

static struct value eval_item(struct render *r, const struct node *n) {
    struct value object = jj_eval(r, n->u.three.a);
    const struct node *key = n->u.three.b;
    if (r->failed) {
        return object;
    }
    if (key->kind != N_SLICE) {
        struct value k = jj_eval(r, key);
        return r->failed ? k : jj_getitem(r, object, k);
    }
    struct value from = key->u.three.a ? jj_eval(r, key->u.three.a) : NONE;
    struct value to = key->u.three.b ? jj_eval(r, key->u.three.b) : NONE;
    struct value step = key->u.three.c ? jj_eval(r, key->u.three.c) : NONE;
    return r->failed ? NONE : jj_slice(r, object, from, to, step);
}

/* --- arguments --- */

/* Elements of *args behind the positional ones. */
static bool add_star(struct render *r, const struct node *star, struct call *out) {
    struct value v = jj_eval(r, star);
    const struct seq *more = r->failed ? NULL : jj_items_of(r, v);
    if (r->failed || !jj_steps(r, more->n)) {
        return false;
    }
    struct value *all = jj_array(r, out->n + more->n, sizeof *all);
    if (!all) {
        return false;
    }
    if (out->n) {
        memcpy(all, out->positional, out->n * sizeof *all);
    }
    if (more->n) {
        memcpy(all + out->n, more->items, more->n * sizeof *all);
    }
    out->positional = all;
    out->n += more->n;
    return true;
}

static bool add_named(struct render *r, struct named_argument *named, size_t *n, const struct str *name,
                      struct value v) {
    for (size_t i = 0; i < *n; i++) {
        if (jj_str_same(named[i].name, name)) {
            jj_fail(r, "a call got multiple values for one keyword argument");
            return false;
        }
    }
    named[(*n)++] = (struct named_argument){.name = name, .value = v};
    return true;
}

static bool eval_named(struct render *r, const struct arguments *a, struct value caller, struct call *out) {
    static const struct str caller_name = {.bytes = "caller", .len = 6, .trusted = true, .ascii = true};
    struct value more = NONE;
    size_t n = 0, cap = a->n_keywords + (caller.type != V_MISSING);
    if (a->star_star) {
        more = jj_eval(r, a->star_star);
        if (!r->failed && more.type != V_DICT) {
            jj_fail(r, "argument after ** must be a mapping, not %s", jj_type_name(more));
        }
        if (r->failed || more.u.dict->n > JJ_MAX_ARGUMENTS) {
            jj_fail(r, "too many keyword arguments");
            return false;
        }
        cap += more.u.dict->n;
    }
    struct named_argument *named = jj_array(r, cap, sizeof *named);
    for (size_t i = 0; named && i < a->n_keywords && !r->failed; i++) {
        add_named(r, named, &n, a->keywords[i].name, jj_eval(r, a->keywords[i].value));
    }
    for (size_t i = 0; more.type == V_DICT && i < more.u.dict->n && !r->failed; i++) {
        if (more.u.dict->entries[i].key.type != V_STR) {
            jj_fail(r, "keywords must be strings");
            return false;
        }
        add_named(r, named, &n, more.u.dict->entries[i].key.u.s, more.u.dict->entries[i].value);
    }
    if (caller.type != V_MISSING && !r->failed) {
        add_named(r, named, &n, &caller_name, caller);
    }
    out->named = named;
    out->n_named = n;
    return !r->failed;
}

bool jj_eval_arguments(struct render *r, const struct arguments *a, struct value caller, struct call *out) {
    *out = (struct call){.n = a->positional.n};
    if (out->n) {
        struct value *positional = jj_array(r, out->n, sizeof *positional);
        if (!positional) {
            return false;
        }
        for (size_t i = 0; i < out->n; i++) {
            positional[i] = jj_eval(r, a->positional.items[i]);
            if (r->failed) {
                return false;
            }
        }
        out->positional = positional;
    }
    if (a->star && !add_star(r, a->star, out)) {
        return false;
    }
    if (a->n_keywords || a->star_star || caller.type != V_MISSING) {
        return eval_named(r, a, caller, out);
    }
    return !r->failed;
}

static struct value eval_call(struct render *r, const struct node *n) {
    struct value callee = jj_eval(r, n->u.call.callee);
    struct call call;
    if (r->failed || !jj_eval_arguments(r, n->u.call.arguments, MISSING, &call)) {
        return NONE;
    }
    r->line = n->line;
    return jj_call(r, callee, &call);
}

/* A filter or a test. */
static struct value eval_function(struct render *r, const struct node *n) {
    bool is_filter = n->kind == N_FILTER;
    struct value self = n->u.call.callee ? jj_eval(r, n->u.call.callee) : r->block;
    struct call call;
    if (r->failed || !jj_eval_arguments(r, n->u.call.arguments, MISSING, &call)) {
        return NONE;
    }
    r->line = n->line;
    if (!n->u.call.function) {
        jj_fail(r, "no %s named '%.*s'", is_filter ? "filter" : "test", (int)n->u.call.unknown->len,
                n->u.call.unknown->bytes);
        return NONE;
    }
    struct value v = jj_run(r, n->u.call.function, is_filter ? "filter" : "test", self, &call);
    return is_filter ? v : value_bool(jj_truth(v) != n->u.call.negated);
}

static struct value eval_node(struct render *r, const struct node *n) {
    struct value v, w;
    switch (n->kind) {
    case N_CONST:
        return n->u.constant;
    case N_NAME:
        return eval_name(r, n->u.name);
    case N_TUPLE:
    case N_LIST:
        return eval_list(r, n);
    case N_DICT:
        return eval_dict(r, n);
    case N_COND:
        return eval_condition(r, n);
    case N_AND:
        v = jj_eval(r, n->u.three.a);
        return r->failed || !jj_truth(v) ? v : jj_eval(r, n->u.three.b);
    case N_OR:
        v = jj_eval(r, n->u.three.a);
        return r->failed || jj_truth(v) ? v : jj_eval(r, n->u.three.b);
    case N_NOT:
        return value_bool(!jj_truth(jj_eval(r, n->u.three.a)));
    case N_COMPARE:
        return eval_comparison(r, n);
    case N_BINARY:
        v = jj_eval(r, n->u.three.a);
        w = r->failed ? v : jj_eval(r, n->u.three.b);
        r->line = n->line;
        return r->failed ? v : jj_binary(r, n->op, v, w);
    case N_CONCAT:
        return eval_concat(r, n);
    case N_NEG:
    case N_POS:
        return eval_sign(r, n);
    case N_GETATTR:
        v = jj_eval(r, n->u.member.object);
        return r->failed ? v : jj_getattr(r, v, n->u.member.name);
    case N_GETITEM:
        return eval_item(r, n);
    case N_CALL:
        return eval_call(r, n);
    case N_FILTER:
    case N_TEST:
        return eval_function(r, n);
    default: /* a slice in a tuple subscript, x[1:2, 3]: no value has such keys */
        jj_fail(r, "a slice is not allowed here");
        return NONE;
    }
}

struct value jj_eval(struct render *r, const struct node *n) {
    if (!jj_steps(r, 1) || !jj_enter(r)) {
        return NONE;
    }
    struct value v = eval_node(r, n);
    jj_leave(r);
    return v;
}
