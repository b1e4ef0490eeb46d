/*
 * The whole engine on the CUDA backend, emulated: the module is loaded as the daemon loads it, and beside it the CPU
 * backend computes with the same INT8 weights.
 *
 *     test_engine_cuda MODULE [--all]     --all: whole answers of every model with every type of KV, and other seeds
 */
#include "harness.h"

#include "emu.h"

#include <inferd/clock.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SEQUENCES = 8, GENERATED = 64, ROWS = 16, KV_TOKENS = 2048 };

static const char *module;
static size_t generated = GENERATED;

/* ---- engines ---- */

static struct engine_config cuda_config(const char *model) {
    struct engine_config c = test_config(model, SEQUENCES, ROWS, KV_TOKENS);
    c.device = "cuda";
    c.cuda_module = module;
    c.weights = "int8";
    c.batch_invariant = false; /* unless said otherwise */
    return c;
}

static void configure_device(void (*change)(struct emu_options *)) {
    struct emu_options o;
    emu_default_options(&o);
    o.order = EMU_ORDER_EAGER;
    o.protect = false;
    o.memory_bytes = (size_t)256 << 20;
    o.context_bytes = (size_t)16 << 20;
    if (change) {
        change(&o);
    }
    if (emu_configure(&o) != cudaSuccess) {
        printf("FAIL the emulator cannot be configured\n");
        exit(1);
    }
}

/* Prompts of 5 to 68 tokens: some need several steps of ROWS rows. */
static struct engine_request request_of(size_t i, int n_logprobs) {
    struct engine_request r = plain_request(i, 5 + i * 9, generated);
    r.sampling.n_logprobs = n_logprobs;
    r.ignore_eos = true;
    return r;
}

static void run_all(struct engine *e, int n_logprobs, struct outcome *out) {
    memset(out, 0, SEQUENCES * sizeof *out);
    for (size_t i = 0; i < SEQUENCES; i++) {
        struct engine_request r = request_of(i, n_logprobs);
        submit(e, &r);
    }
    collect(e, out, SEQUENCES);
    for (size_t i = 0; i < SEQUENCES; i++) {
        CHECK(out[i].kind == ENGINE_EVENT_DONE && out[i].n_tokens == generated, "request %zu: %zu tokens, %s", i,
              out[i].n_tokens, out[i].error.message);
    }
}

/* ---- beside the CPU ---- */

/*
 * Activations are BF16 on the one backend and F32 on the other, and are quantised from these, so leads of one token over
 * another differ. By how much is measured in each run: the CPU's answers are forced upon the device, and the CPU's lead
 * of its best token over its second is taken on both. Where the device prefers another token, the lead over it on the
 * CPU has to be within the tolerance: the largest difference of the *other* requests (what is judged does not measure
 * itself), and half of it more, since the largest of some hundred is often surpassed by the next. And the backends may
 * differ no more than two roundings to INT8 that have nothing to do with one another, by twice the squares of one; one
 * is measured on the CPU alone, beside 16-bit weights.
 */
struct distance {
    float largest;
    double squares;
    size_t n;
};

/* The log-probability of a token among the best of a place; NaN if it is not among them. */
static float among(const struct token_logprob *top, int32_t id) {
    for (int i = 0; i < MAX_TOP; i++) {
        if (top[i].id == id) {
            return top[i].logprob;
        }
    }
    return NAN;
}

/* The CPU's answer as a part of the prompt: what would have been chosen at each place of it. */
static void force(struct engine *e, size_t i, const struct outcome *cpu, struct outcome *forced) {
    static int32_t prompt[CONTEXT];
    struct engine_request r = request_of(i, -1);
    memcpy(prompt, r.prompt, r.n_prompt * sizeof prompt[0]);
    memcpy(prompt + r.n_prompt, cpu->tokens, cpu->n_tokens * sizeof prompt[0]);
    r.prompt = prompt;
    r.n_prompt += cpu->n_tokens;
    r.n_prompt_logprobs = MAX_TOP;
    r.score_only = true;
    memset(forced, 0, sizeof *forced);
    one(e, &r, forced);
    CHECK(forced->n_prompt == r.n_prompt, "%zu tokens are scored", forced->n_prompt);
}

