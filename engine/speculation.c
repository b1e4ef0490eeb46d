#include "speculation.h"

#include <stdlib.h>
#include <string.h>

#define MOST_HEADS ((size_t)1 << 16) /* in a longer sequence, far repetitions are forgotten for near ones */
#define PAYS 90                      /* `kept`, in 1/256: below, drafts cost more than they save */
#define FIRST_PAUSE 4
#define LONGEST_PAUSE 128

int speculation_init(struct speculation *s, size_t max, size_t max_tokens, struct error *err) {
    struct speculation made = {.max = max, .n_heads = 64};
    if (max > 0) {
        while (made.n_heads < max_tokens && made.n_heads < MOST_HEADS) {
            made.n_heads *= 2;
        }
        made.heads = calloc(SPECULATION_LONGEST * made.n_heads, sizeof *made.heads);
        if (!made.heads) {
            return error_memory(err);
        }
    }
    for (size_t n = 1; n <= SPECULATION_LONGEST; n++) {
        size_t length = (size_t)1 << (n - 1); /* the more that agrees, the further it is believed */
        made.trust[n] = (struct speculation_trust){
            .length = length < max ? length : max, .backoff = FIRST_PAUSE, .kept = 128};
    }
    *s = made;
    return 0;
}

void speculation_destroy(struct speculation *s) {
    free(s->heads);
    *s = (struct speculation){0};
}

/* Where the n-gram in front of `end` is remembered. */
static int32_t *head(const struct speculation *s, const int32_t *end, size_t n) {
    uint64_t hash = n;
    for (const int32_t *t = end - n; t < end; t++) {
        hash = (hash ^ (uint32_t)*t) * 0x9E3779B97F4A7C15u;
        hash ^= hash >> 32;
    }
    return &s->heads[(n - 1) * s->n_heads + (hash & (s->n_heads - 1))];
}

void speculation_index(struct speculation *s, const int32_t *tokens, size_t n) {
    /* The n-grams in front of n itself come later: they are what is looked for. */
    for (size_t end = s->n_indexed ? s->n_indexed : 1; s->max > 0 && end < n; end++) {
        for (size_t k = 1; k <= SPECULATION_LONGEST && k <= end; k++) {
            *head(s, tokens + end, k) = (int32_t)end;
        }
        s->n_indexed = end + 1;
    }
}

size_t speculation_draft(struct speculation *s, int32_t *tokens, size_t n, size_t room) {
    speculation_index(s, tokens, n);
    for (size_t k = n < SPECULATION_LONGEST ? n : SPECULATION_LONGEST; s->max > 0 && k > 0; k--) {
        size_t found = (size_t)*head(s, tokens + n, k);
        if (found < k || memcmp(tokens + found - k, tokens + n - k, k * sizeof *tokens) != 0) {
            continue; /* nothing, or another n-gram of the same hash */
        }
        struct speculation_trust *t = &s->trust[k];
        if (t->pause > 0) {
            t->pause--;
            return 0;
        }
        size_t length = t->length < room ? t->length : room;
        for (size_t i = 0; i < length; i++) {
            tokens[n + i] = tokens[found + i]; /* behind the end it goes on in the draft itself: a repetition */
        }
        s->used = k;
        return length;
    }
    return 0;
}

void speculation_learn(struct speculation *s, size_t n_drafted, size_t n_kept) {
    struct speculation_trust *t = &s->trust[s->used];
    t->kept += ((int)(n_kept * 256 / n_drafted) - t->kept) / 4;
    if (t->kept < PAYS) {
        t->pause = t->backoff;
        t->backoff = t->backoff * 2 < LONGEST_PAUSE ? t->backoff * 2 : LONGEST_PAUSE;
        t->length = 1;
        t->kept = PAYS; /* one more try: if it is wrong, too, the next pause begins */
    } else if (n_kept == n_drafted) {
        t->length = n_drafted * 2 < s->max ? n_drafted * 2 : s->max;
        t->backoff = FIRST_PAUSE;
    } else {
        t->length = n_kept + 1 < s->max ? n_kept + 1 : s->max;
    }
}
