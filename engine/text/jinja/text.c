#include "text/jinja/text.h"

#include "text/jinja/functions.h"
#include "text/jinja/render.h"
#include "text/jinja/unicode.h"

#include <string.h>

/* --- strip --- */

static bool strippable(const struct str *chars, uint32_t c) {
    if (!chars) {
        return jj_is_space(c);
    }
    for (size_t at = 0, n; at < chars->len; at += n) {
        if (jj_str_char(chars, at, &n) == c) {
            return true;
        }
    }
    return false;
}

static size_t previous_char(const struct str *s, size_t at) {
    do {
        at--;
    } while (at > 0 && ((unsigned char)s->bytes[at] & 0xc0) == 0x80);
    return at;
}

const struct str *jj_strip(struct render *r, const struct str *s, const struct str *chars, unsigned sides) {
    size_t from = 0, to = s->len, n, cost = chars ? 1 + chars->len / 16 : 1;
    while (sides & STRIP_LEFT && from < to && strippable(chars, jj_str_char(s, from, &n))) {
        from += n;
    }
    while (sides & STRIP_RIGHT && to > from) {
        size_t at = previous_char(s, to);
        if (!strippable(chars, jj_str_char(s, at, &n))) {
            break;
        }
        to = at;
    }
    jj_steps(r, (s->len - (to - from)) / 16 * cost);
    return jj_str_cut(r, s, from, to);
}

/* --- split --- */

static size_t skip(const struct str *s, size_t at, bool space) {
    size_t n;
    while (at < s->len && jj_is_space(jj_str_char(s, at, &n)) == space) {
        at += n;
    }
    return at;
}

static size_t skip_back(const struct str *s, size_t at, bool space) {
    while (at > 0) {
        size_t before = previous_char(s, at), n;
        if (jj_is_space(jj_str_char(s, before, &n)) != space) {
            break;
        }
        at = before;
    }
    return at;
}

static void reverse(struct seq *seq) {
    for (size_t i = 0, k = seq->n; i + 1 < k; i++) {
        k--;
        struct value v = seq->items[i];
        seq->items[i] = seq->items[k];
        seq->items[k] = v;
    }
}

static void push_cut(struct render *r, struct seq *seq, const struct str *s, size_t from, size_t to) {
    jj_seq_push(r, seq, value_str(jj_str_cut(r, s, from, to)));
}

struct seq *jj_split_space(struct render *r, const struct str *s, int64_t most, bool from_right) {
    struct seq *seq = jj_seq_new(r, 0);
    jj_steps_bytes(r, s->len);
    if (from_right) {
        for (size_t to = skip_back(s, s->len, true); to > 0 && jj_steps(r, 1);) {
            size_t from = most >= 0 && seq->n >= (size_t)most ? 0 : skip_back(s, to, false);
            push_cut(r, seq, s, from, to);
            to = skip_back(s, from, true);
        }
        reverse(seq);
        return seq;
    }
    for (size_t from = skip(s, 0, true); from < s->len && jj_steps(r, 1);) {
        size_t to = most >= 0 && seq->n >= (size_t)most ? s->len : skip(s, from, false);
        push_cut(r, seq, s, from, to);
        from = skip(s, to, true);
    }
    return seq;
}

struct seq *jj_split(struct render *r, const struct str *s, const struct str *separator, int64_t most,
                     bool from_right) {
    struct seq *seq = jj_seq_new(r, 0);
    if (separator->len == 0) {
        jj_fail(r, "empty separator");
        return seq;
    }
    size_t from = 0, to = s->len;
    while ((most < 0 || seq->n < (size_t)most) && jj_steps(r, 1)) {
        size_t at = from_right ? jj_str_rfind(r, s, separator, 0, to) : jj_str_find(r, s, separator, from);
        if (at == SIZE_MAX) {
            break;
        }
        if (from_right) {
            push_cut(r, seq, s, at + separator->len, to);
            to = at;
        } else {
            push_cut(r, seq, s, from, at);
            from = at + separator->len;
        }
    }
    push_cut(r, seq, s, from, to);
    if (from_right) {
        reverse(seq);
    }
    return seq;
}

struct seq *jj_split_lines(struct render *r, const struct str *s, bool keep_ends) {
    struct seq *seq = jj_seq_new(r, 0);
    jj_steps_bytes(r, s->len);
    for (size_t from = 0, at = 0, n; at < s->len && !r->failed;) {
        uint32_t c = jj_str_char(s, at, &n);
        if (!jj_is_line_end(c)) {
            at += n;
            if (at == s->len) {
                push_cut(r, seq, s, from, at);
            }
            continue;
        }
        size_t end = at + n;
        end += c == '\r' && end < s->len && s->bytes[end] == '\n';
        push_cut(r, seq, s, from, keep_ends ? end : at);
        jj_steps(r, 1);
        from = at = end;
    }
    return seq;
}

/* --- replace --- */

/* An empty `old` stands before every character and at the end. */
static void replace_empty(struct sb *b, const struct str *s, const struct str *new, int64_t most) {
    size_t at = 0, n = 0;
    for (; at <= s->len && most != 0 && jj_steps(b->r, 1); most -= most > 0) {
        jj_sb_add_str(b, new);
        if (at == s->len) {
            return;
        }
        jj_str_char(s, at, &n);
        jj_sb_add_cut(b, s, at, at + n);
        at += n;
    }
    jj_sb_add_cut(b, s, at, s->len);
}

