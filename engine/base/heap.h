/*
 * An intrusive pairing heap (Fredman, Sedgewick, Sleator & Tarjan 1986): insert and first in O(1), removal of any node in
 * O(log n) amortised, no memory of its own. A node is in at most one heap, and its order must not change there.
 */
#ifndef INFERD_HEAP_H
#define INFERD_HEAP_H

#include <stdbool.h>
#include <stddef.h>

struct heap_node {
    struct heap_node *child;   /* its first */
    struct heap_node *sibling; /* the next one */
    struct heap_node *prev;    /* the sibling before; of a first child the parent; of the root NULL */
};

struct heap {
    struct heap_node *root;
    bool (*before)(const struct heap_node *a, const struct heap_node *b); /* a strict order */
};

void heap_insert(struct heap *h, struct heap_node *node);
void heap_remove(struct heap *h, struct heap_node *node); /* must be in it */
static inline struct heap_node *heap_first(const struct heap *h) { /* NULL when empty */
    return h->root;
}

#endif
