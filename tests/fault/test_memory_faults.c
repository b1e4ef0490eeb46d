/*
 * Memory that fails at the n-th call, for each n, in this process: every tokenizer of the case file, chat templates,
 * request bodies, the engine from open to close. Each must succeed with the same result or fail with ERROR_MEMORY; what
 * it leaves behind is for the leak checker of the sanitizers' build. And: once open, the engine's steps ask for no
 * memory.
 *
 *     test_memory_faults TOKENIZER_CASES [EVERY-HOW-MANYETH-N]
 */
#include "fault.h"
#include "harness.h"
#include "params.h"
#include "text/jinja/jinja.h"
#include "text/tokenizer.h"

#include <cjson/cJSON.h>
#include <inferd/buf.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MODEL "fault_memory_tiny.gguf"

static uint64_t stride = 1;
static size_t n_runs;

/* Fills *result (NUL-terminated where it has anything); buf's own failure is one of memory, too. */
typedef int trial_fn(void *arg, struct buf *result, struct error *err);

static void arm(uint64_t n) {
    struct fault_state *f = fault_state();
    atomic_store(&f->alloc_struck, 0);
    atomic_store(&f->alloc_more, 0);
    atomic_store(&f->alloc_n, n);
}

/* How many calls failed. */
static uint64_t disarm(void) {
    atomic_store(&fault_state()->alloc_n, 0);
    return atomic_load(&fault_state()->alloc_struck);
}

static void for_each_n(const char *name, trial_fn *trial, void *arg) {
    struct buf expected = BUF_INIT;
    struct error err = {0};
    int rc = trial(arg, &expected, &err);
    if (rc != 0 || expected.failed) {
        CHECK(rc == 0, "%s: %s", name, err.message);
        buf_free(&expected);
        return;
    }
    uint64_t n = 1, struck;
    do {
        struct buf got = BUF_INIT;
        err = (struct error){0};
        arm(n);
        rc = trial(arg, &got, &err);
        struck = disarm();
        /* what has no code of its own: a thread that cannot be started, a file of /proc that cannot be opened */
        bool other = strstr(err.message, "thread") || strstr(err.message, "how much memory is available");
        CHECK(rc == 0 || err.code == ERROR_MEMORY || other, "%s, n = %zu: error %d: %s", name, (size_t)n, err.code,
              err.message);
        CHECK(rc == 0 || struck > 0, "%s, n = %zu: %s", name, (size_t)n, err.message);
        CHECK(rc != 0 || got.failed ||
                  (got.len == expected.len && (got.len == 0 || memcmp(got.data, expected.data, got.len) == 0)),
              "%s, n = %zu: '%s' in place of '%s'", name, (size_t)n, got.data, expected.data);
        buf_free(&got);
        n += stride;
        n_runs++;
    } while (struck > 0 && failures < 20);
    buf_free(&expected);
}

/* ---- text ---- */

struct tokenizer_trial {
    char *json;
    const cJSON *cases;
};

static int try_tokenizer(void *arg, struct buf *result, struct error *err) {
    const struct tokenizer_trial *trial = arg;
    struct tokenizer *t;
    if (tokenizer_from_json(trial->json, strlen(trial->json), &t, err) != 0) {
        return -1;
    }
    int rc = 0, left = 3;
    for (const cJSON *c = trial->cases->child; c && rc == 0 && left > 0; c = c->next, left--) {
        const char *text = cJSON_GetObjectItem(c, "text")->valuestring;
        struct tokens ids = {0};
        rc = tokenizer_encode(t, -1, text, strlen(text), NULL, TEXT_ADD_SPECIAL | TEXT_PARSE_SPECIAL, &ids, err);
        for (size_t i = 0; i < ids.n; i++) {
            buf_printf(result, "%d ", ids.ids[i]);
        }
        rc = rc == 0 ? tokenizer_decode(t, ids.ids, ids.n, false, result, err) : rc;
        tokens_free(&ids);
    }
    tokenizer_free(t);
    return rc;
}

/* As tests/unit/test_tokenizer.c puts it together. */
static char *whole_tokenizer(const cJSON *models, const cJSON *entry) {
    cJSON *whole = cJSON_CreateObject(), *item;
    cJSON *model = cJSON_Duplicate(cJSON_GetObjectItem(models, cJSON_GetObjectItem(entry, "model")->valuestring), true);
    cJSON_ArrayForEach(item, cJSON_GetObjectItem(entry, "changes")) {
        cJSON_DeleteItemFromObject(model, item->string);
        cJSON_AddItemToObject(model, item->string, cJSON_Duplicate(item, true));
    }
    cJSON_AddItemToObject(whole, "model", model);
    cJSON_ArrayForEach(item, cJSON_GetObjectItem(entry, "parts")) {
        cJSON_AddItemToObject(whole, item->string, cJSON_Duplicate(item, true));
    }
    char *json = cJSON_PrintUnformatted(whole);
    cJSON_Delete(whole);
    return json;
}

