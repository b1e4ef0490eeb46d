#include "keys.h"
#include "config.h"
#include "key_ring.h"

#include <criterion/criterion.h>
#include <gnutls/crypto.h>
#include <gnutls/gnutls.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static struct error err;
static char path[] = "/tmp/test_keys_XXXXXX";

static void write_file(const char *text, size_t len, mode_t mode) {
    strcpy(path, "/tmp/test_keys_XXXXXX");
    int fd = mkstemp(path);
    cr_assert(fd >= 0 && write(fd, text, len) == (ssize_t)len && fchmod(fd, mode) == 0);
    close(fd);
}

static int load_mode(const char *text, size_t len, mode_t mode, struct keys *out, struct buf *warnings) {
    write_file(text, len, mode);
    int rc = keys_load_file(path, out, warnings, &err);
    unlink(path);
    return rc;
}

static int load(const char *text, struct keys *out) {
    return load_mode(text, strlen(text), 0600, out, NULL);
}

#define A "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
#define B "bBbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"

Test(keys, file) {
    struct keys k;
    cr_assert_eq(load("# who may ask\n"
                      "[alice]\n"
                      "sha256 = " A "\n"
                      "\n"
                      "  [bob.builder@example-1_x]   ; indented\n"
                      "\tsha256: " B "   ; a comment\r\n"
                      "scopes = infer, metrics admin\n"
                      "requests_per_minute = 60\n"
                      "tokens_per_minute = 100000\n"
                      "max_concurrent = 4\n"
                      "priority = high\n"
                      "cache_salt = the-team's",
                      &k),
                 0, "%s", err.message);
    cr_assert_eq(k.n, 2);
    const struct key_spec *a = &k.list[0], *b = &k.list[1];
    cr_expect_str_eq(a->name, "alice");
    cr_expect(a->digest[0] == 0xaa && a->digest[31] == 0xaa && a->scopes == KEY_INFER && a->priority == KEY_NORMAL);
    cr_expect(a->requests_per_minute == 0 && a->tokens_per_minute == 0 && a->max_concurrent == 0);
    cr_expect_str_eq(b->name, "bob.builder@example-1_x");
    cr_expect(b->digest[0] == 0xbb && b->scopes == KEY_ALL && b->priority == KEY_HIGH);
    cr_expect(b->requests_per_minute == 60 && b->tokens_per_minute == 100000 && b->max_concurrent == 4);
    cr_expect_neq(memcmp(b->who.digest, b->digest, AUTH_DIGEST), 0);
    cr_expect_eq(memcmp(a->who.digest, a->digest, AUTH_DIGEST), 0);
    keys_free(&k);
    keys_free(&k);
    keys_free(NULL);
}

