/* What `inferd bench` is made of besides computing: statistics, traces, URLs, and HTTP answers of anybody. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/answer.h"
#include "cmd/bench.h"
#include "cmd/bench_trace.h"
#include "cmd/histogram.h"

static struct error err;

Test(bench, spread) {
    double odd[] = {5, 1, 9, 3, 7}, even[] = {4, 1, 2, 10}, one[] = {6};
    struct bench_spread s = bench_spread(odd, 5);
    cr_assert(s.median == 5 && s.min == 1 && s.max == 9);
    s = bench_spread(even, 4);
    cr_assert(s.median == 3 && s.min == 1 && s.max == 10);
    s = bench_spread(one, 1);
    cr_assert(s.median == 6 && s.min == 6 && s.max == 6);
}

Test(bench, ratio_is_apart_only_when_ranges_are) {
    const struct bench_spread before = {100, 90, 110}, near = {115, 105, 120}, far = {130, 111, 140}, below = {50, 40, 89};
    struct bench_ratio r = bench_ratio(before, near);
    cr_assert(!r.apart);
    cr_assert_float_eq(r.ratio, 1.15, 1e-12);
    cr_assert_float_eq(r.min, 105.0 / 110, 1e-12);
    cr_assert_float_eq(r.max, 120.0 / 90, 1e-12);
    cr_assert(bench_ratio(before, far).apart && bench_ratio(before, below).apart);
    cr_assert_eq(bench_ratio((struct bench_spread){0}, far).ratio, 0);
}

Test(bench, numbers) {
    size_t out[3], n;
    cr_assert_eq(bench_numbers("prefill", "1,20,300", 1, 300, out, 3, &n, &err), 0);
    cr_assert(n == 3 && out[0] == 1 && out[1] == 20 && out[2] == 300);
    cr_assert(bench_numbers("prefill", "", 1, 300, out, 3, &n, &err) == 0 && n == 0);
    static const char *const bad[] = {",", "1,", ",1", "0", "301", "x", "1;2", "-1", "1,2,3,4", "99999999999999999999", "1 2", "1.5"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        cr_assert(bench_numbers("prefill", bad[i], 1, 300, out, 3, &n, &err) < 0, "%s", bad[i]);
        cr_assert(err.code == ERROR_INVALID && strcmp(err.param, "prefill") == 0);
    }
}

Test(bench, ranges_and_draws) {
    struct bench_range r;
    cr_assert(bench_range("x", "64", 1, 100, &r, &err) == 0 && r.min == 64 && r.max == 64);
    cr_assert(bench_range("x", "8-12", 1, 100, &r, &err) == 0 && r.min == 8 && r.max == 12);
    static const char *const bad[] = {"", "-", "0", "101", "12-8", "8-", "-8", "8-9-10", "a", "8-101", "99999999999999999999999"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct bench_range other;
        cr_assert(bench_range("x", bad[i], 1, 100, &other, &err) < 0 && err.code == ERROR_INVALID, "%s", bad[i]);
    }
    struct bench_random a = {1}, b = {1};
    size_t seen[5] = {0};
    for (int i = 0; i < 10000; i++) {
        size_t n = bench_draw_range(&a, r);
        cr_assert(n >= 8 && n <= 12 && n == bench_draw_range(&b, r));
        seen[n - 8]++;
    }
    for (int i = 0; i < 5; i++) {
        cr_assert(seen[i] > 1800 && seen[i] < 2200);
    }
}

/* Gaps of a Poisson process: mean and standard deviation are 1 / rate, and a share of 1 - 1/e is shorter than that. */
Test(bench, arrivals) {
    enum { N = 200000 };
    const double rate = 4;
    struct bench_random random = {7};
    double sum = 0, squares = 0, shorter = 0;
    for (int i = 0; i < N; i++) {
        double gap = bench_draw_gap(&random, rate);
        cr_assert(gap >= 0 && isfinite(gap));
        sum += gap;
        squares += gap * gap;
        shorter += gap < 1 / rate;
    }
    cr_assert_float_eq(sum / N, 0.25, 0.003);
    cr_assert_float_eq(sqrt(squares / N - pow(sum / N, 2)), 0.25, 0.005);
    cr_assert_float_eq(shorter / N, 1 - exp(-1), 0.005);
}

