/* Case files of tokenizers: one JSON object a line, whose strings may hold U+0000, which cJSON would cut. */
#ifndef TEST_TEXT_CASES_H
#define TEST_TEXT_CASES_H

#include "base/utf8.h"

#include <cjson/cJSON.h>
#include <criterion/criterion.h>
#include <inferd/buf.h>
#include <inferd/text.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The string member `key` of the object in `line`, NUL characters and all; false if there is none. */
static inline bool string_member(const char *line, const char *key, struct buf *out) {
    char start[64];
    snprintf(start, sizeof start, "\"%s\": \"", key);
    const char *p = strstr(line, start);
    buf_reset(out);
    if (!p) {
        return false;
    }
    for (p += strlen(start); *p != '"'; p++) {
        if (*p != '\\') {
            buf_putc(out, *p);
            continue;
        }
        const char *plain = strchr("\"\"\\\\//b\bf\fn\nr\rt\t", *++p);
        if (*p != 'u') {
            buf_putc(out, plain[1]);
            continue;
        }
        uint32_t cp = (uint32_t)strtoul((char[]){p[1], p[2], p[3], p[4], 0}, NULL, 16);
        p += 4;
        if (cp >= 0xd800 && cp < 0xdc00) {
            uint32_t low = (uint32_t)strtoul((char[]){p[3], p[4], p[5], p[6], 0}, NULL, 16);
            cp = 0x10000 + ((cp - 0xd800) << 10) + (low - 0xdc00);
            p += 6;
        }
        char utf8[4];
        buf_append(out, utf8, utf8_encode(cp, utf8));
    }
    return true;
}

static inline void ids_of(const cJSON *array, struct tokens *out) {
    struct error err;
    const cJSON *item;
    out->n = 0;
    cJSON_ArrayForEach(item, array) {
        cr_assert_eq(tokens_push(out, item->valueint, &err), 0);
    }
}

static inline bool same_ids(const struct tokens *a, const struct tokens *b) {
    return a->n == b->n && (a->n == 0 || memcmp(a->ids, b->ids, a->n * sizeof *a->ids) == 0);
}

static inline bool same_bytes(const struct buf *a, const struct buf *b) {
    return a->len == b->len && (a->len == 0 || memcmp(a->data, b->data, a->len) == 0);
}

/* Everything that the incremental detokenizer gives for these ids. */
static inline void stream(const struct text *t, const struct tokens *ids, bool skip_special, struct buf *out) {
    struct detokenizer d;
    char bytes[DETOKENIZER_MAX_OUT];
    buf_reset(out);
    detokenizer_init(&d, t, skip_special, false);
    for (size_t i = 0; i < ids->n; i++) {
        size_t n = detokenizer_push(&d, ids->ids[i], bytes);
        cr_assert_leq(n, sizeof bytes);
        cr_assert(utf8_is_valid(bytes, n), "a push gave a part of a character");
        buf_append(out, bytes, n);
    }
    buf_append(out, bytes, detokenizer_finish(&d, bytes));
}

#endif
