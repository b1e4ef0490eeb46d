/* Expressions, by the precedence of Jinja2: if-else, or, and, not, comparisons, + -, ~, * / // %, **, unary, postfix,
 * filters. */
#include "text/jinja/functions.h"
#include "text/jinja/limits.h"
#include "text/jinja/number.h"
#include "text/jinja/parser.h"

#include <string.h>

static struct node *unary_node(struct parser *p, enum node_kind kind, uint32_t line, struct node *a) {
    struct node *n = jj_node(p, kind, line);
    n->u.three.a = a;
    jj_adopt(p, n, a);
    return n;
}

static struct node *binary_node(struct parser *p, enum node_kind kind, int op, uint32_t line, struct node *a,
                                struct node *b) {
    struct node *n = unary_node(p, kind, line, a);
    n->op = (uint8_t)op;
    n->u.three.b = b;
    jj_adopt(p, n, b);
    return n;
}

static struct node *constant(struct parser *p, uint32_t line, struct value v) {
    struct node *n = jj_node(p, N_CONST, line);
    n->u.constant = v;
    return n;
}

static struct node *parse_unary(struct parser *p, bool with_filter);

static struct node *parse_pow(struct parser *p) {
    struct node *left = parse_unary(p, true);
    while (jj_peek(p)->kind == T_POW) {
        uint32_t line = jj_peek(p)->line;
        jj_next(p);
        left = binary_node(p, N_BINARY, OP_POW, line, left, parse_unary(p, true));
    }
    return left;
}

static struct node *parse_product(struct parser *p) {
    struct node *left = parse_pow(p);
    for (;;) {
        const struct token *t = jj_peek(p);
        int op = t->kind == T_MUL        ? OP_MUL
                 : t->kind == T_DIV      ? OP_DIV
                 : t->kind == T_FLOORDIV ? OP_FLOORDIV
                 : t->kind == T_MOD      ? OP_MOD
                                         : -1;
        if (op < 0) {
            return left;
        }
        jj_next(p);
        left = binary_node(p, N_BINARY, op, t->line, left, parse_pow(p));
    }
}

static struct node *parse_concat(struct parser *p) {
    uint32_t line = jj_peek(p)->line;
    struct node *first = parse_product(p);
    if (jj_peek(p)->kind != T_TILDE) {
        return first;
    }
    struct node *n = jj_node(p, N_CONCAT, line);
    size_t cap = 0;
    jj_nodes_push(p, n, &n->u.list, &cap, first);
    while (jj_skip(p, T_TILDE)) {
        jj_nodes_push(p, n, &n->u.list, &cap, parse_product(p));
    }
    return n;
}

static struct node *parse_sum(struct parser *p) {
    struct node *left = parse_concat(p);
    for (;;) {
        const struct token *t = jj_peek(p);
        if (t->kind != T_ADD && t->kind != T_SUB) {
            return left;
        }
        jj_next(p);
        left = binary_node(p, N_BINARY, t->kind == T_ADD ? OP_ADD : OP_SUB, t->line, left, parse_concat(p));
    }
}

/* The comparison operator at the current token, taken; -1 if there is none. */
static int take_comparison(struct parser *p) {
    static const struct {
        enum token_kind token;
        enum operator_kind op;
    } table[] = {{T_EQ, OP_EQ}, {T_NE, OP_NE}, {T_LT, OP_LT}, {T_LE, OP_LE}, {T_GT, OP_GT}, {T_GE, OP_GE}};
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        if (jj_skip(p, table[i].token)) {
            return (int)table[i].op;
        }
    }
    if (jj_skip_name(p, "in")) {
        return OP_IN;
    }
    const struct token *next = jj_peek_next(p);
    if (jj_at_name(p, "not") && next->kind == T_NAME && next->len == 2 && memcmp(next->text, "in", 2) == 0) {
        jj_next(p);
        jj_next(p);
        return OP_NOT_IN;
    }
    return -1;
}

static struct node *parse_comparison(struct parser *p) {
    uint32_t line = jj_peek(p)->line;
    struct node *first = parse_sum(p);
    int op = take_comparison(p);
    if (op < 0) {
        return first;
    }
    struct node *n = jj_node(p, N_COMPARE, line);
    n->u.compare.first = first;
    jj_adopt(p, n, first);
    size_t cap = 0;
    for (; op >= 0 && !p->failed; op = take_comparison(p)) {
        struct operand operand = {.op = (enum operator_kind)op, .value = parse_sum(p)};
        jj_adopt(p, n, operand.value);
        struct operand *rest = jj_parse_grow(p, n->u.compare.rest, n->u.compare.n, &cap, sizeof *rest);
        if (!rest) {
            break;
        }
        n->u.compare.rest = rest;
        n->u.compare.rest[n->u.compare.n++] = operand;
    }
    return n;
}