static char *read_whole(const char *path) {
    FILE *f = fopen(path, "re");
    struct buf b = BUF_INIT;
    char chunk[65536];
    for (size_t n; f && (n = fread(chunk, 1, sizeof chunk, f)) > 0;) {
        buf_append(&b, chunk, n);
    }
    if (f) {
        fclose(f);
    }
    return buf_steal(&b);
}

static void test_tokenizers(const char *path) {
    char *text = read_whole(path);
    cJSON *file = text ? cJSON_Parse(text) : NULL;
    CHECK(file, "%s cannot be read", path);
    const cJSON *entry;
    size_t number = 0;
    cJSON_ArrayForEach(entry, cJSON_GetObjectItem(file, "tokenizers")) {
        struct tokenizer_trial trial = {whole_tokenizer(cJSON_GetObjectItem(file, "models"), entry),
                                        cJSON_GetObjectItem(entry, "cases")};
        if (number++ % stride == 0) {
            for_each_n(cJSON_GetObjectItem(entry, "name")->valuestring, try_tokenizer, &trial);
        }
        cJSON_free(trial.json);
    }
    CHECK(number > 50, "only %zu tokenizers", number);
    cJSON_Delete(file);
    free(text);
}

static int try_template(void *arg, struct buf *result, struct error *err) {
    static const char messages[] =
        "[{\"role\":\"system\",\"content\":\"be brief\"},{\"role\":\"user\",\"content\":\"h\\u00e4?\","
        "\"extra\":[1,2.5,null,{\"a\":true}]}]";
    const char *source = arg;
    struct jinja *t;
    struct buf out = BUF_INIT, trusted = BUF_INIT;
    const struct jinja_input in = {.messages_json = messages,
                                   .messages_len = sizeof messages - 1,
                                   .kwargs_json = "{\"k\":[1,\"two\"]}",
                                   .kwargs_len = 15,
                                   .bos_token = "<s>",
                                   .eos_token = "</s>",
                                   .add_generation_prompt = true,
                                   .now = 1700000000};
    if (jinja_compile(source, strlen(source), &t, err) != 0) {
        return -1;
    }
    int rc = jinja_render(t, &in, &out, &trusted, err);
    if (rc == 0) {
        buf_append(result, out.data, out.len);
        result->failed |= out.failed;
    }
    buf_free(&out);
    buf_free(&trusted);
    jinja_free(t);
    return rc;
}

static void test_templates(void) {
    static const char *const sources[] = {
        "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>{{ m['content'] | trim }}{% endfor %}",
        "{% macro f(x, y=2) %}{{ x | upper ~ y }}{% endmacro %}{% for m in messages if m.role != 'system' %}{{ "
        "f(m.content) }}"
        "{{ loop.index }}{% endfor %}{% set ns = namespace(a=[]) %}{% set ns.a = ns.a + [1, 'b'] %}{{ ns.a | tojson }}",
        "{{ messages | tojson(indent=2) }}{{ k | join(',') }}{{ 'a,b,c'.split(',') | reverse | list }}",
        "{{ '%s-%d' | format('x', 3) }}{{ messages | map(attribute='role') | list }}{{ {'b': 1, 'a': [2, 3.5]} | "
        "dictsort }}",
        "{{ strftime_now('%Y') }}{% filter replace('a', 'bb') %}banana{% endfilter %}{{ range(5) | list }}{{ 2 ** 70 "
        "}}",
    };
    for (size_t i = 0; i < sizeof sources / sizeof sources[0]; i++) {
        for_each_n(sources[i], try_template, (void *)(uintptr_t)sources[i]);
    }
}

/* ---- requests ---- */

static int try_params(void *arg, struct buf *result, struct error *err) {
    const char *body = arg;
    static const char *const names[] = {"m"};
    const struct params_limits limits = {.models = names, .n_models = 1, .vocab_size = 1000, .max_n = 8};
    struct request_params p;
    if (params_parse(body, strlen(body), strstr(body, "messages") ? IN_CHAT : IN_COMPLETIONS, &limits, &p, err) != 0) {
        return -1;
    }
    buf_printf(result, "%lld %zu %zu", (long long)p.n, p.n_logit_bias, p.n_stop);
    params_free(&p);
    return 0;
}

