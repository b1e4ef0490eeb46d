#include "memory.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define MIB(bytes) ((bytes) >> 20)

static size_t least(size_t a, size_t b) {
    return a < b ? a : b;
}

static size_t most(size_t a, size_t b) {
    return a > b ? a : b;
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

static size_t blocks_of(size_t n, size_t to) {
    return n / to + (n % to != 0);
}

int kv_plan_make(const struct kv_plan_input *in, struct kv_plan *out, struct error *err) {
    if (in->max_model_len > in->context_length) {
        return error_set_param(err, ERROR_INVALID, "max_model_len",
                               "max_model_len is %zu, but the model was made for at most %zu tokens", in->max_model_len,
                               in->context_length);
    }
    size_t budget = (size_t)((double)in->available * in->utilization);
    size_t fixed = in->weight_bytes + in->workspace_bytes;
    size_t affordable = budget > fixed ? (budget - fixed) / in->token_bytes : 0;
    affordable = least(affordable / in->block_size * in->block_size, INT32_MAX / 2); /* slots are 32-bit */

    size_t len = in->max_model_len ? in->max_model_len : in->context_length;
    size_t tokens = in->kv_tokens;
    if (tokens == 0) {
        tokens = most(in->max_sequences * least(len, KV_PLAN_USUAL_LEN), len);
        tokens = least(tokens, KV_PLAN_MOST_BYTES / in->token_bytes);
        tokens = least(most(tokens, in->max_model_len), affordable);
    }
    size_t n_blocks = blocks_of(tokens, in->block_size);
    if (in->max_model_len == 0) {
        len = least(len, n_blocks * in->block_size);
    }
    if (n_blocks == 0 || n_blocks * in->block_size < len || n_blocks * in->block_size > affordable) {
        size_t need = most(most(len, in->kv_tokens), in->block_size);
        return error_set(
            err, ERROR_DOES_NOT_FIT,
            "the model does not fit: of %zu MiB available, memory_utilization %g allows %zu MiB; weights need %zu MiB, "
            "workspace %zu MiB, and KV of %zu tokens %zu MiB",
            MIB(in->available), in->utilization, MIB(budget), MIB(in->weight_bytes), MIB(in->workspace_bytes), need,
            MIB(need * in->token_bytes));
    }
    *out = (struct kv_plan){.n_blocks = n_blocks, .max_model_len = len};
    return 0;
}