Test(keys, faults_have_file_line_and_reason) {
    static const char name48[] = "abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuv";
    char long_name[128], at_most[192], long_line[400];
    snprintf(long_name, sizeof long_name, "[%sw]\nsha256=" A "\n", name48);
    snprintf(at_most, sizeof at_most, "[%s]\nsha256=" A "\n", name48);
    snprintf(long_line, sizeof long_line, "[a]\nsha256=" A "\ncache_salt=%0250d\n", 1);
    const struct {
        const char *text, *where, *reason;
    } cases[] = {
        {"", "", "there is no key in it"},
        {"# nothing\n\n", "", "there is no key in it"},
        {"sk-plain-key\n", ":1:", "inferd key NAME"},
        {"# c\nc2stcGxhaW4=\n", ":2:", "inferd key NAME"},
        {"[a]\n", ":1:", "the key a has no sha256"},
        {"[a]\nsha256=" A "\n[b]\n[c]\nsha256=" B "\n", ":3:", "the key b has no sha256"},
        {"[a]\nsha256=" A "\n\nsha256=" A "\n", ":4:", "stands twice"},
        {"[a]\nsha256=abc\n", ":1:", "64 hexadecimal digits"},
        {"[a]\nsha256=" A "a\n", ":1:", "64 hexadecimal digits"},
        {"[a]\nsha256=g" A "\n", ":1:", "64 hexadecimal digits"},
        {"[a]\nsha256=" A "\n[a]\nsha256=" B "\n", ":3:", "of this name"},
        {"[a]\nsha256=" A "\n[b]\nsha256=AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA\n", ":3:", "same sha256"},
        {"[a b]\nsha256=" A "\n", ":1:", "[NAME]"},
        {"[]\nsha256=" A "\n", ":1:", "[NAME]"},
        {"[a\nsha256=" A "\n", ":1:", "[NAME]"},
        {"[a] x\nsha256=" A "\n", ":1:", "[NAME]"},
        {"[\"]\nsha256=" A "\n", ":1:", "[NAME]"},
        {"[\xc3\xa9]\nsha256=" A "\n", ":1:", "[NAME]"},
        {long_name, ":1:", "[NAME]"},
        {long_line, ":3:", "too long"},
        {"[a]\nsha256=" A "\nscope=infer\n", ":3:", "did you mean scopes?"},
        {"[a]\nsha256=" A "\nc2VjcmV0==\n", ":3:", "a key has no such line"},
        {"[a]\nsha256=" A "\nscopes=infer root\n", ":1:", "scopes must be"},
        {"[a]\nsha256=" A "\nscopes=\n", ":1:", "scopes must be"},
        {"[a]\nsha256=" A "\nrequests_per_minute=-1\n", ":3:", "an integer from 0 to 1000000000"},
        {"[a]\nsha256=" A "\nrequests_per_minute=1000000001\n", ":3:", "an integer from 0 to 1000000000"},
        {"[a]\nsha256=" A "\ntokens_per_minute=1099511627777\n", ":3:", "1099511627776"},
        {"[a]\nsha256=" A "\nmax_concurrent=1.5\n", ":3:", "an integer from 0 to 1000000"},
        {"[a]\nsha256=" A "\npriority=urgent\n", ":3:", "high, normal or low"},
        {"[a]\nsha256=" A "\ncache_salt=a b\n", ":1:", "without blanks"},
        {"[a]\nsha256=" A "\nwhat is this\n", ":3:", "not \"name = value\""},
    };
    struct keys k = {0};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char where[64];
        cr_assert_eq(load(cases[i].text, &k), -1, "%s", cases[i].text);
        cr_expect_eq(err.code, ERROR_MODEL);
        snprintf(where, sizeof where, "%s%s", path, cases[i].where);
        cr_expect(strncmp(err.message, where, strlen(where)) == 0 && strstr(err.message, cases[i].reason), "%s: %s",
                  cases[i].text, err.message);
    }
    cr_assert_eq(load_mode("[a]\nsha\0" "256=\n", 13, 0600, &k, NULL), -1);
    cr_expect_not_null(strstr(err.message, ":2: the line has a NUL byte"), "%s", err.message);
    cr_expect(load("[a]\nc2VjcmV0==\n", &k) == -1 && !strstr(err.message, "c2VjcmV0"), "a key may stand there: %s", err.message);
    cr_expect(k.list == NULL && k.n == 0);
    cr_assert_eq(load(at_most, &k), 0, "%s", err.message);
    cr_expect_str_eq(k.list[0].name, name48);
    keys_free(&k);
}

Test(keys, who_may_touch_the_file) {
    static const char text[] = "[a]\nsha256=" A "\n";
    static const mode_t refused[] = {0620, 0602, 0666, 0664}, warned[] = {0644, 0604}, good[] = {0600, 0400, 0640, 0440};
    struct keys k = {0};
    for (size_t i = 0; i < 4; i++) {
        struct buf w = BUF_INIT;
        cr_assert_eq(load_mode(text, strlen(text), refused[i], &k, &w), -1, "%o", refused[i]);
        cr_expect(strstr(err.message, "chmod go-w") && w.len == 0, "%s", err.message);
        cr_assert_eq(load_mode(text, strlen(text), good[i], &k, &w), 0);
        cr_expect_eq(w.len, 0, "%o: %s", good[i], w.data);
        keys_free(&k);
        buf_free(&w);
    }
    for (size_t i = 0; i < 2; i++) {
        struct buf w = BUF_INIT;
        cr_assert_eq(load_mode(text, strlen(text), warned[i], &k, &w), 0);
        cr_expect(w.len > 0 && strstr(w.data, "others can read"), "%o", warned[i]);
        keys_free(&k);
        buf_free(&w);
    }
    cr_assert_eq(keys_load_file("/nonexistent/keys", &k, NULL, &err), -1);
    cr_expect_not_null(strstr(err.message, "/nonexistent/keys: No such file"));
    cr_assert_eq(keys_load_file("/tmp", &k, NULL, &err), -1);
    cr_expect_not_null(strstr(err.message, "/tmp: Is a directory"), "%s", err.message);
    cr_assert_eq(keys_load_file("/dev/zero", &k, NULL, &err), -1);
    cr_expect_not_null(strstr(err.message, "/dev/zero: it is no regular file"), "%s", err.message);
}

