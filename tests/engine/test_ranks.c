/*
 * Tensor parallelism over CPU ranks: the same model on 1, 2 and 4 of them gives the same logits but for rounding, and at each
 * number the same bits whatever the company; numbers that do not go are refused; a rank that stalls or fails ends it for all.
 */
#include "harness.h"
#include "logits.h"

#include "runner.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---- the threads alone ---- */

struct task {
    _Atomic int ran;
    int fails;      /* this rank, < 0 none */
    int sleeps;     /* this one for `ms`, < 0 none */
    long ms;
};

static void sleep_ms(long ms) {
    nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL);
}

static int do_task(void *arg, size_t rank, struct error *err) {
    struct task *t = arg;
    t->ran++;
    if ((int)rank == t->sleeps) {
        sleep_ms(t->ms);
    }
    return (int)rank == t->fails ? error_set(err, ERROR_DEVICE, "broken") : 0;
}

static void tasks_come_to_all(void) {
    struct ranks *r;
    struct error err;
    CHECK(ranks_open(0, 100, &r, &err) < 0 && ranks_open(COLLECTIVE_MAX_RANKS + 1, 100, &r, &err) < 0, "so many");
    for (size_t n = 1; n <= 4; n++) {
        struct task t = {.fails = -1, .sleeps = -1};
        if (ranks_open(n, 10000, &r, &err) < 0) {
            CHECK(false, "%s", err.message);
            return;
        }
        for (int i = 0; i < 500; i++) {
            CHECK(ranks_run(r, do_task, &t, i % 2, &err) == 0, "%s", err.message);
            CHECK(t.ran == (i + 1) * (int)n, "task %d ran %d times", i, t.ran);
        }
        t.fails = (int)n - 1;
        CHECK(ranks_run(r, do_task, &t, true, &err) < 0 && err.code == ERROR_DEVICE && strstr(err.message, "broken"), "%s",
              err.message);
        CHECK(n == 1 || strstr(err.message, "rank"), "%s", err.message);
        CHECK(!ranks_lost(r), "it came back");
        t.fails = -1;
        CHECK(ranks_run(r, do_task, &t, true, &err) == 0, "who fails is asked again");
        ranks_close(r);
    }
    ranks_close(NULL);
}

/* What a lost rank may still look at is left behind on purpose. */
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>
#else
#define __lsan_disable()
#define __lsan_enable()
#endif

/* One that does not come back in time is lost, and what it works on may not be touched. */
static void a_rank_is_lost(void) {
    static struct task t = {.fails = -1, .sleeps = 2, .ms = 1500}; /* static: it is looked at later */
    struct ranks *r;
    struct error err;
    __lsan_disable();
    int rc = ranks_open(3, 100, &r, &err);
    __lsan_enable();
    if (rc < 0) {
        CHECK(false, "%s", err.message);
        return;
    }
    CHECK(ranks_run(r, do_task, &t, true, &err) < 0 && err.code == ERROR_DEVICE && strstr(err.message, "did not come back"),
          "%s", err.message);
    CHECK(ranks_lost(r), "it is at it still");
    CHECK(ranks_run(r, do_task, &t, true, &err) < 0 && err.code == ERROR_DEVICE, "nothing comes behind it");
    ranks_close(r);
    sleep_ms(2000); /* its thread ends before the program does */
}

/* ---- logits ---- */

static struct engine_config config_of(const char *model, size_t n) {
    struct engine_config c = test_config(model, 8, 64, 4 * CONTEXT);
    c.tensor_parallel = n;
    c.rank_timeout = 120; /* of a sanitized run on a busy machine */
    return c;
}

static void evaluate(const struct engine_config *c, size_t chunk, struct logits *out) {
    struct runner r;
    struct error err;
    out->n = 0;
    if (runner_open(&r, c, 0, &err) < 0) {
        CHECK(false, "%zu ranks: %s", c->tensor_parallel, err.message);
        return;
    }
    CHECK(runner_evaluate(&r, prompts[1], PROMPT, chunk, logits_keep, out, &err) == 0, "%s", err.message);
    CHECK(out->n == PROMPT, "%zu rows", out->n);
    runner_close(&r);
}

/* tolerance 0: activations are rounded to 8 bits, by each rank for itself, so that the numbers of ranks may differ by two
 * roundings that have nothing to do with one another; one is measured, beside weights that are not rounded. */
