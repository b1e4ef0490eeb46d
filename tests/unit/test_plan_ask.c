/* `inferd plan`'s arithmetic: the published sizes of known models to the byte, answers worked by hand, and that more never
 * needs less. */
#include <inferd/plan.h>

#include <criterion/criterion.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define GIB 1073741824.0

static struct plan_answer *answer; /* large: not on the stack */

static void setup(void) {
    answer = malloc(sizeof *answer);
    cr_assert_not_null(answer);
}

static void teardown(void) {
    free(answer);
}

static struct plan_question question(const char *model, const char *gpu) {
    struct plan_question q = {.model = model, .overhead = (size_t)2 << 30};
    struct error err;
    cr_assert_eq(plan_gpu_find(gpu, NULL, &q.gpu, &q.n_gpus, &err), 0, "%s", err.message);
    return q;
}

static const struct plan_answer *ask(const struct plan_question *q) {
    struct error err;
    cr_assert_eq(plan_ask(q, answer, &err), 0, "%s", err.message);
    return answer;
}

static void close_to(double value, double expected, double share, const char *what) {
    cr_assert_leq(fabs(value - expected), share * expected, "%s: %g, not %g", what, value, expected);
}

TestSuite(plan_ask, .init = setup, .fini = teardown);

/* Parameters, bytes at 16 bits, bytes of KV a token: counted by hand from the models' published configurations. */
Test(plan_ask, known_models_to_the_byte) {
    static const struct {
        const char *name;
        size_t parameters, bytes, kv;
    } models[] = {
        {"llama-2-7b", 6738415616, 13476831232, 524288},     {"llama-2-13b", 13015864320, 26031728640, 819200},
        {"llama-2-70b", 68976648192, 137953296384, 327680},  {"llama-3-8b", 8030261248, 16060522496, 131072},
        {"llama-3-70b", 70553706496, 141107412992, 327680},  {"llama-3.1-405b", 405853388800, 811706777600, 516096},
        {"qwen2.5-72b", 72706203648, 145412407296, 327680},  {"qwen2.5-32b", 32763876352, 65527752704, 262144},
        {"qwen2.5-7b", 7615616512, 15231233024, 57344},      {"mixtral-8x7b", 46702792704, 93405585408, 131072},
        {"tinyllama-1.1b", 1100048384, 2200096768, 22528},   {"smollm2-135m", 134515008, 269030016, 23040},
    };
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
        struct plan_question q = question(models[i].name, "b200x64");
        q.tensor_parallel = 1;
        const struct plan_answer *a = ask(&q);
        cr_assert_eq(a->parameters, models[i].parameters, "%s: %zu parameters", models[i].name, a->parameters);
        cr_assert_eq(a->file_bytes, models[i].bytes, "%s: %zu bytes", models[i].name, a->file_bytes);
        cr_assert_eq(a->ranks[0].weights, models[i].bytes);
        cr_assert_eq(a->kv_bytes_per_token, models[i].kv, "%s: KV %zu", models[i].name, a->kv_bytes_per_token);
    }
}

Test(plan_ask, int8_kv_has_a_scale_of_16_bits_a_head_and_token) {
    struct plan_question q = question("llama-3-8b", "a100-80g");
    q.kv_dtype = "int8";
    cr_assert_eq(ask(&q)->kv_bytes_per_token, 2 * 32 * 8 * (128 + 2));
}

