/* `inferd plan`: will a model fit, on what, and how fast. The arithmetic is the engine's (include/inferd/plan.h). */
#include "cmd/plan.h"

#include "cmd/cmd.h"

#include <inferd/json.h>

#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <inferd/engine.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct plan_options {
    char *gpu, *prices, *chart, *train, *zero;
    size_t tensor_parallel, pipeline_parallel, replicas, max_sequences, max_batched_tokens, overhead, prompt, max_gpus, rank;
    double latency, months, price_kwh;
    bool json, recommend, checkpointing, gpus, models;
};

#define AT(field) #field, .offset = offsetof(struct plan_options, field)
static const struct setting rows[] = {
    {AT(gpu), .type = SETTING_STRING, .initial = "", .value = "CARD[xN]", .group = "What it runs on",
     .help = "a card of the catalogue and how many: a100-80gx4; cpu: this machine's memory; local: the GPU here; empty: local "
             "where there is one, else cpu"},
    {AT(tensor_parallel), .type = SETTING_INT, .initial = "0", .min = 0, .max = PLAN_MAX_TP, .alias = "tp", .group = "What it runs on",
     .help = "cards that share each layer; 0: all that there are"},
    {AT(pipeline_parallel), .type = SETTING_INT, .initial = "1", .min = 1, .max = PLAN_MAX_RANKS, .alias = "pp", .group = "What it runs on",
     .help = "stages of layers, one behind the other"},
    {AT(replicas), .type = SETTING_INT, .initial = "1", .min = 1, .max = PLAN_MAX_RANKS, .group = "What it runs on",
     .help = "whole copies of the model on cards of their own"},
    {AT(max_sequences), .type = SETTING_INT, .initial = "0", .min = 0, .max = 65536, .alias = "batch", .group = "Load",
     .help = "requests computed together, each with the whole context (--ctx); 0: one must fit, and the most is told"},
    {AT(max_batched_tokens), .type = SETTING_INT, .initial = "512", .min = 1, .max = 65536, .group = "Load",
     .help = "tokens computed in one step"},
    {AT(prompt), .type = SETTING_INT, .initial = "0", .min = 0, .max = 16777216, .value = "TOKENS", .group = "Load",
     .help = "prompt that the time to the first token is estimated for; 0: 512, or the context"},
    {AT(overhead), .type = SETTING_SIZE, .initial = "0", .min = 0, .max = 1099511627776, .group = "Load",
     .help = "bytes of each card for all but weights and KV, in place of what is computed"},
    {AT(prices), .type = SETTING_STRING, .initial = "", .value = "FILE", .group = "Price",
     .help = "JSON with your prices: {\"a100-80g\": {\"hour\": 1.9, \"buy\": 15000}}, in one currency"},
    {AT(recommend), .type = SETTING_BOOL, .initial = "false", .group = "Price",
     .help = "list the catalogue's set-ups that fit, the cheapest first"},
    {AT(latency), .type = SETTING_NUMBER, .initial = "0", .min = 0, .max = 60000, .value = "MS", .group = "Price",
     .help = "with --recommend: milliseconds that a token may take at the most, by the estimate's slow end; 0: any"},
    {AT(max_gpus), .type = SETTING_INT, .initial = "8", .min = 1, .max = 64, .group = "Price", .help = "with --recommend: most cards"},
    {AT(months), .type = SETTING_NUMBER, .initial = "0", .min = 0, .max = 600, .group = "Price",
     .help = "with --recommend: length of the project, to compare renting with owning"},
    {AT(price_kwh), .type = SETTING_NUMBER, .initial = "0", .min = 0, .max = 100, .group = "Price",
     .help = "price of a kilowatt-hour for cards that are owned"},
    {AT(train), .type = SETTING_CHOICE, .initial = "no", .choices = "no full lora qlora", .group = "Training",
     .help = "advice on the memory of training, which inferd does not do"},
    {AT(rank), .type = SETTING_INT, .initial = "16", .min = 1, .max = 65536, .group = "Training", .help = "of the adapters of lora and qlora"},
    {AT(checkpointing), .type = SETTING_BOOL, .initial = "false", .group = "Training", .help = "activations are computed again in place of being kept"},
    {AT(zero), .type = SETTING_CHOICE, .initial = "0", .choices = "0 1 2 3", .group = "Training", .help = "what the cards share (ZeRO's stage)"},
    {AT(chart), .type = SETTING_STRING, .initial = "", .value = "FILE.svg", .group = "Output",
     .help = "draw the memory of each rank, and which contexts and batches fit"},
    {AT(gpus), .type = SETTING_BOOL, .initial = "false", .group = "Output", .help = "list the catalogue of cards"},
    {AT(models), .type = SETTING_BOOL, .initial = "false", .group = "Output", .help = "list the built-in models"},
    {AT(json), .type = SETTING_BOOL, .initial = "false", .group = "Output", .help = "print JSON"},
};

