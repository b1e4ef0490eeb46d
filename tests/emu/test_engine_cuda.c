/*
 * The whole engine on the CUDA backend, emulated: the module is loaded as the daemon loads it, and beside it the CPU
 * backend computes with the same INT8 weights.
 *
 *     test_engine_cuda MODULE
 */
#include "harness.h"

#include "emu.h"

#include <inferd/clock.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SEQUENCES = 8, GENERATED = 64, ROWS = 16, SOME = 24, KV_TOKENS = 2048 };

/*
 * How far log-probabilities of the two backends lie apart: activations are BF16 on the one and F32 on the other, and are
 * quantised from these. What was measured on these models is below MEASURED; where the two best of the CPU are nearer
 * than twice that, either may win.
 */
#define MEASURED 0.3f

static const char *module;
static float largest_difference;
static size_t generated = GENERATED, ties, n_squares;
static double squares;

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

static void differ_by(float a, float b) {
    float d = fabsf(a - b);
    largest_difference = d > largest_difference ? d : largest_difference;
    squares += (double)d * (double)d;
    n_squares++;
}

/* How many tokens agree. */
static size_t agree(const struct outcome *cpu, const struct outcome *cuda) {
    size_t n = 0;
    while (n < cpu->n_tokens && n < cuda->n_tokens && cpu->tokens[n] == cuda->tokens[n]) {
        differ_by(cpu->logprobs[n], cuda->logprobs[n]);
        n++;
    }
    return n;
}

/* Of the CPU's best; infinite over what is not among its three best. */
static float lead_over(const struct token_logprob *top, int32_t id) {
    for (int i = 1; i < 3; i++) {
        if (top[i].id == id) {
            return top[0].logprob - top[i].logprob;
        }
    }
    return INFINITY;
}

/* Token `at` of the CPU's answer is the best one here too, or nearly. */
static void same_choice(size_t i, const struct outcome *cpu, size_t at, int32_t best) {
    float gap = best == cpu->tokens[at] ? 0 : lead_over(cpu->top[at], best);
    CHECK(gap < 2 * MEASURED, "request %zu, token %zu: %d, not %d, whose lead is %g", i, at, best, cpu->tokens[at], (double)gap);
    ties += best != cpu->tokens[at];
}

/* The same tokens up to the first place where the CPU's best ones are nearly equal; then all of the CPU's answer, forced
 * upon the device: it would have chosen the same at each place, or nearly. */
static void follow(struct engine *e, size_t i, const struct outcome *cpu, const struct outcome *cuda) {
    static struct outcome scored[MAX_REQUESTS];
    static int32_t prompt[CONTEXT];
    struct engine_request r = request_of(i, -1);
    size_t n = agree(cpu, cuda);
    if (n < cpu->n_tokens) {
        same_choice(i, cpu, n, cuda->tokens[n]);
    } else if (i % 2 == 1) {
        return; /* time */
    }
    memcpy(prompt, r.prompt, r.n_prompt * sizeof prompt[0]);
    memcpy(prompt + r.n_prompt, cpu->tokens, cpu->n_tokens * sizeof prompt[0]);
    r.prompt = prompt;
    size_t first = r.n_prompt;
    r.n_prompt += cpu->n_tokens;
    r.n_prompt_logprobs = 3;
    r.score_only = true;
    memset(&scored[i], 0, sizeof scored[i]);
    one(e, &r, &scored[i]);
    CHECK(scored[i].n_prompt == r.n_prompt, "%zu tokens are scored", scored[i].n_prompt);
    for (size_t j = 0; j < cpu->n_tokens && scored[i].n_prompt == r.n_prompt; j++) {
        same_choice(i, cpu, j, scored[i].prompt_top[first + j][0].id);
        differ_by(cpu->logprobs[j], scored[i].prompt_logprobs[first + j]);
    }
}