static void test_bodies(void) {
    static const char *const bodies[] = {
        "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"n\":2,\"stop\":[\"a\",\"b\"],\"logit_"
        "bias\":"
        "{\"1\":1,\"2\":-1},\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}],\"samplers\":[\"top_k\"],"
        "\"dry_sequence_breakers\":[\"a\"],\"bad_words\":[\"x\",\"yz\"]}",
        "{\"model\":\"m\",\"prompt\":[[1,2,3],[4]],\"allowed_token_ids\":[1,2,3],\"stop_token_ids\":[5],\"seed\":3,"
        "\"repetition_detection\":{\"max_pattern_size\":4,\"min_count\":3},\"stream\":true}",
        "{\"model\":\"m\",\"prompt\":[\"one\",\"two\"],\"echo\":true,\"logprobs\":2,\"stop\":\"x\",\"request_id\":"
        "\"r\"}",
    };
    for (size_t i = 0; i < sizeof bodies / sizeof bodies[0]; i++) {
        for_each_n(bodies[i], try_params, (void *)(uintptr_t)bodies[i]);
    }
}

/* ---- the engine ---- */

static void tell(const struct engine_event *e, struct buf *result) {
    if (e->kind == ENGINE_EVENT_TOKEN) {
        buf_printf(result, " %d:%d", (int)e->id, e->token);
    } else if (e->kind == ENGINE_EVENT_DONE) {
        buf_printf(result, " %d end %d", (int)e->id, e->finish);
    }
}

/* From open to close, one request after the other, so that the order of events is always the same. */
static int try_engine(void *arg, struct buf *result, struct error *err) {
    const struct engine_config *config = arg;
    struct engine *e;
    if (engine_open(config, &e, err) != 0) {
        return -1;
    }
    int rc = 0;
    for (size_t i = 0; i < 6 && rc == 0; i++) {
        struct engine_request r = mixed_request(i);
        r.n_prompt_logprobs = i == 2 ? 2 : -1;
        r.speculative_tokens = i == 3 ? 4 : -1;
        r.max_tokens = 6;
        r.min_tokens = 0;
        rc = engine_submit(e, &r, err);
        struct engine_event event = {.kind = ENGINE_EVENT_STARTED};
        while (rc == 0 && event.kind != ENGINE_EVENT_DONE && event.kind != ENGINE_EVENT_ERROR) {
            if (engine_wait(e, &event, 60000)) {
                tell(&event, result);
            } else {
                rc = error_set(err, ERROR_INTERNAL, "no event came");
            }
        }
        if (rc == 0 && event.kind == ENGINE_EVENT_ERROR) {
            *err = event.error;
            rc = -1;
        }
    }
    engine_close(e);
    return rc;
}

static void test_engine(const char *device) {
    struct engine_config config = test_config(MODEL, 8, 64, 2048);
    config.device = device;
    for_each_n(device, try_engine, &config);
}

/* What ARCHITECTURE.md promises: a step asks for no memory. */
static void test_steps_allocate_nothing(void) {
    struct engine *e = open_engine(MODEL, 8, 64, 2048);
    struct fault_state *f = fault_state();
    for (size_t i = 0; i < 8; i++) {
        struct engine_request r = mixed_request(i);
        r.id = i;
        r.max_tokens = 60;
        r.ignore_eos = true;
        r.n_prompt_logprobs = i == 2 ? 2 : -1;
        r.speculative_tokens = i == 3 ? 4 : -1;
        submit(e, &r);
    }
    uint64_t before = atomic_load(&f->alloc_calls);
    struct engine_event event;
    size_t tokens = 0;
    for (size_t ends = 0; ends < 8 && engine_wait(e, &event, 60000);) {
        tokens += event.kind == ENGINE_EVENT_TOKEN;
        ends += event.kind == ENGINE_EVENT_DONE || event.kind == ENGINE_EVENT_ERROR;
    }
    uint64_t calls = atomic_load(&f->alloc_calls) - before;
    CHECK(tokens > 100, "%zu tokens", tokens);
    CHECK(calls == 0, "%zu calls for memory over %zu tokens", (size_t)calls, tokens);
    check_idle(e);
    engine_close(e);
}

int main(int argc, char **argv) {
    const struct tiny_model model = {.architecture = "llama", .context_length = CONTEXT, .seed = 3, .nan_token = -1};
    if (argc < 2) {
        fprintf(stderr, "usage: test_memory_faults TOKENIZER_CASES [STRIDE]\n");
        return 2;
    }
    stride = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    fill_prompts();
    if (stride == 0 || !tiny_model_write(MODEL, &model)) {
        return 2;
    }
    RUN(test_steps_allocate_nothing);
    RUN(test_engine, "cpu");
    RUN(test_engine, "null");
    RUN(test_bodies);
    RUN(test_templates);
    RUN(test_tokenizers, argv[1]);
    unlink(MODEL);
    printf("%zu runs, %d failures\n", n_runs, failures);
    return failures > 0;
}