static void logits_are_the_same(const char *model, const char *weights, const char *kv, double tolerance) {
    static struct logits alone, got, again;
    struct engine_config c = config_of(model, 1);
    c.weights = weights;
    c.kv_dtype = kv;
    evaluate(&c, 64, &alone);
    if (tolerance <= 0) {
        size_t others;
        c.weights = "auto";
        evaluate(&c, 64, &got);
        c.weights = weights;
        tolerance = sqrt(2) * logits_distance(&alone, &got, &others);
        printf("    rounding to 8 bits: %.1e\n", tolerance / sqrt(2));
    }
    for (size_t n = 2; n <= 4; n *= 2) {
        size_t others;
        c.tensor_parallel = n;
        evaluate(&c, 64, &got);
        double d = logits_distance(&got, &alone, &others);
        CHECK(d <= tolerance && others == 0, "%zu ranks: %g, %zu other tokens", n, d, others);
        printf("    %s weights, %s KV, %zu ranks: %.1e\n", weights, kv, n, d);
        evaluate(&c, 7, &again);
        CHECK(memcmp(&got, &again, sizeof got) == 0, "%zu ranks: other bits in other chunks", n);
        c.threads = 5; /* uneven */
        evaluate(&c, 64, &again);
        c.threads = 2;
        CHECK(memcmp(&got, &again, sizeof got) == 0, "%zu ranks: other bits with other threads", n);
    }
}

/* ---- engines ---- */

static void company_changes_nothing(const char *model) {
    enum { N = 16 };
    static struct engine_request requests[N];
    static struct outcome alone[N], together[N + 1], again[N];
    for (size_t n = 2; n <= 4; n *= 2) {
        struct engine_config c = config_of(model, n);
        struct engine *e = open_config(&c);
        struct engine_info info;
        engine_get_info(e, &info);
        CHECK(info.n_ranks == n && info.tensor_parallel == n, "%zu ranks", info.n_ranks);
        for (size_t i = 0; i < n; i++) {
            CHECK(info.ranks[i].weight_bytes > 0 && info.ranks[i].kv_blocks >= info.kv_blocks && info.ranks[i].device[0],
                  "rank %zu", i);
        }
        memset(together, 0, sizeof together);
        for (size_t i = 0; i < N; i++) {
            requests[i] = mixed_request(i);
            one(e, &requests[i], &alone[i]);
        }
        for (size_t i = 0; i < N; i++) {
            submit(e, &requests[i]);
        }
        collect(e, together, N);
        for (size_t i = 0; i < N; i++) {
            CHECK(equal_outcomes(&alone[i], &together[i]), "%zu ranks, request %zu", n, i);
        }
        check_idle(e);
        engine_close(e);
        e = open_config(&c);
        memset(again, 0, sizeof again);
        for (size_t i = 0; i < N; i++) {
            submit(e, &requests[i]);
        }
        collect(e, again, N);
        for (size_t i = 0; i < N; i++) {
            CHECK(equal_outcomes(&alone[i], &again[i]), "%zu ranks, request %zu, another run", n, i);
        }
        engine_close(e);
    }
}

static void wrong_numbers(const char *model) {
    static const size_t wrong[] = {3, 5, 8, 64};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct engine_config c = config_of(model, wrong[i]);
        struct engine *e;
        struct error err;
        bool refused = engine_open(&c, &e, &err) < 0;
        CHECK(refused, "%zu ranks of 4 heads", wrong[i]);
        if (refused) {
            CHECK(err.code == ERROR_INVALID && strcmp(err.param, "tensor_parallel") == 0 && strstr(err.message, "1, 2"),
                  "%s", err.message);
        } else {
            engine_close(e);
        }
    }
}

/* ---- the file ---- */

/* What a shard computes with: the products of all its matrices, and its vectors; into out, returns how many numbers. */
static size_t fingerprint(const struct weights *w, const struct model_config *c, float *out) {
    static float x[512], y[512];
    const struct backend_ops *ops = w->ops;
    size_t n = 0;
    struct error err;
    for (size_t i = 0; i < 512; i++) {
        x[i] = (float)(i % 7) - 3;
    }
    for (size_t l = 0; l < w->n_layers + 1; l++) {
        const char *base = l < w->n_layers ? (const char *)&w->layers[l] : (const char *)w;
        const struct role *roles = l < w->n_layers ? layer_roles : model_roles;
        size_t n_roles = l < w->n_layers ? n_layer_roles : n_model_roles;
        for (size_t r = 0; r < n_roles; r++) {
            if (!role_is_present(&roles[r], c)) {
                continue;
            }
            if (role_is_matrix(&roles[r])) {
                const struct weight *m = (const struct weight *)(const void *)(base + roles[r].offset);
                const struct linear_part part = {m, NULL, y, m->n, DTYPE_F32};
                if (m->n == 0) { /* of another stage */
                    continue;
                }
                CHECK(m->n <= 512 && m->k <= 512 && ops->linear(w->backend, x, m->k, 1, &part, 1, &err) == 0, "%s", roles[r].gguf);
                memcpy(out + n, y, m->n * sizeof *y);
                n += m->n;
            } else {
                const float *v = *(const float *const *)(const void *)(base + roles[r].offset);
                out[n++] = v ? v[0] : 0;
            }
        }
    }
    return n;
}

