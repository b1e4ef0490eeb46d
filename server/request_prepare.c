/* From body to engine: parse, admit, tokenise, submit. */
#include "api_common.h"
#include "config.h"
#include "http.h"
#include "loop.h"
#include "request_parts.h"
#include "server_state.h"

#include <inferd/clock.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int request_alloc_prompts(struct request *r, size_t n, struct error *err) {
    r->prompts = calloc(n, sizeof *r->prompts);
    if (!r->prompts) {
        return error_memory(err);
    }
    r->n_prompts = n;
    return 0;
}

/* Top logprobs that are asked of the engine for each token of the prompt, -1 = none. */
static int64_t prompt_top(const struct request *r) {
    int64_t echoed = request_echoes_logprobs(r) ? r->params.top_logprobs : -1;
    return echoed > r->params.prompt_logprobs ? echoed : r->params.prompt_logprobs;
}

/* They are kept until the answer is written, and most of them are text then: a bound on what one request may take. */
static int check_prompt_logprobs(const struct request *r, struct error *err) {
    size_t each = (size_t)(prompt_top(r) + 1), room = PARAMS_MAX_PROMPT_LOGPROBS;
    for (size_t i = 0; each && i < r->n_prompts; i++) {
        size_t told = r->api->where == IN_CHAT ? 1 : (size_t)r->params.n, n = r->prompts[i].tokens.n * told;
        if (n > room / each) {
            return error_set_param(err, ERROR_INVALID, request_echoes_logprobs(r) ? "logprobs" : "prompt_logprobs",
                                   "an answer may have %zu logprobs of prompts, top ones counted: fewer top ones, "
                                   "choices or prompts must be asked for",
                                   PARAMS_MAX_PROMPT_LOGPROBS);
        }
        room -= n * each;
    }
    return 0;
}

static int alloc_choices(struct request *r, struct error *err) {
    size_t n = r->n_prompts * (size_t)r->params.n;
    if (check_prompt_logprobs(r, err)) {
        return -1;
    }
    r->choices = calloc(n, sizeof *r->choices);
    if (!r->choices) {
        return error_memory(err);
    }
    r->n_choices = n;
    struct sampling sampling;
    params_sampling(&r->params, r->api->where, &sampling);
    for (size_t i = 0; i < n; i++) {
        struct choice *c = &r->choices[i];
        const struct prompt *p = &r->prompts[i / (size_t)r->params.n];
        *c = (struct choice){.request = r, .index = i, .stop_index = -1, .stop_token = -1};
        size_t n_top = sampling.n_logprobs > 0 ? (size_t)sampling.n_logprobs : 0;
        logprobs_init(&c->logprobs, r->server->text, r->params.skip_special_tokens, n_top, 0);
        n_top = r->params.prompt_logprobs > 0 ? (size_t)r->params.prompt_logprobs : 0;
        logprobs_init(&c->prompt_logprobs, r->server->text, false, n_top, 0);
        if (p->echo.len) {
            buf_append(&c->text, p->echo.data, p->echo.len);
        }
    }
    return 0;
}

/* How many answers it asks for: to each prompt (a chat is one) n. */
static size_t count_choices(const struct request *r) {
    return (r->params.n_prompts ? r->params.n_prompts : 1) * (size_t)r->params.n;
}

static int64_t priority_of(const struct request *r) {
    return r->has_priority ? r->priority : r->params.priority;
}

/* Who asks to go before others must not be left to believe that it does. */
static int check_priority(const struct request *r, struct error *err) {
    return priority_of(r) == 0 || strcmp(r->policy->config.scheduling, "priority") == 0
               ? 0
               : error_set_param(err, ERROR_INVALID, "priority",
                                 "priority must be 0 here: this server has the setting scheduling = %s, not priority",
                                 r->policy->config.scheduling);
}

/* What the operator's limit cannot give is refused; the most that is asked for is cut to it. */
static int check_min_tokens(const struct request *r, struct error *err) {
    size_t limit = r->policy->config.max_tokens_limit;
    return limit == 0 || (size_t)r->params.min_tokens <= limit
               ? 0
               : error_set_param(err, ERROR_INVALID, "min_tokens", "min_tokens must be at most %zu: no answer here has more tokens",
                                 limit);
}

