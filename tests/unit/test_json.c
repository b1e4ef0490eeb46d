#include "shared_data.h"

#include <cjson/cJSON.h>
#include <criterion/criterion.h>
#include <dirent.h>
#include <inferd/buf.h>
#include <inferd/clock.h>
#include <inferd/json.h>
#include <math.h>
#include <string.h>

static struct error err;
static const struct json_limits permissive = {
    .max_depth = JSON_DEPTH_CEILING, .allow_nul = true, .allow_duplicate = true};

static int check(const char *text) {
    return json_check(text, strlen(text), NULL, &err);
}

Test(json, accepts) {
    static const char *const good[] = {
        "{}",
        "[]",
        " [ ] ",
        "0",
        "-0",
        "1.5e+10",
        "1E-2",
        "null",
        "true",
        "false",
        "\"\"",
        "\t\r\n 1 ",
        "{\"a\":{\"b\":[1,2,{\"c\":[]}]},\"d\":\"x\"}",
        "[[],{},[[]],0]",
        "\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u00e9\\uD83D\\ude00\"",
        "\"\x7f\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\"",
        "{\"a\":1,\"A\":1}",
        "{\"\":1,\" \":1}",
        "[\"a\",\"a\"]",
        "[{\"a\":1},{\"a\":1}]",
        "{\"a\":{\"a\":{\"a\":1}}}",
        "\"\\\\u0000\"",
        "123456789012345678901234567890",
    };
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        cr_expect_eq(check(good[i]), 0, "%s: %s", good[i], err.message);
        struct cJSON *tree = NULL;
        cr_expect_eq(json_parse(good[i], strlen(good[i]), NULL, &tree, &err), 0, "%s: %s", good[i], err.message);
        cJSON_Delete(tree);
    }
}

Test(json, refuses) {
    static const char *const bad[] = {
        "",
        " ",
        "{",
        "[",
        "]",
        "}",
        "[1",
        "[1,",
        "[1,]",
        "[,1]",
        "[1 2]",
        "{\"a\"",
        "{\"a\":",
        "{\"a\":1",
        "{\"a\":1,}",
        "{,}",
        "{1:2}",
        "{a:1}",
        "{'a':1}",
        "{\"a\" 1}",
        "{\"a\":1]",
        "[1}",
        "1 2",
        "[] []",
        "{}x",
        "\"",
        "\"a",
        "'a'",
        "01",
        "[01]",
        "-01",
        "1.",
        "[1.]",
        ".5",
        "+1",
        "-",
        "1e",
        "1e+",
        "0x1",
        "1_0",
        "NaN",
        "Infinity",
        "-Infinity",
        "nul",
        "nulls",
        "True",
        "tru",
        "\"\\x\"",
        "\"\\",
        "\"\\u12\"",
        "\"\\u12",
        "\"\\u12g4\"",
        "\"\\ud800\"",
        "\"\\udc00\"",
        "\"\\ud800x\"",
        "\"\\ud800\\n\"",
        "\"\\ud800\\ud800\"",
        "\"\\ud800\\u0041\"",
        "\"a\nb\"",
        "\"a\tb\"",
        "\"\x01\"",
        "\"\xff\"",
        "\"\xc3\"",
        "\"\xed\xa0\x80\"",
        "\"\xc0\x80\"",
        "\"\xf5\x80\x80\x80\"",
        "\xef\xbb\xbf[]",
        "[1]/*c*/",
        "// c\n1",
        "\"\\u0000\"",
        "{\"a\\u0000b\":1}",
        "\f1",
        ("\xc2\xa0"
         "1"),
        "{\"a\":1,\"a\":1}",
        "{\"a\":1,\"b\":2,\"\\u0061\":3}",
        "{\"\":1,\"\":2}",
        "[{\"x\":{\"k\":1,\"l\":[{}],\"k\":2}}]",
        "{\"\\ud83d\\ude00\":1,\"\xf0\x9f\x98\x80\":2}",
        "{\"\\/\":1,\"/\":2}",
        "{\"a\\n\":1,\"a\\u000A\":2}",
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        err.message[0] = '\0';
        cr_expect_eq(check(bad[i]), -1, "%s was accepted", bad[i]);
        cr_expect_eq(err.code, ERROR_INVALID, "%s", bad[i]);
        cr_expect(strstr(err.message, "byte "), "%s: %s", bad[i], err.message);
    }
    cr_expect_eq(json_check("[1]\0", 4, NULL, &err), -1);
    cr_expect_eq(json_check("\"a\0b\"", 5, NULL, &err), -1);
    cr_expect_eq(json_check(NULL, 0, NULL, &err), -1);
}