static void load_part(const char *path, const struct shard *s, const struct model_config *c, float *out, size_t *n) {
    const struct backend_ops *ops;
    struct backend *b;
    struct model_file *f;
    struct weights w;
    struct error err;
    char why[BACKEND_WHY];
    const struct backend_config config = {.threads = 1, .max_rows = 8};
    *n = 0;
    if (backend_open("cpu", NULL, &config, &ops, &b, why, &err) < 0 || model_file_open(path, &f, &err) < 0 ||
        weights_load(&w, c, f, WEIGHTS_AUTO, s, NULL, (struct load_progress){NULL, NULL}, ops, b, &err) < 0) {
        CHECK(false, "%s", err.message);
        return;
    }
    *n = fingerprint(&w, c, out);
    weights_unload(&w);
    ops->close(b);
    model_file_close(f);
}

/* Every byte of the tensor that is not of these rows and columns becomes part of a NaN. */
static void spoil_others(FILE *file, long at, const struct tensor *t, struct range rows, struct range columns) {
    const struct dtype_info *info = dtype_info(t->dtype);
    size_t n = t->n_dims > 1 ? t->shape[0] : 1, row = t->size / n;
    size_t begin = t->n_dims > 1 ? columns.first / info->block * info->bytes : 0;
    size_t end = t->n_dims > 1 ? (columns.first + columns.n) / info->block * info->bytes : row;
    for (size_t r = 0; r < n; r++) {
        bool ours = t->n_dims == 1 || (r >= rows.first && r < rows.first + rows.n);
        for (size_t i = 0; i < row; i++) {
            if (!ours || i < begin || i >= end) {
                fseek(file, at + (long)(r * row + i), SEEK_SET);
                fputc(0xff, file);
            }
        }
    }
}

/* A rank reads none of the others' bytes: it does not notice when they are spoilt. */
static void only_own_bytes(const char *model) {
    static float clean[1 << 16], spoilt[1 << 16];
    char copy[80], command[200];
    struct model_file *f;
    struct model_config c;
    struct error err;
    snprintf(copy, sizeof copy, "%s.spoilt", model);
    for (size_t i = 0; i < 4; i++) {
        size_t n_ranks = i < 2 ? 2 : 4, rank = i % 2 ? n_ranks - 1 : 0, stages = i == 3 ? 3 : 1;
        struct shard s;
        size_t n, m;
        snprintf(command, sizeof command, "cp %s %s", model, copy);
        if (system(command) != 0 || model_file_open(model, &f, &err) < 0 || model_config_load(f, &c, &err) < 0 ||
            shard_make(&c, rank, n_ranks, stages - 1, stages, 1, &s, &err) < 0) {
            CHECK(false, "%s", err.message);
            return;
        }
        FILE *file = fopen(copy, "r+b");
        const char *base = model_file_tensor(f, 0)->data;
        long begin = 0;
        for (size_t t = 0; t < model_file_n_tensors(f); t++) { /* the first by address is where the data begins */
            const char *data = model_file_tensor(f, t)->data;
            base = data < base ? data : base;
        }
        fseek(file, 0, SEEK_END);
        size_t data_bytes = 0;
        for (size_t t = 0; t < model_file_n_tensors(f); t++) {
            size_t end = (size_t)((const char *)model_file_tensor(f, t)->data - base) + model_file_tensor(f, t)->size;
            data_bytes = end > data_bytes ? end : data_bytes;
        }
        begin = ftell(file) - (long)((data_bytes + 31) / 32 * 32);
        for (int l = -1; l < (int)c.n_layers; l++) {
            const struct role *roles = l < 0 ? model_roles : layer_roles;
            for (size_t r = 0; r < (l < 0 ? n_model_roles : n_layer_roles); r++) {
                char name[TENSOR_NAME_MAX];
                struct range rows, columns;
                if (!role_is_present(&roles[r], &c) || !role_is_matrix(&roles[r])) {
                    continue;
                }
                role_name(&roles[r], &c, true, l, name);
                const struct tensor *t = model_file_find(f, name);
                bool ours = shard_tensor(&s, &c, &roles[r], l, &rows, &columns);
                rows.n = ours ? rows.n : 0;
                spoil_others(file, begin + (long)((const char *)t->data - base), t, rows, columns);
            }
        }
        fclose(file);
        model_file_close(f);
        load_part(model, &s, &c, clean, &n);
        load_part(copy, &s, &c, spoilt, &m);
        CHECK(n > 0 && n == m && memcmp(clean, spoilt, n * sizeof clean[0]) == 0, "rank %zu of %zu, %zu stages: it read of others", rank,
              n_ranks, stages);
        for (size_t j = 0; j < n; j++) {
            if (isnan(spoilt[j])) {
                CHECK(false, "rank %zu of %zu: a NaN", rank, n_ranks);
                break;
            }
        }
    }
    unlink(copy);
}

