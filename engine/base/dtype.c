#include <inferd/backend.h>

#include "base/checked.h"

static const struct dtype_info table[DTYPE_COUNT] = {
    [DTYPE_F32] = {"F32", 1, 4},       [DTYPE_F16] = {"F16", 1, 2},       [DTYPE_BF16] = {"BF16", 1, 2},
    [DTYPE_I8] = {"I8", 1, 1},         [DTYPE_Q4_0] = {"Q4_0", 32, 18},   [DTYPE_Q4_1] = {"Q4_1", 32, 20},
    [DTYPE_Q5_0] = {"Q5_0", 32, 22},   [DTYPE_Q5_1] = {"Q5_1", 32, 24},   [DTYPE_Q8_0] = {"Q8_0", 32, 34},
    [DTYPE_Q4_K] = {"Q4_K", 256, 144}, [DTYPE_Q5_K] = {"Q5_K", 256, 176}, [DTYPE_Q6_K] = {"Q6_K", 256, 210},
    [DTYPE_I32] = {"I32", 1, 4},
};

/* Never NULL, so that a message can name whatever it was given. */
const struct dtype_info *dtype_info(enum dtype t) {
    static const struct dtype_info unknown = {"unknown", 1, 0};
    return (unsigned)t < DTYPE_COUNT ? &table[t] : &unknown;
}

bool dtype_row_bytes(enum dtype t, size_t n, size_t *bytes) {
    const struct dtype_info *info = dtype_info(t);
    return info->bytes != 0 && n % info->block == 0 && checked_mul(n / info->block, info->bytes, bytes);
}

size_t kv_layer_bytes(enum dtype dtype, size_t n_blocks, size_t block_size, size_t n_kv_heads, size_t head_dim) {
    size_t scale = dtype == DTYPE_I8 ? dtype_info(DTYPE_F16)->bytes : 0, bytes;
    const size_t factors[] = {2, n_blocks, block_size, n_kv_heads};
    bool fits = checked_mul(head_dim, dtype_info(dtype)->bytes, &bytes) && checked_add(bytes, scale, &bytes);
    for (size_t i = 0; fits && i < sizeof factors / sizeof *factors; i++) {
        fits = checked_mul(bytes, factors[i], &bytes);
    }
    return fits ? bytes : SIZE_MAX; /* more than any allocation gives */
}
