/*
 * What choosing a token costs, beside what computing its logits costs:
 *
 *   bench_sampler MODEL [STREAMS]
 *
 * A decode step of STREAMS (32) sequences of 128 tokens, then sampler_sample on logits that the model gives for a text,
 * for each way of choosing: with the model's own vocabulary, and with the same logits again and again up to 128256.
 * Microseconds of the thread's processor time a token, the smallest of some rounds; the share is that of STREAMS of them
 * in a step (itself the smallest of some, in wall time).
 */
#include "runner.h"
#include "sampler.h"

#include <inferd/clock.h>
#include <inferd/text.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define CONTEXT 128
#define ROWS 32 /* of logits */
#define ROUNDS 12
#define LARGE 128256

static const char text_of_bench[] =
    "The harbour was quiet in the early morning. A few boats lay at anchor, and the smell of salt and tar hung over the "
    "quay. \"We leave at six,\" said the captain, and he looked at the sky. Nobody answered. In the distance a bell rang, "
    "once, twice, and then it was silent again. The list was short: bread, water, rope, two lamps, a barrel of oil. The "
    "boy counted everything, wrote it down, and counted it again, because the captain never forgave a mistake. Then the "
    "wind came up, and they set the sails, and the town behind them grew small. It was the year 1847, and no one had yet.";

static void die(const struct error *err) {
    fprintf(stderr, "bench_sampler: %s\n", err->message);
    exit(1);
}

static double cpu_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

struct rows {
    size_t vocab_size;
    float *logits; /* [ROWS][vocab_size], of the last positions of the text */
};

static void keep_row(void *arg, size_t position, const float *logits) {
    struct rows *rows = arg;
    memcpy(rows->logits + position % ROWS * rows->vocab_size, logits, rows->vocab_size * sizeof *logits);
}

/* Microseconds of one decode step. */
static double step_us(struct runner *r, size_t streams) {
    struct decoder_batch *b = &r->batch;
    struct error err;
    size_t block_size = r->decoder->limits.kv_block_size, per_stream = CONTEXT / block_size;
    double best = 1e30;
    b->rows = b->n_sequences = b->n_logits = streams;
    for (size_t i = 0; i < streams; i++) {
        b->token_ids[i] = (int32_t)(100 + i);
        b->positions[i] = CONTEXT - 1;
        b->cu_seqlens[i] = b->logit_rows[i] = (int32_t)i;
        b->context_lens[i] = CONTEXT;
        for (size_t k = 0; k < per_stream; k++) {
            b->block_tables[i * b->max_blocks + k] = (int32_t)(i * per_stream + k);
        }
        b->slot_mapping[i] = (int32_t)((i + 1) * CONTEXT - 1);
    }
    b->cu_seqlens[streams] = (int32_t)streams;
    for (int round = 0; round < 3 * ROUNDS; round++) {
        uint64_t begin = clock_now_ns();
        if (runner_run(r, &err) < 0) {
            die(&err);
        }
        double us = (double)(clock_now_ns() - begin) / 1e3;
        best = us < best ? us : best;
    }
    return best;
}

struct way {
    const char *name;
    struct sampling sampling;
    size_t n_tokens;
    bool allowed;
};

static double sample_us(struct sampler *s, const float *logits, const struct text *text, const int32_t *tokens,
                        const uint64_t *allowed, const struct way *way) {
    double best = 1e30;
    for (uint64_t round = 0; round < ROUNDS; round++) {
        double begin = cpu_us();
        for (uint64_t i = 0; i < ROWS; i++) {
            struct sample out;
            struct sample_input in = {.logits = logits + i * s->vocab_size,
                                      .sampling = &way->sampling,
                                      .seed = round,
                                      .position = i,
                                      .tokens = tokens,
                                      .n_prompt = way->n_tokens / 2,
                                      .n_tokens = way->n_tokens,
                                      .allowed = way->allowed ? allowed : NULL,
                                      .text = text,
                                      .state = sampler_state_first(&way->sampling)};
            if (sampler_sample(s, &in, &out) != SAMPLE_OK) {
                fprintf(stderr, "bench_sampler: %s: no token\n", way->name);
                exit(1);
            }
        }
        double us = (cpu_us() - begin) / ROWS;
        best = us < best ? us : best;
    }
    return best;
}

