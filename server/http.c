#include "http.h"

#include "hangup.h"
#include "listener.h"
#include "loop.h"

#include <arpa/inet.h>
#include <errno.h>
#include <inferd/clock.h>
#include <inferd/list.h>
#include <inferd/log.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

/* A refused body is read to its end and dropped, up to this, and the answer comes then: a client that is still sending
 * would lose an earlier one to the reset of the connection. Beyond, or with Expect, answer at once and close. */
#define DISCARD_MAX ((uint64_t)64 << 20)

#define SWEEP_MS 1000 /* at least, from one sweep to the next */
#define HANGUP_GRACE_MS 200

/* Memory of a connection beyond its headers' bytes: what libmicrohttpd notes of them, and the head of the answer. Half
 * of both together becomes resident with the first request, whatever its size. */
#define CONNECTION_EXTRA ((size_t)8 << 10)
/* Pieces of a stream to an HTTP/1.0 client; those of chunked ones lie in the connection's memory. */
#define PLAIN_PIECE 512
#define ACCEPT_AGAIN_MS 100
#define WARN_AGAIN_NS 60000000000u

struct http {
    struct loop *loop;
    struct http_config config;
    struct http_app app;
    struct MHD_Daemon *daemon;
    struct MHD_Response *no_memory; /* made at the start, for when nothing can be made */
    struct loop_poll *poll;         /* libmicrohttpd's epoll descriptor */
    struct loop_timer *timer;       /* its timeouts */
    struct loop_timer *sweep;       /* ours, at the earliest deadline of all connections */
    uint64_t sweep_ns;              /* when it is due; 0 = never */
    struct hangup *hangup;
    struct list connections;
    size_t port;
    size_t buffered;    /* bytes of request bodies held */
    bool dirty;         /* something was resumed or became readable: pump before sleeping */
    bool readable;      /* ... by libmicrohttpd's epoll descriptor */
    bool paused;        /* which is not polled for a moment */
    uint64_t warned_ns; /* that there is no descriptor left */
    size_t changes;     /* connections that came or went */
    bool listening, draining, closing;
};

/* One TCP connection: what its deadline is now. */
struct connection {
    struct list node;
    struct http *http;
    struct exchange *exchange; /* the one in progress, or NULL */
    int fd;
    bool idle;            /* between two requests */
    char peer[64];        /* exchange_peer, once asked for */
    bool shut;            /* shutdown() was called: libmicrohttpd will see the end of it */
    uint64_t deadline_ns; /* 0 = none */
};

struct extra_header {
    const char *name;
    char value[64];
};

enum stage { READING, THINKING, REPLYING, STREAMING };

/* What each piece of a stream touches stands first (exchange_prefetch). */
struct exchange {
    struct http *http;
    struct connection *connection;
    struct MHD_Connection *mhd;
    enum stage stage;
    bool body_done;
    bool parked;  /* suspended in libmicrohttpd; resumed exactly once for each time */
    bool watched; /* in the hang-up set */
    bool hung_up; /* it fired while the body was coming in */
    bool gone;
    bool queued; /* the response was handed to libmicrohttpd */
    bool ended;
    struct buf out; /* REPLYING: the body. STREAMING: bytes [out_pos, len) wait for the reader. */
    size_t out_pos;
    uint64_t last_taken_ns; /* libmicrohttpd's reader */
    uint64_t sent;          /* of the answer's body, handed over */
    /* Only to ask memory for them ahead: the response, and where libmicrohttpd last wanted a piece. */
    const struct MHD_Response *response;
    const char *piece;

    enum http_method method;
    enum http_refusal refusal;
    char *path;
    char id[129], unique[33];
    uint64_t arrived_ns;
    struct buf body;
    size_t accounted;  /* of body, in http->buffered */
    uint64_t received; /* body bytes, kept or not */
    void *app;

    int status;
    const char *type;
    struct extra_header headers[EXCHANGE_MAX_HEADERS];
    size_t n_headers;
};

static uint64_t deadline(uint64_t ms) {
    return ms ? clock_now_ns() + ms * 1000000u : 0;
}

/* Look at all connections no later than `at`. 0 = no need. */
static void sweep_by(struct http *h, uint64_t at) {
    if (at && (!h->sweep_ns || at < h->sweep_ns)) {
        uint64_t now = clock_now_ns();
        h->sweep_ns = at;
        loop_timer_set(h->sweep, at > now ? (at - now) / 1000000u + 1 : 1);
    }
}

