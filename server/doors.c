#include "doors.h"

#include "config.h"
#include "http.h"
#include "route.h"
#include "server_state.h"
#include "tls.h"

#include <inferd/log.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

struct sockets {
    struct listener *list; /* [n] */
    size_t n;
};

static void close_all(struct sockets *s) {
    for (size_t i = 0; i < s->n; i++) {
        listener_close(&s->list[i]);
    }
    free(s->list);
}

static bool has(const struct sockets *s, enum http_door door) {
    for (size_t i = 0; i < s->n; i++) {
        if (s->list[i].door == door) {
            return true;
        }
    }
    return false;
}

static int add(struct sockets *s, const struct listen_address *a, const struct listen_plan *plan, enum http_door door,
               struct error *err) {
    struct listener *grown = realloc(s->list, (s->n + 1) * sizeof *grown);
    if (!grown) {
        return error_memory(err);
    }
    s->list = grown;
    if (listener_open(a, plan->v6_only, plan->mode, &s->list[s->n], err)) {
        strcpy(err->param, door == HTTP_ADMIN ? "admin_listen" : a->at.any.sa_family == AF_UNIX ? "host" : "port");
        return -1;
    }
    s->list[s->n++].door = door;
    return 0;
}

/* Port 0 is one port, the same at each address. */
static void keep_port(const struct listener *bound, struct listen_address *next) {
    const struct sockaddr_in *from = (const void *)&bound->address.at; /* an IPv6 port lies at the same place */
    sa_family_t family = next->at.any.sa_family;
    if (bound->address.at.any.sa_family != AF_UNIX && (family == AF_INET || family == AF_INET6)) {
        ((struct sockaddr_in *)(void *)&next->at)->sin_port = from->sin_port;
    }
}

static int open_sockets(const struct config *c, struct sockets *s, struct error *err) {
    struct listen_plan plan;
    if (config_listen(c, &plan, err) || listeners_inherit(&s->list, &s->n, err)) {
        return -1;
    }
    bool public = !has(s, HTTP_PUBLIC), admin = plan.has_admin && !has(s, HTTP_ADMIN);
    for (size_t i = 0; public && i < plan.n_open; i++) {
        if (i > 0 && c->port == 0) {
            keep_port(&s->list[s->n - 1], &plan.open[i]);
        }
        if (add(s, &plan.open[i], &plan, HTTP_PUBLIC, err)) {
            return -1;
        }
    }
    return admin ? add(s, &plan.admin, &plan, HTTP_ADMIN, err) : 0;
}

/* The first that others can reach: the settings say nothing of sockets that were handed over. */
static void note_reach(struct server *s, const struct sockets *sockets) {
    for (size_t i = 0; i < sockets->n; i++) {
        if (!listen_address_is_local(&sockets->list[i].address)) {
            listen_address_print(&sockets->list[i].address, s->public_address);
            return;
        }
    }
}

int doors_check_keys(const struct server *s, const struct config *c, bool has_keys, struct error *err) {
    return s->public_address[0] && !has_keys && !c->insecure ? config_refuse_public(s->public_address, err) : 0;
}

static void tell(const struct server *s, const struct sockets *sockets) {
    for (size_t i = 0; i < sockets->n; i++) {
        const struct listener *l = &sockets->list[i];
        char name[LISTEN_NAME_MAX];
        listen_address_print(&l->address, name);
        bool local = l->address.at.any.sa_family == AF_UNIX;
        log_info("listening on %s%s%s%s", local ? "" : l->tls ? "https://" : "http://", name,
                 l->door == HTTP_ADMIN ? " for metrics and probes" : "",
                 !l->inherited ? "" : l->door == HTTP_ADMIN ? " (inherited)" : " (inherited: answers when the model is loaded)");
    }
    log_info("loading %s; libmicrohttpd %s", s->config->model, http_library_version());
}

/* Connections need descriptors: take what the hard limit gives. */
static void raise_descriptor_limit(size_t connections) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < connections + 64) {
        limit.rlim_cur = connections + 64 < limit.rlim_max ? connections + 64 : limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
        if (limit.rlim_cur < connections + 64) {
            log_warn("max_connections wants %zu descriptors, but the system allows this process %llu (ulimit -Hn)", connections,
                     (unsigned long long)limit.rlim_cur);
        }
    }
}

static uint64_t milliseconds(double seconds) {
    return (uint64_t)(seconds * 1000);
}

static struct http_config http_limits(const struct config *c) {
    return (struct http_config){
        .max_connections = c->max_connections,
        .max_body_size = c->max_body_size,
        .max_header_size = c->max_header_size,
        .max_buffered = c->max_body_size > ((size_t)64 << 20) ? 4 * c->max_body_size : (size_t)256 << 20,
        .header_timeout_ms = milliseconds(c->header_timeout),
        .body_timeout_ms = milliseconds(c->body_timeout),
        .idle_timeout_ms = milliseconds(c->idle_timeout),
        .write_timeout_ms = milliseconds(c->write_timeout),
    };
}

void doors_set_limits(struct server *s) {
    const struct http_config limits = http_limits(s->config);
    http_set_limits(s->http, &limits);
}

static int open_http(struct server *s, struct sockets *sockets, struct tls *tls, struct error *err) {
    const struct config *c = s->config;
    const struct http_config config = http_limits(c);
    struct http_app app;
    route_app(s, &app);
    size_t n_public = 0;
    for (size_t i = 0; i < sockets->n; i++) {
        sockets->list[i].tls = tls && sockets->list[i].address.at.any.sa_family != AF_UNIX;
        n_public += sockets->list[i].door == HTTP_PUBLIC;
    }
    s->has_admin_door = has(sockets, HTTP_ADMIN);
    raise_descriptor_limit(n_public * c->max_connections + (s->has_admin_door ? HTTP_ADMIN_CONNECTIONS : 0));
    tell(s, sockets);
    return http_open(s->loop, &config, &app, sockets->list, sockets->n, tls, &s->http, err);
}

void doors_tell_certificate(const struct server *s) {
    time_t end = http_certificate_end(s->http);
    struct tm day;
    char text[32];
    if (end <= 0 || !gmtime_r(&end, &day) || !strftime(text, sizeof text, "%F", &day)) {
        return;
    }
    if (end < time(NULL)) {
        log_warn("the TLS certificate has ended on %s: clients will refuse it", text);
    } else {
        log_info("the TLS certificate is good until %s", text);
    }
}

int doors_open(struct server *s, bool has_keys, struct error *err) {
    const struct config *c = s->config;
    struct sockets sockets = {0};
    struct tls *tls = NULL;
    int rc = open_sockets(c, &sockets, err);
    if (rc == 0) {
        note_reach(s, &sockets);
        rc = doors_check_keys(s, c, has_keys, err);
    }
    if (rc == 0 && c->tls_certificate[0]) {
        rc = tls_open(c->tls_certificate, c->tls_key, c->tls_min_version, &tls, err);
    }
    if (rc == 0) {
        rc = open_http(s, &sockets, tls, err);
        if (rc == 0) { /* they are its own now */
            free(sockets.list);
            doors_tell_certificate(s);
            return 0;
        }
    }
    tls_free(tls);
    close_all(&sockets);
    return -1;
}
