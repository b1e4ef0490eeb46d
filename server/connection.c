/* Connections as time sees them: every wait for a client has an end. */
#include "http_internal.h"

#include <sys/socket.h>

#define SWEEP_MS 1000 /* at least, from one sweep to the next */
#define HANGUP_GRACE_MS 200

uint64_t http_deadline(uint64_t ms) {
    return ms ? clock_now_ns() + ms * 1000000u : 0;
}

void http_sweep_by(struct http *h, uint64_t at) {
    if (at && (!h->sweep_ns || at < h->sweep_ns)) {
        uint64_t now = clock_now_ns();
        h->sweep_ns = at;
        loop_timer_set(h->sweep, at > now ? (at - now) / 1000000u + 1 : 1);
    }
}

void connection_set_deadline(struct connection *c, uint64_t at) {
    c->deadline_ns = at;
    http_sweep_by(c->gate->http, at);
}

void connection_shut(struct connection *c) {
    if (!c->shut) {
        c->shut = true;
        shutdown(c->fd, SHUT_RDWR);
    }
}

uint64_t exchange_stall_deadline(const struct exchange *x) {
    uint64_t limit = x->http->config.write_timeout_ms * 1000000u;
    return limit && x->stage == STREAMING && !x->parked ? x->last_taken_ns + limit : 0;
}

static void exchange_gone(struct exchange *x) {
    if (!x->gone) {
        exchange_cut(x);
        x->http->app.gone(x->http->app.arg, x);
    }
}

void exchange_hung_up(void *watched) {
    struct exchange *x = watched;
    if (x->body_done) {
        exchange_gone(x);
        return;
    }
    /* libmicrohttpd may have yet to read what came before the FIN; what is not whole then never will be */
    uint64_t soon = http_deadline(HANGUP_GRACE_MS);
    struct connection *c = x->connection;
    x->hung_up = true;
    connection_set_deadline(c, c->deadline_ns && c->deadline_ns < soon ? c->deadline_ns : soon);
}

static uint64_t earlier(uint64_t a, uint64_t b) {
    return !a || (b && b < a) ? b : a;
}

void http_sweep(void *arg) {
    struct http *h = arg;
    uint64_t now = clock_now_ns(), due = 0;
    for (size_t i = 0; i < h->n_gates; i++) {
        if (h->gates[i].paused) {
            h->gates[i].paused = false;
            loop_poll_pause(h->gates[i].poll, false);
        }
    }
    LIST_FOR_EACH_SAFE(node, next, &h->connections) {
        struct connection *c = LIST_ENTRY(node, struct connection, node);
        if (c->deadline_ns && now >= c->deadline_ns) {
            c->deadline_ns = 0;
            connection_shut(c); /* libmicrohttpd reads the end and closes */
            continue;
        }
        uint64_t stall = c->exchange && c->exchange->queued ? exchange_stall_deadline(c->exchange) : 0;
        if (stall && now >= stall) {
            exchange_gone(c->exchange);
        } else {
            due = earlier(due, earlier(c->deadline_ns, stall));
        }
    }
    h->sweep_ns = 0;
    if (due) {
        uint64_t soonest = now + SWEEP_MS * 1000000u;
        http_sweep_by(h, due > soonest ? due : soonest);
    }
}
