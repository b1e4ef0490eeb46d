#include "settings.h"

#include <errno.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static char **string_field(const struct setting *s, const void *base) {
    return (char **)((uintptr_t)base + s->offset);
}

static size_t *size_field(const struct setting *s, const void *base) {
    return (size_t *)((uintptr_t)base + s->offset);
}

static double *double_field(const struct setting *s, const void *base) {
    return (double *)((uintptr_t)base + s->offset);
}

static bool *bool_field(const struct setting *s, const void *base) {
    return (bool *)((uintptr_t)base + s->offset);
}

static bool is_string(const struct setting *s) {
    return s->type == SETTING_STRING || s->type == SETTING_CHOICE;
}

/* The i-th word of a space-separated list; NULL at its end. */
static const char *list_word(const char *list, size_t i, size_t *len) {
    for (const char *p = list; p && *p; p += strspn(p, " ")) {
        *len = strcspn(p, " ");
        if (i-- == 0) {
            return p;
        }
        p += *len;
    }
    return NULL;
}

static bool list_contains(const char *list, const char *word, size_t len) {
    size_t n;
    for (size_t i = 0;; i++) {
        const char *w = list_word(list, i, &n);
        if (!w) {
            return false;
        }
        if (n == len && memcmp(w, word, len) == 0) {
            return true;
        }
    }
}

/* Is it one of the words, or made after one that ends with ":N"? */
static bool is_choice(const char *choices, const char *text) {
    size_t n, head = strcspn(text, ":") + 1, digits = text[head - 1] ? strspn(text + head, "0123456789") : 0;
    if (digits > 0 && digits <= 4 && text[head + digits] == '\0') {
        for (size_t i = 0; list_word(choices, i, &n); i++) {
            const char *w = list_word(choices, i, &n);
            if (n == head + 1 && w[head] == 'N' && memcmp(w, text, head) == 0) {
                return true;
            }
        }
    }
    return list_contains(choices, text, strlen(text));
}

int settings_init(struct settings t, void *base, struct error *err) {
    for (size_t i = 0; i < t.n; i++) {
        if (is_string(&t.rows[i])) {
            *string_field(&t.rows[i], base) = NULL;
        }
    }
    for (size_t i = 0; i < t.n; i++) {
        const struct setting *s = &t.rows[i];
        if (setting_set(s, base, s->name, s->initial, err) != 0) {
            settings_free(t, base);
            return -1;
        }
    }
    return 0;
}

void settings_free(struct settings t, void *base) {
    for (size_t i = 0; base && i < t.n; i++) {
        if (is_string(&t.rows[i])) {
            char **field = string_field(&t.rows[i], base);
            free(*field);
            *field = NULL;
        }
    }
}

static bool same_name(const char *a, const char *b, size_t len) {
    for (size_t i = 0; i < len; i++) {
        char x = a[i] == '-' ? '_' : a[i];
        char y = b[i] == '-' ? '_' : b[i];
        if (x != y) {
            return false;
        }
    }
    return true;
}

const struct setting *settings_find(struct settings t, const char *name, size_t len) {
    for (size_t i = 0; i < t.n; i++) {
        const struct setting *s = &t.rows[i];
        if ((strlen(s->name) == len && same_name(s->name, name, len)) || list_contains(s->alias, name, len)) {
            return s;
        }
    }
    return NULL;
}

/* --- values -------------------------------------------------------------------------------------------------- */

/* Decimal digits only, within size_t. */
static bool parse_digits(const char *text, size_t len, double *out) {
    if (len == 0 || len > 16) {
        return false;
    }
    double v = 0;
    for (size_t i = 0; i < len; i++) {
        if (text[i] < '0' || text[i] > '9') {
            return false;
        }
        v = v * 10 + (text[i] - '0');
    }
    *out = v;
    return true;
}

/* [-]digits[.digits], whatever the locale. */
static bool parse_decimal(const char *text, size_t len, double *out) {
    bool negative = len > 0 && text[0] == '-';
    if (negative) {
        text++;
        len--;
    }
    const char *dot = memchr(text, '.', len);
    size_t whole = dot ? (size_t)(dot - text) : len;
    size_t part = dot ? len - whole - 1 : 0;
    double v = 0, f = 0;
    if (!parse_digits(text, whole, &v) || (dot && !parse_digits(dot + 1, part, &f))) {
        return false;
    }
    v += f / pow(10, (double)part);
    *out = negative ? -v : v;
    return true;
}

struct suffix {
    const char *text;
    double factor;
};

