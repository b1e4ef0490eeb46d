#include "dry.h"
#include "text/text_impl.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Every length by comparing, one by one. */
static void slow_lengths(const int32_t *t, size_t n, size_t reach, int32_t *lengths) {
    for (size_t i = 0; i + 1 < n; i++) {
        size_t len = 0;
        while (len < reach && len <= i && t[i - len] == t[n - 1 - len]) {
            len++;
        }
        lengths[i] = (int32_t)len;
    }
    if (n > 0) {
        lengths[n - 1] = 0;
    }
}

Test(dry, lengths_of_repetitions) {
    /* the example that llama.cpp's source explains its own with */
    const int32_t tokens[] = {'a', 'b', 'c', 'c', 'b', 'c', 'y', 'a', 'b', 'c'},
                  want[] = {0, 0, 3, 1, 0, 2, 0, 0, 0, 0};
    int32_t got[10];
    dry_lengths(tokens, 10, 10, got);
    cr_assert_arr_eq(got, want, sizeof want);
}

Test(dry, lengths_beside_comparing_one_by_one) {
    static int32_t tokens[200], want[200], got[200];
    srand(8);
    for (size_t round = 0; round < 2000; round++) {
        size_t n = (size_t)rand() % 200, kinds = 1 + (size_t)rand() % 4, reach = (size_t)rand() % 210;
        for (size_t i = 0; i < n; i++) {
            bool again = i > 20 && rand() % 8; /* long repetitions */
            tokens[i] = again ? tokens[i - 7 - round % 13] : (int32_t)((size_t)rand() % kinds);
        }
        slow_lengths(tokens, n, reach, want);
        dry_lengths(tokens, n, reach, got);
        cr_assert_arr_eq(got, want, n * sizeof *got, "round %zu", round);
    }
}

Test(dry, time_is_linear) {
    size_t n = 1 << 20; /* one by one this would be 2^39 comparisons */
    int32_t *tokens = calloc(n, sizeof *tokens), *lengths = malloc(n * sizeof *lengths);
    dry_lengths(tokens, n, n, lengths);
    cr_assert_eq(lengths[0], 1);
    cr_assert_eq(lengths[n - 2], (int32_t)n - 1);
    free(tokens);
    free(lengths);
}

/* A tokenizer of a few words. */
static struct text *small_text(void) {
    static const char json[] = "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"\\u010a\":2,\"a\\u010ab\":3,"
                               "\"xy\":4,\"z\":5,\"yz\":6,\"x\":7},"
                               "\"merges\":[]},\"decoder\":{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"trim_"
                               "offsets\":true,\"use_regex\":true}}";
    struct error err;
    struct tokenizer *t = NULL;
    cr_assert_eq(tokenizer_from_json(json, strlen(json), &t, &err), 0, "%s", err.message);
    struct text *text = calloc(1, sizeof *text);
    text->tokenizer = t;
    text->bos_id = -1;
    return text;
}

Test(dry, breakers_are_found_in_the_text) {
    struct text *text = small_text();
    static const struct meta_stop newline[] = {{"\n", 1}}, longer[] = {{"\n", 1}, {"xyz", 3}, {"bab", 3}};
    const struct {
        const struct meta_stop *breakers;
        size_t n_breakers;
        int32_t tokens[6];
        size_t n, reach;
    } cases[] = {
        {newline, 1, {0, 1, 0, 1}, 4, 4},
        {newline, 1, {0, 2, 0, 1}, 4, 2},
        {newline, 1, {0, 2, 0, 2}, 4, 0},
        {newline, 1, {0, 3, 0, 1, 1}, 5, 3}, /* inside a token */
        {newline, 1, {2}, 1, 0},
        {newline, 1, {0}, 0, 0},
        {longer, 0, {2, 2, 2}, 3, 3},
        {longer, 3, {0, 4, 5, 0, 0}, 5, 2},    /* xy z */
        {longer, 3, {0, 7, 6, 0, 0}, 5, 2},    /* x yz */
        {longer, 3, {4, 0, 5, 0, 0}, 5, 5},    /* xy a z */
        {longer, 3, {2, 1, 0, 1, 0}, 5, 1},    /* the later of two; b a b over three tokens */
        {longer, 3, {0, 3, 0, 1, 0, 5}, 6, 2}, /* begins at the end of a token: a\nb a b */
        {longer, 3, {1, 0, 5, 4, 0, 0}, 6, 6}, /* beginnings only */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        size_t reach = dry_reach(text, cases[i].breakers, cases[i].n_breakers, cases[i].tokens, cases[i].n);
        cr_assert_eq(reach, cases[i].reach, "case %zu: %zu, expected %zu", i, reach, cases[i].reach);
    }
    cr_assert(dry_is_breaker(text, newline, 1, 3) && dry_is_breaker(text, newline, 1, 2) &&
              !dry_is_breaker(text, newline, 1, 0));
    text_free(text);
}