static struct node *parse_not(struct parser *p) {
    if (!jj_at_name(p, "not")) {
        return parse_comparison(p);
    }
    uint32_t line = jj_peek(p)->line;
    if (!jj_nest(p)) {
        return &p->spare;
    }
    jj_next(p);
    struct node *n = unary_node(p, N_NOT, line, parse_not(p));
    p->nesting--;
    return n;
}

static struct node *parse_and(struct parser *p) {
    struct node *left = parse_not(p);
    while (jj_at_name(p, "and")) {
        uint32_t line = jj_peek(p)->line;
        jj_next(p);
        left = binary_node(p, N_AND, 0, line, left, parse_not(p));
    }
    return left;
}

static struct node *parse_or(struct parser *p) {
    struct node *left = parse_and(p);
    while (jj_at_name(p, "or")) {
        uint32_t line = jj_peek(p)->line;
        jj_next(p);
        left = binary_node(p, N_OR, 0, line, left, parse_and(p));
    }
    return left;
}

struct node *jj_parse_expression(struct parser *p, bool with_condition) {
    if (!jj_nest(p)) {
        return &p->spare;
    }
    struct node *unknown = p->unknown;
    struct node *value = parse_or(p);
    while (with_condition && jj_at_name(p, "if")) {
        uint32_t line = jj_peek(p)->line;
        jj_next(p);
        struct node *condition = parse_or(p);
        struct node *otherwise = jj_skip_name(p, "else") ? jj_parse_expression(p, true) : NULL;
        struct node *n = binary_node(p, N_COND, 0, line, value, condition);
        n->u.three.c = otherwise;
        if (otherwise) {
            jj_adopt(p, n, otherwise);
        }
        p->unknown = unknown; /* what is unknown in here counts when it is run */
        value = n;
    }
    p->nesting--;
    return value;
}

static bool tuple_ends(const struct parser *p, const char *stop) {
    enum token_kind k = jj_peek(p)->kind;
    return k == T_VARIABLE_END || k == T_BLOCK_END || k == T_RPAREN || k == T_EOF || (stop && jj_at_name(p, stop));
}

struct node *jj_parse_tuple(struct parser *p, bool with_condition, bool empty, const char *stop) {
    uint32_t line = jj_peek(p)->line;
    struct node *first = NULL, *tuple = NULL;
    size_t cap = 0;
    for (;;) {
        if (tuple_ends(p, stop)) {
            break;
        }
        struct node *item = jj_parse_expression(p, with_condition);
        if (tuple) {
            jj_nodes_push(p, tuple, &tuple->u.list, &cap, item);
        } else {
            first = item;
        }
        if (!jj_skip(p, T_COMMA)) {
            break;
        }
        if (!tuple) {
            tuple = jj_node(p, N_TUPLE, line);
            jj_nodes_push(p, tuple, &tuple->u.list, &cap, first);
        }
    }
    if (tuple) {
        return tuple;
    }
    if (first) {
        return first;
    }
    if (!empty) {
        jj_parse_fail(p, "expected an expression, got %s", jj_token_name(jj_peek(p)->kind));
        return &p->spare;
    }
    return jj_node(p, N_TUPLE, line);
}

static struct node *parse_list(struct parser *p) {
    struct node *n = jj_node(p, N_LIST, jj_peek(p)->line);
    size_t cap = 0;
    jj_expect(p, T_LBRACKET);
    while (!p->failed && jj_peek(p)->kind != T_RBRACKET) {
        if (n->u.list.n && (!jj_expect(p, T_COMMA) || jj_peek(p)->kind == T_RBRACKET)) {
            break;
        }
        jj_nodes_push(p, n, &n->u.list, &cap, jj_parse_expression(p, true));
    }
    jj_expect(p, T_RBRACKET);
    return n;
}

static struct node *parse_dict(struct parser *p) {
    struct node *n = jj_node(p, N_DICT, jj_peek(p)->line);
    struct nodes keys = {0}, values = {0};
    size_t keys_cap = 0, values_cap = 0;
    jj_expect(p, T_LBRACE);
    while (!p->failed && jj_peek(p)->kind != T_RBRACE) {
        if (keys.n && (!jj_expect(p, T_COMMA) || jj_peek(p)->kind == T_RBRACE)) {
            break;
        }
        jj_nodes_push(p, n, &keys, &keys_cap, jj_parse_expression(p, true));
        jj_expect(p, T_COLON);
        jj_nodes_push(p, n, &values, &values_cap, jj_parse_expression(p, true));
    }
    jj_expect(p, T_RBRACE);
    n->u.dict.keys = keys.items;
    n->u.dict.values = values.items;
    n->u.dict.n = values.n;
    return n;
}

