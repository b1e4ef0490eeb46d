#include "kv_cache.h"

#include <criterion/criterion.h>

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