Test(plan_ask, seventy_billion_on_four_cards) {
    struct plan_question q = question("llama-2-70b", "a100-80gx4");
    q.max_model_len = 8192;
    q.max_sequences = 32;
    const struct plan_answer *a = ask(&q);
    cr_assert(a->fits);
    cr_assert_eq(a->tensor_parallel, 4);
    close_to((double)a->ranks[0].weights / GIB, 32.1, 0.02, "weights");
    cr_assert_eq(a->ranks[0].kv, (size_t)20 << 30);
    close_to((double)a->ranks[0].total / GIB, 54.1, 0.02, "total");
    close_to((double)a->max_tokens, 486e3, 0.02, "tokens");
    cr_assert_eq(a->max_sequences, 59);
    bool told = false;
    for (size_t i = 0; i < a->n_warnings; i++) {
        told = told || strstr(a->warnings[i], "4096 positions");
    }
    cr_assert(told, "8192 is beyond what the model was made for");

    q = question("llama-2-70b", "a100-40x4"); /* an alias */
    q.max_model_len = 8192;
    q.max_sequences = 32;
    a = ask(&q);
    cr_assert_not(a->fits);
    cr_assert_str_eq(a->binding, "kv");
    close_to((double)a->max_tokens, 17.3e3, 0.02, "tokens");
    cr_assert_eq(a->max_sequences, 2);
    cr_assert_gt(a->n_remedies, 2);
    cr_assert(a->remedies[0].fits);
    cr_assert_str_eq(a->remedies[0].flags, "--weights int8 --kv int8");
    q.weights = "int8";
    a = ask(&q);
    close_to((double)a->ranks[0].weights / GIB, 16.2, 0.02, "INT8 weights");
    close_to((double)a->max_tokens, 226e3, 0.02, "tokens with INT8 weights");
    cr_assert_eq(a->max_sequences, 27);
    q.kv_dtype = "int8";
    a = ask(&q);
    cr_assert(a->fits);
    close_to((double)a->max_tokens, 445e3, 0.02, "tokens with INT8 weights and KV");
    cr_assert_eq(a->max_sequences, 54);
}

Test(plan_ask, two_cards_and_a_long_context) {
    struct plan_question q = question("llama-3.1-70b", "h100-80gx2");
    q.max_model_len = 20000;
    q.max_sequences = 4;
    const struct plan_answer *a = ask(&q);
    cr_assert_not(a->fits);
    cr_assert_eq(a->max_sequences, 1);
    close_to((double)a->max_tokens, 22.8e3, 0.02, "tokens");
    q.max_model_len = q.max_sequences = 0;
    a = ask(&q);
    cr_assert(a->fits, "the daemon would cut the context");
    cr_assert_lt(a->asked_context, 131072);
    q.max_model_len = 131072;
    cr_assert_not(ask(&q)->fits);
}

/* A config.json of its own. */
static const char *write_config(const char *text) {
    static char path[64];
    snprintf(path, sizeof path, "/tmp/inferd-plan-%d.json", (int)getpid());
    FILE *f = fopen(path, "w");
    cr_assert_not_null(f);
    fputs(text, f);
    fclose(f);
    return path;
}

static void valid_are(const struct plan_answer *a, const size_t *tp, size_t n) {
    cr_assert_eq(a->n_valid_tp, n);
    cr_assert_eq(memcmp(a->valid_tp, tp, n * sizeof *tp), 0);
}

Test(plan_ask, ranks_share_heads) {
    const char *path = write_config("{\"architectures\": [\"LlamaForCausalLM\"], \"num_hidden_layers\": 60, \"hidden_size\": 6656,"
                                    "\"num_attention_heads\": 52, \"intermediate_size\": 17920, \"vocab_size\": 32000, \"rms_norm_eps\": 1e-6, \"max_position_embeddings\": 2048}");
    struct plan_question q = question(path, "v100-32gx3");
    q.overhead = (size_t)1536 << 20;
    const struct plan_answer *a = ask(&q);
    cr_assert_not(a->fits);
    cr_assert_str_eq(a->binding, "tensor_parallel");
    valid_are(a, (const size_t[]){1, 2, 4, 13, 26, 52}, 6);
    q.n_gpus = q.tensor_parallel = 4;
    a = ask(&q);
    cr_assert(a->fits);
    close_to((double)a->max_tokens, 31.9e3, 0.02, "33B on four V100");
    path = write_config("{\"architectures\": [\"Phi3ForCausalLM\"], \"num_hidden_layers\": 40, \"hidden_size\": 5120, \"num_attention_heads\": 40,"
                        "\"num_key_value_heads\": 10, \"intermediate_size\": 17920, \"vocab_size\": 32064, \"max_position_embeddings\": 4096}");
    q = question(path, "a100-80gx20");
    a = ask(&q);
    valid_are(a, (const size_t[]){1, 2, 5, 10, 20, 40}, 6);
    cr_assert_eq(a->kv_bytes_per_token, 2 * 2 * 40 * 10 * 128 * 2, "each head of keys twice");
    path = write_config("{\"model_type\": \"gpt2\", \"n_layer\": 48, \"n_embd\": 1600, \"n_head\": 25, \"n_positions\": 1024, \"vocab_size\": 50257}");
    q = question(path, "a100-80gx5");
    a = ask(&q);
    cr_assert(a->fits);
    cr_assert_eq(a->parameters, 1557611200, "%zu", a->parameters);
    bool padded = false;
    for (size_t i = 0; i < a->n_warnings; i++) {
        padded = padded || strstr(a->warnings[i], "padded to 50260");
    }
    cr_assert(padded);
    unlink(path);
}