/* Of the leads on the CPU and on the device, at all places of an answer. */
static struct distance distance_of(size_t i, const struct outcome *cpu, const struct outcome *forced) {
    struct distance d = {0, 0, 0};
    size_t first = request_of(i, -1).n_prompt;
    for (size_t j = 0; j < cpu->n_tokens; j++) {
        float lead = cpu->top[j][0].logprob - cpu->top[j][1].logprob;
        float here = forced->prompt_logprobs[first + j] - among(forced->prompt_top[first + j], cpu->top[j][1].id);
        if (!isnan(here)) { /* the second best of the one is seldom far down on the other */
            float apart = fabsf(here - lead);
            d.largest = apart > d.largest ? apart : d.largest;
            d.squares += (double)apart * (double)apart;
            d.n++;
        }
    }
    return d;
}

/* The device's choices are the CPU's, but where these were nearly equal. Returns how many are not. */
static size_t same_choices(size_t i, const struct outcome *cpu, const struct outcome *forced, float tolerance) {
    size_t first = request_of(i, -1).n_prompt, ties = 0;
    for (size_t j = 0; j < cpu->n_tokens; j++) {
        int32_t best = forced->prompt_top[first + j][0].id;
        if (best != cpu->tokens[j]) {
            float lead = cpu->top[j][0].logprob - among(cpu->top[j], best);
            CHECK(lead <= tolerance, "request %zu, token %zu: %d, not %d, whose lead is %g and may be %g", i, j, best,
                  cpu->tokens[j], (double)lead, (double)tolerance);
            ties++;
        }
    }
    return ties;
}

/* What the device generates is what it says of the same tokens when they are given, to the bit, up to the first place
 * where the CPU's answer is another; returns that place. */
static size_t same_as_forced(size_t i, const struct outcome *cpu, const struct outcome *cuda, const struct outcome *forced) {
    size_t first = request_of(i, -1).n_prompt, n = 0;
    for (; n < cpu->n_tokens; n++) {
        CHECK(memcmp(cuda->top[n], forced->prompt_top[first + n], sizeof cuda->top[n]) == 0,
              "request %zu, token %zu: not the same when it is generated as when it is given", i, n);
        if (cuda->tokens[n] != cpu->tokens[n]) {
            break;
        }
    }
    return n;
}

/* The answers forced upon an engine: how far it is from who gave them, of each and (returned) of all. */
static struct distance force_all(struct engine *e, const struct outcome *cpu, struct outcome *forced, struct distance *each) {
    struct distance all = {0, 0, 0};
    for (size_t i = 0; i < SEQUENCES; i++) {
        force(e, i, &cpu[i], &forced[i]);
        each[i] = distance_of(i, &cpu[i], &forced[i]);
        all.squares += each[i].squares;
        all.n += each[i].n;
        all.largest = each[i].largest > all.largest ? each[i].largest : all.largest;
    }
    CHECK(all.n >= SEQUENCES * generated * 9 / 10, "only %zu leads can be compared", all.n);
    return all;
}

static double root_mean_square(const struct distance *d) {
    return sqrt(d->squares / (double)(d->n ? d->n : 1));
}

static void beside_the_cpu(struct engine *e, const struct outcome *cpu, const struct outcome *cuda,
                           const struct distance *rounding) {
    static struct outcome forced[MAX_REQUESTS];
    struct distance each[SEQUENCES], all = force_all(e, cpu, forced, each);
    size_t ties = 0, same = 0;
    for (size_t i = 0; i < SEQUENCES; i++) {
        float tolerance = 0; /* measured on the others */
        for (size_t j = 0; j < SEQUENCES; j++) {
            tolerance = j != i && each[j].largest > tolerance ? each[j].largest : tolerance;
        }
        tolerance *= 1.5f;
        same += same_as_forced(i, &cpu[i], &cuda[i], &forced[i]);
        ties += same_choices(i, &cpu[i], &forced[i], tolerance);
    }
    printf("    %zu of %zu tokens before an answer parts from the CPU's; given the CPU's, %zu choices are others\n"
           "    leads are apart by %.3f (root mean square), at most %.3f; rounding to INT8: %.3f, %.3f\n",
           same, SEQUENCES * generated, ties, root_mean_square(&all), (double)all.largest, root_mean_square(rounding),
           (double)rounding->largest);
    CHECK(all.squares < 2 * rounding->squares, "leads are apart by more than two roundings to INT8");
}