static void is_the_cpu(const char *architecture, const char *path, const char *kv_dtype) {
    static struct outcome cpu[MAX_REQUESTS], cuda[MAX_REQUESTS], chosen[MAX_REQUESTS], eager[MAX_REQUESTS];
    struct engine_config c = cuda_config(path);
    struct emu_counts counts, before;
    c.device = "cpu";
    c.kv_dtype = kv_dtype;
    struct engine *e = open_config(&c);
    run_all(e, 3, cpu);
    engine_close(e);

    c.device = "cuda";
    e = open_config(&c);
    emu_get_counts(&before);
    run_all(e, 3, cuda);
    for (size_t i = 0; i < SEQUENCES; i++) {
        follow(e, i, &cpu[i], &cuda[i]);
    }
    generated = SOME;
    run_all(e, -1, chosen); /* by the device itself, a step ahead; prompts are found in the cache */
    generated = GENERATED;
    emu_get_counts(&counts);
    CHECK(counts.graph_kernels_run > before.graph_kernels_run, "no graph was launched");
    CHECK(counts.calls[EMU_CALL_MALLOC] == before.calls[EMU_CALL_MALLOC] &&
              counts.calls[EMU_CALL_HOST_ALLOC] == before.calls[EMU_CALL_HOST_ALLOC] &&
              counts.calls[EMU_CALL_CREATE] == before.calls[EMU_CALL_CREATE],
          "memory was taken while serving");
    check_idle(e);
    engine_close(e);
    emu_get_counts(&counts);
    CHECK(counts.allocations == 0 && counts.streams == 0 && counts.events == 0 && counts.graphs == 0,
          "%zu allocations, %zu streams, %zu events, %zu graphs are left", counts.allocations, counts.streams, counts.events,
          counts.graphs);

    c.cuda_graphs = false;
    e = open_config(&c);
    emu_get_counts(&before);
    generated = SOME;
    run_all(e, 3, eager);
    generated = GENERATED;
    emu_get_counts(&counts);
    CHECK(counts.graph_kernels_run == before.graph_kernels_run, "a graph was launched");
    engine_close(e);
    for (size_t i = 0; i < SEQUENCES; i++) {
        CHECK(memcmp(cuda[i].tokens, eager[i].tokens, SOME * sizeof eager[i].tokens[0]) == 0 &&
                  memcmp(cuda[i].logprobs, eager[i].logprobs, SOME * sizeof eager[i].logprobs[0]) == 0 &&
                  memcmp(cuda[i].top, eager[i].top, SOME * sizeof eager[i].top[0]) == 0,
              "%s, request %zu: not the same with graphs as without", architecture, i);
        CHECK(memcmp(cuda[i].tokens, chosen[i].tokens, SOME * sizeof(int32_t)) == 0,
              "%s, request %zu: the device chooses otherwise than the host", architecture, i);
    }
    printf("  %s, KV %s: log-probabilities apart by at most %g (root mean square %g), %zu ties of %zu so far\n",
           architecture, kv_dtype, (double)largest_difference, sqrt(squares / (double)n_squares), ties, n_squares);
    CHECK(largest_difference < MEASURED, "log-probabilities apart by %g", (double)largest_difference);
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

/* Alone, in company, from the cache, and after preemption: the same bytes with batch_invariant. */
static void company_changes_nothing(const char *path, const char *weights) {
    static struct outcome alone[MAX_REQUESTS], together[MAX_REQUESTS], crowded[MAX_REQUESTS];
    struct engine_config c = cuda_config(path);
    struct engine_stats s;
    c.batch_invariant = true;
    c.weights = weights;
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
        CHECK(i == 0 || equal_outcomes(&first[3], &second[3]), "not the same with choices from the file");
        second[3] = first[3];
        engine_close(e);
        if (i == 1) { /* damaged: as if it were not there */
            snprintf(command, sizeof command, "printf x | dd of=$(echo %s/*) bs=1 seek=200 conv=notrunc 2>/dev/null", folder);
            CHECK(system(command) == 0, "%s", command);
        }
    }
    CHECK(products[1] < products[0], "%llu products at the first start and %llu at the second",
          (unsigned long long)products[0], (unsigned long long)products[1]);
    CHECK(products[2] == products[0], "%llu products at the first start and %llu with a damaged file",
          (unsigned long long)products[0], (unsigned long long)products[2]);
    snprintf(command, sizeof command, "rm -r %s", folder);
    CHECK(system(command) == 0, "%s", command);
}

int main(int argc, char **argv) {
    static const char *const architectures[] = {"llama", "qwen3", "gemma3"};
    static const char *const kv_dtypes[] = {"f16", "int8", "bf16"};
    char paths[3][40];
    if (argc < 2) {
        printf("test_engine_cuda MODULE\n");
        return 2;
    }
    module = argv[1];
    fill_prompts();
    configure_device(NULL);
    for (size_t i = 0; i < 3; i++) {
        snprintf(paths[i], sizeof paths[i], "/tmp/inferd-engine-cuda-XXXXXX");
        const struct tiny_model tiny = {
            .architecture = architectures[i], .context_length = CONTEXT, .seed = 3 + i, .nan_token = -1};
        int fd = mkstemp(paths[i]);
        if (fd < 0 || close(fd) < 0 || !tiny_model_write(paths[i], &tiny)) {
            perror(paths[i]);
            return 1;
        }
    }
    RUN(devices_are_found, paths[0]);
    RUN(memory_is_planned, paths[0]);
    for (size_t i = 0; i < 3; i++) {
        RUN(is_the_cpu, architectures[i], paths[i], kv_dtypes[i]);
    }
    generated = 16;
    RUN(company_changes_nothing, paths[0], "auto");
    RUN(company_changes_nothing, paths[1], "int8");
    RUN(filling_up_changes_nothing, paths[0]);
    generated = 8;
    RUN(order_changes_nothing, paths[1]);
    generated = 16;
    RUN(choices_are_kept, paths[0]);
    RUN(a_lost_device_ends_everything, paths[0], EMU_CALL_GRAPH_LAUNCH, cudaErrorIllegalAddress);
    RUN(a_lost_device_ends_everything, paths[0], EMU_CALL_LAUNCH, cudaErrorLaunchFailure);
    RUN(a_lost_device_ends_everything, paths[0], EMU_CALL_GRAPH_LAUNCH, cudaErrorMemoryAllocation);
    RUN(a_lost_device_ends_everything, paths[0], EMU_CALL_LAUNCH, cudaErrorMemoryAllocation);
    for (size_t i = 0; i < 3; i++) {
        unlink(paths[i]);
    }
    printf("%d failures\n", failures);
    return failures != 0;
}
