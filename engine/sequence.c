#include "sequence.h"

#include "base/utf8.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

/* Every number of a request and what it may be. */
static int check_real(const char *name, double value, double min, double max, struct error *err) {
    if (!(value >= min && value <= max)) { /* also refuses NaN */
        return error_set_param(err, ERROR_INVALID, name, "%s must be between %g and %g", name, min, max);
    }
    return 0;
}

static int check_sampling(const struct sampling *s, size_t vocab_size, struct error *err) {
    const struct {
        const char *name;
        double value, min, max;
    } reals[] = {
        {"temperature", (double)s->temperature, 0, 2},
        {"top_p", (double)s->top_p, 1e-9, 1},
        {"min_p", (double)s->min_p, 0, 1},
        {"presence_penalty", (double)s->presence_penalty, -2, 2},
        {"frequency_penalty", (double)s->frequency_penalty, -2, 2},
        {"repetition_penalty", (double)s->repetition_penalty, 1e-3, 1e3},
        {"top_k", s->top_k, -1, INT32_MAX},
        {"top_logprobs", s->n_logprobs, -1, ENGINE_MAX_TOP_LOGPROBS},
        {"logit_bias", (double)s->n_logit_bias, 0, ENGINE_MAX_LOGIT_BIAS},
    };
    for (size_t i = 0; i < sizeof reals / sizeof reals[0]; i++) {
        if (check_real(reals[i].name, reals[i].value, reals[i].min, reals[i].max, err) < 0) {
            return -1;
        }
    }
    for (size_t i = 0; i < s->n_logit_bias; i++) {
        if (s->logit_bias[i].id < 0 || (size_t)s->logit_bias[i].id >= vocab_size) {
            return error_set_param(err, ERROR_INVALID, "logit_bias",
                                   "logit_bias: token id %d is outside the vocabulary of %zu", s->logit_bias[i].id,
                                   vocab_size);
        }
        if (check_real("logit_bias", (double)s->logit_bias[i].bias, -100, 100, err) < 0) {
            return -1;
        }
    }
    return 0;
}

static int check_ids(const char *name, const int32_t *ids, size_t n, size_t vocab_size, struct error *err) {
    for (size_t i = 0; i < n; i++) {
        if (ids[i] < 0 || (size_t)ids[i] >= vocab_size) {
            return error_set_param(err, ERROR_INVALID, name, "%s: token id %d is outside the vocabulary of %zu", name,
                                   ids[i], vocab_size);
        }
    }
    return 0;
}

static int check_request(const struct engine_request *r, const struct sequence_limits *limits, struct error *err) {
    if (r->n_prompt == 0) {
        return error_set_param(err, ERROR_INVALID, "prompt", "the prompt has no tokens");
    }
    if (r->n_prompt > limits->max_model_len) {
        return error_set_param(err, ERROR_CONTEXT_LENGTH, "prompt",
                               "the context holds %zu tokens, but the prompt has %zu", limits->max_model_len,
                               r->n_prompt);
    }
    if (r->n_prompt == limits->max_model_len && !r->score_only) {
        return error_set_param(err, ERROR_CONTEXT_LENGTH, "prompt",
                               "the context holds %zu tokens, but the prompt has %zu and at least 1 must be generated",
                               limits->max_model_len, r->n_prompt);
    }
    if (!r->score_only && r->max_tokens > limits->max_model_len - r->n_prompt) {
        return error_set_param(
            err, ERROR_CONTEXT_LENGTH, "max_tokens",
            "the context holds %zu tokens, but %zu were asked for: %zu in the prompt and max_tokens %zu",
            limits->max_model_len, r->n_prompt + r->max_tokens, r->n_prompt, r->max_tokens);
    }
    if (r->max_tokens != 0 && r->min_tokens > r->max_tokens) {
        return error_set_param(err, ERROR_INVALID, "min_tokens", "min_tokens (%zu) must not pass max_tokens (%zu)",
                               r->min_tokens, r->max_tokens);
    }
    if (r->n_stop > ENGINE_MAX_STOP) {
        return error_set_param(err, ERROR_INVALID, "stop", "at most %d stop strings are allowed", ENGINE_MAX_STOP);
    }
    for (size_t i = 0; i < r->n_stop; i++) {
        /* A stop string of whole characters can match at character borders only, so no shown text ends inside one. */
        if (r->stop[i].len == 0 || r->stop[i].len > ENGINE_MAX_STOP_LEN ||
            !utf8_is_valid(r->stop[i].bytes, r->stop[i].len)) {
            return error_set_param(err, ERROR_INVALID, "stop", "a stop string must be UTF-8 of 1 to %d bytes",
                                   ENGINE_MAX_STOP_LEN);
        }
    }
    if (r->n_stop_ids > ENGINE_MAX_STOP_IDS) {
        return error_set_param(err, ERROR_INVALID, "stop_token_ids", "at most %d stop token ids are allowed",
                               ENGINE_MAX_STOP_IDS);
    }
    if (check_ids("prompt", r->prompt, r->n_prompt, limits->vocab_size, err) < 0 ||
        check_ids("stop_token_ids", r->stop_ids, r->n_stop_ids, limits->vocab_size, err) < 0) {
        return -1;
    }
    if (check_real("speculative_tokens", r->speculative_tokens, -1, ENGINE_MAX_SPECULATIVE, err) < 0) {
        return -1;
    }
    if (check_real("prompt_logprobs", r->n_prompt_logprobs, -1, ENGINE_MAX_TOP_LOGPROBS, err) < 0) {
        return -1;
    }
    return check_sampling(&r->sampling, limits->vocab_size, err);
}

