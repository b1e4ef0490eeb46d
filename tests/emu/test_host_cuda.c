/*
 * The host's part of the CUDA backend, emulated: what is loaded when, how far it goes ahead of the device, what it does
 * when a product is refused.
 *
 *     test_host_cuda MODULE
 */
#include "harness.h"

#include "emu.h"

#include <inferd/bench.h>

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ROWS = 16, KV_TOKENS = 2048 };

static const char *module;

static struct engine_config cuda_config(const char *model) {
    struct engine_config c = test_config(model, 4, ROWS, KV_TOKENS);
    c.device = "cuda";
    c.cuda_module = module;
    c.weights = "int8";
    c.batch_invariant = false;
    return c;
}

static void configure_device(enum emu_order order) {
    struct emu_options o;
    emu_default_options(&o);
    o.order = order;
    o.protect = false;
    o.memory_bytes = (size_t)256 << 20;
    if (emu_configure(&o) != cudaSuccess) {
        printf("FAIL the emulator cannot be configured\n");
        exit(1);
    }
}

/* Code that a device loads takes memory, which KV has after the start: all of it was run before, with graphs and without,
 * also what only long contexts want. And what a kernel may have of shared memory is said before, once. */
static void nothing_is_loaded_later(const char *path) {
    enum { LONG = 300 };
    static struct outcome out[MAX_REQUESTS];
    static int32_t prompt[LONG];
    struct engine_config c = cuda_config(path);
    struct emu_counts before, after;
    for (size_t i = 0; i < LONG; i++) {
        prompt[i] = prompts[i / CONTEXT][i % CONTEXT];
    }
    c.max_sequences = 4;
    c.max_batched_tokens = 32;
    for (int graphs = 0; graphs < 2; graphs++) {
        configure_device(EMU_ORDER_EAGER);
        c.cuda_graphs = graphs;
        struct engine *e = open_config(&c);
        emu_get_counts(&before);
        CHECK(before.functions_loaded > 10 && before.attributes_set > 0, "nothing is counted");
        memset(out, 0, sizeof out);
        for (size_t i = 0; i < 3; i++) {
            struct engine_request r = plain_request(i, 5 + i * 9, 4);
            r.ignore_eos = true;
            if (i == 1) {
                r.prompt = prompt;
                r.n_prompt = LONG;
            }
            r.parent = i == 2 ? 1 : 0; /* of another prompt: not used */
            r.sampling.n_logprobs = i == 0 ? 2 : -1;
            submit(e, &r);
        }
        collect(e, out, 3);
        CHECK(out[1].kind == ENGINE_EVENT_DONE && out[1].n_tokens == 4, "%s", out[1].error.message);
        emu_get_counts(&after);
        CHECK(after.functions_loaded == before.functions_loaded, "%llu kernels are loaded late",
              (unsigned long long)(after.functions_loaded - before.functions_loaded));
        CHECK(after.device_bytes[0] == before.device_bytes[0], "%zu bytes of the device were taken, now %zu", before.device_bytes[0],
              after.device_bytes[0]);
        CHECK(after.attributes_set == before.attributes_set, "attributes are set while serving");
        engine_close(e);
    }
}

/* The next step is on the device before the tokens of the one that runs are waited for: almost always, also while somebody
 * waits for KV that is not there. */
static void steps_go_ahead(const char *path) {
    enum { LONG = 40 };
    static struct outcome want[MAX_REQUESTS], got[MAX_REQUESTS];
    struct engine_config c = cuda_config(path);
    struct engine_stats before, after;
    struct emu_counts counts, at_first;
    c.prefix_cache = false;
    c.batch_invariant = true;
    configure_device(EMU_ORDER_LAZY);
    for (int crowded = 0; crowded < 2; crowded++) {
        struct outcome *out = crowded ? got : want;
        c.kv_tokens = crowded ? CONTEXT : KV_TOKENS; /* two of three */
        struct engine *e = open_config(&c);
        memset(out, 0, sizeof got);
        engine_hold(e); /* all come together; request 0 is its own */
        for (size_t i = 1; i <= 3; i++) {
            struct engine_request r = plain_request(i, 82, LONG);
            r.ignore_eos = true;
            submit(e, &r);
        }
        engine_get_stats(e, &before);
        emu_get_counts(&at_first);
        engine_let_go(e);
        collect(e, out, 4);
        engine_get_stats(e, &after);
        emu_get_counts(&counts);
        uint64_t ahead = after.steps_ahead - before.steps_ahead;
        CHECK(after.preemptions == 0, "%llu preemptions", (unsigned long long)after.preemptions);
        CHECK(ahead > (crowded ? 3 * LONG / 2 : LONG / 2), "%llu of %llu steps were queued ahead", (unsigned long long)ahead,
              (unsigned long long)(after.steps - before.steps));
        CHECK(counts.waits_ahead - at_first.waits_ahead >= ahead, "%llu waits with a step behind",
              (unsigned long long)(counts.waits_ahead - at_first.waits_ahead));
        engine_close(e);
    }
    for (size_t i = 1; i <= 3; i++) {
        CHECK(want[i].n_tokens == LONG && equal_outcomes(&want[i], &got[i]), "request %zu", i);
    }
    configure_device(EMU_ORDER_EAGER);
}

