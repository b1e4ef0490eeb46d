/*
 * `quantize_model` against SmoothQuant in torch: test_tiny_int8 TINY.json TINY_INT8.json. The models of make_tiny.py, with a
 * vocabulary of 64 characters and a text of 90 of them for calibration; norms, biases, scales and integers as make_tiny_int8.py
 * recorded them.
 */
#include "tiny_write.h"

#include "model_file/model_file.h"
#include "quant/dequant.h"

#include <inferd/json.h>
#include <inferd/quantize.h>

#include <unistd.h>

static int failures;

/* One character a token: '0' is 0, 'o' is 63. */
static bool write_tokenizer(const char *folder, const cJSON *ids) {
    struct buf json = BUF_INIT, text = BUF_INIT;
    const cJSON *id;
    buf_puts(&json, "{\"version\":\"1.0\",\"added_tokens\":[],\"normalizer\":null,\"pre_tokenizer\":null,\"post_processor\":null,"
                    "\"decoder\":{\"type\":\"Fuse\"},\"model\":{\"type\":\"BPE\",\"merges\":[],\"vocab\":{");
    for (char i = 0; i < 64; i++) {
        char c = (char)('0' + i);
        buf_puts(&json, i ? "," : "");
        buf_json_string(&json, &c, 1);
        buf_printf(&json, ":%d", i);
    }
    buf_puts(&json, "}}}");
    cJSON_ArrayForEach(id, ids) {
        buf_putc(&text, (char)('0' + id->valueint));
    }
    bool ok = write_file(folder, "tokenizer.json", json.data, json.len) && write_file(folder, "text", text.data, text.len);
    buf_free(&json);
    buf_free(&text);
    return ok;
}

/* Each value within one unit of BF16's last place: a factor in F32 may round to the neighbour of one in double precision. */
static void compare_floats(const char *what, const struct tensor *t, const cJSON *want) {
    size_t n = t ? t->size / dtype_info(t->dtype)->bytes : 0, i = 0;
    float *got = calloc(n ? n : 1, sizeof *got);
    const cJSON *v;
    if (t) {
        dequantize_row(t->dtype, t->data, got, n);
    }
    bool ok = n == (size_t)cJSON_GetArraySize(want) && t->dtype == DTYPE_BF16;
    cJSON_ArrayForEach(v, want) {
        ok = ok && fabs((double)got[i] - v->valuedouble) <= 1.0 / 128 * fabs(v->valuedouble) + 1e-7;
        i++;
    }
    if (!ok) {
        printf("FAIL %s: %zu values, the first %g, not %g\n", what, n, n ? (double)got[0] : 0, want->child->valuedouble);
        failures++;
    }
    free(got);
}

static int digit(char c) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *at = strchr(digits, c);
    return c && at ? (int)(at - digits) : 0;
}

static int8_t byte_of(const char *base64, size_t i) {
    const char *four = base64 + i / 3 * 4;
    int bits = digit(four[0]) << 18 | digit(four[1]) << 12 | digit(four[2]) << 6 | digit(four[3]);
    return (int8_t)(bits >> (16 - 8 * (i % 3)));
}

/* The same integers; where a scale went to its neighbour in BF16, large ones may be off by one. */
static void compare_integers(const char *what, const struct tensor *t, const char *want) {
    size_t n = t ? t->size : 0, off = 0, wrong = t ? 0 : 1;
    for (size_t i = 0; i < n; i++) {
        int d = abs(((const int8_t *)t->data)[i] - byte_of(want, i));
        off += d == 1;
        wrong += d > 1;
    }
    if (wrong > 0 || off > n / 50 || strlen(want) != (n + 2) / 3 * 4) {
        printf("FAIL %s: of %zu integers %zu are off by one, %zu by more\n", what, n, off, wrong);
        failures++;
    }
}

