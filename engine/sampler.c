#include "sampler.h"

#include "sampler_math.h"
#include "sampler_passes.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define GREEDY_BELOW 1e-5f /* temperature */

void engine_sampling_default(struct sampling *s) {
    *s = (struct sampling){.temperature = 1, .top_p = 1, .repetition_penalty = 1, .n_logprobs = -1};
}

int sampler_init(struct sampler *s, size_t vocab_size, struct error *err) {
    struct sampler made = {.vocab_size = vocab_size};
    made.z = calloc(vocab_size, sizeof *made.z);
    made.e = calloc(vocab_size, sizeof *made.e);
    made.kept = calloc(vocab_size, sizeof *made.kept);
    made.counts = calloc(vocab_size, sizeof *made.counts);
    if (!made.z || !made.e || !made.kept || !made.counts) {
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
        free(s->kept);
        free(s->counts);
        *s = (struct sampler){0};
    }
}

static bool has_penalty(const struct sampling *p) {
    return p->repetition_penalty != 1.0f || p->frequency_penalty != 0.0f || p->presence_penalty != 0.0f;
}

/* Each distinct token once: counts > 0 says how often it was generated, -1 that it is in the prompt only. */
static void apply_penalties(struct sampler *s, const struct sample_input *in) {
    const struct sampling *p = in->sampling;
    for (size_t i = 0; i < in->n_prompt; i++) {
        s->counts[in->tokens[i]] = -1;
    }
    for (size_t i = in->n_prompt; i < in->n_tokens; i++) {
        int32_t *count = &s->counts[in->tokens[i]];
        *count = *count < 0 ? 1 : *count + 1;
    }
    for (size_t i = 0; i < in->n_tokens; i++) {
        int32_t id = in->tokens[i], count = s->counts[id];
        if (count == 0) {
            continue; /* done already */
        }
        float z = s->z[id];
        z = z > 0.0f ? z / p->repetition_penalty : z * p->repetition_penalty;
        if (count > 0) {
            float frequency = (float)count * p->frequency_penalty;
            z = z - frequency;
            z = z - p->presence_penalty;
        }
        s->z[id] = z;
        s->counts[id] = 0;
    }
}

/* Bias, masks and penalties; returns the logits to choose from: the unmodified ones when nothing applies. */
static const float *modify(struct sampler *s, const struct sample_input *in) {
    const struct sampling *p = in->sampling;
    if (p->n_logit_bias == 0 && in->n_masked == 0 && !has_penalty(p)) {
        return in->logits;
    }
    memcpy(s->z, in->logits, s->vocab_size * sizeof *s->z);
    for (size_t i = 0; i < p->n_logit_bias; i++) {
        s->z[p->logit_bias[i].id] += p->logit_bias[i].bias;
    }
    if (has_penalty(p)) {
        apply_penalties(s, in);
    }
    for (size_t i = 0; i < in->n_masked; i++) {
        s->z[in->masked[i]] = -INFINITY;
    }
    return s->z;
}

static int32_t first_with_key(const float *z, size_t n, uint32_t key) {
    size_t i = 0;
    while (i + 1 < n && sampler_key(z[i]) != key) {
        i++;
    }
    return (int32_t)i;
}

/*
 * Keep the best of n candidates, in place and in order of id, until `want_count` are kept or their weights
 * reach `want_mass` (both >= 1). The edge is found by radix selection on the keys: a histogram of the top 11 bits,
 * then of the next 11 and 10 bits inside the bucket where the edge lies.
 */
static size_t keep_best(struct sampler *s, size_t n, size_t want_count, uint64_t want_mass) {
    static const struct {
        unsigned shift, bits;
    } digits[] = {{21, 11}, {10, 11}, {0, 10}};
    struct candidate *c = s->kept;
    uint32_t prefix = 0, prefix_mask = 0;
    uint64_t mass = 0; /* of the candidates that are certainly above the edge */
    size_t count = 0;
    for (size_t d = 0; d < sizeof digits / sizeof digits[0]; d++) {
        uint32_t n_buckets = 1u << digits[d].bits;
        memset(s->bucket_mass, 0, sizeof s->bucket_mass);
        memset(s->bucket_count, 0, sizeof s->bucket_count);
        for (size_t i = 0; i < n; i++) {
            if ((c[i].key & prefix_mask) == prefix) {
                uint32_t bucket = c[i].key >> digits[d].shift & (n_buckets - 1);
                s->bucket_mass[bucket] += c[i].weight;
                s->bucket_count[bucket]++;
            }
        }
        uint32_t bucket = n_buckets - 1;
        while (bucket > 0 && count + s->bucket_count[bucket] < want_count && mass + s->bucket_mass[bucket] < want_mass) {
            count += s->bucket_count[bucket];
            mass += s->bucket_mass[bucket];
            bucket--;
        }
        prefix |= bucket << digits[d].shift;
        prefix_mask |= (n_buckets - 1) << digits[d].shift;
    }
    size_t kept = 0;
    for (size_t i = 0; i < n; i++) {
        bool keep = c[i].key > prefix;
        if (c[i].key == prefix && count < want_count && mass < want_mass) { /* equal ones: lowest ids first */
            keep = true;
            count++;
            mass += c[i].weight;
        }
        if (keep) {
            c[kept++] = c[i];
        }
    }
    return kept;
}

