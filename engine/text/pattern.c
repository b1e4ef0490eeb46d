#include "text/pattern.h"

#include "text/unicode_class.h"

#include <string.h>

#define L_N (CLASS_LETTER | CLASS_NUMBER)

#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define SPACES "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define LLAMA3(digits) CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" SPACES
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define CASED(contractions, digits)                                                                                    \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" contractions "|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER                \
    "*" contractions "|" digits "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" SPACES

static const struct {
    const char *regex;
    struct pattern pattern;
} known[] = {
    {"'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+", {.kind = PATTERN_GPT2}},
    {LLAMA3("\\p{N}{1,3}"), {PATTERN_LLAMA3, .contractions = true, .long_s = true, .digits = 3}},
    {LLAMA3("\\p{N}"), {PATTERN_LLAMA3, .contractions = true, .long_s = true, .digits = 1}},
    {LLAMA3("\\p{N}+"), {PATTERN_LLAMA3, .contractions = true, .long_s = true}},
    {CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" SPACES,
     {PATTERN_LLAMA3, .contractions = true, .long_s = true, .marks = true, .digits = 1}},
    {CASED("", "\\p{N}"), {PATTERN_CASED, .slash = true, .digits = 1}},
    {CASED(CONTRACTIONS "?", "\\p{N}{1,3}"),
     {PATTERN_CASED, .contractions = true, .long_s = true, .slash = true, .digits = 3}},
};
#define N_KNOWN (sizeof known / sizeof known[0])

bool pattern_from_regex(const char *regex, struct pattern *out) {
    for (size_t i = 0; i < N_KNOWN; i++) {
        if (strcmp(regex, known[i].regex) == 0) {
            *out = known[i].pattern;
            return true;
        }
    }
    return false;
}

const char *pattern_regex(const struct pattern *p) {
    for (size_t i = 0; i < N_KNOWN; i++) {
        const struct pattern *k = &known[i].pattern;
        if (k->kind == p->kind && k->contractions == p->contractions && k->marks == p->marks && k->slash == p->slash &&
            k->digits == p->digits) {
            return known[i].regex;
        }
    }
    return NULL;
}

/* The end of the run of characters whose class meets `any` (and, if inverted, does not). */
static size_t run(const char *s, size_t at, size_t len, unsigned any) {
    for (size_t n; at < len && (unicode_class_at(s + at, &n) & any); at += n) {
    }
    return at;
}

static size_t run_without(const char *s, size_t at, size_t len, unsigned none) {
    for (size_t n; at < len && !(unicode_class_at(s + at, &n) & none); at += n) {
    }
    return at;
}

/* The end of 's 't 'm 'd 're 've 'll at s[at], or at. */
static size_t contraction(const char *s, size_t at, size_t len, bool fold_case, bool long_s) {
    if (at + 1 >= len || s[at] != '\'') {
        return at;
    }
    int fold = fold_case ? 0x20 : 0;
    int a = s[at + 1] | fold, b = at + 2 < len ? s[at + 2] | fold : 0;
    if (a == 's' || a == 't' || a == 'm' || a == 'd') {
        return at + 2;
    }
    if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l')) {
        return at + 3;
    }
    if (long_s && at + 2 < len && s[at + 1] == '\xc5' && s[at + 2] == '\xbf') {
        return at + 3;
    }
    return at;
}

/* White space at s[at]: \s*[\r\n]+ (if line_ends), else \s+(?!\S), else \s+. */
static size_t spaces(const char *s, size_t at, size_t len, bool line_ends) {
    size_t i = at, last = at, after_line_end = at, n;
    while (i < len && (unicode_class_at(s + i, &n) & CLASS_SPACE)) {
        last = i;
        i += n;
        if (s[last] == '\r' || s[last] == '\n') {
            after_line_end = i;
        }
    }
    if (line_ends && after_line_end > at) {
        return after_line_end;
    }
    /* the last one belongs to the word that follows, if another stays here */
    return i < len && last > at ? last : i;
}

static size_t match_gpt2(const char *s, size_t at, size_t len) {
    size_t end = contraction(s, at, len, false, false);
    if (end > at) {
        return end;
    }
    size_t first = at, n;
    unsigned c = unicode_class_at(s + at, &n);
    if (s[at] == ' ' && at + 1 < len) {
        first = at + 1;
        c = unicode_class_at(s + first, &n);
    }
    if (c & CLASS_LETTER) {
        return run(s, first, len, CLASS_LETTER);
    }
    if (c & CLASS_NUMBER) {
        return run(s, first, len, CLASS_NUMBER);
    }
    if (!(c & CLASS_SPACE)) {
        return run_without(s, first, len, CLASS_SPACE | L_N);
    }
    return spaces(s, at, len, false);
}

