/*
 * A real model against an independent implementation: test_golden EXPECTED.json MODEL. EXPECTED is what make_golden.py
 * recorded from transformers in F32; MODEL is a path, or the name of an environment variable that holds it. Without
 * the recorded model (name and size) the test is skipped (exit code 77).
 *
 * For every prompt: equal token ids; KL divergence of the next-token distribution below 1e-3 on average (the 64 most
 * likely tokens and all others as one); the greedy continuation equal, or different only where the two best logits of
 * the reference lie within 0.15 (by teacher forcing: each token is predicted behind the reference's own continuation);
 * the prompt's own logprobs, and the 20 best beside each, as the engine tells them, within 0.05.
 */
#include "runner.h"

#include <inferd/json.h>
#include <inferd/text.h>

#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define CHUNK 64
#define MAX_TOKENS 4096
#define KL_LIMIT 1e-3
#define SCORE_LIMIT 0.05 /* of a logprob, absolute */
#define GAP_LIMIT 0.15

struct prediction {
    double log_sum; /* of exp(logits) */
    int32_t best;
};

struct evaluation {
    size_t vocab;
    const cJSON *positions;
    size_t at; /* positions seen so far */
    double kl_sum;
    struct prediction predictions[MAX_TOKENS];
};

static double kl_divergence(const cJSON *position, const float *logits, double log_sum) {
    const cJSON *ids = cJSON_GetObjectItemCaseSensitive(position, "ids");
    const cJSON *logprob = cJSON_GetObjectItemCaseSensitive(position, "logprobs")->child;
    double kl = 0, p_rest = 1, q_rest = 1;
    const cJSON *id;
    cJSON_ArrayForEach(id, ids) {
        double log_p = logprob->valuedouble, log_q = (double)logits[id->valueint] - log_sum;
        kl += exp(log_p) * (log_p - log_q);
        p_rest -= exp(log_p);
        q_rest -= exp(log_q);
        logprob = logprob->next;
    }
    p_rest = p_rest < 1e-9 ? 1e-9 : p_rest;
    q_rest = q_rest < 1e-9 ? 1e-9 : q_rest;
    return kl + p_rest * log(p_rest / q_rest);
}

static void look(void *arg, size_t position, const float *logits) {
    struct evaluation *e = arg;
    struct prediction *p = &e->predictions[position];
    double sum = 0;
    for (size_t i = 0; i < e->vocab; i++) {
        p->best = logits[i] > logits[p->best] ? (int32_t)i : p->best;
    }
    for (size_t i = 0; i < e->vocab; i++) {
        sum += exp((double)logits[i] - (double)logits[p->best]);
    }
    p->log_sum = (double)logits[p->best] + log(sum);
    const cJSON *expected = cJSON_GetArrayItem(e->positions, (int)e->at);
    if (expected && (size_t)cJSON_GetObjectItemCaseSensitive(expected, "at")->valueint == position) {
        e->kl_sum += kl_divergence(expected, logits, p->log_sum);
        e->at++;
    }
}

static size_t copy_ids(const cJSON *list, int32_t *out, size_t n) {
    const cJSON *id;
    cJSON_ArrayForEach(id, list) {
        if (n < MAX_TOKENS) {
            out[n++] = id->valueint;
        }
    }
    return n;
}

static bool ids_equal(const struct text *text, const char *prompt, const int32_t *ids, size_t n) {
    struct tokens t = {0};
    struct error err;
    if (text_encode(text, prompt, strlen(prompt), TEXT_ADD_SPECIAL, &t, &err) < 0) {
        printf("  encode: %s\n", err.message);
        return false;
    }
    bool equal = t.n == n && memcmp(t.ids, ids, n * sizeof *ids) == 0;
    for (size_t i = 0; i < t.n && !equal; i++) {
        if (i >= n || t.ids[i] != ids[i]) {
            printf("  token %zu is %d, expected %d (%zu tokens, expected %zu)\n", i, t.ids[i], i < n ? ids[i] : -1, t.n,
                   n);
            break;
        }
    }
    tokens_free(&t);
    return equal;
}

