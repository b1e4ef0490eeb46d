#include "text/jinja/symbols.h"

#include <string.h>

enum symbol_kind {
    SYMBOL_VARIABLE, /* read first: the variable that was passed in */
    SYMBOL_OUTER,    /* as a block around it has it */
    SYMBOL_PARAMETER,
    SYMBOL_HIDDEN, /* assigned first: undefined until then */
};

struct symbol {
    uint16_t level; /* of the innermost block that knows the name; 0: none does */
    uint8_t kind;
    bool stored; /* assigned in that block */
    bool outer;  /* a block around that one knows it too */
};

struct change {
    uint32_t name;
    struct symbol before;
};

/* Names that one branch of an if changed, with what they became. */
struct branch_result {
    uint32_t *names; /* [n] */
    struct symbol *symbols;
    size_t n;
};

struct analysis {
    struct parser *p;
    struct symbol *symbols; /* [names] */
    uint32_t *stamp;        /* [names], to meet each name once */
    uint32_t now;
    uint8_t *count; /* [names], branches that assign it; 0 between uses */
    struct change *log;
    size_t n, cap;
    uint16_t level;
};

static void set_symbol(struct analysis *a, uint32_t name, struct symbol s) {
    if (a->p->failed) {
        return;
    }
    if (a->n == a->cap) {
        size_t cap = a->cap ? 2 * a->cap : 64;
        struct change *log = jj_parse_alloc(a->p, cap, sizeof *log);
        if (!log) {
            return;
        }
        if (a->n) {
            memcpy(log, a->log, a->n * sizeof *log);
        }
        a->log = log;
        a->cap = cap;
    }
    a->log[a->n++] = (struct change){.name = name, .before = a->symbols[name]};
    a->symbols[name] = s;
}

static void undo(struct analysis *a, size_t to) {
    while (a->n > to) {
        a->n--;
        a->symbols[a->log[a->n].name] = a->log[a->n].before;
    }
}

static void define(struct analysis *a, uint32_t name, enum symbol_kind kind, bool stored) {
    const struct symbol *old = &a->symbols[name];
    bool outer = old->level == a->level ? old->outer : old->level != 0;
    set_symbol(a, name, (struct symbol){.level = a->level, .kind = (uint8_t)kind, .stored = stored, .outer = outer});
}

static void load(struct analysis *a, uint32_t name) {
    if (a->symbols[name].level == 0) {
        define(a, name, SYMBOL_VARIABLE, false);
    }
}

static void store(struct analysis *a, uint32_t name) {
    struct symbol s = a->symbols[name];
    if (s.level == a->level) {
        if (!s.stored) {
            s.stored = true;
            set_symbol(a, name, s);
        }
    } else {
        define(a, name, s.level ? SYMBOL_OUTER : SYMBOL_HIDDEN, true);
    }
}

static void store_target(struct analysis *a, const struct target *t, bool parameter) {
    if (t->items) {
        for (size_t i = 0; i < t->n; i++) {
            store_target(a, &t->items[i], parameter);
        }
    } else if (t->member) {
        load(a, t->name);
    } else if (parameter) {
        define(a, t->name, SYMBOL_PARAMETER, true);
    } else {
        store(a, t->name);
    }
}

/* --- names used by expressions --- */

static void visit(struct analysis *a, const struct node *n);

static void visit_all(struct analysis *a, struct node *const *items, size_t n) {
    for (size_t i = 0; i < n; i++) {
        visit(a, items[i]);
    }
}

static void visit_arguments(struct analysis *a, const struct arguments *args) {
    visit_all(a, args->positional.items, args->positional.n);
    for (size_t i = 0; i < args->n_keywords; i++) {
        visit(a, args->keywords[i].value);
    }
    visit(a, args->star);
    visit(a, args->star_star);
}

static void visit(struct analysis *a, const struct node *n) {
    if (!n) {
        return;
    }
    switch (n->kind) {
    case N_CONST:
        break;
    case N_NAME:
        load(a, n->u.name);
        break;
    case N_TUPLE:
    case N_LIST:
    case N_CONCAT:
        visit_all(a, n->u.list.items, n->u.list.n);
        break;
    case N_DICT:
        visit_all(a, n->u.dict.keys, n->u.dict.n);
        visit_all(a, n->u.dict.values, n->u.dict.n);
        break;
    case N_COMPARE:
        visit(a, n->u.compare.first);
        for (size_t i = 0; i < n->u.compare.n; i++) {
            visit(a, n->u.compare.rest[i].value);
        }
        break;
    case N_GETATTR:
        visit(a, n->u.member.object);
        break;
    case N_CALL:
    case N_FILTER:
    case N_TEST:
        visit(a, n->u.call.callee);
        visit_arguments(a, n->u.call.arguments);
        break;
    default:
        visit(a, n->u.three.a);
        visit(a, n->u.three.b);
        visit(a, n->u.three.c);
        break;
    }
}

