#include "cmd/answer.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

void answer_begin(struct answer *a) {
    *a = (struct answer){.line = a->line, .line_cap = a->line_cap};
}

void answer_free(struct answer *a) {
    free(a->line);
    *a = (struct answer){0};
}

static bool keep(struct answer *a, const char *bytes, size_t len) {
    if (a->line_len + len > a->line_cap) {
        size_t cap = a->line_cap ? a->line_cap : 256;
        while (cap < a->line_len + len) {
            cap *= 2;
        }
        char *line = cap <= ANSWER_MAX_LINE ? realloc(a->line, cap) : NULL;
        if (!line) {
            a->state = ANSWER_BROKEN;
            return false;
        }
        a->line = line;
        a->line_cap = cap;
    }
    memcpy(a->line + a->line_len, bytes, len);
    a->line_len += len;
    return true;
}

/*
 * The next whole line of bytes[*at..len), without its end, together with what was kept of it. False: it goes on, and
 * what there is was kept.
 */
static bool next_line(struct answer *a, const char *bytes, size_t len, size_t *at, const char **line, size_t *n) {
    const char *begin = bytes + *at, *end = memchr(begin, '\n', len - *at);
    if (!end) {
        keep(a, begin, len - *at);
        *at = len;
        return false;
    }
    *at += (size_t)(end - begin) + 1;
    *line = begin;
    *n = (size_t)(end - begin);
    if (a->line_len > 0) {
        if (!keep(a, begin, *n)) {
            return false;
        }
        *line = a->line;
        *n = a->line_len;
        a->line_len = 0;
    }
    if (*n > 0 && (*line)[*n - 1] == '\r') {
        --*n;
    }
    return true;
}

static bool header_is(const char *line, size_t n, const char *name, const char **value, size_t *value_len) {
    size_t len = strlen(name);
    if (n <= len || strncasecmp(line, name, len) != 0 || line[len] != ':') {
        return false;
    }
    *value = line + len + 1;
    *value_len = n - len - 1;
    while (*value_len > 0 && **value == ' ') {
        ++*value;
        --*value_len;
    }
    return true;
}

/* Digits alone, bounded; a second length must be the same. */
static void on_length(struct answer *a, const char *v, size_t len) {
    uint64_t length = 0;
    while (len > 0 && (v[len - 1] == ' ' || v[len - 1] == '\t')) {
        len--;
    }
    bool ok = len > 0;
    for (size_t i = 0; i < len && ok; i++) {
        ok = v[i] >= '0' && v[i] <= '9' && length <= ANSWER_MAX_LENGTH;
        length = length * 10 + (uint64_t)(v[i] - '0');
    }
    if (!ok || length > ANSWER_MAX_LENGTH || (a->has_length && length != a->left)) {
        a->state = ANSWER_BROKEN;
        return;
    }
    a->has_length = true;
    a->left = length;
}

/* The empty line behind the headers. */
static void on_head_end(struct answer *a) {
    if (a->status < 200) { /* an interim answer: the real one follows */
        size_t bytes = a->head_bytes;
        answer_begin(a);
        a->head_bytes = bytes;
    } else if (a->status == 204 || a->status == 304) {
        a->state = ANSWER_DONE;
    } else if (a->chunked) { /* whatever length was told (RFC 9112, 6.3) */
        a->left = 0;
        a->head_bytes = 0;
        a->state = ANSWER_SIZE;
    } else if (a->has_length) {
        a->state = a->left ? ANSWER_DATA : ANSWER_DONE;
    } else {
        a->until_close = a->closes = true;
        a->state = ANSWER_DATA;
    }
}

static void on_header(struct answer *a, const char *line, size_t n) {
    const char *v;
    size_t len;
    if (n == 0) {
        on_head_end(a);
    } else if (header_is(line, n, "Content-Length", &v, &len)) {
        on_length(a, v, len);
    } else if (header_is(line, n, "Transfer-Encoding", &v, &len)) {
        a->chunked = len >= 7 && strncasecmp(v + len - 7, "chunked", 7) == 0;
        a->state = a->chunked ? a->state : ANSWER_BROKEN;
    } else if (header_is(line, n, "Content-Type", &v, &len)) {
        a->event_stream = len >= 17 && strncasecmp(v, "text/event-stream", 17) == 0;
    } else if (header_is(line, n, "Connection", &v, &len)) {
        a->closes = len == 5 && strncasecmp(v, "close", 5) == 0;
    }
}

