/*
 * Checkpoints of every quantised layout against independent implementations: test_quantized EXPECTED.json. EXPECTED holds
 * configurations, the tensors' recipes and logits that make_quantized.py recorded. Each is written as a folder of a
 * safetensors model, opened, and asked for its logits; the type that its matrices were made into is checked as well.
 */
#include "../unit/gguf_build.h"
#include "runner.h"

#include <inferd/json.h>
#include <inferd/plan.h>

#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LIMIT 5e-4 /* relative, in the 2-norm */
/* A rounding to 8 bits falls the other way where sums in another order differ in the last bit. */
#define LIMIT_I8 5e-3
#define LIMIT_I8_RANKS 8e-2 /* what rounding to 8 bits does to these models, once more */
#define LIMIT_BLOCKS 4e-3 /* activations of 14 bits, 8e-5 a product, which models of two random layers make more of */

static const cJSON *get(const cJSON *object, const char *key) {
    return cJSON_GetObjectItemCaseSensitive(object, key);
}

static const char *get_string(const cJSON *object, const char *key, const char *otherwise) {
    const cJSON *item = get(object, key);
    return item ? item->valuestring : otherwise;
}

/* make_quantized.py's `hashed` */
static uint64_t hash(uint64_t tensor, uint64_t i) {
    uint64_t z = ((tensor << 32) + i) * 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

/* Exact for the values here: at most 8 significant bits, or less than 2^-14. */
static uint16_t half_of(float x) {
    int e;
    uint16_t sign = x < 0 ? 0x8000 : 0;
    x = fabsf(x);
    if (x < 0x1p-14f) {
        return (uint16_t)(sign | (int)ldexpf(x, 24));
    }
    float m = frexpf(x, &e); /* x = m * 2^e, m in [0.5, 1) */
    return (uint16_t)(sign | (e + 14) << 10 | ((int)ldexpf(m, 11) & 1023));
}

static void put_real(struct buf *b, const char *type, float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if (strcmp(type, "F32") == 0) {
        put_le(b, bits, 4);
    } else if (strcmp(type, "F16") == 0) {
        put_le(b, half_of(x), 2);
    } else {
        put_le(b, bits >> 16, 2);
    }
}

static size_t type_size(const char *type) {
    return strcmp(type, "I64") == 0                                ? 8
           : strcmp(type, "F32") == 0 || strcmp(type, "I32") == 0  ? 4
           : strcmp(type, "F16") == 0 || strcmp(type, "BF16") == 0 ? 2
                                                                   : 1;
}

/* Element i of the k-th tensor by its recipe: [name, type, shape, kind, exponent, add]. */
static void put_element(struct buf *b, const cJSON *t, uint64_t k, size_t i) {
    const char *type = cJSON_GetArrayItem(t, 1)->valuestring;
    const cJSON *kind = cJSON_GetArrayItem(t, 3);
    int e = cJSON_GetArrayItem(t, 4)->valueint;
    uint64_t h = hash(k, i);
    if (cJSON_IsArray(kind)) {
        int64_t v = (int64_t)cJSON_GetArrayItem(kind, (int)i)->valuedouble;
        if (strcmp(type, "F16") == 0) {
            put_real(b, type, (float)v);
        } else {
            put_le(b, (uint64_t)v, (int)type_size(type));
        }
    } else if (strcmp(kind->valuestring, "float") == 0) {
        put_real(b, type, ldexpf((float)(int8_t)(h >> 56), e) + (float)cJSON_GetArrayItem(t, 5)->valuedouble);
    } else if (strcmp(kind->valuestring, "scale") == 0) {
        put_real(b, type, ldexpf((float)((h >> 58) + 32), e));
    } else if (strcmp(kind->valuestring, "e4m3") == 0) {
        put_le(b, h >> 56 & 0xbf, 1);
    } else {
        put_le(b, type_size(type) == 1 ? h >> 56 : h >> 32, (int)type_size(type));
    }
}

static bool write_json(const char *folder, const char *name, const cJSON *json) {
    char *text = cJSON_PrintUnformatted(json);
    bool ok = write_file(folder, name, text, strlen(text));
    free(text);
    return ok;
}

static bool write_model(const char *folder, const cJSON *c) {
    struct buf header = BUF_INIT, data = BUF_INIT, file = BUF_INIT;
    uint64_t k = 1;
    const cJSON *t, *dim;
    buf_putc(&header, '{');
    cJSON_ArrayForEach(t, get(c, "tensors")) {
        char *shape = cJSON_PrintUnformatted(cJSON_GetArrayItem(t, 2));
        size_t n = 1, begin = data.len;
        cJSON_ArrayForEach(dim, cJSON_GetArrayItem(t, 2)) {
            n *= (size_t)dim->valueint;
        }
        for (size_t i = 0; i < n; i++) {
            put_element(&data, t, k, i);
        }
        buf_printf(&header, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[%zu,%zu]}", k == 1 ? "" : ",",
                   cJSON_GetArrayItem(t, 0)->valuestring, cJSON_GetArrayItem(t, 1)->valuestring, shape, begin, data.len);
        free(shape);
        k++;
    }
    buf_putc(&header, '}');
    put_u64(&file, header.len);
    buf_append(&file, header.data, header.len);
    buf_append(&file, data.data, data.len);
    bool ok = write_file(folder, "model.safetensors", file.data, file.len) &&
              write_json(folder, "config.json", get(c, "config"));
    const cJSON *extra;
    cJSON_ArrayForEach(extra, get(c, "files")) {
        ok = ok && write_json(folder, extra->string, extra);
    }
    buf_free(&header);
    buf_free(&data);
    buf_free(&file);
    return ok;
}

