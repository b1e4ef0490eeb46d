/* Calls: how arguments are bound, macros, and what can be called. */
#include "text/jinja/big.h"
#include "text/jinja/eval.h"
#include "text/jinja/loop.h"
#include "text/jinja/number.h"
#include "text/jinja/str.h"

#include <string.h>

/* --- native functions --- */

static size_t parameter_count(const struct function_info *f) {
    size_t n = 0;
    while (n < JJ_MAX_PARAMETERS && f->parameters[n]) {
        n++;
    }
    return n;
}

static bool bind(struct render *r, const struct function_info *f, const char *what, const struct call *call,
                 struct value *a) {
    size_t n = parameter_count(f);
    if (call->n > n) {
        jj_fail(r, "%s '%s' takes at most %zu argument(s), got %zu", what, f->name, n, call->n);
        return false;
    }
    for (size_t i = 0; i < n; i++) {
        a[i] = i < call->n ? call->positional[i] : MISSING;
    }
    for (size_t k = 0; k < call->n_named; k++) {
        size_t i = 0;
        while (i < n && (f->positional_only || !jj_str_equals(call->named[k].name, f->parameters[i]))) {
            i++;
        }
        if (i == n || a[i].type != V_MISSING) {
            jj_fail(r, "%s '%s' got an unexpected keyword argument", what, f->name);
            return false;
        }
        a[i] = call->named[k].value;
    }
    for (size_t i = 0; i < f->required; i++) {
        if (a[i].type == V_MISSING) {
            jj_fail(r, "%s '%s' misses its argument '%s'", what, f->name, f->parameters[i]);
            return false;
        }
    }
    return true;
}

struct value jj_run(struct render *r, const struct function_info *f, const char *what, struct value self,
                    const struct call *call) {
    struct value a[JJ_MAX_PARAMETERS];
    if (f->variadic) {
        return f->run(r, self, NULL, call);
    }
    return bind(r, f, what, call, a) ? f->run(r, self, a, call) : NONE;
}

int64_t jj_to_index(struct render *r, struct value v, const char *what) {
    int64_t i;
    if (jj_as_int64(v, &i)) {
        return i;
    }
    if (v.type == V_BIG) {
        return v.u.big->negative ? INT64_MIN : INT64_MAX;
    }
    if (v.type == V_UNDEFINED) {
        jj_fail_undefined(r, v);
    } else {
        jj_fail(r, "%s: '%s' object cannot be interpreted as an integer", what, jj_type_name(v));
    }
    return 0;
}

const struct str *jj_need_str(struct render *r, struct value v, const char *what) {
    if (v.type == V_STR) {
        return v.u.s;
    }
    if (v.type == V_UNDEFINED) {
        jj_fail_undefined(r, v);
    } else {
        jj_fail(r, "%s: expected a string, not %s", what, jj_type_name(v));
    }
    return jj_str_empty();
}

/* --- macros --- */

/* Take the named argument out of the call; V_MISSING if it is not there. */
static struct value take_named(const struct call *call, bool *taken, const struct str *name) {
    for (size_t i = 0; i < call->n_named; i++) {
        if (!taken[i] && jj_str_same(call->named[i].name, name)) {
            taken[i] = true;
            return call->named[i].value;
        }
    }
    return MISSING;
}

/* Parameters, by position, then by name, then by default (which may use the parameters before it). */
static bool bind_parameters(struct render *r, const struct macro_info *m, const struct call *call, bool *taken) {
    for (size_t i = 0; i < m->n; i++) {
        struct value v = i < call->n ? call->positional[i] : take_named(call, taken, m->parameters[i].text);
        if (v.type == V_MISSING) {
            v = (struct value){.type = V_UNDEFINED, .sub = UNDEFINED_NAME, .u.undefined = m->parameters[i].text};
            /* the default sees the parameter itself as undefined, not a variable of that name outside */
            jj_bind(r, m->parameters[i].name, v);
            if (m->parameters[i].default_value) {
                v = jj_eval(r, m->parameters[i].default_value);
            }
        }
        jj_bind(r, m->parameters[i].name, v);
        if (r->failed) {
            return false;
        }
    }
    return true;
}