/* On a worker: the body. */
static void parse(void *arg) {
    struct request *r = arg;
    const struct server *s = r->server;
    const struct config *config = &r->policy->config;
    struct sampler_order samplers;
    const struct params_limits limits = {
        .models = r->policy->names.list,
        .n_models = r->policy->names.n,
        .vocab_size = s->info.vocab_size,
        .max_n = config->max_n,
        .strict = config->strict_requests,
        .samplers = config_samplers(config, &samplers, &r->error) ? NULL : &samplers,
    };
    if (r->unwanted) { /* waited behind others, and its client did not */
        return;
    }
    r->prepare_failed =
        params_parse(r->body.data ? r->body.data : "", r->body.len, r->api->where, &limits, &r->params, &r->error) ||
        check_priority(r, &r->error) || check_min_tokens(r, &r->error) ||
        params_encode_bad_words(&r->params, s->text, &r->error) ||
        auth_cache_salt(&r->who, r->params.cache_salt, r->cache_salt, &r->error);
    size_t most = config->max_waiting + config_seats(config);
    if (!r->prepare_failed && count_choices(r) > most) { /* would be 429 for ever */
        r->prepare_failed = error_set_param(&r->error, ERROR_INVALID, r->params.n_prompts > 1 ? "prompt" : "n",
                                            "the request asks for %zu answers at once and this server holds %zu",
                                            count_choices(r), most);
    }
}

/* On a worker: what the engine needs. */
static void tokenise(void *arg) {
    struct request *r = arg;
    if (!r->unwanted) {
        r->prepare_failed = r->api->prepare(r, &r->error) || alloc_choices(r, &r->error);
    }
    if (!r->server->content_log) {
        buf_free(&r->body); /* params' strings live in its tree; messages were rendered */
    }
}

int request_go_on(struct request *r, size_t prompt_bytes, struct error *err) {
    struct server *s = r->server;
    size_t least = s->bytes_per_token ? prompt_bytes / s->bytes_per_token : 0;
    if (r->unwanted) {
        return error_set(err, ERROR_UNAVAILABLE, "nobody waits for the answer");
    }
    if (least >= s->info.max_model_len) {
        return error_set_param(err, ERROR_CONTEXT_LENGTH, r->api->where == IN_CHAT ? "messages" : "prompt",
                               "the context holds %zu tokens, but the prompt has at least %zu and at least 1 must be "
                               "generated",
                               s->info.max_model_len, least);
    }
    size_t tokens = least * (size_t)r->params.n;
    return tokens <= r->ticket.tokens
               ? 0
               : admission_claim(&s->admission, &r->ticket, count_choices(r), tokens, clock_now_ns(), err);
}

/* At most the operator's limit; 0 = none. */
static size_t cut_to_limit(const struct request *r, size_t max) {
    size_t limit = r->policy->config.max_tokens_limit;
    return limit && (max == 0 || max > limit) ? limit : max;
}

static size_t max_tokens_of(const struct request *r, const struct prompt *p) {
    int64_t max = r->params.max_completion_tokens ? r->params.max_completion_tokens : r->params.max_tokens;
    if (max || r->api->where != IN_COMPLETIONS) {
        return cut_to_limit(r, (size_t)max);
    }
    /* completions' default, but never an error of its own */
    size_t context = r->server->info.max_model_len, room = context > p->tokens.n ? context - p->tokens.n : 1;
    return cut_to_limit(r, room < 16 ? room : 16);
}

