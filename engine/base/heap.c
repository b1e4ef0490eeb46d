#include "base/heap.h"

/* Of two roots, the later becomes the first child of the other. */
static struct heap_node *meld(const struct heap *h, struct heap_node *a, struct heap_node *b) {
    if (h->before(b, a)) {
        struct heap_node *t = a;
        a = b;
        b = t;
    }
    b->sibling = a->child;
    if (b->sibling) {
        b->sibling->prev = b;
    }
    b->prev = a;
    a->child = b;
    return a;
}

/* A list of siblings becomes one tree: pairs from the left, then all of them from the right. */
static struct heap_node *combine(const struct heap *h, struct heap_node *first) {
    struct heap_node *pairs = NULL; /* the last pair first, chained by sibling */
    while (first) {
        struct heap_node *a = first, *b = a->sibling;
        first = b ? b->sibling : NULL;
        a = b ? meld(h, a, b) : a;
        a->sibling = pairs;
        pairs = a;
    }
    struct heap_node *root = pairs;
    pairs = pairs ? pairs->sibling : NULL;
    while (pairs) {
        struct heap_node *next = pairs->sibling;
        root = meld(h, root, pairs);
        pairs = next;
    }
    if (root) {
        root->sibling = root->prev = NULL;
    }
    return root;
}

void heap_insert(struct heap *h, struct heap_node *node) {
    *node = (struct heap_node){0};
    h->root = h->root ? meld(h, h->root, node) : node;
}

void heap_remove(struct heap *h, struct heap_node *node) {
    struct heap_node *below = combine(h, node->child);
    if (node == h->root) {
        h->root = below;
    } else {
        if (node->prev->child == node) {
            node->prev->child = node->sibling;
        } else {
            node->prev->sibling = node->sibling;
        }
        if (node->sibling) {
            node->sibling->prev = node->prev;
        }
        h->root = below ? meld(h, h->root, below) : h->root;
    }
    *node = (struct heap_node){0};
}
