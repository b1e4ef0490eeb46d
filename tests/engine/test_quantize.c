/*
 * quantize_model on tiny models: what it writes loads again and computes nearly the same, wherever it is interrupted and
 * goes on the bytes are the same, and what is in the way is refused with a sentence.
 */
#include "runner.h"
#include "tiny_model.h"

#include "../unit/gguf_build.h"

#include <inferd/quantize.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int failures;

#define CHECK(condition, ...)                                                                                          \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            printf("FAIL %s:%d: %s: ", __FILE__, __LINE__, #condition);                                                \
            printf(__VA_ARGS__);                                                                                       \
            printf("\n");                                                                                              \
            failures++;                                                                                                \
        }                                                                                                              \
    } while (0)

static char folder[64] = "/dev/shm/inferd-quantize-XXXXXX"; /* hundreds of syncs: a disk takes its time */
static const char *const architectures[] = {"llama", "qwen2", "qwen3", "gemma3"};

/* The path of a name in the test's folder; the same pointer for the same name. */
static const char *in(const char *name) {
    static struct {
        const char *name;
        char path[256];
    } known[32];
    size_t i = 0;
    while (known[i].name && strcmp(known[i].name, name) != 0) {
        i++;
    }
    known[i].name = name;
    snprintf(known[i].path, sizeof known[i].path, "%s/%s", folder, name);
    return known[i].path;
}

static void write_model(const char *architecture) {
    const struct tiny_model model = {
        .architecture = architecture, .context_length = 256, .seed = 7, .nan_token = -1, .chat_template = "{{ bos_token }}x"};
    if (!tiny_model_write(in("model.gguf"), &model)) {
        exit(2);
    }
}

static void write_text(void) {
    struct buf b = BUF_INIT;
    uint32_t random = 1;
    for (size_t i = 0; i < 4000; i++) {
        random = random * 1664525 + 1013904223;
        buf_putc(&b, (char)('a' + (random >> 24) % 26));
    }
    if (!write_file(folder, "text", b.data, b.len)) {
        exit(2);
    }
    buf_free(&b);
}

static struct quantize_config options(const char *out) {
    struct quantize_config c;
    quantize_config_default(&c);
    c.model = in("model.gguf");
    c.calibration = in("text");
    c.out = out;
    c.samples = 3;
    c.sample_tokens = 50;
    c.threads = 2;
    return c;
}

static void remove_folder(const char *path) {
    static const char *const names[] = {"config.json",           "model.safetensors",      "tokenizer.json",
                                        "tokenizer_config.json", "generation_config.json", "inferd-quantize.progress",
                                        "model.safetensors.index.json"};
    char file[512];
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        snprintf(file, sizeof file, "%s/%s", path, names[i]);
        unlink(file);
    }
    for (int n = 1; n < 64; n++) {
        for (int i = 1; i <= n; i++) {
            snprintf(file, sizeof file, "%s/model-%05d-of-%05d.safetensors", path, i, n);
            unlink(file);
        }
    }
    rmdir(path);
}

static char *read_bytes(const char *path, const char *name, size_t *n) {
    char file[512];
    snprintf(file, sizeof file, "%s/%s", path, name);
    FILE *f = fopen(file, "rb");
    char *data = malloc(8 << 20);
    *n = f ? fread(data, 1, 8 << 20, f) : 0;
    if (f) {
        fclose(f);
    }
    return data;
}

static bool same_files(const char *a, const char *b) {
    static const char *const names[] = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json",
                                        "generation_config.json"};
    bool same = true;
    for (size_t i = 0; i < 5; i++) {
        size_t n, m;
        char *x = read_bytes(a, names[i], &n), *y = read_bytes(b, names[i], &m);
        same = same && n > 0 && n == m && memcmp(x, y, n) == 0;
        free(x);
        free(y);
    }
    return same;
}

/* ---- logits ---- */

enum { N_IDS = 40, ROWS = 260 };
static float logits[2][N_IDS][ROWS];

static void keep(void *arg, size_t position, const float *row) {
    float(*to)[ROWS] = arg;
    memcpy(to[position], row, sizeof to[0]);
}