/* A number and one of the suffixes (matched without case; "" must be among them to allow none). */
static bool parse_suffixed(const char *text, const struct suffix *suffixes, double *out) {
    size_t len = strspn(text, "-.0123456789");
    for (const struct suffix *x = suffixes; x->text; x++) {
        double v;
        if (strcasecmp(text + len, x->text) == 0 && parse_decimal(text, len, &v)) {
            *out = v * x->factor;
            return true;
        }
    }
    return false;
}

static const struct suffix size_suffixes[] = {
    {"", 1},           {"K", 1024},         {"KiB", 1024}, {"M", 1024 * 1024.0}, {"MiB", 1024 * 1024.0},
    {"G", 1073741824}, {"GiB", 1073741824}, {NULL, 0},
};
static const struct suffix time_suffixes[] = {{"", 1}, {"ms", 0.001}, {"s", 1}, {"m", 60}, {"h", 3600}, {NULL, 0}};

static bool parse_bool(const char *text, bool *out) {
    static const char *const words[] = {"false", "true", "off", "on", "no", "yes", "0", "1"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (strcasecmp(text, words[i]) == 0) {
            *out = i % 2 == 1;
            return true;
        }
    }
    return false;
}

static void print_number(const struct setting *s, double v, struct buf *out) {
    static const struct suffix units[] = {{"G", 1073741824}, {"M", 1024 * 1024.0}, {"K", 1024}, {NULL, 0}};
    if (s->type == SETTING_SIZE) {
        for (const struct suffix *u = units; u->text; u++) {
            if (v >= u->factor && fmod(v, u->factor) == 0) {
                buf_printf(out, "%.0f%s", v / u->factor, u->text);
                return;
            }
        }
    }
    if (s->type == SETTING_INT || s->type == SETTING_SIZE) {
        buf_printf(out, "%.0f", v);
    } else {
        buf_printf(out, "%.10g", v);
    }
}

void setting_range(const struct setting *s, struct buf *out) {
    size_t len, next_len;
    switch (s->type) {
    case SETTING_CHOICE:
        for (size_t i = 0; list_word(s->choices, i, &len); i++) {
            const char *w = list_word(s->choices, i, &len);
            const char *join = i == 0 ? "" : list_word(s->choices, i + 1, &next_len) ? ", " : " or ";
            buf_printf(out, "%s%.*s", join, (int)len, w);
        }
        break;
    case SETTING_INT:
    case SETTING_SIZE:
    case SETTING_SECONDS:
    case SETTING_NUMBER:
        print_number(s, s->min, out);
        buf_puts(out, " to ");
        print_number(s, s->max, out);
        break;
    case SETTING_STRING:
    case SETTING_BOOL:
        break;
    }
}

/* "port must be an integer from 0 to 65535, not \"x\"" */
static int refuse(const struct setting *s, const char *shown, const char *text, struct error *err) {
    static const char *const kinds[] = {
        [SETTING_STRING] = "text without control characters",
        [SETTING_CHOICE] = "",
        [SETTING_BOOL] = "true or false",
        [SETTING_INT] = "an integer from ",
        [SETTING_SIZE] = "a size in bytes from ",
        [SETTING_SECONDS] = "a time in seconds from ",
        [SETTING_NUMBER] = "a number from ",
    };
    struct buf range = BUF_INIT;
    buf_printf(&range, "%s must be %s", shown, kinds[s->type]);
    setting_range(s, &range);
    if (!(s->flags & SETTING_SECRET)) {
        char quoted[48];
        size_t n = 0;
        for (; text[n] && n < sizeof quoted - 4; n++) {
            quoted[n] = (unsigned char)text[n] < ' ' || text[n] == 0x7f ? '?' : text[n];
        }
        while (text[n] && n > 0 && (text[n] & 0xc0) == 0x80) { /* no half characters */
            n--;
        }
        snprintf(quoted + n, sizeof quoted - n, "%s", text[n] ? "..." : "");
        buf_printf(&range, ", not \"%s\"", quoted);
    }
    int r = range.failed ? error_memory(err) : error_set_param(err, ERROR_INVALID, s->name, "%s", range.data);
    buf_free(&range);
    return r;
}

static bool has_control(const char *text) {
    for (; *text; text++) {
        if (((unsigned char)*text < ' ' && *text != '\n' && *text != '\t') || *text == 0x7f) {
            return true;
        }
    }
    return false;
}

