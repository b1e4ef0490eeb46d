#include "request.h"

#include "api_common.h"
#include "config.h"
#include "http.h"
#include "loop.h"
#include "server_state.h"
#include "sse.h"

#include <inferd/clock.h>
#include <inferd/log.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SLOT_BITS 20

static double seconds_between(uint64_t from_ns, uint64_t to_ns) {
    return to_ns > from_ns ? (double)(to_ns - from_ns) / 1e9 : 0;
}

/* ---- the table of live choices ------------------------------------------------------------------------------- */

static int table_add(struct choice_table *t, struct choice *c, struct error *err) {
    size_t tried = 0;
    while (tried < t->cap && t->slots[t->next]) {
        t->next = (t->next + 1) % t->cap;
        tried++;
    }
    if (tried == t->cap) {
        size_t cap = t->cap ? t->cap * 2 : 64;
        struct choice **slots = cap < (size_t)1 << SLOT_BITS ? realloc(t->slots, cap * sizeof *slots) : NULL;
        if (!slots) {
            return error_memory(err);
        }
        memset(slots + t->cap, 0, (cap - t->cap) * sizeof *slots);
        t->next = t->cap;
        t->slots = slots;
        t->cap = cap;
    }
    t->slots[t->next] = c;
    c->id = ++t->serial << SLOT_BITS | t->next;
    return 0;
}

static struct choice *table_find(const struct choice_table *t, uint64_t id) {
    size_t slot = id & ((1u << SLOT_BITS) - 1);
    struct choice *c = slot < t->cap ? t->slots[slot] : NULL;
    return c && c->id == id ? c : NULL;
}

static void table_remove(struct choice_table *t, struct choice *c) {
    t->slots[c->id & ((1u << SLOT_BITS) - 1)] = NULL;
    c->id = 0;
}

/* ---- birth and death ----------------------------------------------------------------------------------------- */

struct request *request_open(struct server *s, struct exchange *x, const struct api *api,
                             const struct auth_identity *who) {
    struct error err;
    struct request *r = calloc(1, sizeof *r);
    if (!r || deadline_reserve(&s->deadlines, &err)) {
        free(r);
        return NULL;
    }
    r->who = *who;
    r->server = s;
    r->api = api;
    r->exchange = x;
    r->phase = REQUEST_READING;
    list_push_back(&s->requests, &r->node);
    exchange_set_app(x, r);
    s->metrics.received++;
    if (!s->tick_on) {
        s->tick_on = true;
        loop_timer_set(s->tick, 1000);
    }
    return r;
}

static void request_free(struct request *r) {
    list_remove(&r->node);
    deadline_release(&r->server->deadlines, &r->deadline);
    for (size_t i = 0; i < r->n_choices; i++) {
        buf_free(&r->choices[i].text);
        logprobs_free(&r->choices[i].logprobs);
        logprobs_free(&r->choices[i].prompt_logprobs);
    }
    for (size_t i = 0; i < r->n_prompts; i++) {
        tokens_free(&r->prompts[i].tokens);
        buf_free(&r->prompts[i].echo);
    }
    free(r->choices);
    free(r->prompts);
    params_free(&r->params);
    buf_free(&r->body);
    buf_free(&r->chunk_head);
    free(r);
}

/* Count the end, once: by the worst of what happened to it. */
static void account(struct request *r) {
    struct metrics *m = &r->server->metrics;
    bool length = false, repetition = false;
    if (r->phase == REQUEST_ENDED) {
        return;
    }
    r->phase = REQUEST_ENDED;
    deadline_set(&r->server->deadlines, &r->deadline, 0);
    for (size_t i = 0; i < r->n_choices; i++) {
        length = length || r->choices[i].finish == FINISH_LENGTH;
        repetition = repetition || r->choices[i].finish == FINISH_REPETITION;
    }
    if (r->expired) {
        m->finished_deadline++;
    } else if (r->failed) {
        m->finished_error++;
    } else if (r->n_done < r->n_choices || r->n_choices == 0) {
        m->finished_cancelled++;
        m->cancelled++;
    } else {
        *(length       ? &m->finished_length
          : repetition ? &m->finished_repetition
                       : &m->finished_stop) += 1;
        metrics_observe(m, e2e, seconds_between(r->ready_ns, clock_now_ns()));
    }
}

