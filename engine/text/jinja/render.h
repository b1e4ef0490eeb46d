/* The state of one render: arena, budget, the first error, variables, where the output goes. One thread. */
#ifndef INFERD_JINJA_RENDER_H
#define INFERD_JINJA_RENDER_H

#include "text/jinja/arena.h"
#include "text/jinja/limits.h"
#include "text/jinja/str.h"
#include "text/jinja/value.h"

#include <inferd/error.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct jinja;

struct binding {
    uint32_t name;
    struct value value;
};

/* Names bound by a loop iteration, a macro call, a with block. The outermost names lie in render.globals. */
struct scope {
    struct scope *parent; /* NULL: the globals */
    struct binding *bindings;
    uint32_t n, cap;
    bool captured; /* a macro refers to it: it must outlive its block */
};

struct render {
    struct arena arena;
    const struct jinja *template;
    struct value *globals; /* [names of the template] */
    struct scope *scope;   /* NULL: the globals */
    struct sb *out;        /* where text goes now */
    struct value block;    /* what the innermost filter of a filter or set block is given */
    int64_t now;

    uint64_t steps_left;
    uint64_t steps_to_clock; /* look at the clock when steps_left falls below this */
    uint64_t deadline_ns;
    size_t output_limit;

    uint32_t depth; /* evaluations inside one another */
    uint32_t line;  /* of the statement or call that runs */
    bool failed;
    struct error *err;

    /* What functions return when an allocation failed: valid, never looked at. */
    struct str spare_str;
    struct seq spare_seq;
    struct dict spare_dict;
};

/* Memory of the render; NULL and r->failed when the budget or the memory is exhausted. */
void *jj_alloc(struct render *r, size_t size);
void *jj_array(struct render *r, size_t n, size_t size);
void *jj_grow(struct render *r, void *p, size_t old_size, size_t new_size);

/* Take n steps from the budget. False when it is exhausted (or something failed before). */
bool jj_steps_slow(struct render *r);
static inline bool jj_steps(struct render *r, uint64_t n) {
    if (r->steps_left < n) {
        r->steps_left = 0;
        return jj_steps_slow(r);
    }
    r->steps_left -= n;
    return r->steps_left >= r->steps_to_clock ? !r->failed : jj_steps_slow(r);
}
/* Steps for work on `len` bytes. */
static inline bool jj_steps_bytes(struct render *r, size_t len) {
    return jj_steps(r, 1 + len / 32);
}

/* One evaluation deeper; false when that is too deep. Every success needs its jj_leave. */
bool jj_enter(struct render *r);
static inline void jj_leave(struct render *r) {
    r->depth--;
}

/* Keep the first error: ERROR_INVALID with the line of the template. */
void jj_fail(struct render *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