/* Returns how many of the three checks failed. */
static int check_case(struct runner *r, const struct text *text, const cJSON *c, double *worst_kl) {
    static struct evaluation e;
    static int32_t ids[MAX_TOKENS];
    const char *prompt = cJSON_GetObjectItemCaseSensitive(c, "prompt")->valuestring;
    const cJSON *gap = cJSON_GetObjectItemCaseSensitive(c, "gaps")->child;
    struct error err;
    int failures = 0;
    size_t n = copy_ids(cJSON_GetObjectItemCaseSensitive(c, "ids"), ids, 0);
    if (!ids_equal(text, prompt, ids, n)) {
        printf("FAIL token ids: %.60s\n", prompt);
        failures++;
    }
    size_t total = copy_ids(cJSON_GetObjectItemCaseSensitive(c, "continuation"), ids, n);
    memset(&e, 0, sizeof e);
    e.vocab = r->decoder->config.vocab_size;
    e.positions = cJSON_GetObjectItemCaseSensitive(c, "positions");
    if (runner_evaluate(r, ids, total, CHUNK, look, &e, &err) < 0) {
        printf("FAIL %s: %.60s\n", err.message, prompt);
        return failures + 2;
    }
    double kl = e.kl_sum / (double)e.at;
    *worst_kl = kl > *worst_kl ? kl : *worst_kl;
    if (e.at != (size_t)cJSON_GetArraySize(e.positions) || !(kl < KL_LIMIT)) {
        printf("FAIL KL divergence %g over %zu positions: %.60s\n", kl, e.at, prompt);
        failures++;
    }
    for (size_t i = n; i < total; i++, gap = gap->next) {
        if (e.predictions[i - 1].best != ids[i] && gap->valuedouble > GAP_LIMIT) {
            printf("FAIL continuation: token %zu is %d, expected %d with a lead of %g: %.60s\n", i - n,
                   e.predictions[i - 1].best, ids[i], gap->valuedouble, prompt);
            failures++;
            break;
        }
    }
    return failures;
}

/* The recorded logprob of a token after a position; NaN where it is not among the recorded ones. */
static double recorded_logprob(const cJSON *expected, int32_t id) {
    const cJSON *i = cJSON_GetObjectItemCaseSensitive(expected, "ids")->child;
    const cJSON *p = cJSON_GetObjectItemCaseSensitive(expected, "logprobs")->child;
    for (; i && p; i = i->next, p = p->next) {
        if (i->valueint == id) {
            return p->valuedouble;
        }
    }
    return NAN;
}

/* One token of the prompt, as the engine scored it: itself and the likeliest in its place. */
static void compare_scores(const cJSON *expected, const struct engine_event *e, double *worst, size_t *n) {
    double own = recorded_logprob(expected, e->token);
    if (!isnan(own)) {
        *worst = fmax(*worst, fabs((double)e->logprob - own));
        ++*n;
    }
    for (size_t k = 0; k < e->n_top; k++) {
        double top = recorded_logprob(expected, e->top[k].id);
        if (!isnan(top)) {
            *worst = fmax(*worst, fabs((double)e->top[k].logprob - top));
            ++*n;
        }
    }
}

/* The prompt's logprobs, asked of the engine. Returns how many checks failed. */
static int check_scores(struct engine *e, const cJSON *c, double *worst) {
    static int32_t ids[MAX_TOKENS];
    static struct engine_event event;
    struct engine_request r;
    struct error err;
    engine_request_default(&r);
    r.id = 1;
    r.prompt = ids;
    r.n_prompt = copy_ids(cJSON_GetObjectItemCaseSensitive(c, "ids"), ids, 0);
    r.score_only = true;
    r.n_prompt_logprobs = 20;
    if (engine_submit(e, &r, &err) < 0) {
        printf("FAIL %s\n", err.message);
        return 1;
    }
    const cJSON *expected = cJSON_GetObjectItemCaseSensitive(c, "positions")->child;
    size_t position = 0, compared = 0;
    do {
        if (!engine_wait(e, &event, 60000)) {
            printf("FAIL no event for a minute\n");
            return 1;
        }
        if (event.kind == ENGINE_EVENT_PROMPT) {
            /* what was recorded `at` a position is about the token behind it */
            while (expected && (size_t)cJSON_GetObjectItemCaseSensitive(expected, "at")->valueint + 1 < position) {
                expected = expected->next;
            }
            if (expected && (size_t)cJSON_GetObjectItemCaseSensitive(expected, "at")->valueint + 1 == position) {
                compare_scores(expected, &event, worst, &compared);
            }
            position++;
        }
    } while (event.kind != ENGINE_EVENT_DONE && event.kind != ENGINE_EVENT_ERROR);
    /* of 20 likeliest tokens hardly any is missing among the 64 of the reference */
    size_t positions = (size_t)cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(c, "positions")) - 1;
    if (event.kind != ENGINE_EVENT_DONE || position != r.n_prompt || compared < positions * 19) {
        printf("FAIL %zu of %zu tokens were scored, %zu values compared\n", position, r.n_prompt, compared);
        return 1;
    }
    return 0;
}

