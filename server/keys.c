#include "keys.h"

#include "config.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <ini.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILE_MAX_BYTES ((off_t)16 << 20)
#define LINE_MAX_BYTES 198 /* inih would split a longer one */
#define API_KEY_MAX 256    /* bytes of a key itself */

#define AT(field) .offset = offsetof(struct key_values, field), .name = #field

static const struct setting rows[] = {
    {AT(sha256), SETTING_STRING, .initial = "", .value = "HEX", .group = "Key",
     .help = "SHA-256 of the key, 64 hexadecimal digits"},
    {AT(scopes), SETTING_STRING, .initial = "infer", .value = "WORDS", .group = "Key",
     .help = "what the key is for: infer (requests to the model), metrics (/metrics), admin (/version and /metrics)"},
    {AT(requests_per_minute), SETTING_INT, .initial = "0", .min = 0, .max = 1000000000, .group = "Key",
     .help = "requests a minute; beyond: 429; 0: no limit"},
    {AT(tokens_per_minute), SETTING_INT, .initial = "0", .min = 0, .max = 1099511627776, .group = "Key",
     .help = "tokens a minute, those of prompts and those generated; beyond: 429; 0: no limit"},
    {AT(max_concurrent), SETTING_INT, .initial = "0", .min = 0, .max = 1000000, .group = "Key",
     .help = "requests at a time, running and waiting; beyond: 429; 0: no limit"},
    {AT(priority), SETTING_CHOICE, .initial = "normal", .choices = "high normal low", .group = "Key",
     .help = "its share where clients compete: high has four times that of normal, and normal four times that of low"},
    {AT(cache_salt), SETTING_STRING, .initial = "", .value = "TEXT", .group = "Key",
     .help = "keys with the same one find each other's cached prompts; empty: nobody else's"},
};

struct settings key_settings(void) {
    return (struct settings){rows, sizeof rows / sizeof rows[0]};
}

/* ---- single values ------------------------------------------------------------------------------------------- */

bool key_name_valid(const char *name) {
    size_t len = strlen(name);
    for (size_t i = 0; i < len; i++) {
        bool letter = (name[i] >= 'a' && name[i] <= 'z') || (name[i] >= 'A' && name[i] <= 'Z');
        if (!letter && !(name[i] >= '0' && name[i] <= '9') && !strchr("._@-", name[i])) {
            return false;
        }
    }
    return len > 0 && len <= KEY_NAME_MAX;
}

const char *key_fault(const char *key) {
    size_t len = strlen(key);
    for (size_t i = 0; i < len; i++) {
        if (key[i] <= ' ' || key[i] > '~') {
            return "a key must be printable ASCII without blanks";
        }
    }
    return len > API_KEY_MAX ? "a key may have 256 characters at most" : NULL;
}

const char *key_salt_fault(const char *salt) {
    for (const char *c = salt; *c; c++) {
        if (*c <= ' ' || *c > '~' || *c == ';') {
            return "cache_salt must be printable ASCII without blanks and ;";
        }
    }
    return strlen(salt) > KEY_SALT_MAX ? "cache_salt may have 128 bytes at most" : NULL;
}

int key_scopes(const char *text, unsigned *out, struct error *err) {
    static const struct {
        const char *word;
        unsigned scope;
    } known[] = {{"infer", KEY_INFER}, {"metrics", KEY_METRICS}, {"admin", KEY_ADMIN}};
    static const char parting[] = ", \t";
    unsigned scopes = 0;
    for (const char *p = text + strspn(text, parting); *p; p += strspn(p, parting)) {
        size_t len = strcspn(p, parting), i = 0;
        while (i < 3 && !(strlen(known[i].word) == len && memcmp(known[i].word, p, len) == 0)) {
            i++;
        }
        if (i == 3) {
            scopes = 0;
            break;
        }
        scopes |= known[i].scope;
        p += len;
    }
    if (!scopes) {
        return error_set_param(err, ERROR_MODEL, "scopes", "scopes must be some of infer, metrics and admin, parted by blanks");
    }
    *out = scopes;
    return 0;
}