/* ---- faults ---- */

static long stall_ms;
static const struct backend_ops *true_ops;

static int stalling_rope(struct backend *b, void *x, size_t ldx, size_t heads, size_t head_dim, const int32_t *positions,
                         size_t rows, const struct rope_table *table, struct error *err) {
    if (stall_ms < 0) {
        return error_set(err, ERROR_DEVICE, "a part of it broke");
    }
    sleep_ms(stall_ms);
    return true_ops->rope(b, x, ldx, heads, head_dim, positions, rows, table, err);
}

/* Rank 1 of 2 stalls in the middle of a step, or fails there. */
static void a_rank_stalls(const char *model, long ms, const char *reason) {
    struct engine_config c = config_of(model, 2);
    struct runner r;
    struct error err;
    static struct logits l;
    c.rank_timeout = 0.5;
    if (runner_open(&r, &c, 0, &err) < 0) {
        CHECK(false, "%s", err.message);
        return;
    }
    CHECK(runner_self_test(&r, &err) == 0, "%s", err.message);
    struct backend_ops ops = *r.ranks[1].ops;
    true_ops = r.ranks[1].ops;
    stall_ms = ms;
    ops.rope = stalling_rope;
    r.ranks[1].decoder.ops = &ops;
    CHECK(runner_evaluate(&r, prompts[1], 8, 8, logits_keep, &l, &err) < 0, "it cannot go on");
    CHECK(err.code == ERROR_DEVICE && strstr(err.message, "rank 1") && strstr(err.message, reason), "%s", err.message);
    r.ranks[1].decoder.ops = true_ops;
    CHECK(runner_evaluate(&r, prompts[1], 8, 8, logits_keep, &l, &err) < 0, "nor be taken up again");
    runner_close(&r);
}

/* rows: of the vocabulary's matrices, 0: 260. */
static void on_model(const char *architecture, uint64_t seed, uint32_t rows) {
    char path[64];
    snprintf(path, sizeof path, "/tmp/inferd-ranks-%ld.gguf", (long)getpid());
    const struct tiny_model model = {.architecture = architecture, .context_length = CONTEXT, .seed = seed, .nan_token = -1, .rows = rows};
    if (!tiny_model_write(path, &model)) {
        exit(1);
    }
    printf("%s\n", architecture);
    RUN(logits_are_the_same, path, "auto", "f16", 1e-3);
    RUN(logits_are_the_same, path, "bf16", "bf16", 1e-3);
    RUN(logits_are_the_same, path, "int8-weight-only", "f16", 1e-3);
    RUN(logits_are_the_same, path, "int8", "int8", 0);
    RUN(company_changes_nothing, path);
    RUN(only_own_bytes, path);
    if (strcmp(architecture, "llama") == 0) {
        RUN(wrong_numbers, path);
        RUN(a_rank_stalls, path, 800, "did not come within");
        RUN(a_rank_stalls, path, -1, "a part of it broke");
    }
    unlink(path);
}

int main(void) {
    fill_prompts();
    RUN(tasks_come_to_all);
    RUN(a_rank_is_lost);
    on_model("llama", 1, 0);
    on_model("qwen2", 2, 261);
    on_model("qwen3", 3, 262);
    on_model("gemma3", 4, 263);
    printf(failures ? "%d checks failed\n" : "all passed\n", failures);
    return failures != 0;
}
