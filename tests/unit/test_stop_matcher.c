#include "stop_matcher.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

struct result {
    char text[512];
    size_t len;
    int32_t match;
};

/* Feed text in pieces of the given size, as tokens would bring it; the end releases what is held. */
static struct result feed(const char *text, size_t piece, const char *const *stops, size_t n, bool include) {
    struct meta_stop list[8];
    struct stop_matcher m;
    struct error err;
    struct result r = {.match = -1};
    for (size_t i = 0; i < n; i++) {
        list[i] = (struct meta_stop){stops[i], strlen(stops[i])};
    }
    cr_assert_eq(stop_matcher_init(&m, list, n, include, &err), 0);
    size_t len = strlen(text);
    for (size_t at = 0; at < len && r.match < 0; at += piece) {
        size_t part = len - at < piece ? len - at : piece;
        r.len += stop_matcher_push(&m, text + at, part, r.text + r.len, &r.match);
    }
    if (r.match < 0) {
        r.len += stop_matcher_finish(&m, r.text + r.len);
    }
    r.text[r.len] = '\0';
    stop_matcher_destroy(&m);
    return r;
}

Test(stop_matcher, every_substring_stops_at_its_first_occurrence) {
    const char *text = "abababcab ababcabab abcabcababc";
    size_t len = strlen(text);
    for (size_t begin = 0; begin < len; begin++) {
        for (size_t n = 1; n <= 12 && begin + n <= len; n++) {
            char stop[16] = "";
            memcpy(stop, text + begin, n);
            const char *list[] = {stop};
            size_t first = (size_t)(strstr(text, stop) - text);
            for (size_t piece = 1; piece <= 7; piece++) {
                struct result r = feed(text, piece, list, 1, false);
                cr_assert_eq(r.match, 0);
                cr_assert(r.len == first && memcmp(r.text, text, first) == 0, "stop \"%s\" in pieces of %zu", stop,
                          piece);
                r = feed(text, piece, list, 1, true);
                cr_assert(r.len == first + n && memcmp(r.text, text, first + n) == 0);
            }
        }
    }
}

Test(stop_matcher, text_without_the_stop_string_comes_out_whole) {
    const char *list[] = {"aab", "xyz"};
    for (size_t piece = 1; piece < 6; piece++) {
        struct result r = feed("aaaaaaxyxyxaa", piece, list, 2, false);
        cr_assert_eq(r.match, -1);
        cr_assert_str_eq(r.text, "aaaaaaxyxyxaa");
    }
}

Test(stop_matcher, holds_back_no_more_than_what_may_become_a_stop) {
    struct meta_stop stop = {"END", 3};
    struct stop_matcher m;
    struct error err;
    char out[512];
    int32_t match;
    cr_assert_eq(stop_matcher_init(&m, &stop, 1, false, &err), 0);
    cr_assert_eq(stop_matcher_push(&m, "abcE", 4, out, &match), 3);
    cr_assert_eq(stop_matcher_push(&m, "E", 1, out, &match), 1, "the first E can no longer begin END");
    cr_assert_eq(out[0], 'E');
    cr_assert_eq(stop_matcher_push(&m, "N", 1, out, &match), 0);
    cr_assert_eq(stop_matcher_push(&m, "x", 1, out, &match), 3);
    cr_assert(memcmp(out, "ENx", 3) == 0);
    cr_assert_eq(match, -1);
    stop_matcher_destroy(&m);
}

Test(stop_matcher, of_several_the_first_complete_then_the_longest) {
    const char *list[] = {"bcd", "bc", "abc", "x"};
    for (size_t piece = 1; piece < 6; piece++) {
        struct result r = feed("..abcd..", piece, list, 4, false);
        cr_assert_eq(r.match, 2, "bc and abc end at the same byte: abc begins first");
        cr_assert_str_eq(r.text, "..");
        const char *two[] = {"abcd", "bc"};
        r = feed("..abcd..", piece, two, 2, false);
        cr_assert_eq(r.match, 1, "bc is complete before abcd");
        cr_assert_str_eq(r.text, "..a");
    }
}

Test(stop_matcher, longest_allowed_strings_and_largest_pieces) {
    char stop[ENGINE_MAX_STOP_LEN + 1], piece[1024], out[ENGINE_EVENT_TEXT];
    memset(stop, 'a', ENGINE_MAX_STOP_LEN);
    stop[ENGINE_MAX_STOP_LEN - 1] = 'b';
    stop[ENGINE_MAX_STOP_LEN] = '\0';
    struct meta_stop list = {stop, ENGINE_MAX_STOP_LEN};
    struct stop_matcher m;
    struct error err;
    int32_t match;
    cr_assert_eq(stop_matcher_init(&m, &list, 1, false, &err), 0);
    memset(piece, 'a', sizeof piece);
    size_t held = ENGINE_MAX_STOP_LEN - 1;
    cr_assert_eq(stop_matcher_push(&m, piece, sizeof piece, out, &match), sizeof piece - held);
    cr_assert_eq(stop_matcher_push(&m, piece, sizeof piece, out, &match), sizeof piece);
    cr_assert_eq(stop_matcher_push(&m, "c", 1, out, &match), held + 1);
    cr_assert_eq(match, -1);
    stop_matcher_destroy(&m);
}