/* ---- all together ---- */

static bool same_tokens(const struct outcome *a, const struct outcome *b) {
    return memcmp(a->tokens, b->tokens, generated * sizeof a->tokens[0]) == 0;
}

static void nothing_was_taken(const struct emu_counts *before, const struct emu_counts *after) {
    CHECK(after->calls[EMU_CALL_MALLOC] == before->calls[EMU_CALL_MALLOC] &&
              after->calls[EMU_CALL_HOST_ALLOC] == before->calls[EMU_CALL_HOST_ALLOC] &&
              after->calls[EMU_CALL_CREATE] == before->calls[EMU_CALL_CREATE],
          "memory was taken while serving");
}

static void nothing_is_left(void) {
    struct emu_counts c;
    emu_get_counts(&c);
    CHECK(c.allocations == 0 && c.streams == 0 && c.events == 0 && c.graphs == 0,
          "%zu allocations, %zu streams, %zu events, %zu graphs are left", c.allocations, c.streams, c.events, c.graphs);
}

/* Eight requests together, in graphs, beside the CPU; then each alone, its prompt from the cache, and all once more with
 * the device choosing a step ahead: what they were in company. */
static void with_graphs(const struct engine_config *c, const struct outcome *cpu, const struct distance *rounding,
                        struct outcome *together) {
    static struct outcome alone[MAX_REQUESTS], chosen[MAX_REQUESTS];
    struct emu_counts before, after;
    struct engine_stats s;
    struct engine *e = open_config(c);
    emu_get_counts(&before);
    run_all(e, MAX_TOP, together);
    emu_get_counts(&after);
    CHECK(after.graph_kernels_run > before.graph_kernels_run, "no graph was launched");
    beside_the_cpu(e, cpu, together, rounding);
    memset(alone, 0, sizeof alone);
    for (size_t i = generated < GENERATED; i < SEQUENCES; i += generated < GENERATED ? 2 : 1) {
        struct engine_request r = request_of(i, MAX_TOP);
        one(e, &r, &alone[i]);
        CHECK(equal_outcomes(&together[i], &alone[i]), "request %zu is not in company what it is alone", i);
    }
    engine_get_stats(e, &s);
    CHECK(alone[SEQUENCES - 1].cached_tokens > 0 && s.cached_tokens > 0, "nothing was found in the cache");
    size_t whole = generated;
    generated = whole < 24 ? whole : 24;
    run_all(e, -1, chosen);
    for (size_t i = 0; i < SEQUENCES; i++) {
        CHECK(same_tokens(&together[i], &chosen[i]), "request %zu: the device chooses otherwise than the host", i);
    }
    generated = whole;
    emu_get_counts(&after);
    nothing_was_taken(&before, &after);
    check_idle(e);
    engine_close(e);
    nothing_is_left();
}

/* Without graphs, without the cache, and with memory for a few of them: the same bytes. */
static void without_graphs(const struct engine_config *config, const struct outcome *together) {
    static struct outcome crowded[MAX_REQUESTS];
    struct engine_config c = *config;
    struct emu_counts before, after;
    struct engine_stats s;
    c.cuda_graphs = false;
    c.prefix_cache = false;
    c.kv_tokens = generated < GENERATED ? 96 : CONTEXT; /* the longest fits, and four that begin together do not */
    struct engine *e = open_config(&c);
    emu_get_counts(&before);
    run_all(e, MAX_TOP, crowded);
    emu_get_counts(&after);
    engine_get_stats(e, &s);
    CHECK(after.graph_kernels_run == before.graph_kernels_run, "a graph was launched");
    CHECK(s.preemptions > 0, "nothing was preempted");
    engine_close(e);
    for (size_t i = 0; i < SEQUENCES; i++) {
        CHECK(equal_outcomes(&together[i], &crowded[i]), "request %zu is not without graphs and preempted what it is with", i);
    }
}