/* The model as it is, or what was made of it computed with float activations: quantising the inputs is the engine's part. */
static bool evaluate(const char *path, float (*to)[ROWS]) {
    struct engine_config config;
    struct runner r;
    struct error err;
    int32_t ids[N_IDS];
    for (int i = 0; i < N_IDS; i++) {
        ids[i] = 'a' + i * 7 % 26;
    }
    engine_config_default(&config);
    config.model = path;
    config.threads = 2;
    config.kv_tokens = 256;
    config.weights = "bf16";
    if (runner_open(&r, &config, 8, &err) < 0) {
        printf("FAIL %s: %s\n", path, err.message);
        return false;
    }
    bool ok = runner_evaluate(&r, ids, N_IDS, 16, keep, to, &err) == 0;
    runner_close(&r);
    return ok;
}

static double difference(void) {
    double d = 0, norm = 0;
    for (size_t i = 0; i < N_IDS; i++) {
        for (size_t k = 0; k + 1 < ROWS; k++) { /* but for the row that would always win */
            double x = (double)logits[0][i][k], y = (double)logits[1][i][k];
            d += (x - y) * (x - y);
            norm += x * x;
        }
    }
    return sqrt(d / norm);
}

/* Every architecture, smoothed or not, clipped or not, with GPTQ or without: nearly the same logits. */
static void loads_again(void) {
    static const struct {
        double alpha;
        bool mse, gptq;
    } ways[] = {{0, false, false}, {0.8, false, false}, {0.5, true, true}};
    for (size_t a = 0; a < 4; a++) {
        write_model(architectures[a]);
        if (!evaluate(in("model.gguf"), logits[0])) {
            failures++;
            continue;
        }
        for (size_t i = 0; i < 3; i++) {
            struct quantize_config c = options(in("out"));
            struct quantize_result r;
            struct error err = {0};
            c.alpha = ways[i].alpha;
            c.clip_mse = ways[i].mse;
            c.gptq = ways[i].gptq;
            c.calibration = i == 0 ? NULL : c.calibration;
            int rc = quantize_model(&c, &r, &err);
            CHECK(rc == 0, "%s: %s", architectures[a], err.message);
            if (rc == 0 && evaluate(in("out"), logits[1])) {
                double d = difference();
                printf("%s, alpha %g%s: weights %.4f, logits %.4f\n", architectures[a], c.alpha, c.gptq ? ", gptq" : "",
                       r.weight_error, d);
                /* a rounding error of 1/254 of a row's largest weight, in three layers, and BF16 beside */
                CHECK(r.weight_error > 0 && r.weight_error < 0.03, "%s", architectures[a]);
                CHECK(d > 0 && d < 0.03, "%s: the logits differ by %g", architectures[a], d);
            } else {
                failures++;
            }
            remove_folder(in("out"));
        }
    }
}

/* ---- interruptions ---- */

struct stopper {
    size_t at; /* how often it may be asked */
};

static bool count_down(void *arg, const struct quantize_progress *p) {
    struct stopper *s = arg;
    return p->total > 0 && s->at-- == 0;
}

static void resumes(bool gptq) {
    struct quantize_result r;
    struct error err = {0};
    struct quantize_config whole = options(in("whole"));
    whole.gptq = gptq;
    CHECK(quantize_model(&whole, &r, &err) == 0, "%s", err.message);
    CHECK(r.resumed_layers == 0 && r.layers == 3, "%zu", r.resumed_layers);
    size_t most_resumed = 0, stops = 0;
    for (size_t at = 0; at < 1000; at++) {
        struct stopper s = {at};
        struct quantize_config c = options(in("out"));
        c.gptq = gptq;
        c.progress = count_down;
        c.progress_arg = &s;
        int rc = quantize_model(&c, &r, &err);
        if (rc == 0) {
            CHECK(stops > 20, "only %zu places to stop", stops);
            remove_folder(in("out"));
            break;
        }
        stops++;
        CHECK(err.code == ERROR_UNAVAILABLE, "%s", err.message);
        CHECK(access(in("out"), F_OK) != 0, "a half-written folder after %zu", at);
        c.progress = NULL;
        c.threads = 1; /* the number of threads decides nothing */
        CHECK(quantize_model(&c, &r, &err) == 0, "%s", err.message);
        CHECK(!r.began_anew, "at %zu", at);
        CHECK(same_files(in("out"), in("whole")), "stopped at %zu, %zu layers resumed", at, r.resumed_layers);
        most_resumed = r.resumed_layers > most_resumed ? r.resumed_layers : most_resumed;
        remove_folder(in("out"));
    }
    CHECK(most_resumed == 3, "at most %zu layers were taken over", most_resumed);
    remove_folder(in("whole"));
}

