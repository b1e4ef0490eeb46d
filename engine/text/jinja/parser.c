/* Statements, and the parts that both halves of the parser use. */
#include "text/jinja/parser.h"

#include "base/checked.h"
#include "base/utf8.h"
#include "text/jinja/functions.h"
#include "text/jinja/jinja.h"
#include "text/jinja/limits.h"
#include "text/jinja/symbols.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COMPILE_MEMORY ((size_t)256 << 20)

/* --- parts --- */

void jj_parse_fail(struct parser *p, const char *fmt, ...) {
    if (p->failed) {
        return;
    }
    char what[256];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    error_set(p->err, ERROR_MODEL, "chat template line %u: %s", jj_peek(p)->line, what);
    p->failed = true;
    p->at = p->last; /* every loop of the parser ends there */
}

void *jj_parse_alloc(struct parser *p, size_t n, size_t size) {
    void *a = p->failed ? NULL : jj_arena_array(&p->t->arena, n, size);
    if (a) {
        memset(a, 0, n * size);
    } else {
        jj_parse_fail(p, "the template needs too much memory");
    }
    return a;
}

void *jj_parse_grow(struct parser *p, void *items, size_t n, size_t *cap, size_t size) {
    if (n < *cap) {
        return items;
    }
    size_t more = *cap ? 2 * *cap : 4;
    void *grown = jj_parse_alloc(p, more, size);
    if (grown && n) {
        memcpy(grown, items, n * size);
    }
    *cap = grown ? more : *cap;
    return grown;
}

struct node *jj_node(struct parser *p, enum node_kind kind, uint32_t line) {
    struct node *n = jj_parse_alloc(p, 1, sizeof *n);
    if (!n) {
        p->spare = (struct node){.kind = N_CONST};
        return &p->spare;
    }
    n->kind = (uint8_t)kind;
    n->depth = 1;
    n->line = line;
    return n;
}

void jj_adopt(struct parser *p, struct node *n, const struct node *child) {
    if (child->depth >= n->depth) {
        n->depth = (uint16_t)(child->depth + 1);
    }
    if (n->depth > JJ_MAX_NODE_DEPTH) {
        jj_parse_fail(p, "an expression is too long or nested too deep");
    }
}

void jj_nodes_push(struct parser *p, struct node *parent, struct nodes *list, size_t *cap, struct node *n) {
    if (p->failed) {
        return;
    }
    jj_adopt(p, parent, n);
    struct node **items = jj_parse_grow(p, list->items, list->n, cap, sizeof(struct node *));
    if (!items) {
        return;
    }
    list->items = items;
    list->items[list->n++] = n;
}

bool jj_at_name(const struct parser *p, const char *name) {
    const struct token *t = jj_peek(p);
    return t->kind == T_NAME && t->len == strlen(name) && memcmp(t->text, name, t->len) == 0;
}

bool jj_skip(struct parser *p, enum token_kind kind) {
    if (jj_peek(p)->kind != kind) {
        return false;
    }
    jj_next(p);
    return true;
}

bool jj_skip_name(struct parser *p, const char *name) {
    if (!jj_at_name(p, name)) {
        return false;
    }
    jj_next(p);
    return true;
}

bool jj_expect(struct parser *p, enum token_kind kind) {
    if (jj_skip(p, kind)) {
        return true;
    }
    jj_parse_fail(p, "expected %s, got %s", jj_token_name(kind), jj_token_name(jj_peek(p)->kind));
    return false;
}

bool jj_expect_name(struct parser *p, const char *name) {
    if (jj_skip_name(p, name)) {
        return true;
    }
    jj_parse_fail(p, "expected '%s', got %s", name, jj_token_name(jj_peek(p)->kind));
    return false;
}

bool jj_nest(struct parser *p) {
    if (p->failed) {
        return false;
    }
    if (p->nesting >= JJ_MAX_NESTING) {
        jj_parse_fail(p, "nested too deep");
        return false;
    }
    p->nesting++;
    return true;
}

const struct str *jj_parse_str(struct parser *p, const char *bytes, size_t len) {
    struct str *s = jj_parse_alloc(p, 1, sizeof *s);
    if (!s) {
        return jj_str_empty();
    }
    *s = (struct str){.bytes = bytes, .len = len, .trusted = true, .ascii = jj_is_ascii(bytes, len)};
    return s;
}