static void set_deadline(struct connection *c, uint64_t at) {
    c->deadline_ns = at;
    sweep_by(c->http, at);
}

/* When the client will have read nothing for too long; 0: it is not its turn to read. */
static uint64_t stall_deadline(const struct exchange *x) {
    uint64_t limit = x->http->config.write_timeout_ms * 1000000u;
    return limit && x->stage == STREAMING && !x->parked ? x->last_taken_ns + limit : 0;
}

/* ---- suspending and waking ---------------------------------------------------------------------------------- */

static void watch(struct exchange *x) {
    struct error err;
    if (!x->watched) {
        x->watched = hangup_add(x->http->hangup, x->connection->fd, x, &err) == 0;
    } else if (x->hung_up) {
        hangup_rearm(x->http->hangup, x->connection->fd, x);
    }
}

/* Only inside the two callbacks of libmicrohttpd. */
static void park(struct exchange *x) {
    watch(x);
    x->parked = true;
    MHD_suspend_connection(x->mhd);
}

/* libmicrohttpd wakes nobody on a resume in external mode, hence `dirty`. */
static void wake(struct exchange *x) {
    if (x->parked) {
        x->parked = false;
        x->last_taken_ns = loop_now_ns(x->http->loop);
        MHD_resume_connection(x->mhd);
        x->http->dirty = true;
        sweep_by(x->http, stall_deadline(x));
    }
}

static void connection_shut(struct connection *c) {
    if (!c->shut) {
        c->shut = true;
        shutdown(c->fd, SHUT_RDWR);
    }
}

static void drop(struct exchange *x) {
    x->gone = true;
    connection_shut(x->connection); /* one that is blocked in a write must notice, too */
    wake(x);
}

static void exchange_gone(struct exchange *x) {
    if (!x->gone) {
        drop(x);
        x->http->app.gone(x->http->app.arg, x);
    }
}

static void on_hangup(void *watched) {
    struct exchange *x = watched;
    if (x->body_done) {
        exchange_gone(x);
        return;
    }
    /* libmicrohttpd may have yet to read what came before the FIN; what is not whole then never will be */
    uint64_t soon = deadline(HANGUP_GRACE_MS);
    struct connection *c = x->connection;
    x->hung_up = true;
    set_deadline(c, c->deadline_ns && c->deadline_ns < soon ? c->deadline_ns : soon);
}

/* ---- the answer --------------------------------------------------------------------------------------------- */

static ssize_t read_stream(void *arg, uint64_t pos, char *to, size_t max) {
    (void)pos;
    struct exchange *x = arg;
    if (x->gone || x->http->closing) {
        return MHD_CONTENT_READER_END_WITH_ERROR;
    }
    size_t n = x->out.len - x->out_pos;
    if (n > 0) {
        n = n < max ? n : max;
        memcpy(to, x->out.data + x->out_pos, n);
        x->piece = to;
        x->out_pos += n;
        x->last_taken_ns = loop_now_ns(x->http->loop);
        if (x->out_pos == x->out.len) {
            buf_reset(&x->out);
            x->out_pos = 0;
        }
        return (ssize_t)n;
    }
    if (x->ended) {
        return MHD_CONTENT_READER_END_OF_STREAM;
    }
    park(x);
    return 0;
}

static struct MHD_Response *make_response(struct exchange *x) {
    if (x->stage == STREAMING) {
        x->last_taken_ns = clock_now_ns();
        sweep_by(x->http, stall_deadline(x));
        return MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, PLAIN_PIECE, read_stream, x, NULL);
    }
    size_t len = x->out.len;
    if (len == 0) {
        return MHD_create_response_from_buffer(0, (void *)(uintptr_t) "", MHD_RESPMEM_PERSISTENT);
    }
    char *bytes = buf_steal(&x->out);
    struct MHD_Response *r = MHD_create_response_from_buffer(len, bytes, MHD_RESPMEM_MUST_FREE);
    if (!r) {
        free(bytes);
    }
    return r;
}