/* Stop after two layers, spoil something, go on. */
static void stop_in_layer(struct quantize_config *c, size_t layer) {
    struct quantize_result r;
    struct error err;
    for (size_t at = 0; at < 1000; at++) {
        struct stopper s = {at};
        c->progress = count_down;
        c->progress_arg = &s;
        if (quantize_model(c, &r, &err) == 0) {
            CHECK(false, "never stopped in layer %zu", layer);
            break;
        }
        size_t n;
        free(read_bytes(in("out.partial"), "inferd-quantize.progress", &n));
        if (n >= (layer + 2) * 65) {
            break;
        }
    }
    c->progress = NULL;
}

static void spoilt_layers_are_made_again(void) {
    struct quantize_result r;
    struct error err = {0};
    struct quantize_config whole = options(in("whole"));
    CHECK(quantize_model(&whole, &r, &err) == 0, "%s", err.message);

    struct quantize_config c = options(in("out"));
    stop_in_layer(&c, 2);
    FILE *f = fopen(in("out.partial/model.safetensors"), "r+b");
    fseek(f, -1000, SEEK_END); /* in the last layer's bytes, which are not there yet, or are: both must do */
    fputs("spoilt", f);
    fclose(f);
    f = fopen(in("out.partial/inferd-quantize.progress"), "ab");
    fputs("half a li", f);
    fclose(f);
    CHECK(quantize_model(&c, &r, &err) == 0 && same_files(in("out"), in("whole")), "%s", err.message);
    remove_folder(in("out"));

    stop_in_layer(&c, 2);
    f = fopen(in("out.partial/model.safetensors"), "r+b");
    fseek(f, 60000, SEEK_SET);
    fputs("spoilt", f);
    fclose(f);
    CHECK(quantize_model(&c, &r, &err) == 0 && same_files(in("out"), in("whole")), "%s", err.message);
    remove_folder(in("out"));

    stop_in_layer(&c, 1);
    unlink(in("out.partial/model.safetensors"));
    CHECK(quantize_model(&c, &r, &err) == 0 && r.resumed_layers == 0 && same_files(in("out"), in("whole")), "%s",
          err.message);
    remove_folder(in("out"));

    stop_in_layer(&c, 1);
    c.alpha = 0.7; /* other options: nothing of it counts */
    CHECK(quantize_model(&c, &r, &err) == 0 && r.began_anew && r.resumed_layers == 0, "%s", err.message);
    CHECK(!same_files(in("out"), in("whole")), "alpha made no difference");
    remove_folder(in("out"));
    remove_folder(in("whole"));
}

/* ---- what is in the way ---- */

static void refused(struct quantize_config *c, enum error_code code, const char *word) {
    struct quantize_result r;
    struct error err = {0};
    int rc = quantize_model(c, &r, &err);
    CHECK(rc < 0 && err.code == code && strstr(err.message, word), "%d \"%s\", not \"%s\"", err.code, err.message, word);
}

