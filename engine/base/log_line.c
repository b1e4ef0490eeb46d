#include "base/log_line.h"

#include "base/utf8.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define RESERVED 16 /* for what closes a line: quotes, a brace, '\n' */

static const struct {
    const char *name;
    char priority; /* syslog's */
} levels[] = {{"error", '3'}, {"warn", '4'}, {"info", '6'}, {"debug", '7'}};

static size_t room(const struct log_line *l) {
    size_t end = sizeof l->bytes - RESERVED;
    return l->len < end ? end - l->len : 0;
}

/* All of it or nothing, so that a line is never cut within an escape or a character. */
static bool put(struct log_line *l, const char *bytes, size_t len) {
    if (len > room(l)) {
        return false;
    }
    memcpy(l->bytes + l->len, bytes, len);
    l->len += len;
    return true;
}

static bool puts_to(struct log_line *l, const char *s) {
    return put(l, s, strlen(s));
}

/* Into the reserve. */
static void close_with(struct log_line *l, const char *s) {
    size_t len = strlen(s);
    memcpy(l->bytes + l->len, s, len);
    l->len += len;
}

/* ---- values -------------------------------------------------------------------------------------------------- */

enum quoting { PLAIN, QUOTED, JSON };

/* The next character of s, escaped; how much of s it was. */
static size_t escape(const char *s, size_t len, enum quoting how, char out[16], size_t *n) {
    uint32_t c;
    bool valid;
    size_t used = utf8_decode(s, len, &c, &valid);
    const char *letter = c && c < 0x80 ? strchr("\nn\rr\tt", (int)c) : NULL;
    if (!valid && how == JSON) {
        *n = (size_t)snprintf(out, 16, "\\ufffd");
    } else if (!valid) {
        *n = (size_t)snprintf(out, 16, "\\x%02x", (unsigned char)s[0]);
        return 1;
    } else if (letter && c < ' ') {
        *n = (size_t)snprintf(out, 16, "\\%c", letter[1]);
    } else if (c < ' ' || (c >= 0x7f && c < 0xa0) || c == 0x2028 || c == 0x2029) {
        *n = (size_t)snprintf(out, 16, how == JSON || c > 0xff ? "\\u%04x" : "\\x%02x", c);
    } else if (how != PLAIN && (c == '"' || c == '\\')) {
        *n = (size_t)snprintf(out, 16, "\\%c", (char)c);
    } else {
        memcpy(out, s, used);
        *n = used;
    }
    return used;
}

/* How much of s stands for itself, whatever the quoting: nearly always all. */
static size_t plain_run(const char *s, size_t len) {
    size_t n = 0;
    while (n < len && s[n] >= ' ' && s[n] <= '~' && s[n] != '"' && s[n] != '\\') {
        n++;
    }
    return n;
}

static bool put_escaped(struct log_line *l, const char *s, enum quoting how) {
    char unit[16];
    for (size_t len = strlen(s), n; len > 0;) {
        size_t plain = plain_run(s, len), fits = room(l);
        put(l, s, plain < fits ? plain : fits);
        if (plain > fits) {
            return false;
        }
        s += plain;
        len -= plain;
        if (len == 0) {
            break;
        }
        size_t used = escape(s, len, how, unit, &n);
        if (!put(l, unit, n)) {
            return false;
        }
        s += used;
        len -= used;
    }
    return true;
}

static void put_number(struct log_line *l, const struct log_field *f) {
    char digits[32];
    if (f->kind == LOG_MILLISECONDS) {
        snprintf(digits, sizeof digits, "%" PRIu64 ".%03" PRIu64, f->number / 1000000, f->number / 1000 % 1000);
    } else {
        snprintf(digits, sizeof digits, "%" PRIu64, f->number);
    }
    puts_to(l, digits);
}

static bool left_out(const struct log_field *f) {
    return f->kind == LOG_TEXT && !f->text;
}

/* ---- text ---------------------------------------------------------------------------------------------------- */

static bool is_word(const char *s) {
    for (const char *p = s; *p; p++) {
        if (*p <= ' ' || *p > '~' || *p == '"' || *p == '=' || *p == '\\') {
            return false;
        }
    }
    return *s != '\0';
}