/* A request that neither a worker nor the engine has makes room for another. */
static bool let_go(struct request *r) {
    if (r->preparing || r->n_in_engine > 0) {
        return false;
    }
    if (r->ticket.choices > 0) {
        admission_release(&r->server->admission, &r->ticket, clock_now_ns());
    }
    return true;
}

/* Called after everything that may have been the last: counts the end when nothing runs, frees when nothing refers. */
static void settle(struct request *r) {
    struct server *s = r->server;
    if (!let_go(r)) {
        return;
    }
    if (r->gone || r->failed || (r->n_choices > 0 && r->n_done == r->n_choices)) {
        account(r);
    }
    if (!r->exchange && r->phase == REQUEST_ENDED) {
        request_free(r);
        server_request_ended(s);
    }
}

static void cancel_choices(struct request *r) {
    for (size_t i = 0; !r->preparing && i < r->n_choices; i++) {
        if (r->choices[i].id) {
            engine_cancel(r->server->engine, r->choices[i].id);
        }
    }
}

void request_gone(struct request *r) {
    if (!r->gone) {
        r->gone = true;
        r->unwanted = true;
        cancel_choices(r);
        settle(r);
    }
}

void request_completed(struct request *r) {
    r->exchange = NULL;
    r->gone = true;
    r->unwanted = true;
    cancel_choices(r);
    settle(r);
}

/* ---- errors -------------------------------------------------------------------------------------------------- */

static uint64_t *rejection_counter(struct metrics *m, int status) {
    switch (status) {
    case 401:
    case 403:
        return &m->rejected_unauthorized;
    case 404:
        return &m->rejected_not_found;
    case 413:
    case 414:
    case 431:
        return &m->rejected_too_large;
    case 429:
        return &m->rejected_queue_full;
    case 503:
        return &m->rejected_unavailable;
    default:
        return status < 500 ? &m->rejected_invalid : &m->rejected_error;
    }
}

void request_reject(struct request *r, const struct api_error *e) {
    struct metrics *m = &r->server->metrics;
    r->unwanted = true;
    if (r->phase != REQUEST_ENDED) {
        r->phase = REQUEST_ENDED;
        deadline_set(&r->server->deadlines, &r->deadline, 0);
        *(r->expired ? &m->rejected_deadline : rejection_counter(m, e->status)) += 1;
    }
    let_go(r);
    if (r->exchange) {
        api_reply_error(r->server, r->exchange, e);
    }
}

/* Events for a stream are written here, whole, and then sent. */
static struct buf *begin_events(struct request *r) {
    buf_reset(&r->server->events);
    return &r->server->events;
}

static void send_events(struct request *r) {
    struct buf *out = &r->server->events;
    if (out->failed) {
        request_gone(r);
    } else if (out->len > 0 && !r->gone) {
        r->quiet_ns = loop_now_ns(r->server->loop);
        if (!exchange_write(r->exchange, out->data, out->len)) {
            r->server->metrics.slow_readers++;
            request_gone(r);
        }
    }
}

/* It was admitted and cannot go on: a status where there is none yet, else an event and no [DONE]. */
static void request_fail(struct request *r, const struct error *err) {
    struct api_error e = api_error_of(err);
    if (r->failed || r->gone || r->phase == REQUEST_ENDED) {
        return;
    }
    r->failed = true;
    r->unwanted = true;
    cancel_choices(r);
    if (!r->streaming) {
        api_reply_error(r->server, r->exchange, &e);
    } else {
        struct buf *out = begin_events(r);
        sse_begin(out);
        api_error_write(&e, out);
        sse_finish(out);
        send_events(r);
        if (r->exchange) {
            exchange_end(r->exchange);
        }
    }
}