/* --- statements of one block: nested blocks are only touched where they use names of this one --- */

static void visit_statements(struct analysis *a, const struct nodes *body);

/* What changed since `mark`, each name once; it is undone then. */
static struct branch_result take_changes(struct analysis *a, size_t mark) {
    struct branch_result result = {0};
    size_t n = a->n - mark;
    result.names = jj_parse_alloc(a->p, n, sizeof *result.names);
    result.symbols = jj_parse_alloc(a->p, n, sizeof *result.symbols);
    a->now++;
    for (size_t i = mark; i < a->n && !a->p->failed; i++) {
        uint32_t name = a->log[i].name;
        if (a->stamp[name] != a->now) {
            a->stamp[name] = a->now;
            result.names[result.n] = name;
            result.symbols[result.n++] = a->symbols[name];
        }
    }
    undo(a, mark);
    return result;
}

/* After an if: what any branch knows is known; a name that not all branches assign is looked up outside as well. */
static void join_branches(struct analysis *a, const struct branch_result branches[3]) {
    for (int k = 0; k < 3; k++) {
        for (size_t i = 0; i < branches[k].n; i++) {
            uint32_t name = branches[k].names[i];
            bool was_stored = a->symbols[name].level == a->level && a->symbols[name].stored && a->count[name] == 0;
            a->count[name] = (uint8_t)(a->count[name] + (branches[k].symbols[i].stored && !was_stored));
            struct symbol s = branches[k].symbols[i];
            s.stored = s.stored || a->symbols[name].stored;
            set_symbol(a, name, s);
        }
    }
    for (int k = 0; k < 3; k++) {
        for (size_t i = 0; i < branches[k].n; i++) {
            uint32_t name = branches[k].names[i];
            if (a->count[name] == 1 || a->count[name] == 2) {
                struct symbol s = a->symbols[name];
                s.kind = s.outer ? SYMBOL_OUTER : SYMBOL_VARIABLE;
                set_symbol(a, name, s);
            }
            a->count[name] = 0;
        }
    }
}

/* if condition: body, then the branches [i, n) behind it as elif and else */
static void visit_if(struct analysis *a, const struct branch *b, size_t n) {
    struct branch_result results[3] = {{0}};
    size_t mark;
    visit(a, b[0].condition);
    mark = a->n;
    visit_statements(a, &b[0].body);
    results[0] = take_changes(a, mark);
    for (size_t i = 1; i < n && b[i].condition; i++) {
        visit_if(a, &b[i], 1);
    }
    results[1] = take_changes(a, mark);
    if (n > 1 && !b[n - 1].condition) {
        visit_statements(a, &b[n - 1].body);
    }
    results[2] = take_changes(a, mark);
    join_branches(a, results);
}

static void visit_statement(struct analysis *a, const struct node *n) {
    switch (n->kind) {
    case S_OUTPUT:
        visit_all(a, n->u.list.items, n->u.list.n);
        break;
    case S_IF:
        visit_if(a, n->u.branches.items, n->u.branches.n);
        break;
    case S_FOR:
        visit(a, n->u.loop->iterable);
        break;
    case S_SET:
        visit(a, n->u.set.value);
        store_target(a, n->u.set.target, false);
        break;
    case S_SET_BLOCK:
        store_target(a, n->u.set.target, false);
        break;
    case S_FILTER_BLOCK:
        visit(a, n->u.set.value);
        break;
    case S_WITH:
        visit_all(a, n->u.with.values, n->u.with.n);
        break;
    case S_MACRO:
        store(a, n->u.macro->name);
        break;
    case S_CALL_BLOCK:
        visit(a, n->u.macro->call);
        break;
    default:
        break;
    }
}

static void visit_statements(struct analysis *a, const struct nodes *body) {
    for (size_t i = 0; i < body->n && !a->p->failed; i++) {
        visit_statement(a, body->items[i]);
    }
}

/* --- blocks --- */

static void analyse_nested(struct analysis *a, const struct nodes *body);