static void is_the_cpu(const char *architecture, const char *path, const char *kv_dtype, size_t n_tokens) {
    static struct outcome cpu[MAX_REQUESTS], plain[MAX_REQUESTS], together[MAX_REQUESTS];
    struct engine_config c = cuda_config(path);
    struct distance each[SEQUENCES];
    printf("  %s, KV %s, %zu tokens\n", architecture, kv_dtype, n_tokens);
    generated = n_tokens;
    c.kv_dtype = kv_dtype;
    c.kv_block_size = n_tokens < GENERATED ? 8 : c.kv_block_size;
    c.batch_invariant = true;
    c.device = "cpu";
    struct engine *e = open_config(&c);
    run_all(e, MAX_TOP, cpu);
    engine_close(e);
    c.weights = "bf16";
    e = open_config(&c);
    struct distance rounding = force_all(e, cpu, plain, each);
    engine_close(e);
    c.weights = "int8";
    c.device = "cuda";
    with_graphs(&c, cpu, &rounding, together);
    without_graphs(&c, together);
}

/* Not batch_invariant: the algorithms of cuBLASLt are chosen by shape, and still nothing depends on the graphs. */
static void graphs_change_nothing(const char *path) {
    static struct outcome got[2][MAX_REQUESTS];
    struct engine_config c = cuda_config(path);
    for (int graphs = 0; graphs < 2; graphs++) {
        c.cuda_graphs = graphs;
        struct engine *e = open_config(&c);
        run_all(e, 3, got[graphs]);
        engine_close(e);
    }
    for (size_t i = 0; i < SEQUENCES; i++) {
        CHECK(equal_outcomes(&got[0][i], &got[1][i]), "request %zu", i);
    }
}

/* Nine sequences to eleven take the graph of twelve: rows that fill up are stored nowhere and change nothing. */
static void filling_up_changes_nothing(const char *path) {
    enum { MOST = 12, LIVE = 10 };
    static struct outcome got[2][MAX_REQUESTS];
    struct engine_config c = cuda_config(path);
    c.max_sequences = MOST;
    for (int graphs = 0; graphs < 2; graphs++) {
        c.cuda_graphs = graphs;
        struct engine *e = open_config(&c);
        memset(got[graphs], 0, sizeof got[graphs]);
        engine_hold(e); /* all begin together; request 0 is its own */
        for (size_t i = 1; i <= LIVE; i++) {
            struct engine_request r = plain_request(i, 3, 8);
            r.sampling.n_logprobs = 2;
            r.ignore_eos = true;
            submit(e, &r);
        }
        engine_let_go(e);
        collect(e, got[graphs], LIVE + 1);
        engine_close(e);
    }
    for (size_t i = 1; i <= LIVE; i++) {
        CHECK(got[0][i].n_tokens == 8 && equal_outcomes(&got[0][i], &got[1][i]), "request %zu", i);
    }
}

/* ---- company ---- */

/* Weights at their own bits, among them F32 ones by cuBLASLt: alone, in company, from the cache, and after preemption the
 * same bytes with batch_invariant. (is_the_cpu does this with INT8 ones.) */
static void company_changes_nothing(const char *path, const char *kv_dtype) {
    static struct outcome alone[MAX_REQUESTS], together[MAX_REQUESTS], crowded[MAX_REQUESTS];
    struct engine_config c = cuda_config(path);
    struct engine_stats s;
    c.batch_invariant = true;
    c.weights = "auto";
    c.kv_dtype = kv_dtype;
    struct engine *e = open_config(&c);
    memset(alone, 0, sizeof alone);
    for (size_t i = 0; i < SEQUENCES; i++) {
        struct engine_request r = request_of(i, 2);
        one(e, &r, &alone[i]);
    }
    run_all(e, 2, together);
    engine_get_stats(e, &s);
    CHECK(together[SEQUENCES - 1].cached_tokens > 0 && s.cached_tokens > 0, "nothing was found in the cache");
    engine_close(e);
    c.kv_tokens = CONTEXT; /* too little for all */
    c.prefix_cache = false;
    e = open_config(&c);
    run_all(e, 2, crowded);
    engine_get_stats(e, &s);
    CHECK(s.preemptions > 0, "nothing was preempted");
    engine_close(e);
    for (size_t i = 0; i < SEQUENCES; i++) {
        CHECK(equal_outcomes(&alone[i], &together[i]), "request %zu is not in company what it is alone", i);
        CHECK(equal_outcomes(&alone[i], &crowded[i]), "request %zu is not after preemption what it is alone", i);
    }
}

