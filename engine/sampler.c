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
    made.chunk_max = calloc(sampler_n_chunks(vocab_size), sizeof *made.chunk_max);
    made.chunk_sum = calloc(sampler_n_chunks(vocab_size), sizeof *made.chunk_sum);
    made.kept = calloc(vocab_size, sizeof *made.kept);
    made.counts = calloc(vocab_size, sizeof *made.counts);
    if (!made.z || !made.e || !made.chunk_max || !made.chunk_sum || !made.kept || !made.counts) {
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

/*
 * Keep the best of n candidates, in place and in order of id, until `want_count` are kept or their weights
 * reach `want_mass` (both >= 1). The edge is found by radix selection on the keys: a histogram of the top 11 bits,
 * then of the next 11 and 10 bits inside the bucket where the edge lies.
 */
static size_t keep_best(struct sampler *s, size_t n, size_t want_count, uint64_t want_mass) {
    static const struct { unsigned shift, bits; } digits[] = {{21, 11}, {10, 11}, {0, 10}};
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
        while (bucket > 0 && count + s->bucket_count[bucket] < want_count &&
               mass + s->bucket_mass[bucket] < want_mass) {
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

/* What a draw is made from: the logits, and how they become probabilities. */
struct shape {
    const float *z;
    float z_max, scale;
    float min_p;
};

/* A key that at least k tokens reach: the k-th largest of the chunks' largest. 0 when there are fewer chunks. */
static uint32_t key_reached_by(struct sampler *s, size_t k) {
    size_t n = sampler_n_chunks(s->vocab_size);
    if (k > n) {
        return 0;
    }
    for (size_t c = 0; c < n; c++) {
        s->kept[c] = (struct candidate){(int32_t)c, s->chunk_max[c], 1};
    }
    n = keep_best(s, n, k, UINT64_MAX);
    uint32_t least = UINT32_MAX;
    for (size_t i = 0; i < n; i++) {
        least = s->kept[i].key < least ? s->kept[i].key : least;
    }
    return least;
}

/* Candidates: tokens whose key and probability reach the floors. Chunks that hold none are passed over. */
static size_t gather(struct sampler *s, const struct shape *shape, uint32_t key_floor, float floor) {
    size_t n = 0;
    for (size_t c = 0; c < sampler_n_chunks(s->vocab_size); c++) {
        float best = sampler_exp2((sampler_float_of_key(s->chunk_max[c]) - shape->z_max) * shape->scale);
        if (s->chunk_max[c] < key_floor || best < floor) {
            continue;
        }
        for (size_t i = c * SAMPLER_CHUNK; i < chunk_end(s, c); i++) {
            uint32_t key = sampler_key(shape->z[i]);
            float e = key < key_floor ? 0.0f : sampler_exp2((shape->z[i] - shape->z_max) * shape->scale);
            uint64_t weight = sampler_weight(e);
            if (weight > 0 && e >= floor && e >= shape->min_p) {
                s->kept[n++] = (struct candidate){(int32_t)i, key, weight};
            }
        }
    }
    return n;
}

/* top_p alone, s->e and s->chunk_sum filled: candidates are the tokens above a floor that sinks until they hold `want`.
 */
static size_t gather_mass(struct sampler *s, const struct shape *shape, uint64_t want) {
    for (float floor = 1.0f / 16;; floor *= 1.0f / 16) {
        bool all = floor * SAMPLER_WEIGHT_ONE < 1.0f;
        uint64_t weight_floor = all ? 1 : sampler_weight(floor), mass = 0;
        size_t n = 0;
        for (size_t c = 0; c < sampler_n_chunks(s->vocab_size); c++) {
            for (size_t i = c * SAMPLER_CHUNK; s->chunk_sum[c] >= weight_floor && i < chunk_end(s, c); i++) {
                uint64_t weight = sampler_weight(s->e[i]);
                if (weight >= weight_floor) {
                    s->kept[n++] = (struct candidate){(int32_t)i, sampler_key(shape->z[i]), weight};
                    mass += weight;
                }
            }
        }
        if (all || mass >= want) {
            return n;
        }
    }
}

static uint64_t share(uint64_t total, float p) {
    uint64_t want = (uint64_t)((double)total * (double)p);
    return want > 0 ? want : 1;
}

static int32_t draw_filtered(struct sampler *s, const struct shape *shape, const struct sampling *p, uint64_t random) {
    bool by_rank = p->top_k > 0 && (size_t)p->top_k < s->vocab_size;
    uint64_t want;
    size_t n;
    if (by_rank || p->min_p > 0.0f) {
        n = by_rank ? gather(s, shape, key_reached_by(s, (size_t)p->top_k), 0) : gather(s, shape, 0, p->min_p);
        n = by_rank && (size_t)p->top_k < n ? keep_best(s, n, (size_t)p->top_k, UINT64_MAX) : n;
        want = share(total_weight(s->kept, n), p->top_p);
    } else {
        want = share(sampler_exp(s->e, shape->z, s->vocab_size, shape->z_max, shape->scale, s->chunk_sum), p->top_p);
        n = gather_mass(s, shape, want);
    }
    if (p->top_p < 1.0f) {
        n = keep_best(s, n, n, want);
    }
    uint64_t target = sampler_scale_random(random, total_weight(s->kept, n)), sum = 0;
    size_t i = 0;
    while (i + 1 < n && (sum += s->kept[i].weight) <= target) {
        i++;
    }
    return s->kept[i].id;
}

static int32_t draw_all(struct sampler *s, const struct shape *shape, uint64_t random) {
    uint64_t total = sampler_exp(s->e, shape->z, s->vocab_size, shape->z_max, shape->scale, s->chunk_sum);
    uint64_t target = sampler_scale_random(random, total), sum = 0;
    size_t c = 0;
    while (sum + s->chunk_sum[c] <= target) {
        sum += s->chunk_sum[c++];
    }
    size_t i = c * SAMPLER_CHUNK;
    while (i + 1 < chunk_end(s, c) && (sum += sampler_weight(s->e[i])) <= target) {
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
    const float *z = modify(s, in);
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
    struct sample made = {0};
    if (p->temperature < GREEDY_BELOW) {
        made.token = first_with_key(s, z, max_key);
    } else {
        struct shape shape = {.z = z, .z_max = z_max, .scale = SAMPLER_LOG2E / p->temperature, .min_p = p->min_p};
        uint64_t random = sampler_random(in->seed, in->position, p->choice);
        bool filtered = p->top_k > 0 || p->top_p < 1.0f || p->min_p > 0.0f;
        made.token = filtered ? draw_filtered(s, &shape, p, random) : draw_all(s, &shape, random);
    }
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
