/* What settings mean together: paths, addresses, keys. */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <inferd/text.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool may(const char *path, int mode) {
    return faccessat(AT_FDCWD, path, mode, AT_EACCESS) == 0;
}

/*
 * Can we read it? If not, the sentence names the first part of the path that is in the way, since "permission denied"
 * on a long path says little.
 */
static int check_readable(const char *path, const char *setting, struct error *err) {
    struct stat st;
    if (stat(path, &st) == 0 && may(path, S_ISDIR(st.st_mode) ? R_OK | X_OK : R_OK)) {
        return 0;
    }
    char part[4096];
    for (size_t i = 1; i <= strlen(path) && i < sizeof part; i++) {
        if (path[i] != '/' && path[i] != '\0') {
            continue;
        }
        snprintf(part, sizeof part, "%.*s", (int)i, path);
        bool last = path[i] == '\0';
        if (stat(part, &st) != 0) {
            return error_set_param(err, ERROR_MODEL, setting, "%s: %.300s: %s", setting, part, strerror(errno));
        }
        int mode = S_ISDIR(st.st_mode) ? X_OK | (last ? R_OK : 0) : R_OK;
        if (!may(part, mode)) {
            return error_set_param(
                err, ERROR_MODEL, setting, "%s: %.300s: %s (it belongs to user %u, mode %04o; inferd runs as user %u)",
                setting, part, strerror(errno), (unsigned)st.st_uid, (unsigned)st.st_mode & 07777, (unsigned)geteuid());
        }
    }
    return error_set_param(err, ERROR_MODEL, setting, "%s: %.300s: cannot be read", setting, path);
}

int config_check_model(const struct config *c, struct error *err) {
    if (!c->model[0]) {
        return error_set_param(
            err, ERROR_MODEL, "model",
            "no model is named; give a .gguf file or a model folder, as an argument or with --model");
    }
    return check_readable(c->model, "model", err);
}

/* A word may also be the name of one of the model's own templates, which only the model knows. */
static int config_check_chat_template(const struct config *c, struct error *err) {
    bool is_path = strchr(c->chat_template, '/') || strstr(c->chat_template, ".jinja");
    return is_path && !text_is_chat_family(c->chat_template) ? check_readable(c->chat_template, "chat_template", err)
                                                             : 0;
}

int config_check(const struct config *c, struct error *err) {
    struct api_keys keys;
    struct sampler_order samplers;
    if (config_check_model(c, err) != 0 || config_samplers(c, &samplers, err) != 0) {
        return -1;
    }
    if (config_check_chat_template(c, err) != 0) {
        return -1;
    }
    if (c->api_keys_file[0] && check_readable(c->api_keys_file, "api_keys_file", err) != 0) {
        return -1;
    }
    if (config_api_keys(c, &keys, err) != 0) {
        return -1;
    }
    size_t n_keys = keys.n;
    api_keys_free(&keys);
    if (config_check_listening(c, n_keys > 0, err) != 0) {
        return -1;
    }
    if (c->kv_block_size & (c->kv_block_size - 1)) {
        return error_set_param(err, ERROR_MODEL, "kv_block_size", "kv_block_size must be a power of two, not %zu",
                               c->kv_block_size);
    }
    if (c->kv_tokens > 0 && c->kv_tokens < c->kv_block_size) {
        return error_set_param(err, ERROR_MODEL, "kv_tokens",
                               "kv_tokens (%zu) must hold one block of kv_block_size (%zu)", c->kv_tokens,
                               c->kv_block_size);
    }
    if (c->max_batched_tokens < c->max_sequences) {
        return error_set_param(
            err, ERROR_MODEL, "max_batched_tokens",
            "max_batched_tokens (%zu) must be at least max_sequences (%zu): each may add a token to a step",
            c->max_batched_tokens, c->max_sequences);
    }
    return 0;
}

/* --- keys ---------------------------------------------------------------------------------------------------- */

#define API_KEY_MAX 256    /* bytes of one */
#define API_KEYS_MAX 10000 /* in a file */

static int add_key(struct api_keys *k, const char *key, struct error *err) {
    char **grown = realloc(k->keys, (k->n + 1) * sizeof *grown);
    if (!grown) {
        return error_memory(err);
    }
    k->keys = grown;
    k->keys[k->n] = strdup(key);
    if (!k->keys[k->n]) {
        return error_memory(err);
    }
    k->n++;
    return 0;
}

/* Keys travel in a header: printable ASCII without blanks. */
static const char *key_fault(const char *key) {
    size_t len = strlen(key);
    for (size_t i = 0; i < len; i++) {
        if (key[i] <= ' ' || key[i] > '~') {
            return "a key must be printable ASCII without blanks";
        }
    }
    return len > API_KEY_MAX ? "a key may have 256 characters at most" : NULL;
}

static int read_key_file(const char *path, struct api_keys *k, struct error *err) {
    FILE *f = fopen(path, "re");
    if (!f) {
        return error_set_param(err, ERROR_MODEL, "api_keys_file", "%s: %s", path, strerror(errno));
    }
    char *line = NULL;
    size_t cap = 0;
    int r = 0;
    for (unsigned long number = 1; r == 0 && getline(&line, &cap, f) >= 0; number++) {
        char *key = line + strspn(line, " \t");
        key[strcspn(key, "\r\n")] = '\0';
        while (key[0] && strchr(" \t", key[strlen(key) - 1])) {
            key[strlen(key) - 1] = '\0';
        }
        const char *fault = k->n == API_KEYS_MAX ? "too many keys" : key_fault(key);
        if (key[0] == '\0' || key[0] == '#') {
            continue;
        }
        r = fault ? error_set_param(err, ERROR_MODEL, "api_keys_file", "%s:%lu: %s", path, number, fault)
                  : add_key(k, key, err);
    }
    if (r == 0 && ferror(f)) {
        r = error_set_param(err, ERROR_MODEL, "api_keys_file", "%s: %s", path, strerror(errno));
    }
    if (r == 0 && !feof(f)) {
        r = error_memory(err);
    }
    if (r == 0 && k->n == 0) { /* an empty file must not open the door */
        r = error_set_param(err, ERROR_MODEL, "api_keys_file", "%s: there is no key in it", path);
    }
    free(line);
    fclose(f);
    return r;
}

int config_api_keys(const struct config *c, struct api_keys *out, struct error *err) {
    struct api_keys k = {0};
    int r = 0;
    if (c->api_keys_file[0]) {
        r = read_key_file(c->api_keys_file, &k, err);
    }
    if (r == 0 && c->api_key[0]) {
        const char *fault = key_fault(c->api_key);
        r = fault ? error_set_param(err, ERROR_MODEL, "api_key", "api_key: %s", fault) : add_key(&k, c->api_key, err);
    }
    if (r != 0) {
        api_keys_free(&k);
        return -1;
    }
    *out = k;
    return 0;
}

void api_keys_free(struct api_keys *k) {
    for (size_t i = 0; k && i < k->n; i++) {
        explicit_bzero(k->keys[i], strlen(k->keys[i]));
        free(k->keys[i]);
    }
    if (k) {
        free(k->keys);
        *k = (struct api_keys){0};
    }
}