/* ---- order ---- */

static uint64_t order_seed;

static void any_order(struct emu_options *o) {
    o->order = EMU_ORDER_RANDOM;
    o->seed = order_seed;
    o->protect = true;
}

/* Work of the device done late and in any legal order, its memory closed to the host: the same answers. */
static void order_changes_nothing(const char *path) {
    static struct outcome want[MAX_REQUESTS], got[MAX_REQUESTS];
    struct engine_config c = cuda_config(path);
    for (order_seed = 0; order_seed <= 2; order_seed++) {
        configure_device(order_seed ? any_order : NULL);
        struct engine *e = open_config(&c);
        run_all(e, -1, order_seed ? got : want);
        engine_close(e);
        CHECK(emu_check_memory() == 0, "memory beside allocations was written to");
        for (size_t i = 0; order_seed && i < SEQUENCES; i++) {
            CHECK(equal_outcomes(&want[i], &got[i]), "request %zu with seed %d", i, (int)order_seed);
        }
    }
    configure_device(NULL);
}

/* ---- memory ---- */

static void memory_is_planned(const char *path) {
    static const char *const names[] = {"weights", "workspace", "graphs", "context", "KV", "margin"};
    struct engine_config c = cuda_config(path);
    struct engine_info info;
    struct emu_options o;
    struct emu_counts counts;
    size_t planned = 0, used = 0;
    c.kv_tokens = 0;
    c.memory_utilization = 0.75;
    struct engine *e = open_config(&c);
    engine_get_info(e, &info);
    emu_get_options(&o);
    emu_get_counts(&counts);
    for (int i = 0; i < ENGINE_MEMORY_KINDS; i++) {
        printf("  %-10s planned %9zu used %9zu\n", names[i], info.memory_planned[i], info.memory_used[i]);
        planned += info.memory_planned[i];
        used += info.memory_used[i];
        CHECK(i == ENGINE_MEMORY_MARGIN || info.memory_used[i] <= info.memory_planned[i] + ((size_t)8 << 20), "%s: more is used",
              names[i]);
    }
    CHECK(planned == o.memory_bytes, "%zu of %zu bytes have a place", planned, o.memory_bytes);
    CHECK(used <= o.memory_bytes * 3 / 4, "%zu bytes are used", used);
    CHECK(used > o.memory_bytes / 2, "KV does not fill the device: %zu bytes are used", used);
    CHECK(info.memory_used[ENGINE_MEMORY_CONTEXT] >= o.context_bytes, "the context");
    engine_close(e);
    c.memory_utilization = 0.05;
    struct error err;
    CHECK(engine_open(&c, &e, &err) < 0 && err.code == ERROR_DOES_NOT_FIT, "12 MiB are enough");
}

/* ---- devices ---- */

static void no_device(struct emu_options *o) {
    o->devices = 0;
}

static void no_driver(struct emu_options *o) {
    o->driver_version = 0;
}

static void two_devices(struct emu_options *o) {
    o->devices = 2;
}

static void refused(const char *path, const char *device, const char *sentence) {
    struct engine_config c = cuda_config(path);
    struct engine *e;
    struct error err;
    c.device = device;
    c.max_sequences = 1;
    CHECK(engine_open(&c, &e, &err) < 0 && err.code == ERROR_DEVICE && strstr(err.message, sentence), "%s: %s", device,
          err.message);
}