/* --- names --- */

uint32_t jj_names_find(const struct names *names, const char *bytes, size_t len) {
    if (!names->index) {
        return UINT32_MAX;
    }
    for (size_t i = jj_hash_bytes(bytes, len) & names->mask; names->index[i]; i = (i + 1) & names->mask) {
        uint32_t id = names->index[i] - 1;
        if (jj_str_is(names->items[id], bytes, len)) {
            return id;
        }
    }
    return UINT32_MAX;
}

static void index_name(struct names *names, uint32_t id) {
    const struct str *s = names->items[id];
    size_t i = jj_hash_bytes(s->bytes, s->len) & names->mask;
    while (names->index[i]) {
        i = (i + 1) & names->mask;
    }
    names->index[i] = id + 1;
}

/* Twice the room, and the index anew. */
static bool grow_names(struct parser *p) {
    struct names *names = &p->t->names;
    size_t cap = names->cap ? 2 * names->cap : 64;
    const struct str **items = jj_parse_alloc(p, cap, sizeof(struct str *));
    uint32_t *index = jj_parse_alloc(p, 2 * cap, sizeof *index);
    if (!items || !index) {
        return false;
    }
    if (names->n) {
        memcpy(items, names->items, names->n * sizeof(struct str *));
    }
    names->items = items;
    names->cap = cap;
    names->index = index;
    names->mask = 2 * cap - 1;
    for (size_t i = 0; i < names->n; i++) {
        index_name(names, (uint32_t)i);
    }
    return true;
}

uint32_t jj_intern(struct parser *p, const char *bytes, size_t len) {
    struct names *names = &p->t->names;
    uint32_t id = jj_names_find(names, bytes, len);
    if (id != UINT32_MAX) {
        return id;
    }
    if (p->failed || (names->n == names->cap && !grow_names(p))) {
        return 0;
    }
    names->items[names->n] = jj_parse_str(p, bytes, len);
    index_name(names, (uint32_t)names->n);
    return (uint32_t)names->n++;
}

static void intern_well_known(struct parser *p) {
    static const char *const known[N_WELL_KNOWN_NAMES] = {
        [NAME_LOOP] = "loop",
        [NAME_CALLER] = "caller",
        [NAME_VARARGS] = "varargs",
        [NAME_KWARGS] = "kwargs",
        [NAME_SELF] = "self",
        [NAME_MESSAGES] = "messages",
        [NAME_TOOLS] = "tools",
        [NAME_DOCUMENTS] = "documents",
        [NAME_ADD_GENERATION_PROMPT] = "add_generation_prompt",
        [NAME_BOS_TOKEN] = "bos_token",
        [NAME_EOS_TOKEN] = "eos_token",
        [NAME_RANGE] = "range",
        [NAME_DICT] = "dict",
        [NAME_LIPSUM] = "lipsum",
        [NAME_CYCLER] = "cycler",
        [NAME_JOINER] = "joiner",
        [NAME_NAMESPACE] = "namespace",
        [NAME_RAISE_EXCEPTION] = "raise_exception",
        [NAME_STRFTIME_NOW] = "strftime_now",
    };
    for (size_t i = 0; i < N_WELL_KNOWN_NAMES; i++) {
        jj_intern(p, known[i], strlen(known[i]));
    }
}

/* --- targets of assignments --- */

static bool is_reserved(const struct token *t) {
    static const char *const reserved[] = {"true", "false", "none", "True", "False", "None"};
    for (size_t i = 0; i < sizeof reserved / sizeof reserved[0]; i++) {
        if (t->len == strlen(reserved[i]) && memcmp(t->text, reserved[i], t->len) == 0) {
            return true;
        }
    }
    return false;
}

static uint32_t parse_target_name(struct parser *p) {
    const struct token *t = jj_peek(p);
    if (t->kind == T_NAME && is_reserved(t)) {
        jj_parse_fail(p, "cannot assign to '%.*s'", (int)t->len, t->text);
        return 0;
    }
    return jj_expect(p, T_NAME) ? jj_intern(p, t->text, t->len) : 0;
}

static struct target parse_target(struct parser *p, bool with_namespace);