static int hex_digit(char c) {
    const char *digits = "0123456789abcdef", *at = c ? strchr(digits, tolower((unsigned char)c)) : NULL;
    return at ? (int)(at - digits) : -1;
}

static int parse_digest(const char *text, unsigned char out[AUTH_DIGEST], struct error *err) {
    unsigned char digest[AUTH_DIGEST];
    bool ok = strlen(text) == 2 * sizeof digest;
    for (size_t i = 0; ok && i < sizeof digest; i++) {
        int high = hex_digit(text[2 * i]), low = hex_digit(text[2 * i + 1]);
        ok = high >= 0 && low >= 0;
        digest[i] = (unsigned char)(ok ? high * 16 + low : 0);
    }
    if (!ok) {
        return error_set_param(err, ERROR_MODEL, "sha256", "sha256 must be 64 hexadecimal digits; make them with: inferd key NAME");
    }
    memcpy(out, digest, sizeof digest);
    return 0;
}

/* The values of a whole section: spec has its name already. */
static int make_spec(const struct key_values *v, struct key_spec *spec, struct error *err) {
    if (!v->sha256[0]) {
        return error_set_param(err, ERROR_MODEL, "sha256", "the key %s has no sha256; make one with: inferd key %s",
                               spec->name, spec->name);
    }
    const char *fault = key_salt_fault(v->cache_salt);
    if (fault) {
        return error_set_param(err, ERROR_MODEL, "cache_salt", "%s", fault);
    }
    if (parse_digest(v->sha256, spec->digest, err) || key_scopes(v->scopes, &spec->scopes, err) ||
        auth_identify(spec->digest, v->cache_salt, &spec->who, err)) {
        return -1;
    }
    spec->requests_per_minute = v->requests_per_minute;
    spec->tokens_per_minute = v->tokens_per_minute;
    spec->max_concurrent = v->max_concurrent;
    spec->priority = v->priority[0] == 'h' ? KEY_HIGH : v->priority[0] == 'l' ? KEY_LOW : KEY_NORMAL;
    return 0;
}

/* ---- the file ------------------------------------------------------------------------------------------------ */

struct reader {
    FILE *f;
    const char *path;
    unsigned long line_number, section_line, first_section;
    char *line;
    size_t line_cap;
    struct keys keys;
    struct key_spec spec; /* the section that is being read, if in_section */
    struct key_values values;
    bool in_section, seen[sizeof rows / sizeof rows[0]];
    bool failed;
    struct error *err;
};

static const char outside_section[] =
    "the line stands before the first [NAME]; a key itself never stands here: make its lines with: inferd key NAME";

static int fail_line(struct reader *r, unsigned long number, const char *reason) {
    if (!r->failed) {
        r->failed = true;
        error_set_param(r->err, ERROR_MODEL, "api_keys_file", "%s:%lu: %s", r->path, number, reason);
    }
    return -1;
}

/* An error of ours gets the place; want of memory has none. */
static int fail_at(struct reader *r, unsigned long number) {
    r->failed = true;
    if (r->err->code == ERROR_INVALID || r->err->code == ERROR_MODEL) {
        r->err->code = ERROR_MODEL;
        error_prefix(r->err, "%s:%lu", r->path, number);
    }
    return -1;
}

static int add_key(struct keys *k, const struct key_spec *spec, const char **fault, struct error *err) {
    *fault = k->n == KEYS_MAX ? "there are too many keys" : NULL;
    for (size_t i = 0; i < k->n && !*fault; i++) {
        *fault = strcmp(k->list[i].name, spec->name) == 0 ? "there is a key of this name already"
                 : memcmp(k->list[i].digest, spec->digest, AUTH_DIGEST) == 0
                     ? "another key has the same sha256: each is one client's"
                     : NULL;
    }
    if (*fault) {
        return error_set_param(err, ERROR_MODEL, "api_keys_file", "%s", *fault);
    }
    struct key_spec *grown = realloc(k->list, (k->n + 1) * sizeof *grown);
    if (!grown) {
        return error_memory(err);
    }
    k->list = grown;
    k->list[k->n++] = *spec;
    return 0;
}

