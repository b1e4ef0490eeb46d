#include "base/utf8.h"
#include "text/jinja/json.h"
#include "text/jinja/number.h"
#include "text/jinja/render.h"
#include "text/jinja/str.h"

#include <string.h>

struct reader {
    struct render *r;
    const char *s;
    size_t len, at;
    unsigned depth;
    const char *name;
};

static struct value bad(struct reader *j, const char *why) {
    jj_fail(j->r, "%s: %s at byte %zu", j->name, why, j->at);
    return NONE;
}

static char skip_space(struct reader *j) {
    while (j->at < j->len && strchr(" \t\r\n", j->s[j->at]) && j->s[j->at]) {
        j->at++;
    }
    return j->at < j->len ? j->s[j->at] : '\0';
}

static bool hex4(struct reader *j, uint32_t *out) {
    uint32_t v = 0;
    if (j->len - j->at < 4) {
        return false;
    }
    for (int i = 0; i < 4; i++) {
        char c = j->s[j->at + (size_t)i], lower = (char)(c | 0x20);
        if (c >= '0' && c <= '9') {
            v = v << 4 | (uint32_t)(c - '0');
        } else if (lower >= 'a' && lower <= 'f') {
            v = v << 4 | (uint32_t)(lower - 'a' + 10);
        } else {
            return false;
        }
    }
    j->at += 4;
    *out = v;
    return true;
}

/* Behind \u: the code point, two escapes of a surrogate pair being one. Lone surrogates become U+FFFD. */
static bool unicode_escape(struct reader *j, uint32_t *out) {
    uint32_t c, low;
    if (!hex4(j, &c)) {
        return false;
    }
    if (c >= 0xd800 && c <= 0xdbff && j->len - j->at >= 6 && j->s[j->at] == '\\' && j->s[j->at + 1] == 'u') {
        size_t back = j->at;
        j->at += 2;
        if (!hex4(j, &low)) {
            return false;
        }
        if (low >= 0xdc00 && low <= 0xdfff) {
            *out = 0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00);
            return true;
        }
        j->at = back;
    }
    *out = c >= 0xd800 && c <= 0xdfff ? 0xfffd : c;
    return true;
}

/* The rest of a string from its first escape on; `start` is its first byte. */
static const struct str *read_escaped(struct reader *j, size_t start) {
    struct sb b;
    jj_sb_init(&b, j->r);
    size_t plain = start;
    while (j->at < j->len && j->s[j->at] != '"' && !j->r->failed) {
        if (j->s[j->at] != '\\') {
            j->at++;
            continue;
        }
        jj_sb_add(&b, j->s + plain, j->at - plain, false);
        j->at++;
        static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
        char c = j->at < j->len ? j->s[j->at] : '\0';
        const char *known = c ? strchr(from, c) : NULL;
        j->at++;
        uint32_t code_point;
        if (known) {
            jj_sb_add(&b, &to[known - from], 1, false);
        } else if (c == 'u' && unicode_escape(j, &code_point)) {
            jj_sb_add_char(&b, code_point, false);
        } else {
            bad(j, "invalid escape");
            return jj_str_empty();
        }
        plain = j->at;
    }
    if (j->at >= j->len) {
        bad(j, "a string has no end");
        return jj_str_empty();
    }
    jj_sb_add(&b, j->s + plain, j->at - plain, false);
    j->at++;
    return jj_sb_finish(&b);
}

static const struct str *read_string(struct reader *j) {
    size_t start = ++j->at;
    while (j->at < j->len && j->s[j->at] != '"' && j->s[j->at] != '\\') {
        j->at++;
    }
    if (j->at >= j->len) {
        bad(j, "a string has no end");
        return jj_str_empty();
    }
    if (j->s[j->at] == '\\') {
        return read_escaped(j, start);
    }
    return jj_str_new(j->r, j->s + start, j->at++ - start, false);
}

static struct value read_number(struct reader *j) {
    size_t start = j->at;
    bool is_float = false;
    while (j->at < j->len && strchr("+-.0123456789eE", j->s[j->at]) && j->s[j->at]) {
        is_float = is_float || strchr(".eE", j->s[j->at]);
        j->at++;
    }
    const char *text = j->s + start;
    size_t n = j->at - start;
    struct value v = NONE;
    jj_steps(j->r, n > 20 ? n * n / 64 : 1);
    if (is_float) {
        double d;
        if (!jj_parse_float(text, n, &d)) {
            return bad(j, "invalid number");
        }
        v = value_float(d);
    } else if (n == 0 || !jj_parse_integer(j->r, text, n, 10, &v)) {
        return bad(j, "invalid number");
    }
    v.untrusted = true;
    return v;
}

static struct value read_word(struct reader *j) {
    static const struct {
        const char *word;
        struct value value;
    } words[] = {
        {"true", {.type = V_BOOL, .untrusted = true, .u.b = true}},
        {"false", {.type = V_BOOL, .untrusted = true, .u.b = false}},
        {"null", {.type = V_NONE, .untrusted = true}},
    };
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        size_t n = strlen(words[i].word);
        if (j->len - j->at >= n && memcmp(j->s + j->at, words[i].word, n) == 0) {
            j->at += n;
            return words[i].value;
        }
    }
    return bad(j, "a value is missing or not JSON");
}

static struct value read_value(struct reader *j);

static struct value read_array(struct reader *j) {
    struct seq *seq = jj_seq_new(j->r, 0);
    j->at++;
    if (skip_space(j) == ']') {
        j->at++;
        return value_seq(V_LIST, seq);
    }
    while (!j->r->failed) {
        jj_seq_push(j->r, seq, read_value(j));
        char c = skip_space(j);
        j->at++;
        if (c == ']') {
            break;
        }
        if (c != ',') {
            return bad(j, "expected ',' or ']'");
        }
    }
    return value_seq(V_LIST, seq);
}

static struct value read_object(struct reader *j) {
    struct dict *d = jj_dict_new(j->r, 0);
    j->at++;
    if (skip_space(j) == '}') {
        j->at++;
        return value_dict(d);
    }
    while (!j->r->failed) {
        if (skip_space(j) != '"') {
            return bad(j, "expected a key");
        }
        const struct str *key = read_string(j);
        if (skip_space(j) != ':') {
            return bad(j, "expected ':'");
        }
        j->at++;
        struct value v = read_value(j);
        jj_dict_set(j->r, d, value_str(key), v);
        char c = skip_space(j);
        j->at++;
        if (c == '}') {
            break;
        }
        if (c != ',') {
            return bad(j, "expected ',' or '}'");
        }
    }
    return value_dict(d);
}

static struct value read_value(struct reader *j) {
    char c = skip_space(j);
    if (!jj_steps(j->r, 1)) {
        return NONE;
    }
    if (c == '"') {
        return value_str(read_string(j));
    }
    if (c == '-' || (c >= '0' && c <= '9')) {
        return read_number(j);
    }
    if (c != '[' && c != '{') {
        return read_word(j);
    }
    if (j->depth == JJ_MAX_VALUE_DEPTH) {
        return bad(j, "nested too deep");
    }
    j->depth++;
    struct value v = c == '[' ? read_array(j) : read_object(j);
    j->depth--;
    return v;
}

struct value jj_read_json(struct render *r, const char *text, size_t len, const char *name) {
    struct reader j = {.r = r, .s = text, .len = len, .name = name};
    if (!utf8_is_valid(text, len)) {
        return bad(&j, "not valid UTF-8");
    }
    struct value v = read_value(&j);
    skip_space(&j);
    if (!r->failed && j.at != len) {
        return bad(&j, "more than one JSON value");
    }
    return v;
}