static void devices_are_found(const char *path) {
    struct engine_config c = cuda_config(path);
    struct engine_info info;
    struct engine *e;
    c.max_sequences = c.max_batched_tokens = 2;
    configure_device(no_device);
    refused(path, "cuda", "NVIDIA");
    configure_device(no_driver);
    refused(path, "cuda", "NVIDIA driver");
    c.device = "auto";
    e = open_config(&c);
    engine_get_info(e, &info);
    CHECK(strcmp(info.backend, "cpu") == 0 && strstr(info.device_why, "the CPU, for there is no NVIDIA driver"), "%s: %s",
          info.backend, info.device_why);
    engine_close(e);
    configure_device(two_devices);
    refused(path, "cuda:2", "there is no CUDA device 2");
    c.device = "cuda:1";
    e = open_config(&c);
    engine_get_info(e, &info);
    CHECK(strcmp(info.backend, "cuda") == 0 && strstr(info.device, "device 1") && info.device_why[0] == '\0', "%s", info.device);
    engine_close(e);
    c.device = "auto";
    e = open_config(&c);
    engine_get_info(e, &info);
    CHECK(strcmp(info.backend, "cuda") == 0 && strstr(info.device_why, "the GPU: CUDA device 0"), "%s", info.device_why);
    engine_close(e);
    configure_device(NULL);
}

/* The device fails for good in the middle of it all: everybody hears of it, soon, and so does who comes later. */
static void a_lost_device_ends_everything(const char *path, enum emu_call call, cudaError_t code) {
    static struct outcome out[MAX_REQUESTS];
    struct engine_config c = cuda_config(path);
    c.max_sequences = SEQUENCES / 2; /* the others wait */
    struct engine *e = open_config(&c);
    CHECK(engine_lost(e) == NULL, "lost at once");
    memset(out, 0, sizeof out);
    emu_inject(call, 5, 1, code);
    uint64_t began = clock_now_ns();
    for (size_t i = 0; i < SEQUENCES; i++) {
        struct engine_request r = request_of(i, -1);
        submit(e, &r);
    }
    collect(e, out, SEQUENCES);
    CHECK(engine_lost(e) && engine_lost(e)->code == ERROR_DEVICE, "the engine does not know");
    for (size_t i = 0; i < SEQUENCES; i++) {
        CHECK(out[i].kind == ENGINE_EVENT_ERROR && out[i].error.code == ERROR_DEVICE && strstr(out[i].error.message, "CUDA device 0"),
              "request %zu: %d %s", i, out[i].kind, out[i].error.message);
    }
    emu_inject_clear();
    struct engine_request r = request_of(9, -1);
    memset(out, 0, sizeof out);
    submit(e, &r);
    collect(e, out, 1);
    CHECK(out[9].kind == ENGINE_EVENT_ERROR, "a later request runs");
    CHECK(clock_now_ns() - began < 30000000000u, "it took %g s", (double)(clock_now_ns() - began) * 1e-9);
    engine_close(e);
    configure_device(NULL);
}

/* ---- the choices of cuBLASLt ---- */

static void choices_are_kept(const char *path) {
    static struct outcome first[MAX_REQUESTS], second[MAX_REQUESTS];
    char folder[] = "/tmp/inferd-plans-XXXXXX", command[128];
    struct engine_config c = cuda_config(path);
    struct emu_counts before, after;
    if (!mkdtemp(folder)) {
        printf("FAIL mkdtemp\n");
        exit(1);
    }
    c.cache_folder = folder;
    c.weights = "auto"; /* the head is F32, and so is one of each layer's matrices */
    c.max_sequences = 2;
    uint64_t products[3];
    for (int i = 0; i < 3; i++) {
        emu_get_counts(&before);
        struct engine *e = open_config(&c);
        emu_get_counts(&after);
        products[i] = after.calls[EMU_CALL_MATMUL] - before.calls[EMU_CALL_MATMUL];
        struct engine_request r = request_of(3, 2);
        memset(first, 0, sizeof first);
        one(e, &r, &first[3]);
        CHECK(i != 1 || equal_outcomes(&first[3], &second[3]), "not the same with choices from the file"); /* i = 2: timed anew */
        second[3] = first[3];
        engine_close(e);
        if (i == 1) { /* damaged: as if it were not there */
            snprintf(command, sizeof command, "printf x | dd of=$(echo %s/*) bs=1 seek=200 conv=notrunc 2>/dev/null", folder);
            CHECK(system(command) == 0, "%s", command);
        }
    }
    CHECK(products[1] < products[0], "%llu products at the first start and %llu at the second",
          (unsigned long long)products[0], (unsigned long long)products[1]);
    CHECK(products[2] > products[1] + (products[0] - products[1]) / 2, /* how many are timed in a row depends on the time */
          "%llu products at the first start and %llu with a damaged file", (unsigned long long)products[0],
          (unsigned long long)products[2]);
    snprintf(command, sizeof command, "rm -r %s", folder);
    CHECK(system(command) == 0, "%s", command);
}