/* What other engines' logs say, with the overheads that they measured. */
Test(plan_ask, real_logs) {
    struct plan_question q = question("llama-3-8b", "t4x2");
    q.gpu.memory = (size_t)(15.77 * GIB);
    q.overhead = (size_t)((0.39 + 2.53) * GIB);
    const struct plan_answer *a = ask(&q);
    close_to((double)a->ranks[0].weights / GIB, 7.51, 0.03, "weights of a rank");
    close_to((double)a->max_tokens, 61632, 0.03, "tokens");
    q = question("qwen2.5-7b", "a100-80g");
    close_to(262144.0 * (double)ask(&q)->kv_bytes_per_token / GIB, 14.0, 0.02, "KV of a million-token model at 262,144");
}

Test(plan_ask, six_cards_of_which_two_are_idle) {
    struct plan_question q = question("llama-3.1-70b", "rtx-a6000x6");
    cr_assert_str_eq(ask(&q)->binding, "tensor_parallel");
    q.tensor_parallel = 4;
    q.max_model_len = 8192;
    const struct plan_answer *a = ask(&q);
    cr_assert(a->fits);
    close_to((double)a->max_tokens, 102e3, 0.02, "tokens");
    bool idle = false;
    for (size_t i = 0; i < a->n_warnings; i++) {
        idle = idle || strstr(a->warnings[i], "2 of 6 cards");
    }
    cr_assert(idle);
    q.tensor_parallel = 2;
    q.pipeline_parallel = 3;
    a = ask(&q);
    cr_assert(a->fits);
    cr_assert_eq(a->n_ranks, 6);
}

Test(plan_ask, stages_and_replicas_add_up) {
    struct plan_question q = question("llama-3-8b", "a100-80gx8");
    q.pipeline_parallel = 4;
    q.replicas = 2;
    const struct plan_answer *a = ask(&q);
    cr_assert_eq(a->tensor_parallel, 1);
    size_t sum = 0;
    for (size_t i = 0; i < a->n_ranks; i++) {
        sum += a->ranks[i].weights;
    }
    cr_assert_eq(sum, a->file_bytes, "every tensor in one stage");
    cr_assert_eq(a->kv_bytes_per_token, 131072);
    struct plan_range two = a->tokens_per_second;
    q.replicas = 1;
    q.n_gpus = 4;
    close_to(two.high, 2 * ask(&q)->tokens_per_second.high, 1e-9, "two replicas");
}

/* Training: bytes a parameter of mixed-precision Adam, and of adapters, by hand. */
Test(plan_ask, training) {
    struct plan_train_question q = {.model = "llama-2-7b", .sequence = 4096};
    struct plan_train_answer a;
    struct error err;
    cr_assert_eq(plan_train(&q, &a, &err), 0);
    cr_assert_eq(a.weights + a.gradients + a.optimizer, 16 * (size_t)6738415616);
    close_to((double)a.activations / GIB, 17, 0.02, "activations");
    q.checkpointing = true;
    cr_assert_eq(plan_train(&q, &a, &err), 0);
    close_to((double)a.activations / GIB, 1.5, 0.05, "with checkpointing");
    q = (struct plan_train_question){.model = "llama-2-7b", .kind = PLAN_TRAIN_LORA, .rank = 16};
    cr_assert_eq(plan_train(&q, &a, &err), 0);
    close_to((double)a.trained, 39.98e6, 0.001, "adapters at all matrices");
    close_to((double)(a.gradients + a.optimizer) + 2.0 * (double)a.trained, 0.64e9, 0.01, "their states");
    q = (struct plan_train_question){.model = "llama-2-70b", .zero = PLAN_ZERO_3, .n_gpus = 8};
    cr_assert_eq(plan_train(&q, &a, &err), 0);
    close_to((double)(a.weights + a.gradients + a.optimizer), 1103.6e9 / 8, 0.01, "shared among eight");
}

