/*
 * Tensor parallelism over emulated GPUs: what ranks do together, on the module as the daemon loads it, over the stand-in of NCCL;
 * and whole models on 1, 2 and 4 of them.
 *
 *     test_ranks_cuda MODULE [--all]     --all: every architecture with every type of weights, and other seeds
 */
#include "harness.h"
#include "logits.h"

#include "emu.h"
#include "runner.h"

#include <dirent.h>

#include <inferd/clock.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char *module;
static bool all;

static void configure_devices(int n, enum emu_order order, uint64_t seed) {
    struct emu_options o;
    emu_default_options(&o);
    o.devices = n;
    o.order = order;
    o.seed = seed;
    o.protect = false;
    o.poison = true;
    o.memory_bytes = (size_t)256 << 20;
    if (emu_configure(&o) != cudaSuccess) {
        printf("FAIL the emulator cannot be configured\n");
        exit(1);
    }
}

static void nothing_is_left(void) {
    struct emu_counts c;
    emu_get_counts(&c);
    CHECK(c.allocations == 0 && c.streams == 0 && c.events == 0 && c.graphs == 0,
          "%zu allocations, %zu streams, %zu events, %zu graphs are left", c.allocations, c.streams, c.events, c.graphs);
}

/* ---- models ---- */

static struct engine_config config_of(const char *model, size_t n) {
    struct engine_config c = test_config(model, 8, 64, 4 * CONTEXT);
    c.device = "cuda";
    c.cuda_module = module;
    c.tensor_parallel = n;
    c.batch_invariant = true;
    c.rank_timeout = 120; /* of a sanitized run on a busy machine */
    return c;
}

static void evaluate(const struct engine_config *c, size_t chunk, uint64_t seed, struct logits *out) {
    struct runner r;
    struct error err;
    memset(out, 0, sizeof *out);
    configure_devices((int)c->tensor_parallel, EMU_ORDER_EAGER, seed);
    if (runner_open(&r, c, 0, &err) < 0) {
        CHECK(false, "%zu ranks: %s", c->tensor_parallel, err.message);
        return;
    }
    CHECK(runner_evaluate(&r, prompts[1], PROMPT, chunk, logits_keep, out, &err) == 0, "%s", err.message);
    CHECK(out->n == PROMPT, "%zu rows", out->n);
    runner_close(&r);
    nothing_is_left();
}

/*
 * Activations are BF16 here: any other order of a sum makes some of them round otherwise, and so on through the layers. How much
 * that is is measured: the same model with activations of F32 (and, of INT8, with none that are rounded to 8 bits) on the CPU. Two
 * such roundings that have nothing to do with one another are apart by the root of twice the square of one.
 */
static double tolerance_of(const struct engine_config *config, const struct logits *alone) {
    static struct logits exact;
    struct engine_config c = *config;
    size_t others;
    c.device = "cpu";
    c.weights = strcmp(c.weights, "int8") == 0 ? "auto" : c.weights;
    evaluate(&c, 64, 1, &exact);
    return sqrt(2) * logits_distance(alone, &exact, &others);
}

static void logits_are_the_same(const char *model, const char *weights, const char *kv) {
    static struct logits alone, got, again;
    struct engine_config c = config_of(model, 1);
    c.weights = weights;
    c.kv_dtype = kv;
    evaluate(&c, 64, 1, &alone);
    double tolerance = tolerance_of(&c, &alone);
    CHECK(tolerance > 0 && tolerance < 0.12, "rounding moves logits by %g", tolerance);
    for (size_t n = 2; n <= 4; n *= 2) {
        size_t others;
        c.tensor_parallel = n;
        c.cuda_graphs = n == 2;
        evaluate(&c, 64, 1, &got);
        double d = logits_distance(&got, &alone, &others);
        printf("    %s weights, %s KV, %zu ranks: %.1e of %.1e\n", weights, kv, n, d, tolerance);
        CHECK(d > 0 && d <= tolerance && others == 0, "%zu ranks: %g, %zu other tokens", n, d, others);
        if (n == 4 || all) {
            evaluate(&c, 7, 2, &again);
            CHECK(memcmp(&got, &again, sizeof got) == 0, "%zu ranks: other bits in other chunks", n);
        }
    }
}

