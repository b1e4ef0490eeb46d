#include "choice_table.h"

#include "request.h"

#include <stdlib.h>
#include <string.h>

#define SLOT_BITS 20

int choice_table_add(struct choice_table *t, struct choice *c, struct error *err) {
    size_t tried = 0;
    while (tried < t->cap && t->slots[t->next]) {
        t->next = (t->next + 1) % t->cap;
        tried++;
    }
    if (tried == t->cap) {
        size_t cap = t->cap ? t->cap * 2 : 64;
        struct choice **slots = cap < (size_t)1 << SLOT_BITS ? realloc(t->slots, cap * sizeof *slots) : NULL;
        if (!slots) {
            return error_memory(err);
        }
        memset(slots + t->cap, 0, (cap - t->cap) * sizeof *slots);
        t->next = t->cap;
        t->slots = slots;
        t->cap = cap;
    }
    t->slots[t->next] = c;
    c->id = ++t->serial << SLOT_BITS | t->next;
    return 0;
}

void choice_table_prefetch(const struct choice_table *t, uint64_t id) {
    size_t slot = id & ((1u << SLOT_BITS) - 1);
    if (slot < t->cap && t->slots[slot]) {
        __builtin_prefetch(t->slots[slot], 1);
        __builtin_prefetch(&t->slots[slot]->shown, 1);
    }
}

struct choice *choice_table_find(const struct choice_table *t, uint64_t id) {
    size_t slot = id & ((1u << SLOT_BITS) - 1);
    struct choice *c = slot < t->cap ? t->slots[slot] : NULL;
    return c && c->id == id ? c : NULL;
}

void choice_table_remove(struct choice_table *t, struct choice *c) {
    t->slots[c->id & ((1u << SLOT_BITS) - 1)] = NULL;
    c->id = 0;
}