static int random_seed(uint64_t *seed, struct error *err) {
    ssize_t n;
    do {
        n = getrandom(seed, sizeof *seed, 0);
    } while (n < 0 && errno == EINTR);
    return n == (ssize_t)sizeof *seed ? 0 : error_set(err, ERROR_IO, "getrandom: %s", strerror(errno));
}

/* calloc of n elements, at least one, so that NULL means failure alone. */
static void *array(size_t n, size_t size) {
    return calloc(n ? n : 1, size);
}

int sequence_new(const struct engine_request *r, const struct sequence_limits *limits, struct sequence **out,
                 struct error *err) {
    if (check_request(r, limits, err) < 0) {
        return -1;
    }
    struct sequence *s = calloc(1, sizeof *s);
    if (!s) {
        return error_memory(err);
    }
    list_init(&s->node);
    atomic_init(&s->cancelled, false);
    s->id = r->id;
    s->n_prompt = s->n_tokens = r->n_prompt;
    s->total_is_context = r->max_tokens == 0 || r->n_prompt + r->max_tokens == limits->max_model_len;
    s->max_total = r->max_tokens == 0 ? limits->max_model_len : r->n_prompt + r->max_tokens;
    if (r->score_only) {
        s->total_is_context = false;
        s->max_total = r->n_prompt;
    }
    s->n_prompt_logprobs = r->n_prompt_logprobs;
    s->score_only = r->score_only;
    s->min_tokens = r->min_tokens;
    s->include_stop = r->include_stop;
    s->sampling = r->sampling;
    s->seed = r->sampling.seed;

    size_t n_eos = 0;
    const int32_t *eos = text_eos_ids(limits->text, &n_eos);
    s->n_model_end_ids = r->ignore_eos ? 0 : n_eos;
    s->n_end_ids = s->n_model_end_ids + r->n_stop_ids;

    s->tokens = array(s->max_total, sizeof *s->tokens);
    s->blocks = array(s->max_total / limits->kv_block_size + 1, sizeof *s->blocks);
    s->end_ids = array(s->n_end_ids, sizeof *s->end_ids);
    if (limits->prefix_cache) {
        s->keys = array(s->max_total / limits->kv_block_size + 1, sizeof *s->keys);
        s->may_hit = r->n_prompt_logprobs < 0 && !r->score_only;
    }
    struct logit_bias *bias = array(r->sampling.n_logit_bias, sizeof *bias);
    s->sampling.logit_bias = bias;
    if (!s->tokens || !s->blocks || !s->end_ids || !bias || (limits->prefix_cache && !s->keys)) {
        error_memory(err);
        goto fail;
    }
    memcpy(s->tokens, r->prompt, r->n_prompt * sizeof *s->tokens);
    for (size_t i = 0; i < s->n_model_end_ids; i++) {
        s->end_ids[i] = eos[i];
    }
    for (size_t i = 0; i < r->n_stop_ids; i++) {
        s->end_ids[s->n_model_end_ids + i] = r->stop_ids[i];
    }
    for (size_t i = 0; i < r->sampling.n_logit_bias; i++) {
        bias[i] = r->sampling.logit_bias[i];
    }
    size_t most = r->speculative_tokens < 0 ? limits->speculative_tokens : (size_t)r->speculative_tokens;
    if (speculation_init(&s->speculation, r->score_only ? 0 : most, s->max_total, err) < 0) {
        goto fail;
    }
    speculation_index(&s->speculation, s->tokens, s->n_tokens); /* here, so that no step is longer for it */
    if ((!r->sampling.has_seed && random_seed(&s->seed, err) < 0) ||
        stop_matcher_init(&s->stops, r->stop, r->n_stop, r->include_stop, err) < 0) {
        goto fail;
    }
    if (s->keys && !kv_key_root(r->cache_salt, &s->keys[0])) {
        error_set(err, ERROR_INTERNAL, "SHA-256 cannot be computed, which the prefix cache needs");
        goto fail;
    }
    detokenizer_init(&s->detokenizer, limits->text, r->skip_special, true);
    *out = s;
    return 0;
fail:
    sequence_free(s);
    return -1;
}

void sequence_free(struct sequence *s) {
    if (!s) {
        return;
    }
    stop_matcher_destroy(&s->stops);
    speculation_destroy(&s->speculation);
    free((void *)s->sampling.logit_bias);
    free(s->end_ids);
    free(s->keys);
    free(s->blocks);
    free(s->tokens);
    free(s);
}
