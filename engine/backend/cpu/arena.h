/*
 * Memory for packed weights: pieces side by side in large chunks that the system is asked to back by huge pages, for
 * reading a model goes through more of it than the processor can hold addresses of small pages. A piece lives until
 * arena_free(); a chunk goes back to the system with its last piece. One thread at a time.
 */
#ifndef CPU_ARENA_H
#define CPU_ARENA_H

#include <stddef.h>

struct arena {
    struct arena_chunk *chunks; /* the one in use first; NULL at the beginning */
};

/* 64-byte aligned and zeroed; NULL without memory. */
void *arena_alloc(struct arena *a, size_t bytes);
void arena_free(struct arena *a, void *p); /* NULL is fine */
/* Everything, pieces still in use as well. */
void arena_clear(struct arena *a);

#endif
