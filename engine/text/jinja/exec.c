/* Statements, scopes and loops. */
#include "text/jinja/eval.h"
#include "text/jinja/loop.h"
#include "text/jinja/str.h"

#include <string.h>

/* --- scopes --- */

struct scope *jj_scope_begin(struct render *r, struct scope *parent) {
    struct scope *s = jj_alloc(r, sizeof *s);
    if (s) {
        *s = (struct scope){.parent = parent};
        r->scope = s;
    }
    return s;
}

/* The binding of the name in this one scope, NULL if none. Long scopes take steps, for the search is linear. */
static struct binding *find_binding(struct render *r, const struct scope *s, uint32_t name) {
    for (uint32_t i = 0; i < s->n; i++) {
        if (s->bindings[i].name == name) {
            return &s->bindings[i];
        }
    }
    if (s->n >= 16) {
        jj_steps(r, s->n / 16);
    }
    return NULL;
}

void jj_bind(struct render *r, uint32_t name, struct value v) {
    struct scope *s = r->scope;
    if (!s) {
        r->globals[name] = v;
        return;
    }
    struct binding *found = find_binding(r, s, name);
    if (found) {
        found->value = v;
        return;
    }
    if (s->n == s->cap) {
        uint32_t cap = s->cap ? 2 * s->cap : 4;
        struct binding *b = jj_grow(r, s->bindings, s->cap * sizeof *b, cap * sizeof *b);
        if (!b) {
            return;
        }
        s->bindings = b;
        s->cap = cap;
    }
    s->bindings[s->n++] = (struct binding){.name = name, .value = v};
}

void jj_hide(struct render *r, const struct hidden *hidden) {
    for (size_t i = 0; i < hidden->n; i++) {
        uint32_t name = hidden->names[i];
        if (r->globals[name].type != V_MISSING || name < N_WELL_KNOWN_NAMES) { /* else it is undefined anyway */
            jj_bind(r, name,
                    (struct value){
                        .type = V_UNDEFINED, .sub = UNDEFINED_NAME, .u.undefined = r->template->names.items[name]});
        }
    }
}

struct value jj_lookup(struct render *r, uint32_t name) {
    for (const struct scope *s = r->scope; s; s = s->parent) {
        const struct binding *found = find_binding(r, s, name);
        if (found) {
            return found->value;
        }
    }
    return r->globals[name];
}

struct scope *jj_scope_capture(struct render *r) {
    for (struct scope *s = r->scope; s && !s->captured; s = s->parent) {
        s->captured = true;
    }
    return r->scope;
}

static void unpack(struct render *r, const struct target *t, struct value v) {
    if (!jj_is_iterable(v)) {
        jj_fail(r, "cannot unpack non-iterable %s object", jj_type_name(v));
        return;
    }
    const struct seq *items = jj_items_of(r, v);
    if (r->failed) {
        return;
    }
    if (items->n > t->n) {
        jj_fail(r, "too many values to unpack (expected %zu)", t->n);
        return;
    }
    if (items->n < t->n) {
        jj_fail(r, "not enough values to unpack (expected %zu, got %zu)", t->n, items->n);
        return;
    }
    for (size_t i = 0; i < t->n && !r->failed; i++) {
        jj_assign(r, &t->items[i], items->items[i]);
    }
}

void jj_assign(struct render *r, const struct target *t, struct value v) {
    if (t->items) {
        unpack(r, t, v);
    } else if (!t->member) {
        jj_bind(r, t->name, v);
    } else {
        struct value ns = jj_lookup(r, t->name);
        if (ns.type != V_NAMESPACE) {
            jj_fail(r, "cannot assign attribute on non-namespace object");
            return;
        }
        jj_dict_set(r, ns.u.ns, value_str(t->member), v);
    }
}

/* --- loops --- */

/* Does the filter of the loop let the item through? */
static bool passes(struct render *r, struct loop *l, struct value v) {
    struct scope *scope = r->scope;
    if (!jj_scope_begin(r, l->scope)) {
        return false;
    }
    jj_assign(r, &l->node->u.loop->target, v);
    bool yes = !r->failed && jj_truth(jj_eval(r, l->node->u.loop->filter));
    r->scope = scope;
    return yes && !r->failed;
}

bool jj_loop_has(struct render *r, struct loop *l, size_t index) {
    if (!l->passed) {
        return index < l->source->n;
    }
    while (l->passed->n <= index && l->source_at < l->source->n && !r->failed) {
        struct value v = l->source->items[l->source_at++];
        if (passes(r, l, v)) {
            jj_seq_push(r, l->passed, v);
        }
    }
    return index < l->passed->n;
}

struct value jj_loop_item(const struct loop *l, size_t index) {
    return (l->passed ? l->passed : l->source)->items[index];
}

size_t jj_loop_length(struct render *r, struct loop *l) {
    if (!l->passed) {
        return l->source->n;
    }
    jj_loop_has(r, l, SIZE_MAX);
    return l->passed->n;
}

