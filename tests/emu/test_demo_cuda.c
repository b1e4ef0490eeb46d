/*
 * The demo model, with INT8 weights made at load and with 16-bit ones, 32 tokens: the emulated CUDA backend beside the
 * CPU backend. The same tokens, except where the CPU's two best lie so near one another that either may win; then the
 * CPU's answer is forced upon the device, which has to choose the same, or nearly, at each place.
 *
 *     test_demo_cuda MODULE          the model: INFERD_TEST_MODEL, a GGUF file; skipped (77) without
 */
#include "harness.h"

#include "emu.h"

#include <inferd/text.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { GENERATED = 32, ROWS = 8 };

/*
 * How much two backends may differ: activations are quantised from BF16 on the one and from F32 on the other, so a part
 * of the rounding of INT8 is drawn anew. The measure is what that rounding changes on the CPU itself, beside 16-bit
 * weights.
 */
struct distance {
    double squares, largest;
};

static struct tokens prompt;
static const char *module, *model;

static struct engine *open_on(const char *device, const char *weights) {
    struct engine_config c = test_config(model, 2, ROWS, 128);
    c.device = device;
    c.cuda_module = module;
    c.weights = weights;
    c.batch_invariant = true;
    return open_config(&c);
}

static struct engine_request request(const int32_t *ids, size_t n, size_t max_tokens) {
    struct engine_request r;
    engine_request_default(&r);
    r.id = 1;
    r.prompt = ids;
    r.n_prompt = n;
    r.max_tokens = max_tokens;
    r.sampling.temperature = 0;
    r.sampling.n_logprobs = 3;
    r.ignore_eos = true;
    return r;
}

/* The log-probabilities of an answer, and what would have been chosen at each place. */
static void score(struct engine *e, const struct outcome *answer, struct outcome *out) {
    int32_t ids[CONTEXT];
    memcpy(ids, prompt.ids, prompt.n * sizeof *ids);
    memcpy(ids + prompt.n, answer->tokens, GENERATED * sizeof *ids);
    struct engine_request r = request(ids, prompt.n + GENERATED, 0);
    r.n_prompt_logprobs = 3;
    r.score_only = true;
    one(e, &r, out);
    CHECK(out->n_prompt == r.n_prompt, "%zu tokens are scored", out->n_prompt);
}

static struct distance distance(const struct outcome *scored, const struct outcome *answer) {
    struct distance d = {0};
    for (size_t i = 0; i < GENERATED; i++) {
        double x = fabs((double)scored->prompt_logprobs[prompt.n + i] - (double)answer->logprobs[i]);
        d.squares += x * x;
        d.largest = x > d.largest ? x : d.largest;
    }
    return d;
}

/* The CPU's choice at `at` is the device's, or its lead over the device's is within what the two may differ by. */
static void same_choice(const struct outcome *cpu, size_t at, int32_t best, double tolerance) {
    double lead = best == cpu->tokens[at] ? 0 : INFINITY;
    for (int i = 1; i < 3 && lead > 0; i++) {
        lead = cpu->top[at][i].id == best ? (double)cpu->top[at][0].logprob - (double)cpu->top[at][i].logprob : lead;
    }
    CHECK(lead <= 2 * tolerance, "token %zu: %d, not %d, whose lead is %g", at, best, cpu->tokens[at], lead);
}

/* `allowed`: the largest distance, where it is known. */
static void is_the_cpu(const char *weights, double allowed) {
    static struct outcome cpu[2], cuda[2], chosen[2], forced[2], plain[2];
    struct error err;
    static const char text[] = "Water boils at a lower temperature on a mountain because";
    memset(forced, 0, sizeof forced), memset(plain, 0, sizeof plain), memset(cpu, 0, sizeof cpu);
    memset(cuda, 0, sizeof cuda), memset(chosen, 0, sizeof chosen);
    struct engine *e = open_on("cpu", weights);
    if (prompt.n == 0) {
        CHECK(text_encode(engine_text(e), text, sizeof text - 1, TEXT_ADD_SPECIAL, &prompt, &err) == 0, "%s",
              err.message);
    }
    struct engine_request r = request(prompt.ids, prompt.n, GENERATED);
    one(e, &r, &cpu[1]);
    engine_close(e);
    e = open_on("cpu", "bf16");
    score(e, &cpu[1], &plain[1]);
    engine_close(e);
    struct distance rounding = distance(&plain[1], &cpu[1]);

    e = open_on("cuda", weights);
    one(e, &r, &cuda[1]);
    score(e, &cpu[1], &forced[1]);
    struct distance apart = distance(&forced[1], &cpu[1]);
    CHECK(cpu[1].n_tokens == GENERATED && cuda[1].n_tokens == GENERATED, "%zu and %zu tokens", cpu[1].n_tokens,
          cuda[1].n_tokens);
    size_t n = 0, ties = 0;
    while (n < GENERATED && cpu[1].tokens[n] == cuda[1].tokens[n]) {
        n++;
    }
    for (size_t i = 0; i < GENERATED; i++) {
        int32_t best = forced[1].prompt_top[prompt.n + i][0].id;
        same_choice(&cpu[1], i, best, apart.largest);
        ties += best != cpu[1].tokens[i];
    }
    CHECK(n == GENERATED || ties > 0, "other tokens without a tie");
    r.sampling.n_logprobs = -1; /* and by the device itself, a step ahead, in graphs */
    r.max_tokens = GENERATED / 4;
    one(e, &r, &chosen[1]);
    CHECK(memcmp(chosen[1].tokens, cuda[1].tokens, GENERATED / 4 * sizeof(int32_t)) == 0,
          "the device chooses otherwise");
    engine_close(e);
    printf("  %s: %zu tokens of %d are the same, then %zu ties; log-probabilities apart by %.3f (root mean square), at "
           "most %.3f; the "
           "rounding of the weights: %.3f, %.3f\n",
           weights, n, GENERATED, ties, sqrt(apart.squares / GENERATED), apart.largest,
           sqrt(rounding.squares / GENERATED), rounding.largest);
    /* Two roundings that have nothing to do with one another would differ by twice the squares of one. */
    CHECK(apart.squares < 2 * rounding.squares || apart.largest < allowed,
          "the backends differ by more than two roundings to INT8 may");
    CHECK(ties < GENERATED / 4, "%zu ties", ties);
}

int main(int argc, char **argv) {
    model = getenv("INFERD_TEST_MODEL");
    struct emu_options o;
    if (argc < 2 || !model || !*model) {
        printf("skipped: INFERD_TEST_MODEL does not say where the demo model is\n");
        return 77;
    }
    emu_default_options(&o);
    o.order = EMU_ORDER_EAGER;
    o.protect = false;
    o.memory_bytes = (size_t)2 << 30;
    if (emu_configure(&o) != cudaSuccess) {
        printf("FAIL the emulator cannot be configured\n");
        return 1;
    }
    module = argv[1];
    RUN(is_the_cpu, "int8", 0);
    RUN(is_the_cpu, "bf16", 0.1);
    tokens_free(&prompt);
    printf("%d failures\n", failures);
    return failures > 0;
}