static bool is_line_end(char c) {
    return c == '\r' || c == '\n';
}

/* ` ?[^\s...]+[\r\n]*` at s[at], or at. */
static size_t punctuation(const struct pattern *p, const char *s, size_t at, size_t len) {
    unsigned not_these = CLASS_SPACE | L_N | (p->marks ? CLASS_MARK : 0);
    size_t first = at + (s[at] == ' ');
    size_t i = run_without(s, first, len, not_these);
    if (i == first) {
        return at;
    }
    while (i < len && (is_line_end(s[i]) || (p->slash && s[i] == '/'))) {
        i++;
    }
    return i;
}

static size_t digits(const struct pattern *p, const char *s, size_t at, size_t len) {
    if (p->digits == 0) {
        return run(s, at, len, CLASS_NUMBER);
    }
    size_t n;
    for (size_t i = 0; i < p->digits && at < len && (unicode_class_at(s + at, &n) & CLASS_NUMBER); i++) {
        at += n;
    }
    return at;
}

static size_t match_llama3(const struct pattern *p, const char *s, size_t at, size_t len) {
    size_t end = p->contractions ? contraction(s, at, len, true, p->long_s) : at;
    if (end > at) {
        return end;
    }
    const unsigned word = CLASS_LETTER | (p->marks ? CLASS_MARK : 0);
    size_t n;
    unsigned c = unicode_class_at(s + at, &n);
    if (c & CLASS_NUMBER) {
        return digits(p, s, at, len);
    }
    if (c & word) {
        return run(s, at, len, word);
    }
    if (!is_line_end(s[at])) {
        end = run(s, at + n, len, word); /* one other character, then letters */
        if (end > at + n) {
            return end;
        }
    }
    end = punctuation(p, s, at, len);
    return end > at ? end : spaces(s, at, len, true);
}

static bool in_upper(unsigned c) {
    return (c & CLASS_MARK) || ((c & CLASS_LETTER) && !(c & CLASS_LOWER));
}

static bool in_lower(unsigned c) {
    return (c & CLASS_MARK) || ((c & CLASS_LETTER) && !(c & CLASS_UPPER));
}

/*
 * UPPER*LOWER+ at s[at], or UPPER+ when no LOWER can be had; at if neither. The greedy UPPER* gives back
 * characters until one of them is in LOWER too; after that one, LOWER+ cannot go on (else it would have been had
 * without giving back).
 */
static size_t cased_word(const char *s, size_t at, size_t len, bool *has_lower) {
    size_t i = at, n, after_both = 0;
    while (i < len) {
        unsigned c = unicode_class_at(s + i, &n);
        if (!in_upper(c)) {
            break;
        }
        i += n;
        after_both = in_lower(c) ? i : after_both;
    }
    size_t end = i;
    while (end < len && in_lower(unicode_class_at(s + end, &n))) {
        end += n;
    }
    *has_lower = end > i || after_both > 0;
    return end > i ? end : after_both > 0 ? after_both : i;
}

static size_t match_cased(const struct pattern *p, const char *s, size_t at, size_t len) {
    size_t n;
    unsigned c = unicode_class_at(s + at, &n);
    bool prefix = !(c & L_N) && !is_line_end(s[at]), lower = false;
    /* In the order of the regex: with LOWER after one other character, with LOWER at once, then without LOWER. */
    size_t after = prefix ? cased_word(s, at + n, len, &lower) : at + n;
    size_t end = lower ? after : cased_word(s, at, len, &lower);
    if (!lower && after > at + n) {
        end = after;
    }
    if (end > at) {
        return p->contractions ? contraction(s, end, len, true, p->long_s) : end;
    }
    if (c & CLASS_NUMBER) {
        return digits(p, s, at, len);
    }
    end = punctuation(p, s, at, len);
    return end > at ? end : spaces(s, at, len, true);
}

size_t pattern_match(const struct pattern *p, const char *s, size_t at, size_t len) {
    switch (p->kind) {
    case PATTERN_GPT2:
        return match_gpt2(s, at, len);
    case PATTERN_LLAMA3:
        return match_llama3(p, s, at, len);
    case PATTERN_CASED:
        return match_cased(p, s, at, len);
    }
    return len;
}
