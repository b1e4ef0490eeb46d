/* The keys file. What is accepted has names and digests that differ, within the table's ranges; what is not has a reason. */
#include "keys.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static void check(const struct keys *k) {
    struct settings t = key_settings();
    if (k->n == 0 || k->n > KEYS_MAX) {
        abort();
    }
    for (size_t i = 0; i < k->n; i++) {
        const struct key_spec *s = &k->list[i];
        if (!key_name_valid(s->name) || s->scopes == 0 || s->scopes > KEY_ALL || s->who.tenant == 0 ||
            (double)s->requests_per_minute > settings_find(t, "requests_per_minute", 19)->max ||
            (double)s->tokens_per_minute > settings_find(t, "tokens_per_minute", 17)->max ||
            (double)s->max_concurrent > settings_find(t, "max_concurrent", 14)->max) {
            abort();
        }
        for (size_t j = 0; j < i && i < 64; j++) {
            if (strcmp(s->name, k->list[j].name) == 0 || memcmp(s->digest, k->list[j].digest, AUTH_DIGEST) == 0) {
                abort();
            }
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct error err = {0};
    struct keys k;
    char path[64];
    int fd = memfd_create("keys", 0);
    if (fd < 0 || fchmod(fd, 0600) || write(fd, data, size) != (ssize_t)size) {
        abort();
    }
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int rc = keys_load_file(path, &k, NULL, &err);
    close(fd);
    if (rc == 0) {
        check(&k);
        keys_free(&k);
    } else if (err.code != ERROR_MODEL || !strstr(err.message, path)) {
        abort();
    }
    return 0;
}
