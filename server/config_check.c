/* What settings mean together: paths, addresses, keys. */
#include "config.h"
#include "keys.h"

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

/* A service with ProtectHome= sees nothing there, or may not. */
static const char *home_hint(const char *path) {
    static const char *const homes[] = {"/home/", "/root/", "/run/user/"};
    for (size_t i = 0; i < sizeof homes / sizeof homes[0]; i++) {
        if (strncmp(path, homes[i], strlen(homes[i])) == 0) {
            return "; a unit with ProtectHome= hides home directories: /var/lib/inferd is a better place";
        }
    }
    return "";
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
            return error_set_param(err, ERROR_MODEL, setting, "%s: %.250s: %s%s", setting, part, strerror(errno), home_hint(path));
        }
        int mode = S_ISDIR(st.st_mode) ? X_OK | (last ? R_OK : 0) : R_OK;
        if (!may(part, mode)) {
            return error_set_param(
                err, ERROR_MODEL, setting, "%s: %.250s: %s (it belongs to user %u, mode %04o; inferd runs as user %u%s)",
                setting, part, strerror(errno), (unsigned)st.st_uid, (unsigned)st.st_mode & 07777, (unsigned)geteuid(),
                home_hint(path));
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
    return config_check_model(c, err) != 0 || config_check_others(c, err) != 0 ? -1 : 0;
}

int config_check_others(const struct config *c, struct error *err) {
    struct keys keys;
    struct sampler_order samplers;
    struct model_names names;
    if (config_samplers(c, &samplers, err) != 0 || config_model_names(c, &names, err) != 0) {
        return -1;
    }
    model_names_free(&names);
    if (config_check_chat_template(c, err) != 0) {
        return -1;
    }
    if (c->api_keys_file[0] && check_readable(c->api_keys_file, "api_keys_file", err) != 0) {
        return -1;
    }
    if (keys_load(c, &keys, NULL, err) != 0) {
        return -1;
    }
    size_t n_keys = keys.n;
    keys_free(&keys);
    if (config_check_listening(c, n_keys > 0, err) != 0) {
        return -1;
    }
    if (c->replicas > 1 && c->pipeline_parallel > 1) { /* each would be the leader, or a follower, of nodes of its own */
        return error_set_param(err, ERROR_MODEL, "replicas", "replicas (%zu) of a model that several nodes share (pipeline_parallel %zu) "
                               "are not supported", c->replicas, c->pipeline_parallel);
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
