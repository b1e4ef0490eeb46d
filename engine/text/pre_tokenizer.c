#include "text/pre_tokenizer.h"

#include "base/utf8.h"
#include "text/unicode_class.h"

#include <stdlib.h>
#include <string.h>

struct pre_step *pre_add(struct pre_tokenizer *p, enum pre_kind kind, struct error *err) {
    if (p->n == PRE_MAX_STEPS) {
        error_set(err, ERROR_MODEL, "the pre-tokenizer has more than %d steps", PRE_MAX_STEPS);
        return NULL;
    }
    struct pre_step *step = &p->steps[p->n++];
    *step = (struct pre_step){.kind = kind};
    return step;
}

bool pre_has(const struct pre_tokenizer *p, enum pre_kind kind) {
    for (size_t i = 0; i < p->n; i++) {
        if (p->steps[i].kind == kind) {
            return true;
        }
    }
    return false;
}

int pre_add_pattern(struct pre_tokenizer *p, struct pattern pattern, struct error *err) {
    struct pre_step *step = pre_add(p, PRE_PATTERN, err);
    if (!step) {
        return -1;
    }
    step->pattern = pattern;
    return 0;
}

int pre_add_regex(struct pre_tokenizer *p, const char *regex, enum split_behavior behavior, bool invert,
                  struct error *err) {
    struct pattern pattern;
    if (pattern_from_regex(regex, &pattern)) {
        /* Such a pattern matches every character, so there is nothing between the matches; inverted, nothing
         * would match. Both "removed and inverted" and "isolated" leave the matches as words. */
        if ((behavior == SPLIT_ISOLATED && !invert) || (behavior == SPLIT_REMOVED && invert)) {
            return pre_add_pattern(p, pattern, err);
        }
    }
    struct pre_step *step = pre_add(p, PRE_REGEX, err);
    if (!step) {
        return -1;
    }
    step->behavior = behavior;
    step->invert = invert;
    return regex_new(regex, strlen(regex), &step->regex, err);
}

void pre_free(struct pre_tokenizer *p) {
    for (size_t i = 0; i < p->n; i++) {
        regex_free(p->steps[i].regex);
    }
    p->n = 0;
}

void pre_scratch_free(struct pre_scratch *s) {
    free(s->words.items);
    free(s->spare.items);
    buf_free(&s->text);
    buf_free(&s->spare_text);
    *s = (struct pre_scratch){0};
}

static bool add_word(struct words *w, size_t start, size_t end) {
    if (end == start) {
        return true;
    }
    if (w->n == w->cap) {
        size_t cap = w->cap ? w->cap * 2 : 256;
        struct word *items = realloc(w->items, cap * sizeof *items);
        if (!items) {
            return false;
        }
        w->items = items;
        w->cap = cap;
    }
    w->items[w->n++] = (struct word){(uint32_t)start, (uint32_t)(end - start)};
    return true;
}

/* ---- from matches to words ---- */

/* Takes the pieces of one word in order, matching and not, and puts out the words that the behaviour makes. */
struct splitter {
    struct words *out;
    enum split_behavior behavior;
    bool invert;
    bool previous; /* was the piece before a match (false at first) */
    bool any;      /* has this word given a word already */
    bool pending;  /* a match waits for what follows (MERGED_WITH_NEXT) */
    size_t pending_start, pending_end;
    bool failed;
};

static void put(struct splitter *sp, size_t start, size_t end) {
    sp->any |= end > start;
    sp->failed |= !add_word(sp->out, start, end);
}

static void extend_last(struct splitter *sp, size_t start, size_t end) {
    struct word *last = &sp->out->items[sp->out->n - 1];
    last->len += (uint32_t)(end - start);
}

static void put_pending(struct splitter *sp) {
    if (sp->pending) {
        put(sp, sp->pending_start, sp->pending_end);
        sp->pending = false;
    }
}

static void piece(struct splitter *sp, size_t start, size_t end, bool match) {
    match ^= sp->invert;
    if (sp->failed) {
        return;
    }
    switch (sp->behavior) {
    case SPLIT_ISOLATED:
        put(sp, start, end);
        break;
    case SPLIT_REMOVED:
        if (!match) {
            put(sp, start, end);
        }
        break;
    case SPLIT_CONTIGUOUS:
        if (match == sp->previous && sp->any) {
            extend_last(sp, start, end);
        } else {
            put(sp, start, end);
        }
        break;
    case SPLIT_MERGED_WITH_PREVIOUS:
        if (match && !sp->previous && sp->any) {
            extend_last(sp, start, end);
        } else {
            put(sp, start, end);
        }
        break;
    case SPLIT_MERGED_WITH_NEXT:
        if (match) {
            put_pending(sp);
            sp->pending = true;
            sp->pending_start = start;
            sp->pending_end = end;
        } else {
            put(sp, sp->pending ? sp->pending_start : start, end);
            sp->pending = false;
        }
        break;
    }
    sp->previous = match;
}

