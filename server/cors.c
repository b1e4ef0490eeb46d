#include "cors.h"

#include "http.h"

#include <string.h>
#include <strings.h>

#define MAX_AGE "600" /* s that a browser may keep the answer to a preflight */
#define ASKED_MAX 1024

static const char parting[] = ", \t";

/* scheme://host[:port], nothing behind it: what a browser writes into Origin. */
static bool is_origin(const char *text, size_t len) {
    const char *colon = memchr(text, ':', len);
    size_t scheme = colon ? (size_t)(colon - text) : 0;
    if (scheme == 0 || len < scheme + 4 || memcmp(colon, "://", 3) != 0) {
        return false;
    }
    for (size_t i = 0; i < len; i++) {
        bool in_host = i >= scheme + 3;
        if (text[i] <= ' ' || text[i] > '~' || strchr("\"'<>\\*", text[i]) || (in_host && strchr("/?#@", text[i]))) {
            return false;
        }
    }
    return true;
}

int cors_check(const char *origins, struct error *err) {
    if (strcmp(origins, "*") == 0) {
        return 0;
    }
    for (const char *p = origins + strspn(origins, parting); *p; p += strspn(p, parting)) {
        size_t len = strcspn(p, parting);
        if (!is_origin(p, len)) {
            return error_set(err, ERROR_MODEL, "it must be * alone or origins as https://chat.example.org:8443, not \"%.*s\"",
                             (int)(len < 60 ? len : 60), p);
        }
        p += len;
    }
    return 0;
}

bool cors_allows(const char *origins, const char *origin) {
    if (strcmp(origins, "*") == 0) {
        return true;
    }
    size_t wanted = strlen(origin);
    for (const char *p = origins + strspn(origins, parting); *p; p += strspn(p, parting)) {
        size_t len = strcspn(p, parting);
        if (len == wanted && strncasecmp(p, origin, len) == 0) {
            return true;
        }
        p += len;
    }
    return false;
}

/* A list of header names, fit to be said again. */
static bool are_names(const char *list) {
    size_t len = strlen(list);
    for (size_t i = 0; i < len; i++) {
        bool letter = (list[i] >= 'a' && list[i] <= 'z') || (list[i] >= 'A' && list[i] <= 'Z') || (list[i] >= '0' && list[i] <= '9');
        if (!letter && !strchr("-_, ", list[i])) {
            return false;
        }
    }
    return len > 0 && len <= ASKED_MAX;
}

static void answer_preflight(struct exchange *x) {
    const char *asked = exchange_header(x, "Access-Control-Request-Headers");
    struct buf none = BUF_INIT;
    exchange_add_header(x, "Access-Control-Allow-Methods", "GET, HEAD, POST");
    exchange_add_header(x, "Access-Control-Allow-Headers",
                        asked && are_names(asked) ? asked : "Authorization, Content-Type, X-Request-Id");
    exchange_add_header(x, "Access-Control-Max-Age", MAX_AGE);
    exchange_reply(x, 204, NULL, &none);
}

bool cors_begin(const char *origins, struct exchange *x) {
    if (!origins[0]) {
        return false;
    }
    const char *origin = exchange_header(x, "Origin");
    bool any = strcmp(origins, "*") == 0, allowed = origin && cors_allows(origins, origin);
    if (!any) { /* whether allowed or not: a cache must not give one page's answer to another */
        exchange_add_header(x, "Vary", "Origin");
    }
    if (!allowed) {
        return false;
    }
    exchange_add_header(x, "Access-Control-Allow-Origin", any ? "*" : origin);
    if (exchange_method(x) == HTTP_OPTIONS && exchange_header(x, "Access-Control-Request-Method")) {
        answer_preflight(x);
        return true;
    }
    exchange_add_header(x, "Access-Control-Expose-Headers",
                        "X-Request-Id, Retry-After, x-ratelimit-limit-requests, x-ratelimit-limit-tokens, "
                        "x-ratelimit-remaining-requests, x-ratelimit-remaining-tokens, x-ratelimit-reset-requests, "
                        "x-ratelimit-reset-tokens");
    return false;
}
