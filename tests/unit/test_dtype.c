#include <criterion/criterion.h>
#include <inferd/backend.h>

Test(dtype, bytes_of_kv_memory) {
    /* 3 blocks of 16 tokens, 2 heads of 64: K and V */
    cr_expect_eq(kv_layer_bytes(DTYPE_F16, 3, 16, 2, 64), 3 * 16 * 2 * (2 * 64 * 2));
    cr_expect_eq(kv_layer_bytes(DTYPE_BF16, 3, 16, 2, 64), 3 * 16 * 2 * (2 * 64 * 2));
    cr_expect_eq(kv_layer_bytes(DTYPE_I8, 3, 16, 2, 64), 3 * 16 * 2 * (2 * (64 + 2)));
    cr_expect_eq(kv_layer_bytes(DTYPE_F16, SIZE_MAX / 4, 16, 2, 64), SIZE_MAX);
    cr_expect_eq(kv_layer_bytes(DTYPE_I8, 1, 1, 1, SIZE_MAX), SIZE_MAX);
}

Test(dtype, layout) {
    size_t bytes = 1;
    cr_expect(dtype_row_bytes(DTYPE_F32, 3, &bytes) && bytes == 12);
    cr_expect(dtype_row_bytes(DTYPE_Q4_0, 64, &bytes) && bytes == 36);
    cr_expect(dtype_row_bytes(DTYPE_Q8_0, 32, &bytes) && bytes == 34);
    cr_expect(dtype_row_bytes(DTYPE_Q6_K, 512, &bytes) && bytes == 420);
    cr_expect(dtype_row_bytes(DTYPE_F16, 0, &bytes) && bytes == 0);
    bytes = 7;
    cr_expect(!dtype_row_bytes(DTYPE_Q4_0, 33, &bytes) && bytes == 7);
    cr_expect(!dtype_row_bytes(DTYPE_Q4_K, 32, &bytes) && bytes == 7);
    cr_expect(!dtype_row_bytes(DTYPE_F32, SIZE_MAX / 2, &bytes) && bytes == 7);
    cr_expect(!dtype_row_bytes(DTYPE_COUNT, 32, &bytes) && bytes == 7);
    for (int t = 0; t < DTYPE_COUNT; t++) {
        cr_expect(dtype_info((enum dtype)t)->bytes > 0 && dtype_info((enum dtype)t)->name != NULL);
    }
}