/* ---- prices ---- */

static int set_price(const cJSON *item, struct error *err) {
    const cJSON *hour = cJSON_GetObjectItemCaseSensitive(item, "hour"), *buy = cJSON_GetObjectItemCaseSensitive(item, "buy");
    double h = cJSON_IsNumber(hour) ? hour->valuedouble : 0, b = cJSON_IsNumber(buy) ? buy->valuedouble : 0;
    if (!cJSON_IsObject(item) || (hour && !cJSON_IsNumber(hour)) || (buy && !cJSON_IsNumber(buy)) || !(h >= 0 && h <= 1e9) || !(b >= 0 && b <= 1e12)) {
        return error_set(err, ERROR_MODEL, "%.40s: it must be an object of hour and buy, numbers from 0 on", item->string);
    }
    return plan_set_price(item->string, h, b, err);
}

static int read_prices(const char *path, struct error *err) {
    struct buf text = BUF_INIT;
    cJSON *json = NULL;
    const cJSON *item;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return error_set(err, ERROR_MODEL, "%s: %s", path, strerror(errno));
    }
    int rc = cmd_read_all(fd, 1 << 20, &text, err);
    close(fd);
    if (rc == 0) {
        rc = json_parse(text.data, text.len, NULL, &json, err);
    }
    if (rc == 0 && !cJSON_IsObject(json)) {
        rc = error_set(err, ERROR_MODEL, "it is not a JSON object");
    }
    cJSON_ArrayForEach(item, json) {
        rc = rc == 0 ? set_price(item, err) : rc;
    }
    if (rc != 0) {
        err->code = ERROR_MODEL;
        error_prefix(err, "%s", path);
    }
    cJSON_Delete(json);
    buf_free(&text);
    return rc;
}

/* ---- lists ---- */

static void gpus_as_json(const struct plan_gpu *g, size_t n) {
    for (size_t i = 0; i < n; i++) {
        printf("%s{\"name\": \"%s\", \"full_name\": \"%s\", \"memory_bytes\": %zu, \"bandwidth\": %.6g, \"int8\": %.6g, \"bf16\": %.6g, "
               "\"fp8\": %.6g, \"link\": \"%s\", \"link_bandwidth\": %.6g, \"watts\": %.6g, \"price_hour\": %.6g, \"price_buy\": %.6g, "
               "\"why_not\": \"%s\"}",
               i ? ",\n " : "{\"gpus\": [", g[i].name, g[i].full_name, g[i].memory, g[i].bandwidth, g[i].int8, g[i].bf16, g[i].fp8, g[i].link,
               g[i].link_bandwidth, g[i].watts, g[i].price_hour, g[i].price_buy, g[i].why_not);
    }
    puts("]}");
}

static int list_gpus(bool json, struct error *err) {
    const struct plan_gpu *g;
    size_t n;
    if (plan_gpus(&g, &n, err) != 0) {
        return -1;
    }
    if (json) {
        gpus_as_json(g, n);
        return 0;
    }
    printf("%-20s %10s %9s %9s %9s %7s\n", "card", "memory GiB", "GB/s", "INT8 T/s", "BF16 T/s", "link");
    for (size_t i = 0; i < n; i++) {
        printf("%-20s %10.1f %9.0f %9.0f %9.0f %7s%s%s\n", g[i].name, (double)g[i].memory / 1073741824.0, g[i].bandwidth / 1e9,
               g[i].int8 / 1e12, g[i].bf16 / 1e12, g[i].link, g[i].why_not[0] ? "  inferd does not run here: " : "", g[i].why_not);
    }
    printf("Figures of the makers' data sheets, dense; memory as drivers report it. Nothing of it was measured.\n");
    return 0;
}

