/*
 * The device's choices beside the host's sampler: the same logits, the same request, the same token, over every mix of
 * what a device can be asked; and what a request is put into (sampler_for_device).
 */
#include "sampler.h"
#include "sampler_device.h"

#include "launch.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static size_t checks, failures, from_parts;

#define CHECK(ok, ...)                                                                                                 \
    do {                                                                                                               \
        checks++;                                                                                                      \
        if (!(ok) && failures++ < 20) {                                                                                \
            printf("FAIL line %d: ", __LINE__);                                                                        \
            printf(__VA_ARGS__);                                                                                       \
            printf("\n");                                                                                              \
        }                                                                                                              \
    } while (0)

#define CUDA(call)                                                                                                     \
    do {                                                                                                               \
        cudaError_t rc_ = (call);                                                                                      \
        if (rc_ != cudaSuccess) {                                                                                      \
            printf("%s: %s\n", #call, cudaGetErrorString(rc_));                                                        \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

enum { MAX_VOCAB = 5000, MAX_TOKENS = 64, MAX_EDITS = 512, BATCH = CUDA_CHOICE_ROWS };

static uint64_t state;

static uint32_t random_below(uint32_t n) { /* xorshift64* (Vigna 2016) */
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return (uint32_t)((state * 0x2545F4914F6CDD1Du >> 33) % n);
}

static float random_float(float low, float high) {
    return low + (high - low) * (float)random_below(1u << 24) * 0x1p-24f;
}

/* Smooth ones, steep ones, coarse ones (many are equal), flat ones, and ones whose tail has no weight. */
static void fill_logits(float *z, size_t n) {
    static const float spread[] = {1, 3, 8, 30, 0};
    float s = spread[random_below(5)];
    bool coarse = random_below(3) == 0;
    for (size_t i = 0; i < n; i++) {
        float x = s * (random_float(-1, 1) + random_float(-1, 1) + random_float(-1, 1));
        z[i] = coarse ? roundf(x) : x;
    }
}

static struct sampling random_sampling(size_t vocab) {
    static const uint8_t known[] = {SAMPLER_TEMPERATURE, SAMPLER_TOP_K, SAMPLER_TOP_P, SAMPLER_MIN_P};
    struct sampling p;
    engine_sampling_default(&p);
    p.temperature = random_below(8) == 0 ? 0.0f : random_float(0.1f, 2);
    p.top_k = random_below(2) ? (int32_t)random_below((uint32_t)vocab + 10) : (int32_t)random_below(60);
    p.top_p = random_below(3) ? random_float(0.05f, 1) : 1.0f;
    p.min_p = random_below(3) ? random_float(0, 0.3f) : random_below(2) ? 1e-8f : 0.0f;
    p.min_keep = random_below(3) ? 0 : (int32_t)random_below(20);
    if (random_below(3) == 0) {
        p.repetition_penalty = random_float(0.7f, 1.6f);
        p.frequency_penalty = random_float(-2, 2);
        p.presence_penalty = random_float(-2, 2);
        p.repeat_last_n = (int32_t)random_below(MAX_TOKENS) - 1;
    }
    p.choice = random_below(4);
    p.order.n = 0;
    p.order.stages[p.order.n++] = SAMPLER_PENALTIES;
    for (uint32_t left = 0xf; left;) { /* the others in any order, some left out */
        uint32_t i = random_below(4);
        if (left >> i & 1) {
            left &= ~(1u << i);
            if (i == 0 || random_below(4)) {
                p.order.stages[p.order.n++] = known[i];
            }
        }
    }
    return p;
}

struct device {
    float *logits;
    struct cuda_choice *choices;
    struct logit_edit *edits;
    int32_t *tokens;
    void *workspace;
    cudaStream_t stream;
};

static struct device open_device(size_t ld) {
    struct device d;
    CUDA(cudaStreamCreate(&d.stream));
    CUDA(cudaMalloc((void **)&d.logits, BATCH * ld * sizeof *d.logits));
    CUDA(cudaMalloc((void **)&d.choices, BATCH * sizeof *d.choices));
    CUDA(cudaMalloc((void **)&d.edits, BATCH * MAX_EDITS * sizeof *d.edits));
    CUDA(cudaMalloc((void **)&d.tokens, BATCH * sizeof *d.tokens));
    CUDA(cudaMalloc(&d.workspace, cuda_choose_workspace(ld)));
    return d;
}

static void close_device(struct device *d) {
    CUDA(cudaFree(d->logits));
    CUDA(cudaFree(d->choices));
    CUDA(cudaFree(d->edits));
    CUDA(cudaFree(d->tokens));
    CUDA(cudaFree(d->workspace));
    CUDA(cudaStreamDestroy(d->stream));
}

static struct cuda_choice to_cuda(const struct choice_row *r, size_t first_edit) {
    struct cuda_choice c = {(uint32_t)r->logits_row,
                            (uint32_t)first_edit,
                            (uint32_t)r->n_edits,
                            r->top_k,
                            r->min_keep,
                            r->repetition_penalty,
                            r->frequency_penalty,
                            r->presence_penalty,
                            r->temperature,
                            r->top_p,
                            r->min_p,
                            r->greedy,
                            r->n_stages,
                            {0},
                            r->random};
    memcpy(c.stages, r->stages, sizeof c.stages);
    return c;
}

/* Does it look at the k best alone? As decoder_choose has it: no edits, and a top_k before any top_p; a greedy one at one. */
static bool looks_at_best(const struct cuda_choice *c, size_t k) {
    if (c->n_edits > 0 || c->greedy) {
        return c->n_edits == 0;
    }
    for (size_t i = 0; i < c->n_stages && c->stages[i] != CHOICE_TOP_P; i++) {
        if (c->stages[i] == CHOICE_TOP_K) {
            return c->top_k <= k && c->min_keep <= k;
        }
    }
    return false;
}

/* From the k best of each of `size` parts of the rows: the same tokens. Parts are as ranks have them, the last ones smaller, or nothing. */
static void compare_parts(const struct device *d, size_t ld, size_t vocab, size_t size, size_t k, const struct cuda_choice *choices, size_t n,
                          const int32_t *want) {
    static struct cuda_choice some[BATCH];
    static int32_t tokens[BATCH], got[BATCH];
    struct cuda_candidate *parts;
    struct cuda_choice *device_choices;
    void *workspace;
    size_t n_some = 0, each = vocab / size + (vocab % size != 0);
    for (size_t i = 0; i < n; i++) {
        if (looks_at_best(&choices[i], k)) {
            tokens[n_some] = want[i];
            some[n_some++] = choices[i];
        }
    }
    CUDA(cudaMalloc((void **)&parts, size * BATCH * k * sizeof *parts));
    CUDA(cudaMalloc((void **)&device_choices, BATCH * sizeof *device_choices));
    CUDA(cudaMalloc(&workspace, cuda_candidates_bytes(BATCH, size, k)));
    CUDA(cudaMemcpy(device_choices, some, n_some * sizeof *some, cudaMemcpyHostToDevice));
    for (size_t r = 0; r < size; r++) {
        size_t first = r * each < vocab ? r * each : vocab, end = first + each < vocab ? first + each : vocab;
        CUDA(cuda_top_of_part(d->logits + first, ld, first, end - first, device_choices, n_some, k, parts + r * n_some * k, d->stream));
    }
    CUDA(cuda_choose_candidates(parts, size, k, device_choices, n_some, d->tokens, workspace, d->stream));
    CUDA(cudaStreamSynchronize(d->stream));
    CUDA(cudaMemcpy(got, d->tokens, n_some * sizeof *got, cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < n_some; i++) {
        CHECK(got[i] == tokens[i], "vocabulary %zu in %zu parts, the %zu best, row %u: token %d, the host takes %d (greedy %d, k %u, min_keep %u)",
              vocab, size, k, some[i].logits_row, (int)got[i], (int)tokens[i], some[i].greedy, some[i].top_k, some[i].min_keep);
    }
    from_parts += n_some;
    CUDA(cudaFree(parts));
    CUDA(cudaFree(device_choices));
    CUDA(cudaFree(workspace));
}

/* One batch of rows of vocab logits, each with a request of its own. */
static void compare(size_t vocab, size_t n_rows) {
    static float logits[BATCH][MAX_VOCAB + 3];
    static struct logit_edit edits[BATCH * MAX_EDITS];
    static struct cuda_choice choices[BATCH];
    static int32_t want[BATCH], got[BATCH], tokens[MAX_TOKENS];
    const size_t ld = MAX_VOCAB + 3;
    struct sampler sampler;
    struct error err;
    struct device d = open_device(ld);
    size_t n_edits = 0;
    if (sampler_init(&sampler, vocab, MAX_TOKENS, &err) < 0) {
        exit(1);
    }
    for (size_t r = 0; r < n_rows; r++) {
        fill_logits(logits[r], ld);
        struct sampling p = random_sampling(vocab);
        struct logit_bias bias[3];
        for (size_t i = 0; i < MAX_TOKENS; i++) {
            tokens[i] = (int32_t)random_below((uint32_t)(vocab < 30 ? vocab : 30));
        }
        for (size_t i = 0; i < 3; i++) {
            bias[i] = (struct logit_bias){
                (int32_t)((size_t)random_below((uint32_t)(vocab < 3 ? 1 : vocab / 3)) + i * (vocab / 3)),
                random_float(-100, 100)};
        }
        p.logit_bias = bias;
        p.n_logit_bias = vocab >= 9 && random_below(3) == 0 ? 3 : 0;
        for (size_t i = 0; i < p.n_logit_bias; i++) {
            p.n_logit_bias = (size_t)bias[i].id < vocab ? p.n_logit_bias : 0;
        }
        const int32_t masked[] = {1, 7};
        const struct sample_input in = {
            .logits = logits[r],
            .sampling = &p,
            .seed = random_below(1000),
            .position = r,
            .tokens = tokens,
            .n_prompt = 20,
            .n_tokens = 20 + random_below(MAX_TOKENS - 20),
            .masked = masked,
            .n_masked = vocab > 9 && random_below(4) == 0 ? 2 : 0,
        };
        if (r % 16 == 5) {
            logits[r][random_below((uint32_t)vocab)] = random_below(2) ? NAN : INFINITY;
        }
        struct choice_row row;
        CHECK(sampler_for_device(&sampler, &in, edits + n_edits, MAX_EDITS, &row), "a device could choose this");
        row.logits_row = r;
        choices[r] = to_cuda(&row, n_edits);
        n_edits += row.n_edits;
        for (size_t i = 0; i < vocab; i++) {
            CHECK(sampler.counts[i] == 0, "counts are left behind");
        }
        struct sample sample;
        enum sample_result result = sampler_sample(&sampler, &in, &sample);
        want[r] = result == SAMPLE_OK ? sample.token : result == SAMPLE_NO_TOKEN ? CHOICE_NO_TOKEN : CHOICE_NONFINITE;
    }
    CUDA(cudaMemcpy(d.logits, logits, n_rows * ld * sizeof(float), cudaMemcpyHostToDevice));
    CUDA(cudaMemcpy(d.choices, choices, n_rows * sizeof *choices, cudaMemcpyHostToDevice));
    CUDA(cudaMemcpy(d.edits, edits, (n_edits ? n_edits : 1) * sizeof *edits, cudaMemcpyHostToDevice));
    CUDA(cuda_choose(d.logits, ld, vocab, d.choices, d.edits, n_rows, d.tokens, d.workspace, d.stream));
    CUDA(cudaStreamSynchronize(d.stream));
    CUDA(cudaMemcpy(got, d.tokens, n_rows * sizeof *got, cudaMemcpyDeviceToHost));
    for (size_t r = 0; r < n_rows; r++) {
        const struct cuda_choice *c = &choices[r];
        CHECK(got[r] == want[r],
              "vocabulary %zu, row %zu: token %d, the host takes %d (greedy %d, stages %d%d%d%d of %d, t %g, k %u, p "
              "%g, min_p "
              "%g, min_keep %u, %u edits)",
              vocab, r, (int)got[r], (int)want[r], c->greedy, c->stages[0], c->stages[1], c->stages[2], c->stages[3],
              c->n_stages, (double)c->temperature, c->top_k, (double)c->top_p, (double)c->min_p, c->min_keep,
              c->n_edits);
    }
    compare_parts(&d, ld, vocab, 2, 64, choices, n_rows, want);
    compare_parts(&d, ld, vocab, 4, 20, choices, n_rows, want);
    compare_parts(&d, ld, vocab, 7, 2, choices, n_rows, want);
    sampler_destroy(&sampler);
    close_device(&d);
}

/* What no device is asked. */
static void stays_with_host(void) {
    struct sampler sampler;
    struct error err;
    struct logit_edit edits[8];
    struct choice_row row;
    static const int32_t tokens[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
    const uint64_t allowed[2] = {~0ull, ~0ull};
    const struct logit_bias twice[] = {{3, 0.1f}, {3, 0.2f}};
    if (sampler_init(&sampler, 100, MAX_TOKENS, &err) < 0) {
        exit(1);
    }
    for (int i = 0; i < 12; i++) {
        struct sampling p;
        engine_sampling_default(&p);
        struct sample_input in = {.sampling = &p, .tokens = tokens, .n_prompt = 2, .n_tokens = 10};
        p.top_k = 5;
        switch (i) {
        case 0:
            break;
        case 1:
            p.n_logprobs = 0;
            break;
        case 2:
            p.mirostat = 2;
            break;
        case 3:
            p.typical_p = 0.5f;
            break;
        case 4:
            p.top_n_sigma = 1;
            break;
        case 5:
            p.xtc_probability = 0.5f;
            p.xtc_threshold = 0.1f;
            break;
        case 6:
            p.dynatemp_range = 0.5f;
            break;
        case 7:
            p.dry_multiplier = 1;
            p.dry_allowed_length = 2;
            break;
        case 8:
            in.allowed = allowed;
            break;
        case 9:
            p.logit_bias = twice;
            p.n_logit_bias = 2;
            break;
        case 10: /* more edits than there is room for */
            p.presence_penalty = 1;
            in.n_prompt = 1;
            break;
        case 11: /* penalties behind a filter */
            p.presence_penalty = 1;
            in.n_tokens = 4;
            engine_sampler_order("top_k;penalties", 15, &p.order, &err);
            break;
        }
        bool device = sampler_for_device(&sampler, &in, edits, 8, &row);
        CHECK(device == (i == 0), "case %d", i);
        for (size_t k = 0; k < 100; k++) {
            CHECK(sampler.counts[k] == 0, "case %d: counts are left behind", i);
        }
    }
    sampler_destroy(&sampler);
}

/* With a number: another seed. --sample: a few rows, for builds that check every access. */
int main(int argc, char **argv) {
    bool sample = argc > 1 && strcmp(argv[1], "--sample") == 0;
    state = argc > 1 && !sample ? strtoull(argv[1], NULL, 10) : 1;
    static const size_t vocabs[] = {1, 2, 31, 63, 64, 65, 100, 513, 1000, 1024, 2048, 4999, MAX_VOCAB};
    if (sample) {
        compare(100, BATCH / 2);
        compare(1025, BATCH / 4);
        printf("%zu checks, %zu failed\n", checks, failures);
        return failures > 0;
    }
    stays_with_host();
    for (size_t i = 0; i < sizeof vocabs / sizeof *vocabs; i++) {
        compare(vocabs[i], BATCH);
    }
    CHECK(from_parts > 100, "only %zu rows were chosen from parts", from_parts);
    printf("%zu checks, %zu failed\n", checks, failures);
    return failures > 0;
}