Test(plan_ask, the_cheapest_first) {
    struct plan_wish w = {.question = {.model = "llama-3-8b", .max_model_len = 8192, .max_sequences = 16}, .months = 12, .price_kwh = 0.2};
    struct plan_option *o = calloc(PLAN_MAX_OPTIONS, sizeof *o);
    struct error err;
    size_t n = 0;
    cr_assert_eq(plan_set_price("a100-80g", 1.5, 12000, &err), 0);
    cr_assert_eq(plan_set_price("h100-80g", 3, 28000, &err), 0);
    cr_assert_eq(plan_set_price("nothing", 3, 28000, &err), -1);
    cr_assert_eq(plan_recommend(&w, o, &n, &err), 0, "%s", err.message);
    cr_assert_gt(n, 3);
    cr_assert_str_eq(o[0].gpu.name, "a100-80g");
    cr_assert_str_eq(o[1].gpu.name, "h100-80g");
    close_to(o[0].price_cloud, 1.5 * 12 * 730, 1e-9, "rented");
    close_to(o[0].price_own, 12000 + 0.4 * 12 * 730 * 0.2, 1e-9, "owned");
    for (size_t i = 0; i < n; i++) {
        cr_assert_str_empty(o[i].gpu.why_not, "a card on which it does not run");
        cr_assert(o[i].fits);
    }
    w.latency = 1e-6;
    cr_assert_eq(plan_recommend(&w, o, &n, &err), 0);
    cr_assert_eq(n, 0, "nothing is that fast");
    free(o);
}

