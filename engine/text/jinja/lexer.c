#include "text/jinja/lexer.h"

#include "base/utf8.h"
#include "text/jinja/unicode.h"

#include <stdbool.h>
#include <string.h>

struct lexer {
    struct arena *arena;
    const char *s; /* [len], newlines normalised */
    size_t len;
    size_t at;
    uint32_t line;
    bool line_starting; /* what was matched last ended with a newline, or nothing was */
    struct tokens_list *out;
    struct error *err;
};

static int fail(struct lexer *l, const char *what) {
    return error_set(l->err, ERROR_MODEL, "chat template line %u: %s", l->line, what);
}

static int push(struct lexer *l, enum token_kind kind, const char *text, size_t len) {
    struct tokens_list *o = l->out;
    if (o->n == o->cap) {
        size_t cap = o->cap ? 2 * o->cap : 256;
        struct token *items = jj_arena_grow(l->arena, o->items, o->cap * sizeof *items, cap * sizeof *items);
        if (!items) {
            return error_memory(l->err);
        }
        o->items = items;
        o->cap = cap;
    }
    o->items[o->n++] = (struct token){.kind = kind, .line = l->line, .text = text, .len = len};
    return 0;
}

/* Step over n bytes, counting lines. */
static void advance(struct lexer *l, size_t n) {
    for (size_t i = 0; i < n; i++) {
        l->line += l->s[l->at + i] == '\n';
    }
    l->at += n;
    if (n) {
        l->line_starting = l->s[l->at - 1] == '\n';
    }
}

/* Length of the white space at `at`. */
static size_t space_at(const struct lexer *l, size_t at) {
    size_t start = at;
    while (at < l->len) {
        uint32_t c;
        bool valid;
        size_t n = utf8_decode(l->s + at, l->len - at, &c, &valid);
        if (!jj_is_space(c)) {
            break;
        }
        at += n;
    }
    return at - start;
}

static bool looking_at(const struct lexer *l, size_t at, const char *what) {
    size_t n = strlen(what);
    return n <= l->len - at && memcmp(l->s + at, what, n) == 0;
}

/* The end of s[from..to) without the white space behind. */
static size_t strip_right(const struct lexer *l, size_t from, size_t to) {
    while (to > from) {
        size_t at = to - 1;
        while (at > from && ((unsigned char)l->s[at] & 0xc0) == 0x80) {
            at--;
        }
        uint32_t c;
        bool valid;
        utf8_decode(l->s + at, to - at, &c, &valid);
        if (!jj_is_space(c)) {
            break;
        }
        to = at;
    }
    return to;
}

/* The text before a tag, less what the tag strips: `-` all white space, lstrip_blocks the blanks before it on its line.
 */
static int push_text(struct lexer *l, size_t from, size_t to, char sign, bool is_variable) {
    size_t end = to;
    if (sign == '-') {
        end = strip_right(l, from, to);
    } else if (sign != '+' && !is_variable) {
        size_t line_start = to;
        while (line_start > from && l->s[line_start - 1] != '\n') {
            line_start--;
        }
        if ((line_start > from || l->line_starting) && strip_right(l, line_start, to) == line_start) {
            end = line_start;
        }
    }
    int rc = end > from ? push(l, T_DATA, l->s + from, end - from) : 0;
    advance(l, to - from);
    return rc;
}

/* Length of the closing `sign? mark`, with what it swallows: white space after `-`, one newline for blocks and
 * comments. */
static size_t closing(const struct lexer *l, size_t at, const char *mark, bool plus, bool trim) {
    size_t n = 0;
    if (at < l->len && (l->s[at] == '-' || (plus && l->s[at] == '+'))) {
        n = 1;
    }
    if (!looking_at(l, at + n, mark)) {
        return 0;
    }
    size_t end = at + n + 2;
    if (n && l->s[at] == '-') {
        end += space_at(l, end);
    } else if (!n && trim && end < l->len && l->s[end] == '\n') {
        end++;
    }
    return end - at;
}

/* `{% raw %}` at the tag that begins at l->at: the length of the tag, or 0. */
static size_t raw_tag(const struct lexer *l, size_t at, const char *name, bool plus, bool trim) {
    size_t p = at + 2;
    if (p < l->len && (l->s[p] == '-' || l->s[p] == '+')) {
        p++;
    }
    p += space_at(l, p);
    if (!looking_at(l, p, name)) {
        return 0;
    }
    p += strlen(name);
    p += space_at(l, p);
    size_t n = closing(l, p, "%}", plus, trim);
    return n ? p + n - at : 0;
}