/* Neither one that would hold up whoever reads it nor one without an end. */
Test(keys, only_a_file_of_its_size, .timeout = 60) {
    char name[] = "/tmp/inferd-keys-XXXXXX";
    struct keys k = {0};
    int fd = mkstemp(name);
    cr_assert(fd >= 0 && ftruncate(fd, (off_t)17 << 20) == 0);
    close(fd);
    cr_assert_eq(keys_load_file(name, &k, NULL, &err), -1);
    cr_expect_not_null(strstr(err.message, "too large"), "%s", err.message);
    cr_assert(unlink(name) == 0 && mkfifo(name, 0600) == 0);
    cr_assert_eq(keys_load_file(name, &k, NULL, &err), -1);
    cr_expect_not_null(strstr(err.message, "it is no regular file"), "%s", err.message);
    unlink(name);
}

Test(keys, both_settings) {
    struct config c;
    struct keys k;
    cr_assert_eq(config_init(&c, &err), 0);
    cr_assert_eq(keys_load(&c, &k, NULL, &err), 0);
    cr_assert(k.n == 0 && k.list == NULL);
    free(c.api_key);
    c.api_key = strdup("abc");
    cr_assert_eq(keys_load(&c, &k, NULL, &err), 0);
    cr_assert(k.n == 1 && k.list[0].scopes == KEY_ALL && k.list[0].digest[0] == 0xba);
    cr_expect_str_eq(k.list[0].name, "api_key");
    keys_free(&k);
    write_file("[api_key]\nsha256=" A "\n", strlen("[api_key]\nsha256=" A "\n"), 0600);
    free(c.api_keys_file);
    c.api_keys_file = path;
    cr_assert_eq(keys_load(&c, &k, NULL, &err), -1);
    cr_expect_not_null(strstr(err.message, "of this name"), "%s", err.message);
    unlink(path);
    c.api_keys_file = strdup("");
    c.api_key[1] = ' ';
    cr_assert_eq(keys_load(&c, &k, NULL, &err), -1);
    cr_expect_not_null(strstr(err.message, "without blanks"));
    free(c.api_key);
    c.api_key = calloc(1, 258);
    memset(c.api_key, 'k', 257);
    cr_assert_eq(keys_load(&c, &k, NULL, &err), -1);
    cr_expect_not_null(strstr(err.message, "256 characters"));
    c.api_key[256] = '\0';
    cr_assert_eq(keys_load(&c, &k, NULL, &err), 0);
    keys_free(&k);
    config_free(&c);
}

Test(keys, too_many) {
    struct buf text = BUF_INIT;
    struct keys k;
    for (int i = 0; i < KEYS_MAX; i++) {
        buf_printf(&text, "[k%d]\nsha256 = %064x\n", i, i + 1);
    }
    cr_assert_eq(load(text.data, &k), 0, "%s", err.message);
    cr_assert_eq(k.n, KEYS_MAX);
    keys_free(&k);
    buf_printf(&text, "[one]\nsha256 = %064x\n", KEYS_MAX + 1);
    cr_assert_eq(load(text.data, &k), -1);
    cr_expect_not_null(strstr(err.message, ":2001: there are too many keys"), "%s", err.message);
    buf_free(&text);
}

/* ---- the ring ------------------------------------------------------------------------------------------------ */

#define S 1000000000ull /* ns */

static struct key_spec spec(const char *name, const char *key) {
    struct key_spec s = {.scopes = KEY_INFER};
    strcpy(s.name, name);
    cr_assert_eq(auth_digest(key, strlen(key), s.digest, &err), 0);
    cr_assert_eq(auth_identify(s.digest, "", &s.who, &err), 0);
    return s;
}

static void set(struct key_ring *ring, struct key_spec *list, size_t n, uint64_t now) {
    struct key_change change;
    cr_assert_eq(key_change_make(ring, &(struct keys){list, n}, &change, &err), 0);
    key_change_apply(ring, &change, now);
}

