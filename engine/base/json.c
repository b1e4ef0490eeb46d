#include <inferd/json.h>

#include "base/checked.h"
#include "base/utf8.h"

#include <cjson/cJSON.h>
#include <inferd/buf.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* cJSON copies a number into 64 bytes before strtod and takes what lies beyond for the next token. */
#define CJSON_NUMBER_MAX 60

struct key {
    const char *raw; /* between the quotes, in the text */
    size_t len;
    bool escaped; /* has a backslash */
};

struct frame {
    bool object;
    size_t first_key; /* where the keys of this object begin in scanner.keys */
};

struct scanner {
    const char *text;
    size_t len, pos;
    struct json_limits limits;
    struct error *err;

    struct frame stack[JSON_DEPTH_CEILING];
    size_t depth;
    struct key *keys; /* of all open objects, innermost last */
    size_t n_keys, cap_keys;

    size_t n_values;
    bool long_number; /* one is too long for cJSON */

    const struct key *want; /* json_member: the key looked for in the outermost object, else NULL */
    bool in_wanted;         /* its value is being scanned */
    size_t want_start, want_end;
    bool found;
};

static int fail_at(struct scanner *s, size_t pos, const char *reason) {
    return error_set(s->err, ERROR_INVALID, "not valid JSON: byte %zu: %s", pos, reason);
}

static int fail(struct scanner *s, const char *reason) {
    return fail_at(s, s->pos, s->pos >= s->len ? "the text ends too early" : reason);
}

static int peek(const struct scanner *s) {
    return s->pos < s->len ? (unsigned char)s->text[s->pos] : -1;
}

static void skip_space(struct scanner *s) {
    while (s->pos < s->len) {
        char c = s->text[s->pos];
        if (c != ' ' && c != '\t' && c != '\n' && c != '\r') {
            return;
        }
        s->pos++;
    }
}

/* ---- strings ---- */

