/* wordwrap (Python's textwrap) and pprint (Python's pprint): text laid out in lines. */
#include "text/jinja/filters.h"
#include "text/jinja/text.h"
#include "text/jinja/unicode.h"

#include <string.h>

#define PPRINT_WIDTH 80

/* --- wordwrap --- */

/* A paragraph as code points with their byte offsets. */
struct paragraph {
    const struct str *text;
    const uint32_t *chars; /* [n] */
    const size_t *offsets; /* [n + 1] */
    size_t n;
    bool on_hyphens, long_words;
    size_t width;
};

static bool is_blank(uint32_t c) { /* what textwrap takes for white space */
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static bool is_word_char(uint32_t c) {
    return c == '_' || jj_is_word(c);
}

static bool is_letter(const struct paragraph *p, size_t at) {
    return at < p->n && is_word_char(p->chars[at]) && !jj_is_decimal(p->chars[at]);
}

/* May an em dash follow this character? */
static bool before_dash(uint32_t c) {
    return is_word_char(c) || (c < 0x80 && c && strchr("!\"'&.,?", (int)c));
}

/* The end of an em dash (two hyphens or more, then a word) at `at`; `at` itself if there is none. */
static size_t dash_end(const struct paragraph *p, size_t at) {
    size_t end = at;
    while (end < p->n && p->chars[end] == '-') {
        end++;
    }
    return end >= at + 2 && end < p->n && is_word_char(p->chars[end]) ? end : at;
}

/* Is the hyphen at `at` one that a word may be broken behind? */
static bool breaks_word(const struct paragraph *p, size_t at) {
    const uint32_t *c = p->chars;
    bool before = (at >= 2 && is_letter(p, at - 1) && is_letter(p, at - 2)) ||
                  (at >= 3 && is_letter(p, at - 1) && c[at - 2] == '-' && is_letter(p, at - 3));
    return before && is_letter(p, at + 1) &&
           (is_letter(p, at + 2) || (at + 2 < p->n && c[at + 2] == '-' && is_letter(p, at + 3)));
}

/* The end of the chunk that begins at `at`: white space, a dash, or a word or part of one. */
static size_t chunk_end(const struct paragraph *p, size_t at) {
    size_t end = at;
    bool blank = is_blank(p->chars[at]);
    if (blank || !p->on_hyphens) {
        while (end < p->n && is_blank(p->chars[end]) == blank) {
            end++;
        }
        return end;
    }
    if (at > 0 && before_dash(p->chars[at - 1]) && dash_end(p, at) > at) {
        return dash_end(p, at);
    }
    for (end = at + 1; end < p->n && !is_blank(p->chars[end]); end++) {
        if (p->chars[end] == '-' && breaks_word(p, end)) {
            return end + 1;
        }
        if (before_dash(p->chars[end - 1]) && dash_end(p, end) > end) {
            return end;
        }
    }
    return end;
}

/* Where to cut a word [at, end) that is longer than a line, with room for `room` characters. */
static size_t cut_long_word(const struct paragraph *p, size_t at, size_t end, size_t room) {
    if (p->on_hyphens && end - at > room) {
        for (size_t hyphen = at + room; hyphen-- > at + 1;) {
            if (p->chars[hyphen] != '-') {
                continue;
            }
            for (size_t i = at; i < hyphen; i++) {
                if (p->chars[i] != '-') {
                    return hyphen + 1;
                }
            }
            break;
        }
    }
    return at + room < end ? at + room : end;
}

static bool all_space(const struct paragraph *p, size_t from, size_t to) {
    while (from < to && jj_is_space(p->chars[from])) {
        from++;
    }
    return from == to;
}

static void wrap_paragraph(struct render *r, const struct paragraph *p, struct seq *lines) {
    size_t at = 0, first = lines->n;
    size_t chunk = p->n ? chunk_end(p, 0) : 0; /* the end of the chunk at `at` */
#define NEXT (at = chunk, chunk = at < p->n ? chunk_end(p, at) : at)
    while (at < p->n && jj_steps(r, 1)) {
        if (lines->n > first && all_space(p, at, chunk)) {
            NEXT;
        }
        size_t start = at, last = at; /* the line, and its last chunk */
        while (at < p->n && chunk - start <= p->width) {
            last = at;
            NEXT;
        }
        if (at < p->n && chunk - at > p->width) {
            if (p->long_words) {
                last = at;
                at = cut_long_word(p, at, chunk, p->width - (at - start));
            } else if (at == start) {
                last = at;
                NEXT;
            }
        }
        size_t end = all_space(p, last, at) ? last : at;
        if (end > start) {
            jj_seq_push(r, lines, value_str(jj_str_cut(r, p->text, p->offsets[start], p->offsets[end])));
        }
    }
#undef NEXT
}

static bool read_paragraph(struct render *r, struct paragraph *p, const struct str *s) {
    size_t n = jj_str_length(s), i = 0;
    uint32_t *chars = jj_array(r, n, sizeof *chars);
    size_t *offsets = jj_array(r, n + 1, sizeof *offsets);
    if (r->failed || !jj_steps(r, n / 4)) {
        return false;
    }
    for (size_t at = 0, len; i < n && at < s->len; at += len) {
        offsets[i] = at;
        chars[i++] = jj_str_char(s, at, &len);
    }
    offsets[i] = s->len;
    p->text = s;
    p->chars = chars;
    p->offsets = offsets;
    p->n = i;
    return true;
}

FILTER(wordwrap) {
    UNUSED;
    const struct str *s = jj_need_str(r, self, "wordwrap");
    int64_t width = 79;
    if (a[0].type == V_FLOAT && a[0].u.f > 0 && a[0].u.f < 1e15) {
        width = a[0].u.f < 1 ? 1 : (int64_t)a[0].u.f;
    } else if (a[0].type != V_MISSING) {
        width = jj_to_index(r, a[0], "wordwrap");
    }
    const struct str *wrapstring = absent(a[2]) ? jj_str_literal(r, "\n") : jj_need_str(r, a[2], "wordwrap");
    const struct seq *paragraphs = jj_split_lines(r, s, false);
    if (paragraphs->n && width <= 0) {
        jj_fail(r, "wordwrap: invalid width (must be > 0)");
    }
    struct seq *wrapped = jj_seq_new(r, paragraphs->n);
    struct paragraph p = {
        .long_words = a[1].type == V_MISSING || jj_truth(a[1]),
        .on_hyphens = a[3].type == V_MISSING || jj_truth(a[3]),
        .width = (size_t)width,
    };
    for (size_t i = 0; i < paragraphs->n && !r->failed; i++) {
        struct seq *lines = jj_seq_new(r, 0);
        if (read_paragraph(r, &p, paragraphs->items[i].u.s)) {
            wrap_paragraph(r, &p, lines);
        }
        jj_seq_push(r, wrapped, value_str(jj_join(r, wrapstring, lines, false)));
    }
    return value_str(jj_join(r, wrapstring, wrapped, false));
}

/* --- pprint --- */

/* The keys of a dict in the order pprint shows them: sorted, those of different types by the name of the type. */
static const struct seq *sorted_keys(struct render *r, const struct dict *d) {
    struct seq *keys = jj_seq_new(r, d->n), *by = jj_seq_new(r, d->n);
    bool mixed = false;
    for (size_t i = 0; i < d->n && jj_steps(r, 1); i++) {
        struct value key = d->entries[i].key;
        jj_seq_push(r, keys, key);
        mixed = mixed || (key.type != d->entries[0].key.type);
        mixed = mixed || !(key.type == V_STR || key.type == V_TUPLE || value_is_number(key));
    }
    for (size_t i = 0; mixed && i < d->n && !r->failed; i++) {
        jj_seq_push(r, by, value_str(jj_str_literal(r, jj_type_name(d->entries[i].key))));
    }
    return jj_sorted(r, keys, mixed ? by : keys, false);
}

/* repr() with sorted dicts. */
static void flat(struct render *r, struct sb *out, struct value v) {
    if ((v.type != V_DICT && v.type != V_LIST && v.type != V_TUPLE) || !jj_steps(r, 1) || !jj_enter(r)) {
        jj_write_repr(r, out, v);
        return;
    }
    if (v.type == V_DICT) {
        const struct seq *keys = sorted_keys(r, v.u.dict);
        jj_sb_puts(out, "{");
        for (size_t i = 0; i < keys->n && !r->failed; i++) {
            jj_sb_puts(out, i ? ", " : "");
            flat(r, out, keys->items[i]);
            jj_sb_puts(out, ": ");
            flat(r, out, jj_dict_get(r, v.u.dict, keys->items[i]));
        }
        jj_sb_puts(out, "}");
    } else {
        const struct seq *seq = v.u.seq;
        jj_sb_puts(out, v.type == V_LIST ? "[" : "(");
        for (size_t i = 0; i < seq->n && !r->failed; i++) {
            jj_sb_puts(out, i ? ", " : "");
            flat(r, out, seq->items[i]);
        }
        jj_sb_puts(out, v.type == V_LIST ? "]" : seq->n == 1 ? ",)" : ")");
    }
    jj_leave(r);
}

static const struct str *flat_string(struct render *r, struct value v) {
    struct sb b;
    jj_sb_init(&b, r);
    flat(r, &b, v);
    return jj_sb_finish(&b);
}

static void line_break(struct sb *out, int64_t indent) {
    jj_sb_puts(out, "\n");
    for (int64_t i = 0; i < indent && jj_steps(out->r, (i & 15) == 0); i++) {
        jj_sb_puts(out, " ");
    }
}

/* A line of a long string in pieces that fit, cut behind white space. */
static void push_pieces(struct render *r, struct seq *chunks, const struct str *line, int64_t width,
                        int64_t last_width) {
    size_t start = 0, n;
    for (size_t at = 0; at < line->len && jj_steps(r, 1);) {
        size_t part = at;
        while (at < line->len && !jj_is_space(jj_str_char(line, at, &n))) {
            at += n;
        }
        while (at < line->len && jj_is_space(jj_str_char(line, at, &n))) {
            at += n;
        }
        const struct str *candidate = flat_string(r, value_str(jj_str_cut(r, line, start, at)));
        if ((int64_t)jj_str_length(candidate) > (at == line->len ? last_width : width)) {
            if (part > start) {
                jj_seq_push(r, chunks, value_str(flat_string(r, value_str(jj_str_cut(r, line, start, part)))));
            }
            start = part;
        }
    }
    if (start < line->len) {
        jj_seq_push(r, chunks, value_str(flat_string(r, value_str(jj_str_cut(r, line, start, line->len)))));
    }
}

static void pretty_string(struct render *r, struct sb *out, const struct str *s, int64_t indent, int64_t allowance,
                          bool outermost) {
    const struct seq *lines = jj_split_lines(r, s, true);
    struct seq *chunks = jj_seq_new(r, lines->n);
    indent += outermost;
    allowance += outermost;
    for (size_t i = 0; i < lines->n && !r->failed; i++) {
        int64_t width = PPRINT_WIDTH - indent, last_width = i + 1 == lines->n ? width - allowance : width;
        const struct str *rep = flat_string(r, lines->items[i]);
        if ((int64_t)jj_str_length(rep) <= last_width) {
            jj_seq_push(r, chunks, value_str(rep));
        } else {
            push_pieces(r, chunks, lines->items[i].u.s, width, last_width);
        }
    }
    bool brackets = outermost && chunks->n > 1;
    jj_sb_puts(out, brackets ? "(" : "");
    for (size_t i = 0; i < chunks->n && !r->failed; i++) {
        if (i) {
            line_break(out, indent);
        }
        jj_sb_add_str(out, chunks->items[i].u.s);
    }
    jj_sb_puts(out, brackets ? ")" : "");
}

/* `allowance`: characters that must still fit behind the value on its last line. */
static void pretty(struct render *r, struct sb *out, struct value v, int64_t indent, int64_t allowance,
                   bool outermost) {
    const struct str *rep = flat_string(r, v);
    bool fits = (int64_t)jj_str_length(rep) <= PPRINT_WIDTH - indent - allowance;
    bool can_break = v.type == V_DICT || v.type == V_LIST || v.type == V_TUPLE || (v.type == V_STR && !v.u.s->markup);
    if (fits || !can_break || !jj_enter(r)) {
        jj_sb_add_str(out, rep);
        return;
    }
    if (v.type == V_STR) {
        pretty_string(r, out, v.u.s, indent, allowance, outermost);
    } else if (v.type == V_DICT) {
        const struct seq *keys = sorted_keys(r, v.u.dict);
        jj_sb_puts(out, "{");
        for (size_t i = 0; i < keys->n && !r->failed; i++) {
            const struct str *key = flat_string(r, keys->items[i]);
            if (i) {
                jj_sb_puts(out, ",");
                line_break(out, indent + 1);
            }
            jj_sb_add_str(out, key);
            jj_sb_puts(out, ": ");
            pretty(r, out, jj_dict_get(r, v.u.dict, keys->items[i]), indent + 1 + (int64_t)jj_str_length(key) + 2,
                   i + 1 == keys->n ? allowance + 1 : 1, false);
        }
        jj_sb_puts(out, "}");
    } else {
        const struct seq *seq = v.u.seq;
        const char *end = v.type == V_LIST ? "]" : seq->n == 1 ? ",)" : ")";
        jj_sb_puts(out, v.type == V_LIST ? "[" : "(");
        for (size_t i = 0; i < seq->n && !r->failed; i++) {
            if (i) {
                jj_sb_puts(out, ",");
                line_break(out, indent + 1);
            }
            pretty(r, out, seq->items[i], indent + 1, i + 1 == seq->n ? allowance + (int64_t)strlen(end) : 1, false);
        }
        jj_sb_puts(out, end);
    }
    jj_leave(r);
}

FILTER(pprint) {
    UNUSED;
    struct sb b;
    jj_sb_init(&b, r);
    pretty(r, &b, self, 0, 0, true);
    return value_str(jj_sb_finish(&b));
}

const struct function_info jj_layout_filters[] = {
    {"wordwrap", wordwrap, {"width", "break_long_words", "wrapstring", "break_on_hyphens"}},
    {"pprint", pprint, {0}},
    {0},
};
