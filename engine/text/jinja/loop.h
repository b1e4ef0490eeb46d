/* A running for loop, which the template sees as `loop`. */
#ifndef INFERD_JINJA_LOOP_H
#define INFERD_JINJA_LOOP_H

#include "text/jinja/value.h"

#include <stdbool.h>

struct loop {
    const struct node *node;  /* the for statement */
    struct scope *scope;      /* around it */
    const struct seq *source; /* what it goes over */
    size_t source_at;         /* next one to look at, when there is a filter */
    struct seq *passed;       /* what the filter let through so far; NULL: no filter, all of source */
    size_t index0;
    size_t depth0;
    struct value changed; /* V_TUPLE of what changed() saw last, V_MISSING at first */
};

/* Is there an item `index`? Evaluates the filter as far as needed, not further: the body may change what it looks at.
 */
bool jj_loop_has(struct render *r, struct loop *l, size_t index);
struct value jj_loop_item(const struct loop *l, size_t index);
size_t jj_loop_length(struct render *r, struct loop *l);

/* loop.index and the like; V_MISSING if there is no such attribute. */
struct value jj_loop_attribute(struct render *r, struct loop *l, const struct str *name);
/* loop(iterable) of a recursive loop: the text of the loop run over it. */
struct value jj_loop_recurse(struct render *r, struct loop *l, struct value iterable);

#endif