static void remove_files(const char *folder) {
    static const char *const names[] = {"model.safetensors", "config.json", "quantize_config.json", "hf_quant_config.json"};
    char path[128];
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        unlink(path);
    }
}

struct comparison {
    const cJSON *positions;
    size_t vocab;
    int at;
    double worst;
};

static void compare(void *arg, size_t position, const float *logits) {
    struct comparison *c = arg;
    const cJSON *expected = cJSON_GetArrayItem(c->positions, c->at);
    if (!expected || (size_t)get(expected, "at")->valueint != position) {
        return;
    }
    double difference = 0, norm = 0;
    const cJSON *want = get(expected, "logits")->child;
    for (size_t i = 0; i < c->vocab && want; i++, want = want->next) {
        difference += ((double)logits[i] - want->valuedouble) * ((double)logits[i] - want->valuedouble);
        norm += want->valuedouble * want->valuedouble;
    }
    double relative = sqrt(difference / norm);
    c->worst = relative > c->worst || isnan(relative) ? relative : c->worst;
    c->at++;
}

/* Bytes of weights that `inferd plan` expects of the folder; 0: it does not say. */
static size_t planned_weights(const char *folder, const char *weights, size_t ranks) {
    struct plan_question q = {.tensor_parallel = ranks, .model = folder, .weights = weights, .max_model_len = 64, .max_sequences = 1};
    struct plan_answer *a = malloc(sizeof *a);
    struct error err;
    size_t bytes = 0;
    if (a && plan_gpu_find("cpu", NULL, &q.gpu, &q.n_gpus, &err) == 0 && plan_ask(&q, a, &err) == 0) {
        bytes = a->ranks[0].weights;
    }
    free(a);
    return bytes;
}