static void obstacles(void) {
    struct quantize_result r;
    struct error err = {0};
    struct quantize_config c = options(in("out"));
    c.calibration = NULL;
    refused(&c, ERROR_INVALID, "--calibration");
    c.alpha = 0;
    c.gptq = true;
    refused(&c, ERROR_INVALID, "GPTQ");
    c = options(in("out"));
    c.calibration = in("nowhere");
    refused(&c, ERROR_IO, "nowhere");
    write_file(folder, "short", "abc", 3);
    c.calibration = in("short");
    refused(&c, ERROR_INVALID, "2 tokens");
    c = options(in("out"));
    c.model = in("text");
    refused(&c, ERROR_MODEL, "text");
    c = options(in("no/such/folder"));
    refused(&c, ERROR_IO, "No such file");

    mkdir(in("out"), 0777); /* an empty folder is as good as none */
    c = options(in("out"));
    CHECK(quantize_model(&c, &r, &err) == 0, "%s", err.message);
    refused(&c, ERROR_INVALID, "exists");
    c.force = true;
    c.alpha = 0.3;
    CHECK(quantize_model(&c, &r, &err) == 0, "%s", err.message);
    CHECK(access(in("out.partial"), F_OK) != 0, "the folder that was replaced is still there");
    c.model = in("out");
    c.out = in("again");
    refused(&c, ERROR_INVALID, "already");
    write_file(folder, "file", "x", 1);
    c = options(in("file"));
    c.force = true;
    refused(&c, ERROR_INVALID, "not a folder");
    mkdir(in("other"), 0777);
    write_file(in("other"), "precious", "x", 1);
    c = options(in("other"));
    c.force = true;
    refused(&c, ERROR_INVALID, "not a model folder");
    CHECK(access(in("other/precious"), F_OK) == 0, "it is gone");
    mkdir(in("third.partial"), 0777);
    write_file(in("third.partial"), "precious", "x", 1);
    c = options(in("third"));
    refused(&c, ERROR_INVALID, "not of an earlier run");
    CHECK(access(in("third.partial/precious"), F_OK) == 0, "it is gone");

    unlink(in("other/precious"));
    unlink(in("third.partial/precious"));
    rmdir(in("other"));
    rmdir(in("third.partial"));
    unlink(in("file"));
    unlink(in("short"));
    remove_folder(in("out"));
}

/* Several files with an index read as one model; broken models end with a sentence and leave no OUT. */
static void shards_and_broken_models(void) {
    struct quantize_result r;
    struct error err = {0};
    write_model("llama");
    struct quantize_config c = options(in("out"));
    c.alpha = 0;
    c.calibration = NULL;
    c.shard_bytes = 1 << 16;
    CHECK(quantize_model(&c, &r, &err) == 0 && r.files > 3, "%zu files, %s", r.files, err.message);
    CHECK(evaluate(in("model.gguf"), logits[0]) && evaluate(in("out"), logits[1]) && difference() < 0.03, "%g",
          difference());
    remove_folder(in("out"));

    const struct tiny_model broken[] = {
        {.architecture = "llama", .context_length = 256, .seed = 1, .nan_token = -1, .missing = "blk.1.ffn_up.weight"},
        {.architecture = "llama", .context_length = 256, .seed = 1, .nan_token = -1, .swapped = "blk.1.ffn_up.weight"},
        {.architecture = "llama", .context_length = 256, .seed = 1, .nan_token = -1, .not_finite = "blk.1.ffn_norm.weight"},
        {.architecture = "llama", .context_length = 256, .seed = 1, .nan_token = 5},
        {.architecture = "llama", .context_length = 256, .seed = 1, .nan_token = -1, .extra = "blk.0.strange.weight"},
    };
    for (size_t i = 0; i < sizeof broken / sizeof broken[0]; i++) {
        tiny_model_write(in("model.gguf"), &broken[i]);
        int rc = quantize_model(&c, &r, &err);
        CHECK(rc < 0 && (err.code == ERROR_MODEL || err.code == ERROR_UNSUPPORTED), "%zu: %s", i, err.message);
        CHECK(access(in("out"), F_OK) != 0, "%zu", i);
        remove_folder(in("out.partial"));
    }
}

int main(void) {
    if (!mkdtemp(folder)) {
        strcpy(folder, "/tmp/inferd-quantize-XXXXXX");
        if (!mkdtemp(folder)) {
            return 2;
        }
    }
    write_text();
    loads_again();
    write_model("llama");
    resumes(false);
    spoilt_layers_are_made_again();
    obstacles();
    write_model("gemma3");
    resumes(true);
    shards_and_broken_models();
    unlink(in("model.gguf"));
    unlink(in("text"));
    rmdir(folder);
    printf(failures ? "%d failures\n" : "ok\n", failures);
    return failures ? 1 : 0;
}
