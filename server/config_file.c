/*
 * The settings file, read with inih. Two of inih's habits are kept from users: lines of more than 200 bytes would be
 * split (a model's path can be longer), and an indented line would continue the value above it.
 */
#include "config.h"

#include <ctype.h>
#include <errno.h>
#include <ini.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CONFIG_FILE_MAX_LINE 8192

struct file_reader {
    FILE *f;
    const char *path;
    struct config *config;
    unsigned long line_number;
    char *line; /* the whole line; inih sees no more than its own buffer of 200 bytes holds */
    size_t line_cap;
    bool cut;   /* inih saw a part */
    bool *seen; /* [rows] */
    struct error *err;
    bool failed;
};

static int fail_line(struct file_reader *r, const char *reason) {
    r->failed = true;
    return error_set(r->err, ERROR_MODEL, "%s:%lu: %s", r->path, r->line_number, reason);
}

/* inih's fgets: one line, without leading blanks. */
static char *read_line(char *str, int num, void *stream) {
    struct file_reader *r = stream;
    if (r->failed) {
        return NULL;
    }
    ssize_t n = getline(&r->line, &r->line_cap, r->f);
    if (n < 0) {
        if (!feof(r->f) && !ferror(r->f)) { /* half a file must not pass for a whole one */
            r->failed = true;
            error_memory(r->err);
        }
        return NULL;
    }
    r->line_number++;
    if (strlen(r->line) != (size_t)n || n > CONFIG_FILE_MAX_LINE) {
        fail_line(r, strlen(r->line) != (size_t)n ? "the line has a NUL byte" : "the line is too long");
        return NULL;
    }
    const char *start = r->line + strspn(r->line, " \t");
    size_t len = strlen(start);
    r->cut = len > (size_t)num - 1;
    if (r->cut) {
        len = (size_t)num - 2;
    }
    memcpy(str, start, len);
    strcpy(str + len, r->cut ? "\n" : "");
    return str;
}

/* The value of a line that was too long for inih, by its rules: from '=' or ':' up to a blank and ';', trimmed. */
static char *long_value(struct file_reader *r) {
    char *v = r->line + strcspn(r->line, "=:") + 1;
    char *end = v;
    while (*end && !(*end == ';' && isspace((unsigned char)end[-1]))) {
        end++;
    }
    v += strspn(v, " \t");
    while (end > v && isspace((unsigned char)end[-1])) {
        end--;
    }
    *end = '\0';
    return v;
}

static int take_setting(void *user, const char *section, const char *name, const char *value) {
    struct file_reader *r = user;
    struct settings t = config_settings();
    const struct setting *s = settings_find(t, name, strlen(name));
    if (r->failed) {
        return 0;
    }
    if (section[0]) {
        fail_line(r, "settings stand outside of [sections]");
    } else if (!s) {
        const char *near = settings_nearest(t, name, strlen(name));
        char reason[192];
        snprintf(reason, sizeof reason, "there is no setting %.60s%s%s%s", name, near ? "; did you mean " : "",
                 near ? near : "", near ? "?" : "");
        fail_line(r, reason);
    } else if (s->flags & SETTING_NOT_IN_FILE) {
        fail_line(r, "a settings file cannot name another one");
    } else if (r->seen[s - t.rows]) {
        fail_line(r, "the setting was given before");
    } else {
        r->seen[s - t.rows] = true;
        const char *given = r->cut ? long_value(r) : value;
        if (given[0] == ';') { /* with a blank before it, it would be a comment: too easily meant as one */
            fail_line(r, "a value cannot begin with ';'");
            return 0;
        }
        if (setting_set(s, r->config, s->name, given, r->err) != 0) {
            error_prefix(r->err, "%s:%lu", r->path, r->line_number);
            r->failed = true;
        }
    }
    return r->failed ? 0 : 1;
}

int config_load_file(struct config *c, const char *path, struct error *err) {
    struct file_reader r = {.path = path, .config = c, .err = err};
    r.f = fopen(path, "re");
    if (!r.f) {
        return error_set_param(err, ERROR_MODEL, "config", "%s: %s", path, strerror(errno));
    }
    r.seen = calloc(config_settings().n, sizeof *r.seen);
    if (!r.seen) {
        fclose(r.f);
        return error_memory(err);
    }
    int result = ini_parse_stream(read_line, &r, take_setting, &r);
    if (ferror(r.f) && !r.failed) {
        r.failed = true;
        error_set(err, ERROR_MODEL, "%s: %s", path, strerror(errno));
    }
    if (result > 0 && !r.failed) {
        r.line_number = (unsigned long)result;
        fail_line(&r, "the line is not \"name = value\"");
    }
    free(r.line);
    free(r.seen);
    fclose(r.f);
    if (r.failed && err->code != ERROR_MEMORY) {
        err->code = ERROR_MODEL;
    }
    return r.failed ? -1 : 0;
}