static void bind_varargs(struct render *r, const struct macro_info *m, const struct call *call) {
    size_t extra = call->n > m->n ? call->n - m->n : 0;
    struct seq *seq = jj_seq_new(r, extra);
    for (size_t i = 0; i < extra && jj_steps(r, 1); i++) {
        jj_seq_push(r, seq, call->positional[m->n + i]);
    }
    jj_bind(r, NAME_VARARGS, value_seq(V_TUPLE, seq));
}

static void bind_kwargs(struct render *r, const struct call *call, const bool *taken) {
    struct dict *d = jj_dict_new(r, call->n_named);
    for (size_t i = 0; i < call->n_named && !r->failed; i++) {
        if (!taken[i]) {
            jj_dict_set(r, d, value_str(call->named[i].name), call->named[i].value);
        }
    }
    jj_bind(r, NAME_KWARGS, value_dict(d));
}

static bool all_taken(struct render *r, const struct call *call, const bool *taken) {
    for (size_t i = 0; i < call->n_named; i++) {
        if (!taken[i]) {
            const struct str *name = call->named[i].name;
            bool shown = !name->marks && name->trusted && name->len < 64; /* with ** it may come from the input */
            jj_fail(r, "a macro takes no keyword argument '%.*s'", shown ? (int)name->len : 3,
                    shown ? name->bytes : "...");
            return false;
        }
    }
    return true;
}

static bool bind_macro(struct render *r, const struct macro_info *m, const struct call *call) {
    bool taken[2 * JJ_MAX_ARGUMENTS + 1] = {false};
    static const struct str caller = {.bytes = "caller", .len = 6, .trusted = true, .ascii = true};
    if (!bind_parameters(r, m, call, taken)) {
        return false;
    }
    if (m->uses_caller && !m->caller_is_parameter) {
        struct value v = take_named(call, taken, &caller);
        jj_bind(r, NAME_CALLER, v.type == V_MISSING ? jj_undefined_sentence(r, "no caller defined") : v);
    }
    if (m->uses_kwargs) {
        bind_kwargs(r, call, taken);
    } else if (!all_taken(r, call, taken)) {
        return false;
    }
    if (m->uses_varargs) {
        bind_varargs(r, m, call);
    } else if (call->n > m->n) {
        jj_fail(r, "macro takes not more than %zu argument(s)", m->n);
    }
    return !r->failed;
}

struct value jj_call_macro(struct render *r, struct macro *macro, const struct call *call) {
    const struct macro_info *m = macro->node->u.macro;
    struct scope *scope = r->scope;
    uint32_t line = r->line;
    struct value v = NONE;
    if (jj_enter(r)) {
        if (jj_scope_begin(r, macro->scope) && (jj_hide(r, &m->hidden), bind_macro(r, m, call))) {
            v = value_str(jj_capture(r, &m->body));
        }
        jj_leave(r);
    }
    r->scope = scope;
    r->line = r->failed ? r->line : line;
    return v;
}

/* --- what can be called --- */

static struct value call_joiner(struct joiner *j) {
    if (!j->used) {
        j->used = true;
        return value_str(jj_str_empty());
    }
    return j->separator;
}

struct value jj_call(struct render *r, struct value callee, const struct call *call) {
    if (!jj_steps(r, 1)) {
        return NONE;
    }
    switch (callee.type) {
    case V_METHOD:
        return jj_run(r, callee.u.method->function, "method", callee.u.method->self, call);
    case V_MACRO:
        return jj_call_macro(r, callee.u.macro, call);
    case V_FUNCTION:
        return jj_call_global(r, callee.aux, call);
    case V_LOOP:
        if (call->n != 1 || call->n_named) {
            jj_fail(r, "loop() takes one argument");
            return NONE;
        }
        return jj_loop_recurse(r, callee.u.loop, call->positional[0]);
    case V_JOINER:
        return call_joiner(callee.u.joiner);
    case V_UNDEFINED:
        jj_fail_undefined(r, callee);
        return NONE;
    default:
        jj_fail(r, "'%s' object is not callable", jj_type_name(callee));
        return NONE;
    }
}

bool jj_is_callable(struct value v) {
    switch (v.type) {
    case V_UNDEFINED:
    case V_METHOD:
    case V_MACRO:
    case V_FUNCTION:
    case V_LOOP:
    case V_JOINER:
        return true;
    default:
        return false;
    }
}