int setting_set(const struct setting *s, void *base, const char *shown, const char *text, struct error *err) {
    double v = 0;
    bool flag, ok;
    switch (s->type) {
    case SETTING_BOOL:
        if (!parse_bool(text, &flag)) {
            return refuse(s, shown, text, err);
        }
        *bool_field(s, base) = flag;
        return 0;
    case SETTING_STRING:
    case SETTING_CHOICE:
        if (s->type == SETTING_CHOICE ? !is_choice(s->choices, text) : has_control(text)) {
            return refuse(s, shown, text, err);
        }
        char *copy = strdup(text);
        if (!copy) {
            return error_memory(err);
        }
        free(*string_field(s, base));
        *string_field(s, base) = copy;
        return 0;
    case SETTING_INT:
        ok = parse_digits(text, strlen(text), &v);
        break;
    case SETTING_SIZE:
        ok = parse_suffixed(text, size_suffixes, &v) && v == floor(v);
        break;
    case SETTING_SECONDS:
        ok = parse_suffixed(text, time_suffixes, &v);
        break;
    default:
        ok = parse_decimal(text, strlen(text), &v);
        break;
    }
    if (!ok || v < s->min || v > s->max) {
        return refuse(s, shown, text, err);
    }
    if (s->type == SETTING_INT || s->type == SETTING_SIZE) {
        *size_field(s, base) = (size_t)v;
    } else {
        *double_field(s, base) = v;
    }
    return 0;
}

void setting_print(const struct setting *s, const void *base, struct buf *out) {
    switch (s->type) {
    case SETTING_STRING:
    case SETTING_CHOICE:
        if ((s->flags & SETTING_SECRET) && (*string_field(s, base))[0]) {
            buf_puts(out, "(not shown)");
        } else {
            buf_puts(out, *string_field(s, base));
        }
        break;
    case SETTING_BOOL:
        buf_puts(out, *bool_field(s, base) ? "true" : "false");
        break;
    case SETTING_INT:
    case SETTING_SIZE:
        print_number(s, (double)*size_field(s, base), out);
        break;
    case SETTING_SECONDS:
    case SETTING_NUMBER:
        print_number(s, *double_field(s, base), out);
        break;
    }
}

int setting_copy(const struct setting *s, const void *from, void *to, struct error *err) {
    char *copy;
    switch (s->type) {
    case SETTING_STRING:
    case SETTING_CHOICE:
        copy = strdup(*string_field(s, from));
        if (!copy) {
            return error_memory(err);
        }
        free(*string_field(s, to));
        *string_field(s, to) = copy;
        break;
    case SETTING_BOOL:
        *bool_field(s, to) = *bool_field(s, from);
        break;
    case SETTING_INT:
    case SETTING_SIZE:
        *size_field(s, to) = *size_field(s, from);
        break;
    case SETTING_SECONDS:
    case SETTING_NUMBER:
        *double_field(s, to) = *double_field(s, from);
        break;
    }
    return 0;
}

bool setting_equal(const struct setting *s, const void *a, const void *b) {
    switch (s->type) {
    case SETTING_BOOL:
        return *bool_field(s, a) == *bool_field(s, b);
    case SETTING_INT:
    case SETTING_SIZE:
        return *size_field(s, a) == *size_field(s, b);
    case SETTING_SECONDS:
    case SETTING_NUMBER:
        return !(*double_field(s, a) < *double_field(s, b)) && !(*double_field(s, a) > *double_field(s, b));
    default:
        return strcmp(*string_field(s, a), *string_field(s, b)) == 0;
    }
}

bool setting_is_default(const struct setting *s, const void *base) {
    double v = 0;
    bool flag = false;
    switch (s->type) {
    case SETTING_BOOL:
        return parse_bool(s->initial, &flag) && flag == *bool_field(s, base);
    case SETTING_INT:
    case SETTING_SIZE:
        return parse_suffixed(s->initial, size_suffixes, &v) && v == (double)*size_field(s, base);
    case SETTING_SECONDS:
    case SETTING_NUMBER:
        return parse_suffixed(s->initial, time_suffixes, &v) && v == *double_field(s, base);
    default:
        return strcmp(s->initial, *string_field(s, base)) == 0;
    }
}

/* --- help ---------------------------------------------------------------------------------------------------- */

void wrap_text(struct buf *out, const char *text, size_t column, size_t indent, size_t width) {
    bool first = true;
    for (const char *p = text; *p; p += strspn(p, " ")) {
        size_t len = strcspn(p, " ");
        if (!first && column + 1 + len > width) {
            buf_printf(out, "\n%*s", (int)indent, "");
            column = indent;
        } else if (!first) {
            buf_putc(out, ' ');
            column++;
        }
        buf_append(out, p, len);
        column += len;
        p += len;
        first = false;
    }
}