/* ---- finding matches ---- */

static int next_regex(const struct pre_step *step, struct regex_run *run, const char *s, size_t len, size_t from,
                      size_t last_end, bool any_before, size_t *start, size_t *end, struct error *err) {
    while (from <= len) {
        int found = regex_find(step->regex, run, s, len, from, start, end, err);
        if (found <= 0) {
            return found;
        }
        /* An empty match right behind the match before does not count: look one character further. */
        if (*start < *end || !any_before || *end != last_end) {
            return 1;
        }
        from = *end < len ? *end + utf8_length(s[*end]) : len + 1;
    }
    return 0;
}

static int next_literal(const struct pre_step *step, const char *s, size_t len, size_t from, size_t *start,
                        size_t *end) {
    const char *hit = from < len ? memmem(s + from, len - from, step->literal, step->literal_len) : NULL;
    if (!hit) {
        return 0;
    }
    *start = (size_t)(hit - s);
    *end = *start + step->literal_len;
    return 1;
}

static int next_class(const struct pre_step *step, const char *s, size_t len, size_t from, size_t *start, size_t *end) {
    for (size_t i = from, n; i < len; i += n) {
        unsigned c = unicode_class_at(s + i, &n);
        if ((c & step->classes) || (step->ascii_symbols && n == 1 && (c & CLASS_SYMBOL))) {
            *start = i;
            *end = i + n;
            return 1;
        }
    }
    return 0;
}

static bool in_set(const struct char_set *set, const char *s, size_t *len) {
    unsigned c = unicode_class_at(s, len);
    if ((c & set->classes) || set->n == 0 || ((c & CLASS_SPACE) && *len > 1)) {
        return c & set->classes;
    }
    uint32_t cp = utf8_get(s);
    size_t low = 0, high = set->n;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (cp > set->ranges[middle].last) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low < set->n && cp >= set->ranges[low].first;
}

static int next_run(const struct pre_step *step, const char *s, size_t len, size_t from, size_t *start, size_t *end) {
    size_t i = from, before = from, n; /* before: i, or where a white space right before it begins */
    while (i < len && !in_set(step->set, s + i, &n)) {
        before = step->space_before && (unicode_class_at(s + i, &n) & CLASS_SPACE) ? i : i + n;
        i += n;
    }
    if (i >= len) {
        return 0;
    }
    *start = before;
    *end = i + n;
    while (!step->single && *end < len && in_set(step->set, s + *end, &n)) {
        *end += n;
    }
    return 1;
}

static int next_trailing_space(const char *s, size_t len, size_t from, size_t *start, size_t *end) {
    size_t i = len, n;
    while (i > from) {
        size_t last = i - 1;
        while (last > from && ((unsigned char)s[last] & 0xc0) == 0x80) {
            last--;
        }
        if (!(unicode_class_at(s + last, &n) & CLASS_SPACE)) {
            break;
        }
        i = last;
    }
    *start = i;
    *end = len;
    return i < len;
}

static int next_match(const struct pre_step *step, struct regex_run *run, const char *s, size_t len, size_t from,
                      size_t last_end, bool any_before, size_t *start, size_t *end, struct error *err) {
    switch (step->kind) {
    case PRE_REGEX:
        return next_regex(step, run, s, len, from, last_end, any_before, start, end, err);
    case PRE_LITERAL:
        return next_literal(step, s, len, from, start, end);
    case PRE_RUN:
        return next_run(step, s, len, from, start, end);
    case PRE_TRAILING_SPACE:
        return next_trailing_space(s, len, from, start, end);
    default:
        return next_class(step, s, len, from, start, end);
    }
}

static int split_word(const struct pre_step *step, struct regex_run *run, const char *text, struct word w,
                      struct words *out, struct error *err) {
    struct splitter sp = {.out = out, .behavior = step->behavior, .invert = step->invert};
    const char *s = text + w.start;
    size_t from = 0, before = 0, start = 0, end = 0;
    bool any = false;
    for (;;) {
        int found = next_match(step, run, s, w.len, from, before, any, &start, &end, err);
        if (found < 0) {
            return -1;
        }
        if (!found) {
            break;
        }
        if (start > before) {
            piece(&sp, w.start + before, w.start + start, false);
        }
        piece(&sp, w.start + start, w.start + end, true);
        any = true;
        before = from = end;
    }
    if (before < w.len) {
        piece(&sp, w.start + before, w.start + w.len, false);
    }
    put_pending(&sp);
    return sp.failed ? error_memory(err) : 0;
}

