#include "http.h"

#include "http_internal.h"
#include "tls.h"
#include "watch.h"

#include <arpa/inet.h>
#include <errno.h>
#include <inferd/log.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

/* A refused body is read to its end and dropped, up to this, and the answer comes then: a client that is still sending
 * would lose an earlier one to the reset of the connection. Beyond, or with Expect, answer at once and close. */
#define DISCARD_MAX ((uint64_t)64 << 20)

/* Memory of a connection beyond its headers' bytes: what libmicrohttpd notes of them, and the head of the answer. Half
 * of both together becomes resident with the first request, whatever its size. */
#define CONNECTION_EXTRA ((size_t)8 << 10)
/* Pieces of a stream to an HTTP/1.0 client; those of chunked ones lie in the connection's memory. */
#define PLAIN_PIECE 512
#define ACCEPT_AGAIN_MS 100
#define WARN_AGAIN_NS 60000000000u

/* ---- suspending and waking ---------------------------------------------------------------------------------- */

static void watch(struct exchange *x) {
    struct error err;
    if (!x->watched) {
        x->watched = watch_add(x->http->hangups, x->connection->fd, EPOLLRDHUP, x, &err) == 0;
    } else if (x->hung_up) {
        watch_rearm(x->http->hangups, x->connection->fd, EPOLLRDHUP, x);
    }
}

/* Only inside the two callbacks of libmicrohttpd. */
static void park(struct exchange *x) {
    watch(x);
    x->parked = true;
    MHD_suspend_connection(x->mhd);
}

/* libmicrohttpd wakes nobody on a resume in external mode, hence `dirty`. */
void exchange_wake(struct exchange *x) {
    if (x->parked) {
        x->parked = false;
        x->last_taken_ns = loop_now_ns(x->http->loop);
        MHD_resume_connection(x->mhd);
        x->gate->dirty = true;
        http_sweep_by(x->http, exchange_stall_deadline(x));
    }
}

void exchange_cut(struct exchange *x) {
    x->gone = true;
    connection_shut(x->connection);
    exchange_wake(x);
}

/* ---- TLS handshakes ------------------------------------------------------------------------------------------ */

/*
 * libmicrohttpd 0.9.75 takes a connection whose handshake waits for the client for one that is ready, and would try it
 * again in every turn, the loop spinning for as long as the client likes. So such a connection is suspended, here
 * between two turns, where it has no other state, and resumed when its socket has something for it.
 */
static void greeting_begin(struct connection *c) {
    if (c->gate->socket.tls) {
        list_push_back(&c->gate->greeting, &c->greeting);
    }
}

static void greeting_park(struct connection *c, gnutls_session_t session) {
    struct watch *w = c->gate->http->greetings;
    uint32_t events = gnutls_record_get_direction(session) ? EPOLLOUT : EPOLLIN;
    struct error err;
    if (c->greeted) {
        watch_rearm(w, c->fd, events, c);
    } else if (watch_add(w, c->fd, events, c, &err)) {
        connection_shut(c);
        return;
    }
    c->greeted = c->parked = true;
    MHD_suspend_connection(c->mhd);
}

/* After each turn: those that were tried and are not through. */
static void greetings_park(struct gate *g) {
    LIST_FOR_EACH_SAFE(node, next, &g->greeting) {
        struct connection *c = LIST_ENTRY(node, struct connection, greeting);
        list_remove(&c->greeting);
        gnutls_session_t session = MHD_get_connection_info(c->mhd, MHD_CONNECTION_INFO_GNUTLS_SESSION)->tls_session;
        if (!c->spoke && !tls_established(session)) {
            greeting_park(c, session);
        } else if (c->greeted) {
            watch_remove(g->http->greetings, c->fd);
        }
    }
}

