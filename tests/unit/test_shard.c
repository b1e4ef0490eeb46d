/* model/shard.h: who has what of a model. */
#include <criterion/criterion.h>
#include <string.h>

#include "model/shard.h"

static struct error err;
static const struct architecture arch;

static struct model_config model(size_t heads, size_t kv_heads, size_t n_ff, size_t vocab, size_t layers) {
    return (struct model_config){.arch = &arch, .n_layers = layers, .n_embd = 64, .n_heads = heads, .n_kv_heads = kv_heads, .head_dim = 16,
                                 .n_ff = n_ff, .vocab_size = vocab};
}

Test(shard, which_numbers_go) {
    cr_expect(shard_is_valid_tp(32, 8, 16) && shard_is_valid_tp(9, 3, 3) && shard_is_valid_tp(9, 3, 9) && shard_is_valid_tp(14, 2, 14));
    cr_expect(!shard_is_valid_tp(9, 3, 2) && !shard_is_valid_tp(32, 8, 0) && !shard_is_valid_tp(32, 8, 64) && !shard_is_valid_tp(12, 4, 6));
    struct model_config c = model(12, 4, 64, 100, 2);
    struct shard s = {.rank = 77};
    cr_expect_lt(shard_make(&c, 0, 5, 0, 1, 1, &s, &err), 0);
    cr_expect(err.code == ERROR_INVALID && !strcmp(err.param, "tensor_parallel") && strstr(err.message, "go to 1, 2, 4, 12 ranks"), "%s",
              err.message);
    cr_expect_eq(s.rank, 77);
    cr_expect_lt(shard_make(&c, 0, 1, 0, 3, 1, &s, &err), 0);
    cr_expect(!strcmp(err.param, "pipeline_parallel") && strstr(err.message, "2 layers"), "%s", err.message);
}

/* The parts of all ranks put together are the whole, in order; KV heads may be in several. */
static void complete(size_t heads, size_t kv_heads, size_t n_ff, size_t unit, size_t vocab, size_t n) {
    struct model_config c = model(heads, kv_heads, n_ff, vocab, 4), own;
    size_t next_head = 0, next_ff = 0, next_row = 0;
    for (size_t i = 0; i < n; i++) {
        struct shard s;
        cr_assert_eq(shard_make(&c, i, n, 0, 1, unit, &s, &err), 0, "%s", err.message);
        cr_expect_eq(s.heads.first, next_head);
        cr_expect_eq(s.ff.first, next_ff);
        cr_expect(s.vocab.first == next_row && s.vocab_padded * n >= vocab && s.vocab.n <= s.vocab_padded);
        cr_expect(s.ff.n >= 1 && (s.ff.n % unit == 0 || i + 1 == n || n_ff / unit < n), "%zu of %zu", s.ff.n, n_ff);
        for (size_t h = s.heads.first; h < s.heads.first + s.heads.n; h++) { /* each head finds its own keys */
            size_t kv = h / (heads / kv_heads);
            cr_expect(kv >= s.kv_heads.first && kv < s.kv_heads.first + s.kv_heads.n);
            cr_expect_eq(kv - s.kv_heads.first, (h - s.heads.first) / (s.heads.n / s.kv_heads.n));
        }
        shard_config(&c, &s, &own);
        cr_expect(own.n_heads == s.heads.n && own.n_kv_heads == s.kv_heads.n && own.n_ff == s.ff.n && own.vocab_size == vocab);
        next_head += s.heads.n;
        next_ff += s.ff.n;
        next_row += s.vocab.n;
    }
    cr_expect(next_head == heads && next_ff == n_ff && next_row == vocab);
}

Test(shard, all_of_it) {
    complete(9, 3, 1536, 32, 49152, 3);
    complete(9, 3, 1536, 32, 49152, 9); /* KV heads are in three ranks each */
    complete(4, 1, 2048, 256, 262144, 4);
    complete(8, 8, 11008, 256, 32000, 8);  /* 43 units: five or six each */
    complete(8, 2, 2048, 256, 257, 8);     /* an odd vocabulary */
    complete(16, 4, 512, 256, 33, 16);     /* fewer units than ranks, and ranks without a row */
    complete(2, 2, 100, 32, 10, 2);        /* the last unit is not whole */
    complete(2, 1, 17, 1, 2, 2);
}

Test(shard, stages) {
    struct model_config c = model(4, 2, 64, 100, 7);
    struct range rows, columns;
    size_t next = 0;
    for (size_t i = 0; i < 7; i++) {
        c.sliding[i] = i == 5;
    }
    for (size_t stage = 0; stage < 3; stage++) {
        struct shard s;
        struct model_config own;
        cr_assert_eq(shard_make(&c, 1, 2, stage, 3, 1, &s, &err), 0);
        cr_expect_eq(s.layers.first, next);
        cr_expect_eq(s.layers.n, stage == 0 ? 3 : 2);
        next += s.layers.n;
        shard_config(&c, &s, &own);
        cr_expect(own.n_layers == s.layers.n && own.sliding[0] == (stage == 2) && !own.sliding[1]);
        cr_expect_eq(shard_tensor(&s, &c, &model_roles[0], -1, &rows, &columns), stage == 0);
        cr_expect_eq(shard_tensor(&s, &c, &model_roles[1], -1, &rows, &columns), stage == 2);
        cr_expect_eq(shard_tensor(&s, &c, &model_roles[2], -1, &rows, &columns), stage == 2);
        cr_expect(rows.first == 50 && rows.n == 50 && columns.first == 0 && columns.n == 64);
        cr_expect_eq(shard_tensor(&s, &c, &layer_roles[1], 5, &rows, &columns), stage == 2);
        cr_expect(rows.first == 32 && rows.n == 32 && columns.n == 64, "of 4 heads, the last two");
        c.tied_head = true; /* then the last stage has the embedding, too */
        cr_expect_eq(shard_tensor(&s, &c, &model_roles[0], -1, &rows, &columns), stage != 1);
        c.tied_head = false;
    }
    cr_expect_eq(next, 7);
}