static int hex_value(char c) {
    if (c >= '0' && c <= '9') {
        return c - '0';
    }
    c = (char)(c | 0x20);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Four hex digits at p[0..4), -1 if they are not. */
static int32_t hex4(const char *p) {
    int32_t v = 0;
    for (int i = 0; i < 4; i++) {
        int h = hex_value(p[i]);
        if (h < 0) {
            return -1;
        }
        v = v << 4 | h;
    }
    return v;
}

/* At the `u` of an escape; moves behind it, and behind the second half of a surrogate pair. */
static int scan_unicode_escape(struct scanner *s) {
    size_t start = s->pos - 1;
    if (s->len - s->pos < 5) {
        return fail_at(s, s->len, "the text ends too early");
    }
    int32_t unit = hex4(s->text + s->pos + 1);
    if (unit < 0) {
        return fail_at(s, start, "\\u is not followed by four hexadecimal digits");
    }
    s->pos += 5;
    if (unit == 0 && !s->limits.allow_nul) {
        return fail_at(s, start, "\\u0000 is not accepted");
    }
    if (unit < 0xd800 || unit > 0xdfff) {
        return 0;
    }
    if (unit > 0xdbff || s->len - s->pos < 6 || s->text[s->pos] != '\\' || s->text[s->pos + 1] != 'u') {
        return fail_at(s, start, "a lone surrogate is not a character");
    }
    int32_t second = hex4(s->text + s->pos + 2);
    if (second < 0xdc00 || second > 0xdfff) {
        return fail_at(s, start, "a lone surrogate is not a character");
    }
    s->pos += 6;
    return 0;
}

static int scan_string(struct scanner *s, struct key *out) {
    size_t start = ++s->pos; /* behind the quote */
    bool escaped = false;
    while (s->pos < s->len) {
        unsigned char c = (unsigned char)s->text[s->pos];
        if (c == '"') {
            *out = (struct key){s->text + start, s->pos - start, escaped};
            s->pos++;
            return 0;
        }
        if (c == '\\') {
            escaped = true;
            s->pos++;
            int e = peek(s);
            if (e == 'u') {
                if (scan_unicode_escape(s) < 0) {
                    return -1;
                }
            } else if (e > 0 && strchr("\"\\/bfnrt", e)) {
                s->pos++;
            } else {
                return fail(s, "an escape that JSON does not have");
            }
        } else if (c < 0x20) {
            return fail(s, "a control character in a string must be escaped");
        } else if (c < 0x80) {
            s->pos++;
        } else {
            bool valid;
            size_t n = utf8_sequence(s->text + s->pos, s->len - s->pos, &valid);
            if (!valid) {
                return fail_at(s, s->pos, "not valid UTF-8");
            }
            s->pos += n;
        }
    }
    return fail_at(s, s->len, "a string is not closed");
}

/* The next code point of a scanned key, escapes decoded; moves *i. */
static uint32_t key_next(const struct key *k, size_t *i) {
    uint32_t cp;
    bool valid;
    if (!k->escaped || k->raw[*i] != '\\') {
        *i += utf8_decode(k->raw + *i, k->len - *i, &cp, &valid);
        return cp;
    }
    char e = k->raw[*i + 1];
    if (e != 'u') {
        *i += 2;
        return e == 'b' ? '\b' : e == 'f' ? '\f' : e == 'n' ? '\n' : e == 'r' ? '\r' : e == 't' ? '\t' : (uint32_t)e;
    }
    cp = (uint32_t)hex4(k->raw + *i + 2);
    *i += 6;
    if (cp >= 0xd800 && cp <= 0xdbff) { /* the scan saw to it that the second half follows */
        cp = 0x10000 + ((cp - 0xd800) << 10) + ((uint32_t)hex4(k->raw + *i + 2) - 0xdc00);
        *i += 6;
    }
    return cp;
}

/* Order of the decoded keys by code point, which is also the order of their UTF-8 bytes. */
static int key_compare(const struct key *a, const struct key *b) {
    if (!a->escaped && !b->escaped) {
        size_t n = a->len < b->len ? a->len : b->len;
        int c = n ? memcmp(a->raw, b->raw, n) : 0;
        return c ? c : (a->len > b->len) - (a->len < b->len);
    }
    size_t i = 0, j = 0;
    while (i < a->len && j < b->len) {
        uint32_t x = key_next(a, &i), y = key_next(b, &j);
        if (x != y) {
            return x < y ? -1 : 1;
        }
    }
    return (i < a->len) - (j < b->len);
}

static int key_compare_qsort(const void *a, const void *b) {
    const struct key *x = a, *y = b;
    int c = key_compare(x, y);
    return c ? c : (x->raw > y->raw) - (x->raw < y->raw);
}

static int push_key(struct scanner *s, const struct key *k) {
    if (s->limits.allow_duplicate) {
        return 0;
    }
    if (s->n_keys == s->cap_keys) {
        size_t cap = s->cap_keys ? s->cap_keys + s->cap_keys / 2 : 64, bytes;
        struct key *keys = checked_mul(cap, sizeof *keys, &bytes) ? realloc(s->keys, bytes) : NULL;
        if (!keys) {
            return error_memory(s->err);
        }
        s->keys = keys;
        s->cap_keys = cap;
    }
    s->keys[s->n_keys++] = *k;
    return 0;
}

/* At the end of an object: sorted, equal keys are neighbours. n log n comparisons whatever the keys are. */
static int check_keys(struct scanner *s, size_t first) {
    size_t n = s->n_keys - first;
    s->n_keys = first;
    if (n < 2) { /* s->keys may be NULL */
        return 0;
    }
    struct key *keys = s->keys + first;
    qsort(keys, n, sizeof *keys, key_compare_qsort);
    for (size_t i = 1; i < n; i++) {
        if (key_compare(&keys[i - 1], &keys[i]) == 0) {
            return fail_at(s, (size_t)(keys[i].raw - s->text) - 1, "a key appears twice in one object");
        }
    }
    return 0;
}

/* ---- numbers and literals ---- */

static bool is_digit(int c) {
    return c >= '0' && c <= '9';
}

static int scan_digits(struct scanner *s) {
    if (!is_digit(peek(s))) {
        return fail(s, "a digit is missing in a number");
    }
    while (is_digit(peek(s))) {
        s->pos++;
    }
    return 0;
}

static int scan_number(struct scanner *s) {
    size_t start = s->pos;
    if (peek(s) == '-') {
        s->pos++;
    }
    if (peek(s) == '0') {
        s->pos++;
        if (is_digit(peek(s))) {
            return fail(s, "a number has a leading zero");
        }
    } else if (scan_digits(s) < 0) {
        return -1;
    }
    if (peek(s) == '.') {
        s->pos++;
        if (scan_digits(s) < 0) {
            return -1;
        }
    }
    if (peek(s) == 'e' || peek(s) == 'E') {
        s->pos++;
        if (peek(s) == '+' || peek(s) == '-') {
            s->pos++;
        }
        if (scan_digits(s) < 0) {
            return -1;
        }
    }
    if (s->pos - start > CJSON_NUMBER_MAX) {
        s->long_number = true;
    }
    return 0;
}

static int scan_literal(struct scanner *s, const char *word) {
    size_t n = strlen(word);
    if (s->len - s->pos < n || memcmp(s->text + s->pos, word, n) != 0) {
        return fail_at(s, s->pos, "expected a value");
    }
    s->pos += n;
    return 0;
}

static int scan_scalar(struct scanner *s) {
    struct key ignored;
    switch (peek(s)) {
    case '"':
        return scan_string(s, &ignored);
    case 't':
        return scan_literal(s, "true");
    case 'f':
        return scan_literal(s, "false");
    case 'n':
        return scan_literal(s, "null");
    default:
        if (peek(s) == '-' || is_digit(peek(s))) {
            return scan_number(s);
        }
        return fail(s, "expected a value");
    }
}

/* ---- the grammar, with a stack of our own ---- */

static int push(struct scanner *s, bool object) {
    if (s->depth == s->limits.max_depth) {
        return error_set(s->err, ERROR_INVALID, "not valid JSON: byte %zu: nested deeper than %zu levels", s->pos,
                         s->limits.max_depth);
    }
    s->stack[s->depth++] = (struct frame){object, s->n_keys};
    s->pos++;
    return 0;
}

static int pop(struct scanner *s) {
    struct frame *f = &s->stack[--s->depth];
    s->pos++;
    return f->object ? check_keys(s, f->first_key) : 0;
}

/* A key and its colon; stands at the value then. */
static int scan_key(struct scanner *s) {
    struct key k;
    skip_space(s);
    if (peek(s) != '"') {
        return fail(s, "expected a key in quotes");
    }
    if (scan_string(s, &k) < 0 || push_key(s, &k) < 0) {
        return -1;
    }
    skip_space(s);
    if (peek(s) != ':') {
        return fail(s, "expected a colon");
    }
    s->pos++;
    skip_space(s);
    if (s->want && s->depth == 1 && !s->found && key_compare(&k, s->want) == 0) {
        s->in_wanted = s->found = true;
        s->want_start = s->pos;
    }
    return 0;
}

/* A value begins here. Opens a container and stands at its first value (*more), or takes a whole value. */
static int scan_value(struct scanner *s, bool *more) {
    *more = false;
    if (s->limits.max_values && ++s->n_values > s->limits.max_values) {
        return error_set(s->err, ERROR_INVALID, "JSON of more than %zu values is not accepted", s->limits.max_values);
    }
    skip_space(s);
    int c = peek(s);
    if (c != '{' && c != '[') {
        return scan_scalar(s);
    }
    if (push(s, c == '{') < 0) {
        return -1;
    }
    skip_space(s);
    if (peek(s) == (c == '{' ? '}' : ']')) {
        return pop(s);
    }
    *more = true;
    return c == '{' ? scan_key(s) : 0;
}

/* A value ended here. Closes containers until one goes on (*more: stands at the next value) or none is open. */
static int scan_after_value(struct scanner *s, bool *more) {
    for (;;) {
        if (s->depth == 1 && s->in_wanted) {
            s->in_wanted = false;
            s->want_end = s->pos;
        }
        *more = s->depth > 0;
        if (s->depth == 0) {
            return 0;
        }
        bool object = s->stack[s->depth - 1].object;
        skip_space(s);
        int c = peek(s);
        if (c == ',') {
            s->pos++;
            return object ? scan_key(s) : 0;
        }
        if (c != (object ? '}' : ']')) {
            return fail(s, object ? "expected a comma or }" : "expected a comma or ]");
        }
        if (pop(s) < 0) {
            return -1;
        }
    }
}

static int scan(struct scanner *s) {
    bool more = true;
    while (more) {
        if (scan_value(s, &more) < 0 || (!more && scan_after_value(s, &more) < 0)) {
            return -1;
        }
    }
    skip_space(s);
    return s->pos == s->len ? 0 : fail(s, "something follows the value");
}

static void scanner_init(struct scanner *s, const char *text, size_t len, const struct json_limits *limits,
                         struct error *err) {
    *s = (struct scanner){.text = text, .len = len, .err = err};
    if (limits) {
        s->limits = *limits;
    }
    if (s->limits.max_depth == 0) {
        s->limits.max_depth = JSON_MAX_DEPTH;
    }
    if (s->limits.max_depth > JSON_DEPTH_CEILING) {
        s->limits.max_depth = JSON_DEPTH_CEILING;
    }
}

static int check(const char *text, size_t len, const struct json_limits *limits, bool *long_number, struct error *err) {
    struct scanner s;
    scanner_init(&s, text, len, limits, err);
    int rc = scan(&s);
    free(s.keys);
    *long_number = s.long_number;
    return rc;
}

int json_check(const char *text, size_t len, const struct json_limits *limits, struct error *err) {
    bool long_number;
    return check(text, len, limits, &long_number, err);
}

bool json_member(const char *text, size_t len, const char *key, const char **start, size_t *n) {
    struct error ignored;
    struct json_limits lenient = {.max_depth = JSON_DEPTH_CEILING, .allow_nul = true, .allow_duplicate = true};
    struct key want = {key, strlen(key), false};
    struct scanner s;
    scanner_init(&s, text, len, &lenient, &ignored);
    s.want = &want;
    skip_space(&s);
    if (peek(&s) != '{' || scan(&s) < 0 || !s.found) {
        return false;
    }
    *start = text + s.want_start;
    *n = s.want_end - s.want_start;
    return true;
}

bool json_raw_int(const char *text, size_t len, int64_t *out) {
    bool negative = len > 0 && text[0] == '-';
    size_t i = negative;
    if (i == len || (text[i] == '0' && len > i + 1)) {
        return false;
    }
    int64_t v = 0;
    for (; i < len; i++) {
        if (!is_digit((unsigned char)text[i])) {
            return false;
        }
        int64_t d = text[i] - '0'; /* summed below zero, where one value more fits */
        if (__builtin_mul_overflow(v, 10, &v) || __builtin_sub_overflow(v, d, &v)) {
            return false;
        }
    }
    if (!negative && v == INT64_MIN) {
        return false;
    }
    *out = negative ? v : -v;
    return true;
}

bool json_raw_string(const char *text, size_t len, struct buf *out) {
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    if (len < 2 || text[0] != '"' || text[len - 1] != '"') {
        return false;
    }
    for (size_t i = 1; i < len - 1; i++) {
        const char *escape;
        if (text[i] != '\\') {
            buf_putc(out, text[i]);
        } else if ((escape = memchr(from, text[++i], sizeof from - 1))) {
            buf_putc(out, to[escape - from]);
        } else {
            char utf8[4];
            uint32_t c = (uint32_t)hex4(text + i + 1);
            i += 4;
            if (c >= 0xd800 && c < 0xdc00) { /* the scanner saw to it that the other half follows */
                c = 0x10000 + ((c - 0xd800) << 10) + ((uint32_t)hex4(text + i + 3) - 0xdc00);
                i += 6;
            }
            buf_append(out, utf8, utf8_encode(c, utf8));
        }
    }
    return true;
}

/* ---- the tree ---- */

/* A copy of checked text in which numbers too long for cJSON are written as the shortest of the same double. */
static int shorten_numbers(const char *text, size_t len, struct buf *out, struct error *err) {
    for (size_t i = 0; i < len;) {
        size_t start = i;
        if (text[i] == '"') {
            for (i++; text[i] != '"'; i++) {
                i += text[i] == '\\';
            }
            i++;
        } else if (text[i] == '-' || is_digit((unsigned char)text[i])) {
            while (i < len && text[i] && strchr("+-.eE0123456789", text[i])) {
                i++;
            }
            if (i - start > CJSON_NUMBER_MAX) {
                char *copy = strndup(text + start, i - start);
                if (!copy) {
                    return error_memory(err);
                }
                double v = strtod(copy, NULL);
                free(copy);
                if (isfinite(v)) {
                    buf_printf(out, "%.17g", v);
                } else {
                    buf_puts(out, v < 0 ? "-1e999" : "1e999");
                }
                continue;
            }
        } else {
            i++;
        }
        buf_append(out, text + start, i - start);
    }
    return out->failed ? error_memory(err) : 0;
}

int json_parse(const char *text, size_t len, const struct json_limits *limits, struct cJSON **out, struct error *err) {
    bool long_number;
    if (check(text, len, limits, &long_number, err) < 0) {
        return -1;
    }
    struct buf copy = BUF_INIT;
    if (long_number) {
        if (shorten_numbers(text, len, &copy, err) < 0) {
            buf_free(&copy);
            return -1;
        }
        text = copy.data;
        len = copy.len;
    }
    cJSON *tree = cJSON_ParseWithLength(text, len);
    buf_free(&copy);
    if (!tree) { /* the grammar was checked: nothing else is left */
        return error_memory(err);
    }
    *out = tree;
    return 0;
}

/* ---- getters ---- */

/* object[key], NULL when missing or null. */
static const cJSON *member(const struct cJSON *object, const char *key) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    return cJSON_IsNull(item) ? NULL : item;
}

