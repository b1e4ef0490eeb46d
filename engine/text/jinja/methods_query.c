/* Methods of str that answer a question: where, how often, of what kind. */
#include "text/jinja/functions.h"
#include "text/jinja/methods.h"
#include "text/jinja/render.h"
#include "text/jinja/str.h"
#include "text/jinja/unicode.h"

#include <string.h>

#define METHOD(name)                                                                                                   \
    static struct value name(struct render *r, struct value self, const struct value *a, const struct call *call)
#define UNUSED ((void)r, (void)self, (void)a, (void)call)

/* The part of s that start and end (arguments, may be missing or None) leave: byte offsets. False: empty for sure. */
static bool part(struct render *r, const struct str *s, struct value start, struct value end, size_t *from,
                 size_t *to) {
    bool has_start = start.type != V_MISSING && start.type != V_NONE,
         has_end = end.type != V_MISSING && end.type != V_NONE;
    *from = 0;
    *to = s->len;
    if (!has_start && !has_end) {
        return true;
    }
    int64_t n = (int64_t)jj_str_length(s);
    int64_t x = has_start ? jj_to_index(r, start, "start") : 0, y = has_end ? jj_to_index(r, end, "end") : n;
    x = x < 0 ? (x + n < 0 ? 0 : x + n) : x;
    y = y < 0 ? (y + n < 0 ? 0 : y + n) : y > n ? n : y;
    if (x > n || x > y) {
        return false;
    }
    *from = jj_str_offset(s, (size_t)x);
    *to = jj_str_offset(s, (size_t)y);
    return true;
}

/* Byte offset of the first or last occurrence, SIZE_MAX if none. */
static size_t locate(struct render *r, const struct str *s, const struct value *a, bool last) {
    const struct str *what = jj_need_str(r, a[0], "find()");
    size_t from, to;
    if (r->failed || !part(r, s, a[1], a[2], &from, &to)) {
        return SIZE_MAX;
    }
    if (last) {
        return jj_str_rfind(r, s, what, from, to);
    }
    size_t at = jj_str_find(r, s, what, from);
    return at != SIZE_MAX && at + what->len <= to ? at : SIZE_MAX;
}

static struct value found(struct render *r, const struct str *s, size_t at, bool must) {
    if (at == SIZE_MAX && must) {
        jj_fail(r, "substring not found");
    }
    return value_int(at == SIZE_MAX ? -1 : (int64_t)jj_str_index(s, at));
}

METHOD(str_find) {
    UNUSED;
    return found(r, self.u.s, locate(r, self.u.s, a, false), false);
}
METHOD(str_rfind) {
    UNUSED;
    return found(r, self.u.s, locate(r, self.u.s, a, true), false);
}
METHOD(str_index) {
    UNUSED;
    return found(r, self.u.s, locate(r, self.u.s, a, false), true);
}
METHOD(str_rindex) {
    UNUSED;
    return found(r, self.u.s, locate(r, self.u.s, a, true), true);
}

METHOD(str_count) {
    UNUSED;
    const struct str *s = self.u.s, *what = jj_need_str(r, a[0], "count()");
    size_t from, to;
    if (r->failed || !part(r, s, a[1], a[2], &from, &to)) {
        return value_int(0);
    }
    if (what->len == 0) {
        return value_int((int64_t)jj_str_length(jj_str_cut(r, s, from, to)) + 1);
    }
    int64_t n = 0;
    while (jj_steps(r, 1)) {
        size_t at = jj_str_find(r, s, what, from);
        if (at == SIZE_MAX || at + what->len > to) {
            break;
        }
        n++;
        from = at + what->len;
    }
    return value_int(n);
}

static bool has_affix(const struct str *s, size_t from, size_t to, const struct str *affix, bool suffix) {
    return affix->len <= to - from &&
           memcmp(s->bytes + (suffix ? to - affix->len : from), affix->bytes, affix->len) == 0;
}

static struct value affix(struct render *r, struct value self, const struct value *a, bool suffix) {
    size_t from, to;
    bool any = part(r, self.u.s, a[1], a[2], &from, &to);
    if (a[0].type == V_TUPLE) {
        for (size_t i = 0; i < a[0].u.seq->n && !r->failed; i++) {
            const struct str *one = jj_need_str(r, a[0].u.seq->items[i], "startswith()");
            if (any && jj_steps_bytes(r, one->len) && has_affix(self.u.s, from, to, one, suffix)) {
                return value_bool(true);
            }
        }
        return value_bool(false);
    }
    const struct str *one = jj_need_str(r, a[0], "startswith()");
    return value_bool(any && jj_steps_bytes(r, one->len) && has_affix(self.u.s, from, to, one, suffix));
}
METHOD(str_startswith) {
    UNUSED;
    return affix(r, self, a, false);
}
METHOD(str_endswith) {
    UNUSED;
    return affix(r, self, a, true);
}