/* The block is known (its parameters are declared since `mark`, its statements visited): take its hidden names, go
 * inside. */
static void finish_block(struct analysis *a, size_t mark, const struct nodes *body, struct hidden *out) {
    size_t n = 0;
    a->now++;
    for (size_t pass = 0; pass < 2 && !a->p->failed; pass++) {
        for (size_t i = mark; i < a->n; i++) {
            uint32_t name = a->log[i].name;
            if (a->symbols[name].kind == SYMBOL_HIDDEN && a->stamp[name] != a->now) {
                a->stamp[name] = a->now;
                if (out->names) {
                    out->names[n] = name;
                }
                n++;
            }
        }
        if (pass == 0) {
            out->n = n;
            out->names = n ? jj_parse_alloc(a->p, n, sizeof *out->names) : NULL;
            n = 0;
            a->now++;
            if (!out->names) {
                break;
            }
        }
    }
    analyse_nested(a, body);
}

static size_t begin_block(struct analysis *a) {
    a->level++;
    return a->n;
}

static void end_block(struct analysis *a, size_t mark) {
    undo(a, mark);
    a->level--;
}

static void analyse_plain(struct analysis *a, const struct nodes *body, struct hidden *out) {
    size_t mark = begin_block(a);
    visit_statements(a, body);
    finish_block(a, mark, body, out);
    end_block(a, mark);
}

static void analyse_for(struct analysis *a, struct for_loop *f) {
    size_t mark = begin_block(a);
    if (f->uses_loop) {
        define(a, NAME_LOOP, SYMBOL_PARAMETER, true);
    }
    store_target(a, &f->target, true);
    visit_statements(a, &f->body);
    finish_block(a, mark, &f->body, &f->hidden);
    end_block(a, mark);
    analyse_plain(a, &f->otherwise, &f->otherwise_hidden);
}

static void analyse_macro(struct analysis *a, struct macro_info *m) {
    size_t mark = begin_block(a);
    for (size_t i = 0; i < m->n; i++) {
        define(a, m->parameters[i].name, SYMBOL_PARAMETER, true);
    }
    const uint32_t special[] = {NAME_CALLER, NAME_VARARGS, NAME_KWARGS};
    const bool used[] = {m->uses_caller, m->uses_varargs, m->uses_kwargs};
    for (size_t i = 0; i < 3; i++) {
        if (used[i]) {
            define(a, special[i], SYMBOL_PARAMETER, true);
        }
    }
    for (size_t i = 0; i < m->n; i++) {
        visit(a, m->parameters[i].default_value);
    }
    visit_statements(a, &m->body);
    finish_block(a, mark, &m->body, &m->hidden);
    end_block(a, mark);
}

static void analyse_with(struct analysis *a, struct node *n) {
    size_t mark = begin_block(a);
    for (size_t i = 0; i < n->u.with.n; i++) {
        store_target(a, &n->u.with.targets[i], true);
    }
    visit_statements(a, &n->u.with.body);
    finish_block(a, mark, &n->u.with.body, &n->hidden);
    end_block(a, mark);
}

static void analyse_nested_statement(struct analysis *a, struct node *n) {
    switch (n->kind) {
    case S_IF: /* no block of its own */
        for (size_t i = 0; i < n->u.branches.n; i++) {
            analyse_nested(a, &n->u.branches.items[i].body);
        }
        break;
    case S_FOR:
        analyse_for(a, n->u.loop);
        break;
    case S_SET_BLOCK:
    case S_FILTER_BLOCK:
        analyse_plain(a, &n->u.set.body, &n->hidden);
        break;
    case S_WITH:
        analyse_with(a, n);
        break;
    case S_MACRO:
    case S_CALL_BLOCK:
    case S_GENERATION:
        analyse_macro(a, n->u.macro);
        break;
    default:
        break;
    }
}

static void analyse_nested(struct analysis *a, const struct nodes *body) {
    for (size_t i = 0; i < body->n && !a->p->failed; i++) {
        analyse_nested_statement(a, body->items[i]);
    }
}

void jj_find_hidden(struct parser *p) {
    struct jinja *t = p->t;
    struct analysis a = {.p = p};
    a.symbols = jj_parse_alloc(p, t->names.n, sizeof *a.symbols);
    a.stamp = jj_parse_alloc(p, t->names.n, sizeof *a.stamp);
    a.count = jj_parse_alloc(p, t->names.n, sizeof *a.count);
    if (!p->failed) {
        analyse_plain(&a, &t->body, &t->hidden);
    }
}
