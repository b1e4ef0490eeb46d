#include "route.h"

#include "access_log.h"
#include "api_common.h"
#include "api_tokenize.h"
#include "config.h"
#include "cors.h"
#include "http.h"
#include "probe.h"
#include "request.h"
#include "server_state.h"

#include <inferd/clock.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

enum route_flags {
    ROUTE_OPEN = 1,   /* needs no key */
    ROUTE_LOADED = 2, /* 503 until the model is loaded */
    ROUTE_WORK = 4,   /* 503 while draining, too */
    ROUTE_PREFIX = 8, /* the path goes on */
    ROUTE_PROBE = 16, /* not in the HTTP metrics */
    ROUTE_ADMIN = 32, /* at the admin's listener, where there is one, and then not at the others */
    ROUTE_BOTH = 64,  /* at both */
};

/* A row answers one method; HEAD goes where GET goes. */
struct route {
    const char *path;
    enum http_method method;
    unsigned flags;
    unsigned scopes; /* a key needs one of these (enum key_scope); 0 without ROUTE_OPEN: nobody's */
    void (*answer)(struct server *s, struct exchange *x); /* at once */
    const struct api *api;                                /* or: a generating endpoint */
    int tokenize;                                         /* or: 1 there, -1 back */
};

static const struct route routes[] = {
    {"/v1/chat/completions", HTTP_POST, ROUTE_LOADED | ROUTE_WORK, KEY_INFER, .api = &api_chat},
    {"/v1/completions", HTTP_POST, ROUTE_LOADED | ROUTE_WORK, KEY_INFER, .api = &api_completions},
    {"/v1/models", HTTP_GET, ROUTE_LOADED, KEY_INFER, .answer = api_models},
    {"/v1/models/", HTTP_GET, ROUTE_LOADED | ROUTE_PREFIX, KEY_INFER, .answer = api_models},
    {"/tokenize", HTTP_POST, ROUTE_LOADED | ROUTE_WORK, KEY_INFER, .tokenize = 1},
    {"/detokenize", HTTP_POST, ROUTE_LOADED | ROUTE_WORK, KEY_INFER, .tokenize = -1},
    {"/livez", HTTP_GET, ROUTE_OPEN | ROUTE_PROBE | ROUTE_BOTH, 0, .answer = probe_live},
    {"/readyz", HTTP_GET, ROUTE_OPEN | ROUTE_PROBE | ROUTE_BOTH, 0, .answer = probe_ready},
    {"/health", HTTP_GET, ROUTE_OPEN | ROUTE_PROBE | ROUTE_BOTH, 0, .answer = probe_ready},
    {"/metrics", HTTP_GET, ROUTE_PROBE | ROUTE_ADMIN, KEY_METRICS | KEY_ADMIN, .answer = probe_metrics},
    {"/version", HTTP_GET, ROUTE_PROBE | ROUTE_BOTH, KEY_ADMIN, .answer = probe_version},
};
#define N_ROUTES (sizeof routes / sizeof routes[0])

static const char *method_name(enum http_method m) {
    return m == HTTP_POST ? "POST" : "GET";
}

static const struct route *find_route(const char *path) {
    for (size_t i = 0; i < N_ROUTES; i++) {
        size_t n = strlen(routes[i].path);
        if (routes[i].flags & ROUTE_PREFIX ? strncmp(path, routes[i].path, n) == 0 && path[n]
                                           : strcmp(path, routes[i].path) == 0) {
            return &routes[i];
        }
    }
    return NULL;
}

/* What a request asks for, if this is the door for it. */
static const struct route *route_of(const struct server *s, const struct exchange *x) {
    const struct route *r = find_route(exchange_path(x));
    bool admin = exchange_door(x) == HTTP_ADMIN;
    if (!r || (r->flags & ROUTE_BOTH) || (!admin && !s->has_admin_door)) {
        return r;
    }
    return admin == ((r->flags & ROUTE_ADMIN) != 0) ? r : NULL;
}

static bool allows(const struct route *r, enum http_method m) {
    return r->method == m || (r->method == HTTP_GET && m == HTTP_HEAD);
}

void route_register(struct server *s) {
    for (size_t i = 0; i < N_ROUTES; i++) {
        if (!(routes[i].flags & ROUTE_PROBE)) {
            metrics_endpoint(&s->metrics, routes[i].path, method_name(routes[i].method));
        }
    }
    metrics_endpoint(&s->metrics, "other", "other");
}