/* ranks > 1: the same, each with its part. Where these quantise activations for themselves, that is another rounding. */
static int check_case(const char *folder, const cJSON *c, const char *variant, size_t ranks) {
    struct engine_config config;
    struct runner r;
    struct error err;
    int32_t ids[512];
    size_t n = 0;
    const cJSON *id;
    const char *name = get(c, "name")->valuestring;
    cJSON_ArrayForEach(id, get(c, "ids")) {
        ids[n++] = id->valueint;
    }
    engine_config_default(&config);
    config.model = folder;
    config.threads = 2;
    config.cpu_variant = variant;
    config.kv_tokens = 128;
    config.weights = get_string(c, "weights", "auto");
    config.tensor_parallel = ranks;
    bool written = write_model(folder, c);
    int rc = written ? runner_open(&r, &config, 10, &err) : -1;
    size_t planned = written ? planned_weights(folder, config.weights, ranks) : 0;
    remove_files(folder);
    if (rc < 0) {
        printf("FAIL %s: %s\n", name, written ? err.message : "cannot be written");
        return 1;
    }
    int failures = 0;
    /* of the part, the kinds of which may be wider where it begins within a block or group */
    const struct weight *w = &r.decoder->weights.layers[1].q;
    enum activation_quant activation = get(c, "activation") ? (enum activation_quant)get(c, "activation")->valueint
                                                            : ACTIVATION_FLOAT;
    if (strcmp(dtype_info(w->dtype)->name, get_string(c, "dtype", "")) != 0 || w->activation != activation) {
        printf("FAIL %s: its matrices became %s with activation %d\n", name, dtype_info(w->dtype)->name, (int)w->activation);
        failures++;
    }
    if (planned != r.decoder->weights.bytes) {
        printf("FAIL %s: %zu bytes of weights were planned, %zu loaded\n", name, planned, r.decoder->weights.bytes);
        failures++;
    }
    struct comparison got = {.positions = get(c, "positions"), .vocab = r.decoder->config.vocab_size};
    bool blocks = dtype_info(w->dtype)->block > 1 && strcmp(r.backend_info.variant, "generic") != 0;
    bool rounds = activation != ACTIVATION_FLOAT, own = activation == ACTIVATION_I8_TOKEN || activation == ACTIVATION_I8_TOKEN_ZERO;
    double limit = rounds ? (ranks > 1 && own ? LIMIT_I8_RANKS : LIMIT_I8) : blocks ? LIMIT_BLOCKS : LIMIT;
    if (runner_evaluate(&r, ids, n, 7, compare, &got, &err) < 0 || got.at != cJSON_GetArraySize(got.positions) ||
        !(got.worst < limit)) {
        printf("FAIL %s, %zu ranks: relative difference of the logits %g\n", name, ranks, got.worst);
        failures++;
    } else {
        printf("%s (%s, %zu ranks): %s, %.1e\n", name, r.backend_info.variant, ranks, dtype_info(w->dtype)->name, got.worst);
    }
    runner_close(&r);
    return failures;
}

static char *read_file(const char *path, size_t *len) {
    FILE *f = fopen(path, "rb");
    char *data = malloc(1 << 20);
    *len = f && data ? fread(data, 1, 1 << 20, f) : 0;
    if (f) {
        fclose(f);
    }
    return data;
}

int main(int argc, char **argv) {
    char folder[] = "/tmp/inferd-quantized-XXXXXX";
    size_t len = 0;
    struct error err;
    cJSON *cases;
    char *json = argc > 1 ? read_file(argv[1], &len) : NULL;
    if (!json || json_parse(json, len, NULL, &cases, &err) < 0 || !mkdtemp(folder)) {
        fprintf(stderr, "usage: test_quantized EXPECTED.json\n");
        return 2;
    }
    free(json);
    int failures = cJSON_GetArraySize(cases) == 0;
    const cJSON *c;
    cJSON_ArrayForEach(c, cases) {
        failures += check_case(folder, c, "generic", 1);
        failures += check_case(folder, c, NULL, 1);
        failures += check_case(folder, c, "generic", 2);
        failures += check_case(folder, c, NULL, 4); /* heads of keys and values are in two ranks each */
    }
    rmdir(folder);
    cJSON_Delete(cases);
    printf("%d failures\n", failures);
    return failures != 0;
}