static int submit_choice(struct request *r, struct choice *c, struct error *err) {
    struct server *s = r->server;
    const struct request_params *p = &r->params;
    const struct prompt *prompt = &r->prompts[c->index / (size_t)p->n];
    if (choice_table_add(&s->choices, c, err)) {
        return -1;
    }
    struct engine_request e;
    engine_request_default(&e);
    e.id = c->id;
    e.prompt = prompt->tokens.ids;
    e.n_prompt = prompt->tokens.n;
    e.max_tokens = max_tokens_of(r, prompt);
    e.min_tokens = (size_t)p->min_tokens;
    e.stop = p->stop;
    e.n_stop = p->n_stop;
    e.stop_ids = p->stop_ids;
    e.n_stop_ids = p->n_stop_ids;
    e.include_stop = p->include_stop;
    e.ignore_eos = p->ignore_eos;
    e.skip_special = p->skip_special_tokens;
    e.n_prompt_logprobs = r->api->where == IN_CHAT && c->index > 0 ? -1 : (int32_t)prompt_top(r); /* chat tells once */
    e.score_only = p->score_only;
    e.repetition_max_size = p->repetition_max_size;
    e.repetition_min_size = p->repetition_min_size;
    e.repetition_min_count = p->repetition_min_count;
    e.speculative_tokens = (int32_t)p->speculative_tokens;
    e.priority = (int32_t)priority_of(r);
    e.tenant = r->who.tenant;
    e.tenant_cost = key_cost(r->key);
    memcpy(e.cache_salt, r->cache_salt, sizeof e.cache_salt);
    const struct choice *first = &r->choices[c->index - c->index % (size_t)p->n]; /* answer to the same prompt, submitted before */
    c->engine = first->engine;
    if (first == c) {
        c->engine = engines_route(s->engines, e.prompt, e.n_prompt, e.cache_salt);
    } else {
        e.parent = first->id;
    }
    params_sampling(p, r->api->where, &e.sampling);
    e.sampling.choice = (uint32_t)(c->index % (size_t)p->n);
    if (engines_submit(s->engines, c->engine, &e, err)) {
        choice_table_remove(&s->choices, c);
        return -1;
    }
    c->submitted_ns = clock_now_ns();
    r->n_in_engine++;
    s->n_running_choices++;
    return 0;
}

static void observe_admitted(struct request *r) {
    struct metrics *m = &r->server->metrics;
    int64_t max = r->params.max_completion_tokens ? r->params.max_completion_tokens : r->params.max_tokens;
    metrics_observe(m, request_n, (double)r->params.n);
    if (max) {
        metrics_observe(m, request_max_tokens, (double)max);
    }
}

/* All of it or nothing: what the bounds let in, the engine takes, unless a value is wrong or memory is out. */
static int submit_all(struct request *r, struct error *err) {
    struct admission *a = &r->server->admission;
    size_t tokens = 0, i = 0;
    for (size_t k = 0; k < r->n_choices; k++) {
        tokens += choice_prompt_tokens(&r->choices[k]);
    }
    if (admission_claim(a, &r->ticket, r->n_choices, tokens, clock_now_ns(), err)) {
        return -1;
    }
    while (i < r->n_choices && submit_choice(r, &r->choices[i], err) == 0) {
        i++;
    }
    if (i == r->n_choices) {
        return 0;
    }
    request_cancel(r);
    for (; i < r->n_choices; i++) {
        admission_ended(a, &r->ticket, false, choice_prompt_tokens(&r->choices[i]), clock_now_ns());
    }
    return -1;
}

/* The tokens of its prompts, of what the key may use in a minute. False: refused. */
static bool charge_prompts(struct request *r) {
    struct error err;
    size_t tokens = 0;
    double seconds = 0;
    for (size_t i = 0; i < r->n_prompts; i++) {
        tokens += r->prompts[i].tokens.n;
    }
    if (r->key && r->key->spec.tokens_per_minute && tokens > r->key->spec.tokens_per_minute) { /* would be 429 for ever */
        error_set_param(&err, ERROR_INVALID, r->api->where == IN_CHAT ? "messages" : "prompt",
                        "the prompt has %zu tokens and this key may use %zu a minute", tokens, r->key->spec.tokens_per_minute);
        struct api_error e = api_error_of(&err);
        request_reject(r, &e);
        return false;
    }
    if (!key_take_prompt(r->key, tokens, clock_now_ns(), &seconds)) {
        struct api_error e = api_limit_error(KEY_REJECTED_TOKENS, seconds);
        request_reject(r, &e);
        return false;
    }
    r->prompt_charged = tokens;
    return true;
}

static void submit(struct request *r) {
    struct error err;
    if (!charge_prompts(r)) {
        return;
    }
    if (submit_all(r, &err)) {
        struct api_error e = api_error_of(&err);
        request_reject(r, &e);
        return;
    }
    r->phase = REQUEST_WAITING;
    r->quiet_ns = clock_now_ns();
    observe_admitted(r);
    for (size_t i = 0; i < r->n_prompts; i++) { /* the engine has copies */
        if (r->prompts[i].tokens.n > 256) {
            size_t n = r->prompts[i].tokens.n;
            tokens_free(&r->prompts[i].tokens);
            r->prompts[i].tokens.n = n; /* for usage; ids is NULL */
        }
        buf_free(&r->prompts[i].echo);
    }
    params_drop_input(&r->params);
}