/* Probes and scrapes, which come every few seconds, are not counted: they would hide what clients get. */
static void count_answer(struct server *s, const struct exchange *x) {
    const struct route *r = route_of(s, x);
    const struct answer_facts facts = {
        .status = exchange_status(x),
        .request_bytes = exchange_received(x),
        .response_bytes = exchange_sent(x),
        .seconds = (double)(clock_now_ns() - exchange_arrived_ns(x)) / 1e9,
    };
    bool known = r && allows(r, exchange_method(x));
    if (facts.status && !(known && (r->flags & ROUTE_PROBE))) {
        metrics_count_answer(&s->metrics,
                             known ? metrics_endpoint(&s->metrics, r->path, method_name(r->method))
                                   : metrics_endpoint(&s->metrics, "other", "other"),
                             &facts);
    }
}

/* ---- what is wrong before the body is read ------------------------------------------------------------------- */

static const char invalid[] = "invalid_request_error";

static bool refuse(struct api_error *e, int status, const char *type, const char *code, const char *message) {
    *e = (struct api_error){status, type, code, "", message, 0};
    return true;
}

/* application/json, with or without parameters */
static bool is_json(const char *type) {
    static const char json[] = "application/json";
    if (!type || strncasecmp(type, json, sizeof json - 1) != 0) {
        return false;
    }
    type += sizeof json - 1;
    return *type == '\0' || *type == ';' || *type == ' ' || *type == '\t';
}

static bool over_limit(const struct exchange *x, struct api_error *e) {
    switch (exchange_refused(x)) {
    case HTTP_OK:
        return false;
    case HTTP_BAD_FRAMING:
        return refuse(e, 400, invalid, NULL,
                      "the length of the body must be said once: by Content-Length or as chunked");
    case HTTP_BODY_TOO_LARGE:
        return refuse(e, 413, invalid, NULL, "the body is larger than this server takes (max_body_size)");
    case HTTP_URL_TOO_LONG:
        return refuse(e, 414, invalid, NULL, "the URL is too long");
    case HTTP_HEADERS_TOO_LARGE:
        return refuse(e, 431, invalid, NULL, "the headers are too many or too large");
    case HTTP_OVERLOADED:
        break;
    }
    return refuse(e, 429, "rate_limit_error", "queue_full",
                  "the server holds too many request bodies; try again later");
}

static bool unavailable(const struct server *s, const struct route *r, struct api_error *e) {
    static const char type[] = "unavailable_error";
    if ((r->flags & ROUTE_LOADED) && s->phase == SERVER_LOADING) {
        return refuse(e, 503, type, NULL, "the model is being loaded");
    }
    if ((r->flags & ROUTE_WORK) && s->phase == SERVER_DRAINING) {
        return refuse(e, 503, type, NULL, "the server is shutting down");
    }
    return false;
}

/* The limits of a key are on work. Last of all, since a request that they let in is counted. */
static bool over_key_limit(struct key *key, const struct route *r, struct api_error *e) {
    enum key_rejection why;
    double seconds;
    if (!(r->flags & ROUTE_WORK) || !key_over_limit(key, r->api, clock_now_ns(), &why, &seconds)) {
        return false;
    }
    *e = api_limit_error(why, seconds);
    return true;
}

/* Deny by default: an unknown path, too, tells nothing without a key. *key: whose it is, if anybody's. */
static bool refused(struct server *s, struct exchange *x, const struct route *r, struct key **key, struct api_error *e) {
    enum http_refusal limit = exchange_refused(x);
    if ((limit == HTTP_BAD_FRAMING || limit == HTTP_URL_TOO_LONG || limit == HTTP_HEADERS_TOO_LARGE) &&
        over_limit(x, e)) {
        return true;
    }
    bool open = (r && (r->flags & ROUTE_OPEN)) || s->keys.n == 0;
    if (!open && !(*key = key_ring_find(&s->keys, exchange_header(x, "Authorization")))) {
        return refuse(e, 401, "authentication_error", "invalid_api_key",
                      "a valid API key is needed (Authorization: Bearer KEY)");
    }
    if (!r) {
        return refuse(e, 404, "not_found_error", NULL, "there is nothing at this path");
    }
    if (!open && !((*key)->spec.scopes & r->scopes)) {
        (*key)->rejected[KEY_REJECTED_SCOPE]++;
        return refuse(e, 403, "permission_error", NULL, "this API key is not for this path (its scopes)");
    }
    if (!allows(r, exchange_method(x))) {
        exchange_add_header(x, "Allow", r->method == HTTP_POST ? "POST" : "GET, HEAD");
        return refuse(e, 405, invalid, NULL, "this path does not have this method");
    }
    if (over_limit(x, e) || unavailable(s, r, e)) {
        return true;
    }
    if (r->method == HTTP_POST && !is_json(exchange_header(x, "Content-Type"))) {
        return refuse(e, 400, invalid, NULL, "Content-Type must be application/json");
    }
    return over_key_limit(*key, r, e);
}

