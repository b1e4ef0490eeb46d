#include "kv_cache.h"

#include <assert.h>
#include <stdlib.h>

int kv_cache_init(struct kv_cache *c, size_t n_blocks, size_t block_size, struct error *err) {
    if (n_blocks == 0 || block_size == 0 || n_blocks > (size_t)INT32_MAX / block_size) {
        return error_set(err, ERROR_INVALID, "a KV cache of %zu blocks of %zu tokens is out of range", n_blocks,
                         block_size);
    }
    struct kv_cache made = {.n_blocks = n_blocks, .block_size = block_size, .n_free = n_blocks};
    made.free_stack = calloc(n_blocks, sizeof *made.free_stack);
    made.refs = calloc(n_blocks, sizeof *made.refs);
    if (!made.free_stack || !made.refs) {
        kv_cache_destroy(&made);
        return error_memory(err);
    }
    /* Low indices first: a lightly loaded engine touches only the first pages of the reserved memory. */
    for (size_t i = 0; i < n_blocks; i++) {
        made.free_stack[i] = (int32_t)(n_blocks - 1 - i);
    }
    *c = made;
    return 0;
}

void kv_cache_destroy(struct kv_cache *c) {
    if (!c) {
        return;
    }
    free(c->free_stack);
    free(c->refs);
    *c = (struct kv_cache){0};
}

size_t kv_cache_used(const struct kv_cache *c) {
    return c->n_blocks - c->n_free;
}

size_t kv_cache_blocks_for(const struct kv_cache *c, size_t n_tokens) {
    return n_tokens / c->block_size + (n_tokens % c->block_size != 0);
}

bool kv_cache_take(struct kv_cache *c, int32_t *blocks, size_t n) {
    if (n > c->n_free) {
        return false;
    }
    for (size_t i = 0; i < n; i++) {
        int32_t b = c->free_stack[--c->n_free];
        assert(c->refs[b] == 0);
        c->refs[b] = 1;
        blocks[i] = b;
    }
    return true;
}

void kv_cache_share(struct kv_cache *c, int32_t block) {
    assert(c->refs[block] > 0);
    c->refs[block]++;
}

void kv_cache_release(struct kv_cache *c, const int32_t *blocks, size_t n) {
    /* Backwards, so that a sequence's first block is the next one taken. */
    for (size_t i = n; i-- > 0;) {
        assert(c->refs[blocks[i]] > 0);
        if (--c->refs[blocks[i]] == 0) {
            c->free_stack[c->n_free++] = blocks[i];
        }
    }
}