static void reject(struct request *r, const struct error *err) {
    struct api_error e = api_error_of(err);
    request_free_body(r);
    request_reject(r, &e);
}

/* A worker gave it back: may it go on? If not, it was answered or needs no answer. */
static bool goes_on(struct request *r) {
    struct error err;
    r->preparing = false;
    if (r->unwanted) {
        request_free_body(r);
        request_settle(r);
    } else if (r->prepare_failed) {
        reject(r, &r->error);
    } else if (!r->server->engines || r->server->drain_expired) {
        error_set(&err, ERROR_UNAVAILABLE, "the server is shutting down");
        reject(r, &err);
    } else {
        request_set_deadline(r);
        if (!request_expired_by_now(r)) {
            return true;
        }
        request_free_body(r);
    }
    return false;
}

static void tokenised(void *arg) {
    struct request *r = arg;
    if (goes_on(r)) {
        if (!r->server->content_log) {
            request_free_body(r);
        }
        submit(r);
    }
}

static int give_to_worker(struct request *r, loop_fn *work, loop_fn *after, struct error *err) {
    int rc = loop_work(r->server->loop, work, after, r, err);
    r->preparing = rc == 0;
    return rc;
}

/* As many tokens as its prompts have at least, n counting n. */
static size_t least_tokens(const struct request *r) {
    size_t tokens = 0, bytes_per_token = r->server->bytes_per_token;
    for (size_t i = 0; i < r->params.n_prompts; i++) {
        const struct prompt_input *p = &r->params.prompts[i];
        tokens += !p->text ? p->n_ids : bytes_per_token ? p->text_len / bytes_per_token : 0;
    }
    return tokens * (size_t)r->params.n;
}

static void parsed(void *arg) {
    struct request *r = arg;
    struct error err;
    if (r->params.request_id && r->exchange && !exchange_header(r->exchange, "X-Request-Id")) {
        exchange_set_id(r->exchange, r->params.request_id);
    }
    r->model = r->policy->names.list[r->params.model];
    request_limit(&r->end_by_ns, r->ready_ns, r->params.timeout);
    if (goes_on(r) &&
        (admission_claim(&r->server->admission, &r->ticket, count_choices(r), least_tokens(r), clock_now_ns(), &err) ||
         give_to_worker(r, tokenise, tokenised, &err))) {
        reject(r, &err);
    }
}

/* What the headers add to the fields. */
static int read_headers(struct request *r, struct error *err) {
    const char *timeout = exchange_header(r->exchange, "X-Request-Timeout");
    const char *priority = exchange_header(r->exchange, "X-Vllm-Priority");
    double seconds = 0;
    if ((timeout && params_header_timeout("X-Request-Timeout", timeout, &seconds, err)) ||
        (priority && params_header_priority("X-Vllm-Priority", priority, &r->priority, err))) {
        return -1;
    }
    r->has_priority = priority != NULL;
    request_limit(&r->end_by_ns, r->ready_ns, seconds);
    return 0;
}

void request_start(struct request *r) {
    struct server *s = r->server;
    struct error err;
    r->body = exchange_take_body(r->exchange);
    r->body_len = r->body.len;
    r->ready_ns = clock_now_ns();
    r->created = clock_unix_time();
    snprintf(r->id, sizeof r->id, "%s%.32s", r->api->id_prefix, exchange_unique(r->exchange));
    r->phase = REQUEST_PREPARING;
    request_limit(&r->start_by_ns, r->ready_ns, r->policy->config.queue_timeout);
    request_limit(&r->end_by_ns, r->ready_ns, r->policy->config.request_timeout);
    if (read_headers(r, &err) || admission_claim(&s->admission, &r->ticket, 1, 0, r->ready_ns, &err) ||
        give_to_worker(r, parse, parsed, &err)) {
        reject(r, &err);
        return;
    }
    request_set_deadline(r);
}