static int end_section(struct reader *r) {
    const char *fault;
    if (r->in_section && !r->failed &&
        (make_spec(&r->values, &r->spec, r->err) || add_key(&r->keys, &r->spec, &fault, r->err))) {
        fail_at(r, r->section_line);
    }
    if (r->in_section) {
        settings_free(key_settings(), &r->values);
        r->in_section = false;
    }
    return r->failed ? -1 : 0;
}

/* "[name]": inih would cut a long name, and says nothing of a section without lines. */
static int begin_section(struct reader *r, const char *start) {
    size_t len = strcspn(start, "]");
    const char *rest = start + len + (start[len] == ']');
    rest += strspn(rest, " \t\r\n");
    char name[KEY_NAME_MAX + 2];
    snprintf(name, sizeof name, "%.*s", (int)len - 1, start + 1);
    if (start[len] != ']' || len - 1 > KEY_NAME_MAX || !key_name_valid(name) || (*rest && !strchr("#;", *rest))) {
        return fail_line(r, r->line_number, "a key begins with a line [NAME], of up to 48 letters, digits and ._@-");
    }
    if (end_section(r) || settings_init(key_settings(), &r->values, r->err)) {
        r->failed = true;
        return -1;
    }
    r->in_section = true;
    r->section_line = r->line_number;
    r->first_section = r->first_section ? r->first_section : r->line_number;
    r->spec = (struct key_spec){0};
    memcpy(r->spec.name, name, strlen(name) + 1);
    memset(r->seen, 0, sizeof r->seen);
    return 0;
}

/* inih's fgets: one line, without leading blanks (it would take an indented one for a continuation). */
static char *read_line(char *str, int num, void *stream) {
    struct reader *r = stream;
    if (r->failed) {
        return NULL;
    }
    ssize_t n = getline(&r->line, &r->line_cap, r->f);
    if (n < 0) {
        if (!feof(r->f) && !ferror(r->f)) {
            r->failed = true;
            error_memory(r->err);
        }
        return NULL;
    }
    r->line_number++;
    const char *start = r->line + strspn(r->line, " \t");
    bool comment = strchr("#;", *start) != NULL; /* an empty line, too */
    if (strlen(r->line) != (size_t)n) {
        fail_line(r, r->line_number, "the line has a NUL byte");
        return NULL;
    }
    if (comment) {
        start = "\n";
    } else if (strlen(start) > LINE_MAX_BYTES || strlen(start) + 1 > (size_t)num) {
        fail_line(r, r->line_number, "the line is too long");
        return NULL;
    } else if (*start == '[' && begin_section(r, start)) {
        return NULL;
    }
    memcpy(str, *start == '[' ? "[k]\n" : start, *start == '[' ? 5 : strlen(start) + 1);
    return str;
}

static int take_value(void *user, const char *section, const char *name, const char *value) {
    struct reader *r = user;
    struct settings t = key_settings();
    const struct setting *s = settings_find(t, name, strlen(name));
    (void)section;
    if (r->failed) {
        return 0;
    }
    if (!r->in_section) {
        fail_line(r, r->line_number, outside_section);
    } else if (!s) {
        /* a name that resembles none may be a key that somebody wrote there, and this goes to the log */
        const char *near = settings_nearest(t, name, strlen(name));
        char reason[160] = "a key has no such line";
        if (near) {
            snprintf(reason, sizeof reason, "a key has no line %.40s; did you mean %s?", name, near);
        }
        fail_line(r, r->line_number, reason);
    } else if (r->seen[s - rows]) {
        fail_line(r, r->line_number, "the line stands twice in this key");
    } else if (value[0] == ';') {
        fail_line(r, r->line_number, "a value cannot begin with ';'");
    } else {
        r->seen[s - rows] = true;
        if (setting_set(s, &r->values, s->name, value, r->err) != 0) {
            fail_at(r, r->line_number);
        }
    }
    return r->failed ? 0 : 1;
}

