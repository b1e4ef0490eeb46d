/* The index of n-grams against a plain search, and how long drafts become. */
#include "speculation.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#define LEN 400

/* The latest position, before n, behind an n-gram equal to the last k of tokens[0..n); 0 = none. */
static size_t search(const int32_t *tokens, size_t n, size_t k) {
    for (size_t end = n - 1; end >= k && end > 0; end--) {
        if (memcmp(tokens + end - k, tokens + n - k, k * sizeof *tokens) == 0) {
            return end;
        }
    }
    return 0;
}

/* Every length of a random text of few different tokens: the draft continues the latest longest match. */
Test(speculation, finds_the_latest_match) {
    static int32_t tokens[LEN + 16], copy[LEN + 16];
    struct speculation s;
    struct error err;
    size_t drafts = 0, matches = 0;
    cr_assert_eq(speculation_init(&s, 16, LEN + 16, &err), 0);
    srand(3);
    for (size_t n = 1; n < LEN; n++) {
        tokens[n - 1] = rand() % 12;
        memcpy(copy, tokens, sizeof tokens);
        size_t found = 0, got = speculation_draft(&s, tokens, n, 1, 0.05);
        for (size_t k = n < 4 ? n : SPECULATION_LONGEST; k > 0 && !found; k--) {
            found = search(copy, n, k);
        }
        cr_assert_arr_eq(tokens, copy, n * sizeof *tokens);
        if (found) {
            matches++;
        }
        if (got > 0) { /* a match may be missed, when its place in the index was taken: never a wrong one made up */
            size_t k = s.used, at = search(copy, n, k);
            cr_assert(at > 0 && tokens[n] == copy[at], "at %zu: %d behind %zu tokens", n, tokens[n], k);
            drafts++;
        }
    }
    cr_assert(drafts > matches * 9 / 10, "%zu drafts of %zu matches", drafts, matches);
    speculation_destroy(&s);
}

/* A period goes on beyond the end, in the draft itself; room and the limit are kept; nothing is drafted of nothing. */
Test(speculation, repetition_and_limits) {
    int32_t tokens[64] = {7, 1, 2, 3, 1, 2, 3, 1};
    static const int32_t period[] = {2, 3, 1};
    struct speculation s;
    struct error err;
    cr_assert_eq(speculation_init(&s, 10, 64, &err), 0);
    cr_assert_eq(speculation_draft(&s, tokens, 1, 10, 0.05), 0); /* one token repeats nothing */
    speculation_index(&s, tokens, 8);
    speculation_learn(&s, 10, 10);
    s.trust[3].right = 0.99;
    cr_assert_eq(speculation_draft(&s, tokens, 8, 60, 0.05), 10);
    for (size_t i = 0; i < 10; i++) {
        cr_assert_eq(tokens[8 + i], period[i % 3], "%zu", i);
    }
    cr_assert_eq(speculation_draft(&s, tokens, 8, 4, 0.05), 4);
    speculation_destroy(&s);

    cr_assert_eq(speculation_init(&s, 0, 64, &err), 0); /* off */
    speculation_index(&s, tokens, 8);
    cr_assert_eq(speculation_draft(&s, tokens, 8, 4, 0.05), 0);
    cr_assert_null(s.heads);
    speculation_destroy(&s);
}

static size_t draft_of(struct speculation *s, double break_even) {
    static int32_t tokens[64] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3};
    return speculation_draft(s, tokens, 12, 40, break_even);
}

/* Longer while they are right, shorter when wrong; off when they do not pay, and tried again ever more seldom. */
Test(speculation, learns_how_long) {
    struct speculation s;
    struct error err;
    cr_assert_eq(speculation_init(&s, 16, 64, &err), 0);
    size_t first = draft_of(&s, 0.3), last = first;
    cr_assert(first >= 1 && first < 16);
    for (int i = 0; i < 12; i++) {
        speculation_learn(&s, last, last);
        size_t n = draft_of(&s, 0.3);
        cr_assert(n >= last);
        last = n;
    }
    cr_assert_eq(last, 16);
    cr_assert(draft_of(&s, 0.9) < 16, "where a row costs more, fewer are worth it");
    for (int i = 0; i < 12 && last > 0; i++) {
        speculation_learn(&s, last, 0);
        size_t n = draft_of(&s, 0.3);
        cr_assert(n <= last, "%zu after %zu", n, last);
        last = n;
    }
    /* off: single tries, the time between them doubling */
    size_t tries = 0, rounds = 1000;
    for (size_t i = 0; i < rounds; i++) {
        size_t n = draft_of(&s, 0.3);
        if (n > 0) {
            cr_assert_eq(n, 1);
            speculation_learn(&s, 1, 0);
            tries++;
        }
    }
    cr_assert(tries >= 8 && tries < 30, "%zu tries", tries);
    /* right again: on again */
    for (int i = 0; i < 4000 && last < 4; i++) {
        last = draft_of(&s, 0.3);
        if (last > 0) {
            speculation_learn(&s, last, last);
        }
    }
    cr_assert_geq(last, 4);
    speculation_destroy(&s);
}

/* Steps of 3 ms and 0.5 ms a row, with some noise: the chance that a row must have follows from that. */
Test(speculation, cost_of_a_row) {
    struct step_cost c = {0};
    double usual = step_cost_break_even(&c, 1, 1);
    cr_assert(usual > 0.2 && usual < 0.5, "%g", usual);
    srand(4);
    for (int i = 0; i < 300; i++) {
        size_t rows = 1 + (size_t)rand() % 12;
        step_cost_add(&c, rows, (3e-3 + 0.5e-3 * (double)rows) * (0.97 + 0.06 * rand() / (double)RAND_MAX));
    }
    cr_assert_float_eq(c.fixed, 3e-3, 3e-4);
    cr_assert_float_eq(c.row, 0.5e-3, 0.5e-4);
    cr_assert_float_eq(step_cost_break_even(&c, 1, 1), 0.5 / 3.5, 0.03);
    cr_assert_float_eq(step_cost_break_even(&c, 8, 8), 8 * 0.5 / 7, 0.04);
    cr_assert_float_eq(step_cost_break_even(&c, 100, 1), 0.05, 1e-9); /* hardly anything beside a long prompt */
    /* steps all alike tell nothing new, and neither does one that the machine interrupted */
    struct step_cost before = c;
    for (int i = 0; i < 500; i++) {
        step_cost_add(&c, 4, 5e-3);
    }
    cr_assert_float_eq(step_cost_break_even(&c, 1, 1), 0.5 / 3.5, 0.05);
    c = before;
    step_cost_add(&c, 2, 10.0);
    cr_assert(step_cost_break_even(&c, 1, 1) < 0.25);
    /* rows for nothing, and time that is all rows */
    struct step_cost flat = {0}, steep = {0};
    for (int i = 0; i < 100; i++) {
        step_cost_add(&flat, 1 + (size_t)i % 5, 1e-3);
        step_cost_add(&steep, 1 + (size_t)i % 5, 1e-3 * (1 + i % 5));
    }
    cr_assert_float_eq(step_cost_break_even(&flat, 1, 1), 0.05, 1e-9);
    cr_assert_float_eq(step_cost_break_even(&steep, 4, 4), 0.9, 1e-9);
}