static void put_text(struct log_line *l, const struct log_entry *e) {
    put_escaped(l, e->message, PLAIN);
    for (size_t i = 0; i < e->n; i++) {
        const struct log_field *f = &e->fields[i];
        if (left_out(f) || !puts_to(l, l->len > 0 ? " " : "") || !puts_to(l, f->name) || !puts_to(l, "=")) {
            continue;
        }
        if (f->kind != LOG_TEXT) {
            put_number(l, f);
        } else if (is_word(f->text)) {
            puts_to(l, f->text);
        } else if (puts_to(l, "\"")) {
            bool whole = put_escaped(l, f->text, QUOTED);
            close_with(l, "\"");
            if (!whole) {
                return; /* the reserve is for one of these */
            }
        }
    }
}

void log_line_text(struct log_line *out, const struct log_entry *e, bool priority) {
    out->len = 0;
    if (priority) {
        const char head[] = {'<', levels[e->level].priority, '>'};
        put(out, head, sizeof head);
    } else {
        puts_to(out, "inferd: ");
        puts_to(out, levels[e->level].name);
        puts_to(out, ": ");
    }
    put_text(out, e);
    close_with(out, "\n");
}

/* ---- JSON ---------------------------------------------------------------------------------------------------- */

static void put_json_string(struct log_line *l, const char *s) {
    put(l, "\"", 1);
    put_escaped(l, s, JSON);
    close_with(l, "\"");
}

static void put_time(struct log_line *l) {
    struct timespec now;
    struct tm utc;
    char text[64];
    clock_gettime(CLOCK_REALTIME, &now);
    if (gmtime_r(&now.tv_sec, &utc)) {
        size_t n = strftime(text, sizeof text, "\"time\":\"%Y-%m-%dT%H:%M:%S", &utc);
        snprintf(text + n, sizeof text - n, ".%03dZ\",", (int)(now.tv_nsec / 1000000));
        puts_to(l, text);
    }
}

void log_line_json(struct log_line *out, const struct log_entry *e) {
    out->len = 0;
    puts_to(out, "{");
    put_time(out);
    puts_to(out, "\"level\":\"");
    puts_to(out, levels[e->level].name);
    puts_to(out, "\",\"message\":");
    put_json_string(out, e->message);
    for (size_t i = 0; i < e->n; i++) {
        const struct log_field *f = &e->fields[i];
        if (left_out(f)) {
            continue;
        }
        /* a field is begun only where a value has room, too */
        if (strlen(f->name) + 40 > room(out)) {
            break;
        }
        puts_to(out, ",\"");
        puts_to(out, f->name);
        puts_to(out, "\":");
        if (f->kind == LOG_TEXT) {
            put_json_string(out, f->text);
        } else {
            put_number(out, f);
        }
    }
    close_with(out, "}\n");
}

/* ---- the journal ---------------------------------------------------------------------------------------------- */

void log_line_journal(struct log_line *out, const struct log_entry *e) {
    static const char head[] = "SYSLOG_IDENTIFIER=inferd\nPRIORITY=";
    out->len = 0;
    puts_to(out, head);
    put(out, &levels[e->level].priority, 1);
    puts_to(out, "\nMESSAGE=");
    /* people read the message alone, so it has everything; half of the room at most, programs read the fields */
    struct log_line text = {.len = 0};
    put_text(&text, e);
    size_t half = LOG_LINE_MAX / 2, len = text.len < half ? text.len : half;
    while (len < text.len && ((unsigned char)text.bytes[len] & 0xc0) == 0x80) {
        len--;
    }
    put(out, text.bytes, len);
    close_with(out, "\n");
    for (size_t i = 0; i < e->n; i++) {
        const struct log_field *f = &e->fields[i];
        if (left_out(f) || strlen(f->name) + 40 > room(out)) {
            continue;
        }
        for (const char *p = f->name; *p; p++) {
            char c = *p >= 'a' && *p <= 'z' ? (char)(*p - 'a' + 'A') : *p;
            put(out, &c, 1);
        }
        put(out, "=", 1);
        if (f->kind == LOG_TEXT) {
            put_escaped(out, f->text, PLAIN);
        } else {
            put_number(out, f);
        }
        close_with(out, "\n");
    }
}
