#include "request.h"

#include "api_common.h"
#include "config.h"
#include "content_log.h"
#include "http.h"
#include "loop.h"
#include "request_parts.h"
#include "server_state.h"
#include "sse.h"

#include <inferd/clock.h>
#include <stdlib.h>
#include <string.h>

/* ---- birth and death ----------------------------------------------------------------------------------------- */

struct request *request_open(struct server *s, struct exchange *x, const struct api *api,
                             struct key *key) {
    struct error err;
    struct request *r = calloc(1, sizeof *r);
    if (!r || deadline_reserve(&s->deadlines, &err)) {
        free(r);
        return NULL;
    }
    r->policy = policy_hold(s->policy);
    r->model = s->model;
    r->key = key_hold(key);
    r->who = key ? key->spec.who : (struct auth_identity){0};
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

void request_enter(struct request *r) {
    if (r->key) {
        r->key->active++;
        r->key_active = true;
    }
}

const char *request_key_name(const struct request *r) {
    return key_name(r->key);
}

/* It asks no more of its key: what its prompts took and did not use is given back. Before the client can know the end. */
static void leave_key(struct request *r) {
    if (r->key_active) {
        r->key->active--;
        r->key_active = false;
    }
    if (r->key && r->prompt_charged > r->prompt_computed) {
        bucket_take(&r->key->tokens, -(double)(r->prompt_charged - r->prompt_computed), clock_now_ns());
    }
    r->prompt_charged = r->prompt_computed;
}

void request_free_body(struct request *r) {
    buf_free(&r->body);
    if (r->server->http) { /* not at the very end */
        http_body_freed(r->server->http, r->body_len);
    }
    r->body_len = 0;
}

static void request_free(struct request *r) {
    leave_key(r);
    key_release(r->key);
    policy_release(r->policy);
    list_remove(&r->node);
    deadline_release(&r->server->deadlines, &r->deadline);
    for (size_t i = 0; i < r->n_choices; i++) {
        buf_free(&r->choices[i].text);
        buf_free(&r->choices[i].content);
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
    request_free_body(r);
    buf_free(&r->chunk_head);
    free(r);
}

void request_account(struct request *r) {
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
    if (r->n_choices > 0 && r->n_done == r->n_choices) {
        leave_key(r);
    }
    if (r->expired) {
        m->finished_deadline++;
    } else if (r->failed) {
        m->finished_error++;
    } else if (r->n_done < r->n_choices || r->n_choices == 0) {
        m->finished_cancelled++;
        m->cancelled++;
    } else {
        *(length ? &m->finished_length : repetition ? &m->finished_repetition : &m->finished_stop) += 1;
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
    if (r->gone || r->failed || r->phase == REQUEST_ENDED) {
        leave_key(r);
    }
    return true;
}

void request_settle(struct request *r) {
    struct server *s = r->server;
    if (!let_go(r)) {
        return;
    }
    if (r->gone || r->failed || (r->n_choices > 0 && r->n_done == r->n_choices)) {
        request_account(r);
    }
    if (!r->exchange && r->phase == REQUEST_ENDED) {
        if (r->access.arrived_ns) {
            access_write_request(r);
            if (s->content_log) {
                content_log_request(r);
            }
        }
        request_free(r);
        server_request_ended(s);
    }
}

void request_cancel(struct request *r) {
    for (size_t i = 0; !r->preparing && i < r->n_choices; i++) {
        if (r->choices[i].id) {
            engines_cancel(r->server->engines, r->choices[i].engine, r->choices[i].id);
        }
    }
}

void request_gone(struct request *r) {
    if (!r->gone) {
        r->gone = true;
        r->unwanted = true;
        request_cancel(r);
        request_settle(r);
    }
}

void request_completed(struct request *r) {
    r->exchange = NULL;
    r->gone = true;
    r->unwanted = true;
    request_cancel(r);
    request_settle(r);
}

/* ---- errors -------------------------------------------------------------------------------------------------- */

static uint64_t *rejection_counter(struct metrics *m, const struct api_error *e) {
    switch (e->status) {
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
        return e->code && strcmp(e->code, API_RATE_LIMIT) == 0 ? &m->rejected_rate_limit : &m->rejected_queue_full;
    case 503:
        return &m->rejected_unavailable;
    default:
        return e->status < 500 ? &m->rejected_invalid : &m->rejected_error;
    }
}

void request_reject(struct request *r, const struct api_error *e) {
    struct metrics *m = &r->server->metrics;
    r->unwanted = true;
    if (r->phase != REQUEST_ENDED) {
        r->phase = REQUEST_ENDED;
        deadline_set(&r->server->deadlines, &r->deadline, 0);
        *(r->expired ? &m->rejected_deadline : rejection_counter(m, e)) += 1;
    }
    let_go(r);
    if (r->exchange) {
        key_add_headers(r->key, r->exchange, clock_now_ns());
        api_reply_error(r->server, r->exchange, e);
    }
}

/* Events for a stream are written here, whole, and then sent. */
struct buf *request_begin_events(struct request *r) {
    buf_reset(&r->server->events);
    return &r->server->events;
}

void request_send_events(struct request *r) {
    struct buf *out = &r->server->events;
    struct error err;
    if (r->gone || r->failed || (out->len == 0 && !out->failed)) {
        return;
    }
    r->quiet_ns = loop_now_ns(r->server->loop);
    switch (out->failed ? EXCHANGE_NO_MEMORY : exchange_write(r->exchange, out->data, out->len)) {
    case EXCHANGE_QUEUED:
        break;
    case EXCHANGE_GONE:
        r->server->metrics.slow_readers++;
        request_gone(r);
        break;
    case EXCHANGE_NO_MEMORY:
        error_memory(&err);
        if (r->phase == REQUEST_ENDED) { /* for its last event: counted already */
            exchange_drop(r->exchange);
            request_gone(r);
        } else {
            request_fail(r, &err);
        }
        break;
    }
}

void request_fail(struct request *r, const struct error *err) {
    struct api_error e = api_error_of(err);
    if (r->failed || r->gone || r->phase == REQUEST_ENDED) {
        return;
    }
    r->failed = true;
    r->unwanted = true;
    request_cancel(r);
    if (!r->streaming) {
        key_add_headers(r->key, r->exchange, clock_now_ns());
        api_reply_error(r->server, r->exchange, &e);
    } else {
        struct buf *out = request_begin_events(r);
        sse_begin(out);
        api_error_write(&e, out);
        sse_finish(out);
        if (!out->failed && exchange_write(r->exchange, out->data, out->len) == EXCHANGE_QUEUED) {
            exchange_end(r->exchange);
        } else {
            exchange_drop(r->exchange);
        }
    }
}

/* ---- deadlines ----------------------------------------------------------------------------------------------- */

void request_limit(uint64_t *at_ns, uint64_t from_ns, double seconds) {
    uint64_t at = from_ns + (uint64_t)(seconds * 1e9);
    if (seconds > 0 && (*at_ns == 0 || at < *at_ns)) {
        *at_ns = at;
    }
}

void request_set_deadline(struct request *r) {
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
        request_cancel(r);
        request_reject(r, &e);
    } else {
        request_fail(r, &err);
    }
}

void request_expired(struct deadline *d, void *server) {
    (void)server;
    expire(LIST_ENTRY(d, struct request, deadline));
}

bool request_expired_by_now(struct request *r) {
    if (r->deadline.slot && r->deadline.at_ns <= clock_now_ns()) {
        expire(r);
    }
    return r->expired;
}

/* ---- all of them --------------------------------------------------------------------------------------------- */

static bool may_be_pinged(const struct request *r) {
    bool ours = r->phase == REQUEST_WAITING || r->phase == REQUEST_RUNNING; /* else a worker may be at its params */
    return ours && !r->gone && !r->failed && r->params.stream;
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
            request_start_stream(r);
            sse_ping(request_begin_events(r));
            request_send_events(r);
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
            request_settle(r);
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