/* In place of the library's: how much is compared must not depend on what is found. */
static size_t compared, compared_bytes;
int gnutls_memcmp(const void *a, const void *b, size_t n) {
    compared++;
    compared_bytes += n;
    return memcmp(a, b, n);
}

Test(key_ring, every_key_is_compared_whichever_fits) {
    struct key_ring ring = {0};
    struct key_spec list[] = {spec("a", "alpha"), spec("b", "beta"), spec("c", "gamma")};
    set(&ring, list, 3, S);
    static const struct {
        const char *header, *name;
    } cases[] = {{"Bearer alpha", "a"}, {"bearer  beta", "b"}, {"Bearer gamma", "c"}, {"Bearer delta", NULL}, {"Bearer ", NULL},
                 {"Bearer Alpha", NULL}, {"Bearer alpha ", NULL}, {"Bearer alph", NULL}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        compared = compared_bytes = 0;
        const struct key *k = key_ring_find(&ring, cases[i].header);
        cr_expect(cases[i].name ? k && strcmp(key_name(k), cases[i].name) == 0 : k == NULL, "%s", cases[i].header);
        cr_expect(compared == 3 && compared_bytes == 3 * AUTH_DIGEST, "%s: %zu", cases[i].header, compared);
    }
    cr_expect_null(key_ring_find(&ring, NULL));
    cr_expect_null(key_ring_find(&ring, "alpha"));
    key_ring_free(&ring);
}

Test(key_ring, a_key_outlives_its_ring_and_keeps_its_counts) {
    struct key_ring ring = {0};
    struct key_spec list[] = {spec("a", "alpha"), spec("b", "beta")};
    list[0].requests_per_minute = 60;
    set(&ring, list, 2, S);
    struct key *a = key_hold(key_ring_find(&ring, "Bearer alpha")), *b = key_hold(key_ring_find(&ring, "Bearer beta"));
    enum key_rejection why;
    double seconds;
    for (int i = 0; i < 10; i++) {
        cr_assert_not(key_over_limit(a, true, S, &why, &seconds));
    }
    /* another key under the same name, another limit; b is gone */
    struct key_spec next[] = {spec("c", "gamma"), spec("a", "alpha-2")};
    next[1].requests_per_minute = 30;
    set(&ring, next, 2, S);
    cr_assert_null(key_ring_find(&ring, "Bearer alpha"));
    cr_assert_null(key_ring_find(&ring, "Bearer beta"));
    cr_assert_eq(key_ring_find(&ring, "Bearer alpha-2"), a);
    cr_expect_eq(a->n_requests, 10);
    cr_expect_float_eq(bucket_level(&a->requests, S), 20, 1e-9);
    cr_expect_str_eq(key_name(b), "b");
    /* a change that is dropped changes nothing */
    struct key_change change;
    cr_assert_eq(key_change_make(&ring, &(struct keys){list, 2}, &change, &err), 0);
    key_change_free(&change);
    cr_assert_eq(key_ring_find(&ring, "Bearer alpha-2"), a);
    cr_expect_eq(a->spec.requests_per_minute, 30);
    key_release(a);
    key_release(b);
    key_ring_free(&ring);
    cr_expect_str_eq(key_name(NULL), "");
    key_release(key_hold(NULL));
}

Test(key_ring, limits) {
    struct key_ring ring = {0};
    struct key_spec list[] = {spec("a", "alpha")};
    list[0].requests_per_minute = 2;
    list[0].tokens_per_minute = 600;
    list[0].max_concurrent = 1;
    set(&ring, list, 1, S);
    struct key *k = ring.list[0];
    enum key_rejection why;
    double seconds;
    cr_assert_not(key_over_limit(k, true, S, &why, &seconds));
    k->active = 1;
    cr_assert(key_over_limit(k, true, S, &why, &seconds) && why == KEY_REJECTED_CONCURRENT && seconds == 0);
    cr_assert_not(key_over_limit(k, false, S, &why, &seconds)); /* not a generating one */
    k->active = 0;
    cr_assert(key_over_limit(k, true, S, &why, &seconds) && why == KEY_REJECTED_REQUESTS);
    cr_expect_float_eq(seconds, 30, 1e-9);
    cr_assert(key_over_limit(k, true, S + 29 * S, &why, &seconds));
    cr_expect_float_eq(seconds, 1, 1e-6);
    cr_assert_not(key_over_limit(k, true, S + 30 * S + 1000, &why, &seconds));
    cr_expect_eq(k->n_requests, 3);
    cr_expect(k->rejected[KEY_REJECTED_REQUESTS] == 2 && k->rejected[KEY_REJECTED_CONCURRENT] == 1);
    /* tokens: a prompt must fit, what is generated may run into debt */
    uint64_t now = 1000 * S;
    cr_assert(key_take_prompt(k, 500, now, &seconds));
    cr_assert_not(key_take_prompt(k, 200, now, &seconds));
    cr_expect_float_eq(seconds, 10, 1e-9);
    bucket_take(&k->tokens, 200, now);
    cr_assert(key_over_limit(k, true, now, &why, &seconds) && why == KEY_REJECTED_TOKENS);
    cr_expect_float_eq(seconds, 10.1, 1e-9);
    cr_assert_not(key_over_limit(k, false, now, &why, &seconds));
    cr_assert_not(key_over_limit(NULL, true, now, &why, &seconds));
    cr_assert(key_take_prompt(NULL, 1000, now, &seconds));
    key_ring_free(&ring);
}

