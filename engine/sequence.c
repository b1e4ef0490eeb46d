#include "sequence.h"

#include "base/utf8.h"

#include <errno.h>
#include <float.h>
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
        {"top_p", (double)s->top_p, (double)FLT_TRUE_MIN, 1},
        {"min_p", (double)s->min_p, 0, 1},
        {"presence_penalty", (double)s->presence_penalty, -2, 2},
        {"frequency_penalty", (double)s->frequency_penalty, -2, 2},
        {"repetition_penalty", (double)s->repetition_penalty, 1e-3, 100},
        {"repeat_last_n", s->repeat_last_n, -1, INT32_MAX},
        {"typical_p", (double)s->typical_p, (double)FLT_TRUE_MIN, 1},
        {"top_n_sigma", (double)s->top_n_sigma, 0, 100},
        {"xtc_probability", (double)s->xtc_probability, 0, 1},
        {"xtc_threshold", (double)s->xtc_threshold, 0, 1},
        {"dynatemp_range", (double)s->dynatemp_range, 0, 2},
        {"dynatemp_exponent", (double)s->dynatemp_exponent, 0, 100},
        {"dry_multiplier", (double)s->dry_multiplier, 0, 100},
        {"dry_base", (double)s->dry_base, 1, 100},
        {"dry_allowed_length", s->dry_allowed_length, 1, 1 << 20},
        {"dry_penalty_last_n", s->dry_penalty_last_n, -1, INT32_MAX},
        {"dry_sequence_breakers", (double)s->n_dry_breakers, 0, ENGINE_MAX_DRY_BREAKERS},
        {"mirostat", s->mirostat, 0, 2},
        {"mirostat_tau", (double)s->mirostat_tau, 0, 100},
        {"mirostat_eta", (double)s->mirostat_eta, 0, 1},
        {"min_keep", s->min_keep, 0, 1 << 20},
        {"samplers", s->order.n, 0, SAMPLER_STAGES},
        {"bad_words", (double)s->n_bad_words, 0, ENGINE_MAX_BAD_WORDS},
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

static int check_sequences(const struct sampling *s, size_t vocab_size, struct error *err) {
    for (size_t i = 0; i < s->n_dry_breakers; i++) {
        if (check_real("dry_sequence_breakers", (double)s->dry_breakers[i].len, 1, ENGINE_MAX_DRY_BREAKER_LEN, err) <
            0) {
            return -1;
        }
    }
    for (size_t i = 0; i < s->n_bad_words; i++) {
        if (check_real("bad_words", (double)s->bad_words[i].n, 1, ENGINE_MAX_BAD_WORD_IDS, err) < 0 ||
            check_ids("bad_words", s->bad_words[i].ids, s->bad_words[i].n, vocab_size, err) < 0) {
            return -1;
        }
    }
    for (size_t i = 0; i < s->order.n; i++) {
        for (size_t k = 0; k <= i; k++) {
            if (s->order.stages[i] >= SAMPLER_STAGES || (k < i && s->order.stages[k] == s->order.stages[i])) {
                return error_set_param(err, ERROR_INVALID, "samplers", "samplers must have each stage at most once");
            }
        }
    }
    if (s->allowed_ids && s->n_allowed_ids == 0) {
        return error_set_param(err, ERROR_INVALID, "allowed_token_ids", "allowed_token_ids must not be empty");
    }
    return check_ids("allowed_token_ids", s->allowed_ids, s->n_allowed_ids, vocab_size, err);
}

