#include "sampler.h"

#include "sampler_choose.h"
#include "sampler_logits.h"
#include <inferd/sampler_math.h>
#include "sampler_passes.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int sampler_init(struct sampler *s, size_t vocab_size, size_t max_tokens, struct error *err) {
    struct sampler made = {.vocab_size = vocab_size};
    made.z = calloc(vocab_size, sizeof *made.z);
    made.e = calloc(vocab_size, sizeof *made.e);
    made.chunk_max = calloc(sampler_n_chunks(vocab_size), sizeof *made.chunk_max);
    made.chunk_sum = calloc(sampler_n_chunks(vocab_size), sizeof *made.chunk_sum);
    made.kept = calloc(vocab_size, sizeof *made.kept);
    made.counts = calloc(vocab_size, sizeof *made.counts);
    made.lengths = calloc(max_tokens, sizeof *made.lengths);
    if (!made.z || !made.e || !made.chunk_max || !made.chunk_sum || !made.kept || !made.counts || !made.lengths) {
        sampler_destroy(&made);
        return error_memory(err);
    }
    *s = made;
    return 0;
}

void sampler_destroy(struct sampler *s) {
    if (s) {
        free(s->z);
        free(s->e);
        free(s->chunk_max);
        free(s->chunk_sum);
        free(s->kept);
        free(s->counts);
        free(s->lengths);
        *s = (struct sampler){0};
    }
}

/* One past the last id of chunk c. */
static size_t chunk_end(const struct sampler *s, size_t c) {
    size_t end = (c + 1) * SAMPLER_CHUNK;
    return end < s->vocab_size ? end : s->vocab_size;
}

static int32_t first_with_key(const struct sampler *s, const float *z, uint32_t key) {
    size_t c = 0;
    while (s->chunk_max[c] != key) {
        c++;
    }
    size_t i = c * SAMPLER_CHUNK;
    while (i + 1 < chunk_end(s, c) && sampler_key(z[i]) != key) {
        i++;
    }
    return (int32_t)i;
}

/* Insert into top[0..n], best first; equal logits by lowest id, which came first. */
static void insert_top(struct token_logprob *top, size_t n, int32_t id, float z) {
    size_t i = n;
    while (i > 0 && top[i - 1].logprob < z) {
        top[i] = top[i - 1];
        i--;
    }
    top[i] = (struct token_logprob){id, z};
}

/* log softmax of the unmodified logits: z - z_max - ln(sum), the sum in whole 2^-40. */
static void fill_logprobs(struct sampler *s, const struct sample_input *in, struct sample *out) {
    bool finite;
    float z_max = sampler_float_of_key(sampler_max(in->logits, s->vocab_size, s->chunk_max, &finite));
    uint64_t total = sampler_exp(s->e, in->logits, s->vocab_size, z_max, SAMPLER_LOG2E, s->chunk_sum);
    double log_sum = (double)z_max + log((double)total / (double)SAMPLER_WEIGHT_ONE);
    out->logprob = (float)((double)in->logits[out->token] - log_sum);

    size_t want = (size_t)in->sampling->n_logprobs, n = 0;
    for (size_t c = 0; c < sampler_n_chunks(s->vocab_size) && want > 0; c++) {
        if (n == want && s->chunk_max[c] <= sampler_key(out->top[n - 1].logprob)) {
            continue;
        }
        for (size_t i = c * SAMPLER_CHUNK; i < chunk_end(s, c); i++) {
            if (n < want) {
                insert_top(out->top, n++, (int32_t)i, in->logits[i]);
            } else if (in->logits[i] > out->top[n - 1].logprob) {
                insert_top(out->top, n - 1, (int32_t)i, in->logits[i]);
            }
        }
    }
    for (size_t i = 0; i < n; i++) {
        out->top[i].logprob = (float)((double)out->top[i].logprob - log_sum);
    }
    out->n_top = (uint16_t)n;
}

enum sample_result sampler_sample(struct sampler *s, const struct sample_input *in, struct sample *out) {
    bool finite;
    uint32_t max_key = sampler_max(in->logits, s->vocab_size, s->chunk_max, &finite);
    if (!finite) {
        return SAMPLE_NONFINITE;
    }
    const struct sampling *p = in->sampling;
    const struct sampler_plan plan = sampler_make_plan(p, s->vocab_size);
    const float *z = sampler_modify(s, in, plan.stages, plan.n_leading);
    if (z != in->logits) {
        max_key = sampler_max(z, s->vocab_size, s->chunk_max, &finite); /* masked ones are infinite */
    }
    float z_max = sampler_float_of_key(max_key);
    if (z_max == -INFINITY) {
        return SAMPLE_NO_TOKEN;
    }
    if (!isfinite(z_max)) {
        return SAMPLE_NONFINITE; /* a penalty took a huge logit over the edge */
    }
    struct sample made = {.state = in->state};
    made.token = plan.greedy ? first_with_key(s, z, max_key) : sampler_choose(s, in, &plan, z, max_key, &made.state);
    if (p->n_logprobs >= 0) {
        fill_logprobs(s, in, &made);
    }
    *out = made;
    return SAMPLE_OK;
}

/* One more than the tokens that come before this one when all are sorted, best first and equal ones by id. */
static uint32_t rank_of(const struct sampler *s, const float *z, int32_t token) {
    uint32_t key = sampler_key(z[token]), rank = 1;
    for (size_t c = 0; c < sampler_n_chunks(s->vocab_size); c++) {
        if (s->chunk_max[c] < key) {
            continue;
        }
        for (size_t i = c * SAMPLER_CHUNK; i < chunk_end(s, c); i++) {
            uint32_t other = sampler_key(z[i]);
            rank += other > key || (other == key && i < (size_t)token);
        }
    }
    return rank;
}

enum sample_result sampler_score(struct sampler *s, const float *logits, int32_t token, int32_t n_top,
                                 struct sample *out) {
    const struct sampling sampling = {.n_logprobs = n_top};
    const struct sample_input in = {.logits = logits, .sampling = &sampling};
    struct sample made = {.token = token};
    bool finite;
    sampler_max(logits, s->vocab_size, s->chunk_max, &finite);
    if (!finite) {
        return SAMPLE_NONFINITE;
    }
    made.rank = rank_of(s, logits, token);
    fill_logprobs(s, &in, &made);
    *out = made;
    return SAMPLE_OK;
}