/* The text is not NUL-terminated: each prefix stands at the end of its own allocation, where ASan looks. */
Test(json, every_prefix_is_refused) {
    const char whole[] = "{\"a\":[1.5e-3,true,null,\"\\ud83d\\ude00\\n\xe2\x82\xac\"],\"b\":{\"c\":false}}";
    for (size_t n = 0; n < sizeof whole - 1; n++) {
        char *copy = malloc(n ? n : 1);
        memcpy(copy, whole, n);
        cr_expect_eq(json_check(copy, n, NULL, &err), -1, "%zu bytes", n);
        free(copy);
    }
    cr_expect_eq(check(whole), 0);
}

Test(json, says_where) {
    struct {
        const char *text, *message;
    } cases[] = {
        {"[1, 02]", "not valid JSON: byte 5: a number has a leading zero"},
        {"{\"key\": 1, \"k\\u0065y\": 2}", "not valid JSON: byte 11: a key appears twice in one object"},
        {"[\"ab\\ud800\"]", "not valid JSON: byte 4: a lone surrogate is not a character"},
        {"[true", "not valid JSON: byte 5: the text ends too early"},
        {"\"a\xff\"", "not valid JSON: byte 2: not valid UTF-8"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cr_expect_eq(check(cases[i].text), -1);
        cr_expect_str_eq(err.message, cases[i].message);
    }
}

static char *nested(size_t depth, char open, char close) {
    char *s = malloc(2 * depth + 1);
    memset(s, open, depth);
    memset(s + depth, close, depth);
    s[2 * depth] = '\0';
    return s;
}

Test(json, depth) {
    char *s = nested(64, '[', ']');
    cr_expect_eq(check(s), 0);
    free(s);
    s = nested(65, '[', ']');
    cr_expect_eq(check(s), -1);
    cr_expect_str_eq(err.message, "not valid JSON: byte 64: nested deeper than 64 levels");
    cr_expect_eq(json_check(s, strlen(s), &permissive, &err), 0);
    cr_expect_eq(json_check(s, strlen(s), &(struct json_limits){.max_depth = 3}, &err), -1);
    free(s);
    s = nested(100000, '[', ']');
    struct cJSON *tree;
    cr_expect_eq(check(s), -1);
    cr_expect_eq(json_parse(s, strlen(s), &(struct json_limits){.max_depth = SIZE_MAX}, &tree, &err), -1);
    free(s);
}

/* Keys that a hash or a careless sort might handle in quadratic time; n log n takes well under a second. */
Test(json, many_keys) {
    enum { N = 100000 };
    for (int kind = 0; kind < 3; kind++) {
        struct buf b = BUF_INIT;
        for (int i = 0; i < N; i++) {
            int k = kind == 0 ? i : kind == 1 ? N - i : (int)((unsigned)i * 7919u % N);
            buf_printf(&b, "%s\"common prefix of every key %d\":0", i ? "," : "{", k);
        }
        size_t end = b.len;
        buf_puts(&b, "}");
        uint64_t t0 = clock_now_ns();
        cr_expect_eq(json_check(b.data, b.len, NULL, &err), 0, "%s", err.message);
        cr_expect_lt(clock_now_ns() - t0, 10000000000u);
        b.len = end;
        buf_puts(&b, ",\"common prefix of every k\\u0065y 4711\":1}");
        cr_expect_eq(json_check(b.data, b.len, NULL, &err), -1);
        cr_expect_eq(json_check(b.data, b.len, &permissive, &err), 0);
        buf_free(&b);
    }
}

static void each_file(const char *folder, void (*fn)(const char *name, const char *text, size_t len)) {
    char dir[4096];
    snprintf(dir, sizeof dir, "%s", shared_data(folder));
    DIR *d = opendir(dir);
    cr_assert_not_null(d);
    size_t n = 0;
    for (struct dirent *e; (e = readdir(d));) {
        if (e->d_name[0] == '.') {
            continue;
        }
        char path[8192];
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        size_t len;
        char *text = read_whole(path, &len), *exact = malloc(len ? len : 1);
        memcpy(exact, text, len);
        fn(e->d_name, exact, len);
        free(exact);
        free(text);
        n++;
    }
    closedir(d);
    cr_expect_gt(n, 10);
}

static bool is_one_of(const char *name, const char *const *list) {
    for (; *list; list++) {
        if (!strcmp(*list, name)) {
            return true;
        }
    }
    return false;
}

static void parse_file(const char *name, const char *text, size_t len) {
    /* what the standard leaves open, or allows and we refuse by default */
    static const char *const strict_refuses[] = {
        "y_object_duplicated_key.json",
        "y_object_duplicated_key_and_value.json",
        "y_string_null_escape.json",
        "y_object_escaped_null_in_key.json",
        NULL,
    };
    static const char *const implementation_accepts[] = {
        "i_number_double_huge_neg_exp.json",
        "i_number_neg_int_huge_exp.json",
        "i_number_pos_double_huge_exp.json",
        "i_number_real_neg_overflow.json",
        "i_number_real_pos_overflow.json",
        "i_number_real_underflow.json",
        "i_number_too_big_neg_int.json",
        "i_number_too_big_pos_int.json",
        "i_number_very_big_negative_int.json",
        "i_number_huge_exp.json",
        NULL,
    };
    struct cJSON *tree = NULL;
    int strict = json_check(text, len, NULL, &err);
    int loose = json_parse(text, len, &permissive, &tree, &err);
    cJSON_Delete(tree);
    if (name[0] == 'y') {
        cr_expect_eq(loose, 0, "%s: %s", name, err.message);
        cr_expect_eq(strict, is_one_of(name, strict_refuses) ? -1 : 0, "%s", name);
    } else if (name[0] == 'n') {
        cr_expect_eq(loose, -1, "%s", name);
        cr_expect_eq(strict, -1, "%s", name);
    } else {
        cr_expect_eq(strict, is_one_of(name, implementation_accepts) ? 0 : -1, "%s", name);
    }
}

Test(json, parse_suite) {
    each_file("json-parse", parse_file);
}

static void transform_file(const char *name, const char *text, size_t len) {
    bool refused = !strncmp(name, "string_", 7) || !strcmp(name, "object_same_key_same_value.json") ||
                   !strcmp(name, "object_same_key_different_values.json") ||
                   !strcmp(name, "object_same_key_unclear_values.json");
    cr_expect_eq(json_check(text, len, NULL, &err), refused ? -1 : 0, "%s", name);
}

Test(json, transform_suite) {
    each_file("json-transform", transform_file);
}

Test(json, parse_keeps_values) {
    struct cJSON *t = NULL;
    /* 70 digits: more than cJSON's number buffer holds */
    const char *text = "{\"a\":[1.0000000000000000000000000000000000000000000000000000000000000000000005,2],"
                       "\"s\":\"1e99 \\\" 1111111111111111111111111111111111111111111111111111111111111111111111\","
                       "\"big\":99999999999999999999999999999999999999999999999999999999999999999999e999,\"x\":-7}";
    cr_assert_eq(json_parse(text, strlen(text), NULL, &t, &err), 0, "%s", err.message);
    const cJSON *a = cJSON_GetObjectItemCaseSensitive(t, "a");
    cr_expect_eq(cJSON_GetArraySize(a), 2);
    cr_expect_eq(cJSON_GetArrayItem(a, 0)->valuedouble, 1.0);
    cr_expect_eq(cJSON_GetArrayItem(a, 1)->valuedouble, 2.0);
    cr_expect_str_eq(cJSON_GetObjectItemCaseSensitive(t, "s")->valuestring,
                     "1e99 \" 1111111111111111111111111111111111111111111111111111111111111111111111");
    cr_expect(isinf(cJSON_GetObjectItemCaseSensitive(t, "big")->valuedouble));
    cr_expect_eq(cJSON_GetObjectItemCaseSensitive(t, "x")->valuedouble, -7.0);
    cJSON_Delete(t);
}

Test(json, member) {
    const char *text =
        " {\"x\":{\"seed\":1}, \"se\\u0065d\" : 9007199254740993 , \"o\":{\"a\":[1,{\"b\":2}]},\"e\":[] }";
    struct {
        const char *key, *value;
    } cases[] = {{"seed", "9007199254740993"}, {"x", "{\"seed\":1}"}, {"o", "{\"a\":[1,{\"b\":2}]}"}, {"e", "[]"}};
    const char *start;
    size_t n;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cr_assert(json_member(text, strlen(text), cases[i].key, &start, &n), "%s", cases[i].key);
        cr_expect(n == strlen(cases[i].value) && !memcmp(start, cases[i].value, n), "%s: %.*s", cases[i].key, (int)n,
                  start);
    }
    cr_expect(!json_member(text, strlen(text), "a", &start, &n));
    cr_expect(!json_member(text, strlen(text), "", &start, &n));
    cr_expect(!json_member("[1]", 3, "a", &start, &n));
    cr_expect(!json_member("3", 1, "a", &start, &n));
}

