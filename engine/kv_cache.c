#include "kv_cache.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

int kv_cache_init(struct kv_cache *c, size_t n_blocks, size_t block_size, struct error *err) {
    if (n_blocks == 0 || block_size == 0 || block_size > KV_MAX_BLOCK_SIZE ||
        n_blocks > (size_t)INT32_MAX / block_size) {
        return error_set(err, ERROR_INVALID, "a KV cache of %zu blocks of %zu tokens is out of range", n_blocks,
                         block_size);
    }
    struct kv_cache made = {
        .n_blocks = n_blocks, .block_size = block_size, .n_free = n_blocks, .n_blank = n_blocks, .n_buckets = 64};
    while (made.n_buckets < n_blocks) {
        made.n_buckets *= 2;
    }
    made.blank = calloc(n_blocks, sizeof *made.blank);
    made.blocks = calloc(n_blocks + 1, sizeof *made.blocks);
    made.buckets = calloc(made.n_buckets, sizeof *made.buckets);
    if (!made.blank || !made.blocks || !made.buckets) {
        kv_cache_destroy(&made);
        return error_memory(err);
    }
    /* Low indices first: a lightly loaded engine touches only the first pages of the reserved memory. */
    for (size_t i = 0; i < n_blocks; i++) {
        made.blank[i] = (int32_t)(n_blocks - 1 - i);
    }
    for (size_t i = 0; i < made.n_buckets; i++) {
        made.buckets[i] = -1;
    }
    made.blocks[n_blocks].lru_prev = made.blocks[n_blocks].lru_next = (int32_t)n_blocks;
    *c = made;
    return 0;
}

void kv_cache_destroy(struct kv_cache *c) {
    if (!c) {
        return;
    }
    free(c->blank);
    free(c->blocks);
    free(c->buckets);
    *c = (struct kv_cache){0};
}

size_t kv_cache_used(const struct kv_cache *c) {
    return c->n_blocks - c->n_free;
}

size_t kv_cache_blocks_for(const struct kv_cache *c, size_t n_tokens) {
    return n_tokens / c->block_size + (n_tokens % c->block_size != 0);
}

/* ---- the queue of cached blocks, least recently used first ---- */

static void lru_push(struct kv_cache *c, int32_t b) {
    int32_t head = (int32_t)c->n_blocks, last = c->blocks[head].lru_prev;
    c->blocks[b].lru_prev = last;
    c->blocks[b].lru_next = head;
    c->blocks[last].lru_next = c->blocks[head].lru_prev = b;
    c->n_cached++;
}

static void lru_remove(struct kv_cache *c, int32_t b) {
    c->blocks[c->blocks[b].lru_prev].lru_next = c->blocks[b].lru_next;
    c->blocks[c->blocks[b].lru_next].lru_prev = c->blocks[b].lru_prev;
    c->n_cached--;
}

/* ---- the table of published blocks ---- */

static int32_t *bucket(const struct kv_cache *c, const struct kv_key *key) {
    uint64_t h;
    memcpy(&h, key->bytes, sizeof h); /* as good as random */
    return &c->buckets[h & (c->n_buckets - 1)];
}

static void unpublish(struct kv_cache *c, int32_t b) {
    int32_t *link = bucket(c, &c->blocks[b].key);
    while (*link != b) {
        link = &c->blocks[*link].chain_next;
    }
    *link = c->blocks[b].chain_next;
    c->blocks[b].published = false;
}

int32_t kv_cache_find(const struct kv_cache *c, const struct kv_key *key) {
    int32_t b = *bucket(c, key);
    while (b >= 0 && memcmp(&c->blocks[b].key, key, sizeof *key) != 0) {
        b = c->blocks[b].chain_next;
    }
    return b;
}

int32_t kv_cache_publish(struct kv_cache *c, int32_t block, const struct kv_key *key) {
    struct kv_block *own = &c->blocks[block];
    assert(own->refs > 0 && !own->published);
    int32_t known = kv_cache_find(c, key);
    if (known >= 0) { /* the same tokens were computed twice at the same time: one copy is enough */
        kv_cache_share(c, known);
        kv_cache_release(c, &block, 1);
        return known;
    }
    int32_t *first = bucket(c, key);
    own->key = *key;
    own->chain_next = *first;
    own->published = true;
    *first = block;
    return block;
}

void kv_cache_withdraw(struct kv_cache *c, int32_t block) {
    if (!c->blocks[block].published) {
        return;
    }
    unpublish(c, block);
    if (c->blocks[block].refs == 0) {
        lru_remove(c, block);
        c->blank[c->n_blank++] = block;
    }
}

/* ---- references ---- */

static int32_t take_one(struct kv_cache *c) {
    if (c->n_blank > 0) {
        return c->blank[--c->n_blank];
    }
    int32_t b = c->blocks[c->n_blocks].lru_next;
    lru_remove(c, b);
    unpublish(c, b);
    return b;
}

bool kv_cache_take(struct kv_cache *c, int32_t *blocks, size_t n) {
    if (n > c->n_free) {
        return false;
    }
    for (size_t i = 0; i < n; i++) {
        blocks[i] = take_one(c);
        assert(c->blocks[blocks[i]].refs == 0);
        c->blocks[blocks[i]].refs = 1;
    }
    c->n_free -= n;
    return true;
}

void kv_cache_share(struct kv_cache *c, int32_t block) {
    struct kv_block *b = &c->blocks[block];
    if (b->refs++ == 0) {
        assert(b->published);
        lru_remove(c, block);
        c->n_free--;
    }
}

void kv_cache_release(struct kv_cache *c, const int32_t *blocks, size_t n) {
    /* Backwards: leaves are evicted first, and of blank ones a sequence's first block is the next one taken. */
    for (size_t i = n; i-- > 0;) {
        struct kv_block *b = &c->blocks[blocks[i]];
        assert(b->refs > 0);
        if (--b->refs > 0) {
            continue;
        }
        c->n_free++;
        if (b->published) {
            lru_push(c, blocks[i]);
        } else {
            c->blank[c->n_blank++] = blocks[i];
        }
    }
}

/* ---- keys ---- */

bool kv_key_root(const uint8_t salt[32], struct kv_key *out) {
    static const char tag[16] = "inferd prefix 1";
    uint8_t input[sizeof tag + 32];
    memcpy(input, tag, sizeof tag);
    memcpy(input + sizeof tag, salt, 32);
    return sha256(input, sizeof input, out->bytes);
}

bool kv_key_next(const struct kv_key *before, const int32_t *tokens, size_t n, struct kv_key *out) {
    struct {
        struct kv_key before;
        int32_t tokens[KV_MAX_BLOCK_SIZE];
    } input;
    assert(n <= KV_MAX_BLOCK_SIZE);
    input.before = *before;
    memcpy(input.tokens, tokens, n * sizeof *tokens);
    return sha256(&input, sizeof input.before + n * sizeof *tokens, out->bytes);
}
