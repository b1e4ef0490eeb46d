#include "plan.h"

#include <criterion/criterion.h>
#include <string.h>

static const struct plan_input usual = {
    .total = (size_t)8 << 30,
    .utilization = 0.5,
    .weight_bytes = (size_t)1 << 30,
    .workspace_bytes = (size_t)100 << 20,
    .token_bytes = 1 << 15,
    .block_size = 16,
    .context_length = 8192,
    .max_sequences = 4,
};

static struct plan plan(const struct plan_input *in) {
    struct plan p;
    struct error err;
    cr_assert_eq(plan_make(in, &p, &err), 0, "%s", err.message);
    cr_assert_geq(p.n_blocks * in->block_size, p.max_model_len);
    double used = (double)(p.n_blocks * in->block_size * in->token_bytes + in->weight_bytes + in->workspace_bytes);
    cr_assert_leq(used, (double)in->total * in->utilization);
    return p;
}

static struct error fails(const struct plan_input *in, enum error_code code) {
    struct plan p;
    struct error err;
    cr_assert_eq(plan_make(in, &p, &err), -1);
    cr_assert_eq(err.code, code, "%s", err.message);
    return err;
}

Test(plan, kv_is_what_the_sequences_can_use) {
    struct plan_input in = usual;
    struct plan p = plan(&in);
    cr_assert_eq(p.max_model_len, 8192);
    cr_assert_eq(p.n_blocks * 16, 4 * 8192, "four sequences of the whole context");
    in.max_sequences = 1;
    cr_assert_eq(plan(&in).n_blocks * 16, 8192, "one whole context");
    in.max_model_len = 2000;
    in.max_sequences = 3;
    cr_assert_eq(plan(&in).n_blocks * 16, 6000, "three of the length that was asked for");
    in.max_model_len = 0;
    in.context_length = 1000;
    cr_assert_eq(plan(&in).n_blocks, 189, "3 * 1000 tokens, each rounded up to blocks");
}

Test(plan, kv_is_cut_to_the_budget_and_the_context_with_it) {
    struct plan_input in = usual;
    in.context_length = 1 << 20;
    in.max_sequences = 100;
    in.utilization = 0.25;
    struct plan p = plan(&in);
    size_t affordable = ((size_t)2 << 30) - in.weight_bytes - in.workspace_bytes;
    cr_assert_eq(p.n_blocks, affordable / in.token_bytes / 16);
    cr_assert_eq(p.max_model_len, p.n_blocks * 16);
    in.total = (size_t)64 << 30;
    in.utilization = 0.9;
    p = plan(&in);
    cr_assert_eq(p.n_blocks * 16 * in.token_bytes, (size_t)16 << 30, "unasked never more than a quarter of what there is");
    in.max_model_len = 1 << 20;
    p = plan(&in);
    cr_assert_eq(p.n_blocks * 16 * in.token_bytes, (size_t)32 << 30, "but what was asked for");
}

Test(plan, what_was_asked_for_is_given_or_refused_with_numbers) {
    struct plan_input in = usual;
    in.kv_tokens = 1000;
    cr_assert_eq(plan(&in).n_blocks, 63);
    cr_assert_eq(plan(&in).max_model_len, 1008);
    in.max_model_len = 2000;
    fails(&in, ERROR_DOES_NOT_FIT);
    in.kv_tokens = 0;
    cr_assert_eq(plan(&in).max_model_len, 2000);
    cr_assert_eq(plan(&in).n_blocks, 4 * 125);
    in.max_model_len = 8193;
    cr_assert_str_eq(fails(&in, ERROR_INVALID).param, "max_model_len");
    in.max_model_len = 8192;
    in.token_bytes = 1 << 20;
    cr_assert(strstr(fails(&in, ERROR_DOES_NOT_FIT).message, "8192 tokens 8192 MiB"));
    in = usual;
    in.kv_tokens = 1 << 20;
    fails(&in, ERROR_DOES_NOT_FIT);
    in = usual;
    in.weight_bytes = (size_t)5 << 30;
    cr_assert(strstr(fails(&in, ERROR_DOES_NOT_FIT).message, "5120 MiB"));
}

Test(plan, a_device_of_its_own_is_filled) {
    struct plan_input in = usual;
    in.fill = true;
    in.context_bytes = (size_t)300 << 20;
    in.graph_bytes = plan_graph_bytes(10, 32);
    struct plan p = plan(&in);
    size_t fixed = in.context_bytes + in.graph_bytes + in.weight_bytes + in.workspace_bytes;
    cr_assert_eq(p.n_blocks, (((size_t)4 << 30) - fixed) / in.token_bytes / 16, "all that the budget leaves");
    cr_assert_eq(p.max_model_len, 8192);
    size_t sum = 0;
    for (int i = 0; i < ENGINE_MEMORY_KINDS; i++) {
        sum += p.bytes[i];
    }
    cr_assert_eq(sum, in.total, "every byte has its place");
    cr_assert_eq(p.bytes[ENGINE_MEMORY_KV], p.n_blocks * 16 * in.token_bytes);
    cr_assert_geq(p.bytes[ENGINE_MEMORY_MARGIN], (size_t)4 << 30);
    in.kv_tokens = 10000;
    cr_assert_eq(plan(&in).n_blocks, 625, "what was asked for, all the same");
    in.kv_tokens = 0;
    in.context_bytes = (size_t)4 << 30;
    cr_assert(strstr(fails(&in, ERROR_DOES_NOT_FIT).message, "context, graphs and others"));
}

Test(plan, slots_are_32_bit) {
    struct plan_input in = usual;
    in.fill = true;
    in.total = (size_t)1 << 45;
    struct plan p = plan(&in);
    cr_assert_leq(p.n_blocks * 16, (size_t)INT32_MAX);
}

Test(plan, graphs_have_an_allowance) {
    cr_assert_eq(plan_graph_bytes(0, 80), 0);
    cr_assert_eq(plan_graph_bytes(2, 80), 2 * plan_graph_bytes(1, 80));
    cr_assert_gt(plan_graph_bytes(1, 80), plan_graph_bytes(1, 32));
}