static enum MHD_Result queue_answer(struct exchange *x) {
    if (x->out.failed && x->stage == REPLYING) {
        x->status = 500;
        x->queued = true;
        return MHD_queue_response(x->mhd, 500, x->http->no_memory);
    }
    struct MHD_Response *r = make_response(x);
    if (!r) {
        return MHD_NO;
    }
    MHD_add_response_header(r, "Content-Type", x->type);
    MHD_add_response_header(r, "X-Request-Id", x->id);
    for (size_t i = 0; i < x->n_headers; i++) {
        MHD_add_response_header(r, x->headers[i].name, x->headers[i].value);
    }
    if (x->http->draining || x->refusal == HTTP_BAD_FRAMING) {
        MHD_add_response_header(r, "Connection", "close");
    }
    enum MHD_Result rc = MHD_queue_response(x->mhd, (unsigned)x->status, r);
    x->response = r;
    MHD_destroy_response(r); /* libmicrohttpd holds its own reference */
    x->queued = rc == MHD_YES;
    return rc;
}

/* ---- libmicrohttpd's callbacks ------------------------------------------------------------------------------- */

static enum http_method parse_method(const char *method) {
    static const struct {
        const char *name;
        enum http_method method;
    } names[] = {{"GET", HTTP_GET}, {"HEAD", HTTP_HEAD}, {"POST", HTTP_POST}, {"OPTIONS", HTTP_OPTIONS}};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(names[i].name, method) == 0) {
            return names[i].method;
        }
    }
    return HTTP_OTHER;
}

static const char *header(const struct exchange *x, const char *name) {
    return MHD_lookup_connection_value(x->mhd, MHD_HEADER_KIND, name);
}

static void make_id(struct exchange *x) {
    const char *id = header(x, "X-Request-Id");
    unsigned char random[16] = {0};
    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random) {
        uint64_t now = clock_now_ns();
        memcpy(random, &now, sizeof now);
    }
    for (size_t i = 0; i < sizeof random; i++) {
        snprintf(x->unique + 2 * i, 3, "%02x", random[i]);
    }
    exchange_set_id(x, id && exchange_id_valid(id, strlen(id)) ? id : x->unique);
}

