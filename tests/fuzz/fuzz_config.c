/* The settings file. What was read must print as a file that reads back the same. */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static int load(const void *data, size_t size, struct config *c) {
    struct error err;
    char path[64];
    int fd = memfd_create("config", 0);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size || config_init(c, &err) != 0) {
        abort();
    }
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int r = config_load_file(c, path, &err);
    close(fd);
    if (r != 0) {
        config_free(c);
        if (err.code != ERROR_MODEL || !err.message[0]) {
            abort();
        }
    }
    return r;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct config first, second;
    struct buf a = BUF_INIT, b = BUF_INIT;
    if (load(data, size, &first) != 0) {
        return 0;
    }
    config_print(&first, &a);
    if (load(a.data, a.len, &second) != 0) {
        abort();
    }
    config_print(&second, &b);
    bool secret = first.api_key[0]; /* is not printed */
    if (!secret && strcmp(a.data, b.data) != 0) {
        abort();
    }
    config_free(&first);
    config_free(&second);
    buf_free(&a);
    buf_free(&b);
    return 0;
}