/* A scope for an iteration: the last one again, unless a macro holds it. */
static struct scope *iteration_scope(struct render *r, struct scope *last, struct scope *parent) {
    if (!last || last->captured) {
        return jj_scope_begin(r, parent);
    }
    last->n = 0;
    r->scope = last;
    return last;
}

void jj_run_loop(struct render *r, const struct node *n, struct value iterable, size_t depth0) {
    const struct for_loop *f = n->u.loop;
    struct loop *l = jj_alloc(r, sizeof *l);
    struct scope *outer = r->scope, *inner = NULL;
    const struct seq *source = jj_items_of(r, iterable);
    if (r->failed) {
        return;
    }
    *l = (struct loop){.node = n, .scope = outer, .source = source, .depth0 = depth0, .changed = MISSING};
    l->passed = f->filter ? jj_seq_new(r, 0) : NULL;
    bool completed =
        false; /* an iteration came to its end: as in Jinja2, one that breaks or continues does not count */
    for (size_t i = 0; !r->failed && jj_loop_has(r, l, i); i++) {
        inner = iteration_scope(r, inner, outer);
        if (!inner || !jj_steps(r, 1)) {
            break;
        }
        l->index0 = i;
        jj_hide(r, &f->hidden);
        jj_assign(r, &f->target, jj_loop_item(l, i));
        if (f->uses_loop) {
            jj_bind(r, NAME_LOOP, (struct value){.type = V_LOOP, .u.loop = l});
        }
        enum flow flow = jj_exec(r, &f->body);
        r->scope = outer;
        completed = completed || flow == FLOW_NEXT;
        if (flow == FLOW_BREAK) {
            break;
        }
    }
    r->scope = outer;
    if (!completed && !r->failed && f->otherwise.n) {
        jj_scope_begin(r, outer);
        jj_hide(r, &f->otherwise_hidden);
        jj_exec(r, &f->otherwise);
        r->scope = outer;
    }
}

struct value jj_loop_recurse(struct render *r, struct loop *l, struct value iterable) {
    if (!l->node->u.loop->recursive) {
        jj_fail(r, "the loop must have the 'recursive' marker to be called recursively");
        return NONE;
    }
    struct scope *scope = r->scope;
    struct sb *out = r->out, b;
    jj_sb_init(&b, r);
    r->out = &b;
    r->scope = l->scope;
    jj_run_loop(r, l->node, iterable, l->depth0 + 1);
    r->out = out;
    r->scope = scope;
    return value_str(jj_sb_finish(&b));
}

struct value jj_loop_attribute(struct render *r, struct loop *l, const struct str *name) {
    size_t i = l->index0;
    if (jj_str_equals(name, "index0")) {
        return value_int((int64_t)i);
    }
    if (jj_str_equals(name, "index")) {
        return value_int((int64_t)i + 1);
    }
    if (jj_str_equals(name, "first")) {
        return value_bool(i == 0);
    }
    if (jj_str_equals(name, "last")) {
        return value_bool(!jj_loop_has(r, l, i + 1));
    }
    if (jj_str_equals(name, "length")) {
        return value_int((int64_t)jj_loop_length(r, l));
    }
    if (jj_str_equals(name, "revindex")) {
        return value_int((int64_t)(jj_loop_length(r, l) - i));
    }
    if (jj_str_equals(name, "revindex0")) {
        return value_int((int64_t)(jj_loop_length(r, l) - i) - 1);
    }
    if (jj_str_equals(name, "depth")) {
        return value_int((int64_t)l->depth0 + 1);
    }
    if (jj_str_equals(name, "depth0")) {
        return value_int((int64_t)l->depth0);
    }
    if (jj_str_equals(name, "previtem")) {
        return i ? jj_loop_item(l, i - 1) : jj_undefined_sentence(r, "there is no previous item");
    }
    if (jj_str_equals(name, "nextitem")) {
        return jj_loop_has(r, l, i + 1) ? jj_loop_item(l, i + 1) : jj_undefined_sentence(r, "there is no next item");
    }
    return MISSING;
}

/* --- statements --- */

const struct str *jj_capture(struct render *r, const struct nodes *body) {
    struct sb *out = r->out, b;
    jj_sb_init(&b, r);
    r->out = &b;
    jj_exec(r, body);
    r->out = out;
    return jj_sb_finish(&b);
}

static void exec_output(struct render *r, const struct node *n) {
    for (size_t i = 0; i < n->u.list.n && !r->failed; i++) {
        struct value v = jj_eval(r, n->u.list.items[i]);
        if (!r->failed) {
            jj_write_str(r, r->out, v);
        }
    }
}

static enum flow exec_if(struct render *r, const struct node *n) {
    for (size_t i = 0; i < n->u.branches.n && !r->failed; i++) {
        const struct branch *b = &n->u.branches.items[i];
        if (!b->condition || jj_truth(jj_eval(r, b->condition))) {
            return r->failed ? FLOW_NEXT : jj_exec(r, &b->body);
        }
    }
    return FLOW_NEXT;
}