/* A model of each architecture. */
enum { MODELS = 3, SHORT = 12 };
static const char *const architectures[MODELS] = {"llama", "qwen3", "gemma3"};
static const char *const kv_dtypes[MODELS] = {"f16", "int8", "bf16"};

static bool write_models(char (*paths)[40], uint64_t seed, uint32_t layers) {
    for (size_t i = 0; i < MODELS; i++) {
        const struct tiny_model tiny = {.architecture = architectures[i],
                                        .context_length = CONTEXT,
                                        .layers = layers,
                                        .seed = seed + i,
                                        .nan_token = -1};
        snprintf(paths[i], sizeof paths[i], "/tmp/inferd-engine-cuda-XXXXXX");
        int fd = mkstemp(paths[i]);
        if (fd < 0 || close(fd) < 0 || !tiny_model_write(paths[i], &tiny)) {
            perror(paths[i]);
            return false;
        }
    }
    return true;
}

static void remove_models(char (*paths)[40]) {
    for (size_t i = 0; i < MODELS; i++) {
        unlink(paths[i]);
    }
}

/* Each architecture with each type of KV. Whole answers with one of them each, short ones with the others, for time. */
static void all_are_the_cpu(char (*paths)[40], bool all) {
    for (size_t i = 0; i < MODELS; i++) {
        for (size_t k = 0; k < MODELS; k++) {
            is_the_cpu(architectures[i], paths[i], kv_dtypes[k], all || i == k ? GENERATED : SHORT);
        }
    }
}

int main(int argc, char **argv) {
    char paths[MODELS][40];
    if (argc < 2) {
        printf("test_engine_cuda MODULE [--all]\n");
        return 2;
    }
    module = argv[1];
    setvbuf(stdout, NULL, _IOLBF, 0);
    bool all = argc > 2 && strcmp(argv[2], "--all") == 0;
    fill_prompts();
    configure_device(NULL);
    for (uint64_t seed = 3; all && seed < 3 + 2 * MODELS; seed += MODELS) {
        if (!write_models(paths, seed, 3)) {
            return 1;
        }
        RUN(all_are_the_cpu, paths, true);
        remove_models(paths);
    }
    if (!write_models(paths, 3, 2)) {
        return 1;
    }
    RUN(all_are_the_cpu, paths, all);
    generated = 16;
    RUN(devices_are_found, paths[0]);
    RUN(memory_is_planned, paths[0]);
    RUN(graphs_change_nothing, paths[1]);
    RUN(company_changes_nothing, paths[0], "f16");
    RUN(filling_up_changes_nothing, paths[0]);
    generated = 8;
    RUN(order_changes_nothing, paths[1]);
    generated = 16;
    RUN(choices_are_kept, paths[0]);
    RUN(a_lost_device_ends_everything, paths[0], EMU_CALL_GRAPH_LAUNCH, cudaErrorIllegalAddress);
    RUN(a_lost_device_ends_everything, paths[0], EMU_CALL_LAUNCH, cudaErrorLaunchFailure);
    RUN(a_lost_device_ends_everything, paths[0], EMU_CALL_GRAPH_LAUNCH, cudaErrorMemoryAllocation);
    RUN(a_lost_device_ends_everything, paths[0], EMU_CALL_LAUNCH, cudaErrorMemoryAllocation);
    remove_models(paths);
    printf("%d failures\n", failures);
    return failures != 0;
}