/* Targets with commas between, up to what ends them. */
static struct target parse_target_list(struct parser *p, bool with_namespace) {
    struct target first = parse_target(p, with_namespace);
    if (jj_peek(p)->kind != T_COMMA) {
        return first;
    }
    struct target tuple = {0};
    size_t cap = 0;
    struct target next = first;
    for (;;) {
        struct target *items = jj_parse_grow(p, tuple.items, tuple.n, &cap, sizeof *items);
        if (!items) {
            return first;
        }
        tuple.items = items;
        tuple.items[tuple.n++] = next;
        enum token_kind after = jj_skip(p, T_COMMA) ? jj_peek(p)->kind : T_EOF;
        if (after != T_NAME && after != T_LPAREN) {
            return tuple;
        }
        if (jj_at_name(p, "in")) {
            return tuple;
        }
        next = parse_target(p, with_namespace);
        if (p->failed) {
            return tuple;
        }
    }
}

static struct target parse_target(struct parser *p, bool with_namespace) {
    if (jj_peek(p)->kind == T_LPAREN) {
        if (!jj_nest(p)) {
            return (struct target){0};
        }
        jj_next(p);
        struct target t = parse_target_list(p, with_namespace);
        jj_expect(p, T_RPAREN);
        p->nesting--;
        return t;
    }
    struct target t = {.name = parse_target_name(p)};
    if (with_namespace && jj_skip(p, T_DOT)) {
        const struct token *member = jj_peek(p);
        if (jj_expect(p, T_NAME)) {
            t.member = jj_parse_str(p, member->text, member->len);
        }
    }
    return t;
}

static struct target *new_target(struct parser *p, struct target t) {
    struct target *copy = jj_parse_alloc(p, 1, sizeof *copy);
    if (copy) {
        *copy = t;
    }
    return copy;
}

/* --- statements --- */

/* Statements up to one of the tags in `ends` (NULL-terminated list), whose name is the current token then. */
static struct nodes parse_body(struct parser *p, struct node *parent, const char *const *ends);

/* The same between the end of this tag and the one end tag, which is taken too. */
static struct nodes parse_block(struct parser *p, struct node *parent, const char *end) {
    const char *const ends[] = {end, NULL};
    jj_expect(p, T_BLOCK_END);
    struct nodes body = parse_body(p, parent, ends);
    jj_next(p);
    jj_expect(p, T_BLOCK_END);
    return body;
}

static void push_branch(struct parser *p, struct node *n, size_t *cap, struct branch b) {
    struct branch *items = jj_parse_grow(p, n->u.branches.items, n->u.branches.n, cap, sizeof *items);
    if (!items) {
        return;
    }
    n->u.branches.items = items;
    n->u.branches.items[n->u.branches.n++] = b;
}

static struct node *parse_if(struct parser *p, uint32_t line) {
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    struct node *n = jj_node(p, S_IF, line);
    size_t cap = 0;
    p->conditions++;
    for (bool is_else = false; !p->failed;) {
        struct branch b = {0};
        if (!is_else) {
            b.condition = jj_parse_tuple(p, false, false, NULL);
            jj_adopt(p, n, b.condition);
        }
        jj_expect(p, T_BLOCK_END);
        b.body = parse_body(p, n, is_else ? (const char *const[]){"endif", NULL} : ends);
        push_branch(p, n, &cap, b);
        if (jj_skip_name(p, "elif")) {
            continue;
        }
        is_else = jj_skip_name(p, "else");
        if (!is_else) {
            jj_next(p);
            jj_expect(p, T_BLOCK_END);
            break;
        }
    }
    p->conditions--;
    return n;
}