static char *read_file(const char *path, size_t *len) {
    FILE *f = fopen(path, "rb");
    long size = 0;
    if (!f || fseek(f, 0, SEEK_END) != 0 || (size = ftell(f)) < 0 || fseek(f, 0, SEEK_SET) != 0) {
        return NULL;
    }
    char *data = malloc((size_t)size + 1);
    *len = data ? fread(data, 1, (size_t)size, f) : 0;
    fclose(f);
    return data;
}

/* The model's path, NULL when it is not there or not the one that was recorded. */
static const char *find_model(const char *given, const cJSON *expected) {
    struct stat st;
    const char *path = getenv(given) ? getenv(given) : given;
    double size = cJSON_GetObjectItemCaseSensitive(expected, "size")->valuedouble;
    return stat(path, &st) == 0 && (double)st.st_size == size ? path : NULL;
}

int main(int argc, char **argv) {
    size_t len = 0;
    struct error err;
    cJSON *expected;
    char *json = argc == 3 ? read_file(argv[1], &len) : NULL;
    if (!json || json_parse(json, len, NULL, &expected, &err) < 0) {
        fprintf(stderr, "usage: test_golden EXPECTED.json MODEL\n");
        return 2;
    }
    free(json);
    const char *model = find_model(argv[2], expected);
    if (!model) {
        printf("skipped: %s is not the model that was recorded, %s\n", argv[2],
               cJSON_GetObjectItemCaseSensitive(expected, "model")->valuestring);
        cJSON_Delete(expected);
        return 77;
    }
    struct engine_config config;
    struct runner r;
    struct text *text;
    engine_config_default(&config);
    config.model = model;
    config.kv_tokens = config.max_model_len = MAX_TOKENS;
    config.cpu_variant = getenv("INFERD_TEST_VARIANT");
    config.tensor_parallel = getenv("INFERD_TEST_RANKS") ? strtoul(getenv("INFERD_TEST_RANKS"), NULL, 10) : 1;
    if (text_open(model, &text, &err) < 0 || runner_open(&r, &config, CHUNK, &err) < 0) {
        fprintf(stderr, "%s\n", err.message);
        return 1;
    }
    int failures = 0, cases = 0;
    double worst_kl = 0;
    const cJSON *c;
    cJSON_ArrayForEach(c, cJSON_GetObjectItemCaseSensitive(expected, "cases")) {
        failures += check_case(&r, text, c, &worst_kl);
        cases++;
    }
    printf("%s: %d prompts, largest mean KL divergence of one %.2e, %d failures (%s)\n", r.decoder->config.arch->name,
           cases, worst_kl, failures, r.backend_info.variant);
    runner_close(&r);
    text_free(text);
    struct engine *engine;
    if (engine_open(&config, &engine, &err) < 0) {
        fprintf(stderr, "%s\n", err.message);
        return 1;
    }
    double worst_score = 0;
    cJSON_ArrayForEach(c, cJSON_GetObjectItemCaseSensitive(expected, "cases")) {
        failures += check_scores(engine, c, &worst_score);
    }
    engine_close(engine);
    failures += !(worst_score < SCORE_LIMIT);
    printf("logprobs of the prompts' tokens: largest difference %.2e, %d failures\n", worst_score, failures);
    cJSON_Delete(expected);
    return failures > 0 || cases == 0 ? 1 : 0;
}
