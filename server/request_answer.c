/* From the engine's events to bytes: the chunks of a stream, or the answer as a whole. */
#include "api_common.h"
#include "http.h"
#include "request_parts.h"
#include "server_state.h"
#include "sse.h"

#include <inferd/clock.h>

static void write_chunk_head(const struct request *r, struct buf *out) {
    sse_begin(out);
    request_write_head(r, r->api->chunk_object, out);
    buf_puts(out, ",\"choices\":[{\"index\":");
}

/* Begin the 200 of a stream: the first chunk of every choice, whichever has something to say. */
void request_start_stream(struct request *r) {
    if (r->streaming || r->gone) {
        return;
    }
    r->streaming = true;
    key_add_headers(r->key, r->exchange, clock_now_ns());
    exchange_add_header(r->exchange, "Cache-Control", "no-cache");
    exchange_add_header(r->exchange, "X-Accel-Buffering", "no");
    exchange_stream(r->exchange, SSE_CONTENT_TYPE);
    write_chunk_head(r, &r->chunk_head);
    if (r->chunk_head.failed) {
        buf_free(&r->chunk_head); /* then it is written anew each time */
    }
    struct buf *out = request_begin_events(r);
    for (size_t i = 0; i < r->n_choices; i++) {
        r->api->write_first(r, &r->choices[i], out);
    }
    request_send_events(r);
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
    admission_started(&r->server->admission, &r->ticket, choice_prompt_tokens(c), now);
    metrics_observe(&r->server->metrics, queue_time, seconds_between(c->submitted_ns, now));
    if (r->phase == REQUEST_WAITING) {
        r->phase = REQUEST_RUNNING;
        request_set_deadline(r);
    }
}

/* Its prompt is computed: that, too, costs, whether or not anybody still waits for the answer. */
static void count_prompt(struct choice *c, const struct engine_event *e) {
    struct metrics *m = &c->request->server->metrics;
    bool computed = e->kind == ENGINE_EVENT_TOKEN || (e->kind == ENGINE_EVENT_DONE && e->finish != FINISH_CANCELLED);
    if (computed && !c->prompt_counted) {
        size_t tokens = choice_prompt_tokens(c);
        c->prompt_counted = true;
        struct prompt *p = &c->request->prompts[c->index / (size_t)c->request->params.n];
        if (c->request->key && !p->computed) {
            p->computed = true;
            c->request->prompt_computed += tokens;
            c->request->key->prompt_tokens += tokens;
        }
        c->cached_tokens = e->cached_tokens;
        m->prompt_tokens += tokens;
        m->cached_tokens += e->cached_tokens < tokens ? e->cached_tokens : tokens;
    }
}