/* Bytes of the body: each line that begins with "data:" is an event, a space behind it not being part of it. */
static void on_data(struct answer *a, const char *bytes, size_t len, answer_event *event, void *arg) {
    const char *line;
    size_t n, at = 0;
    while (a->event_stream && at < len && next_line(a, bytes, len, &at, &line, &n)) {
        if (n > 5 && memcmp(line, "data:", 5) == 0) {
            size_t skip = line[5] == ' ' ? 6 : 5;
            event(arg, line + skip, n - skip);
        }
    }
}

/*
 * The line with a chunk's size, or a part of it, digit by digit into a->left: a->line may hold an unfinished line of
 * the body. How many bytes were taken.
 */
static size_t size_line(struct answer *a, const char *bytes, size_t len) {
    const char *end = memchr(bytes, '\n', len);
    size_t n = end ? (size_t)(end - bytes) : len;
    for (size_t i = 0; i < n; i++) {
        char c = bytes[i];
        int digit = c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
        if (++a->head_bytes > ANSWER_MAX_HEAD) {
            a->state = ANSWER_BROKEN;
            return n;
        }
        if (c == '\r' || a->extension || (a->digits && (c == ';' || c == ' ' || c == '\t'))) {
            a->extension = a->extension || c != '\r';
            continue;
        }
        if (digit < 0 || a->left >> 32) {
            a->state = ANSWER_BROKEN;
            return n;
        }
        a->digits = true;
        a->left = a->left * 16 + (uint64_t)digit;
    }
    if (end) {
        a->state = !a->digits ? ANSWER_BROKEN : a->left ? ANSWER_DATA : ANSWER_TRAILER;
        a->digits = a->extension = false;
        a->head_bytes = 0;
        if (a->state == ANSWER_TRAILER) {
            a->line_len = 0; /* an unfinished line of the body: no event */
        }
    }
    return end ? n + 1 : n;
}

size_t answer_feed(struct answer *a, const char *bytes, size_t len, answer_event *event, void *arg) {
    size_t at = 0;
    const char *line;
    size_t n;
    while (at < len && a->state != ANSWER_DONE && a->state != ANSWER_BROKEN) {
        switch (a->state) {
        case ANSWER_STATUS:
            if (a->line_len > ANSWER_MAX_HEAD) {
                a->state = ANSWER_BROKEN;
            } else if (next_line(a, bytes, len, &at, &line, &n)) {
                bool fit = n >= 12 && memcmp(line, "HTTP/1.", 7) == 0 && line[8] == ' ' && line[9] >= '1' && line[9] <= '5' &&
                           line[10] >= '0' && line[10] <= '9' && line[11] >= '0' && line[11] <= '9' && (n == 12 || line[12] == ' ');
                a->status = fit ? (line[9] - '0') * 100 + (line[10] - '0') * 10 + line[11] - '0' : 0;
                a->state = fit ? ANSWER_HEADER : ANSWER_BROKEN;
            }
            break;
        case ANSWER_HEADER: {
            size_t before = at;
            bool whole = next_line(a, bytes, len, &at, &line, &n);
            a->head_bytes += at - before;
            if (a->head_bytes > ANSWER_MAX_HEAD) {
                a->state = ANSWER_BROKEN;
            } else if (whole) {
                on_header(a, line, n);
            }
            break;
        }
        case ANSWER_SIZE:
            at += size_line(a, bytes + at, len - at);
            break;
        case ANSWER_DATA: {
            size_t take = a->until_close || len - at < a->left ? len - at : (size_t)a->left;
            on_data(a, bytes + at, take, event, arg);
            at += take;
            a->left -= a->until_close ? 0 : take;
            if (a->left == 0 && a->state == ANSWER_DATA && !a->until_close) {
                a->state = a->chunked ? ANSWER_DATA_END : ANSWER_DONE;
            }
            break;
        }
        case ANSWER_DATA_END: /* CR LF */
            if (bytes[at] != '\r' && bytes[at] != '\n') {
                a->state = ANSWER_BROKEN;
            } else if (bytes[at] == '\n') {
                a->state = ANSWER_SIZE;
            }
            at++;
            break;
        case ANSWER_TRAILER: {
            size_t before = at;
            bool whole = next_line(a, bytes, len, &at, &line, &n);
            a->head_bytes += at - before;
            if (a->head_bytes > ANSWER_MAX_HEAD) {
                a->state = ANSWER_BROKEN;
            } else if (whole && n == 0) {
                a->state = ANSWER_DONE;
            }
            break;
        }
        case ANSWER_DONE:
        case ANSWER_BROKEN:
            break;
        }
    }
    return at;
}

void answer_end(struct answer *a) {
    if (a->state != ANSWER_DONE) {
        a->state = a->until_close && a->state == ANSWER_DATA ? ANSWER_DONE : ANSWER_BROKEN;
    }
}
