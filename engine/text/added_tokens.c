#include "text/added_tokens.h"

#include "text/unicode_class.h"

#include <stdlib.h>
#include <string.h>

int added_tokens_add(struct added_tokens *a, struct span text, struct added_token token, struct error *err) {
    if (text.len == 0) {
        return 0; /* found nowhere */
    }
    if (a->n == a->cap) {
        size_t cap = a->cap ? a->cap * 2 : 64;
        struct added_token *tokens = realloc(a->tokens, cap * sizeof *tokens);
        if (!tokens) {
            return error_memory(err);
        }
        a->tokens = tokens;
        a->cap = cap;
    }
    uint32_t *value = trie_at(&a->trie, text.data, text.len);
    if (!value) {
        return error_memory(err);
    }
    if (*value == 0) { /* of two with the same text the first counts */
        a->tokens[a->n++] = token;
        *value = (uint32_t)a->n;
    }
    return 0;
}

void added_tokens_free(struct added_tokens *a) {
    free(a->tokens);
    trie_free(&a->trie);
    *a = (struct added_tokens){0};
}

/* ---- matching ---- */

struct scan {
    const struct added_tokens *a;
    const char *text, *trusted;
    size_t from, to;
    bool all_trusted;
    size_t done; /* everything before it is in fragments */
    struct fragments *out;
    struct blank {
        size_t from, to; /* white space from here to there and no further, as last looked at */
    } blank[2];          /* of any kind; ASCII alone */
};

struct match {
    const struct added_token *token; /* NULL: none */
    size_t at, len;
};

static bool eligible(const struct scan *s, const struct added_token *t, size_t at, size_t len) {
    if (!t->special || s->all_trusted) {
        return true;
    }
    return s->trusted && memchr(s->trusted + at, 0, len) == NULL;
}

/* The longest token of at most `most` bytes at text[at]. */
static struct match longest_at(const struct scan *s, size_t at, size_t most) {
    struct match best = {0};
    uint32_t node = 0;
    most = most < s->to - at ? most : s->to - at;
    for (size_t i = 0; i < most; i++) {
        node = trie_step(&s->a->trie, node, (unsigned char)s->text[at + i]);
        if (!node) {
            break;
        }
        const struct added_token *t = s->a->trie.value[node] ? &s->a->tokens[s->a->trie.value[node] - 1] : NULL;
        if (t && eligible(s, t, at, i + 1)) {
            best = (struct match){t, at, i + 1};
        }
    }
    return best;
}

static bool push_fragment(struct fragments *f, int32_t id, size_t start, size_t end) {
    if (end == start) {
        return true;
    }
    if (f->n == f->cap) {
        size_t cap = f->cap ? f->cap * 2 : 32;
        struct fragment *items = realloc(f->items, cap * sizeof *items);
        if (!items) {
            return false;
        }
        f->items = items;
        f->cap = cap;
    }
    f->items[f->n++] = (struct fragment){id, start, end - start};
    return true;
}

static bool is_word_at(const struct scan *s, size_t at) {
    return unicode_is_word(utf8_get(s->text + at));
}

static size_t before(const char *text, size_t at) {
    do {
        at--;
    } while (((unsigned char)text[at] & 0xc0) == 0x80);
    return at;
}

static bool is_space_at(const struct scan *s, size_t at, bool ascii_only) {
    size_t n;
    return (!ascii_only || (unsigned char)s->text[at] < 0x80) && (unicode_class_at(s->text + at, &n) & CLASS_SPACE);
}

/* Where the white space from `at` on ends. Tokens that are white space themselves ask again and again inside one run. */
static size_t after_space(struct scan *s, size_t at, bool ascii_only) {
    struct blank *known = &s->blank[ascii_only];
    if (at >= known->from && at < known->to) {
        return known->to;
    }
    size_t end = at;
    while (end < s->to && is_space_at(s, end, ascii_only)) {
        end += utf8_length(s->text[end]);
        s->out->steps++;
    }
    *known = (struct blank){at, end};
    return end;
}

static bool stands_alone(const struct scan *s, struct match m) {
    size_t end = m.at + m.len;
    return (m.at == s->from || !is_word_at(s, before(s->text, m.at))) && (end == s->to || !is_word_at(s, end));
}