/* ---- the callbacks ------------------------------------------------------------------------------------------- */

static void on_headers(void *arg, struct exchange *x) {
    struct server *s = arg;
    if (exchange_door(x) == HTTP_PUBLIC && cors_begin(s->config->cors_origins, x)) {
        return;
    }
    const struct route *r = route_of(s, x);
    struct key *key = NULL;
    struct api_error e;
    bool bad = refused(s, x, r, &key, &e);
    exchange_set_key_name(x, key_name(key));
    struct request *request = NULL;
    if (r && r->api && allows(r, exchange_method(x))) { /* counted, whatever comes of it */
        request = request_open(s, x, r->api, key);
        if (!request && !bad) {
            bad = refuse(&e, 500, "server_error", NULL, "out of memory");
        }
    }
    if (bad && request) {
        request_reject(request, &e);
    } else if (request) {
        request_enter(request);
    } else {
        if (r && (r->flags & ROUTE_WORK)) {
            key_add_headers(key, x, clock_now_ns());
        }
        if (bad) {
            api_reply_error(s, x, &e);
        }
    }
}

static void on_body(void *arg, struct exchange *x) {
    struct server *s = arg;
    const struct route *r = route_of(s, x);
    struct request *request = r->api ? exchange_app(x) : NULL;
    struct api_error e;
    if (over_limit(x, &e) || unavailable(s, r, &e)) { /* of a chunked body; or the drain began meanwhile */
        if (request) {
            request_reject(request, &e);
        } else {
            api_reply_error(s, x, &e);
        }
    } else if (request) {
        request_start(request);
    } else if (r->tokenize) {
        api_tokenize(s, x, r->tokenize < 0);
    } else {
        r->answer(s, x);
    }
}

static bool is_generating(const struct server *s, const struct exchange *x) {
    const struct route *r = route_of(s, x);
    return r && r->api;
}

static void on_gone(void *arg, struct exchange *x) {
    if (exchange_app(x) && is_generating(arg, x)) {
        request_gone(exchange_app(x));
    }
}

/* The line of a request to the model is written when the engine has ended it, too. */
static void log_answer(struct server *s, const struct exchange *x) {
    const struct route *r = route_of(s, x);
    bool known = r && (allows(r, exchange_method(x)) || exchange_method(x) == HTTP_OPTIONS);
    enum log_level level = known && (r->flags & ROUTE_PROBE) ? LOG_LEVEL_DEBUG : LOG_LEVEL_INFO;
    struct request *request = r && r->api ? exchange_app(x) : NULL;
    if (!access_wanted(level) && !(request && s->content_log)) {
        return;
    }
    struct access a;
    access_take(x, known ? r->path : "other", &a);
    if (request) {
        request->access = a;
    } else {
        access_write(level, &a);
    }
}

void route_log_unfinished(struct server *s) {
    LIST_FOR_EACH(node, &s->requests) {
        struct request *r = LIST_ENTRY(node, struct request, node);
        if (r->exchange) {
            log_answer(s, r->exchange);
        }
        if (r->access.arrived_ns) {
            access_write_request(r);
        }
    }
}

static void on_completed(void *arg, struct exchange *x) {
    count_answer(arg, x);
    log_answer(arg, x);
    if (!exchange_app(x)) {
        return;
    }
    if (is_generating(arg, x)) {
        request_completed(exchange_app(x));
    } else {
        api_tokenize_completed(exchange_app(x));
    }
}

void route_app(struct server *s, struct http_app *out) {
    *out = (struct http_app){
        .arg = s,
        .headers = on_headers,
        .body = on_body,
        .gone = on_gone,
        .completed = on_completed,
    };
}
