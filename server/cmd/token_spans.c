#include "cmd/token_spans.h"

#include <inferd/buf.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define WINDOW 256 /* most bytes, of both sides together, over which an agreement is looked for */
#define NEAR 8     /* over so few, a short agreement is enough */

/* What the tokens spell, and for each of its bytes the bytes of the text that it stands for. */
struct alignment {
    const char *spelt, *text;
    size_t n_spelt, len;
    struct token_span *spans; /* [n_spelt] */
};

static bool in_character(const char *s, size_t at, size_t len) {
    return at < len && ((unsigned char)s[at] & 0xc0) == 0x80;
}

/* Do both sides go on alike from here, for so many bytes? At the end of one side only if the other is at its end too.
 */
static bool agrees(const struct alignment *a, size_t i, size_t j, size_t wanted) {
    if (i > a->n_spelt || j > a->len || in_character(a->spelt, i, a->n_spelt) || in_character(a->text, j, a->len)) {
        return false;
    }
    size_t left = a->n_spelt - i, right = a->len - j, n = left < right ? left : right;
    if (n == 0) {
        return left == right;
    }
    return memcmp(a->spelt + i, a->text + j, n < wanted ? n : wanted) == 0;
}

/* The nearest place behind (i, j) where both sides agree; both ends when there is none near. */
static void find_agreement(const struct alignment *a, size_t i, size_t j, size_t *to_i, size_t *to_j) {
    if (a->spelt[i] == ' ' && agrees(a, i + 1, j, 1)) { /* the space that some put in front of a text */
        *to_i = i + 1;
        *to_j = j;
        return;
    }
    for (size_t distance = 1; distance <= WINDOW; distance++) {
        for (size_t k = 0; k <= distance; k++) {
            if (agrees(a, i + k, j + distance - k, distance <= NEAR ? 2 : 4)) {
                *to_i = i + k;
                *to_j = j + distance - k;
                return;
            }
        }
    }
    *to_i = a->n_spelt;
    *to_j = a->len;
}

static void align(struct alignment *a) {
    size_t i = 0, j = 0;
    while (i < a->n_spelt) {
        if (j < a->len && a->spelt[i] == a->text[j]) {
            a->spans[i++] = (struct token_span){j, j + 1};
            j++;
            continue;
        }
        size_t to_i, to_j;
        find_agreement(a, i, j, &to_i, &to_j);
        while (i < to_i) {
            a->spans[i++] = (struct token_span){j, to_j};
        }
        j = to_j;
    }
}

int token_spans(const struct text *t, const char *text, size_t len, const struct tokens *ids, struct token_span **out,
                struct error *err) {
    struct buf spelt = BUF_INIT;
    for (size_t i = 0; i < ids->n; i++) {
        size_t n;
        const char *bytes = text_token_bytes(t, ids->ids[i], &n);
        buf_append(&spelt, bytes, n);
    }
    struct token_span *spans = calloc(ids->n ? ids->n : 1, sizeof *spans);
    struct alignment a = {.spelt = spelt.data ? spelt.data : "", .text = text, .n_spelt = spelt.len, .len = len};
    a.spans = calloc(spelt.len ? spelt.len : 1, sizeof *a.spans);
    if (spelt.failed || !spans || !a.spans) {
        free(spans);
        free(a.spans);
        buf_free(&spelt);
        return error_memory(err);
    }
    align(&a);
    size_t at = 0, end = 0;
    for (size_t i = 0; i < ids->n; i++) {
        size_t n;
        text_token_bytes(t, ids->ids[i], &n);
        spans[i] = n ? (struct token_span){a.spans[at].start, a.spans[at + n - 1].end} : (struct token_span){end, end};
        end = spans[i].end;
        at += n;
    }
    free(a.spans);
    buf_free(&spelt);
    *out = spans;
    return 0;
}