static struct node *parse_for(struct parser *p, uint32_t line) {
    static const char *const ends[] = {"endfor", "else", NULL};
    struct node *n = jj_node(p, S_FOR, line);
    struct for_loop *loop = jj_parse_alloc(p, 1, sizeof *loop);
    if (!loop) {
        return n;
    }
    n->u.loop = loop;
    loop->target = parse_target_list(p, false);
    jj_expect_name(p, "in");
    loop->iterable = jj_parse_tuple(p, false, false, "recursive");
    jj_adopt(p, n, loop->iterable);
    if (jj_skip_name(p, "if")) {
        loop->filter = jj_parse_expression(p, true);
        jj_adopt(p, n, loop->filter);
    }
    bool outer_saw_loop = p->saw_loop; /* up to here `loop` is that of a loop around this one */
    loop->recursive = jj_skip_name(p, "recursive");
    jj_expect(p, T_BLOCK_END);
    p->saw_loop = false;
    p->loops++;
    loop->body = parse_body(p, n, ends);
    p->loops--;
    loop->uses_loop = p->saw_loop || loop->recursive;
    p->saw_loop = outer_saw_loop;
    if (jj_skip_name(p, "else")) {
        loop->otherwise = parse_block(p, n, "endfor");
    } else {
        jj_next(p);
        jj_expect(p, T_BLOCK_END);
    }
    return n;
}

static struct node *parse_set(struct parser *p, uint32_t line) {
    struct target target = parse_target_list(p, true);
    bool is_assignment = jj_skip(p, T_ASSIGN);
    struct node *n = jj_node(p, is_assignment ? S_SET : S_SET_BLOCK, line);
    n->u.set.target = new_target(p, target);
    if (is_assignment) {
        n->u.set.value = jj_parse_tuple(p, true, false, NULL);
        jj_adopt(p, n, n->u.set.value);
        jj_expect(p, T_BLOCK_END);
        return n;
    }
    if (jj_skip(p, T_PIPE)) {
        n->u.set.value = jj_parse_filter_chain(p);
        jj_adopt(p, n, n->u.set.value);
    }
    n->u.set.body = parse_block(p, n, "endset");
    return n;
}

static struct node *parse_filter_block(struct parser *p, uint32_t line) {
    struct node *n = jj_node(p, S_FILTER_BLOCK, line);
    n->u.set.value = jj_parse_filter_chain(p);
    jj_adopt(p, n, n->u.set.value);
    n->u.set.body = parse_block(p, n, "endfilter");
    return n;
}

static struct node *parse_with(struct parser *p, uint32_t line) {
    struct node *n = jj_node(p, S_WITH, line);
    struct nodes values = {0};
    size_t targets_cap = 0, values_cap = 0;
    while (!p->failed && jj_peek(p)->kind != T_BLOCK_END) {
        if (values.n && !jj_expect(p, T_COMMA)) {
            break;
        }
        struct target *targets = jj_parse_grow(p, n->u.with.targets, values.n, &targets_cap, sizeof *targets);
        if (!targets) {
            break;
        }
        n->u.with.targets = targets;
        targets[values.n] = parse_target_list(p, false);
        jj_expect(p, T_ASSIGN);
        jj_nodes_push(p, n, &values, &values_cap, jj_parse_expression(p, true));
    }
    n->u.with.values = values.items;
    n->u.with.n = values.n;
    n->u.with.body = parse_block(p, n, "endwith");
    return n;
}

static void parse_signature(struct parser *p, struct node *n, struct macro_info *m) {
    size_t cap = 0;
    jj_expect(p, T_LPAREN);
    for (bool defaults = false; !p->failed && jj_peek(p)->kind != T_RPAREN;) {
        if (m->n && (!jj_expect(p, T_COMMA) || jj_peek(p)->kind == T_RPAREN)) {
            break;
        }
        const struct token *t = jj_peek(p);
        struct parameter a = {.name = parse_target_name(p), .text = jj_parse_str(p, t->text, t->len)};
        if (jj_skip(p, T_ASSIGN)) {
            a.default_value = jj_parse_expression(p, true);
            jj_adopt(p, n, a.default_value);
            defaults = true;
        } else if (defaults) {
            jj_parse_fail(p, "a parameter without default follows one with a default");
            return;
        }
        m->caller_is_parameter |= a.name == NAME_CALLER;
        struct parameter *items = jj_parse_grow(p, m->parameters, m->n, &cap, sizeof *items);
        if (!items) {
            return;
        }
        m->parameters = items;
        if (m->n == JJ_MAX_MACRO_PARAMETERS) {
            jj_parse_fail(p, "too many parameters");
            return;
        }
        m->parameters[m->n++] = a;
    }
    jj_expect(p, T_RPAREN);
}

