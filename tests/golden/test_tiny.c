/*
 * Every architecture against an independent implementation: test_tiny EXPECTED.json. EXPECTED holds configurations,
 * tensor names and logits that make_tiny.py recorded from transformers in F32. The weights are rebuilt here from their
 * formula and written as a safetensors model, in F32, F16 and BF16 by turns (the values are exact in all three).
 */
#include "tiny_write.h"

#include "runner.h"
#include "sampler.h"

#include <inferd/json.h>

#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LIMIT                                                                                                          \
    5e-4 /* relative, in the 2-norm; the reference rounds K and V to F16 as the KV cache does, all else is F32 */

#define MAX_LOGITS 10      /* rows: fewer than a chunk of the prompt has, so that its logits come in several parts */
#define SCORE_LIMIT 1e-3 /* of the logprob of the token that follows, absolute; logits are as large as 44 */

struct comparison {
    const cJSON *positions;
    size_t vocab;
    const int32_t *ids;
    size_t n;
    struct sampler *sampler;
    int at;
    double worst, worst_score;
};

/* The prompt's own next token, as the engine scores it, beside the reference's log softmax. */
static void compare_score(struct comparison *c, int32_t next, const float *logits, const cJSON *want) {
    struct sample got;
    double sum = 0, of_next = 0;
    uint32_t rank = 1;
    int32_t i = 0;
    for (const cJSON *z = want; z; z = z->next, i++) {
        of_next = i == next ? z->valuedouble : of_next;
        sum += exp(z->valuedouble);
    }
    i = 0;
    for (const cJSON *z = want; z; z = z->next, i++) {
        rank += z->valuedouble > of_next || (z->valuedouble == of_next && i < next);
    }
    if (sampler_score(c->sampler, logits, next, 3, &got) != SAMPLE_OK || got.n_top != 3 || got.rank != rank) {
        c->worst_score = NAN;
        return;
    }
    double difference = fabs((double)got.logprob - (of_next - log(sum)));
    c->worst_score = difference > c->worst_score ? difference : c->worst_score;
}

static void compare(void *arg, size_t position, const float *logits) {
    struct comparison *c = arg;
    const cJSON *expected = cJSON_GetArrayItem(c->positions, c->at);
    if (!expected || (size_t)get(expected, "at")->valueint != position) {
        return;
    }
    double difference = 0, norm = 0;
    const cJSON *want = get(expected, "logits")->child;
    if (position + 1 < c->n) {
        compare_score(c, c->ids[position + 1], logits, want);
    }
    for (size_t i = 0; i < c->vocab && want; i++, want = want->next) {
        difference += ((double)logits[i] - want->valuedouble) * ((double)logits[i] - want->valuedouble);
        norm += want->valuedouble * want->valuedouble;
    }
    double relative = sqrt(difference / norm);
    c->worst = relative > c->worst || isnan(relative) ? relative : c->worst;
    c->at++;
}

static int check_case(const char *folder, const cJSON *c, const char *variant, size_t ranks) {
    struct engine_config config;
    struct runner r;
    struct sampler sampler;
    struct error err;
    int32_t ids[512];
    size_t n = 0;
    const cJSON *id;
    cJSON_ArrayForEach(id, get(c, "ids")) {
        ids[n++] = id->valueint;
    }
    engine_config_default(&config);
    config.model = folder;
    config.threads = 2;
    config.cpu_variant = variant;
    config.tensor_parallel = ranks;
    config.kv_tokens = 128;
    if (!write_model(folder, c) || runner_open(&r, &config, MAX_LOGITS, &err) < 0) {
        printf("FAIL %s: %s\n", get(c, "name")->valuestring, err.message);
        return 1;
    }
    if (sampler_init(&sampler, r.decoder->config.vocab_size, 1, &err) < 0) {
        printf("FAIL %s\n", err.message);
        runner_close(&r);
        return 1;
    }
    static const size_t chunks[] = {64, 7, 1};
    int failures = 0;
    for (size_t i = 0; i < 3; i++) {
        struct comparison got = {.positions = get(c, "positions"),
                                 .vocab = r.decoder->config.vocab_size,
                                 .ids = ids,
                                 .n = n,
                                 .sampler = &sampler};
        if (runner_evaluate(&r, ids, n, chunks[i], compare, &got, &err) < 0 ||
            got.at != cJSON_GetArraySize(got.positions) || !(got.worst < LIMIT) || !(got.worst_score < SCORE_LIMIT)) {
            printf("FAIL %s in chunks of %zu on %zu ranks: relative difference of the logits %g, difference of a logprob %g\n",
                   get(c, "name")->valuestring, chunks[i], ranks, got.worst, got.worst_score);
            failures++;
        } else if (i == 0) {
            printf("%s (%s): %.1e, logprobs %.1e\n", get(c, "name")->valuestring, r.backend_info.variant, got.worst,
                   got.worst_score);
        }
    }
    sampler_destroy(&sampler);
    runner_close(&r);
    return failures;
}

int main(int argc, char **argv) {
    char folder[] = "/tmp/inferd-tiny-XXXXXX", path[64];
    size_t len = 0;
    struct error err;
    cJSON *cases;
    char *json = argc > 1 ? read_file(argv[1], &len) : NULL;
    if (!json || json_parse(json, len, NULL, &cases, &err) < 0 || !mkdtemp(folder)) {
        fprintf(stderr, "usage: test_tiny EXPECTED.json\n");
        return 2;
    }
    free(json);
    int failures = cJSON_GetArraySize(cases) == 0;
    const cJSON *c;
    cJSON_ArrayForEach(c, cases) {
        failures += check_case(folder, c, "generic", 1);
        failures += check_case(folder, c, NULL, 1);
        failures += check_case(folder, c, NULL, 2);
        failures += check_case(folder, c, "generic", 4);
    }
    static const char *const names[] = {"model.safetensors", "config.json"};
    for (size_t i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        unlink(path);
    }
    rmdir(folder);
    cJSON_Delete(cases);
    printf("%d failures\n", failures);
    return failures != 0;
}
