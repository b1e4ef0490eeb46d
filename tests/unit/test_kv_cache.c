#include "kv_cache.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

Test(kv_cache, takes_all_or_none_and_gives_back) {
    struct kv_cache c;
    struct error err;
    int32_t a[3], b[3];
    cr_assert_eq(kv_cache_init(&c, 5, 16, &err), 0);
    cr_assert_eq(kv_cache_used(&c), 0);
    cr_assert(kv_cache_take(&c, a, 3));
    cr_assert_eq(kv_cache_used(&c), 3);
    cr_assert_not(kv_cache_take(&c, b, 3));
    cr_assert_eq(kv_cache_used(&c), 3, "a refused take must take nothing");
    cr_assert(kv_cache_take(&c, b, 2));
    bool seen[5] = {false};
    for (int i = 0; i < 5; i++) {
        int32_t block = i < 3 ? a[i] : b[i - 3];
        cr_assert(block >= 0 && block < 5 && !seen[block], "each block is handed out once");
        seen[block] = true;
    }
    kv_cache_release(&c, a, 3);
    cr_assert_eq(kv_cache_used(&c), 2);
    kv_cache_release(&c, b, 2);
    cr_assert_eq(kv_cache_used(&c), 0);
    kv_cache_destroy(&c);
}

Test(kv_cache, a_shared_block_lives_until_its_last_user) {
    struct kv_cache c;
    struct error err;
    int32_t block, other[2];
    cr_assert_eq(kv_cache_init(&c, 2, 8, &err), 0);
    cr_assert(kv_cache_take(&c, &block, 1));
    kv_cache_share(&c, block);
    kv_cache_release(&c, &block, 1);
    cr_assert_eq(kv_cache_used(&c), 1);
    cr_assert_not(kv_cache_take(&c, other, 2));
    kv_cache_release(&c, &block, 1);
    cr_assert(kv_cache_take(&c, other, 2));
    kv_cache_destroy(&c);
}

Test(kv_cache, low_blocks_first) {
    /* a lightly loaded server touches only the first pages of its KV memory */
    struct kv_cache c;
    struct error err;
    int32_t blocks[2], again;
    cr_assert_eq(kv_cache_init(&c, 1000, 8, &err), 0);
    cr_assert(kv_cache_take(&c, blocks, 2));
    cr_assert_eq(blocks[0], 0);
    cr_assert_eq(blocks[1], 1);
    kv_cache_release(&c, blocks, 2);
    cr_assert(kv_cache_take(&c, &again, 1));
    cr_assert_eq(again, 0);
    kv_cache_destroy(&c);
}

Test(kv_cache, blocks_for_rounds_up) {
    struct kv_cache c = {.block_size = 16};
    cr_assert_eq(kv_cache_blocks_for(&c, 0), 0);
    cr_assert_eq(kv_cache_blocks_for(&c, 1), 1);
    cr_assert_eq(kv_cache_blocks_for(&c, 16), 1);
    cr_assert_eq(kv_cache_blocks_for(&c, 17), 2);
    cr_assert_eq(kv_cache_blocks_for(&c, SIZE_MAX), SIZE_MAX / 16 + 1);
}

Test(kv_cache, refuses_slots_beyond_32_bits) {
    struct kv_cache c;
    struct error err;
    cr_assert_eq(kv_cache_init(&c, (size_t)1 << 27, 16, &err), -1);
    cr_assert_eq(err.code, ERROR_INVALID);
    cr_assert_eq(kv_cache_init(&c, 0, 16, &err), -1);
}

/* ---- the prefix cache ---- */

static const uint8_t no_salt[32];

static struct kv_key key_of(const uint8_t salt[32], const int32_t *tokens, size_t n_blocks, size_t block_size) {
    struct kv_key key;
    cr_assert(kv_key_root(salt, &key));
    for (size_t i = 0; i < n_blocks; i++) {
        cr_assert(kv_key_next(&key, tokens + i * block_size, block_size, &key), "in place");
    }
    return key;
}

static struct kv_key numbered(int32_t n) {
    struct kv_key key;
    cr_assert(kv_key_root(no_salt, &key) && kv_key_next(&key, &n, 1, &key));
    return key;
}