static struct connection *connection_of(struct MHD_Connection *c) {
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(c, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return info ? info->socket_context : NULL;
}

static struct exchange *exchange_new(struct http *h, struct MHD_Connection *mhd, const char *url, const char *method) {
    struct exchange *x = calloc(1, sizeof *x);
    if (!x) {
        return NULL;
    }
    x->http = h;
    x->mhd = mhd;
    x->connection = connection_of(mhd);
    x->path = strdup(url);
    if (!x->path || !x->connection) {
        free(x->path);
        free(x);
        return NULL;
    }
    x->connection->exchange = x;
    x->connection->idle = false;
    x->method = parse_method(method);
    x->arrived_ns = clock_now_ns();
    x->body.limit = h->config.max_body_size;
    make_id(x);
    return x;
}

struct body_announcement {
    bool chunked, expects_continue;
    bool ambiguous; /* said twice, or in a way that others may read otherwise */
    uint64_t length;
};

static enum MHD_Result count_framing(void *arg, enum MHD_ValueKind kind, const char *name, const char *value) {
    (void)kind;
    (void)value;
    *(size_t *)arg += strcasecmp(name, "Content-Length") == 0 || strcasecmp(name, "Transfer-Encoding") == 0;
    return MHD_YES;
}

static struct body_announcement announced(const struct exchange *x) {
    struct body_announcement a = {0};
    const char *length = header(x, "Content-Length"), *expect = header(x, "Expect");
    const char *encoding = header(x, "Transfer-Encoding");
    size_t n_framing = 0;
    MHD_get_connection_values(x->mhd, MHD_HEADER_KIND, count_framing, &n_framing);
    a.chunked = encoding != NULL;
    a.ambiguous = n_framing > 1 || (encoding && strcasecmp(encoding, "chunked") != 0);
    a.expects_continue = expect != NULL;
    if (length) {
        errno = 0;
        a.length = strtoull(length, NULL, 10); /* libmicrohttpd has refused what is no number */
        if (errno) {
            a.length = UINT64_MAX;
        }
    }
    return a;
}

static void check_limits(struct exchange *x, const struct body_announcement *a) {
    struct http *h = x->http;
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(x->mhd, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE);
    if (a->ambiguous) { /* RFC 9112, 6.1 and 6.3: a proxy in front might see another request in the body */
        x->refusal = HTTP_BAD_FRAMING;
    } else if (strlen(x->path) > HTTP_MAX_URL) {
        x->refusal = HTTP_URL_TOO_LONG;
    } else if (MHD_get_connection_values(x->mhd, MHD_HEADER_KIND, NULL, NULL) > HTTP_MAX_HEADERS ||
               (info && info->header_size > h->config.max_header_size)) {
        x->refusal = HTTP_HEADERS_TOO_LARGE;
    } else if (a->length > h->config.max_body_size) {
        x->refusal = HTTP_BODY_TOO_LARGE;
    } else if (a->length > 0 &&
               (h->buffered >= h->config.max_buffered || a->length > h->config.max_buffered - h->buffered)) {
        x->refusal = HTTP_OVERLOADED;
    }
}

static enum MHD_Result first_call(struct exchange *x) {
    struct body_announcement a = announced(x);
    bool has_body = a.chunked || a.length > 0;
    check_limits(x, &a);
    set_deadline(x->connection, has_body ? deadline(x->http->config.body_timeout_ms) : 0);
    if (has_body) {
        watch(x);
    }
    x->http->app.headers(x->http->app.arg, x);
    if (!exchange_answered(x)) {
        return MHD_YES;
    }
    if (x->refusal == HTTP_BAD_FRAMING || (has_body && (a.expects_continue || a.length > DISCARD_MAX))) {
        return queue_answer(x); /* libmicrohttpd then reads no further and closes */
    }
    return MHD_YES; /* answered in the last call */
}

static void account(struct exchange *x) {
    x->http->buffered += x->body.len - x->accounted;
    x->accounted = x->body.len;
}

static enum MHD_Result take_body(struct exchange *x, const char *bytes, size_t *len) {
    struct http *h = x->http;
    x->received += *len;
    if (!exchange_answered(x) && x->refusal == HTTP_OK) {
        if (x->received > h->config.max_body_size) {
            x->refusal = HTTP_BODY_TOO_LARGE;
        } else if (h->buffered + *len > h->config.max_buffered) {
            x->refusal = HTTP_OVERLOADED;
        } else {
            buf_append(&x->body, bytes, *len);
            account(x);
            x->refusal = x->body.failed ? HTTP_OVERLOADED : HTTP_OK;
        }
        if (x->refusal != HTTP_OK) {
            struct buf drop = exchange_take_body(x);
            http_body_freed(h, drop.len);
            buf_free(&drop);
        }
    }
    *len = 0;
    return x->received > h->config.max_body_size + DISCARD_MAX ? MHD_NO : MHD_YES;
}

static enum MHD_Result on_request(void *arg, struct MHD_Connection *mhd, const char *url, const char *method,
                                  const char *version, const char *upload, size_t *upload_len, void **request) {
    (void)version;
    struct exchange *x = *request;
    if (!x) {
        x = exchange_new(arg, mhd, url, method);
        if (!x) {
            return MHD_queue_response(mhd, 500, ((struct http *)arg)->no_memory);
        }
        *request = x;
        return first_call(x);
    }
    if (x->gone || x->http->closing) {
        return MHD_NO;
    }
    if (*upload_len > 0) {
        return take_body(x, upload, upload_len);
    }
    if (!x->body_done) {
        x->body_done = true;
        x->connection->deadline_ns = 0;
        if (!exchange_answered(x)) {
            x->stage = THINKING;
            x->http->app.body(x->http->app.arg, x);
        }
    }
    if (exchange_answered(x)) {
        return x->queued ? MHD_YES : queue_answer(x);
    }
    park(x);
    return MHD_YES;
}

/* Before the response and the descriptor are closed. */
/*
 * A FIN that came together with the request was no event of its own, and libmicrohttpd, which has read what it could,
 * would wait for a next request until the idle time is over. Shutting the socket down makes an event of it.
 */
static void end_half_closed(int fd) {
    char byte;
    if (recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0) {
        shutdown(fd, SHUT_RDWR);
    }
}

static void on_completed(void *arg, struct MHD_Connection *mhd, void **request, enum MHD_RequestTerminationCode how) {
    (void)mhd;
    struct http *h = arg;
    struct exchange *x = *request;
    if (!x) {
        return;
    }
    *request = NULL;
    if (x->watched) {
        hangup_remove(h->hangup, x->connection->fd);
    }
    if (how == MHD_REQUEST_TERMINATED_COMPLETED_OK) {
        end_half_closed(x->connection->fd);
    }
    x->connection->exchange = NULL;
    x->connection->idle = true;
    set_deadline(x->connection, deadline(h->config.idle_timeout_ms));
    h->app.completed(h->app.arg, x);
    h->buffered -= x->accounted;
    buf_free(&x->body);
    buf_free(&x->out);
    free(x->path);
    free(x);
}

/* As libmicrohttpd does, but no path may hide its end behind a NUL. */
static size_t on_unescape(void *arg, struct MHD_Connection *mhd, char *s) {
    (void)arg;
    (void)mhd;
    return strstr(s, "%00") ? strlen(s) : MHD_http_unescape(s);
}

/* The request line is in: the header block now has its own time. */
static void *on_request_line(void *arg, const char *url, struct MHD_Connection *mhd) {
    (void)url;
    struct http *h = arg;
    struct connection *c = connection_of(mhd);
    if (c && c->idle) {
        c->idle = false;
        set_deadline(c, deadline(h->config.header_timeout_ms));
    }
    return NULL;
}

static void on_connection(void *arg, struct MHD_Connection *mhd, void **context,
                          enum MHD_ConnectionNotificationCode what) {
    struct http *h = arg;
    h->changes++;
    if (what == MHD_CONNECTION_NOTIFY_CLOSED) {
        struct connection *c = *context;
        if (c) {
            list_remove(&c->node);
            free(c);
        }
        *context = NULL;
        return;
    }
    struct connection *c = calloc(1, sizeof *c);
    if (!c) { /* exchange_new refuses its requests; what never becomes one is libmicrohttpd's to end */
        MHD_set_connection_option(mhd, MHD_CONNECTION_OPTION_TIMEOUT,
                                  (unsigned)(h->config.header_timeout_ms / 1000 + 1));
        return;
    }
    c->http = h;
    c->fd = MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
    set_deadline(c, deadline(h->config.header_timeout_ms));
    int on = 1;
    unsigned user_timeout = (unsigned)h->config.write_timeout_ms;
    setsockopt(c->fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(c->fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &user_timeout, sizeof user_timeout);
    list_push_back(&h->connections, &c->node);
    *context = c;
}

static void on_log(void *arg, const char *fmt, va_list ap) __attribute__((format(printf, 2, 0)));
static void on_log(void *arg, const char *fmt, va_list ap) {
    struct http *h = arg;
    char line[512];
    if (strstr(fmt, "resource limit")) { /* its words for EMFILE and ENFILE */
        uint64_t now = clock_now_ns();
        if (!h->warned_ns || now - h->warned_ns > WARN_AGAIN_NS) {
            h->warned_ns = now;
            log_warn("no descriptor is left for another connection: new ones wait until others end (see ulimit -n, "
                     "LimitNOFILE)");
        }
        return;
    }
    vsnprintf(line, sizeof line, fmt, ap);
    size_t n = strlen(line);
    while (n > 0 && line[n - 1] == '\n') {
        line[--n] = '\0';
    }
    log_debug("http: %s", line);
}

/* ---- the loop's side ----------------------------------------------------------------------------------------- */

static void pump(struct http *h) {
    MHD_UNSIGNED_LONG_LONG ms = 0;
    bool more;
    int turns = 0;
    size_t at_first = h->changes;
    h->dirty = false;
    do { /* one piece of a stream costs two turns: fill, then write */
        size_t before = h->changes;
        MHD_run(h->daemon);
        more = MHD_get_timeout(h->daemon, &ms) == MHD_YES;
        if (h->changes != before) { /* at a limit libmicrohttpd let go of the listening socket; it asks for no turn to
                                       take it up when a connection has left */
            more = true;
            ms = 0;
        }
    } while (more && ms == 0 && ++turns < 8);
    if (more) {
        loop_timer_set(h->timer, ms);
    } else {
        loop_timer_stop(h->timer);
    }
    if (h->readable && h->changes == at_first && list_empty(&h->connections)) {
        /* Only the listening socket can have been ready, and accept() fails: no descriptor is left. */
        h->paused = true;
        loop_poll_pause(h->poll, true);
        sweep_by(h, deadline(ACCEPT_AGAIN_MS));
    }
    h->readable = false;
}

static void on_dirty(void *arg) {
    struct http *h = arg;
    h->dirty = true;
}

static void on_readable(void *arg) {
    struct http *h = arg;
    h->dirty = h->readable = true;
}

static void on_turn(void *arg) {
    struct http *h = arg;
    if (h->dirty && h->daemon) {
        pump(h);
    }
}

static uint64_t earlier(uint64_t a, uint64_t b) {
    return !a || (b && b < a) ? b : a;
}

static void on_sweep(void *arg) {
    struct http *h = arg;
    uint64_t now = clock_now_ns(), due = 0;
    if (h->paused) {
        h->paused = false;
        loop_poll_pause(h->poll, false);
    }
    LIST_FOR_EACH_SAFE(node, next, &h->connections) {
        struct connection *c = LIST_ENTRY(node, struct connection, node);
        if (c->deadline_ns && now >= c->deadline_ns) {
            c->deadline_ns = 0;
            connection_shut(c); /* libmicrohttpd reads the end and closes */
            continue;
        }
        uint64_t stall = c->exchange && c->exchange->queued ? stall_deadline(c->exchange) : 0;
        if (stall && now >= stall) {
            exchange_gone(c->exchange);
        } else {
            due = earlier(due, earlier(c->deadline_ns, stall));
        }
    }
    h->sweep_ns = 0;
    if (due) {
        uint64_t soonest = now + SWEEP_MS * 1000000u;
        sweep_by(h, due > soonest ? due : soonest);
    }
}

/* The sentence of error_memory(), as the application writes errors. */
static int make_no_memory(struct http *h, struct error *err) {
    static const char body[] = "{\"error\":{\"message\":\"out of memory\",\"type\":\"server_error\",\"param\":null,"
                               "\"code\":null}}\n";
    h->no_memory = MHD_create_response_from_buffer(sizeof body - 1, (void *)(uintptr_t)body, MHD_RESPMEM_PERSISTENT);
    if (!h->no_memory || MHD_add_response_header(h->no_memory, "Content-Type", "application/json") != MHD_YES ||
        MHD_add_response_header(h->no_memory, "Connection", "close") != MHD_YES) {
        return error_memory(err);
    }
    return 0;
}

static int start_daemon(struct http *h, struct error *err) {
    int fd = listener_open(h->config.host, &h->port, err);
    if (fd < 0) {
        return -1;
    }
    /* Backstop only: our deadlines are shorter. It bounds a plain answer that nobody reads. */
    unsigned timeout = (unsigned)((h->config.idle_timeout_ms + h->config.write_timeout_ms) / 1000 + 1);
    h->daemon =
        MHD_start_daemon(MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG, 0, NULL, NULL, on_request, h,
                         MHD_OPTION_EXTERNAL_LOGGER, on_log, h, MHD_OPTION_LISTEN_SOCKET, fd,
                         MHD_OPTION_NOTIFY_COMPLETED, on_completed, h, MHD_OPTION_NOTIFY_CONNECTION, on_connection, h,
                         MHD_OPTION_URI_LOG_CALLBACK, on_request_line, h, MHD_OPTION_UNESCAPE_CALLBACK, on_unescape,
                         NULL, MHD_OPTION_CONNECTION_LIMIT, (unsigned)h->config.max_connections,
                         MHD_OPTION_CONNECTION_MEMORY_LIMIT, h->config.max_header_size + CONNECTION_EXTRA,
                         MHD_OPTION_CONNECTION_TIMEOUT, timeout, MHD_OPTION_SIGPIPE_HANDLED_BY_APP, 1, MHD_OPTION_END);
    if (!h->daemon) {
        close(fd);
        return error_set(err, ERROR_IO, "the HTTP library does not start");
    }
    h->listening = true;
    int epoll_fd = MHD_get_daemon_info(h->daemon, MHD_DAEMON_INFO_EPOLL_FD)->epoll_fd;
    return loop_poll_new(h->loop, epoll_fd, on_readable, h, &h->poll, err);
}

int http_open(struct loop *loop, const struct http_config *config, const struct http_app *app, struct http **out,
              struct error *err) {
    struct http *h = calloc(1, sizeof *h);
    if (!h) {
        return error_memory(err);
    }
    h->loop = loop;
    h->config = *config;
    h->app = *app;
    h->port = config->port;
    list_init(&h->connections);
    if (loop_timer_new(loop, on_dirty, h, &h->timer, err) || loop_timer_new(loop, on_sweep, h, &h->sweep, err) ||
        hangup_open(loop, on_hangup, &h->hangup, err) || make_no_memory(h, err) || start_daemon(h, err)) {
        http_close(h);
        return -1;
    }
    h->dirty = true;
    loop_on_turn(loop, on_turn, h);
    *out = h;
    return 0;
}

size_t http_port(const struct http *h) {
    return h->port;
}

void http_start_accepting(struct http *h) {
    (void)h;
}

int http_reload_certificate(struct http *h, const char *certificate, const char *key, struct error *err) {
    (void)h;
    (void)certificate;
    (void)key;
    return error_set_param(err, ERROR_MODEL, "tls_certificate", "there is no TLS: tls_certificate was not set at the start");
}

const char *http_library_version(void) {
    return MHD_get_version();
}

void http_announce_close(struct http *h) {
    h->draining = true;
}

void http_stop_listening(struct http *h) {
    if (h->listening) {
        h->listening = false;
        MHD_socket fd = MHD_quiesce_daemon(h->daemon);
        if (fd != MHD_INVALID_SOCKET) {
            close(fd);
        }
    }
}

void http_flush(struct http *h) {
    for (int i = 0; i < 4; i++) {
        pump(h);
    }
}

void http_close(struct http *h) {
    if (!h) {
        return;
    }
    if (h->daemon) {
        http_stop_listening(h);
        h->closing = true;
        /* libmicrohttpd aborts on a daemon that has suspended connections. */
        LIST_FOR_EACH(node, &h->connections) {
            struct connection *c = LIST_ENTRY(node, struct connection, node);
            if (c->exchange) {
                wake(c->exchange);
            }
        }
        http_flush(h);
        loop_poll_free(h->poll);
        MHD_stop_daemon(h->daemon);
        loop_on_turn(h->loop, NULL, NULL);
    }
    if (h->no_memory) {
        MHD_destroy_response(h->no_memory);
    }
    hangup_free(h->hangup);
    loop_timer_free(h->timer);
    loop_timer_free(h->sweep);
    free(h);
}

/* ---- what the application does with an exchange ------------------------------------------------------------- */

enum http_door exchange_door(const struct exchange *x) {
    (void)x;
    return HTTP_PUBLIC;
}

static void describe_peer(const struct sockaddr *a, char *out, size_t size) {
    char address[INET6_ADDRSTRLEN];
    if (a && a->sa_family == AF_INET) {
        const struct sockaddr_in *v4 = (const struct sockaddr_in *)a;
        inet_ntop(AF_INET, &v4->sin_addr, address, sizeof address);
        snprintf(out, size, "%s:%u", address, ntohs(v4->sin_port));
    } else if (a && a->sa_family == AF_INET6) {
        const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)a;
        inet_ntop(AF_INET6, &v6->sin6_addr, address, sizeof address);
        snprintf(out, size, "[%s]:%u", address, ntohs(v6->sin6_port));
    } else {
        snprintf(out, size, "unix");
    }
}

const char *exchange_peer(const struct exchange *x) {
    char *peer = x->connection->peer;
    if (!peer[0]) {
        const union MHD_ConnectionInfo *info = MHD_get_connection_info(x->mhd, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
        describe_peer(info ? info->client_addr : NULL, peer, sizeof x->connection->peer);
    }
    return peer;
}

enum http_method exchange_method(const struct exchange *x) {
    return x->method;
}

const char *exchange_path(const struct exchange *x) {
    return x->path;
}

const char *exchange_header(const struct exchange *x, const char *name) {
    return header(x, name);
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
    if (x->n_headers < EXCHANGE_MAX_HEADERS) {
        struct extra_header *h = &x->headers[x->n_headers++];
        h->name = name;
        snprintf(h->value, sizeof h->value, "%s", value);
    }
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
    wake(x);
}

void exchange_stream(struct exchange *x, const char *type) {
    if (!exchange_answered(x)) {
        x->stage = STREAMING;
        x->status = 200;
        x->type = type;
        wake(x);
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
        drop(x);
        return EXCHANGE_GONE;
    }
    buf_append(&x->out, bytes, len);
    if (x->out.failed) { /* what it held it still holds */
        x->out.failed = false;
        return EXCHANGE_NO_MEMORY;
    }
    x->sent += len;
    wake(x);
    return EXCHANGE_QUEUED;
}

void exchange_drop(struct exchange *x) {
    if (x->gone) {
        return;
    }
    if (x->queued) {
        drop(x);
    } else { /* as an answer that failed */
        x->stage = REPLYING;
        x->out.failed = true;
        wake(x);
    }
}

void exchange_end(struct exchange *x) {
    x->ended = true;
    wake(x);
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