static void list_models(bool json) {
    const char *name;
    for (size_t i = 0; (name = plan_model_name(i)); i++) {
        if (json) {
            printf("%s\"%s\"", i ? ", " : "{\"models\": [", name);
        } else {
            puts(name);
        }
    }
    if (json) {
        puts("]}");
    }
}

/* ---- the question ---- */

static int find_gpu(const struct plan_options *o, const struct config *c, struct plan_question *q, struct error *err) {
    const char *module = c->cuda_module;
    struct error none;
    if (o->gpu[0]) {
        return plan_gpu_find(o->gpu, module, &q->gpu, &q->n_gpus, err);
    }
    if (strcmp(c->device, "cpu") != 0 && plan_gpu_find("local", module, &q->gpu, &q->n_gpus, &none) == 0) {
        return 0;
    }
    return plan_gpu_find("cpu", NULL, &q->gpu, &q->n_gpus, err);
}

static struct plan_question question_of(const struct plan_options *o, const struct config *c) {
    return (struct plan_question){.model = c->model,
                                  .tensor_parallel = o->tensor_parallel,
                                  .pipeline_parallel = o->pipeline_parallel,
                                  .replicas = o->replicas,
                                  .weights = c->weights,
                                  .kv_dtype = c->kv_dtype,
                                  .max_model_len = c->max_model_len,
                                  .max_sequences = o->max_sequences,
                                  .kv_tokens = c->kv_tokens,
                                  .max_batched_tokens = o->max_batched_tokens,
                                  .kv_block_size = c->kv_block_size,
                                  .memory_utilization = c->memory_utilization,
                                  .overhead = o->overhead,
                                  .prompt = o->prompt};
}

static int write_chart(const struct plan_options *o, const struct plan_question *q, const struct plan_answer *a, struct error *err) {
    struct buf svg = BUF_INIT;
    int rc = plan_chart(q, a, &svg, err);
    if (rc == 0) {
        FILE *f = fopen(o->chart, "we");
        bool written = f && fwrite(svg.data, 1, svg.len, f) == svg.len;
        if ((f && fclose(f) != 0) || !written) {
            rc = error_set(err, ERROR_IO, "%s cannot be written: %s", o->chart, strerror(errno));
        }
    }
    buf_free(&svg);
    return rc;
}

static int ask(const struct plan_options *o, const struct plan_question *q, struct error *err) {
    struct plan_answer *a = malloc(sizeof *a);
    struct buf text = BUF_INIT;
    int code = a ? 0 : cmd_fail((error_memory(err), err));
    if (a && (plan_ask(q, a, err) != 0 || (o->chart[0] && write_chart(o, q, a, err) != 0))) {
        code = cmd_fail(err);
    } else if (a) {
        if (o->json) {
            plan_print_json(q, a, &text);
        } else {
            plan_print(q, a, &text);
        }
        fwrite(text.data, 1, text.len, stdout);
        code = a->fits ? 0 : exit_code(ERROR_DOES_NOT_FIT);
    }
    buf_free(&text);
    free(a);
    return code;
}

static int recommend(const struct plan_options *o, const struct plan_question *q, struct error *err) {
    const struct plan_wish w = {.question = *q, .latency = o->latency / 1e3, .max_gpus = o->max_gpus, .months = o->months,
                                .price_kwh = o->price_kwh};
    struct plan_option *found = calloc(PLAN_MAX_OPTIONS, sizeof *found);
    struct buf text = BUF_INIT;
    size_t n = 0;
    int code;
    if (!found || plan_recommend(&w, found, &n, err) != 0) {
        code = cmd_fail(found ? err : (error_memory(err), err));
    } else {
        plan_print_options(&w, found, n, o->json, &text);
        fwrite(text.data, 1, text.len, stdout);
        code = n > 0 ? 0 : exit_code(ERROR_DOES_NOT_FIT);
    }
    buf_free(&text);
    free(found);
    return code;
}

