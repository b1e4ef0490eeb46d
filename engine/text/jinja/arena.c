#include "text/jinja/arena.h"

#include "base/checked.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define ALIGN 16u
#define FIRST_CHUNK ((size_t)16 << 10)
#define LARGEST_CHUNK ((size_t)1 << 20)

struct arena_chunk {
    struct arena_chunk *next;
    size_t size; /* with this header */
    _Alignas(ALIGN) char data[];
};

void jj_arena_init(struct arena *a, size_t limit) {
    *a = (struct arena){.limit = limit};
}

void jj_arena_free(struct arena *a) {
    for (struct arena_chunk *c = a->chunks; c;) {
        struct arena_chunk *next = c->next;
        free(c);
        c = next;
    }
    *a = (struct arena){0};
}

/* A new chunk with room for `size` bytes. Chunks grow with what is there, so that small renders stay small. */
static bool add_chunk(struct arena *a, size_t size) {
    size_t want = a->taken / 2;
    want = want < FIRST_CHUNK ? FIRST_CHUNK : want > LARGEST_CHUNK ? LARGEST_CHUNK : want;
    size_t total;
    if (!checked_add(size, sizeof(struct arena_chunk), &total)) {
        a->limited = true;
        return false;
    }
    total = total < want ? want : total;
    if (total > a->limit - a->taken) {
        total = size + sizeof(struct arena_chunk);
        if (total > a->limit - a->taken) {
            a->limited = true;
            return false;
        }
    }
    struct arena_chunk *c = malloc(total);
    if (!c) {
        return false;
    }
    c->next = a->chunks;
    c->size = total;
    a->chunks = c;
    a->taken += total;
    a->at = c->data;
    a->end = (char *)c + total;
    return true;
}

void *jj_arena_alloc(struct arena *a, size_t size) {
    size_t need = size ? size : 1;
    if (need > SIZE_MAX / 2) {
        a->limited = true;
        return NULL;
    }
    need = (need + ALIGN - 1) & ~(size_t)(ALIGN - 1);
    if (need > (size_t)(a->end - a->at) && !add_chunk(a, need)) {
        return NULL;
    }
    void *p = a->at;
    a->at += need;
    return p;
}

void *jj_arena_array(struct arena *a, size_t n, size_t size) {
    size_t total;
    if (!checked_mul(n, size, &total)) {
        a->limited = true;
        return NULL;
    }
    return jj_arena_alloc(a, total);
}

void *jj_arena_grow(struct arena *a, void *p, size_t old_size, size_t new_size) {
    size_t old = ((old_size ? old_size : 1) + ALIGN - 1) & ~(size_t)(ALIGN - 1);
    if (p && (char *)p + old == a->at && new_size <= (size_t)(a->end - (char *)p)) {
        size_t grown = (new_size + ALIGN - 1) & ~(size_t)(ALIGN - 1);
        if (grown <= (size_t)(a->end - (char *)p)) {
            a->at = (char *)p + grown;
            return p;
        }
    }
    void *bigger = jj_arena_alloc(a, new_size);
    if (bigger && p) {
        memcpy(bigger, p, old_size);
    }
    return bigger;
}