/* `inferd bench` decodes as the engine does: by graphs, a step ahead, and logits stay on the device. */
static void bench_is_the_engine(const char *path) {
    const struct bench_case cases[] = {{BENCH_DECODE, 3, 5, 6}, {BENCH_PREFILL, 2, 9, 0}};
    struct bench_config c = {.engine = cuda_config(path), .chunk = 16, .cases = cases, .n_cases = 2};
    struct bench *b;
    struct bench_result r;
    struct emu_counts before, after;
    struct error err;
    configure_device(EMU_ORDER_LAZY);
    if (bench_open(&c, &b, &err) < 0) {
        CHECK(false, "%s", err.message);
        return;
    }
    for (size_t i = 0; i < 2; i++) {
        emu_get_counts(&before);
        CHECK(bench_run(b, &cases[i], false, &r, &err) == 0 && r.tokens == 18, "%s", err.message);
        emu_get_counts(&after);
        CHECK(after.bytes_to_host - before.bytes_to_host <= 4 * (18 + 1), "%llu bytes to the host",
              (unsigned long long)(after.bytes_to_host - before.bytes_to_host));
        if (cases[i].kind == BENCH_DECODE) {
            CHECK(after.calls[EMU_CALL_GRAPH_LAUNCH] - before.calls[EMU_CALL_GRAPH_LAUNCH] == 6, "not by graphs");
            CHECK(after.waits_ahead - before.waits_ahead >= 5, "not ahead");
        }
    }
    bench_close(b);
    configure_device(EMU_ORDER_EAGER);
}

/* An algorithm that refuses a number of rows of its bucket: another one is found for these, and the answer comes. A second
 * refusal is the end, and so is a product that failed on the device. */
static void a_refused_product_is_chosen_anew(const char *path) {
    static struct outcome out[MAX_REQUESTS];
    static const struct {
        uint64_t calls;
        cudaError_t code;
        bool lives;
    } cases[] = {{1, cudaErrorNotSupported, true}, {2, cudaErrorNotSupported, false}, {1, cudaErrorLaunchFailure, false}};
    struct engine_config c = cuda_config(path);
    c.weights = "auto"; /* the head is F32 */
    c.max_sequences = 2;
    c.cuda_graphs = false;
    int32_t want[16];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct engine *e = open_config(&c);
        struct engine_request r = plain_request(3, 32, 16);
        r.sampling.n_logprobs = 0;
        r.ignore_eos = true;
        memset(out, 0, sizeof out);
        if (i == 0) {
            one(e, &r, &out[3]);
            memcpy(want, out[3].tokens, sizeof want);
            memset(out, 0, sizeof out);
        }
        emu_inject(EMU_CALL_MATMUL, 3, cases[i].calls, cases[i].code);
        one(e, &r, &out[3]);
        if (cases[i].lives) {
            CHECK(out[3].kind == ENGINE_EVENT_DONE && !engine_lost(e) && memcmp(want, out[3].tokens, sizeof want) == 0,
                  "case %zu: %s", i, out[3].error.message);
        } else {
            CHECK(out[3].kind == ENGINE_EVENT_ERROR && engine_lost(e), "case %zu lives on", i);
        }
        emu_inject_clear();
        engine_close(e);
        configure_device(EMU_ORDER_EAGER);
    }
}

int main(int argc, char **argv) {
    char paths[2][40]; /* of a short context and of a long one */
    if (argc < 2) {
        printf("test_host_cuda MODULE\n");
        return 2;
    }
    module = argv[1];
    fill_prompts();
    configure_device(EMU_ORDER_EAGER);
    for (size_t i = 0; i < 2; i++) {
        const struct tiny_model tiny = {
            .architecture = "llama", .context_length = i ? 4 * CONTEXT : CONTEXT, .seed = 3, .nan_token = -1};
        snprintf(paths[i], sizeof paths[i], "/tmp/inferd-host-cuda-XXXXXX");
        int fd = mkstemp(paths[i]);
        if (fd < 0 || close(fd) < 0 || !tiny_model_write(paths[i], &tiny)) {
            perror(paths[i]);
            return 1;
        }
    }
    RUN(nothing_is_loaded_later, paths[1]);
    RUN(steps_go_ahead, paths[0]);
    RUN(bench_is_the_engine, paths[0]);
    RUN(a_refused_product_is_chosen_anew, paths[0]);
    for (size_t i = 0; i < 2; i++) {
        unlink(paths[i]);
    }
    printf("%d failures\n", failures);
    return failures != 0;
}
