#include "sampler_logits.h"

#include "dry.h"
#include "sampler_passes.h"
#include <inferd/sampler_math.h>

#include <math.h>
#include <string.h>

bool sampler_has_penalties(const struct sampling *p) {
    return p->repeat_last_n != 0 &&
           (p->repetition_penalty != 1.0f || p->frequency_penalty != 0.0f || p->presence_penalty != 0.0f);
}

bool sampler_has_dry(const struct sampling *p) {
    return p->dry_multiplier > 0.0f && p->dry_penalty_last_n != 0;
}

/* The first of the last `last_n` tokens (-1 = all). */
size_t sampler_window_begin(const struct sample_input *in, int32_t last_n) {
    return last_n < 0 || (size_t)last_n >= in->n_tokens ? 0 : in->n_tokens - (size_t)last_n;
}

/* Each distinct token once: counts > 0 says how often it was generated, -1 that it is in the prompt only. */
void sampler_penalise(struct sampler *s, const struct sample_input *in, float *z) {
    const struct sampling *p = in->sampling;
    size_t begin = sampler_window_begin(in, p->repeat_last_n);
    if (p->repetition_penalty == 1.0f && begin < in->n_prompt) {
        begin = in->n_prompt; /* the other two do not look at the prompt, which may be long */
    }
    for (size_t i = begin; i < in->n_prompt; i++) {
        s->counts[in->tokens[i]] = -1;
    }
    for (size_t i = begin > in->n_prompt ? begin : in->n_prompt; i < in->n_tokens; i++) {
        int32_t *count = &s->counts[in->tokens[i]];
        *count = *count < 0 ? 1 : *count + 1;
    }
    for (size_t i = begin; i < in->n_tokens; i++) {
        int32_t id = in->tokens[i], count = s->counts[id];
        if (count == 0) {
            continue; /* done already */
        }
        float x = z[id];
        x = x > 0.0f ? x / p->repetition_penalty : x * p->repetition_penalty;
        if (count > 0) {
            float frequency = (float)count * p->frequency_penalty;
            x = x - frequency;
            x = x - p->presence_penalty;
        }
        z[id] = x;
        s->counts[id] = 0;
    }
}

void sampler_dry(struct sampler *s, const struct sample_input *in, float *z) {
    const struct sampling *p = in->sampling;
    size_t begin = sampler_window_begin(in, p->dry_penalty_last_n), n = in->n_tokens - begin;
    size_t allowed = (size_t)p->dry_allowed_length, n_breakers = in->text ? p->n_dry_breakers : 0;
    const int32_t *tokens = in->tokens + begin;
    size_t reach = n > allowed ? dry_reach(in->text, p->dry_breakers, n_breakers, tokens, n) : 0;
    if (reach < allowed || n <= allowed) {
        return;
    }
    dry_lengths(tokens, n, reach, s->lengths);
    for (size_t i = 0; i + 1 < n; i++) { /* the longest repetition that each token would go on with */
        int32_t *longest = &s->counts[tokens[i + 1]];
        if (s->lengths[i] >= p->dry_allowed_length && s->lengths[i] > *longest) {
            *longest = s->lengths[i];
        }
    }
    for (size_t i = 1; i < n; i++) {
        int32_t id = tokens[i], longest = s->counts[id];
        s->counts[id] = 0;
        if (longest > 0 && !(n_breakers && dry_is_breaker(in->text, p->dry_breakers, n_breakers, id))) {
            double power = sampler_power((double)p->dry_base, (uint32_t)(longest - p->dry_allowed_length));
            z[id] = (float)((double)z[id] - (double)p->dry_multiplier * power);
        }
    }
}

bool sampler_ends_bad_word(const struct sample_input *in, const struct token_sequence *word) {
    size_t before = word->n - 1;
    return before == 0 || (before <= in->n_tokens - in->n_prompt &&
                           memcmp(in->tokens + in->n_tokens - before, word->ids, before * sizeof *word->ids) == 0);
}

static void mask_bad_words(const struct sample_input *in, float *z) {
    const struct sampling *p = in->sampling;
    for (size_t i = 0; i < p->n_bad_words; i++) {
        if (sampler_ends_bad_word(in, &p->bad_words[i])) {
            z[p->bad_words[i].ids[p->bad_words[i].n - 1]] = -INFINITY;
        }
    }
}

_Static_assert(SAMPLER_CHUNK == 64, "a word of the allowed ids is a chunk");

static void mask_all_but_allowed(const struct sampler *s, const uint64_t *allowed, float *z) {
    for (size_t c = 0; c < sampler_n_chunks(s->vocab_size); c++) {
        for (size_t i = c * 64; i < (c + 1) * 64 && i < s->vocab_size; i++) {
            z[i] = allowed[c] >> (i % 64) & 1 ? z[i] : -INFINITY;
        }
    }
}

const float *sampler_modify(struct sampler *s, const struct sample_input *in, const uint8_t *stages, size_t n) {
    const struct sampling *p = in->sampling;
    if (p->n_logit_bias == 0 && n == 0 && in->n_masked == 0 && p->n_bad_words == 0 && !in->allowed) {
        return in->logits;
    }
    memcpy(s->z, in->logits, s->vocab_size * sizeof *s->z);
    for (size_t i = 0; i < p->n_logit_bias; i++) {
        s->z[p->logit_bias[i].id] += p->logit_bias[i].bias;
    }
    for (size_t i = 0; i < n; i++) {
        if (stages[i] == SAMPLER_PENALTIES) {
            sampler_penalise(s, in, s->z);
        } else {
            sampler_dry(s, in, s->z);
        }
    }
    if (in->allowed) {
        mask_all_but_allowed(s, in->allowed, s->z);
    }
    for (size_t i = 0; i < in->n_masked; i++) {
        s->z[in->masked[i]] = -INFINITY;
    }
    mask_bad_words(in, s->z);
    return s->z;
}
