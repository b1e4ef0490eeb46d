/* What the two halves of the parser (statements, expressions) share. Sticky errors, as in value.h. */
#ifndef INFERD_JINJA_PARSER_H
#define INFERD_JINJA_PARSER_H

#include "text/jinja/ast.h"
#include "text/jinja/lexer.h"

#include <inferd/error.h>

struct parser {
    struct jinja *t;
    const struct token *tokens;
    size_t at;
    size_t last; /* the T_EOF */
    unsigned nesting;
    bool failed;
    struct error *err;
    struct node spare; /* what functions return on failure */

    /* What the macro or loop that is being read uses; saved and restored around each. */
    bool saw_caller, saw_varargs, saw_kwargs, saw_loop;
    unsigned conditions;  /* open if statements */
    struct node *unknown; /* first unknown filter or test outside of conditions */
    unsigned loops;       /* open for loops of this macro, for break and continue */
};

static inline const struct token *jj_peek(const struct parser *p) {
    return &p->tokens[p->at];
}
static inline const struct token *jj_peek_next(const struct parser *p) {
    return &p->tokens[p->at < p->last ? p->at + 1 : p->last];
}
static inline void jj_next(struct parser *p) {
    p->at += p->at < p->last;
}

/* Fail at the current token. */
void jj_parse_fail(struct parser *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void *jj_parse_alloc(struct parser *p, size_t n, size_t size); /* cleared; NULL on failure */
/* Room for one more behind items[n]: the array, moved when it grows; NULL on failure. */
void *jj_parse_grow(struct parser *p, void *items, size_t n, size_t *cap, size_t size);
struct node *jj_node(struct parser *p, enum node_kind kind, uint32_t line);
/* Count the child's height into the node's. */
void jj_adopt(struct parser *p, struct node *n, const struct node *child);
void jj_nodes_push(struct parser *p, struct node *parent, struct nodes *list, size_t *cap, struct node *n);

bool jj_at_name(const struct parser *p, const char *name);
bool jj_skip(struct parser *p, enum token_kind kind);
bool jj_skip_name(struct parser *p, const char *name);
bool jj_expect(struct parser *p, enum token_kind kind);
bool jj_expect_name(struct parser *p, const char *name);
uint32_t jj_intern(struct parser *p, const char *bytes, size_t len);
const struct str *jj_parse_str(struct parser *p, const char *bytes, size_t len);
/* One level of nesting more; false (failed) when too deep. */
bool jj_nest(struct parser *p);

struct node *jj_parse_expression(struct parser *p, bool with_condition);
/* expression or tuple without brackets; `empty` lets () through; `stop` (a name) ends a tuple too. */
struct node *jj_parse_tuple(struct parser *p, bool with_condition, bool empty, const char *stop);
struct node *jj_parse_primary(struct parser *p);
/* .a [b] (c) behind a primary. */
struct node *jj_parse_postfix(struct parser *p, struct node *n);
/* filter(arguments) | filter ... of a filter block or set block; the innermost callee is NULL. */
struct node *jj_parse_filter_chain(struct parser *p);
void jj_parse_arguments(struct parser *p, struct node *parent, struct arguments *out);

#endif
