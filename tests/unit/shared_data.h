/* Test data that lies beside the project (see tests/unit/meson.build); absent in most checkouts. */
#ifndef TEST_SHARED_DATA_H
#define TEST_SHARED_DATA_H

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* "$INFERD_SHARED/data/NAME" in a static buffer; skips the test when there is no such file or folder. */
static inline const char *shared_data(const char *name) {
    static char path[4096];
    const char *root = getenv("INFERD_SHARED");
    snprintf(path, sizeof path, "%s/data/%s", root ? root : "../shared", name);
    if (access(path, R_OK) != 0) {
        cr_skip("no %s", path);
    }
    return path;
}

/* The whole file, NUL-terminated; free() it. */
static inline char *read_whole(const char *path, size_t *len) {
    FILE *f = fopen(path, "rb");
    cr_assert_not_null(f, "%s", path);
    fseek(f, 0, SEEK_END);
    long n = ftell(f);
    rewind(f);
    char *s = malloc((size_t)n + 1);
    cr_assert_eq(fread(s, 1, (size_t)n, f), (size_t)n);
    s[n] = '\0';
    fclose(f);
    *len = (size_t)n;
    return s;
}

#endif
