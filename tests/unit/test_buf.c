#include <criterion/criterion.h>
#include <inferd/buf.h>
#include <string.h>

static char *json(const char *bytes, size_t len) {
    struct buf b = BUF_INIT;
    buf_json_string(&b, bytes, len);
    return buf_steal(&b);
}

Test(buf, json_string_escapes_and_replaces) {
    struct {
        const char *in;
        size_t len;
        const char *out;
    } cases[] = {
        {"plain", 5, "\"plain\""},
        {"a\"\\\n\x01", 5, "\"a\\\"\\\\\\n\\u0001\""},
        {"\0", 1, "\"\\u0000\""},
        {"\xc3\xa9", 2, "\"\xc3\xa9\""},
        {"\xc3", 1, "\"\xef\xbf\xbd\""},
        {"\xe2\x82x", 3, "\"\xef\xbf\xbdx\""},                                /* one for the maximal part */
        {"\xed\xa0\x80", 3, "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\""},      /* a surrogate: one a byte */
        {"\xf4\x90\x80\x80", 4, "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\""},
        {"\x7f", 1, "\"\\u007f\""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char *s = json(cases[i].in, cases[i].len);
        cr_assert_str_eq(s, cases[i].out, "case %zu", i);
        free(s);
    }
}

Test(buf, limit_marks_failed) {
    struct buf b = {.limit = 4};
    buf_puts(&b, "abcd");
    cr_assert(!b.failed);
    buf_puts(&b, "e");
    cr_assert(b.failed);
    cr_assert_eq(b.len, 4);
    cr_assert_null(buf_steal(&b));
}