static uint64_t total_weight(const struct candidate *c, size_t n) {
    uint64_t total = 0;
    for (size_t i = 0; i < n; i++) {
        total += c[i].weight;
    }
    return total;
}

static int32_t draw_filtered(struct sampler *s, const float *z, const struct sampling *p, uint64_t random) {
    size_t n = 0;
    for (size_t i = 0; i < s->vocab_size; i++) {
        uint64_t weight = sampler_weight(s->e[i]);
        if (weight > 0 && s->e[i] >= p->min_p) {
            s->kept[n++] = (struct candidate){(int32_t)i, sampler_key(z[i]), weight};
        }
    }
    if (p->top_k > 0 && (size_t)p->top_k < n) {
        n = keep_best(s, n, (size_t)p->top_k, UINT64_MAX);
    }
    uint64_t total = total_weight(s->kept, n);
    if (p->top_p < 1.0f) {
        uint64_t want = (uint64_t)((double)total * (double)p->top_p);
        n = keep_best(s, n, n, want > 0 ? want : 1);
        total = total_weight(s->kept, n);
    }
    uint64_t target = sampler_scale_random(random, total), sum = 0;
    size_t i = 0;
    while (i + 1 < n && (sum += s->kept[i].weight) <= target) {
        i++;
    }
    return s->kept[i].id;
}

static int32_t draw_all(struct sampler *s, uint64_t random) {
    uint64_t total = 0;
    for (size_t i = 0; i < s->vocab_size; i++) {
        total += sampler_weight(s->e[i]);
    }
    uint64_t target = sampler_scale_random(random, total), sum = 0;
    size_t i = 0;
    while (i + 1 < s->vocab_size && (sum += sampler_weight(s->e[i])) <= target) {
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
static void fill_logprobs(struct sampler *s, const struct sample_input *in, float z_max, struct sample *out) {
    sampler_exp(s->e, in->logits, s->vocab_size, z_max, SAMPLER_LOG2E);
    uint64_t total = 0;
    for (size_t i = 0; i < s->vocab_size; i++) {
        total += sampler_weight(s->e[i]);
    }
    double log_sum = (double)z_max + log((double)total / (double)SAMPLER_WEIGHT_ONE);
    out->logprob = (float)((double)in->logits[out->token] - log_sum);

    size_t want = (size_t)in->sampling->n_logprobs, n = 0;
    if (want > s->vocab_size) {
        want = s->vocab_size;
    }
    for (size_t i = 0; i < s->vocab_size && want > 0; i++) {
        if (n < want) {
            insert_top(out->top, n++, (int32_t)i, in->logits[i]);
        } else if (in->logits[i] > out->top[want - 1].logprob) {
            insert_top(out->top, want - 1, (int32_t)i, in->logits[i]);
        }
    }
    for (size_t i = 0; i < n; i++) {
        out->top[i].logprob = (float)((double)out->top[i].logprob - log_sum);
    }
    out->n_top = (uint16_t)n;
}

static float float_of_key(uint32_t key) {
    uint32_t bits = key & 0x80000000u ? key & 0x7fffffffu : ~key;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

enum sample_result sampler_sample(struct sampler *s, const struct sample_input *in, struct sample *out) {
    uint32_t raw_max_key;
    if (!sampler_max_finite(in->logits, s->vocab_size, &raw_max_key)) {
        return SAMPLE_NONFINITE;
    }
    const struct sampling *p = in->sampling;
    const float *z = modify(s, in);
    uint32_t max_key = raw_max_key;
    if (z != in->logits) {
        sampler_max(z, s->vocab_size, &max_key);
    }
    float z_max = float_of_key(max_key);
    if (z_max == -INFINITY) {
        return SAMPLE_NO_TOKEN;
    }
    if (!isfinite(z_max)) {
        return SAMPLE_NONFINITE; /* a penalty took a huge logit over the edge */
    }
    struct sample made = {0};
    if (p->temperature < GREEDY_BELOW) {
        made.token = first_with_key(z, s->vocab_size, max_key);
    } else {
        sampler_exp(s->e, z, s->vocab_size, z_max, SAMPLER_LOG2E / p->temperature);
        uint64_t random = sampler_random(in->seed, in->position, p->choice);
        bool filtered = p->top_k > 0 || p->top_p < 1.0f || p->min_p > 0.0f;
        made.token = filtered ? draw_filtered(s, z, p, random) : draw_all(s, random);
    }
    if (p->n_logprobs >= 0) {
        fill_logprobs(s, in, float_of_key(raw_max_key), &made);
    }
    *out = made;
    return SAMPLE_OK;
}
