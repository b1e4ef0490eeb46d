#include "text/trie.h"

#include <stdlib.h>
#include <string.h>

size_t trie_edge_slot(const struct trie *t, uint64_t key) {
    size_t i = (size_t)(key * 0x9e3779b97f4a7c15u >> 24) & t->mask;
    while (t->edges[i].key != 0 && t->edges[i].key != key) {
        i = (i + 1) & t->mask;
    }
    return i;
}

static bool grow_edges(struct trie *t) {
    struct trie bigger = {.mask = t->edges ? t->mask * 2 + 1 : 255};
    bigger.edges = calloc(bigger.mask + 1, sizeof *bigger.edges);
    if (!bigger.edges) {
        return false;
    }
    for (size_t i = 0; t->edges && i <= t->mask; i++) {
        if (t->edges[i].key) {
            bigger.edges[trie_edge_slot(&bigger, t->edges[i].key)] = t->edges[i];
        }
    }
    free(t->edges);
    t->edges = bigger.edges;
    t->mask = bigger.mask;
    return true;
}

/* A new node, 0 if there is no memory. */
static uint32_t new_node(struct trie *t) {
    t->n_nodes += t->n_nodes == 0; /* the root */
    if (t->n_nodes >= t->cap_nodes) {
        uint32_t cap = t->cap_nodes ? t->cap_nodes * 2 : 256;
        uint32_t *value = cap > t->cap_nodes ? realloc(t->value, cap * sizeof *value) : NULL;
        if (!value) {
            return 0;
        }
        memset(value + t->cap_nodes, 0, (cap - t->cap_nodes) * sizeof *value);
        t->value = value;
        t->cap_nodes = cap;
    }
    return t->n_nodes++;
}

static uint32_t make_child(struct trie *t, uint32_t node, unsigned char byte) {
    if (t->n_edges * 2 >= t->mask && !grow_edges(t)) {
        return 0;
    }
    uint32_t child = trie_step(t, node, byte);
    if (child || !(child = new_node(t))) {
        return child;
    }
    if (node == 0) {
        t->first[byte] = child;
    } else {
        uint64_t key = ((uint64_t)node << 8 | byte) + 1;
        t->edges[trie_edge_slot(t, key)] = (struct trie_edge){key, child};
        t->n_edges++;
    }
    return child;
}

uint32_t *trie_at(struct trie *t, const char *bytes, size_t len) {
    uint32_t node = 0;
    for (size_t i = 0; i < len; i++) {
        node = make_child(t, node, (unsigned char)bytes[i]);
        if (!node) {
            return NULL;
        }
    }
    return &t->value[node];
}

void trie_free(struct trie *t) {
    free(t->edges);
    free(t->value);
    *t = (struct trie){0};
}