/* Adjacent string literals are one. */
static struct node *parse_string(struct parser *p) {
    const struct token *t = jj_peek(p);
    size_t len = 0, count = 0;
    for (; t[count].kind == T_STRING; count++) {
        len += t[count].len;
    }
    const char *bytes = t->text;
    if (count > 1) {
        char *joined = jj_parse_alloc(p, len, 1);
        if (!joined) {
            return &p->spare;
        }
        bytes = joined;
        for (size_t i = 0; i < count; joined += t[i].len, i++) {
            memcpy(joined, t[i].text, t[i].len);
        }
    }
    p->at += count;
    return constant(p, t->line, value_str(jj_parse_str(p, bytes, len)));
}

static struct node *parse_number(struct parser *p) {
    const struct token *t = jj_peek(p);
    struct value v;
    jj_next(p);
    if (!jj_number_literal(&p->t->arena, t->text, t->len, t->kind == T_FLOAT, &v)) {
        jj_parse_fail(p, "a number is too large");
        return &p->spare;
    }
    return constant(p, t->line, v);
}

static void note_use(struct parser *p, uint32_t name) {
    p->saw_loop |= name == NAME_LOOP;
    p->saw_caller |= name == NAME_CALLER;
    p->saw_varargs |= name == NAME_VARARGS;
    p->saw_kwargs |= name == NAME_KWARGS;
}

static struct node *parse_name(struct parser *p) {
    static const struct {
        const char *name;
        struct value value;
    } constants[] = {
        {"true", {.type = V_BOOL, .u.b = true}},
        {"True", {.type = V_BOOL, .u.b = true}},
        {"false", {.type = V_BOOL, .u.b = false}},
        {"False", {.type = V_BOOL, .u.b = false}},
        {"none", {.type = V_NONE}},
        {"None", {.type = V_NONE}},
    };
    const struct token *t = jj_peek(p);
    for (size_t i = 0; i < sizeof constants / sizeof constants[0]; i++) {
        if (jj_skip_name(p, constants[i].name)) {
            return constant(p, t->line, constants[i].value);
        }
    }
    struct node *n = jj_node(p, N_NAME, t->line);
    n->u.name = jj_intern(p, t->text, t->len);
    note_use(p, n->u.name);
    p->t->well_known_used |= n->u.name < N_WELL_KNOWN_NAMES ? 1u << n->u.name : 0;
    jj_next(p);
    return n;
}

struct node *jj_parse_primary(struct parser *p) {
    const struct token *t = jj_peek(p);
    struct node *n;
    switch (t->kind) {
    case T_NAME:
        return parse_name(p);
    case T_STRING:
        return parse_string(p);
    case T_INTEGER:
    case T_FLOAT:
        return parse_number(p);
    case T_LPAREN:
        jj_next(p);
        n = jj_parse_tuple(p, true, true, NULL);
        jj_expect(p, T_RPAREN);
        return n;
    case T_LBRACKET:
        return parse_list(p);
    case T_LBRACE:
        return parse_dict(p);
    default:
        jj_parse_fail(p, "unexpected %s", jj_token_name(t->kind));
        return &p->spare;
    }
}

/* What stands in [ ]: an expression or from:to:step. */
static struct node *parse_subscript(struct parser *p) {
    uint32_t line = jj_peek(p)->line;
    struct node *part[3] = {NULL, NULL, NULL};
    if (jj_peek(p)->kind != T_COLON) {
        part[0] = jj_parse_expression(p, true);
        if (jj_peek(p)->kind != T_COLON) {
            return part[0];
        }
    }
    jj_expect(p, T_COLON);
    for (int i = 1; i < 3; i++) {
        enum token_kind k = jj_peek(p)->kind;
        if (k != T_COLON && k != T_RBRACKET && k != T_COMMA) {
            part[i] = jj_parse_expression(p, true);
        }
        if (i == 1 && !jj_skip(p, T_COLON)) {
            break;
        }
    }
    struct node *n = jj_node(p, N_SLICE, line);
    n->u.three.a = part[0];
    n->u.three.b = part[1];
    n->u.three.c = part[2];
    for (int i = 0; i < 3; i++) {
        if (part[i]) {
            jj_adopt(p, n, part[i]);
        }
    }
    return n;
}

