#include "text/adjacency.h"

#include "text/unicode_class.h"

#include <stdlib.h>

static size_t slot_of(const struct adjacency *a, uint64_t key) {
    size_t i = (size_t)(key * 0x9e3779b97f4a7c15u >> 20) & a->mask;
    while (a->slots[i] != 0 && a->slots[i] != key) {
        i = (i + 1) & a->mask;
    }
    return i;
}

static bool grow(struct adjacency *a) {
    struct adjacency bigger = {.mask = a->slots ? a->mask * 2 + 1 : 4095, .n = a->n};
    bigger.slots = calloc(bigger.mask + 1, sizeof *bigger.slots);
    if (!bigger.slots) {
        return false;
    }
    for (size_t i = 0; a->slots && i <= a->mask; i++) {
        if (a->slots[i]) {
            bigger.slots[slot_of(&bigger, a->slots[i])] = a->slots[i];
        }
    }
    free(a->slots);
    a->slots = bigger.slots;
    a->mask = bigger.mask;
    return true;
}

static uint64_t pair_key(uint32_t left, uint32_t right) {
    return ((uint64_t)left << 32 | right) + 1;
}

static bool add(struct adjacency *a, uint32_t left, uint32_t right) {
    if (left < 128 && right < 128) {
        a->ascii[left][right / 64] |= (uint64_t)1 << (right % 64);
        return true;
    }
    if (a->n * 2 >= a->mask && !grow(a)) {
        return false;
    }
    uint64_t key = pair_key(left, right);
    size_t i = slot_of(a, key);
    a->n += a->slots[i] == 0;
    a->slots[i] = key;
    return true;
}

int adjacency_build(struct adjacency *a, const struct vocab *v, struct error *err) {
    *a = (struct adjacency){0};
    if (!grow(a)) {
        return error_memory(err);
    }
    for (size_t id = 0; id < v->n; id++) {
        if (!(v->tokens[id].flags & TOKEN_ORDINARY) || v->tokens[id].key_len == 0) {
            continue;
        }
        struct span key = vocab_key(v, (uint32_t)id);
        uint32_t left = utf8_get(key.data);
        for (size_t i = utf8_length(key.data[0]); i < key.len; i += utf8_length(key.data[i])) {
            uint32_t right = utf8_get(key.data + i);
            if (!add(a, left, right)) {
                return error_memory(err);
            }
            left = right;
        }
    }
    return 0;
}

void adjacency_free(struct adjacency *a) {
    free(a->slots);
    *a = (struct adjacency){0};
}

size_t adjacency_part(const struct adjacency *a, const char *text, size_t len) {
    if (!a->slots || len == 0) {
        return len;
    }
    uint32_t left = utf8_get(text);
    for (size_t i = utf8_length(text[0]); i < len; i += utf8_length(text[i])) {
        uint32_t right = utf8_get(text + i);
        bool met = left < 128 && right < 128 ? a->ascii[left][right / 64] >> (right % 64) & 1
                                             : a->slots[slot_of(a, pair_key(left, right))] != 0;
        if (!met) {
            return i;
        }
        left = right;
    }
    return len;
}