Test(key_ring, buckets) {
    struct token_bucket b = {0};
    bucket_take(&b, 5, S); /* no limit: nothing is remembered */
    bucket_set(&b, 60, S);
    cr_expect_float_eq(bucket_level(&b, S), 60, 0);
    bucket_take(&b, 30, S);
    cr_expect_float_eq(bucket_level(&b, 11 * S), 40, 1e-9);
    cr_expect_float_eq(bucket_reset(&b, 11 * S), 20, 1e-9);
    cr_expect_float_eq(bucket_level(&b, 5 * S), 40, 1e-9); /* a clock that was read earlier takes nothing back */
    cr_expect_float_eq(bucket_level(&b, 1000 * S), 60, 0);
    bucket_take(&b, 100, 1000 * S);
    cr_expect_float_eq(bucket_level(&b, 1000 * S), -40, 1e-9);
    cr_expect_float_eq(bucket_wait(&b, 1000, 1000 * S), 100, 1e-9); /* more than it holds: until it is full */
    bucket_take(&b, -70, 1000 * S);
    cr_expect_float_eq(bucket_level(&b, 1000 * S), 30, 1e-9);
    bucket_take(&b, -1000, 1000 * S);
    cr_expect_float_eq(bucket_level(&b, 1000 * S), 60, 1e-9); /* never more than full */
    bucket_set(&b, 0, 1000 * S);
    cr_expect_float_eq(bucket_wait(&b, 1, 1000 * S), 0, 0);
}

/* As in the OpenAI service's documentation of these headers ("1s", "6m0s") and what it is seen to send. */
Test(key_ring, durations) {
    static const struct {
        double seconds;
        const char *text;
    } cases[] = {{0, "0ms"}, {0.017, "17ms"}, {0.0171, "18ms"}, {1, "1s"}, {8.64, "8.64s"}, {59.999, "59.999s"}, {59.9999, "1m0s"},
                 {360, "6m0s"}, {90.951, "1m30.951s"}, {4000, "66m40s"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[32];
        key_print_duration(cases[i].seconds, text);
        cr_expect_str_eq(text, cases[i].text);
    }
}

Test(key_ring, metrics) {
    struct key_ring ring = {0};
    struct buf out = BUF_INIT;
    key_ring_metrics(&ring, &out);
    cr_expect_eq(out.len, 0);
    struct key_spec list[] = {spec("a", "alpha"), spec("b", "beta")};
    set(&ring, list, 2, S);
    ring.list[1]->prompt_tokens = 7;
    ring.list[1]->rejected[KEY_REJECTED_SCOPE] = 3;
    key_ring_metrics(&ring, &out);
    static const char *const lines[] = {"inferd_key_requests_total{key=\"a\"} 0\n", "inferd_key_prompt_tokens_total{key=\"b\"} 7\n",
                                        "inferd_key_generation_tokens_total{key=\"a\"} 0\n",
                                        "inferd_key_rejected_total{key=\"b\",reason=\"scope\"} 3\n",
                                        "inferd_key_rejected_total{key=\"a\",reason=\"max_concurrent\"} 0\n"};
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        cr_expect_not_null(strstr(out.data, lines[i]), "%s", lines[i]);
    }
    buf_free(&out);
    key_ring_free(&ring);
}
