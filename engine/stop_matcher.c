#include "stop_matcher.h"

#include <stdlib.h>
#include <string.h>

static void fill_borders(struct stop_pattern *p) {
    p->border[0] = 0;
    for (size_t i = 1; i < p->len; i++) {
        size_t k = p->border[i - 1];
        while (k > 0 && p->bytes[k] != p->bytes[i]) {
            k = p->border[k - 1];
        }
        p->border[i] = (uint16_t)(p->bytes[k] == p->bytes[i] ? k + 1 : 0);
    }
}

int stop_matcher_init(struct stop_matcher *m, const struct meta_stop *stop, size_t n, bool include, struct error *err) {
    struct stop_matcher made = {.n = n, .include = include};
    if (n > 0) {
        made.patterns = calloc(n, sizeof *made.patterns);
        if (!made.patterns) {
            return error_memory(err);
        }
    }
    for (size_t i = 0; i < n; i++) {
        made.patterns[i].len = stop[i].len;
        memcpy(made.patterns[i].bytes, stop[i].bytes, stop[i].len);
        fill_borders(&made.patterns[i]);
    }
    *m = made;
    return 0;
}

void stop_matcher_destroy(struct stop_matcher *m) {
    if (m) {
        free(m->patterns);
        *m = (struct stop_matcher){0};
    }
}

/* Take one byte; true when the pattern is complete. */
static bool advance(struct stop_pattern *p, char byte) {
    size_t k = p->matched;
    while (k > 0 && p->bytes[k] != byte) {
        k = p->border[k - 1];
    }
    if (p->bytes[k] == byte) {
        k++;
    }
    p->matched = k;
    return k == p->len;
}

size_t stop_matcher_push(struct stop_matcher *m, const char *bytes, size_t len, char *out, int32_t *match) {
    *match = -1;
    size_t n = m->n_held;
    memcpy(out, m->held, n);
    m->n_held = 0;
    if (m->n == 0) {
        memcpy(out + n, bytes, len);
        return n + len;
    }
    for (size_t i = 0; i < len; i++) {
        out[n++] = bytes[i];
        size_t longest = 0;
        for (size_t j = 0; j < m->n; j++) {
            if (advance(&m->patterns[j], bytes[i]) && m->patterns[j].len > longest) {
                longest = m->patterns[j].len;
                *match = (int32_t)j;
            }
        }
        if (*match >= 0) {
            return m->include ? n : n - longest;
        }
    }
    for (size_t j = 0; j < m->n; j++) {
        if (m->patterns[j].matched > m->n_held) {
            m->n_held = m->patterns[j].matched;
        }
    }
    n -= m->n_held;
    memcpy(m->held, out + n, m->n_held);
    return n;
}

size_t stop_matcher_finish(struct stop_matcher *m, char *out) {
    size_t n = m->n_held;
    memcpy(out, m->held, n);
    m->n_held = 0;
    return n;
}