const struct str *jj_replace(struct render *r, const struct str *s, const struct str *old, const struct str *new,
                             int64_t most) {
    struct sb b;
    jj_sb_init(&b, r);
    if (old->len == 0) {
        replace_empty(&b, s, new, most);
        return jj_str_as_markup(r, jj_sb_finish(&b), s->markup);
    }
    size_t from = 0;
    for (; most != 0 && jj_steps(r, 1); most -= most > 0) {
        size_t at = jj_str_find(r, s, old, from);
        if (at == SIZE_MAX) {
            break;
        }
        jj_sb_add_cut(&b, s, from, at);
        jj_sb_add_str(&b, new);
        from = at + old->len;
    }
    if (from == 0) {
        return s;
    }
    jj_sb_add_cut(&b, s, from, s->len);
    return jj_str_as_markup(r, jj_sb_finish(&b), s->markup);
}

/* --- case --- */

/* Is the capital sigma at `at` the last letter of a word? (Unicode chapter 3.13, Final_Sigma) */
static bool is_final_sigma(const struct str *s, size_t at) {
    size_t before = at, n;
    uint32_t c = 0;
    while (before > 0) {
        before = previous_char(s, before);
        c = jj_str_char(s, before, &n);
        if (!jj_is_case_ignorable(c)) {
            break;
        }
        c = 0;
    }
    if (!c || !jj_is_cased(c)) {
        return false;
    }
    for (size_t after = at + 2; after < s->len; after += n) {
        c = jj_str_char(s, after, &n);
        if (!jj_is_case_ignorable(c)) {
            return !jj_is_cased(c);
        }
    }
    return true;
}

static void change_char(struct sb *b, const struct str *s, size_t at, size_t n, uint32_t c, enum case_kind kind) {
    uint32_t to[4];
    if (kind == CASE_LOWER && c == 0x3a3) {
        jj_steps(b->r, 1);
        jj_sb_add_char(b, is_final_sigma(s, at) ? 0x3c2 : 0x3c3, jj_mark(s, at));
        return;
    }
    size_t count = jj_map_case(c, kind, to);
    if (count == 1 && to[0] == c) {
        jj_sb_add_cut(b, s, at, at + n);
        return;
    }
    for (size_t i = 0; i < count; i++) {
        jj_sb_add_char(b, to[i], jj_mark(s, at));
    }
}

const struct str *jj_change_case(struct render *r, const struct str *s, enum text_case to) {
    struct sb b;
    jj_sb_init(&b, r);
    jj_sb_reserve(&b, s->len);
    bool after_cased = false;
    for (size_t at = 0, n; at < s->len && !r->failed; at += n) {
        uint32_t c = jj_str_char(s, at, &n);
        enum case_kind kind = to == TEXT_UPPER ? CASE_UPPER : to == TEXT_FOLD ? CASE_FOLD : CASE_LOWER;
        if (to == TEXT_TITLE) {
            kind = after_cased ? CASE_LOWER : CASE_TITLE;
            after_cased = jj_is_cased(c);
        } else if (to == TEXT_CAPITALIZE && at == 0) {
            kind = CASE_TITLE;
        } else if (to == TEXT_SWAP) {
            if (!jj_is_lower(c) && !jj_is_upper(c)) {
                jj_sb_add_cut(&b, s, at, at + n);
                continue;
            }
            kind = jj_is_lower(c) ? CASE_UPPER : CASE_LOWER;
        }
        change_char(&b, s, at, n, c, kind);
        jj_steps(r, (at & 15) == 0);
    }
    return jj_str_as_markup(r, jj_sb_finish(&b), s->markup);
}

/* --- join, pad --- */

const struct str *jj_join(struct render *r, const struct str *separator, const struct seq *items, bool strict) {
    bool markup = strict && separator->markup;
    struct sb b;
    jj_sb_init(&b, r);
    for (size_t i = 0; i < items->n && jj_steps(r, 1); i++) {
        if (i) {
            jj_sb_add_str(&b, separator);
        }
        if (strict && items->items[i].type != V_STR && !markup) {
            jj_fail(r, "sequence item %zu: expected str instance, %s found", i, jj_type_name(items->items[i]));
            break;
        }
        if (markup) {
            jj_sb_add_str(&b, jj_escape_html(r, items->items[i]));
        } else {
            jj_write_str(r, &b, items->items[i]);
        }
    }
    return jj_str_as_markup(r, jj_sb_finish(&b), markup);
}

const struct str *jj_pad(struct render *r, const struct str *s, int64_t width, const struct str *fill, char align) {
    int64_t n = (int64_t)jj_str_length(s);
    if (width <= n) {
        return s;
    }
    int64_t pad = width - n;
    int64_t left = align == '>' ? pad : align == '^' ? pad / 2 + (pad & width & 1) : 0;
    if (!jj_steps(r, (uint64_t)pad / 8 * fill->len)) {
        return s;
    }
    struct sb b;
    jj_sb_init(&b, r);
    for (int64_t i = 0; i < left && !r->failed; i++) {
        jj_sb_add_str(&b, fill);
    }
    jj_sb_add_str(&b, s);
    for (int64_t i = left; i < pad && !r->failed; i++) {
        jj_sb_add_str(&b, fill);
    }
    return jj_str_as_markup(r, jj_sb_finish(&b), s->markup);
}
