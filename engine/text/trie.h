/* A trie over byte strings: one step a byte, edges in one hash table. Built by one thread, immutable afterwards. */
#ifndef INFERD_TEXT_TRIE_H
#define INFERD_TEXT_TRIE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct trie_edge {
    uint64_t key; /* node << 8 | byte, plus one; 0 = free */
    uint32_t child;
};

struct trie {
    struct trie_edge *edges; /* [mask + 1], owned */
    size_t mask, n_edges;
    uint32_t *value; /* [n_nodes], owned; 0 = no string ends here */
    uint32_t n_nodes, cap_nodes;
    uint32_t first[256]; /* the root's children, 0 = none */
};

/* The value of a string, 0 at first, to be set by the caller before the next call; NULL if there is no memory. len > 0.
 */
uint32_t *trie_at(struct trie *t, const char *bytes, size_t len);
void trie_free(struct trie *t);

size_t trie_edge_slot(const struct trie *t, uint64_t key);

/* The child of a node (the root is 0), 0 if there is none. */
static inline uint32_t trie_step(const struct trie *t, uint32_t node, unsigned char byte) {
    return node == 0 ? t->first[byte] : t->edges[trie_edge_slot(t, ((uint64_t)node << 8 | byte) + 1)].child;
}

#endif