/* Put the text before a match and the match, with the white space that it swallows. */
static bool accept(struct scan *s, struct match m) {
    size_t start = m.at, end = m.at + m.len;
    while (m.token->lstrip && start > s->done && is_space_at(s, before(s->text, start), m.token->ascii_space)) {
        start = before(s->text, start);
        s->out->steps++;
    }
    end = m.token->rstrip ? after_space(s, end, m.token->ascii_space) : end;
    if (m.token->lstrip && end <= s->done) {
        return true; /* white space itself, and the token before has swallowed it */
    }
    if (start > s->done && !push_fragment(s->out, -1, s->done, start)) {
        return false;
    }
    if (!push_fragment(s->out, m.token->id, m.at, m.at + m.len)) {
        return false;
    }
    s->done = end > s->done ? end : s->done;
    return true;
}

/* ---- where matches overlap and the longest one is not the leftmost ---- */

/* Does a match that begins inside m beat it? */
static bool has_rival(const struct scan *s, struct match m) {
    for (size_t i = m.at + 1; i < m.at + m.len; i++) {
        struct match other = s->a->trie.first[(unsigned char)s->text[i]] ? longest_at(s, i, s->to) : (struct match){0};
        if (other.len > m.len || (other.len == m.len && other.token != m.token)) {
            return true;
        }
    }
    return false;
}

/* The end of the stretch of overlapping matches that begins with m. */
static size_t stretch_end(const struct scan *s, struct match m) {
    size_t end = m.at + m.len;
    for (size_t i = m.at + 1; i < end; i++) {
        struct match other = longest_at(s, i, s->to);
        end = other.token && i + other.len > end ? i + other.len : end;
    }
    return end;
}

/* Take the longest matches of text[start..end) first, of equally long ones the leftmost. */
static int settle(struct scan *s, size_t start, size_t end, struct error *err) {
    size_t n = end - start, longest = 0;
    uint16_t *taken = calloc(n, sizeof *taken); /* at a match's start its length; inside it TAKEN */
    const uint16_t inside = UINT16_MAX;
    if (!taken) {
        return error_memory(err);
    }
    for (size_t i = 0; i < n; i++) {
        struct match m = longest_at(s, start + i, s->to);
        longest = m.len > longest && m.len < inside ? m.len : longest;
    }
    for (size_t len = longest; len > 0; len--) {
        for (size_t i = 0; i + len <= n; i++) {
            struct match m = taken[i] ? (struct match){0} : longest_at(s, start + i, len);
            bool free_place = m.len == len;
            for (size_t j = 0; j < len && free_place; j++) {
                free_place = taken[i + j] == 0;
            }
            for (size_t j = 0; j < len && free_place; j++) {
                taken[i + j] = j == 0 ? (uint16_t)len : inside;
            }
        }
    }
    for (size_t i = 0; i < n; i++) {
        if (taken[i] && taken[i] != inside && !accept(s, longest_at(s, start + i, taken[i]))) {
            free(taken);
            return error_memory(err);
        }
    }
    free(taken);
    return 0;
}

int added_tokens_split(const struct added_tokens *a, const char *text, size_t from, size_t to, const char *trusted,
                       bool all_trusted, struct fragments *out, struct error *err) {
    struct scan s = {.a = a, .text = text, .trusted = trusted, .from = from, .to = to, .all_trusted = all_trusted,
                     .done = from, .out = out};
    for (size_t at = from; at < to && a->n > 0;) {
        if (!a->trie.first[(unsigned char)text[at]]) {
            at++;
            continue;
        }
        struct match m = longest_at(&s, at, to);
        if (!m.token) {
            at++;
            continue;
        }
        size_t end = at + m.len;
        if (a->longest_overall && has_rival(&s, m)) {
            end = stretch_end(&s, m);
            if (settle(&s, at, end, err) < 0) {
                return -1;
            }
        } else {
            if ((!m.token->single_word || stands_alone(&s, m)) && !accept(&s, m)) {
                return error_memory(err);
            }
        }
        at = end > s.done || !a->longest_overall ? end : s.done;
    }
    return push_fragment(out, -1, s.done, to) ? 0 : error_memory(err);
}