static int train(const struct plan_options *o, const struct plan_question *q, struct error *err) {
    const struct plan_train_question t = {
        .model = q->model,
        .kind = strcmp(o->train, "full") == 0   ? PLAN_TRAIN_FULL
                : strcmp(o->train, "lora") == 0 ? PLAN_TRAIN_LORA
                                                : PLAN_TRAIN_QLORA,
        .zero = (enum plan_zero)(o->zero[0] - '0'),
        .n_gpus = q->n_gpus,
        .rank = o->rank,
        .checkpointing = o->checkpointing,
        .batch = q->max_sequences,
        .sequence = q->max_model_len,
    };
    struct plan_train_answer a;
    struct buf text = BUF_INIT;
    if (plan_train(&t, &a, err) != 0) {
        return cmd_fail(err);
    }
    plan_print_training(q, &t, &a, o->json, &text);
    fwrite(text.data, 1, text.len, stdout);
    buf_free(&text);
    return a.total <= (size_t)((double)q->gpu.memory * q->memory_utilization) ? 0 : exit_code(ERROR_DOES_NOT_FIT);
}

/* What would be asked for and not be answered is refused. */
static int check_together(const struct plan_options *o, struct error *err) {
    bool trains = strcmp(o->train, "no") != 0;
    const char *beside = o->chart[0] ? "chart" : o->recommend && o->gpu[0] ? "gpu" : trains ? "train" : NULL;
    if ((o->recommend && beside) || (trains && o->chart[0])) {
        return error_set_param(err, ERROR_INVALID, beside, "--%s does not go together with --%s", beside, o->recommend ? "recommend" : "train");
    }
    return 0;
}

static int run(const struct plan_options *o, const struct config *c, struct error *err) {
    struct plan_question q = question_of(o, c);
    if (o->prices[0] && read_prices(o->prices, err) != 0) {
        return cmd_fail(err);
    }
    if (o->gpus) {
        return list_gpus(o->json, err) == 0 ? 0 : cmd_fail(err);
    }
    if (o->models) {
        list_models(o->json);
        return 0;
    }
    if (q.model[0] == '\0') {
        error_set_param(err, ERROR_INVALID, "model", "no model is named: inferd plan MODEL, a path or a name (--models lists them)");
        return cmd_fail(err);
    }
    if (check_together(o, err) != 0) {
        return cmd_fail(err);
    }
    if (o->recommend) {
        return recommend(o, &q, err);
    }
    if (find_gpu(o, c, &q, err) != 0) {
        return cmd_fail(err);
    }
    return strcmp(o->train, "no") != 0 ? train(o, &q, err) : ask(o, &q, err);
}

int cmd_plan(int argc, char **argv) {
    struct plan_options o;
    const struct command_line line = {
        .help = {.usage = "inferd plan MODEL [options]",
                 .about = "Tell whether a model fits, on which cards, and about how fast it is there: from its headers alone (a\n"
                          ".gguf file, a model folder, a bare config.json, or the name of a built-in model), by the\n"
                          "arithmetic that the server takes its memory by. Exit code 0: it fits; 3: it does not.",
                 .examples = "  inferd plan llama-3-8b --gpu a100-80g --ctx 8192 --batch 32\n"
                             "  inferd plan llama-2-70b --gpu a100-80gx4 --weights int8 --kv int8 --ctx 4096\n"
                             "  inferd plan model.gguf                       on this machine\n"
                             "  inferd plan --recommend --model qwen2.5-32b --ctx 16384 --batch 8 --prices prices.json\n"
                             "  inferd plan llama-2-7b --train lora --rank 16 --gpu a100-40g --batch 1 --ctx 4096\n"},
        .own = {rows, sizeof rows / sizeof rows[0]},
        .own_values = &o,
        .config_only = SETTING_ENGINE,
        .max_operands = 1,
        .model_operand = true,
    };
    struct command_state state;
    struct error err;
    int code;
    if (!cmd_begin(&line, argc, argv, &state, &code)) {
        return code;
    }
    code = run(&o, &state.config, &err);
    cmd_end(&line, &state);
    return code;
}
