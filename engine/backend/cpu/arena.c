#include "arena.h"

#include <stdint.h>
#include <sys/mman.h>

enum {
    HUGE_PAGE = 2 << 20,
    CHUNK_BYTES = 32 << 20, /* address space; pages are taken when they are written */
};

struct arena_chunk {
    _Alignas(64) struct arena_chunk *next;
    size_t bytes, used, pieces;
};

static size_t round_up(size_t n, size_t to) {
    return (n + to - 1) / to * to;
}

/* `bytes`, a multiple of HUGE_PAGE, at a multiple of it: what is mapped too much at both ends goes back. */
static struct arena_chunk *map_chunk(size_t bytes) {
    char *p = mmap(NULL, bytes + HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) {
        return NULL;
    }
    size_t before = round_up((uintptr_t)p, HUGE_PAGE) - (uintptr_t)p, behind = HUGE_PAGE - before;
    if (before > 0) {
        munmap(p, before);
    }
    if (behind > 0) {
        munmap(p + before + bytes, behind);
    }
    (void)madvise(p + before, bytes, MADV_HUGEPAGE); /* small pages do as well */
    struct arena_chunk *c = (struct arena_chunk *)(void *)(p + before);
    c->bytes = bytes;
    c->used = sizeof *c;
    return c;
}

void *arena_alloc(struct arena *a, size_t bytes) {
    if (bytes > SIZE_MAX / 2) {
        return NULL;
    }
    bytes = round_up(bytes, 64);
    struct arena_chunk *c = a->chunks;
    if (!c || c->bytes - c->used < bytes) {
        size_t least = round_up(bytes + sizeof *c, HUGE_PAGE);
        c = map_chunk(least > CHUNK_BYTES ? least : CHUNK_BYTES);
        if (!c) {
            return NULL;
        }
        c->next = a->chunks;
        a->chunks = c;
    }
    void *p = (char *)c + c->used;
    c->used += bytes;
    c->pieces++;
    return p;
}

void arena_free(struct arena *a, void *p) {
    for (struct arena_chunk **at = &a->chunks; p && *at; at = &(*at)->next) {
        struct arena_chunk *c = *at;
        if ((char *)p > (char *)c && (char *)p < (char *)c + c->used) {
            if (--c->pieces == 0) {
                *at = c->next;
                munmap(c, c->bytes);
            }
            return;
        }
    }
}

void arena_clear(struct arena *a) {
    while (a->chunks) {
        struct arena_chunk *next = a->chunks->next;
        munmap(a->chunks, a->chunks->bytes);
        a->chunks = next;
    }
}
