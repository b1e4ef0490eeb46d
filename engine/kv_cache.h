/*
 * Bookkeeping of the KV cache: a pool of equal blocks of `block_size` tokens, reference-counted. The memory itself
 * belongs to the runner; here are only the indices. One index names the same block in every layer.
 *
 * Engine thread only. Nothing allocates after init.
 * Invariant: refs[b] == 0 exactly for the blocks on the free stack.
 */
#ifndef INFERD_KV_CACHE_H
#define INFERD_KV_CACHE_H

#include <inferd/error.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct kv_cache {
    size_t n_blocks, block_size;
    size_t n_free;
    int32_t *free_stack; /* [n_blocks], the first n_free are free; the lowest index is on top at the start */
    uint32_t *refs;      /* [n_blocks] */
};

/* n_blocks * block_size must fit in int32_t: slots are 32-bit. */
int kv_cache_init(struct kv_cache *c, size_t n_blocks, size_t block_size, struct error *err);
void kv_cache_destroy(struct kv_cache *c); /* NULL and a zeroed one are fine */

size_t kv_cache_used(const struct kv_cache *c);
size_t kv_cache_blocks_for(const struct kv_cache *c, size_t n_tokens);

/* Take n blocks, all or none; each has one reference then. */
bool kv_cache_take(struct kv_cache *c, int32_t *blocks, size_t n);
void kv_cache_share(struct kv_cache *c, int32_t block); /* one more reference to a block in use */
void kv_cache_release(struct kv_cache *c, const int32_t *blocks, size_t n);

#endif
