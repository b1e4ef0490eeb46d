#include "model_file/internal.h"

#include <stdlib.h>
#include <string.h>

static int compare(const char *a, size_t a_len, const char *b, size_t b_len) {
    size_t n = a_len < b_len ? a_len : b_len;
    int c = n ? memcmp(a, b, n) : 0;
    return c ? c : (a_len > b_len) - (a_len < b_len);
}

static int compare_slots(const void *a, const void *b) {
    const struct name_slot *x = a, *y = b;
    int c = compare(x->name, x->len, y->name, y->len);
    return c ? c : (x->index > y->index) - (x->index < y->index);
}

void name_index_sort(struct name_index *x) {
    if (x->n > 1) {
        qsort(x->slots, x->n, sizeof *x->slots, compare_slots);
    }
}

const struct name_slot *name_index_duplicate(const struct name_index *x) {
    for (size_t i = 1; i < x->n; i++) {
        const struct name_slot *a = &x->slots[i - 1], *b = &x->slots[i];
        if (compare(a->name, a->len, b->name, b->len) == 0) {
            return b;
        }
    }
    return NULL;
}

bool name_index_find(const struct name_index *x, const char *name, size_t len, size_t *index) {
    size_t low = 0, high = x->n;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        int c = compare(x->slots[mid].name, x->slots[mid].len, name, len);
        if (c == 0) {
            *index = x->slots[mid].index;
            return true;
        }
        if (c < 0) {
            low = mid + 1;
        } else {
            high = mid;
        }
    }
    return false;
}