static int split_by_pattern(const struct pattern *p, const char *text, struct word w, struct words *out,
                            struct error *err) {
    const char *s = text + w.start;
    for (size_t at = 0; at < w.len;) {
        size_t end = pattern_match(p, s, at, w.len);
        if (!add_word(out, w.start + at, w.start + end)) {
            return error_memory(err);
        }
        at = end;
    }
    return 0;
}

/* ---- steps that change characters ---- */

static void rewrite_metaspace(const struct pre_step *step, const char *s, size_t len, bool first, struct buf *out) {
    bool starts =
        len > 0 && (s[0] == ' ' || (len >= step->literal_len && memcmp(s, step->literal, step->literal_len) == 0));
    if (!starts && (step->scheme == PREPEND_ALWAYS || (step->scheme == PREPEND_FIRST && first))) {
        buf_append(out, step->literal, step->literal_len);
    }
    for (size_t i = 0; i < len;) {
        const char *space = memchr(s + i, ' ', len - i);
        size_t n = space ? (size_t)(space - (s + i)) : len - i;
        buf_append(out, s + i, n);
        if (space) {
            buf_append(out, step->literal, step->literal_len);
            n++;
        }
        i += n;
    }
}

static bool rewrites(enum pre_kind kind) {
    return kind == PRE_METASPACE || kind == PRE_PREFIX_SPACE || kind == PRE_TO_ALPHABET || kind == PRE_FROM_ALPHABET;
}

static void rewrite_word(const struct pre_step *step, const char *word, size_t len, bool at_start, struct buf *out) {
    switch (step->kind) {
    case PRE_METASPACE:
        rewrite_metaspace(step, word, len, at_start, out);
        break;
    case PRE_TO_ALPHABET:
        for (size_t i = 0; i < len; i++) {
            char utf8[4];
            buf_append(out, utf8, utf8_encode(byte_level_char((unsigned char)word[i]), utf8));
        }
        break;
    case PRE_FROM_ALPHABET:
        byte_level_decode((struct span){word, len}, out); /* it is in that alphabet: PRE_TO_ALPHABET came before */
        break;
    default: /* PRE_PREFIX_SPACE */
        if (word[0] != ' ') {
            buf_putc(out, ' ');
        }
        buf_append(out, word, len);
    }
}

static int rewrite(const struct pre_step *step, struct pre_scratch *s, bool at_start, struct error *err) {
    buf_reset(&s->spare_text);
    s->spare.n = 0;
    struct pre_step cut = {.kind = PRE_LITERAL, .behavior = SPLIT_MERGED_WITH_NEXT, .literal_len = step->literal_len};
    memcpy(cut.literal, step->literal, sizeof cut.literal);
    for (size_t i = 0; i < s->words.n; i++) {
        struct word w = s->words.items[i];
        size_t start = s->spare_text.len;
        rewrite_word(step, s->text.data + w.start, w.len, at_start && w.start == 0, &s->spare_text);
        if (s->spare_text.failed || s->spare_text.len > UINT32_MAX) {
            return error_memory(err);
        }
        struct word changed = {(uint32_t)start, (uint32_t)(s->spare_text.len - start)};
        if (step->kind == PRE_METASPACE && step->split) {
            if (split_word(&cut, NULL, s->spare_text.data, changed, &s->spare, err) < 0) {
                return -1;
            }
        } else if (!add_word(&s->spare, start, start + changed.len)) {
            return error_memory(err);
        }
    }
    struct buf text = s->text;
    s->text = s->spare_text;
    s->spare_text = text;
    return 0;
}

int pre_tokenize(const struct pre_tokenizer *p, struct pre_scratch *s, bool at_start, struct error *err) {
    s->words.n = 0;
    if (!add_word(&s->words, 0, s->text.len)) {
        return error_memory(err);
    }
    for (size_t i = 0; i < p->n; i++) {
        const struct pre_step *step = &p->steps[i];
        int rc = 0;
        s->spare.n = 0;
        if (rewrites(step->kind)) {
            rc = rewrite(step, s, at_start, err);
        } else {
            for (size_t j = 0; rc == 0 && j < s->words.n; j++) {
                rc = step->kind == PRE_PATTERN
                         ? split_by_pattern(&step->pattern, s->text.data, s->words.items[j], &s->spare, err)
                         : split_word(step, s->run, s->text.data, s->words.items[j], &s->spare, err);
            }
        }
        if (rc < 0) {
            return -1;
        }
        struct words words = s->words;
        s->words = s->spare;
        s->spare = words;
    }
    return 0;
}