Test(kv_cache, keys_are_sha256_of_what_came_before) {
    /* python3: h=lambda b: hashlib.sha256(b).digest(); r=h(b'inferd prefix 1\0'+bytes(range(32)));
     * h(h(r+struct.pack('<8i',*range(1,9)))+struct.pack('<8i',*range(-1,7))).hex() */
    static const char want[] = "02a8bc4304d6d1986367b2ca5208c2013202206eb65afebabb76238f0eaec39c";
    uint8_t salt[32];
    int32_t tokens[16];
    char hex[2 * sizeof(struct kv_key) + 1];
    for (int i = 0; i < 32; i++) {
        salt[i] = (uint8_t)i;
    }
    for (int i = 0; i < 16; i++) {
        tokens[i] = i < 8 ? i + 1 : i - 9;
    }
    struct kv_key key = key_of(salt, tokens, 2, 8);
    for (size_t i = 0; i < sizeof key; i++) {
        snprintf(hex + 2 * i, 3, "%02x", key.bytes[i]);
    }
    cr_assert_str_eq(hex, want);
}

Test(kv_cache, published_blocks_are_found_in_use_and_after) {
    struct kv_cache c;
    struct error err;
    int32_t b[2], all[4];
    struct kv_key one = numbered(1), two = numbered(2);
    cr_assert_eq(kv_cache_init(&c, 4, 8, &err), 0);
    cr_assert(kv_cache_take(&c, b, 2));
    cr_assert_eq(kv_cache_find(&c, &one), -1);
    cr_assert(kv_cache_is_writable(&c, b[0]));
    cr_assert_eq(kv_cache_publish(&c, b[0], &one), b[0]);
    cr_assert_not(kv_cache_is_writable(&c, b[0]));
    cr_assert_eq(kv_cache_publish(&c, b[1], &two), b[1]);
    cr_assert_eq(kv_cache_find(&c, &one), b[0]);
    kv_cache_release(&c, b, 2);
    cr_assert_eq(kv_cache_used(&c), 0, "cached blocks count as free");
    cr_assert_eq(c.n_cached, 2);
    cr_assert_eq(kv_cache_find(&c, &two), b[1]);
    kv_cache_share(&c, b[1]);
    cr_assert_eq(kv_cache_used(&c), 1);
    cr_assert_eq(c.n_cached, 1);
    cr_assert_not(kv_cache_take(&c, all, 4));
    cr_assert(kv_cache_take(&c, all, 3), "blank ones, then cached ones");
    cr_assert_eq(kv_cache_find(&c, &one), -1, "evicted");
    cr_assert_eq(kv_cache_find(&c, &two), b[1], "in use: never evicted");
    kv_cache_release(&c, all, 3);
    kv_cache_release(&c, &b[1], 1);
    cr_assert_eq(c.n_blank + c.n_cached, 4);
    kv_cache_destroy(&c);
}

Test(kv_cache, least_recently_used_goes_first_and_leaves_before_parents) {
    struct kv_cache c;
    struct error err;
    int32_t old[3], young[3], taken;
    struct kv_key keys[6];
    cr_assert_eq(kv_cache_init(&c, 6, 8, &err), 0);
    cr_assert(kv_cache_take(&c, old, 3) && kv_cache_take(&c, young, 3));
    for (int i = 0; i < 6; i++) {
        keys[i] = numbered(i);
        kv_cache_publish(&c, i < 3 ? old[i] : young[i - 3], &keys[i]);
    }
    kv_cache_release(&c, young, 3);
    kv_cache_release(&c, old, 3);
    kv_cache_share(&c, young[0]); /* used again: now it is the youngest */
    kv_cache_release(&c, &young[0], 1);
    const int32_t expected[] = {young[2], young[1], old[2], old[1], old[0], young[0]};
    for (int i = 0; i < 6; i++) {
        cr_assert(kv_cache_take(&c, &taken, 1));
        cr_assert_eq(taken, expected[i], "eviction %d", i);
    }
    kv_cache_destroy(&c);
}

Test(kv_cache, the_same_tokens_twice_become_one_block) {
    struct kv_cache c;
    struct error err;
    int32_t b[2];
    struct kv_key key = numbered(1);
    cr_assert_eq(kv_cache_init(&c, 2, 8, &err), 0);
    cr_assert(kv_cache_take(&c, b, 2));
    cr_assert_eq(kv_cache_publish(&c, b[0], &key), b[0]);
    cr_assert_eq(kv_cache_publish(&c, b[1], &key), b[0]);
    cr_assert_eq(kv_cache_used(&c), 1);
    cr_assert_not(kv_cache_is_writable(&c, b[0]));
    kv_cache_release(&c, b, 1);
    kv_cache_release(&c, b, 1);
    cr_assert_eq(kv_cache_used(&c), 0);
    kv_cache_destroy(&c);
}