static int check_mode(struct reader *r, struct buf *warnings) {
    struct stat st;
    if (fstat(fileno(r->f), &st) != 0) {
        r->failed = true;
        return error_set_param(r->err, ERROR_MODEL, "api_keys_file", "%s: %s", r->path, strerror(errno));
    }
    if (!S_ISREG(st.st_mode) || st.st_size > FILE_MAX_BYTES) { /* a pipe would hold up the server, a device has no end */
        r->failed = true;
        return error_set_param(r->err, ERROR_MODEL, "api_keys_file", "%s: %s", r->path,
                               S_ISDIR(st.st_mode)    ? strerror(EISDIR)
                               : S_ISREG(st.st_mode) ? "it is too large for a file of keys"
                                                      : "it is no regular file");
    }
    if (st.st_mode & (S_IWGRP | S_IWOTH)) {
        r->failed = true;
        return error_set_param(r->err, ERROR_MODEL, "api_keys_file",
                               "%s: others can write this file (mode %04o) and so let themselves in; use: chmod go-w",
                               r->path, (unsigned)st.st_mode & 07777);
    }
    if (warnings && (st.st_mode & S_IROTH)) {
        buf_printf(warnings, "%s: others can read this file (mode %04o), which has the hashes of keys; use: chmod o-r\n", r->path,
                   (unsigned)st.st_mode & 07777);
    }
    return 0;
}

static int read_file(struct reader *r) {
    int result = ini_parse_stream(read_line, r, take_value, r);
    if (ferror(r->f) && !r->failed) {
        r->failed = true;
        error_set_param(r->err, ERROR_MODEL, "api_keys_file", "%s: %s", r->path, strerror(errno));
    }
    if (result > 0 && !r->failed) {
        bool outside = !r->first_section || (unsigned long)result < r->first_section;
        fail_line(r, (unsigned long)result, outside ? outside_section : "the line is not \"name = value\"");
    }
    if (end_section(r)) {
        return -1;
    }
    if (r->keys.n == 0) { /* an empty file must not open the door */
        return error_set_param(r->err, ERROR_MODEL, "api_keys_file", "%s: there is no key in it", r->path);
    }
    return 0;
}

int keys_load_file(const char *path, struct keys *out, struct buf *warnings, struct error *err) {
    struct reader r = {.path = path, .err = err};
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    r.f = fd < 0 ? NULL : fdopen(fd, "r");
    if (!r.f) {
        error_set_param(err, ERROR_MODEL, "api_keys_file", "%s: %s", path, strerror(errno));
        if (fd >= 0) {
            close(fd);
        }
        return -1;
    }
    int rc = check_mode(&r, warnings) ? -1 : read_file(&r);
    free(r.line);
    fclose(r.f);
    if (rc == 0) {
        *out = r.keys;
    } else {
        keys_free(&r.keys);
    }
    return rc;
}

/* ---- both ---------------------------------------------------------------------------------------------------- */

static int add_api_key(const char *key, struct keys *k, struct error *err) {
    struct key_spec spec = {.name = "api_key", .scopes = KEY_ALL, .priority = KEY_NORMAL};
    const char *fault = key_fault(key);
    if (fault) {
        return error_set_param(err, ERROR_MODEL, "api_key", "api_key: %s", fault);
    }
    if (auth_digest(key, strlen(key), spec.digest, err) || auth_identify(spec.digest, "", &spec.who, err)) {
        return -1;
    }
    if (add_key(k, &spec, &fault, err)) {
        return fault ? error_set_param(err, ERROR_MODEL, "api_key", "api_key and api_keys_file: %s", fault) : -1;
    }
    return 0;
}

int keys_load(const struct config *c, struct keys *out, struct buf *warnings, struct error *err) {
    struct keys k = {0};
    if ((c->api_keys_file[0] && keys_load_file(c->api_keys_file, &k, warnings, err)) ||
        (c->api_key[0] && add_api_key(c->api_key, &k, err))) {
        keys_free(&k);
        return -1;
    }
    *out = k;
    return 0;
}

void keys_free(struct keys *k) {
    if (k) {
        free(k->list);
        *k = (struct keys){0};
    }
}