static size_t ways(struct way *out) {
    struct sampling p;
    size_t n = 0;
    engine_sampling_default(&p);
#define WAY(NAME, TOKENS, ...)                                                                                         \
    do {                                                                                                               \
        out[n] = (struct way){.name = (NAME), .sampling = p, .n_tokens = (TOKENS)};                                    \
        struct sampling *q = &out[n].sampling;                                                                         \
        __VA_ARGS__;                                                                                                   \
        n++;                                                                                                           \
    } while (0)
#define USUAL q->temperature = 0.8f, q->top_p = 0.95f, q->top_k = 40, q->repetition_penalty = 1.1f
    WAY("greedy", 500, q->temperature = 0);
    WAY("temperature", 500, q->temperature = 0.8f);
    WAY("temperature, top_p", 500, q->temperature = 0.8f, q->top_p = 0.95f);
    WAY("temperature, top_k", 500, q->temperature = 0.8f, q->top_k = 40);
    WAY("temperature, min_p", 500, q->temperature = 0.8f, q->min_p = 0.05f);
    WAY("temperature, top_k, top_p, penalties", 500, USUAL, q->frequency_penalty = 0.2f);
    WAY("the same, 5 logprobs", 500, USUAL, q->frequency_penalty = 0.2f, q->n_logprobs = 5);
    WAY("the same, 20 logprobs, 8000 tokens", 8000, USUAL, q->frequency_penalty = 0.2f, q->n_logprobs = 20);
    WAY("the same, 100000 tokens", 100000, USUAL, q->frequency_penalty = 0.2f, q->n_logprobs = 5);
    WAY("the same, llama.cpp's order", 500, USUAL, q->frequency_penalty = 0.2f, q->n_logprobs = 5, q->order = (struct sampler_order){
        9, {SAMPLER_PENALTIES, SAMPLER_DRY, SAMPLER_TOP_N_SIGMA, SAMPLER_TOP_K, SAMPLER_TYPICAL_P, SAMPLER_TOP_P, SAMPLER_MIN_P, SAMPLER_XTC, SAMPLER_TEMPERATURE}});
    WAY("top_p 1 - 1e-6", 500, q->top_p = 0.999999f);
    WAY("temperature 1, top_p", 500, q->top_p = 0.95f);
    WAY("temperature 1.3, top_p", 500, q->temperature = 1.3f, q->top_p = 0.95f);
    WAY("temperature 2, top_p", 500, q->temperature = 2, q->top_p = 0.95f);
    WAY("top_n_sigma", 500, q->top_n_sigma = 1);
    WAY("typical_p", 500, q->typical_p = 0.9f);
    WAY("typical_p behind top_k", 500, q->typical_p = 0.9f, q->top_k = 100);
    WAY("XTC", 500, q->xtc_probability = 0.5f);
    WAY("XTC behind min_p", 500, q->xtc_probability = 0.5f, q->min_p = 0.02f);
    WAY("dynamic temperature", 500, q->dynatemp_range = 0.5f);
    WAY("dynamic temperature behind min_p", 500, q->dynatemp_range = 0.5f, q->min_p = 0.05f,
        q->order = (struct sampler_order){2, {SAMPLER_MIN_P, SAMPLER_TEMPERATURE}});
    WAY("mirostat 1", 500, q->mirostat = 1);
    WAY("mirostat 2", 500, q->mirostat = 2);
    WAY("DRY, 500 tokens", 500, q->dry_multiplier = 0.8f);
    WAY("DRY, 8000 tokens", 8000, q->dry_multiplier = 0.8f);
    WAY("DRY, 100000 tokens", 100000, q->dry_multiplier = 0.8f);
    WAY("DRY, 100000 tokens, no breakers", 100000, q->dry_multiplier = 0.8f, q->n_dry_breakers = 0);
    WAY("1000 allowed ids", 500, q->temperature = 0.8f, out[n].allowed = true);
    return n;
}

