#include "access_log.h"

#include "http.h"
#include "request.h"
#include "server_state.h"

#include <inferd/clock.h>
#include <stdio.h>
#include <string.h>

#define CLIENT_LEFT 499
#define MAX_FIELDS 24

bool access_wanted(enum log_level level) {
    return level <= log_get_level();
}

static const char *method_of(const struct exchange *x) {
    static const char *const names[] = {
        [HTTP_GET] = "GET", [HTTP_HEAD] = "HEAD", [HTTP_POST] = "POST", [HTTP_OPTIONS] = "OPTIONS", [HTTP_OTHER] = "other"};
    return names[exchange_method(x)];
}

void access_take(const struct exchange *x, const char *route, struct access *out) {
    int status = exchange_status(x);
    *out = (struct access){
        .route = route,
        .method = method_of(x),
        .status = status ? status : CLIENT_LEFT,
        .received = exchange_received(x),
        .sent = exchange_sent(x),
        .arrived_ns = exchange_arrived_ns(x),
        .ended_ns = clock_now_ns(),
    };
    snprintf(out->id, sizeof out->id, "%s", exchange_id(x));
    snprintf(out->key, sizeof out->key, "%s", exchange_key_name(x));
    snprintf(out->peer, sizeof out->peer, "%s", exchange_peer(x));
}

/* ---- fields -------------------------------------------------------------------------------------------------- */

struct fields {
    struct log_field list[MAX_FIELDS];
    size_t n;
};

static void add_text(struct fields *f, const char *name, const char *text) {
    f->list[f->n++] = (struct log_field){.name = name, .kind = LOG_TEXT, .text = text[0] ? text : NULL};
}

static void add_count(struct fields *f, const char *name, uint64_t n) {
    f->list[f->n++] = (struct log_field){.name = name, .kind = LOG_COUNT, .number = n};
}

/* Left out where either end never was. */
static void add_time(struct fields *f, const char *name, uint64_t from_ns, uint64_t to_ns) {
    if (from_ns && to_ns) {
        f->list[f->n++] =
            (struct log_field){.name = name, .kind = LOG_MILLISECONDS, .number = to_ns > from_ns ? to_ns - from_ns : 0};
    }
}

static void add_head(struct fields *f, const struct access *a) {
    add_text(f, "request_id", a->id);
    add_text(f, "client", a->peer);
    add_text(f, "key", a->key);
    add_text(f, "method", a->method);
    add_text(f, "route", a->route);
    add_count(f, "status", (uint64_t)a->status);
}

static void add_tail(struct fields *f, const struct access *a) {
    add_time(f, "total_ms", a->arrived_ns, a->ended_ns);
    add_count(f, "bytes_received", a->received);
    add_count(f, "bytes_sent", a->sent);
}

void access_write(enum log_level level, const struct access *a) {
    struct fields f = {.n = 0};
    if (access_wanted(level)) {
        add_head(&f, a);
        add_tail(&f, a);
        log_event(level, "request", f.list, f.n);
    }
}

/* ---- of the model's answers ---------------------------------------------------------------------------------- */

const char *access_ending(const struct request *r, char out[ACCESS_ENDING_MAX]) {
    if (r->expired) {
        return "deadline";
    }
    if (r->failed) {
        return "error";
    }
    if (r->n_choices > 0 && r->n_done == r->n_choices) {
        out[0] = '\0';
        for (size_t i = 0; i < r->n_choices; i++) {
            const char *reason = request_finish_reason(&r->choices[i]);
            if (!strstr(out, reason)) { /* none is a part of another */
                strcat(out, out[0] ? "," : "");
                strcat(out, reason);
            }
        }
        return out;
    }
    return r->access.status >= 400 && r->access.status != CLIENT_LEFT ? "rejected" : "cancelled";
}

static uint64_t earlier(uint64_t a, uint64_t b) {
    return a && (a < b || !b) ? a : b;
}

/* Of a request that did not come to its end, as far as it came. */
static size_t generated(const struct request *r) {
    size_t n = 0;
    for (size_t i = 0; i < r->n_choices; i++) {
        const struct choice *c = &r->choices[i];
        n += c->completion_tokens > c->charged ? c->completion_tokens : c->charged;
    }
    return n;
}

/* From the first choice that got so far; decoding until the last token of any. */
static void add_phases(struct fields *f, const struct request *r) {
    uint64_t submitted = 0, started = 0, last = 0;
    for (size_t i = 0; i < r->n_choices; i++) {
        const struct choice *c = &r->choices[i];
        submitted = earlier(submitted, c->submitted_ns);
        started = earlier(started, c->started_ns);
        last = c->last_ns > last ? c->last_ns : last;
    }
    add_time(f, "queue_ms", submitted, started ? started : r->access.ended_ns);
    add_time(f, "prefill_ms", started, r->first_ns);
    add_time(f, "decode_ms", r->first_ns, last);
    add_time(f, "ttft_ms", r->ready_ns, r->first_ns);
}

void access_write_request(const struct request *r) {
    struct fields f = {.n = 0};
    char reasons[ACCESS_ENDING_MAX];
    if (!access_wanted(LOG_LEVEL_INFO)) {
        return;
    }
    add_head(&f, &r->access);
    add_text(&f, "finish", access_ending(r, reasons));
    add_text(&f, "response_id", r->id);
    add_text(&f, "model", r->n_choices > 0 ? r->model : "");
    if (r->n_choices > 0) {
        struct request_usage u = request_usage(r);
        add_count(&f, "prompt_tokens", u.prompt);
        add_count(&f, "completion_tokens", generated(r));
        add_count(&f, "cached_tokens", u.cached);
        add_phases(&f, r);
    }
    add_tail(&f, &r->access);
    log_event(LOG_LEVEL_INFO, "request", f.list, f.n);
}