static void greeting_go_on(void *watched) {
    struct connection *c = watched;
    if (c->parked) {
        c->parked = false;
        list_push_back(&c->gate->greeting, &c->greeting);
        MHD_resume_connection(c->mhd);
        c->gate->dirty = true;
    }
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
        http_sweep_by(x->http, exchange_stall_deadline(x));
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
    if ((x->out.failed && x->stage == REPLYING) || x->headers.failed) {
        x->status = 500;
        x->queued = true;
        return MHD_queue_response(x->mhd, 500, x->http->no_memory);
    }
    struct MHD_Response *r = make_response(x);
    if (!r) {
        return MHD_NO;
    }
    if (x->type) {
        MHD_add_response_header(r, "Content-Type", x->type);
    }
    MHD_add_response_header(r, "X-Request-Id", x->id);
    for (size_t at = 0; at < x->headers.len;) {
        const char *name = x->headers.data + at, *value = name + strlen(name) + 1;
        at = (size_t)(value - x->headers.data) + strlen(value) + 1;
        MHD_add_response_header(r, name, value);
    }
    buf_free(&x->headers);
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

const char *exchange_header(const struct exchange *x, const char *name) {
    return MHD_lookup_connection_value(x->mhd, MHD_HEADER_KIND, name);
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

static void make_id(struct exchange *x) {
    const char *id = exchange_header(x, "X-Request-Id");
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

static struct exchange *exchange_new(struct gate *g, struct MHD_Connection *mhd, const char *url, const char *method) {
    struct exchange *x = calloc(1, sizeof *x);
    if (!x) {
        return NULL;
    }
    x->http = g->http;
    x->gate = g;
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
    x->body.limit = x->http->config.max_body_size;
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
    const char *length = exchange_header(x, "Content-Length"), *expect = exchange_header(x, "Expect");
    const char *encoding = exchange_header(x, "Transfer-Encoding");
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
    connection_set_deadline(x->connection, has_body ? http_deadline(x->http->config.body_timeout_ms) : 0);
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
            return MHD_queue_response(mhd, 500, ((struct gate *)arg)->http->no_memory);
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
    struct http *h = ((struct gate *)arg)->http;
    struct exchange *x = *request;
    if (!x) {
        return;
    }
    *request = NULL;
    if (x->watched) {
        watch_remove(h->hangups, x->connection->fd);
    }
    if (how == MHD_REQUEST_TERMINATED_COMPLETED_OK) {
        end_half_closed(x->connection->fd);
    }
    x->connection->exchange = NULL;
    x->connection->idle = true;
    x->connection->idle_since_ns = clock_now_ns();
    connection_set_deadline(x->connection, http_deadline(h->config.idle_timeout_ms));
    h->app.completed(h->app.arg, x);
    h->buffered -= x->accounted;
    buf_free(&x->body);
    buf_free(&x->headers);
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
    struct gate *g = arg;
    struct connection *c = connection_of(mhd);
    if (c) {
        c->spoke = true;
    }
    if (c && c->idle) {
        c->idle = false;
        connection_set_deadline(c, http_deadline(g->http->config.header_timeout_ms));
    }
    return NULL;
}

static void on_connection(void *arg, struct MHD_Connection *mhd, void **context,
                          enum MHD_ConnectionNotificationCode what) {
    struct gate *g = arg;
    struct http *h = g->http;
    g->changes++;
    if (what == MHD_CONNECTION_NOTIFY_CLOSED) {
        struct connection *c = *context;
        if (c) {
            g->n_connections--;
            if (c->greeted) {
                watch_remove(h->greetings, c->fd);
            }
            list_remove(&c->greeting);
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
    g->n_connections++;
    c->gate = g;
    c->mhd = mhd;
    list_init(&c->greeting);
    c->fd = MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
    connection_set_deadline(c, http_deadline(h->config.header_timeout_ms));
    int on = 1;
    unsigned user_timeout = (unsigned)h->config.write_timeout_ms;
    setsockopt(c->fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(c->fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &user_timeout, sizeof user_timeout);
    list_push_back(&h->connections, &c->node);
    *context = c;
    greeting_begin(c);
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

static void pump(struct gate *g) {
    MHD_UNSIGNED_LONG_LONG ms = 0;
    bool more;
    int turns = 0;
    size_t at_first = g->changes;
    g->dirty = false;
    do { /* one piece of a stream costs two turns: fill, then write */
        size_t before = g->changes;
        MHD_run(g->daemon);
        if (!g->http->closing) {
            greetings_park(g);
        }
        more = MHD_get_timeout(g->daemon, &ms) == MHD_YES;
        if (g->changes != before) { /* at a limit libmicrohttpd let go of the listening socket; it asks for no turn to
                                       take it up when a connection has left */
            more = true;
            ms = 0;
        }
    } while (more && ms == 0 && ++turns < 8);
    if (more) {
        loop_timer_set(g->timer, ms);
    } else {
        loop_timer_stop(g->timer);
    }
    if (g->readable && g->changes == at_first && g->n_connections == 0) {
        /* Only the listening socket can have been ready, and accept() fails: no descriptor is left. */
        g->paused = true;
        loop_poll_pause(g->poll, true);
        http_sweep_by(g->http, http_deadline(ACCEPT_AGAIN_MS));
    }
    g->readable = false;
}

static void on_timer(void *arg) {
    struct gate *g = arg;
    g->dirty = true;
}

static void on_readable(void *arg) {
    struct gate *g = arg;
    g->dirty = g->readable = true;
}

static void on_turn(void *arg) {
    struct http *h = arg;
    for (size_t i = 0; i < h->n_gates; i++) {
        if (h->gates[i].dirty && !h->gates[i].held) {
            pump(&h->gates[i]);
        }
    }
}

/* ---- opening and closing ------------------------------------------------------------------------------------- */

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

static int gate_open(struct gate *g, struct error *err) {
    const struct http_config *c = &g->http->config;
    bool secure = g->socket.tls;
    /* Backstop only: our deadlines are shorter. It bounds a plain answer that nobody reads. */
    unsigned timeout = (unsigned)((c->idle_timeout_ms + c->write_timeout_ms) / 1000 + 1);
    unsigned limit = (unsigned)(g->socket.door == HTTP_ADMIN ? HTTP_ADMIN_CONNECTIONS : c->max_connections);
    const struct MHD_OptionItem of_tls[] = {
        {MHD_OPTION_HTTPS_CERT_CALLBACK, 0, (void *)tls_retrieve},
        {MHD_OPTION_HTTPS_PRIORITIES, 0, secure ? (void *)(uintptr_t)tls_priorities(g->http->tls) : NULL},
        {MHD_OPTION_END, 0, NULL},
    };
    g->daemon = MHD_start_daemon(
        MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG | (secure ? (unsigned)MHD_USE_TLS : 0), 0, NULL, NULL,
        on_request, g, MHD_OPTION_EXTERNAL_LOGGER, on_log, g->http, MHD_OPTION_LISTEN_SOCKET, g->socket.fd,
        MHD_OPTION_NOTIFY_COMPLETED, on_completed, g, MHD_OPTION_NOTIFY_CONNECTION, on_connection, g,
        MHD_OPTION_URI_LOG_CALLBACK, on_request_line, g, MHD_OPTION_UNESCAPE_CALLBACK, on_unescape, NULL,
        MHD_OPTION_CONNECTION_LIMIT, limit, MHD_OPTION_CONNECTION_MEMORY_LIMIT, c->max_header_size + CONNECTION_EXTRA,
        MHD_OPTION_CONNECTION_TIMEOUT, timeout, MHD_OPTION_SIGPIPE_HANDLED_BY_APP, 1, MHD_OPTION_ARRAY,
        secure ? of_tls : &of_tls[2], MHD_OPTION_END);
    if (!g->daemon) {
        return error_set(err, ERROR_IO, "the HTTP library does not start");
    }
    /* Connections wait in the socket's queue for as long as nobody runs the daemon. */
    g->held = g->socket.inherited && g->socket.door == HTTP_PUBLIC;
    g->dirty = true;
    if (loop_timer_new(g->http->loop, on_timer, g, &g->timer, err)) {
        return -1;
    }
    int epoll_fd = MHD_get_daemon_info(g->daemon, MHD_DAEMON_INFO_EPOLL_FD)->epoll_fd;
    if (loop_poll_new(g->http->loop, epoll_fd, on_readable, g, &g->poll, err)) {
        return -1;
    }
    loop_poll_pause(g->poll, g->held);
    return 0;
}

/* The sockets are ours now, whatever comes. */
static int open_gates(struct http *h, struct listener *sockets, size_t n, struct error *err) {
    h->gates = calloc(n, sizeof *h->gates);
    for (size_t i = 0; i < n; i++) {
        if (h->gates) {
            h->gates[i] = (struct gate){.http = h, .socket = sockets[i]};
            list_init(&h->gates[i].greeting);
            h->n_gates = n;
        } else {
            listener_close(&sockets[i]);
        }
        sockets[i].fd = -1;
    }
    if (!h->gates) {
        return error_memory(err);
    }
    for (size_t i = 0; i < n; i++) {
        if (gate_open(&h->gates[i], err)) {
            return -1;
        }
    }
    return 0;
}

int http_open(struct loop *loop, const struct http_config *config, const struct http_app *app,
              struct listener *sockets, size_t n_sockets, struct tls *tls, struct http **out, struct error *err) {
    struct http *h = calloc(1, sizeof *h);
    if (!h) {
        return error_memory(err);
    }
    h->loop = loop;
    h->config = *config;
    h->app = *app;
    h->tls = tls;
    list_init(&h->connections);
    if (loop_timer_new(loop, http_sweep, h, &h->sweep, err) || watch_open(loop, exchange_hung_up, &h->hangups, err) ||
        (tls && watch_open(loop, greeting_go_on, &h->greetings, err)) ||
        make_no_memory(h, err) || open_gates(h, sockets, n_sockets, err)) {
        h->tls = NULL; /* the caller's still */
        http_close(h);
        return -1;
    }
    loop_on_turn(loop, on_turn, h);
    *out = h;
    return 0;
}

void http_start_accepting(struct http *h) {
    for (size_t i = 0; i < h->n_gates; i++) {
        if (h->gates[i].held) {
            h->gates[i].held = false;
            h->gates[i].dirty = true;
            loop_poll_pause(h->gates[i].poll, false);
        }
    }
}

void http_set_limits(struct http *h, const struct http_config *c) {
    h->config.max_body_size = c->max_body_size;
    h->config.max_buffered = c->max_buffered;
    h->config.header_timeout_ms = c->header_timeout_ms;
    h->config.body_timeout_ms = c->body_timeout_ms;
}

int http_reload_certificate(struct http *h, const char *certificate, const char *key, struct error *err) {
    if (!h->tls) {
        return error_set_param(err, ERROR_MODEL, "tls_certificate",
                               "tls_certificate was not set at the start: TLS begins with a restart");
    }
    return tls_reload(h->tls, certificate, key, err);
}

time_t http_certificate_end(const struct http *h) {
    return h->tls ? tls_not_after(h->tls) : 0;
}

const char *http_library_version(void) {
    return MHD_get_version();
}

static void stop_listening(struct gate *g) {
    if (g->daemon && g->socket.fd >= 0) {
        MHD_quiesce_daemon(g->daemon); /* or it would close the socket, too */
    }
    listener_close(&g->socket);
}

void http_announce_close(struct http *h) {
    h->draining = true;
    for (size_t i = 0; i < h->n_gates; i++) {
        if (h->gates[i].socket.inherited && h->gates[i].socket.door == HTTP_PUBLIC) {
            stop_listening(&h->gates[i]);
        }
    }
}

void http_stop_listening(struct http *h) {
    for (size_t i = 0; i < h->n_gates; i++) {
        stop_listening(&h->gates[i]);
    }
}

static bool unread(int fd) {
    int n = 0;
    return ioctl(fd, FIONREAD, &n) == 0 && n > 0;
}

bool http_owes_answers(const struct http *h, uint64_t recent_ms) {
    uint64_t now = clock_now_ns(), recent_ns = recent_ms * 1000000u;
    LIST_FOR_EACH(node, &h->connections) {
        const struct connection *c = LIST_ENTRY(node, struct connection, node);
        if (c->gate->socket.door == HTTP_PUBLIC && !c->shut &&
            (c->exchange || !c->idle || now - c->idle_since_ns < recent_ns || unread(c->fd))) {
            return true;
        }
    }
    return false;
}

void http_flush(struct http *h) {
    for (size_t i = 0; i < h->n_gates; i++) {
        for (int k = 0; k < 4 && h->gates[i].daemon && !h->gates[i].held; k++) {
            pump(&h->gates[i]);
        }
    }
}

void http_close(struct http *h) {
    if (!h) {
        return;
    }
    http_stop_listening(h);
    h->closing = true;
    /* libmicrohttpd aborts on a daemon that has suspended connections. */
    LIST_FOR_EACH(node, &h->connections) {
        struct connection *c = LIST_ENTRY(node, struct connection, node);
        greeting_go_on(c);
        if (c->exchange) {
            exchange_wake(c->exchange);
        }
    }
    http_flush(h);
    loop_on_turn(h->loop, NULL, NULL);
    for (size_t i = 0; i < h->n_gates; i++) {
        loop_poll_free(h->gates[i].poll);
        if (h->gates[i].daemon) {
            MHD_stop_daemon(h->gates[i].daemon);
        }
        loop_timer_free(h->gates[i].timer);
    }
    if (h->no_memory) {
        MHD_destroy_response(h->no_memory);
    }
    tls_free(h->tls);
    watch_free(h->hangups);
    watch_free(h->greetings);
    loop_timer_free(h->sweep);
    free(h->gates);
    free(h);
}
