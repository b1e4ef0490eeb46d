/* `inferd key`: a random key for a client, and the lines for the keys file, which has its hash. */
#include "cmd/cmd.h"
#include "keys.h"

#include <gnutls/crypto.h>
#include <gnutls/gnutls.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define KEY_PREFIX "sk-"
#define KEY_RANDOM 32 /* bytes: 256 bits cannot be guessed, so that a plain hash of them is enough */
#define KEY_INPUT_MAX 4096

struct key_options {
    struct key_values key; /* first: key_settings() describes it */
    bool stdin_key, json;
};

/* Its own options, and then those of a key but sha256, which it makes. */
static const struct setting own[] = {
    {"stdin", SETTING_BOOL, offsetof(struct key_options, stdin_key), .initial = "false", .group = "Options",
     .help = "hash the key on standard input (its first line) in place of making one"},
    {"json", SETTING_BOOL, offsetof(struct key_options, json), .initial = "false", .group = "Options",
     .help = "print one JSON object with name, key and lines"},
};
#define N_OWN (sizeof own / sizeof own[0])
#define N_ROWS_MAX 16

static struct settings options_table(struct setting rows[N_ROWS_MAX]) {
    struct settings t = key_settings();
    size_t n = 0;
    for (size_t i = 0; i < N_OWN; i++) {
        rows[n++] = own[i];
    }
    for (size_t i = 0; i < t.n && n < N_ROWS_MAX; i++) {
        if (strcmp(t.rows[i].name, "sha256") != 0) {
            rows[n++] = t.rows[i];
        }
    }
    return (struct settings){rows, n};
}

static int make_key(struct buf *key, struct error *err) {
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    unsigned char random[KEY_RANDOM + 1] = {0};
    if (gnutls_rnd(GNUTLS_RND_KEY, random, KEY_RANDOM)) {
        return error_set(err, ERROR_INTERNAL, "there are no random numbers");
    }
    buf_puts(key, KEY_PREFIX);
    for (size_t bit = 0; bit < 8 * KEY_RANDOM; bit += 6) {
        unsigned pair = (unsigned)random[bit / 8] << 8 | random[bit / 8 + 1];
        buf_putc(key, letters[pair >> (10 - bit % 8) & 63]);
    }
    explicit_bzero(random, sizeof random);
    return key->failed ? error_memory(err) : 0;
}

static int read_key(struct buf *key, struct error *err) {
    if (cmd_read_all(STDIN_FILENO, KEY_INPUT_MAX, key, err)) {
        return -1;
    }
    buf_putc(key, '\0');
    if (key->failed) {
        return error_memory(err);
    }
    key->len = strcspn(key->data, "\r\n");
    key->data[key->len] = '\0';
    const char *fault = key->len == 0 ? "there is no key on standard input" : key_fault(key->data);
    return fault ? error_set(err, ERROR_INVALID, "%s", fault) : 0;
}

static int write_lines(const char *name, const char *key, const struct key_options *o, struct buf *out, struct error *err) {
    unsigned char digest[AUTH_DIGEST];
    struct settings t = key_settings();
    if (auth_digest(key, strlen(key), digest, err)) {
        return -1;
    }
    buf_printf(out, "[%s]\nsha256 = ", name);
    for (size_t i = 0; i < sizeof digest; i++) {
        buf_printf(out, "%02x", digest[i]);
    }
    buf_putc(out, '\n');
    for (size_t i = 0; i < t.n; i++) {
        if (strcmp(t.rows[i].name, "sha256") != 0 && !setting_is_default(&t.rows[i], &o->key)) {
            buf_printf(out, "%s = ", t.rows[i].name);
            setting_print(&t.rows[i], &o->key, out);
            buf_putc(out, '\n');
        }
    }
    return out->failed ? error_memory(err) : 0;
}

/* The lines go to standard output, to be appended to a file; the key itself, which stands nowhere else, to the terminal. */
static int show(const char *name, const char *key, const struct key_options *o, struct error *err) {
    struct buf lines = BUF_INIT, all = BUF_INIT;
    int rc = write_lines(name, key, o, &lines, err);
    if (rc == 0 && o->json) {
        buf_puts(&all, "{\"name\":");
        buf_json_string(&all, name, strlen(name));
        buf_puts(&all, ",\"key\":");
        buf_json_string(&all, key, strlen(key));
        buf_puts(&all, ",\"lines\":");
        buf_json_string(&all, lines.data, lines.len);
        buf_puts(&all, "}\n");
        rc = all.failed ? error_memory(err) : 0;
    }
    if (rc == 0) {
        fputs(o->json ? all.data : lines.data, stdout);
    }
    if (rc == 0 && !o->json && !o->stdin_key) {
        fprintf(stderr, "The key, shown this once, for the client %s: %s\n", name, key);
    }
    buf_free(&lines);
    buf_free(&all);
    return rc;
}

static int run(const char *name, const struct key_options *o, struct error *err) {
    struct buf key = BUF_INIT;
    unsigned scopes;
    if (!key_name_valid(name)) {
        return error_set(err, ERROR_INVALID, "a key's name has up to %d letters, digits and ._@-", KEY_NAME_MAX);
    }
    const char *fault = key_salt_fault(o->key.cache_salt);
    if (fault) {
        return error_set(err, ERROR_INVALID, "%s", fault);
    }
    if (key_scopes(o->key.scopes, &scopes, err)) {
        err->code = ERROR_INVALID;
        return -1;
    }
    int rc = (o->stdin_key ? read_key : make_key)(&key, err) || show(name, key.data, o, err) ? -1 : 0;
    if (key.data) {
        explicit_bzero(key.data, key.len);
    }
    buf_free(&key);
    return rc;
}

int cmd_key(int argc, char **argv) {
    struct key_options o;
    struct setting rows[N_ROWS_MAX];
    const struct command_line line = {
        .help = {.usage = "inferd key NAME [options]",
                 .about = "Make a random API key for a client, and print the lines for the file that api_keys_file names: they\n"
                          "have the key's SHA-256 and its limits, never the key. It goes to standard error, this once.",
                 .examples = "  inferd key alice >> /etc/inferd/api_keys && systemctl reload inferd\n"
                             "  inferd key batch --requests-per-minute 60 --priority low >> /etc/inferd/api_keys\n"
                             "  inferd key prometheus --scopes metrics\n"
                             "  printf %s \"$OLD_KEY\" | inferd key bob --stdin\n"},
        .own = options_table(rows),
        .own_values = &o,
        .config_only = SETTING_NONE,
        .max_operands = 1,
    };
    struct command_state state;
    struct error err;
    int code;
    if (!cmd_begin(&line, argc, argv, &state, &code)) {
        return code;
    }
    const char *name = state.flags.n_operands ? state.flags.operands[0] : "";
    code = run(name, &o, &err) == 0 ? 0 : cmd_fail(&err);
    cmd_end(&line, &state);
    return code;
}