static int check_repetition(const struct engine_request *r, struct error *err) {
    if (r->repetition_max_size == 0) {
        return 0;
    }
    if (check_real("repetition_detection.max_pattern_size", r->repetition_max_size, 1, ENGINE_MAX_PATTERN, err) < 0 ||
        check_real("repetition_detection.min_pattern_size", r->repetition_min_size, 1, r->repetition_max_size, err) <
            0) {
        return -1;
    }
    return check_real("repetition_detection.min_count", r->repetition_min_count, 2, ENGINE_MAX_PATTERN, err);
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
    if (check_sampling(&r->sampling, limits->vocab_size, err) < 0 ||
        check_sequences(&r->sampling, limits->vocab_size, err) < 0) {
        return -1;
    }
    return check_repetition(r, err);
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

/* A copy of n elements; NULL for none or for lack of memory. */
static void *copy_of(const void *from, size_t n, size_t size) {
    void *to = n > 0 ? calloc(n, size) : NULL;
    if (to) {
        memcpy(to, from, n * size);
    }
    return to;
}

/* What the request's sampling points to becomes the sequence's own. On failure free_sampling frees what was copied. */
static int copy_sampling(struct sequence *s, const struct sampling *from, size_t vocab_size, struct error *err) {
    struct sampling *to = &s->sampling;
    *to = *from;
    to->n_dry_breakers = to->n_bad_words = to->n_allowed_ids = 0;
    to->allowed_ids = NULL;
    to->logit_bias = copy_of(from->logit_bias, from->n_logit_bias, sizeof *from->logit_bias);
    struct meta_stop *breakers = from->dry_multiplier > 0 ? calloc(from->n_dry_breakers + 1, sizeof *breakers) : NULL;
    struct token_sequence *words = from->n_bad_words > 0 ? calloc(from->n_bad_words, sizeof *words) : NULL;
    to->dry_breakers = breakers;
    to->bad_words = words;
    if ((from->n_bad_words > 0 && !words) || (from->n_logit_bias > 0 && !to->logit_bias) ||
        (from->dry_multiplier > 0 && !breakers)) {
        return error_memory(err);
    }
    for (size_t i = 0; breakers && i < from->n_dry_breakers; i++) {
        breakers[i] = (struct meta_stop){copy_of(from->dry_breakers[i].bytes, from->dry_breakers[i].len, 1),
                                         from->dry_breakers[i].len};
        if (!breakers[i].bytes) {
            return error_memory(err);
        }
        to->n_dry_breakers++;
    }
    for (size_t i = 0; i < from->n_bad_words; i++) {
        words[i] = from->bad_words[i];
        words[i].ids = copy_of(from->bad_words[i].ids, words[i].n, sizeof *words[i].ids);
        if (!words[i].ids) {
            return error_memory(err);
        }
        to->n_bad_words++;
    }
    if (from->allowed_ids) {
        s->allowed = calloc(vocab_size / 64 + 1, sizeof *s->allowed);
        if (!s->allowed) {
            return error_memory(err);
        }
        for (size_t i = 0; i < from->n_allowed_ids; i++) {
            s->allowed[from->allowed_ids[i] / 64] |= (uint64_t)1 << (from->allowed_ids[i] % 64);
        }
    }
    return 0;
}

static void free_sampling(struct sequence *s) {
    struct sampling *p = &s->sampling;
    for (size_t i = 0; i < p->n_dry_breakers; i++) {
        free((void *)p->dry_breakers[i].bytes);
    }
    for (size_t i = 0; i < p->n_bad_words; i++) {
        free((void *)p->bad_words[i].ids);
    }
    free((void *)p->dry_breakers);
    free((void *)p->bad_words);
    free((void *)p->logit_bias);
    free(s->allowed);
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
    list_init(&s->cancel_node);
    list_init(&s->children);
    s->id = r->id;
    s->parent_id = r->parent;
    s->priority = r->priority;
    s->tenant_cost = r->tenant_cost;
    s->tenant_id = r->tenant;
    memcpy(s->cache_salt, r->cache_salt, sizeof s->cache_salt);
    s->may_hit = r->n_prompt_logprobs < 0 && !r->score_only;
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
    s->repetition_max_size = r->repetition_max_size;
    s->repetition_min_size = r->repetition_min_size;
    s->repetition_min_count = r->repetition_min_count;
    s->sampler = sampler_state_first(&r->sampling);
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
    }
    if (!s->tokens || !s->blocks || !s->end_ids || (limits->prefix_cache && !s->keys)) {
        error_memory(err);
        goto fail;
    }
    if (copy_sampling(s, &r->sampling, limits->vocab_size, err) < 0) {
        goto fail;
    }
    memcpy(s->tokens, r->prompt, r->n_prompt * sizeof *s->tokens);
    for (size_t i = 0; i < s->n_model_end_ids; i++) {
        s->end_ids[i] = eos[i];
    }
    for (size_t i = 0; i < r->n_stop_ids; i++) {
        s->end_ids[s->n_model_end_ids + i] = r->stop_ids[i];
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
    free_sampling(s);
    free(s->end_ids);
    free(s->keys);
    free(s->blocks);
    free(s->tokens);
    free(s);
}

/* As vLLM's repetition detection: the last min_count * size generated tokens are min_count times the last `size`. */
bool sequence_repeats(const struct sequence *s) {
    const int32_t *end = s->tokens + s->n_tokens;
    size_t generated = sequence_n_generated(s);
    for (size_t size = s->repetition_min_size; size <= s->repetition_max_size && s->repetition_max_size > 0; size++) {
        size_t want = size * s->repetition_min_count, same = size;
        if (want > generated) {
            return false;
        }
        while (same < want && end[-(ptrdiff_t)same - 1] == end[-(ptrdiff_t)(same - size) - 1]) {
            same++;
        }
        if (same == want) {
            return true;
        }
    }
    return false;
}
