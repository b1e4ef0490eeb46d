#include "memory.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

static size_t least(size_t a, size_t b) {
    return a < b ? a : b;
}

/* The number behind `key` at the beginning of a line of a file such as /proc/meminfo or memory.stat. */
static bool read_field(const char *path, const char *key, uint64_t *out) {
    FILE *f = fopen(path, "re");
    if (!f) {
        return false;
    }
    char line[256];
    bool found = false;
    size_t n = strlen(key);
    while (!found && fgets(line, sizeof line, f)) {
        found = strncmp(line, key, n) == 0 && sscanf(line + n, "%" SCNu64, out) == 1;
    }
    fclose(f);
    return found;
}

/* What is left under the limit of one cgroup (version 2); SIZE_MAX without one. Clean file pages can be given up. */
static size_t cgroup_left(const char *folder) {
    char path[4096 + 32];
    uint64_t limit, used, files = 0;
    snprintf(path, sizeof path, "%s/memory.max", folder);
    if (!read_field(path, "", &limit)) {
        return SIZE_MAX; /* "max", or no such controller */
    }
    snprintf(path, sizeof path, "%s/memory.current", folder);
    if (!read_field(path, "", &used)) {
        return SIZE_MAX;
    }
    snprintf(path, sizeof path, "%s/memory.stat", folder);
    (void)read_field(path, "file ", &files);
    used -= files < used ? files : used;
    return limit > used ? (size_t)(limit - used) : 0;
}

/* The tightest limit from the process's own cgroup up to the root. */
static size_t cgroups_left(const char *proc, const char *cgroup) {
    char path[4096], own[2048] = "", line[2048];
    snprintf(path, sizeof path, "%s/self/cgroup", proc);
    FILE *f = fopen(path, "re");
    if (!f) {
        return SIZE_MAX;
    }
    while (fgets(line, sizeof line, f)) {
        if (strncmp(line, "0::", 3) == 0) { /* the version 2 hierarchy */
            line[strcspn(line, "\n")] = '\0';
            snprintf(own, sizeof own, "%s", line + 3);
        }
    }
    fclose(f);
    size_t left = SIZE_MAX;
    for (;;) {
        snprintf(path, sizeof path, "%s%s", cgroup, own);
        left = least(left, cgroup_left(path));
        char *slash = strrchr(own, '/');
        if (!slash) {
            return left;
        }
        *slash = '\0';
    }
}

int memory_available_at(const char *proc, const char *cgroup, size_t *bytes, struct error *err) {
    char path[4096];
    uint64_t kib;
    snprintf(path, sizeof path, "%s/meminfo", proc);
    if (!read_field(path, "MemAvailable:", &kib) || kib > SIZE_MAX / 1024) {
        return error_set(err, ERROR_IO, "%s does not say how much memory is available", path);
    }
    *bytes = least((size_t)kib * 1024, cgroups_left(proc, cgroup));
    return 0;
}

int memory_available(size_t *bytes, struct error *err) {
    return memory_available_at("/proc", "/sys/fs/cgroup", bytes, err);
}