Test(bench, urls) {
    struct bench_url u;
    static const char *const good[][4] = {
        {"http://127.0.0.1:8080", "127.0.0.1", "8080", ""},
        {"http://host/", "host", "80", ""},
        {"http://host:9/base/", "host", "9", "/base"},
        {"http://[::1]:8080/a/b", "::1", "8080", "/a/b"},
        {"http://[::1]", "::1", "80", ""},
    };
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        cr_assert_eq(bench_url(good[i][0], &u, &err), 0, "%s", good[i][0]);
        cr_assert(strcmp(u.host, good[i][1]) == 0 && strcmp(u.port, good[i][2]) == 0 && strcmp(u.path, good[i][3]) == 0, "%s", good[i][0]);
    }
    static const char *const bad[] = {"",           "host",          "https://host", "http://",          "http://:80",    "http://host:",
                                      "http://h:0", "http://h:70000", "http://h:x",   "http://h\r\nX: y", "http://h/a b", "http://[::1"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        cr_assert(bench_url(bad[i], &u, &err) < 0 && err.code == ERROR_INVALID, "%s", bad[i]);
    }
}

Test(bench, histogram_keeps_percentiles_within_its_width) {
    static struct times t;
    for (uint64_t i = 1; i <= 100000; i++) {
        times_add(&t, i * 1000);
    }
    cr_assert_float_eq(times_at(&t, 0.5), 0.05, 0.05 * 0.016);
    cr_assert_float_eq(times_at(&t, 0.99), 0.099, 0.099 * 0.016);
    cr_assert_eq(t.max, 100000000);
}

/* --- answers */

struct events {
    int n;
    char last[64];
};

static void on_event(void *arg, const char *data, size_t len) {
    struct events *e = arg;
    e->n++;
    snprintf(e->last, sizeof e->last, "%.*s", (int)len, data);
}

static enum answer_state feed(const char *text, size_t len, size_t piece, bool end, struct events *e, int *status) {
    struct answer a = {0};
    answer_begin(&a);
    *e = (struct events){0};
    for (size_t at = 0; at < len; at += piece) {
        size_t n = len - at < piece ? len - at : piece;
        char *exact = malloc(n); /* so that a sanitizer sees a byte too many */
        memcpy(exact, text + at, n);
        answer_feed(&a, exact, n, on_event, e);
        free(exact);
    }
    if (end) {
        answer_end(&a);
    }
    *status = a.status;
    enum answer_state state = a.state;
    answer_free(&a);
    return state;
}

#define HEAD "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"