/* ---- engines ---- */

enum { N = 8 };
static size_t n_requests = N;

static void all_of(struct engine *e, const struct engine_request *requests, struct outcome *out) {
    memset(out, 0, N * sizeof *out);
    for (size_t i = 0; i < n_requests; i++) {
        submit(e, &requests[i]);
    }
    collect(e, out, n_requests);
}

static void same(const struct outcome *a, const struct outcome *b, size_t n, const char *what) {
    for (size_t i = 0; i < n_requests; i++) {
        CHECK(equal_outcomes(&a[i], &b[i]), "%zu ranks, request %zu: %s", n, i, what);
    }
}

static void nothing_was_taken(const struct emu_counts *a, const struct emu_counts *b) {
    CHECK(a->calls[EMU_CALL_MALLOC] == b->calls[EMU_CALL_MALLOC] && a->calls[EMU_CALL_HOST_ALLOC] == b->calls[EMU_CALL_HOST_ALLOC] &&
              a->calls[EMU_CALL_CREATE] == b->calls[EMU_CALL_CREATE] && a->functions_loaded == b->functions_loaded,
          "memory was taken while serving");
}

static void check_ranks(struct engine *e, size_t n) {
    struct engine_info info;
    engine_get_info(e, &info);
    CHECK(info.n_ranks == n && info.tensor_parallel == n, "%zu ranks", info.n_ranks);
    for (size_t i = 0; i < n; i++) {
        char device[32];
        snprintf(device, sizeof device, "CUDA device %zu,", i);
        CHECK(info.ranks[i].weight_bytes > 0 && info.ranks[i].kv_blocks >= info.kv_blocks &&
                  strncmp(info.ranks[i].device, device, strlen(device)) == 0 && strstr(info.ranks[i].links, "NCCL 2.28.9"),
              "rank %zu: %s, %s", i, info.ranks[i].device, info.ranks[i].links);
    }
}

/* Requests of all sorts: alone, together, with graphs and without, on devices that take their time. */
static void company_changes_nothing(const char *model, size_t n) {
    static struct engine_request requests[N];
    static struct outcome alone[N], got[N];
    struct engine_config c = config_of(model, n);
    struct emu_counts before, after;
    for (size_t i = 0; i < N; i++) {
        requests[i] = mixed_request(i);
    }
    configure_devices((int)n, EMU_ORDER_EAGER, 1);
    struct engine *e = open_config(&c);
    check_ranks(e, n);
    emu_get_counts(&before);
    for (size_t i = 0; i < n_requests; i++) {
        one(e, &requests[i], &alone[i]);
    }
    all_of(e, requests, got);
    same(alone, got, n, "not in company what it is alone");
    emu_get_counts(&after);
    nothing_was_taken(&before, &after);
    CHECK(after.graph_kernels_run > before.graph_kernels_run, "no graph was launched");
    check_idle(e);
    engine_close(e);
    nothing_is_left();
    c.cuda_graphs = false;
    configure_devices((int)n, EMU_ORDER_RANDOM, n);
    e = open_config(&c);
    all_of(e, requests, got);
    same(alone, got, n, "without graphs");
    engine_close(e);
    nothing_is_left();
}

/* The best ones of a row are found by each rank among its own logits; all are brought together only for who wants more, and then give the
 * same tokens. */