/* What was generated since the last event of the choice, whoever reads it. */
static void charge_key(struct request *r, struct choice *c, const struct engine_event *e, uint64_t now) {
    if (e->completion_tokens > c->charged) {
        uint32_t tokens = e->completion_tokens - c->charged;
        c->charged = e->completion_tokens;
        if (r->key) {
            r->key->generation_tokens += tokens;
            bucket_take(&r->key->tokens, tokens, now);
        }
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
    if (r->server->content_log) {
        buf_append(&c->content, e->text, e->text_len);
    }
    c->shown += e->text_len;
    return c->text.failed ? error_memory(err) : 0;
}

/* A token of the prompt. All of them come before the first token, so the choice's text is the echoed prompt. */
static void on_prompt(struct request *r, struct choice *c, const struct engine_event *e) {
    struct error err;
    const char *echo = c->text.data ? c->text.data : "";
    if ((r->params.prompt_logprobs >= 0 && logprobs_push(&c->prompt_logprobs, e, &err)) ||
        (request_echoes_logprobs(r) && logprobs_push_prompt(&c->logprobs, e, echo, c->text.len, &err))) {
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
        request_start_stream(r);
        stream_text(r, c, false, request_begin_events(r));
        request_send_events(r);
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
    struct buf whole = BUF_INIT, *out = r->params.stream ? request_begin_events(r) : &whole;
    struct error err;
    if (!r->params.stream) {
        write_whole(r, out);
    } else {
        if (r->params.include_usage) {
            write_usage_event(r, out);
        }
        sse_done(out);
    }
    if (out->failed) {
        buf_free(&whole);
        error_memory(&err);
        request_fail(r, &err);
        return;
    }
    request_account(r); /* before the client can know, so that whoever has the answer finds it counted */
    if (!r->params.stream) {
        key_add_headers(r->key, r->exchange, clock_now_ns());
        api_reply(r->exchange, 200, &whole);
        return;
    }
    request_send_events(r);
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
        request_start_stream(r);
        struct buf *out = request_begin_events(r);
        stream_text(r, c, true, out);
        r->api->write_finish(r, c, out);
        request_send_events(r);
    }
    if (r->n_done == r->n_choices && !r->gone && !r->failed) {
        finish(r);
    }
}

/*
 * Between two events of a stream come those of all others, so what it touches has left the near caches; and each thing is
 * found through another: choice, request, exchange, buffer. So with every event that is handled each of the next ones is
 * brought one of these further. A choice that is found lives: its event is still to come.
 */
void request_look_ahead(const struct server *s, const uint64_t *ids, size_t n) {
    const struct choice *c;
    if (n > 7) {
        choice_table_prefetch(&s->choices, ids[7]);
    }
    if (n > 5 && (c = choice_table_find(&s->choices, ids[5]))) {
        __builtin_prefetch(c->text.data, 1);
        __builtin_prefetch(c->request, 1);
        __builtin_prefetch(&c->request->params, 1);
    }
    if (n > 3 && (c = choice_table_find(&s->choices, ids[3])) && c->request->exchange) {
        const struct buf *head = &c->request->chunk_head;
        exchange_prefetch(c->request->exchange);
        for (size_t at = 0; at < head->len; at += 64) {
            __builtin_prefetch(head->data + at);
        }
    }
    if (n > 1 && (c = choice_table_find(&s->choices, ids[1])) && c->request->exchange) {
        exchange_prefetch_buffer(c->request->exchange, c->request->chunk_head.len + 128);
    }
}

void request_on_event(struct server *s, const struct engine_event *e, uint64_t now) {
    struct choice *c = choice_table_find(&s->choices, e->id);
    if (!c) {
        return;
    }
    struct request *r = c->request;
    bool last = e->kind == ENGINE_EVENT_DONE || e->kind == ENGINE_EVENT_ERROR;
    bool deaf = r->gone || r->failed || r->phase == REQUEST_ENDED;
    if (last) { /* before anything that may free the request */
        choice_table_remove(&s->choices, c);
        s->n_running_choices--;
        engines_ended(s->engines, c->engine);
        admission_ended(&s->admission, &r->ticket, c->started_ns != 0, choice_prompt_tokens(c), now);
    }
    if (e->kind == ENGINE_EVENT_STARTED || (last && c->started_ns == 0)) {
        engines_started(s->engines, c->engine, choice_prompt_tokens(c));
    }
    count_prompt(c, e);
    charge_key(r, c, e, now);
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
        request_settle(r);
    }
}

/* ---- for the two APIs ---------------------------------------------------------------------------------------- */

const char *request_finish_reason(const struct choice *c) {
    return c->finish == FINISH_LENGTH ? "length" : c->finish == FINISH_REPETITION ? "repetition" : "stop";
}

void request_begin_chunk(const struct request *r, const struct choice *c, struct buf *out) {
    if (r->chunk_head.len > 0) {
        buf_append(out, r->chunk_head.data, r->chunk_head.len);
    } else {
        write_chunk_head(r, out);
    }
    json_put_size(out, c->index);
}

void request_write_head(const struct request *r, const char *object, struct buf *out) {
    buf_printf(out, "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%lld,\"model\":", r->id, object,
               (long long)r->created);
    json_put_string(out, r->model);
    buf_printf(out, ",\"system_fingerprint\":\"%s\"", r->server->fingerprint);
}

struct request_usage request_usage(const struct request *r) {
    struct request_usage u = {0};
    size_t n = (size_t)r->params.n;
    for (size_t i = 0; i < r->n_choices; i++) {
        u.completion += r->choices[i].completion_tokens;
        if (i % n == 0) {
            u.prompt += r->prompts[i / n].tokens.n;
            u.cached += r->choices[i].cached_tokens;
        }
    }
    return u;
}

void request_write_usage(const struct request *r, struct buf *out) {
    struct request_usage u = request_usage(r);
    buf_printf(out,
               "{\"prompt_tokens\":%zu,\"completion_tokens\":%zu,\"total_tokens\":%zu,"
               "\"prompt_tokens_details\":{\"cached_tokens\":%zu},"
               "\"completion_tokens_details\":{\"reasoning_tokens\":0}}",
               u.prompt, u.completion, u.prompt + u.completion, u.cached);
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