/* The body of a macro or call block, noting which of the special names it uses. */
static void parse_macro_body(struct parser *p, struct node *n, struct macro_info *m, const char *end) {
    bool caller = p->saw_caller, varargs = p->saw_varargs, kwargs = p->saw_kwargs;
    unsigned loops = p->loops;
    p->saw_caller = p->saw_varargs = p->saw_kwargs = false;
    p->loops = 0;
    m->body = parse_block(p, n, end);
    m->uses_caller = p->saw_caller || m->caller_is_parameter;
    m->uses_varargs = p->saw_varargs;
    m->uses_kwargs = p->saw_kwargs;
    p->saw_caller |= caller;
    p->saw_varargs |= varargs;
    p->saw_kwargs |= kwargs;
    p->loops = loops;
}

static struct node *parse_macro(struct parser *p, uint32_t line) {
    struct node *n = jj_node(p, S_MACRO, line);
    struct macro_info *m = jj_parse_alloc(p, 1, sizeof *m);
    if (!m) {
        return n;
    }
    n->u.macro = m;
    const struct token *t = jj_peek(p);
    m->text = jj_parse_str(p, t->text, t->len);
    m->name = parse_target_name(p);
    parse_signature(p, n, m);
    parse_macro_body(p, n, m, "endmacro");
    return n;
}

static struct node *parse_call_block(struct parser *p, uint32_t line) {
    struct node *n = jj_node(p, S_CALL_BLOCK, line);
    struct macro_info *m = jj_parse_alloc(p, 1, sizeof *m);
    if (!m) {
        return n;
    }
    n->u.macro = m;
    if (jj_peek(p)->kind == T_LPAREN) {
        parse_signature(p, n, m);
    }
    m->call = jj_parse_expression(p, true);
    jj_adopt(p, n, m->call);
    if (m->call->kind != N_CALL) {
        jj_parse_fail(p, "expected a call");
        return n;
    }
    parse_macro_body(p, n, m, "endcall");
    return n;
}

static struct node *parse_generation(struct parser *p, uint32_t line) {
    struct node *n = jj_node(p, S_GENERATION, line);
    struct macro_info *m = jj_parse_alloc(p, 1, sizeof *m);
    if (m) {
        n->u.macro = m;
        parse_macro_body(p, n, m, "endgeneration");
    }
    return n;
}

static struct node *parse_print(struct parser *p, uint32_t line) {
    struct node *n = jj_node(p, S_OUTPUT, line);
    size_t cap = 0;
    while (!p->failed && jj_peek(p)->kind != T_BLOCK_END) {
        if (n->u.list.n && !jj_expect(p, T_COMMA)) {
            break;
        }
        jj_nodes_push(p, n, &n->u.list, &cap, jj_parse_expression(p, true));
    }
    jj_expect(p, T_BLOCK_END);
    return n;
}

static struct node *parse_jump(struct parser *p, enum node_kind kind, uint32_t line) {
    if (!p->loops) {
        jj_parse_fail(p, "'%s' outside of a loop", kind == S_BREAK ? "break" : "continue");
    }
    jj_expect(p, T_BLOCK_END);
    return jj_node(p, kind, line);
}

static struct node *parse_statement(struct parser *p) {
    static const struct {
        const char *name;
        struct node *(*parse)(struct parser *p, uint32_t line);
    } table[] = {
        {"if", parse_if},           {"for", parse_for},
        {"set", parse_set},         {"macro", parse_macro},
        {"call", parse_call_block}, {"filter", parse_filter_block},
        {"with", parse_with},       {"generation", parse_generation},
        {"print", parse_print},
    };
    const struct token *t = jj_peek(p);
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        if (jj_skip_name(p, table[i].name)) {
            return table[i].parse(p, t->line);
        }
    }
    if (jj_skip_name(p, "break")) {
        return parse_jump(p, S_BREAK, t->line);
    }
    if (jj_skip_name(p, "continue")) {
        return parse_jump(p, S_CONTINUE, t->line);
    }
    static const char *const foreign[] = {"include", "import", "from", "extends", "block", "autoescape"};
    for (size_t i = 0; i < sizeof foreign / sizeof foreign[0]; i++) {
        if (jj_at_name(p, foreign[i])) {
            jj_parse_fail(p, "the tag '%s' has no meaning in a chat template", foreign[i]);
            return &p->spare;
        }
    }
    if (t->kind == T_NAME) {
        jj_parse_fail(p, "unknown or misplaced tag '%.*s'", (int)(t->len < 64 ? t->len : 64), t->text);
    } else {
        jj_parse_fail(p, "expected the name of a tag, got %s", jj_token_name(t->kind));
    }
    return &p->spare;
}

