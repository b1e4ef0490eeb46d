#include "speculation.h"

#include <stdlib.h>
#include <string.h>

#define MOST_HEADS ((size_t)1 << 16) /* in a longer sequence, far repetitions are forgotten for near ones */
#define FIRST_PAUSE 4
#define LONGEST_PAUSE 128
#define RATE 0.125 /* how much of `right` one token changes */

/* Steps before anything was measured: a row more costs a third of a step of one. */
#define USUAL_FIXED 2.0
#define USUAL_ROW 1.0
#define DECAY 0.98

void step_cost_add(struct step_cost *c, size_t rows, double seconds) {
    double r = (double)rows;
    if (c->fixed + c->row > 0 && seconds > 4 * (c->fixed + c->row * r)) {
        seconds = 4 * (c->fixed + c->row * r); /* the machine was busy elsewhere */
    }
    c->weight = c->weight * DECAY + 1;
    c->rows = c->rows * DECAY + r;
    c->rows2 = c->rows2 * DECAY + r * r;
    c->seconds = c->seconds * DECAY + seconds;
    c->rows_seconds = c->rows_seconds * DECAY + r * seconds;
    double mean = c->rows / c->weight, mean_seconds = c->seconds / c->weight;
    double variance = c->rows2 / c->weight - mean * mean;
    if (c->weight < 8 || variance < 0.25) {
        return; /* steps too much alike to tell a from b: what was known stays */
    }
    double row = (c->rows_seconds / c->weight - mean * mean_seconds) / variance, most = mean_seconds / mean;
    c->row = row < 0 ? 0 : row < most ? row : most;
    c->fixed = mean_seconds - c->row * mean;
}

double step_cost_break_even(const struct step_cost *c, size_t rows, size_t n) {
    bool known = c->fixed + c->row > 0;
    double fixed = known ? c->fixed : USUAL_FIXED, row = known ? c->row : USUAL_ROW;
    double p = (double)n * row / (fixed + row * (double)rows);
    return p < 0.05 ? 0.05 : p < 0.9 ? p : 0.9;
}

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
        /* the more that agrees, the more it is believed */
        made.trust[n] = (struct speculation_trust){.right = 0.15 + 0.15 * (double)n, .backoff = FIRST_PAUSE};
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

/* How many tokens a draft shall have; 0 when it is not worth a try. */
static size_t worth(struct speculation_trust *t, size_t most, double break_even) {
    size_t length = 0;
    for (double right = t->right; length < most && right >= break_even; right *= t->right) {
        length++;
    }
    if (length > 0) {
        t->backoff = FIRST_PAUSE;
        return length;
    }
    if (t->pause > 0) {
        t->pause--;
        return 0;
    }
    t->pause = t->backoff;
    t->backoff = t->backoff * 2 < LONGEST_PAUSE ? t->backoff * 2 : LONGEST_PAUSE;
    return 1;
}

size_t speculation_draft(struct speculation *s, int32_t *tokens, size_t n, size_t room, double break_even) {
    speculation_index(s, tokens, n);
    for (size_t k = n < SPECULATION_LONGEST ? n : SPECULATION_LONGEST; s->max > 0 && k > 0; k--) {
        size_t found = (size_t)*head(s, tokens + n, k);
        if (found < k || memcmp(tokens + found - k, tokens + n - k, k * sizeof *tokens) != 0) {
            continue; /* nothing, or another n-gram of the same hash */
        }
        size_t length = worth(&s->trust[k], s->max < room ? s->max : room, break_even);
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
    for (size_t i = 0; i < n_kept; i++) {
        t->right += (0.99 - t->right) * RATE;
    }
    if (n_kept < n_drafted) {
        t->right -= t->right * RATE;
    }
}