static int lex_raw(struct lexer *l, size_t begin_length) {
    advance(l, begin_length);
    for (size_t at = l->at; at + 1 < l->len; at++) {
        size_t n = looking_at(l, at, "{%") ? raw_tag(l, at, "endraw", true, true) : 0;
        if (n) {
            char sign = at + 2 < l->len ? l->s[at + 2] : 0;
            if (push_text(l, l->at, at, sign, false)) {
                return -1;
            }
            advance(l, n);
            return 0;
        }
    }
    return fail(l, "missing end of the raw block");
}

static int lex_comment(struct lexer *l) {
    size_t start = l->at + 2;
    start += start < l->len && (l->s[start] == '-' || l->s[start] == '+');
    for (size_t at = start; at + 1 < l->len; at++) {
        size_t n = closing(l, at, "#}", true, true);
        if (n) {
            advance(l, at + n - l->at);
            return 0;
        }
    }
    return fail(l, "missing end of a comment");
}

static int hex_value(char c) {
    if (c >= '0' && c <= '9') {
        return c - '0';
    }
    c = (char)(c | 0x20);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* \xhh, \uhhhh, \Uhhhhhhhh, \ooo at s[*i] (behind the backslash): the code point. */
static int numeric_escape(struct lexer *l, const char *s, size_t len, size_t *i, uint32_t *code_point) {
    uint32_t value = 0;
    if (s[*i] >= '0' && s[*i] <= '7') {
        for (int n = 0; n < 3 && *i < len && s[*i] >= '0' && s[*i] <= '7'; n++, (*i)++) {
            value = value * 8 + (uint32_t)(s[*i] - '0');
        }
    } else {
        int digits = s[*i] == 'x' ? 2 : s[*i] == 'u' ? 4 : 8;
        (*i)++;
        for (int n = 0; n < digits; n++, (*i)++) {
            int h = *i < len ? hex_value(s[*i]) : -1;
            if (h < 0) {
                return fail(l, "truncated escape in a string");
            }
            value = value << 4 | (uint32_t)h;
        }
    }
    if (value > 0x10ffff || (value >= 0xd800 && value <= 0xdfff)) {
        return fail(l, "an escape in a string is not a Unicode character");
    }
    *code_point = value;
    return 0;
}

/*
 * The text of a string literal as Python's unicode-escape decodes it. What comes out is never longer than what went in,
 * except a backslash before a character beyond ASCII: that one is spelled out there as an escape of its own.
 */
static int unescape(struct lexer *l, const char *s, size_t len, const char **text, size_t *text_len) {
    if (!memchr(s, '\\', len)) {
        *text = s;
        *text_len = len;
        return 0;
    }
    char *out = jj_arena_array(l->arena, len, 2);
    if (!out) {
        return error_memory(l->err);
    }
    size_t n = 0;
    for (size_t i = 0; i < len;) {
        if (s[i] != '\\' || i + 1 >= len) {
            out[n++] = s[i++];
            continue;
        }
        static const char from[] = "\\'\"abfnrtv", to[] = "\\'\"\a\b\f\n\r\t\v";
        i++;
        const char *known = s[i] ? strchr(from, s[i]) : NULL;
        if (s[i] == '\n') {
            i++;
        } else if (known) {
            out[n++] = to[known - from];
            i++;
        } else if ((s[i] >= '0' && s[i] <= '7') || s[i] == 'x' || s[i] == 'u' || s[i] == 'U') {
            uint32_t c = 0;
            if (numeric_escape(l, s, len, &i, &c)) {
                return -1;
            }
            n += utf8_encode(c, out + n);
        } else if (s[i] == 'N') {
            return fail(l, "\\N{name} in a string is not supported");
        } else if ((unsigned char)s[i] >= 0x80) {
            static const char hex[] = "0123456789abcdef";
            uint32_t c;
            bool valid;
            i += utf8_decode(s + i, len - i, &c, &valid);
            int digits = c < 0x100 ? 2 : c < 0x10000 ? 4 : 8;
            out[n++] = '\\';
            out[n++] = digits == 2 ? 'x' : digits == 4 ? 'u' : 'U';
            while (digits-- > 0) {
                out[n++] = hex[c >> (4 * digits) & 15];
            }
        } else {
            out[n++] = '\\';
            out[n++] = s[i++];
        }
    }
    *text = out;
    *text_len = n;
    return 0;
}

static int lex_string(struct lexer *l) {
    char quote = l->s[l->at];
    size_t end = l->at + 1;
    while (end < l->len && l->s[end] != quote) {
        end += l->s[end] == '\\' ? 2 : 1;
    }
    if (end >= l->len) {
        return fail(l, "a string has no end");
    }
    const char *text = NULL;
    size_t n = 0;
    if (unescape(l, l->s + l->at + 1, end - l->at - 1, &text, &n) || push(l, T_STRING, text, n)) {
        return -1;
    }
    advance(l, end + 1 - l->at);
    return 0;
}

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

/* Digits with single underscores between them, from `at`: the end. */
static size_t digits_end(const struct lexer *l, size_t at) {
    while (at < l->len && (is_digit(l->s[at]) || (l->s[at] == '_' && at + 1 < l->len && is_digit(l->s[at + 1])))) {
        at++;
    }
    return at;
}

static size_t based_end(const struct lexer *l, size_t at, int base) {
    size_t start = at;
    while (at < l->len) {
        size_t digit = at + (l->s[at] == '_');
        int h = digit < l->len ? hex_value(l->s[digit]) : -1;
        if (h < 0 || h >= base) {
            break;
        }
        at = digit + 1;
    }
    return at == start ? 0 : at;
}

static int lex_number(struct lexer *l) {
    size_t start = l->at;
    char second = start + 1 < l->len ? (char)(l->s[start + 1] | 0x20) : 0;
    int base = l->s[start] != '0' ? 0 : second == 'x' ? 16 : second == 'o' ? 8 : second == 'b' ? 2 : 0;
    size_t end = base ? based_end(l, start + 2, base) : 0;
    enum token_kind kind = T_INTEGER;
    if (!end) {
        end = digits_end(l, start);
        bool after_dot = start > 0 && l->s[start - 1] == '.'; /* x.1.2 are two integers */
        size_t p = end;
        if (!after_dot && p + 1 < l->len && l->s[p] == '.' && is_digit(l->s[p + 1])) {
            p = digits_end(l, p + 1);
            kind = T_FLOAT;
            end = p;
        }
        if (!after_dot && p < l->len && (l->s[p] | 0x20) == 'e') {
            p++;
            p += p < l->len && (l->s[p] == '+' || l->s[p] == '-');
            if (p < l->len && is_digit(l->s[p])) {
                end = digits_end(l, p);
                kind = T_FLOAT;
            }
        }
        if (kind == T_INTEGER && l->s[start] == '0') { /* 0, 00, 0_0: Python has no leading zeros */
            size_t zeros = start;
            while (zeros < end && (l->s[zeros] == '0' || l->s[zeros] == '_')) {
                zeros++;
            }
            end = zeros;
        }
    }
    int rc = push(l, kind, l->s + start, end - start);
    advance(l, end - start);
    return rc;
}

static size_t name_end(const struct lexer *l, size_t at) {
    while (at < l->len) {
        uint32_t c;
        bool valid;
        size_t n = utf8_decode(l->s + at, l->len - at, &c, &valid);
        if (c != '_' && !jj_is_word(c)) {
            break;
        }
        at += n;
    }
    return at;
}

static const struct {
    const char text[3];
    enum token_kind kind;
} operators[] = {
    {"//", T_FLOORDIV}, {"**", T_POW},      {"==", T_EQ},    {"!=", T_NE},    {">=", T_GE},    {"<=", T_LE},
    {"+", T_ADD},       {"-", T_SUB},       {"/", T_DIV},    {"*", T_MUL},    {"%", T_MOD},    {"~", T_TILDE},
    {"[", T_LBRACKET},  {"]", T_RBRACKET},  {"(", T_LPAREN}, {")", T_RPAREN}, {"{", T_LBRACE}, {"}", T_RBRACE},
    {">", T_GT},        {"<", T_LT},        {"=", T_ASSIGN}, {".", T_DOT},    {":", T_COLON},  {"|", T_PIPE},
    {",", T_COMMA},     {";", T_SEMICOLON},
};

const char *jj_token_name(enum token_kind kind) {
    static const char *const names[] = {
        "end of the template", "text", "'{{'", "'}}'", "'{%'", "'%}'", "a name", "a string", "an integer", "a float"};
    if (kind <= T_FLOAT) {
        return names[kind];
    }
    for (size_t i = 0; i < sizeof operators / sizeof operators[0]; i++) {
        if (operators[i].kind == kind) {
            return operators[i].text;
        }
    }
    return "?";
}

/* Brackets open inside a tag: while there are some, the marks }} and %} do not end it. */
struct brackets {
    char open[JJ_LEXER_MAX_BRACKETS];
    size_t n;
};

static int lex_operator(struct lexer *l, struct brackets *b) {
    for (size_t i = 0; i < sizeof operators / sizeof operators[0]; i++) {
        if (!looking_at(l, l->at, operators[i].text)) {
            continue;
        }
        char c = operators[i].text[0];
        if (c == '(' || c == '[' || c == '{') {
            if (b->n == sizeof b->open) {
                return fail(l, "brackets are nested too deep");
            }
            b->open[b->n++] = c == '(' ? ')' : c == '[' ? ']' : '}';
        } else if (c == ')' || c == ']' || c == '}') {
            if (b->n == 0 || b->open[b->n - 1] != c) {
                return fail(l, "a closing bracket does not match");
            }
            b->n--;
        }
        int rc = push(l, operators[i].kind, l->s + l->at, strlen(operators[i].text));
        advance(l, strlen(operators[i].text));
        return rc;
    }
    return fail(l, "unexpected character");
}

/* The inside of a tag, up to and with its end. */
static int lex_tag(struct lexer *l, bool is_variable) {
    const char *mark = is_variable ? "}}" : "%}";
    struct brackets brackets = {.n = 0};
    while (l->at < l->len) {
        if (brackets.n == 0) {
            size_t n = closing(l, l->at, mark, !is_variable, !is_variable);
            if (n) {
                int rc = push(l, is_variable ? T_VARIABLE_END : T_BLOCK_END, l->s + l->at, 2);
                advance(l, n);
                return rc;
            }
        }
        size_t space = space_at(l, l->at);
        char c = l->s[l->at];
        int rc;
        if (space) {
            advance(l, space);
            rc = 0;
        } else if (is_digit(c)) {
            rc = lex_number(l);
        } else if (c == '\'' || c == '"') {
            rc = lex_string(l);
        } else {
            size_t end = name_end(l, l->at);
            if (end > l->at) {
                rc = push(l, T_NAME, l->s + l->at, end - l->at);
                advance(l, end - l->at);
            } else {
                rc = lex_operator(l, &brackets);
            }
        }
        if (rc) {
            return -1;
        }
    }
    return 0; /* the parser meets T_EOF */
}

/* Newlines become \n, and one at the very end goes (keep_trailing_newline is off). */
static int normalise(struct lexer *l, const char *source, size_t len) {
    char *s = jj_arena_alloc(l->arena, len);
    if (!s) {
        return error_memory(l->err);
    }
    size_t n = 0;
    for (size_t i = 0; i < len; i++) {
        if (source[i] == '\r') {
            s[n++] = '\n';
            i += i + 1 < len && source[i + 1] == '\n';
        } else {
            s[n++] = source[i];
        }
    }
    if (n > 0 && s[n - 1] == '\n') {
        n--;
    }
    l->s = s;
    l->len = n;
    return 0;
}

static int lex_root(struct lexer *l) {
    size_t at = l->at;
    while (at + 1 < l->len && !(l->s[at] == '{' && strchr("{%#", l->s[at + 1]) && l->s[at + 1])) {
        at++;
    }
    if (at + 1 >= l->len) {
        int rc = push(l, T_DATA, l->s + l->at, l->len - l->at);
        advance(l, l->len - l->at);
        return rc;
    }
    char kind = l->s[at + 1];
    char sign = at + 2 < l->len ? l->s[at + 2] : 0;
    bool is_variable = kind == '{';
    if (push_text(l, l->at, at, sign, is_variable)) {
        return -1;
    }
    if (kind == '#') {
        return lex_comment(l);
    }
    size_t raw = is_variable ? 0 : raw_tag(l, at, "raw", false, false);
    if (raw) {
        return lex_raw(l, raw);
    }
    if (push(l, is_variable ? T_VARIABLE_BEGIN : T_BLOCK_BEGIN, l->s + at, 2)) {
        return -1;
    }
    advance(l, sign == '-' || sign == '+' ? 3 : 2);
    return lex_tag(l, is_variable);
}

int jj_lex(struct arena *arena, const char *source, size_t len, struct tokens_list *out, struct error *err) {
    struct tokens_list tokens = {0};
    struct lexer l = {.arena = arena, .line = 1, .line_starting = true, .out = &tokens, .err = err};
    if (normalise(&l, source, len)) {
        return -1;
    }
    while (l.at < l.len) {
        if (lex_root(&l)) {
            return -1;
        }
    }
    if (push(&l, T_EOF, "", 0)) {
        return -1;
    }
    *out = tokens;
    return 0;
}