Test(bench, answers_in_pieces_of_any_size) {
    static const struct {
        const char *text;
        bool end; /* the connection ends behind it */
        int status, events;
        const char *last;
    } cases[] = {
        {HEAD "Transfer-Encoding: chunked\r\n\r\n9\r\ndata: a\n\n\r\nf\r\ndata: [DONE]\n\n\n\r\n0\r\n\r\n", false, 200, 2, "[DONE]"},
        {HEAD "Transfer-Encoding: chunked\r\n\r\n3;x=y\r\ndat\r\n6 \r\na: b\n\n\r\n0\r\nTrailer: x\r\n\r\n", false, 200, 1, "b"},
        {HEAD "transfer-encoding: gzip, chunked\r\nContent-Length: 3\r\n\r\n8\r\ndata:c\n\n\r\n0\r\n\r\n", false, 200, 1, "c"},
        {HEAD "Content-Length: 9\r\n\r\ndata: d\n\n", false, 200, 1, "d"},
        {HEAD "Content-Length: 9\r\nContent-Length: 9\r\n\r\ndata: d\n\n", false, 200, 1, "d"},
        {HEAD "\r\ndata: e\r\n\r\n: comment\r\ndata: f\r\n", true, 200, 2, "f"},
        {"HTTP/1.1 100 Continue\r\n\r\n" HEAD "Content-Length: 0\r\n\r\n", false, 200, 0, ""},
        {"HTTP/1.1 429 Too Many\r\nContent-Length: 2\r\n\r\n{}", false, 429, 0, ""},
        {"HTTP/1.0 204\r\n\r\n", false, 204, 0, ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        size_t len = strlen(cases[i].text);
        for (size_t piece = 1; piece <= len; piece++) {
            struct events e;
            int status;
            enum answer_state state = feed(cases[i].text, len, piece, cases[i].end, &e, &status);
            cr_assert(state == ANSWER_DONE && status == cases[i].status && e.n == cases[i].events && strcmp(e.last, cases[i].last) == 0,
                      "answer %zu in pieces of %zu: state %d, status %d, %d events, \"%s\"", i, piece, state, status, e.n, e.last);
            if (len > 1 && !cases[i].end) { /* cut anywhere: the connection ended too early */
                state = feed(cases[i].text, piece - 1, 1, true, &e, &status);
                cr_assert_eq(state, ANSWER_BROKEN, "answer %zu cut to %zu bytes", i, piece - 1);
            }
        }
    }
}

Test(bench, what_is_no_answer_is_broken) {
    static const char *const bad[] = {
        "hello\r\n\r\n",
        "HTTP/1.1 2x0 OK\r\n\r\n",
        "HTTP/1.1 999 OK\r\n\r\n",
        "HTTP/2 200\r\n\r\n",
        HEAD "Content-Length: -1\r\n\r\n",
        HEAD "Content-Length: 1x\r\n\r\n",
        HEAD "Content-Length:\r\n\r\n",
        HEAD "Content-Length: 99999999999999999999\r\n\r\n",
        HEAD "Content-Length: 1\r\nContent-Length: 2\r\n\r\n",
        HEAD "Transfer-Encoding: gzip\r\n\r\n",
        HEAD "Transfer-Encoding: chunked\r\n\r\nx\r\n",
        HEAD "Transfer-Encoding: chunked\r\n\r\n\r\n",
        HEAD "Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n",
        HEAD "Transfer-Encoding: chunked\r\n\r\n2\r\nabc\r\n",
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        for (size_t piece = 1; piece < 64; piece += 7) {
            struct events e;
            int status;
            cr_assert_eq(feed(bad[i], strlen(bad[i]), piece, false, &e, &status), ANSWER_BROKEN, "%zu: %s", i, bad[i]);
        }
    }
}

/* Lines, heads, trailers and sizes that never end: they break off, and memory stays small. */
Test(bench, endless_answers_break_off) {
    static const char *const beginnings[] = {
        "",
        "HTTP/1.1 200 OK\r\nX: ",
        HEAD "\r\ndata: ",
        HEAD "Transfer-Encoding: chunked\r\n\r\n1;",
        HEAD "Transfer-Encoding: chunked\r\n\r\n0\r\nX: ",
    };
    for (size_t i = 0; i < sizeof beginnings / sizeof beginnings[0]; i++) {
        struct answer a = {0};
        struct events e = {0};
        char block[4096];
        memset(block, 'a', sizeof block);
        answer_begin(&a);
        answer_feed(&a, beginnings[i], strlen(beginnings[i]), on_event, &e);
        for (int turn = 0; turn < 4096 && a.state != ANSWER_BROKEN; turn++) {
            answer_feed(&a, block, sizeof block, on_event, &e);
        }
        cr_assert_eq(a.state, ANSWER_BROKEN, "beginning %zu", i);
        cr_assert_leq(a.line_cap, ANSWER_MAX_LINE);
        answer_free(&a);
    }
    struct answer a = {0};
    struct events e = {0};
    answer_begin(&a);
    answer_feed(&a, "HTTP/1.1 200 OK\r\n", 17, on_event, &e);
    for (int i = 0; i < 1 << 20 && a.state != ANSWER_BROKEN; i++) { /* headers without end */
        answer_feed(&a, "X: y\r\n", 6, on_event, &e);
    }
    cr_assert_eq(a.state, ANSWER_BROKEN);
    answer_free(&a);
}