#define MAX_WAYS 40
#define MOST_TOKENS 100000

static void measure(const char *title, const float *logits, size_t vocab_size, const struct text *text,
                    const int32_t *tokens, double step, size_t streams) {
    static struct way w[MAX_WAYS];
    struct sampler s;
    struct error err;
    uint64_t *allowed = calloc(vocab_size / 64 + 1, sizeof *allowed);
    if (!allowed || sampler_init(&s, vocab_size, MOST_TOKENS, &err) < 0) {
        exit(1);
    }
    for (size_t i = 0; i < 1000; i++) {
        allowed[i * 37 % vocab_size / 64] |= (uint64_t)1 << (i * 37 % vocab_size % 64);
    }
    printf("\n%s\n%-42s %10s %8s\n", title, "way", "us/token", "share");
    size_t n = ways(w);
    for (size_t i = 0; i < n; i++) {
        double us = sample_us(&s, logits, text, tokens, allowed, &w[i]);
        printf("%-42s %10.1f %7.2f%%\n", w[i].name, us, 100 * us * (double)streams / (step + us * (double)streams));
        fflush(stdout);
    }
    sampler_destroy(&s);
    free(allowed);
}

int main(int argc, char **argv) {
    struct engine_config c;
    struct runner r;
    struct text *text;
    struct tokens prompt = {0};
    struct error err;
    size_t streams = argc > 2 ? strtoul(argv[2], NULL, 10) : 32;
    if (argc < 2 || streams < 1 || streams > 512) {
        fprintf(stderr, "usage: bench_sampler MODEL [STREAMS]\n");
        return 2;
    }
    engine_config_default(&c);
    c.model = argv[1];
    c.max_sequences = streams;
    c.max_batched_tokens = streams > ROWS ? streams : ROWS;
    c.kv_tokens = (streams + 2) * CONTEXT;
    if (text_open(argv[1], &text, &err) < 0 || runner_open(&r, &c, streams > ROWS ? streams : ROWS, &err) < 0 ||
        text_encode(text, text_of_bench, sizeof text_of_bench - 1, 0, &prompt, &err) < 0) {
        die(&err);
    }
    struct rows rows = {.vocab_size = r.decoder->config.vocab_size};
    rows.logits = malloc(ROWS * rows.vocab_size * sizeof *rows.logits);
    float *large = malloc((size_t)ROWS * LARGE * sizeof *large);
    int32_t *tokens = malloc(MOST_TOKENS * sizeof *tokens);
    size_t n = prompt.n < CONTEXT ? prompt.n : CONTEXT;
    if (!rows.logits || !large || !tokens || runner_evaluate(&r, prompt.ids, n, 1, keep_row, &rows, &err) < 0) {
        die(&err);
    }
    for (size_t i = 0; i < (size_t)ROWS * LARGE; i++) {
        size_t id = i % LARGE; /* each copy a little less likely */
        large[i] = rows.logits[i / LARGE * rows.vocab_size + id % rows.vocab_size] - 3.0f * (float)(id / rows.vocab_size);
    }
    uint64_t random = 1;
    for (size_t i = 0; i < MOST_TOKENS; i++) { /* words of the text, in pieces of 5 tokens */
        random = i % 5 ? random : random * 6364136223846793005u + 1442695040888963407u;
        tokens[i] = prompt.ids[((random >> 33) + i % 5) % prompt.n];
    }
    double step = step_us(&r, streams);
    printf("a decode step of %zu streams: %.1f ms (%zu threads)\n", streams, step / 1e3, r.backend_info.threads);
    char title[80];
    snprintf(title, sizeof title, "vocabulary of %zu", rows.vocab_size);
    measure(title, rows.logits, rows.vocab_size, text, tokens, step, streams);
    measure("vocabulary of 128256 (the share is of the same step)", large, LARGE, text, tokens, step, streams);
    return 0;
}