static struct node *parse_member(struct parser *p, struct node *object) {
    uint32_t line = jj_peek(p)->line;
    jj_expect(p, T_DOT);
    const struct token *t = jj_peek(p);
    if (t->kind == T_INTEGER) {
        return binary_node(p, N_GETITEM, 0, line, object, parse_number(p));
    }
    if (t->kind != T_NAME) {
        jj_parse_fail(p, "expected a name or number after '.'");
        return &p->spare;
    }
    struct node *n = jj_node(p, N_GETATTR, line);
    n->u.member.object = object;
    n->u.member.name = jj_parse_str(p, t->text, t->len);
    jj_adopt(p, n, object);
    jj_next(p);
    return n;
}

static struct node *parse_index(struct parser *p, struct node *object) {
    uint32_t line = jj_peek(p)->line;
    jj_expect(p, T_LBRACKET);
    struct node *key = NULL, *tuple = NULL;
    size_t cap = 0;
    while (!p->failed && jj_peek(p)->kind != T_RBRACKET) {
        if (key) {
            jj_expect(p, T_COMMA);
            if (!tuple) {
                tuple = jj_node(p, N_TUPLE, line);
                jj_nodes_push(p, tuple, &tuple->u.list, &cap, key);
            }
        }
        key = parse_subscript(p);
        if (tuple) {
            jj_nodes_push(p, tuple, &tuple->u.list, &cap, key);
        }
    }
    jj_expect(p, T_RBRACKET);
    if (!key) {
        jj_parse_fail(p, "expected a subscript");
        return &p->spare;
    }
    return binary_node(p, N_GETITEM, 0, line, object, tuple ? tuple : key);
}

void jj_parse_arguments(struct parser *p, struct node *parent, struct arguments *out) {
    size_t cap = 0, keywords_cap = 0;
    jj_expect(p, T_LPAREN);
    for (bool first = true; !p->failed && jj_peek(p)->kind != T_RPAREN; first = false) {
        if (!first && (!jj_expect(p, T_COMMA) || jj_peek(p)->kind == T_RPAREN)) {
            break;
        }
        const struct token *t = jj_peek(p);
        struct node **star = t->kind == T_MUL ? &out->star : t->kind == T_POW ? &out->star_star : NULL;
        if (star) {
            jj_next(p);
            if (*star || (star == &out->star && out->star_star)) {
                jj_parse_fail(p, "invalid syntax for a function call");
                return;
            }
            *star = jj_parse_expression(p, true);
            jj_adopt(p, parent, *star);
        } else if (t->kind == T_NAME && jj_peek_next(p)->kind == T_ASSIGN) {
            struct keyword k = {.name = jj_parse_str(p, t->text, t->len), .name_id = jj_intern(p, t->text, t->len)};
            jj_next(p);
            jj_next(p);
            k.value = jj_parse_expression(p, true);
            jj_adopt(p, parent, k.value);
            if (out->star_star || out->n_keywords >= JJ_MAX_ARGUMENTS) {
                jj_parse_fail(p, "invalid syntax for a function call");
                return;
            }
            struct keyword *keywords =
                jj_parse_grow(p, out->keywords, out->n_keywords, &keywords_cap, sizeof *keywords);
            if (!keywords) {
                return;
            }
            out->keywords = keywords;
            out->keywords[out->n_keywords++] = k;
        } else {
            if (out->star || out->star_star || out->n_keywords || out->positional.n >= JJ_MAX_ARGUMENTS) {
                jj_parse_fail(p, "invalid syntax for a function call");
                return;
            }
            jj_nodes_push(p, parent, &out->positional, &cap, jj_parse_expression(p, true));
        }
    }
    jj_expect(p, T_RPAREN);
}

static struct node *parse_call(struct parser *p, struct node *callee) {
    struct node *n = jj_node(p, N_CALL, jj_peek(p)->line);
    struct arguments *arguments = jj_parse_alloc(p, 1, sizeof *arguments);
    if (!arguments) {
        return &p->spare;
    }
    n->u.call.callee = callee;
    n->u.call.arguments = arguments;
    jj_adopt(p, n, callee);
    jj_parse_arguments(p, n, arguments);
    return n;
}

struct node *jj_parse_postfix(struct parser *p, struct node *n) {
    while (!p->failed) {
        switch (jj_peek(p)->kind) {
        case T_DOT:
            n = parse_member(p, n);
            break;
        case T_LBRACKET:
            n = parse_index(p, n);
            break;
        case T_LPAREN:
            n = parse_call(p, n);
            break;
        default:
            return n;
        }
    }
    return n;
}