Test(json, raw_int) {
    struct {
        const char *text;
        bool ok;
        int64_t value;
    } cases[] = {
        {"0", true, 0},
        {"-0", true, 0},
        {"9007199254740993", true, 9007199254740993},
        {"-17", true, -17},
        {"9223372036854775807", true, INT64_MAX},
        {"-9223372036854775808", true, INT64_MIN},
        {"9223372036854775808", false, 0},
        {"-9223372036854775809", false, 0},
        {"99999999999999999999", false, 0},
        {"1.0", false, 0},
        {"1e3", false, 0},
        {"", false, 0},
        {"-", false, 0},
        {"01", false, 0},
        {"-01", false, 0},
        {"+1", false, 0},
        {" 1", false, 0},
        {"\"1\"", false, 0},
        {"true", false, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int64_t v = 42;
        cr_expect_eq(json_raw_int(cases[i].text, strlen(cases[i].text), &v), cases[i].ok, "%s", cases[i].text);
        cr_expect_eq(v, cases[i].ok ? cases[i].value : 42, "%s", cases[i].text);
    }
}

Test(json, getters) {
    struct cJSON *t = NULL;
    const char *text =
        "{\"i\":7,\"f\":1.0,\"h\":1.5,\"big\":9007199254740994,\"inf\":1e999,\"b\":true,\"s\":\"x\",\"z\":null}";
    cr_assert_eq(json_parse(text, strlen(text), NULL, &t, &err), 0);
    int64_t i = -1;
    double d = -1;
    bool b = false;
    const char *s = "default";
    cr_expect(json_get_int(t, "i", 0, 10, &i, &err) == 0 && i == 7);
    cr_expect(json_get_int(t, "f", 0, 10, &i, &err) == 0 && i == 1);
    cr_expect(json_get_int(t, "missing", 0, 10, &i, &err) == 0 && i == 1);
    cr_expect(json_get_int(t, "z", 0, 10, &i, &err) == 0 && i == 1);
    static const char *const not_ints[] = {"h", "big", "inf", "b", "s"};
    for (size_t k = 0; k < 5; k++) {
        cr_expect_eq(json_get_int(t, not_ints[k], INT64_MIN, INT64_MAX, &i, &err), -1, "%s", not_ints[k]);
        cr_expect_str_eq(err.param, not_ints[k]);
        cr_expect_eq(err.code, ERROR_INVALID);
    }
    cr_expect_eq(json_get_int(t, "i", 8, 10, &i, &err), -1);
    cr_expect_str_eq(err.message, "i must be an integer from 8 to 10");
    cr_expect_eq(json_get_int(t, "i", 8, INT64_MAX, &i, &err), -1);
    cr_expect_str_eq(err.message, "i must be an integer of at least 8");
    cr_expect_eq(i, 1);

    cr_expect(json_get_double(t, "h", 0, 2, &d, &err) == 0 && d == 1.5);
    cr_expect_eq(json_get_double(t, "i", 0, 2, &d, &err), -1);
    cr_expect_str_eq(err.message, "i must be a number from 0 to 2");
    cr_expect_eq(json_get_double(t, "inf", 0, INFINITY, &d, &err), -1);
    cr_expect_eq(json_get_double(t, "s", 0, 2, &d, &err), -1);
    cr_expect(json_get_bool(t, "b", &b, &err) == 0 && b);
    cr_expect_eq(json_get_bool(t, "i", &b, &err), -1);
    cr_expect(json_get_string(t, "z", &s, &err) == 0 && !strcmp(s, "default"));
    cr_expect(json_get_string(t, "s", &s, &err) == 0 && !strcmp(s, "x"));
    cr_expect_eq(json_get_string(t, "i", &s, &err), -1);
    cJSON_Delete(t);
}

Test(json, raw_strings) {
    static const struct {
        const char *raw, *want;
        size_t len;
    } cases[] = {
        {"\"\"", "", 0},
        {"\"a\\\"\\\\\\/\\b\\f\\n\\r\\t\\u00e9\"", "a\"\\/\b\f\n\r\t\xc3\xa9", 11},
        {"\"\\u0000x\"", "\0x", 2},
        {"\"\\ud83d\\ude00\xc3\xa9\\uFFFF\"", "\xf0\x9f\x98\x80\xc3\xa9\xef\xbf\xbf", 9},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct buf out = BUF_INIT;
        buf_putc(&out, '<');
        cr_expect(json_raw_string(cases[i].raw, strlen(cases[i].raw), &out), "%s", cases[i].raw);
        cr_expect_eq(out.len, cases[i].len + 1, "%s", cases[i].raw);
        cr_expect_eq(memcmp(out.data + 1, cases[i].want, cases[i].len), 0, "%s", cases[i].raw);
        buf_free(&out);
    }
    struct buf out = BUF_INIT;
    cr_expect_not(json_raw_string("1", 1, &out));
    cr_expect_not(json_raw_string("\"", 1, &out));
    cr_expect_not(json_raw_string("[\"a\"]", 5, &out));
    cr_expect_eq(out.len, 0);
}
