#include "api_common.h"

#include "config.h"
#include "http.h"
#include "server_state.h"

#include <inferd/clock.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

void json_put_string(struct buf *out, const char *s) {
    buf_json_string(out, s, strlen(s));
}

void json_put_size(struct buf *out, size_t n) {
    char digits[20];
    size_t at = sizeof digits;
    do {
        digits[--at] = (char)('0' + n % 10);
        n /= 10;
    } while (n > 0);
    buf_append(out, digits + at, sizeof digits - at);
}

struct api_error api_error_of(const struct error *err) {
    static const char request[] = "invalid_request_error", server[] = "server_error";
    struct api_error e = {500, server, NULL, err->param, err->message, 0};
    switch (err->code) {
    case ERROR_INVALID:
        e.status = 400;
        e.type = request;
        break;
    case ERROR_UNSUPPORTED:
        e.status = 400;
        e.type = request;
        e.code = "unsupported";
        break;
    case ERROR_CONTEXT_LENGTH:
        e.status = 400;
        e.type = request;
        e.code = "context_length_exceeded";
        break;
    case ERROR_NOT_FOUND:
        e.status = 404;
        e.type = request;
        e.code = "model_not_found";
        break;
    case ERROR_QUEUE_FULL:
        e.status = 429;
        e.type = "rate_limit_error";
        e.code = "queue_full";
        break;
    case ERROR_UNAVAILABLE:
    case ERROR_DEVICE: /* lost: the process ends, and whoever watches it starts it again */
        e.status = 503;
        e.type = "unavailable_error";
        break;
    case ERROR_NONE:
    case ERROR_MODEL:
    case ERROR_DOES_NOT_FIT:
    case ERROR_IO:
    case ERROR_MEMORY:
    case ERROR_INTERNAL:
        break;
    }
    return e;
}

struct api_error api_limit_error(enum key_rejection why, double seconds) {
    static const char *const sentences[KEY_REJECTIONS] = {
        [KEY_REJECTED_REQUESTS] = "this key has made all requests that it may make in a minute",
        [KEY_REJECTED_TOKENS] = "this key has used all tokens that it may use in a minute, or the prompt has more than are left",
        [KEY_REJECTED_CONCURRENT] = "this key has as many requests running and waiting as it may have at a time",
    };
    return (struct api_error){429, "rate_limit_error", API_RATE_LIMIT, NULL, sentences[why], seconds};
}

void api_error_write(const struct api_error *e, struct buf *out) {
    buf_puts(out, "{\"error\":{\"message\":");
    json_put_string(out, e->message);
    buf_puts(out, ",\"type\":");
    json_put_string(out, e->type);
    buf_puts(out, ",\"param\":");
    if (e->param && e->param[0]) {
        json_put_string(out, e->param);
    } else {
        buf_puts(out, "null");
    }
    buf_puts(out, ",\"code\":");
    if (e->code) {
        json_put_string(out, e->code);
    } else {
        buf_puts(out, "null");
    }
    buf_puts(out, "}}");
}

void api_add_retry_after(struct server *s, struct exchange *x) {
    char seconds[24];
    bool measured = s->phase == SERVER_READY;
    snprintf(seconds, sizeof seconds, "%zu",
             measured ? admission_retry_after(&s->admission, clock_now_ns()) : s->config->retry_after);
    exchange_add_header(x, "Retry-After", seconds);
}

static void add_retry_after(struct server *s, struct exchange *x, double seconds) {
    char text[24];
    if (seconds > 0) {
        snprintf(text, sizeof text, "%.0f", ceil(seconds - 1e-6));
        exchange_add_header(x, "Retry-After", text[0] == '0' ? "1" : text);
    } else {
        api_add_retry_after(s, x);
    }
}

void api_reply_error(struct server *s, struct exchange *x, const struct api_error *e) {
    struct buf body = BUF_INIT;
    api_error_write(e, &body);
    buf_putc(&body, '\n');
    if (e->status == 429 || e->status == 503) {
        add_retry_after(s, x, e->retry_after);
    }
    if (e->status == 401) {
        exchange_add_header(x, "WWW-Authenticate", "Bearer");
    }
    api_reply(x, e->status, &body);
}

void api_reply(struct exchange *x, int status, struct buf *body) {
    exchange_reply(x, status, JSON_CONTENT_TYPE, body);
}