Test(kv_cache, withdrawn_blocks_are_not_found) {
    struct kv_cache c;
    struct error err;
    int32_t b[3];
    struct kv_key keys[2] = {numbered(1), numbered(2)};
    cr_assert_eq(kv_cache_init(&c, 3, 8, &err), 0);
    cr_assert(kv_cache_take(&c, b, 3));
    kv_cache_publish(&c, b[0], &keys[0]);
    kv_cache_publish(&c, b[1], &keys[1]);
    kv_cache_release(&c, &b[1], 1);
    for (int i = 0; i < 3; i++) {
        kv_cache_withdraw(&c, b[i]);
    }
    cr_assert_eq(kv_cache_find(&c, &keys[0]), -1);
    cr_assert_eq(kv_cache_find(&c, &keys[1]), -1);
    cr_assert_eq(c.n_cached, 0);
    cr_assert_eq(c.n_blank, 1);
    kv_cache_release(&c, &b[0], 1);
    kv_cache_release(&c, &b[2], 1);
    cr_assert_eq(c.n_blank, 3);
    kv_cache_destroy(&c);
}

/* Random use beside a plain array of what each block should be. */
Test(kv_cache, a_long_random_life) {
    enum { BLOCKS = 37, KEYS = 60, STEPS = 100000 };
    struct kv_cache c;
    struct error err;
    unsigned refs[BLOCKS] = {0};
    int key_of_block[BLOCKS];
    struct kv_key keys[KEYS];
    srand(3);
    cr_assert_eq(kv_cache_init(&c, BLOCKS, 8, &err), 0);
    for (int i = 0; i < KEYS; i++) {
        keys[i] = numbered(i);
    }
    for (int i = 0; i < BLOCKS; i++) {
        key_of_block[i] = -1;
    }
    for (int step = 0; step < STEPS; step++) {
        int32_t b = rand() % BLOCKS, k = rand() % KEYS, known = kv_cache_find(&c, &keys[k]);
        cr_assert(known < 0 || key_of_block[known] == k);
        switch (rand() % 5) {
        case 0:
        case 1:
            if (kv_cache_take(&c, &b, 1)) {
                cr_assert_eq(refs[b], 0);
                refs[b] = 1;
                key_of_block[b] = -1;
            }
            break;
        case 2:
            if (known >= 0) {
                kv_cache_share(&c, known);
                refs[known]++;
            }
            break;
        case 3:
            if (refs[b] > 0 && key_of_block[b] < 0) {
                int32_t now = kv_cache_publish(&c, b, &keys[k]);
                cr_assert_eq(now, known >= 0 ? known : b);
                refs[b]--;
                refs[now]++;
                key_of_block[now] = k;
            } else if (rand() % 50 == 0) {
                kv_cache_withdraw(&c, b);
                key_of_block[b] = -1;
            }
            break;
        case 4:
            if (refs[b] > 0) {
                kv_cache_release(&c, &b, 1);
                refs[b]--;
            }
            break;
        }
        size_t used = 0, cached = 0;
        for (int i = 0; i < BLOCKS; i++) {
            used += refs[i] > 0;
            cached += refs[i] == 0 && key_of_block[i] >= 0;
            cr_assert(key_of_block[i] < 0 || kv_cache_find(&c, &keys[key_of_block[i]]) == i);
        }
        cr_assert_eq(kv_cache_used(&c), used);
        cr_assert_eq(c.n_cached, cached);
        cr_assert_eq(c.n_free, BLOCKS - used);
        cr_assert_eq(c.n_blank + c.n_cached, c.n_free);
    }
    kv_cache_destroy(&c);
}

Test(kv_cache, salt_order_and_place_all_enter_the_key) {
    uint8_t salted[32] = {[31] = 1};
    int32_t a[16], b[16];
    for (int i = 0; i < 16; i++) {
        a[i] = b[i] = i;
    }
    b[0] = 1, b[1] = 0;
    struct kv_key plain = key_of(no_salt, a, 2, 8), other_salt = key_of(salted, a, 2, 8),
                  other_start = key_of(no_salt, b, 2, 8), first = key_of(no_salt, a, 1, 8),
                  alone = key_of(no_salt, a + 8, 1, 8);
    cr_assert_neq(memcmp(&plain, &other_salt, sizeof plain), 0);
    cr_assert_neq(memcmp(&plain, &other_start, sizeof plain), 0, "the second block depends on the first");
    cr_assert_neq(memcmp(&plain, &first, sizeof plain), 0);
    cr_assert_neq(memcmp(&plain, &alone, sizeof plain), 0, "the same tokens at another place");
}