static bool at_end_tag(const struct parser *p, const char *const *ends) {
    for (; ends && *ends; ends++) {
        if (jj_at_name(p, *ends)) {
            return true;
        }
    }
    return false;
}

static struct node *parse_output(struct parser *p) {
    struct node *n = jj_node(p, S_OUTPUT, jj_peek(p)->line);
    size_t cap = 0;
    jj_next(p);
    jj_nodes_push(p, n, &n->u.list, &cap, jj_parse_tuple(p, true, false, NULL));
    jj_expect(p, T_VARIABLE_END);
    return n;
}

static struct nodes parse_body(struct parser *p, struct node *parent, const char *const *ends) {
    struct nodes body = {0};
    size_t cap = 0;
    if (!jj_nest(p)) {
        return body;
    }
    while (!p->failed) {
        const struct token *t = jj_peek(p);
        if (t->kind == T_DATA) {
            struct node *n = jj_node(p, S_TEXT, t->line);
            n->u.constant = value_str(jj_parse_str(p, t->text, t->len));
            jj_nodes_push(p, parent, &body, &cap, n);
            jj_next(p);
        } else if (t->kind == T_VARIABLE_BEGIN) {
            jj_nodes_push(p, parent, &body, &cap, parse_output(p));
        } else if (t->kind == T_BLOCK_BEGIN) {
            jj_next(p);
            if (at_end_tag(p, ends)) {
                break;
            }
            jj_nodes_push(p, parent, &body, &cap, parse_statement(p));
        } else {
            if (ends) {
                jj_parse_fail(p, "unexpected end of the template: expected '%s'", ends[0]);
            }
            break;
        }
    }
    p->nesting--;
    return body;
}

static int parse(struct jinja *t, const char *source, size_t len, struct error *err) {
    struct tokens_list tokens;
    if (jj_lex(&t->arena, source, len, &tokens, err)) {
        return -1;
    }
    struct parser p = {.t = t, .tokens = tokens.items, .last = tokens.n - 1, .err = err};
    p.spare.kind = N_CONST;
    intern_well_known(&p);
    struct node *root = jj_node(&p, S_OUTPUT, 1);
    t->body = parse_body(&p, root, NULL);
    if (!p.failed) {
        jj_find_hidden(&p);
    }
    if (!p.failed && p.unknown) {
        error_set(err, ERROR_MODEL, "chat template line %u: no %s named '%.*s'", p.unknown->line,
                  p.unknown->kind == N_FILTER ? "filter" : "test", (int)p.unknown->u.call.unknown->len,
                  p.unknown->u.call.unknown->bytes);
        return -1;
    }
    return p.failed ? -1 : 0;
}

int jinja_compile(const char *source, size_t len, struct jinja **out, struct error *err) {
    if (len > JJ_MAX_SOURCE) {
        return error_set(err, ERROR_MODEL, "the chat template is too long (%zu bytes, at most %d)", len, JJ_MAX_SOURCE);
    }
    if (!utf8_is_valid(source, len)) {
        return error_set(err, ERROR_MODEL, "the chat template is not valid UTF-8");
    }
    struct jinja *t = calloc(1, sizeof *t);
    if (!t) {
        return error_memory(err);
    }
    jj_arena_init(&t->arena, COMPILE_MEMORY);
    if (parse(t, source, len, err)) {
        jinja_free(t);
        return -1;
    }
    *out = t;
    return 0;
}

bool jinja_reads(const struct jinja *t, const char *name) {
    uint32_t id = jj_names_find(&t->names, name, strlen(name));
    return id < N_WELL_KNOWN_NAMES ? (t->well_known_used >> id) & 1 : id != UINT32_MAX;
}

void jinja_free(struct jinja *t) {
    if (t) {
        jj_arena_free(&t->arena);
        free(t);
    }
}
