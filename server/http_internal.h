/* What the files of HTTP share: http.c (libmicrohttpd), connection.c (deadlines), exchange.c (the application's side). */
#ifndef INFERD_HTTP_INTERNAL_H
#define INFERD_HTTP_INTERNAL_H

#include "http.h"
#include "loop.h"

#include <inferd/clock.h>
#include <inferd/list.h>

struct MHD_Connection;
struct MHD_Daemon;
struct MHD_Response;
struct watch;

/* A listening socket and the libmicrohttpd daemon behind it: its own epoll set, its own connections. */
struct gate {
    struct http *http;
    struct listener socket;
    struct MHD_Daemon *daemon;
    struct loop_poll *poll;   /* the daemon's epoll descriptor */
    struct loop_timer *timer; /* its timeouts */
    size_t changes;           /* connections that came or went */
    size_t n_connections;
    struct list greeting; /* connections whose TLS handshake is tried in the next turn */
    bool dirty;    /* something was resumed or became readable: pump before sleeping */
    bool readable; /* ... by the epoll descriptor */
    bool paused;   /* which is not polled for a moment */
    bool held;     /* not before http_start_accepting */
};

struct http {
    struct loop *loop;
    struct http_config config;
    struct http_app app;
    struct tls *tls;
    struct MHD_Response *no_memory; /* made at the start, for when nothing can be made */
    struct gate *gates;             /* [n_gates] */
    size_t n_gates;
    struct loop_timer *sweep; /* ours, at the earliest deadline of all connections */
    uint64_t sweep_ns;        /* when it is due; 0 = never */
    struct watch *hangups;   /* of exchanges */
    struct watch *greetings; /* of connections in a TLS handshake; NULL without TLS */
    struct list connections;
    size_t buffered;    /* bytes of request bodies held */
    uint64_t warned_ns; /* that there is no descriptor left */
    bool draining, closing;
};

/* One connection: what its deadline is now. */
struct connection {
    struct list node;
    struct list greeting; /* in the gate's, or alone */
    struct gate *gate;
    struct MHD_Connection *mhd;
    struct exchange *exchange; /* the one in progress, or NULL */
    int fd;
    bool idle;            /* between two requests */
    bool spoke;           /* a request line has come: it is libmicrohttpd's and the exchanges' to suspend */
    bool greeted;         /* its TLS handshake was watched */
    bool parked;          /* in libmicrohttpd, until it can go on */
    bool shut;            /* shutdown() was called: libmicrohttpd will see the end of it */
    uint64_t deadline_ns; /* 0 = none */
    uint64_t idle_since_ns;
    char peer[64];        /* exchange_peer, once asked for */
};

enum stage { READING, THINKING, REPLYING, STREAMING };

/* What each piece of a stream touches stands first (exchange_prefetch). */
struct exchange {
    struct http *http;
    struct gate *gate;
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
    char id[129], unique[33], key_name[64];
    uint64_t arrived_ns;
    struct buf body;
    size_t accounted;  /* of body, in http->buffered */
    uint64_t received; /* body bytes, kept or not */
    void *app;

    int status;
    const char *type;
    struct buf headers; /* of the answer: name NUL value NUL, and again */
};

/* http.c */
void exchange_wake(struct exchange *x); /* resume it, if it is parked */
void exchange_cut(struct exchange *x);  /* it is gone; its connection ends, one that is blocked in a write too */

/* connection.c */
uint64_t http_deadline(uint64_t ms);                             /* from now; 0 ms: 0, none */
void http_sweep_by(struct http *h, uint64_t at);                 /* look at all connections no later than `at`; 0: no need */
void http_sweep(void *http);                                     /* the timer */
void connection_set_deadline(struct connection *c, uint64_t at); /* 0 = none */
void connection_shut(struct connection *c);
uint64_t exchange_stall_deadline(const struct exchange *x); /* when it will have read nothing for too long; 0: not its turn */
void exchange_hung_up(void *x);                             /* the hang-up set's callback */

#endif