/*
 * The name of a filter or test, which may have dots; looked up at once. An unknown one fails when compiled, but inside
 * conditions only when it is run, so that a template can be written for several engines.
 */
static bool parse_function_name(struct parser *p, struct node *n, bool is_filter) {
    const struct token *t = jj_peek(p);
    if (!jj_expect(p, T_NAME)) {
        return false;
    }
    size_t len = t->len;
    while (jj_skip(p, T_DOT)) {
        const struct token *part = jj_peek(p);
        jj_expect(p, T_NAME);
        len = (size_t)(part->text + part->len - t->text);
    }
    n->u.call.function = is_filter ? jj_find_filter(t->text, len) : jj_find_test(t->text, len);
    if (!n->u.call.function) {
        n->u.call.unknown = jj_parse_str(p, t->text, len < 64 ? len : 64);
        if (!p->conditions && !p->unknown) {
            p->unknown = n;
        }
    }
    return !p->failed;
}

static struct node *parse_filter(struct parser *p, struct node *value) {
    struct node *n = jj_node(p, N_FILTER, jj_peek(p)->line);
    struct arguments *arguments = jj_parse_alloc(p, 1, sizeof *arguments);
    if (!arguments || !parse_function_name(p, n, true)) {
        return &p->spare;
    }
    n->u.call.callee = value;
    n->u.call.arguments = arguments;
    if (value) {
        jj_adopt(p, n, value);
    }
    if (jj_peek(p)->kind == T_LPAREN) {
        jj_parse_arguments(p, n, arguments);
    }
    return n;
}

/* Does an argument without brackets follow the name of a test? */
static bool test_argument_follows(const struct parser *p) {
    switch (jj_peek(p)->kind) {
    case T_NAME:
        return !jj_at_name(p, "else") && !jj_at_name(p, "or") && !jj_at_name(p, "and");
    case T_STRING:
    case T_INTEGER:
    case T_FLOAT:
    case T_LBRACKET:
    case T_LBRACE:
        return true;
    default:
        return false;
    }
}

static struct node *parse_test(struct parser *p, struct node *value) {
    struct node *n = jj_node(p, N_TEST, jj_peek(p)->line);
    struct arguments *arguments = jj_parse_alloc(p, 1, sizeof *arguments);
    if (!arguments) {
        return &p->spare;
    }
    jj_expect_name(p, "is");
    bool negated = jj_skip_name(p, "not");
    if (!parse_function_name(p, n, false)) {
        return &p->spare;
    }
    n->u.call.negated = negated;
    n->u.call.callee = value;
    n->u.call.arguments = arguments;
    jj_adopt(p, n, value);
    if (jj_peek(p)->kind == T_LPAREN) {
        jj_parse_arguments(p, n, arguments);
    } else if (test_argument_follows(p)) {
        if (jj_at_name(p, "is")) {
            jj_parse_fail(p, "tests cannot be chained with 'is'");
            return &p->spare;
        }
        size_t cap = 0;
        jj_nodes_push(p, n, &arguments->positional, &cap, jj_parse_postfix(p, jj_parse_primary(p)));
    }
    return n;
}

/* | filter, is test and (call) behind an expression. */
static struct node *parse_filters_and_tests(struct parser *p, struct node *n) {
    while (!p->failed) {
        if (jj_skip(p, T_PIPE)) {
            n = parse_filter(p, n);
        } else if (jj_at_name(p, "is")) {
            n = parse_test(p, n);
        } else if (jj_peek(p)->kind == T_LPAREN) {
            n = parse_call(p, n);
        } else {
            break;
        }
    }
    return n;
}

struct node *jj_parse_filter_chain(struct parser *p) {
    struct node *n = parse_filter(p, NULL);
    while (!p->failed && jj_skip(p, T_PIPE)) {
        n = parse_filter(p, n);
    }
    return n;
}

static struct node *parse_unary(struct parser *p, bool with_filter) {
    const struct token *t = jj_peek(p);
    struct node *n;
    if (t->kind == T_SUB || t->kind == T_ADD) {
        if (!jj_nest(p)) {
            return &p->spare;
        }
        jj_next(p);
        n = unary_node(p, t->kind == T_SUB ? N_NEG : N_POS, t->line, parse_unary(p, false));
        p->nesting--;
    } else {
        n = jj_parse_primary(p);
    }
    n = jj_parse_postfix(p, n);
    return with_filter ? parse_filters_and_tests(p, n) : n;
}
