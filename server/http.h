/*
 * HTTP, and nothing of what is said over it: libmicrohttpd in external epoll mode inside the loop.
 *
 * An exchange is one HTTP request and its answer. The application hears of it four times at most: `headers` (it may
 * answer at once), `body` (complete), `gone` (the client left, or took too long to read: stop working), `completed`
 * (the exchange is freed on return; nothing may touch it afterwards). It answers when it likes, from the loop thread:
 * once with exchange_reply, or with exchange_stream and then pieces. An exchange that has no answer yet is suspended
 * and costs nothing. Everything is called on the loop thread.
 */
#ifndef INFERD_HTTP_H
#define INFERD_HTTP_H

#include "listener.h"

#include <inferd/buf.h>
#include <inferd/error.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

struct http;
struct exchange;
struct loop;
struct tls;

enum http_method { HTTP_GET, HTTP_HEAD, HTTP_POST, HTTP_OPTIONS, HTTP_OTHER };

/* What exchange_refused says of a request that broke a limit before the application saw it. */
enum http_refusal {
    HTTP_OK,
    HTTP_BAD_FRAMING,
    HTTP_BODY_TOO_LARGE,
    HTTP_URL_TOO_LONG,
    HTTP_HEADERS_TOO_LARGE,
    HTTP_OVERLOADED
};

struct http_app {
    void *arg;
    void (*headers)(void *arg, struct exchange *x);
    void (*body)(void *arg, struct exchange *x);
    void (*gone)(void *arg, struct exchange *x);
    void (*completed)(void *arg, struct exchange *x);
};

struct http_config {
    size_t max_connections; /* of each public listener; the admin's has HTTP_ADMIN_CONNECTIONS of its own */
    size_t max_body_size;
    size_t max_header_size; /* request line and headers; ours (JSON, 431) fires before libmicrohttpd's own page */
    size_t max_buffered;    /* bytes of all request bodies held at once */
    uint64_t header_timeout_ms, body_timeout_ms, idle_timeout_ms, write_timeout_ms; /* 0 = none */
};

#define HTTP_ADMIN_CONNECTIONS 64
#define HTTP_MAX_HEADERS 100
#define HTTP_MAX_URL 8192
#define HTTP_STREAM_MAX ((size_t)1 << 20) /* bytes that may wait for a slow reader before it is dropped */

/*
 * Take connections from the sockets from the next turn on; from inherited ones of the public door not before
 * http_start_accepting. Sockets and tls (NULL without) belong to it from now on; on failure the sockets are closed and
 * tls is still the caller's.
 */
int http_open(struct loop *loop, const struct http_config *config, const struct http_app *app,
              struct listener *sockets, size_t n_sockets, struct tls *tls, struct http **out, struct error *err);
const char *http_library_version(void);
/* Other max_body_size, max_buffered, header and body timeouts, for requests that begin from now on; the rest of *c stays. */
void http_set_limits(struct http *h, const struct http_config *c);
/* The model is loaded: take what waits at the inherited sockets. */
void http_start_accepting(struct http *h);
/*
 * Read certificate chain and key (PEM files) again and use them for every handshake from now on; connections go on as
 * they are. On failure (ERROR_MODEL; err->param = the setting) the pair in use stays.
 */
int http_reload_certificate(struct http *h, const char *certificate, const char *key, struct error *err);
time_t http_certificate_end(const struct http *h); /* when the one in use ends; 0: there is no TLS */

/* From now on every answer closes its connection, and says so. Inherited sockets of the public door are let go: what
 * waits there is for the next process. */
void http_announce_close(struct http *h);
/* Close all listening sockets; connections go on. */
void http_stop_listening(struct http *h);
/* Is a client of the public door within a request, before its first, or so shortly after one that the next may be on its
 * way? To end now might be a reset to it. */
bool http_owes_answers(const struct http *h, uint64_t recent_ms);
/* End every exchange (unsent bytes are lost; `completed` is called for each) and free. NULL is fine. */
void http_close(struct http *h);
/* Try to write what waits, without waiting for anybody. For a last word before the process ends. */
void http_flush(struct http *h);

enum http_door exchange_door(const struct exchange *x);
const char *exchange_peer(const struct exchange *x); /* "ADDRESS:PORT", "[ADDRESS]:PORT", "unix"; lives as long as x */
enum http_method exchange_method(const struct exchange *x);
const char *exchange_path(const struct exchange *x);                     /* unescaped, without the query */
const char *exchange_header(const struct exchange *x, const char *name); /* NULL if absent */
const char *exchange_id(const struct exchange *x);        /* X-Request-Id: the client's if fit, else ours */
const char *exchange_unique(const struct exchange *x);    /* 32 random hex digits of ours */
void exchange_set_id(struct exchange *x, const char *id); /* ignored unless exchange_id_valid */
bool exchange_id_valid(const char *id, size_t len);       /* 1..128 printable ASCII characters */
/* Whose request it is, for the log: "" until it is said. Copied, and cut at 63 bytes. */
void exchange_set_key_name(struct exchange *x, const char *name);
const char *exchange_key_name(const struct exchange *x);
uint64_t exchange_arrived_ns(const struct exchange *x);   /* clock_now_ns when the headers were in */
enum http_refusal exchange_refused(const struct exchange *x);
/* Moves it: the caller frees, and then says so with http_body_freed, exchange or not; until then it counts as held. */
struct buf exchange_take_body(struct exchange *x);
void http_body_freed(struct http *h, size_t len);
bool exchange_answered(const struct exchange *x); /* reply or stream was called */
int exchange_status(const struct exchange *x);    /* of the answer; 0 = none */
void *exchange_app(const struct exchange *x);
void exchange_set_app(struct exchange *x, void *app);

/* Before the answer. Both are copied. */
void exchange_add_header(struct exchange *x, const char *name, const char *value);

/* Answer whole. `type` is static, or NULL for an answer without a body; *body is taken (left empty), a failed buffer becomes a bare 500. */
void exchange_reply(struct exchange *x, int status, const char *type, struct buf *body);

/* Answer in pieces: 200 and `type`; chunked (HTTP/1.1) or until close (1.0). */
void exchange_stream(struct exchange *x, const char *type);
/* Queue bytes, all or nothing. */
enum exchange_queued {
    EXCHANGE_QUEUED,
    EXCHANGE_GONE,     /* the client has left or is too slow (HTTP_STREAM_MAX): it is dropped, and `gone` is not called */
    EXCHANGE_NO_MEMORY /* the stream is still open */
};
enum exchange_queued exchange_write(struct exchange *x, const char *bytes, size_t len);
/* A piece of about len bytes will be written soon: ask memory for what it touches, first the exchange itself, then, once
 * that is there, what it points to. */
void exchange_prefetch(const struct exchange *x);
void exchange_prefetch_buffer(const struct exchange *x, size_t len);
/* There is no memory to say how it ends: cut the connection, so that the client sees that the answer is not whole, or,
 * where nothing was sent yet, answer 500. `gone` is not called. */
void exchange_drop(struct exchange *x);
void exchange_end(struct exchange *x);
uint64_t exchange_received(const struct exchange *x); /* bytes of the request's body, kept or not */
uint64_t exchange_sent(const struct exchange *x);     /* bytes of the answer's body that were handed over for sending */
size_t exchange_unsent(const struct exchange *x);

#endif