static int not_an_int(struct error *err, const char *key, int64_t min, int64_t max) {
    long long lo = min, hi = max;
    if (max >= JSON_INT_EXACT && min <= -JSON_INT_EXACT) {
        return error_set_param(err, ERROR_INVALID, key, "%s must be an integer", key);
    }
    if (max >= JSON_INT_EXACT) {
        return error_set_param(err, ERROR_INVALID, key, "%s must be an integer of at least %lld", key, lo);
    }
    return error_set_param(err, ERROR_INVALID, key, "%s must be an integer from %lld to %lld", key, lo, hi);
}

int json_get_int(const struct cJSON *object, const char *key, int64_t min, int64_t max, int64_t *out,
                 struct error *err) {
    const cJSON *item = member(object, key);
    if (!item) {
        return 0;
    }
    double v = item->valuedouble;
    /* Beyond 2^53 the double is no longer what was written. NaN fails every comparison. */
    if (!cJSON_IsNumber(item) || !(v >= -(double)JSON_INT_EXACT && v <= (double)JSON_INT_EXACT) || v != trunc(v) ||
        (int64_t)v < min || (int64_t)v > max) {
        return not_an_int(err, key, min, max);
    }
    *out = (int64_t)v;
    return 0;
}

int json_get_double(const struct cJSON *object, const char *key, double min, double max, double *out,
                    struct error *err) {
    const cJSON *item = member(object, key);
    if (!item) {
        return 0;
    }
    double v = item->valuedouble;
    if (!cJSON_IsNumber(item) || !isfinite(v) || v < min || v > max) {
        return error_set_param(err, ERROR_INVALID, key, "%s must be a number from %g to %g", key, min, max);
    }
    *out = v;
    return 0;
}

int json_get_bool(const struct cJSON *object, const char *key, bool *out, struct error *err) {
    const cJSON *item = member(object, key);
    if (!item) {
        return 0;
    }
    if (!cJSON_IsBool(item)) {
        return error_set_param(err, ERROR_INVALID, key, "%s must be true or false", key);
    }
    *out = cJSON_IsTrue(item);
    return 0;
}

int json_get_string(const struct cJSON *object, const char *key, const char **out, struct error *err) {
    const cJSON *item = member(object, key);
    if (!item) {
        return 0;
    }
    if (!cJSON_IsString(item)) {
        return error_set_param(err, ERROR_INVALID, key, "%s must be a string", key);
    }
    *out = item->valuestring;
    return 0;
}