static void compare_layer(const struct model_file *f, const char *model, size_t layer, const cJSON *want, bool post_norms) {
    static const struct {
        const char *key, *name;
    } vectors[] = {{"attn_norm", "input_layernorm.weight"},
                   {"ffn_norm", "post_attention_layernorm.weight"},
                   {"v_bias", "self_attn.v_proj.bias"}};
    char name[128], what[256];
    for (size_t i = 0; i < 3; i++) {
        bool moved = post_norms && i == 1;
        snprintf(name, sizeof name, "model.layers.%zu.%s", layer,
                 moved ? "pre_feedforward_layernorm.weight" : vectors[i].name);
        snprintf(what, sizeof what, "%s: %s", model, name);
        if (get(want, vectors[i].key)) {
            compare_floats(what, model_file_find(f, name), get(want, vectors[i].key));
        }
    }
    const cJSON *m;
    cJSON_ArrayForEach(m, want) {
        if (!cJSON_IsObject(m)) {
            continue;
        }
        const char *part = strchr("qkvo", m->string[0]) && m->string[1] == '_' ? "self_attn" : "mlp";
        snprintf(name, sizeof name, "model.layers.%zu.%s.%s.weight", layer, part, m->string);
        snprintf(what, sizeof what, "%s: %s", model, name);
        compare_integers(what, model_file_find(f, name), get(m, "q")->valuestring);
        snprintf(name, sizeof name, "model.layers.%zu.%s.%s.weight_scale", layer, part, m->string);
        snprintf(what, sizeof what, "%s: %s", model, name);
        compare_floats(what, model_file_find(f, name), get(m, "scale"));
    }
}

static void check_case(const char *folder, const cJSON *model, const cJSON *want) {
    const char *name = get(want, "name")->valuestring;
    char text[128], out[128];
    struct quantize_config c;
    struct quantize_result r;
    struct model_file *f;
    struct error err = {0};
    snprintf(text, sizeof text, "%s/text", folder);
    snprintf(out, sizeof out, "%s/out", folder);
    quantize_config_default(&c);
    c.model = folder;
    c.out = out;
    c.calibration = text;
    c.samples = 1;
    c.sample_tokens = 90;
    c.alpha = 0.8;
    c.force = true;
    if (!write_model(folder, model) || !write_tokenizer(folder, get(model, "ids")) || quantize_model(&c, &r, &err) < 0 ||
        model_file_open(out, &f, &err) < 0) {
        printf("FAIL %s: %s\n", name, err.message);
        failures++;
        return;
    }
    bool gemma = strcmp(name, "gemma3") == 0;
    compare_layer(f, name, 0, cJSON_GetArrayItem(get(want, "layers"), 0), gemma);
    compare_layer(f, name, r.layers - 1, cJSON_GetArrayItem(get(want, "layers"), 1), gemma);
    model_file_close(f);
    printf("%s: weights %.4f\n", name, r.weight_error);
}

static cJSON *parse(const char *path) {
    size_t len;
    struct error err;
    cJSON *json = NULL;
    char *text = read_file(path, &len);
    if (text && json_parse(text, len, NULL, &json, &err) < 0) {
        json = NULL;
    }
    free(text);
    return json;
}

int main(int argc, char **argv) {
    char folder[] = "/tmp/inferd-tiny-XXXXXX", path[128];
    cJSON *models = argc > 2 ? parse(argv[1]) : NULL, *wanted = argc > 2 ? parse(argv[2]) : NULL;
    if (!models || !wanted || !mkdtemp(folder)) {
        fprintf(stderr, "usage: test_tiny_int8 TINY.json TINY_INT8.json\n");
        return 2;
    }
    size_t done = 0;
    const cJSON *want, *model;
    cJSON_ArrayForEach(want, wanted) {
        cJSON_ArrayForEach(model, models) {
            if (strcmp(get(model, "name")->valuestring, get(want, "name")->valuestring) == 0) {
                check_case(folder, model, want);
                done++;
            }
        }
    }
    static const char *const names[] = {"out/model.safetensors", "out/config.json", "out/tokenizer.json", "out",
                                        "model.safetensors",     "config.json",     "tokenizer.json",     "text"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        remove(path);
    }
    rmdir(folder);
    cJSON_Delete(models);
    cJSON_Delete(wanted);
    return failures || done != 4 ? 1 : 0;
}