/* A generator of its own, so that every run asks the same. */
static uint64_t next(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

Test(plan_ask, more_never_needs_less) {
    uint64_t seed = 7;
    static const char *const names[] = {"llama-3-8b", "qwen2.5-0.5b", "gemma-3-270m", "smollm2-135m", "mixtral-8x7b"};
    static const char *const weights[] = {"auto", "int8", "int8-weight-only", "bf16"};
    static const char *const kv[] = {"f16", "int8"};
    static const char *const cards[] = {"a100-40g", "l4", "rtx-3080", "b200"};
    struct plan_question q[4];
    for (size_t i = 0; i < 4; i++) {
        q[i] = question(names[0], cards[i]);
        q[i].n_gpus = q[i].overhead = 0;
    }
    for (int i = 0; i < 10000; i++) {
        struct plan_question c = q[next(&seed) % 4];
        c.model = names[next(&seed) % 5];
        c.weights = weights[next(&seed) % 4];
        c.kv_dtype = kv[next(&seed) % 2];
        c.tensor_parallel = 1 + next(&seed) % 64;
        c.pipeline_parallel = 1 + next(&seed) % 8;
        c.replicas = 1 + next(&seed) % 2;
        c.max_sequences = 1 + next(&seed) % (next(&seed) % 2 ? 64 : 65536);
        c.max_model_len = 1 + next(&seed) % (next(&seed) % 2 ? 8192 : 16777216);
        c.memory_utilization = 0.01 + 0.99 * (double)next(&seed) / 2147483648.0;
        struct error err;
        if (plan_ask(&c, answer, &err) != 0) {
            cr_assert_eq(err.code, ERROR_INVALID, "%s", err.message);
            continue;
        }
        size_t total = answer->ranks[answer->fullest].total, shortage = answer->shortage;
        cr_assert_eq(answer->fits && shortage > 0, false);
        struct plan_question more = c;
        if (next(&seed) % 2) {
            more.max_sequences += 1 + next(&seed) % 64;
        } else {
            more.max_model_len += 1 + next(&seed) % 4096;
        }
        if (more.max_sequences > 65536 || more.max_model_len > 16777216 || plan_ask(&more, answer, &err) != 0) {
            continue;
        }
        cr_assert_geq(answer->ranks[answer->fullest].total, total);
        cr_assert_geq(answer->shortage, shortage);
    }
}

Test(plan_ask, absurd_numbers_are_refused) {
    struct error err;
    struct plan_question q = question("llama-3.1-405b", "a100-80g");
    q.max_model_len = 16777216;
    q.max_sequences = 65536;
    q.tensor_parallel = 1;
    int rc = plan_ask(&q, answer, &err);
    cr_assert(rc == 0 ? !answer->fits : err.code == ERROR_INVALID);
    q.max_model_len = (size_t)1 << 31;
    cr_assert_eq(plan_ask(&q, answer, &err), -1);
    cr_assert_eq(err.code, ERROR_INVALID);
    q.max_model_len = 1024;
    q.max_sequences = (size_t)1 << 31;
    cr_assert_eq(plan_ask(&q, answer, &err), -1);
    q.max_sequences = 1;
    q.tensor_parallel = SIZE_MAX;
    cr_assert_eq(plan_ask(&q, answer, &err), -1);
    q.tensor_parallel = 2;
    q.pipeline_parallel = SIZE_MAX / 2;
    cr_assert_eq(plan_ask(&q, answer, &err), -1);
    static const char *const bad[] = {
        "{}", "[]", "{", "{\"num_hidden_layers\": 1e9, \"hidden_size\": 8, \"num_attention_heads\": 1, \"vocab_size\": 8}",
        "{\"num_hidden_layers\": 1, \"hidden_size\": 1e300, \"num_attention_heads\": 1, \"vocab_size\": 8}",
        "{\"num_hidden_layers\": 1, \"hidden_size\": 8, \"num_attention_heads\": 3, \"num_key_value_heads\": 2, \"vocab_size\": 8}",
        "{\"num_hidden_layers\": 1, \"hidden_size\": 8.5, \"num_attention_heads\": 1, \"vocab_size\": 8}",
        "{\"num_hidden_layers\": 4096, \"hidden_size\": 1048576, \"num_attention_heads\": 65536, \"head_dim\": 65536, \"intermediate_size\": 16777216, \"num_local_experts\": 4096, \"vocab_size\": 16777216}",
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        q = question(write_config(bad[i]), "a100-80g");
        cr_assert_eq(plan_ask(&q, answer, &err), -1, "%s", bad[i]);
        cr_assert_eq(err.code, ERROR_MODEL);
    }
    unlink(write_config(""));
    q.model = "no-such-model";
    cr_assert_eq(plan_ask(&q, answer, &err), -1);
    cr_assert_eq(err.code, ERROR_MODEL);
}

Test(plan_ask, names_of_cards) {
    struct plan_gpu g;
    struct error err;
    size_t n;
    cr_assert_eq(plan_gpu_find("rtx-4090x8", NULL, &g, &n, &err), 0);
    cr_assert_eq(n, 8);
    cr_assert_str_eq(g.name, "rtx-4090");
    cr_assert_eq(plan_gpu_find("A100-80", NULL, &g, &n, &err), 0);
    cr_assert_str_eq(g.name, "a100-80g");
    cr_assert_eq(n, 1);
    cr_assert_eq(plan_gpu_find("cpu", NULL, &g, &n, &err), 0);
    cr_assert_gt(g.memory, 0);
    static const char *const bad[] = {"", "x4", "a100-80gx", "a100-80gx0", "a100-80gx99999999999999999999", "a100-80g x4", "cpux-1"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        cr_assert_eq(plan_gpu_find(bad[i], NULL, &g, &n, &err), -1, "%s", bad[i]);
        cr_assert_str_eq(err.param, "gpu");
    }
}
