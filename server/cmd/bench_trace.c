#include "cmd/bench_trace.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* splitmix64 (Steele, Lea & Flood 2014): every seed is good */
uint64_t bench_draw(struct bench_random *r) {
    uint64_t z = r->state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

double bench_draw_unit(struct bench_random *r) {
    return (double)(bench_draw(r) >> 11) / 9007199254740992.0;
}

static bool read_number(const char *text, size_t len, size_t *out) {
    size_t value = 0;
    for (size_t i = 0; i < len; i++) {
        if (text[i] < '0' || text[i] > '9' || value > SIZE_MAX / 100) {
            return false;
        }
        value = value * 10 + (size_t)(text[i] - '0');
    }
    *out = value;
    return len > 0;
}

int bench_range(const char *name, const char *text, size_t least, size_t most, struct bench_range *out, struct error *err) {
    size_t first = strcspn(text, "-");
    struct bench_range range = {0};
    bool ok = read_number(text, first, &range.min);
    range.max = range.min;
    if (ok && text[first] == '-') {
        ok = read_number(text + first + 1, strlen(text + first + 1), &range.max);
    }
    if (!ok || range.min < least || range.max > most || range.min > range.max) {
        return error_set_param(err, ERROR_INVALID, name, "%s wants a number from %zu to %zu, or two such as 32-128", name, least, most);
    }
    *out = range;
    return 0;
}

size_t bench_draw_range(struct bench_random *r, struct bench_range range) {
    return range.min + (size_t)(bench_draw_unit(r) * (double)(range.max - range.min + 1));
}

double bench_draw_gap(struct bench_random *r, double rate) {
    return -log1p(-bench_draw_unit(r)) / rate;
}

/* No byte that could end a line of the request. */
static bool is_plain(const char *s, size_t len) {
    for (size_t i = 0; i < len; i++) {
        if (s[i] <= ' ' || s[i] == 127 || (unsigned char)s[i] > 127) {
            return false;
        }
    }
    return true;
}

int bench_url(const char *text, struct bench_url *out, struct error *err) {
    static const char scheme[] = "http://";
    if (strncmp(text, scheme, strlen(scheme)) != 0) {
        return error_set_param(err, ERROR_INVALID, "url", "the URL of a server begins with http:// (TLS is not spoken here)");
    }
    return bench_url_of(text, scheme, "80", out, err);
}

int bench_url_of(const char *text, const char *scheme, const char *default_port, struct bench_url *out, struct error *err) {
    struct bench_url url = {.port = ""};
    snprintf(url.port, sizeof url.port, "%s", default_port);
    const char *host = text + strlen(scheme), *end = host + strcspn(host, "/"), *colon = NULL;
    if (*host == '[') { /* an IPv6 address */
        const char *close = memchr(host, ']', (size_t)(end - host));
        colon = close && close + 1 < end && close[1] == ':' ? close + 1 : NULL;
        if (!close || (!colon && close + 1 != end)) {
            return error_set_param(err, ERROR_INVALID, "url", "the URL's address does not end");
        }
        host++;
        snprintf(url.host, sizeof url.host, "%.*s", (int)(close - host < 255 ? close - host : 255), host);
    } else {
        colon = memchr(host, ':', (size_t)(end - host));
        size_t len = (size_t)((colon ? colon : end) - host);
        snprintf(url.host, sizeof url.host, "%.*s", (int)(len < 255 ? len : 255), host);
    }
    size_t port, path_len = strlen(end);
    while (path_len > 0 && end[path_len - 1] == '/') {
        path_len--;
    }
    if (colon && (!read_number(colon + 1, (size_t)(end - colon - 1), &port) || port < 1 || port > 65535)) {
        return error_set_param(err, ERROR_INVALID, "url", "the URL's port is not a number from 1 to 65535");
    }
    if (!url.host[0] || !is_plain(text, strlen(text)) || path_len >= sizeof url.path || strlen(url.host) >= sizeof url.host - 1) {
        return error_set_param(err, ERROR_INVALID, "url", "the URL names no host, is too long, or has characters that it cannot");
    }
    if (colon) {
        snprintf(url.port, sizeof url.port, "%zu", port);
    }
    memcpy(url.path, end, path_len);
    *out = url;
    return 0;
}