static void most_logits_stay(const char *model) {
    enum { GREEDY, TOP_K, TOP_K_OF_ALL, SAMPLED, KINDS, BEST = 20 };
    static const struct logit_bias nothing[] = {{65, 0}}; /* an edit, that is */
    static struct outcome out[KINDS];
    struct engine_config c = config_of(model, 4);
    struct emu_counts before, after;
    unsigned long long bytes[KINDS];
    configure_devices(4, EMU_ORDER_EAGER, 1);
    struct engine *e = open_config(&c);
    for (int i = 0; i < KINDS; i++) {
        struct engine_request r = plain_request(0, 9, 20);
        r.ignore_eos = true;
        r.sampling.temperature = i == GREEDY ? 0.0f : 1.0f;
        r.sampling.has_seed = true;
        r.sampling.seed = 5;
        r.sampling.top_k = i == TOP_K || i == TOP_K_OF_ALL ? BEST : 0;
        r.sampling.top_p = i == TOP_K || i == TOP_K_OF_ALL ? 0.9f : 1;
        r.sampling.logit_bias = nothing;
        r.sampling.n_logit_bias = i == TOP_K_OF_ALL;
        emu_get_counts(&before);
        memset(&out[i], 0, sizeof out[i]);
        one(e, &r, &out[i]);
        emu_get_counts(&after);
        CHECK(out[i].n_tokens == 20, "%zu tokens", out[i].n_tokens);
        bytes[i] = after.collective_bytes - before.collective_bytes;
    }
    CHECK(bytes[GREEDY] + 15 * (VOCAB * sizeof(float) - 4 * 8) < bytes[SAMPLED], "%llu bytes are moved, and %llu with all logits", bytes[GREEDY],
          bytes[SAMPLED]);
    CHECK(bytes[TOP_K] + 15 * (VOCAB * sizeof(float) - 4 * BEST * 8) < bytes[TOP_K_OF_ALL], "%llu bytes are moved, and %llu with all logits",
          bytes[TOP_K], bytes[TOP_K_OF_ALL]);
    CHECK(equal_outcomes(&out[TOP_K], &out[TOP_K_OF_ALL]) && !equal_outcomes(&out[TOP_K], &out[GREEDY]), "other tokens than from all logits");
    engine_close(e);
}

/* The choices of algorithms that each rank has timed, in a folder of their own. */
static void forget_choices(const char *folder) {
    struct dirent *entry;
    DIR *d = opendir(folder);
    size_t n = 0;
    while (d && (entry = readdir(d))) {
        n += entry->d_name[0] != '.' && unlinkat(dirfd(d), entry->d_name, 0) == 0;
    }
    CHECK(d && n > 0, "nothing was kept in %s", folder);
    if (d) {
        closedir(d);
    }
    rmdir(folder);
}

/* Not batch_invariant: sums go round as NCCL likes it, algorithms are those that were once the fastest and are kept; the same run
 * gives the same bits. */
static void runs_are_repeatable(const char *model, size_t n) {
    static struct outcome first[N], again[N];
    static struct engine_request requests[N];
    struct engine_config c = config_of(model, n);
    char folder[] = "/tmp/inferd-ranks-cuda-XXXXXX";
    c.batch_invariant = false;
    c.cache_folder = mkdtemp(folder);
    for (size_t i = 0; i < N; i++) {
        requests[i] = mixed_request(i);
    }
    for (int run = 0; run < 2; run++) {
        configure_devices((int)n, EMU_ORDER_EAGER, 7);
        struct engine *e = open_config(&c);
        for (size_t i = 0; i < n_requests; i++) {
            one(e, &requests[i], run ? &again[i] : &first[i]);
        }
        engine_close(e);
    }
    same(first, again, n, "another answer in another run");
    forget_choices(folder);
}

/* ---- faults ---- */

static const struct backend_ops *true_ops;

static int stalling_store(struct backend *b, void *qkv, size_t ld, size_t n_heads, size_t n_kv_heads, size_t head_dim,
                          const int32_t *positions, const int32_t *slot_mapping, size_t rows, const struct rope_table *table,
                          struct kv_layer *kv, struct error *err) {
    static bool stalled;
    if (!stalled) {
        stalled = true;
        nanosleep(&(struct timespec){3, 0}, NULL);
    }
    return true_ops->rope_kv_store(b, qkv, ld, n_heads, n_kv_heads, head_dim, positions, slot_mapping, rows, table, kv, err);
}