/* ---- deadlines ----------------------------------------------------------------------------------------------- */

/* The smaller of all limits counts. */
static void limit(uint64_t *at_ns, uint64_t from_ns, double seconds) {
    uint64_t at = from_ns + (uint64_t)(seconds * 1e9);
    if (seconds > 0 && (*at_ns == 0 || at < *at_ns)) {
        *at_ns = at;
    }
}

static void set_deadline(struct request *r) {
    uint64_t at = r->end_by_ns;
    if (r->phase < REQUEST_RUNNING && r->start_by_ns && (!at || r->start_by_ns < at)) {
        at = r->start_by_ns;
    }
    if (at != r->deadline.at_ns) {
        deadline_set(&r->server->deadlines, &r->deadline, at);
    }
}

/* Refused if it never ran and nothing of its answer is out; failed otherwise. */
static void expire(struct request *r) {
    struct metrics *m = &r->server->metrics;
    struct error err;
    if (r->gone || r->failed || r->phase == REQUEST_ENDED) {
        return;
    }
    r->expired = true;
    if (r->phase < REQUEST_RUNNING) {
        m->deadline_queued++;
        error_set(&err, ERROR_UNAVAILABLE, "the request waited longer than its deadline or this server allows");
    } else {
        m->deadline_running++;
        error_set(&err, ERROR_UNAVAILABLE, "the request took longer than its deadline or this server allows");
    }
    if (r->phase < REQUEST_RUNNING && !r->streaming) {
        struct api_error e = api_error_of(&err);
        cancel_choices(r);
        request_reject(r, &e);
    } else {
        request_fail(r, &err);
    }
}

void request_expired(struct deadline *d, void *server) {
    (void)server;
    expire(LIST_ENTRY(d, struct request, deadline));
}

/* Timers may be late in a busy turn. */
static bool expired_by_now(struct request *r) {
    if (r->deadline.slot && r->deadline.at_ns <= clock_now_ns()) {
        expire(r);
    }
    return r->expired;
}

/* ---- from body to engine ------------------------------------------------------------------------------------- */

int request_alloc_prompts(struct request *r, size_t n, struct error *err) {
    r->prompts = calloc(n, sizeof *r->prompts);
    if (!r->prompts) {
        return error_memory(err);
    }
    r->n_prompts = n;
    return 0;
}

/* Does the answer tell the logprobs of the echoed prompt? */
static bool echoes_logprobs(const struct request *r) {
    return r->params.echo && r->params.top_logprobs >= 0;
}

/* Top logprobs that are asked of the engine for each token of the prompt, -1 = none. */
static int64_t prompt_top(const struct request *r) {
    int64_t echoed = echoes_logprobs(r) ? r->params.top_logprobs : -1;
    return echoed > r->params.prompt_logprobs ? echoed : r->params.prompt_logprobs;
}

