/* Live choices by engine id: id = serial << 20 | slot, so a late event of a dead one finds nobody. Loop thread only. */
#ifndef INFERD_CHOICE_TABLE_H
#define INFERD_CHOICE_TABLE_H

#include <inferd/error.h>
#include <stddef.h>
#include <stdint.h>

struct choice;

struct choice_table {
    struct choice **slots; /* [cap], owned, NULL = free */
    size_t cap;
    size_t next; /* where to look for a free one */
    uint64_t serial;
};

/* Gives the choice its id. */
int choice_table_add(struct choice_table *t, struct choice *c, struct error *err);
/* It will be looked for soon: ask memory for it. */
void choice_table_prefetch(const struct choice_table *t, uint64_t id);
/* NULL: none has it any more. */
struct choice *choice_table_find(const struct choice_table *t, uint64_t id);
/* Takes its id away. */
void choice_table_remove(struct choice_table *t, struct choice *c);

#endif