static struct value all_are(struct render *r, const struct str *s, bool (*is)(uint32_t), bool empty) {
    jj_steps(r, s->len / 16);
    for (size_t at = 0, n; at < s->len; at += n) {
        if (!is(jj_str_char(s, at, &n))) {
            return value_bool(false);
        }
    }
    return value_bool(empty || s->len > 0);
}

static bool is_ascii_char(uint32_t c) {
    return c < 0x80;
}

#define KIND_METHOD(name, is, empty)                                                                                   \
    METHOD(name) {                                                                                                     \
        UNUSED;                                                                                                        \
        return all_are(r, self.u.s, is, empty);                                                                        \
    }
KIND_METHOD(str_isspace, jj_is_space, false)
KIND_METHOD(str_isalpha, jj_is_alpha, false)
KIND_METHOD(str_isalnum, jj_is_word, false)
KIND_METHOD(str_isdecimal, jj_is_decimal, false)
KIND_METHOD(str_isdigit, jj_is_digit, false)
KIND_METHOD(str_isnumeric, jj_is_numeric, false)
KIND_METHOD(str_isprintable, jj_is_printable, true)
KIND_METHOD(str_isascii, is_ascii_char, true)

/* All cased characters are of the wanted case, and there is one. */
static bool cased(const struct str *s, bool (*wanted)(uint32_t)) {
    bool any = false;
    for (size_t at = 0, n; at < s->len; at += n) {
        uint32_t c = jj_str_char(s, at, &n);
        if (jj_is_cased(c)) {
            if (!wanted(c)) {
                return false;
            }
            any = true;
        }
    }
    return any;
}

bool jj_str_is_lower(const struct str *s) {
    return cased(s, jj_is_lower);
}
bool jj_str_is_upper(const struct str *s) {
    return cased(s, jj_is_upper);
}

METHOD(str_islower) {
    UNUSED;
    jj_steps(r, self.u.s->len / 16);
    return value_bool(jj_str_is_lower(self.u.s));
}
METHOD(str_isupper) {
    UNUSED;
    jj_steps(r, self.u.s->len / 16);
    return value_bool(jj_str_is_upper(self.u.s));
}
METHOD(str_istitle) {
    UNUSED;
    const struct str *s = self.u.s;
    bool any = false, after_cased = false;
    jj_steps(r, s->len / 16);
    for (size_t at = 0, n; at < s->len; at += n) {
        uint32_t c = jj_str_char(s, at, &n);
        bool capital = jj_is_upper(c) || jj_is_title(c), small = !capital && jj_is_lower(c);
        if ((capital && after_cased) || (small && !after_cased)) {
            return value_bool(false);
        }
        after_cased = capital || small;
        any = any || after_cased;
    }
    return value_bool(any);
}
METHOD(str_isidentifier) {
    UNUSED;
    const struct str *s = self.u.s;
    size_t n = 0;
    if (s->len == 0) {
        return value_bool(false);
    }
    uint32_t first = jj_str_char(s, 0, &n);
    bool is = first == '_' || jj_is_alpha(first);
    for (size_t at = n; at < s->len && is; at += n) {
        uint32_t c = jj_str_char(s, at, &n);
        is = c == '_' || jj_is_alpha(c) || jj_is_decimal(c);
    }
    return value_bool(is);
}

const struct function_info jj_str_query_methods[] = {
    {"find", str_find, {"sub", "start", "end"}, 1, .positional_only = true},
    {"rfind", str_rfind, {"sub", "start", "end"}, 1, .positional_only = true},
    {"index", str_index, {"sub", "start", "end"}, 1, .positional_only = true},
    {"rindex", str_rindex, {"sub", "start", "end"}, 1, .positional_only = true},
    {"count", str_count, {"sub", "start", "end"}, 1, .positional_only = true},
    {"startswith", str_startswith, {"prefix", "start", "end"}, 1, .positional_only = true},
    {"endswith", str_endswith, {"suffix", "start", "end"}, 1, .positional_only = true},
    {"isspace", str_isspace, {0}},
    {"isalpha", str_isalpha, {0}},
    {"isalnum", str_isalnum, {0}},
    {"isdecimal", str_isdecimal, {0}},
    {"isdigit", str_isdigit, {0}},
    {"isnumeric", str_isnumeric, {0}},
    {"isprintable", str_isprintable, {0}},
    {"isascii", str_isascii, {0}},
    {"islower", str_islower, {0}},
    {"isupper", str_isupper, {0}},
    {"istitle", str_istitle, {0}},
    {"isidentifier", str_isidentifier, {0}},
    {0},
};