/* They are kept until the answer is written, and most of them are text then: a bound on what one request may take. */
static int check_prompt_logprobs(const struct request *r, struct error *err) {
    size_t each = (size_t)(prompt_top(r) + 1), room = PARAMS_MAX_PROMPT_LOGPROBS;
    for (size_t i = 0; each && i < r->n_prompts; i++) {
        size_t told = r->api->where == IN_CHAT ? 1 : (size_t)r->params.n, n = r->prompts[i].tokens.n * told;
        if (n > room / each) {
            return error_set_param(err, ERROR_INVALID, echoes_logprobs(r) ? "logprobs" : "prompt_logprobs",
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

/* On a worker: the body. */
static void parse(void *arg) {
    struct request *r = arg;
    const struct server *s = r->server;
    const struct params_limits limits = {
        .model = s->model,
        .vocab_size = s->info.vocab_size,
        .max_n = s->config->max_n,
        .strict = s->config->strict_requests,
    };
    if (r->unwanted) { /* waited behind others, and its client did not */
        return;
    }
    r->prepare_failed =
        params_parse(r->body.data ? r->body.data : "", r->body.len, r->api->where, &limits, &r->params, &r->error) ||
        auth_cache_salt(&r->who, r->params.cache_salt, r->cache_salt, &r->error);
    size_t most = s->config->max_waiting + s->config->max_sequences;
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
    buf_free(&r->body); /* params' strings live in its tree; messages were rendered */
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

static size_t max_tokens_of(const struct request *r, const struct prompt *p) {
    int64_t max = r->params.max_completion_tokens ? r->params.max_completion_tokens : r->params.max_tokens;
    if (max || r->api->where != IN_COMPLETIONS) {
        return (size_t)max;
    }
    /* completions' default, but never an error of its own */
    size_t context = r->server->info.max_model_len, room = context > p->tokens.n ? context - p->tokens.n : 1;
    return room < 16 ? room : 16;
}

static int submit_choice(struct request *r, struct choice *c, struct error *err) {
    struct server *s = r->server;
    const struct request_params *p = &r->params;
    const struct prompt *prompt = &r->prompts[c->index / (size_t)p->n];
    if (table_add(&s->choices, c, err)) {
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
    e.speculative_tokens = (int32_t)p->speculative_tokens;
    e.priority = (int32_t)(r->has_priority ? r->priority : p->priority);
    e.tenant = r->who.tenant;
    memcpy(e.cache_salt, r->cache_salt, sizeof e.cache_salt);
    if (c->index % (size_t)p->n != 0) { /* the first answer to the same prompt, submitted before */
        e.parent = r->choices[c->index - c->index % (size_t)p->n].id;
    }
    params_sampling(p, r->api->where, &e.sampling);
    e.sampling.choice = (uint32_t)(c->index % (size_t)p->n);
    if (engine_submit(s->engine, &e, err)) {
        table_remove(&s->choices, c);
        return -1;
    }
    c->submitted_ns = clock_now_ns();
    r->n_in_engine++;
    if (s->n_running_choices++ == 0) {
        s->engine_busy_since = c->submitted_ns;
    }
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

static size_t prompt_tokens(const struct choice *c) {
    return c->request->prompts[c->index / (size_t)c->request->params.n].tokens.n;
}

/* All of it or nothing: what the bounds let in, the engine takes, unless a value is wrong or memory is out. */
static int submit_all(struct request *r, struct error *err) {
    struct admission *a = &r->server->admission;
    size_t tokens = 0, i = 0;
    for (size_t k = 0; k < r->n_choices; k++) {
        tokens += prompt_tokens(&r->choices[k]);
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
    cancel_choices(r);
    for (; i < r->n_choices; i++) {
        admission_ended(a, &r->ticket, false, prompt_tokens(&r->choices[i]), clock_now_ns());
    }
    return -1;
}

static void submit(struct request *r) {
    struct error err;
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

static void free_body(struct request *r) {
    buf_free(&r->body);
    if (r->server->http) { /* not at the very end */
        http_body_freed(r->server->http, r->body_len);
    }
    r->body_len = 0;
}

static void reject(struct request *r, const struct error *err) {
    struct api_error e = api_error_of(err);
    free_body(r);
    request_reject(r, &e);
}

/* A worker gave it back: may it go on? If not, it was answered or needs no answer. */
static bool goes_on(struct request *r) {
    struct error err;
    r->preparing = false;
    if (r->unwanted) {
        free_body(r);
        settle(r);
    } else if (r->prepare_failed) {
        reject(r, &r->error);
    } else if (!r->server->engine || r->server->drain_expired) {
        error_set(&err, ERROR_UNAVAILABLE, "the server is shutting down");
        reject(r, &err);
    } else {
        set_deadline(r);
        if (!expired_by_now(r)) {
            return true;
        }
        free_body(r);
    }
    return false;
}

static void tokenised(void *arg) {
    struct request *r = arg;
    if (goes_on(r)) {
        free_body(r);
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
    limit(&r->end_by_ns, r->ready_ns, r->params.timeout);
    if (goes_on(r) && (admission_claim(&r->server->admission, &r->ticket, count_choices(r), least_tokens(r),
                                       clock_now_ns(), &err) ||
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
    limit(&r->end_by_ns, r->ready_ns, seconds);
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
    limit(&r->start_by_ns, r->ready_ns, s->config->queue_timeout);
    limit(&r->end_by_ns, r->ready_ns, s->config->request_timeout);
    if (read_headers(r, &err) || admission_claim(&s->admission, &r->ticket, 1, 0, r->ready_ns, &err) ||
        give_to_worker(r, parse, parsed, &err)) {
        reject(r, &err);
        return;
    }
    set_deadline(r);
}

/* ---- the engine's events ------------------------------------------------------------------------------------- */

/* Begin the 200 of a stream: the first chunk of every choice, whichever has something to say. */
static void start_stream(struct request *r) {
    if (r->streaming || r->gone) {
        return;
    }
    r->streaming = true;
    exchange_add_header(r->exchange, "Cache-Control", "no-cache");
    exchange_add_header(r->exchange, "X-Accel-Buffering", "no");
    exchange_stream(r->exchange, SSE_CONTENT_TYPE);
    request_write_head(r, r->api->chunk_object, &r->chunk_head);
    if (r->chunk_head.failed) {
        buf_free(&r->chunk_head); /* then it is written anew each time */
    }
    struct buf *out = begin_events(r);
    for (size_t i = 0; i < r->n_choices; i++) {
        r->api->write_first(r, &r->choices[i], out);
    }
    send_events(r);
}

static bool wants_logprobs(const struct request *r) {
    return r->api->where == IN_CHAT ? r->params.logprobs : r->params.top_logprobs >= 0;
}

size_t request_ready_logprobs(const struct choice *c, bool last) {
    return wants_logprobs(c->request) ? logprobs_ready(&c->logprobs, c->shown, last) : 0;
}

/* One chunk with what may be shown now; none when that is nothing. */
static void stream_text(struct request *r, struct choice *c, bool last, struct buf *out) {
    if (c->text.len == 0) {
        return;
    }
    r->api->write_text(r, c, request_ready_logprobs(c, last), out);
    buf_reset(&c->text);
    r->server->metrics.stream_events++;
}

static void on_started(struct request *r, struct choice *c, uint64_t now) {
    c->started_ns = now;
    admission_started(&r->server->admission, &r->ticket, prompt_tokens(c), now);
    metrics_observe(&r->server->metrics, queue_time, seconds_between(c->submitted_ns, now));
    if (r->phase == REQUEST_WAITING) {
        r->phase = REQUEST_RUNNING;
        set_deadline(r);
    }
}

/* Its prompt is computed: that, too, costs, whether or not anybody still waits for the answer. */
static void count_prompt(struct choice *c, const struct engine_event *e) {
    struct metrics *m = &c->request->server->metrics;
    bool computed = e->kind == ENGINE_EVENT_TOKEN || (e->kind == ENGINE_EVENT_DONE && e->finish != FINISH_CANCELLED);
    if (computed && !c->prompt_counted) {
        size_t tokens = prompt_tokens(c);
        c->prompt_counted = true;
        m->prompt_tokens += tokens;
        m->cached_tokens += e->cached_tokens < tokens ? e->cached_tokens : tokens;
    }
}

static void on_token_time(struct request *r, struct choice *c, uint64_t now) {
    struct metrics *m = &r->server->metrics;
    if (!c->first_ns) {
        c->first_ns = now;
        metrics_observe(m, prefill_time, seconds_between(c->started_ns, now));
    } else {
        metrics_observe(m, inter_token, seconds_between(c->last_ns, now));
    }
    if (!r->first_ns) {
        r->first_ns = now;
        metrics_observe(m, ttft, seconds_between(r->ready_ns, now));
    }
    c->last_ns = now;
}

/* Take the text (and log-probability) of a TOKEN or DONE event. */
static int take_text(struct request *r, struct choice *c, const struct engine_event *e, struct error *err) {
    if (e->token >= 0 && wants_logprobs(r) && logprobs_push(&c->logprobs, e, err)) {
        return -1;
    }
    buf_append(&c->text, e->text, e->text_len);
    c->shown += e->text_len;
    return c->text.failed ? error_memory(err) : 0;
}

/* A token of the prompt. All of them come before the first token, so the choice's text is the echoed prompt. */
static void on_prompt(struct request *r, struct choice *c, const struct engine_event *e) {
    struct error err;
    const char *echo = c->text.data ? c->text.data : "";
    if ((r->params.prompt_logprobs >= 0 && logprobs_push(&c->prompt_logprobs, e, &err)) ||
        (echoes_logprobs(r) && logprobs_push_prompt(&c->logprobs, e, echo, c->text.len, &err))) {
        request_fail(r, &err);
        return;
    }
    if (c->logprobs.n == r->prompts[c->index / (size_t)r->params.n].tokens.n) {
        logprobs_end_prompt(&c->logprobs, echo, c->text.len);
    }
}

static void on_token(struct request *r, struct choice *c, const struct engine_event *e, uint64_t now) {
    struct error err;
    if (!c->started_ns) {
        on_started(r, c, now);
    }
    if (e->token >= 0) {
        on_token_time(r, c, now);
    }
    if (take_text(r, c, e, &err)) {
        request_fail(r, &err);
    } else if (r->params.stream) {
        start_stream(r);
        stream_text(r, c, false, begin_events(r));
        send_events(r);
    }
}

static void observe_choice(struct request *r, const struct choice *c, const struct engine_event *e) {
    struct metrics *m = &r->server->metrics;
    metrics_observe(m, request_prompt, (double)e->prompt_tokens);
    metrics_observe(m, request_generation, (double)e->completion_tokens);
    metrics_observe(m, request_max_generation, (double)e->completion_tokens);
    metrics_observe(m, request_computed, (double)(e->prompt_tokens - e->cached_tokens));
    if (c->first_ns) {
        metrics_observe(m, decode_time, seconds_between(c->first_ns, c->last_ns));
        metrics_observe(m, inference_time, seconds_between(c->started_ns, c->last_ns));
    }
    if (e->completion_tokens > 1) {
        metrics_observe(m, per_token, seconds_between(c->first_ns, c->last_ns) / (double)(e->completion_tokens - 1));
    }
    *(e->finish == FINISH_LENGTH       ? &m->success_length
      : e->finish == FINISH_REPETITION ? &m->success_repetition
                                       : &m->success_stop) += 1;
}

static void write_whole(const struct request *r, struct buf *out) {
    request_write_head(r, r->api->object, out);
    buf_puts(out, ",\"choices\":[");
    for (size_t i = 0; i < r->n_choices; i++) {
        buf_puts(out, i ? "," : "");
        r->api->write_choice(r, &r->choices[i], out);
    }
    buf_putc(out, ']');
    if (r->api->where == IN_CHAT) { /* completions have them in each choice: there may be several prompts */
        request_write_prompt_logprobs(&r->choices[0], out);
    }
    buf_puts(out, ",\"usage\":");
    request_write_usage(r, out);
    buf_puts(out, "}\n");
}

/* The last event of a stream that asked for include_usage. */
static void write_usage_event(const struct request *r, struct buf *out) {
    sse_begin(out);
    request_write_head(r, r->api->chunk_object, out);
    buf_puts(out, ",\"choices\":[],\"usage\":");
    request_write_usage(r, out);
    buf_putc(out, '}');
    sse_finish(out);
}

/* Everything was said. */
static void finish(struct request *r) {
    account(r); /* before the client can know, so that whoever has the answer finds it counted */
    if (!r->params.stream) {
        struct buf whole = BUF_INIT;
        write_whole(r, &whole);
        api_reply(r->exchange, 200, &whole);
        return;
    }
    struct buf *out = begin_events(r);
    if (r->params.include_usage) {
        write_usage_event(r, out);
    }
    sse_done(out);
    send_events(r);
    if (r->exchange && !r->gone) {
        exchange_end(r->exchange);
    }
}

static void on_done(struct request *r, struct choice *c, const struct engine_event *e, uint64_t now) {
    struct error err;
    c->finish = e->finish;
    c->stop_index = e->stop_index;
    c->stop_token = e->stop_token;
    c->completion_tokens = e->completion_tokens;
    c->cached_tokens = e->cached_tokens;
    if (e->finish == FINISH_CANCELLED || e->finish == FINISH_ERROR) {
        *(e->finish == FINISH_ERROR ? &r->server->metrics.success_error : &r->server->metrics.success_abort) += 1;
        if (!r->gone && !r->failed && r->phase != REQUEST_ENDED) { /* not asked for: the engine itself gave up */
            error_set(&err, ERROR_INTERNAL, "the engine ended the request");
            request_fail(r, &err);
        }
        return;
    }
    if (e->token >= 0) {
        on_token_time(r, c, now);
    }
    observe_choice(r, c, e);
    c->done = true;
    r->n_done++;
    if (r->gone || r->failed || r->phase == REQUEST_ENDED) {
        return;
    }
    if (take_text(r, c, e, &err)) {
        request_fail(r, &err);
        return;
    }
    if (c->stop_index >= 0) {
        logprobs_cut(&c->logprobs, c->shown);
    }
    if (r->params.stream) {
        start_stream(r);
        struct buf *out = begin_events(r);
        stream_text(r, c, true, out);
        r->api->write_finish(r, c, out);
        send_events(r);
    }
    if (r->n_done == r->n_choices && !r->gone) {
        finish(r);
    }
}

void request_on_event(struct server *s, const struct engine_event *e, uint64_t now) {
    struct choice *c = table_find(&s->choices, e->id);
    if (!c) {
        return;
    }
    struct request *r = c->request;
    bool last = e->kind == ENGINE_EVENT_DONE || e->kind == ENGINE_EVENT_ERROR;
    bool deaf = r->gone || r->failed || r->phase == REQUEST_ENDED;
    if (last) { /* before anything that may free the request */
        table_remove(&s->choices, c);
        s->n_running_choices--;
        admission_ended(&s->admission, &r->ticket, c->started_ns != 0, prompt_tokens(c), now);
    }
    count_prompt(c, e);
    if (e->kind == ENGINE_EVENT_STARTED) {
        on_started(r, c, now);
    } else if (e->kind == ENGINE_EVENT_PROMPT && !deaf) {
        on_prompt(r, c, e);
    } else if (e->kind == ENGINE_EVENT_TOKEN && !deaf) {
        on_token(r, c, e, now);
    } else if (e->kind == ENGINE_EVENT_DONE) {
        on_done(r, c, e, now);
    } else if (e->kind == ENGINE_EVENT_ERROR) {
        s->metrics.success_error++;
        request_fail(r, &e->error);
    }
    if (last) {
        r->n_in_engine--;
        settle(r);
    }
}

/* ---- all of them --------------------------------------------------------------------------------------------- */

static bool may_be_pinged(const struct request *r) {
    return !r->gone && !r->failed && r->params.stream && (r->phase == REQUEST_WAITING || r->phase == REQUEST_RUNNING);
}

/* Nobody is due before next_ping_ns: quiet_ns only grows, and who comes later begins later. So thousands of streams
 * are not looked at every second. */
void requests_tick(struct server *s) {
    uint64_t now = clock_now_ns(), ping = (uint64_t)(s->config->sse_ping_interval * 1e9), quiet = now;
    if (!ping || now < s->next_ping_ns) {
        return;
    }
    LIST_FOR_EACH_SAFE(node, next, &s->requests) {
        struct request *r = LIST_ENTRY(node, struct request, node);
        if (may_be_pinged(r) && now - r->quiet_ns >= ping) {
            /* also begins the answer of one that waits long: it was admitted, and a proxy in between would give up */
            start_stream(r);
            sse_ping(begin_events(r));
            send_events(r);
        } else if (may_be_pinged(r) && r->quiet_ns < quiet) {
            quiet = r->quiet_ns;
        }
    }
    s->next_ping_ns = quiet + ping;
}

void requests_fail(struct server *s, const struct error *err) {
    LIST_FOR_EACH_SAFE(node, next, &s->requests) {
        struct request *r = LIST_ENTRY(node, struct request, node);
        if (r->phase == REQUEST_READING) {
            struct api_error e = api_error_of(err);
            request_reject(r, &e);
        } else {
            request_fail(r, err);
            settle(r);
        }
    }
}

void requests_count(const struct server *s, size_t *running, size_t *waiting) {
    *running = *waiting = 0;
    LIST_FOR_EACH(node, &s->requests) {
        const struct request *r = LIST_ENTRY(node, struct request, node);
        *running += r->phase == REQUEST_RUNNING;
        *waiting += r->phase < REQUEST_RUNNING;
    }
}

/* ---- for the two APIs ---------------------------------------------------------------------------------------- */

const char *request_finish_reason(const struct choice *c) {
    return c->finish == FINISH_LENGTH ? "length" : c->finish == FINISH_REPETITION ? "repetition" : "stop";
}

void request_write_head(const struct request *r, const char *object, struct buf *out) {
    if (object == r->api->chunk_object && r->chunk_head.len > 0) {
        buf_append(out, r->chunk_head.data, r->chunk_head.len);
        return;
    }
    buf_printf(out, "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%lld,\"model\":", r->id, object,
               (long long)r->created);
    json_put_string(out, r->server->model);
    buf_printf(out, ",\"system_fingerprint\":\"%s\"", r->server->fingerprint);
}

void request_write_usage(const struct request *r, struct buf *out) {
    size_t prompt = 0, completion = 0, cached = 0, n = (size_t)r->params.n;
    for (size_t i = 0; i < r->n_choices; i++) {
        completion += r->choices[i].completion_tokens;
        if (i % n == 0) { /* a prompt counts once, whatever n is */
            prompt += r->prompts[i / n].tokens.n;
            cached += r->choices[i].cached_tokens;
        }
    }
    buf_printf(out,
               "{\"prompt_tokens\":%zu,\"completion_tokens\":%zu,\"total_tokens\":%zu,"
               "\"prompt_tokens_details\":{\"cached_tokens\":%zu},"
               "\"completion_tokens_details\":{\"reasoning_tokens\":0}}",
               prompt, completion, prompt + completion, cached);
}

void request_write_stop_reason(const struct request *r, const struct choice *c, struct buf *out) {
    buf_puts(out, ",\"stop_reason\":");
    if (c->stop_index >= 0 && (size_t)c->stop_index < r->params.n_stop) {
        const struct meta_stop *s = &r->params.stop[c->stop_index];
        buf_json_string(out, s->bytes, s->len);
    } else if (c->stop_token >= 0) {
        buf_printf(out, "%d", c->stop_token);
    } else {
        buf_puts(out, "null");
    }
}

void request_write_prompt_logprobs(const struct choice *c, struct buf *out) {
    if (c->request->params.prompt_logprobs >= 0) {
        buf_puts(out, ",\"prompt_logprobs\":");
        logprobs_write_prompt(&c->prompt_logprobs, out);
    }
}
