/* Running the tree: what expressions, statements and calls need of one another. */
#ifndef INFERD_JINJA_EVAL_H
#define INFERD_JINJA_EVAL_H

#include "text/jinja/ast.h"
#include "text/jinja/functions.h"
#include "text/jinja/render.h"

enum flow { FLOW_NEXT, FLOW_BREAK, FLOW_CONTINUE };

struct value jj_eval(struct render *r, const struct node *n);
enum flow jj_exec(struct render *r, const struct nodes *body);
/* Run the statements and return what they print. */
const struct str *jj_capture(struct render *r, const struct nodes *body);

/* A scope inside the one that is current; jj_scope_end goes back. */
struct scope *jj_scope_begin(struct render *r, struct scope *parent);
/* Make the names undefined in the current scope. */
void jj_hide(struct render *r, const struct hidden *hidden);
void jj_bind(struct render *r, uint32_t name, struct value v); /* in the current scope */
struct value jj_lookup(struct render *r, uint32_t name);       /* V_MISSING if not bound */
/* The scope as a macro keeps it: it and all around it stay as they are. */
struct scope *jj_scope_capture(struct render *r);
void jj_assign(struct render *r, const struct target *t, struct value v);

/* The arguments of a call, evaluated; `caller` (V_MISSING: none) is added as keyword argument. */
bool jj_eval_arguments(struct render *r, const struct arguments *a, struct value caller, struct call *out);

struct value jj_call_macro(struct render *r, struct macro *m, const struct call *call);
struct value jj_call_global(struct render *r, uint32_t function, const struct call *call);

/* Run a for loop over a value. */
void jj_run_loop(struct render *r, const struct node *n, struct value iterable, size_t depth0);

#endif