static void print_flag_name(const struct setting *s, struct buf *out) {
    static const char *const values[] = {
        [SETTING_STRING] = "TEXT", [SETTING_CHOICE] = "WORD",     [SETTING_BOOL] = NULL,       [SETTING_INT] = "N",
        [SETTING_SIZE] = "SIZE",   [SETTING_SECONDS] = "SECONDS", [SETTING_NUMBER] = "NUMBER",
    };
    size_t len;
    for (size_t i = 0; list_word(s->alias, i, &len); i++) {
        const char *alias = list_word(s->alias, i, &len);
        buf_printf(out, len == 1 ? "-%.*s, " : "--%.*s, ", (int)len, alias);
    }
    bool on =
        s->type == SETTING_BOOL && strcmp(s->initial, "true") == 0; /* then the flag that does something is --no- */
    buf_puts(out, on ? "--no-" : "--");
    for (const char *c = s->name; *c; c++) {
        buf_putc(out, *c == '_' ? '-' : *c);
    }
    const char *value = s->value ? s->value : values[s->type];
    if (value) {
        buf_printf(out, " %s", value);
    }
}

void settings_help(struct settings t, unsigned only, struct buf *out) {
    const size_t indent = 31, width = 100;
    const char *group = "";
    for (size_t i = 0; i < t.n; i++) {
        const struct setting *s = &t.rows[i];
        if ((s->flags & only) != only) {
            continue;
        }
        if (s->group && strcmp(s->group, group) != 0) {
            group = s->group;
            buf_printf(out, "\n%s:\n", group);
        }
        struct buf name = BUF_INIT, help = BUF_INIT;
        print_flag_name(s, &name);
        buf_puts(&help, s->help);
        if (s->type == SETTING_CHOICE) {
            buf_puts(&help, ": ");
            setting_range(s, &help);
        }
        if (s->type != SETTING_BOOL && s->initial[0]) {
            buf_printf(&help, " (default %s)", s->initial);
        }
        buf_puts(&help, s->flags & SETTING_RELOAD ? " (reload)" : "");
        if (name.failed || help.failed) {
            out->failed = true;
        } else if (name.len + 4 > indent) {
            buf_printf(out, "  %s\n%*s", name.data, (int)indent, "");
        } else {
            buf_printf(out, "  %-*s", (int)indent - 2, name.data);
        }
        if (!out->failed) {
            wrap_text(out, help.data, indent, indent, width);
            buf_putc(out, '\n');
        }
        buf_free(&name);
        buf_free(&help);
    }
}

/* --- what was meant ------------------------------------------------------------------------------------------ */

#define WORD_MAX 40

/* Damerau's distance (insert, delete, replace, swap of neighbours); large when a word is too long. */
static size_t distance(const char *a, size_t n, const char *b, size_t m) {
    size_t d[WORD_MAX + 1][WORD_MAX + 1];
    if (n > WORD_MAX || m > WORD_MAX) {
        return WORD_MAX;
    }
    for (size_t i = 0; i <= n; i++) {
        for (size_t j = 0; j <= m; j++) {
            if (i == 0 || j == 0) {
                d[i][j] = i + j;
                continue;
            }
            bool same = same_name(a + i - 1, b + j - 1, 1);
            size_t best = d[i - 1][j - 1] + (same ? 0 : 1);
            best = d[i - 1][j] + 1 < best ? d[i - 1][j] + 1 : best;
            best = d[i][j - 1] + 1 < best ? d[i][j - 1] + 1 : best;
            if (i > 1 && j > 1 && same_name(a + i - 1, b + j - 2, 1) && same_name(a + i - 2, b + j - 1, 1)) {
                best = d[i - 2][j - 2] + 1 < best ? d[i - 2][j - 2] + 1 : best;
            }
            d[i][j] = best;
        }
    }
    return d[n][m];
}

const char *nearest_word(const char *word, size_t len, const char *(*candidate)(const void *arg, size_t i),
                         const void *arg) {
    const char *best = NULL;
    size_t best_distance = len > 4 ? 3 : 2; /* short words resemble too many others */
    for (size_t i = 0;; i++) {
        const char *c = candidate(arg, i);
        if (!c) {
            return best;
        }
        size_t d = distance(word, len, c, strlen(c));
        if (d < best_distance) {
            best_distance = d;
            best = c;
        }
    }
}

static const char *setting_name(const void *arg, size_t i) {
    const struct settings *t = arg;
    return i < t->n ? t->rows[i].name : NULL;
}

const char *settings_nearest(struct settings t, const char *word, size_t len) {
    return nearest_word(word, len, setting_name, &t);
}