/* Rank 1 of 2 stalls in the middle of a step. */
static void a_rank_stalls(const char *model) {
    struct engine_config c = config_of(model, 2);
    static struct runner r; /* a rank that is lost would look at it */
    struct error err;
    static struct logits l;
    c.rank_timeout = 2;
    configure_devices(2, EMU_ORDER_EAGER, 1);
    if (runner_open(&r, &c, 0, &err) < 0) {
        CHECK(false, "%s", err.message);
        return;
    }
    CHECK(runner_evaluate(&r, prompts[1], 8, 8, logits_keep, &l, &err) == 0, "%s", err.message);
    static struct backend_ops ops;
    ops = *r.ranks[1].ops;
    true_ops = r.ranks[1].ops;
    ops.rope_kv_store = stalling_store;
    r.ranks[1].decoder.ops = &ops;
    uint64_t began = clock_now_ns();
    CHECK(runner_evaluate(&r, prompts[1], 8, 8, logits_keep, &l, &err) < 0, "it cannot go on");
    CHECK(err.code == ERROR_DEVICE && strstr(err.message, "rank 1 of 2 did not come within 2.0 s"), "%s", err.message);
    CHECK((double)(clock_now_ns() - began) < 30e9, "late");
    r.ranks[1].decoder.ops = true_ops;
    CHECK(runner_evaluate(&r, prompts[1], 8, 8, logits_keep, &l, &err) < 0, "nor be taken up again");
    runner_close(&r);
    nothing_is_left();
}

/* A device is lost in a graph: who waits for its part is told why, long before the deadline. */
static void a_device_is_lost(const char *model) {
    static struct outcome out[N];
    struct engine_config c = config_of(model, 2);
    configure_devices(2, EMU_ORDER_EAGER, 1);
    struct engine *e = open_config(&c);
    struct engine_request r = mixed_request(0);
    r.max_tokens = 20;
    r.ignore_eos = true;
    emu_inject(EMU_CALL_GRAPH_LAUNCH, 8, 1, cudaErrorECCUncorrectable);
    uint64_t began = clock_now_ns();
    memset(out, 0, sizeof out);
    submit(e, &r);
    collect(e, out, 1);
    CHECK(out[0].kind == ENGINE_EVENT_ERROR && out[0].error.code == ERROR_DEVICE && strstr(out[0].error.message, "uncorrectable ECC"),
          "%d, %s", out[0].kind, out[0].error.message);
    CHECK((double)(clock_now_ns() - began) < 60e9, "only at the deadline");
    engine_close(e);
    emu_inject_clear();
}

/* rows: of the vocabulary's matrices, 0: 260. */
static void on_model(const char *architecture, uint64_t seed, uint32_t rows) {
    char path[64];
    snprintf(path, sizeof path, "/tmp/inferd-ranks-cuda-%ld.gguf", (long)getpid());
    const struct tiny_model model = {.architecture = architecture, .context_length = CONTEXT, .seed = seed, .nan_token = -1, .rows = rows};
    if (!tiny_model_write(path, &model)) {
        exit(1);
    }
    printf("%s\n", architecture);
    bool first = strcmp(architecture, "llama") == 0;
    if (all || first) {
        RUN(logits_are_the_same, path, "auto", "f16");
        RUN(logits_are_the_same, path, "int8", "int8");
        RUN(company_changes_nothing, path, all ? 4 : 2);
    }
    if (all || !first) {
        RUN(logits_are_the_same, path, "bf16", "bf16");
    }
    if (all) {
        RUN(logits_are_the_same, path, "int8-weight-only", "f16");
        RUN(company_changes_nothing, path, first ? 2 : 4);
        RUN(runs_are_repeatable, path, 2);
    }
    if (first) {
        RUN(runs_are_repeatable, path, 4);
        RUN(most_logits_stay, path);
        RUN(a_rank_stalls, path);
        RUN(a_device_is_lost, path);
    }
    unlink(path);
}

int main(int argc, char **argv) {
    if (argc < 2) {
        return 2;
    }
    module = argv[1];
    all = argc > 2 && strcmp(argv[2], "--all") == 0;
    n_requests = all ? N : 3;
    fill_prompts();
    on_model("llama", 1, 0);
    on_model("gemma3", 4, 263);
    if (all) {
        on_model("qwen2", 2, 261);
        on_model("qwen3", 3, 262);
    }
    printf(failures ? "%d checks failed\n" : "all passed\n", failures);
    return failures != 0;
}