/* The body of a set or filter block, through its filters, into *v. A break or continue inside drops it. */
static enum flow block_value(struct render *r, const struct node *n, struct value *v) {
    struct scope *scope = r->scope;
    struct sb *out = r->out, b;
    enum flow flow = FLOW_NEXT;
    jj_sb_init(&b, r);
    if (jj_scope_begin(r, scope)) {
        r->out = &b;
        jj_hide(r, &n->hidden);
        flow = jj_exec(r, &n->u.set.body);
        r->out = out;
        *v = value_str(jj_sb_finish(&b));
        if (n->u.set.value && flow == FLOW_NEXT && !r->failed) {
            struct value outer = r->block;
            r->block = *v;
            *v = jj_eval(r, n->u.set.value);
            r->block = outer;
        }
    }
    r->scope = scope;
    return flow;
}

static enum flow exec_with(struct render *r, const struct node *n) {
    struct scope *outer = r->scope;
    struct scope *inner = jj_scope_begin(r, outer);
    enum flow flow = FLOW_NEXT;
    if (inner) {
        jj_hide(r, &n->hidden);
    }
    for (size_t i = 0; inner && i < n->u.with.n && !r->failed; i++) {
        r->scope = outer; /* the values do not see one another */
        struct value v = jj_eval(r, n->u.with.values[i]);
        r->scope = inner;
        if (!r->failed) {
            jj_assign(r, &n->u.with.targets[i], v);
        }
    }
    if (!r->failed) {
        flow = jj_exec(r, &n->u.with.body);
    }
    r->scope = outer;
    return flow;
}

static struct value make_macro(struct render *r, const struct node *n) {
    struct macro *m = jj_alloc(r, sizeof *m);
    if (!m) {
        return NONE;
    }
    *m = (struct macro){.node = n, .scope = jj_scope_capture(r)};
    return (struct value){.type = V_MACRO, .u.macro = m};
}

static void exec_call_block(struct render *r, const struct node *n) {
    const struct node *call_node = n->u.macro->call;
    struct value caller = make_macro(r, n);
    struct value callee = jj_eval(r, call_node->u.call.callee);
    struct call call;
    if (!r->failed && jj_eval_arguments(r, call_node->u.call.arguments, caller, &call)) {
        struct value v = jj_call(r, callee, &call);
        if (!r->failed) {
            jj_write_str(r, r->out, v);
        }
    }
}

static void exec_generation(struct render *r, const struct node *n) {
    const struct call none = {0};
    struct value body = make_macro(r, n);
    if (!r->failed) {
        jj_write_str(r, r->out, jj_call_macro(r, body.u.macro, &none));
    }
}

static enum flow exec_statement(struct render *r, const struct node *n) {
    struct value v = NONE;
    enum flow flow;
    r->line = n->line;
    switch (n->kind) {
    case S_TEXT:
        jj_sb_add_str(r->out, n->u.constant.u.s);
        return FLOW_NEXT;
    case S_OUTPUT:
        exec_output(r, n);
        return FLOW_NEXT;
    case S_IF:
        return exec_if(r, n);
    case S_FOR:
        v = jj_eval(r, n->u.loop->iterable);
        if (!r->failed) {
            jj_run_loop(r, n, v, 0);
        }
        return FLOW_NEXT;
    case S_SET:
        v = jj_eval(r, n->u.set.value);
        if (!r->failed) {
            jj_assign(r, n->u.set.target, v);
        }
        return FLOW_NEXT;
    case S_SET_BLOCK:
        flow = block_value(r, n, &v);
        if (flow == FLOW_NEXT && !r->failed) {
            jj_assign(r, n->u.set.target, v);
        }
        return flow;
    case S_FILTER_BLOCK:
        flow = block_value(r, n, &v);
        if (flow == FLOW_NEXT && v.type != V_STR && v.type != V_UNDEFINED) {
            jj_fail(r, "a filter block must give a string, not %s", jj_type_name(v));
        } else if (flow == FLOW_NEXT && !r->failed) {
            jj_write_str(r, r->out, v);
        }
        return flow;
    case S_WITH:
        return exec_with(r, n);
    case S_MACRO:
        jj_bind(r, n->u.macro->name, make_macro(r, n));
        return FLOW_NEXT;
    case S_CALL_BLOCK:
        exec_call_block(r, n);
        return FLOW_NEXT;
    case S_GENERATION:
        exec_generation(r, n);
        return FLOW_NEXT;
    case S_BREAK:
        return FLOW_BREAK;
    default:
        return FLOW_CONTINUE;
    }
}

enum flow jj_exec(struct render *r, const struct nodes *body) {
    enum flow flow = FLOW_NEXT;
    if (!jj_enter(r)) {
        return FLOW_NEXT;
    }
    for (size_t i = 0; i < body->n && flow == FLOW_NEXT && jj_steps(r, 1); i++) {
        flow = exec_statement(r, body->items[i]);
    }
    jj_leave(r);
    return flow;
}
