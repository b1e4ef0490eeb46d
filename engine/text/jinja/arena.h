/* Memory that is freed whole: for the tree of a template, and for everything that one render makes. Not thread-safe. */
#ifndef INFERD_JINJA_ARENA_H
#define INFERD_JINJA_ARENA_H

#include <stdbool.h>
#include <stddef.h>

struct arena_chunk;

struct arena {
    struct arena_chunk *chunks; /* newest first */
    char *at, *end;             /* free part of the newest chunk */
    size_t taken;               /* bytes of all chunks */
    size_t limit;               /* most bytes of all chunks */
    bool limited;               /* an allocation failed by the limit, not by the system */
};

void jj_arena_init(struct arena *a, size_t limit);
void jj_arena_free(struct arena *a);

/* `size` bytes, aligned for any type, not cleared; NULL over the limit or out of memory. */
void *jj_arena_alloc(struct arena *a, size_t size);

/* An array of `n` things of `size`; NULL also when the product overflows. */
void *jj_arena_array(struct arena *a, size_t n, size_t size);

/* Grow the block p from old_size to new_size bytes, in place when it is the newest one. NULL on failure (p stays
 * valid). */
void *jj_arena_grow(struct arena *a, void *p, size_t old_size, size_t new_size);

#endif
