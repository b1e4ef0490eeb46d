/* An exchange as the application uses it: what was asked, and the answer. */
#include "http_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum http_door exchange_door(const struct exchange *x) {
    return x->connection->gate->socket.door;
}

enum http_method exchange_method(const struct exchange *x) {
    return x->method;
}

const char *exchange_path(const struct exchange *x) {
    return x->path;
}

const char *exchange_id(const struct exchange *x) {
    return x->id;
}

const char *exchange_unique(const struct exchange *x) {
    return x->unique;
}

bool exchange_id_valid(const char *id, size_t len) {
    for (size_t i = 0; i < len; i++) {
        if (id[i] <= 0x20 || id[i] > 0x7e) {
            return false;
        }
    }
    return len > 0 && len <= 128;
}

void exchange_set_id(struct exchange *x, const char *id) {
    size_t n = strlen(id);
    if (exchange_id_valid(id, n)) {
        memcpy(x->id, id, n + 1);
    }
}

void exchange_set_key_name(struct exchange *x, const char *name) {
    snprintf(x->key_name, sizeof x->key_name, "%s", name);
}

const char *exchange_key_name(const struct exchange *x) {
    return x->key_name;
}

uint64_t exchange_arrived_ns(const struct exchange *x) {
    return x->arrived_ns;
}

enum http_refusal exchange_refused(const struct exchange *x) {
    return x->refusal;
}

struct buf exchange_take_body(struct exchange *x) {
    struct buf body = x->body;
    x->body = BUF_INIT;
    x->accounted = 0;
    return body;
}

void http_body_freed(struct http *h, size_t len) {
    h->buffered -= len;
}

bool exchange_answered(const struct exchange *x) {
    return x->stage == REPLYING || x->stage == STREAMING;
}

int exchange_status(const struct exchange *x) {
    return exchange_answered(x) ? x->status : 0;
}

void *exchange_app(const struct exchange *x) {
    return x->app;
}

void exchange_set_app(struct exchange *x, void *app) {
    x->app = app;
}

void exchange_add_header(struct exchange *x, const char *name, const char *value) {
    buf_append(&x->headers, name, strlen(name) + 1);
    buf_append(&x->headers, value, strlen(value) + 1);
}

void exchange_reply(struct exchange *x, int status, const char *type, struct buf *body) {
    if (exchange_answered(x)) {
        buf_free(body);
        return;
    }
    x->stage = REPLYING;
    x->status = status;
    x->type = type;
    x->out = *body;
    x->sent = x->out.len;
    *body = BUF_INIT;
    exchange_wake(x);
}

void exchange_stream(struct exchange *x, const char *type) {
    if (!exchange_answered(x)) {
        x->stage = STREAMING;
        x->status = 200;
        x->type = type;
        exchange_wake(x);
    }
}

static void prefetch(const void *p, size_t len) {
    for (size_t at = 0; p && at < len; at += 64) {
        __builtin_prefetch((const char *)p + at, 1);
    }
}

void exchange_prefetch(const struct exchange *x) {
    prefetch(x, offsetof(struct exchange, method));
}

void exchange_prefetch_buffer(const struct exchange *x, size_t len) {
    prefetch(x->out.data, x->out.cap < len ? x->out.cap : len);
    prefetch(x->piece, len);
    prefetch(x->mhd, 512); /* libmicrohttpd's own record: most of it, whatever its size */
    prefetch(x->response, 128);
}

enum exchange_queued exchange_write(struct exchange *x, const char *bytes, size_t len) {
    if (x->gone) {
        return EXCHANGE_GONE;
    }
    if (x->out_pos > 0 && x->out_pos >= x->out.len / 2) {
        x->out.len -= x->out_pos;
        memmove(x->out.data, x->out.data + x->out_pos, x->out.len);
        x->out_pos = 0;
    }
    if (len > HTTP_STREAM_MAX || exchange_unsent(x) > HTTP_STREAM_MAX - len) {
        exchange_cut(x);
        return EXCHANGE_GONE;
    }
    buf_append(&x->out, bytes, len);
    if (x->out.failed) { /* what it held it still holds */
        x->out.failed = false;
        return EXCHANGE_NO_MEMORY;
    }
    x->sent += len;
    exchange_wake(x);
    return EXCHANGE_QUEUED;
}

void exchange_drop(struct exchange *x) {
    if (x->gone) {
        return;
    }
    if (x->queued) {
        exchange_cut(x);
    } else { /* as an answer that failed */
        x->stage = REPLYING;
        x->out.failed = true;
        exchange_wake(x);
    }
}

void exchange_end(struct exchange *x) {
    x->ended = true;
    exchange_wake(x);
}

uint64_t exchange_received(const struct exchange *x) {
    return x->received;
}

uint64_t exchange_sent(const struct exchange *x) {
    return x->sent;
}

size_t exchange_unsent(const struct exchange *x) {
    return x->stage == STREAMING ? x->out.len - x->out_pos : 0;
}
