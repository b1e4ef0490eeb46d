/*
 * Bookkeeping of the KV cache: a pool of equal blocks of `block_size` tokens, reference-counted, and a table in which
 * the blocks of tokens that were computed are found again. The memory itself belongs to the runner; here are only the
 * indices. One index names the same block in every layer.
 *
 * A block is in one of three states:
 *
 *     blank     no reference, no content anybody knows of          on the stack of blank blocks
 *     in use    one or more references
 *     cached    no reference, but published under a key            in the queue of least recent use
 *
 * Blank and cached blocks are free: kv_cache_take hands out blank ones first, then evicts cached ones, the least
 * recently used first. A sequence's blocks are released from its last to its first, so leaves are evicted before
 * what they hang on.
 *
 * Keys. The key of a full block says which tokens it holds and which came before: key(0) = SHA-256(tag | salt),
 * key(i + 1) = SHA-256(key(i) | the token ids of block i). So equal keys mean equal beginnings, and a request with
 * another salt can neither find a block nor learn that it is there.
 *
 * Engine thread only. Nothing allocates after init.
 */
#ifndef INFERD_KV_CACHE_H
#define INFERD_KV_CACHE_H

#include "base/sha256.h"

#include <inferd/error.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define KV_MAX_BLOCK_SIZE 256

struct kv_key {
    uint8_t bytes[SHA256_BYTES];
};

struct kv_block {
    uint32_t refs;
    bool published;             /* in the table under `key` */
    int32_t chain_next;         /* published: the next block of the same bucket, -1 = none */
    int32_t lru_prev, lru_next; /* cached: its neighbours; the head is blocks[n_blocks] */
    struct kv_key key;
};

struct kv_cache {
    size_t n_blocks, block_size;
    size_t n_free;           /* blocks without a reference: n_blank + n_cached */
    size_t n_blank, n_cached;
    int32_t *blank;          /* [n_blocks], the first n_blank; the lowest index is on top at the start */
    struct kv_block *blocks; /* [n_blocks + 1] */
    int32_t *buckets;        /* [n_buckets] first block of each chain, -1 = none */
    size_t n_buckets;        /* a power of two */
};

/* n_blocks * block_size must fit in int32_t: slots are 32-bit. */
int kv_cache_init(struct kv_cache *c, size_t n_blocks, size_t block_size, struct error *err);
void kv_cache_destroy(struct kv_cache *c); /* NULL and a zeroed one are fine */

size_t kv_cache_used(const struct kv_cache *c); /* blocks with a reference */
size_t kv_cache_blocks_for(const struct kv_cache *c, size_t n_tokens);

/* Take n blocks, all or none; each has one reference then and is unpublished. */
bool kv_cache_take(struct kv_cache *c, int32_t *blocks, size_t n);
/* One more reference to a block in use, or the first one to a cached block. */
void kv_cache_share(struct kv_cache *c, int32_t block);
void kv_cache_release(struct kv_cache *c, const int32_t *blocks, size_t n);
static inline bool kv_cache_in_use(const struct kv_cache *c, int32_t block) {
    return c->blocks[block].refs > 0;
}
/* May its one user write into it? Nobody else reads it, now or later. */
static inline bool kv_cache_is_writable(const struct kv_cache *c, int32_t block) {
    return c->blocks[block].refs == 1 && !c->blocks[block].published;
}

/* Keys; false when no hash can be had. n tokens fill a block. Any thread. */
bool kv_key_root(const uint8_t salt[32], struct kv_key *out);
bool kv_key_next(const struct kv_key *before, const int32_t *tokens, size_t n, struct kv_key *out);

/* The block published under a key, in use or cached, or -1. Takes no reference. */
int32_t kv_cache_find(const struct kv_cache *c, const struct kv_key *key);
/*
 * A block in use holds, computed, the tokens that `key` says. Returns the block to go on with: this one, published now, or
 * the one that was published under that key before; then the caller's reference has moved there.
 */
int32_t kv_cache_publish(struct kv_cache *c, int32_t block, const struct kv_key *key);
/* Nobody shall find this block any more (what was computed is not to be trusted). Unpublished ones are fine. */
void kv_cache_withdraw(struct kv_cache *c, int32_t block);

#endif
