/* An intrusive doubly linked list: a circular ring through a head node. A node is in at most one list. */
#ifndef INFERD_LIST_H
#define INFERD_LIST_H

#include <stdbool.h>
#include <stddef.h>

struct list {
    struct list *prev, *next;
};

#define LIST_ENTRY(node, type, member) ((type *)(void *)((char *)(node) - offsetof(type, member)))
#define LIST_FOR_EACH(pos, head) for (struct list *pos = (head)->next; pos != (head); pos = pos->next)
/* Safe against removal of `pos` itself. */
#define LIST_FOR_EACH_SAFE(pos, tmp, head) \
    for (struct list *pos = (head)->next, *tmp = pos->next; pos != (head); pos = tmp, tmp = pos->next)

static inline void list_init(struct list *l) {
    l->prev = l->next = l;
}

static inline bool list_empty(const struct list *head) {
    return head->next == head;
}

static inline void list_insert_between(struct list *node, struct list *prev, struct list *next) {
    node->prev = prev;
    node->next = next;
    prev->next = node;
    next->prev = node;
}

static inline void list_push_back(struct list *head, struct list *node) {
    list_insert_between(node, head->prev, head);
}

static inline void list_push_front(struct list *head, struct list *node) {
    list_insert_between(node, head, head->next);
}

/* Removing a node that is in no list (initialised, alone) does nothing. */
static inline void list_remove(struct list *node) {
    node->prev->next = node->next;
    node->next->prev = node->prev;
    list_init(node);
}

#endif
