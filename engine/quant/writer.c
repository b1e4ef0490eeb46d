#include "quant/writer.h"

#include "base/checked.h"

#include <inferd/buf.h>

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_SHARDS = 4096 };

/* ---- layout ---- */

int writer_add(struct writer *w, const char *name, enum dtype dtype, size_t n_dims, size_t rows, size_t cols,
               struct error *err) {
    struct writer_tensor t = {.dtype = dtype, .n_dims = n_dims, .shape = {rows, n_dims == 2 ? cols : 1}};
    if (snprintf(t.name, sizeof t.name, "%s", name) >= (int)sizeof t.name || !dtype_row_bytes(dtype, t.shape[1], &t.bytes) ||
        !checked_mul(t.bytes, rows, &t.bytes)) {
        return error_set(err, ERROR_INTERNAL, "a tensor's name or size is out of range");
    }
    if (w->n == w->cap) {
        size_t cap = w->cap ? 2 * w->cap : 64;
        struct writer_tensor *more = reallocarray(w->tensors, cap, sizeof *more);
        if (!more) {
            return error_memory(err);
        }
        w->tensors = more;
        w->cap = cap;
    }
    w->tensors[w->n++] = t;
    return 0;
}

static void shard_name(const struct writer *w, size_t shard, char name[64]) {
    if (w->n_shards == 1) {
        snprintf(name, 64, "model.safetensors");
    } else {
        snprintf(name, 64, "model-%05zu-of-%05zu.safetensors", shard + 1, w->n_shards);
    }
}

/* In a file the floats lie before the bytes, so that every tensor is aligned to its elements. */
static uint64_t place(struct writer *w, size_t shard, uint64_t at, bool bytes) {
    for (size_t i = 0; i < w->n; i++) {
        struct writer_tensor *t = &w->tensors[i];
        if (t->shard == shard && (t->dtype == DTYPE_I8) == bytes) {
            t->offset = at;
            at += t->bytes;
        }
    }
    return at;
}

static const char *type_name(enum dtype t) {
    return dtype_info(t)->name; /* F32, F16, BF16 and I8 are called alike */
}

/* u64 length, then JSON padded with spaces to a multiple of 8; offsets count from behind it. */
static void put_header(const struct writer *w, size_t shard, struct buf *out) {
    buf_append(out, "\0\0\0\0\0\0\0\0", 8);
    buf_puts(out, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (int bytes = 0; bytes < 2; bytes++) { /* in the order of their offsets */
        for (size_t i = 0; i < w->n; i++) {
            const struct writer_tensor *t = &w->tensors[i];
            if (t->shard != shard || (t->dtype == DTYPE_I8) != (bytes == 1)) {
                continue;
            }
            buf_puts(out, ",");
            buf_json_string(out, t->name, strlen(t->name));
            buf_printf(out, ":{\"dtype\":\"%s\",\"shape\":[%zu", type_name(t->dtype), t->shape[0]);
            if (t->n_dims == 2) {
                buf_printf(out, ",%zu", t->shape[1]);
            }
            buf_printf(out, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)t->offset,
                       (unsigned long long)(t->offset + t->bytes));
        }
    }
    buf_puts(out, "}");
    while (out->len % 8 != 0) {
        buf_putc(out, ' ');
    }
    for (size_t i = 0; i < 8 && !out->failed; i++) {
        out->data[i] = (char)((uint64_t)(out->len - 8) >> (8 * i));
    }
}

int writer_lay_out(struct writer *w, uint64_t shard_bytes, struct error *err) {
    uint64_t used = 0;
    w->n_shards = 1;
    for (size_t i = 0; i < w->n; i++) {
        struct writer_tensor *t = &w->tensors[i];
        if (used > 0 && used + t->bytes > shard_bytes) {
            w->n_shards++;
            used = 0;
        }
        t->shard = w->n_shards - 1;
        used += t->bytes;
        w->total += t->bytes;
    }
    if (w->n_shards > MAX_SHARDS) {
        return error_set(err, ERROR_INVALID, "the model would take more than %d files: they must be larger", MAX_SHARDS);
    }
    w->fds = malloc(w->n_shards * sizeof *w->fds);
    w->headers = calloc(w->n_shards, sizeof *w->headers);
    w->data = calloc(w->n_shards, sizeof *w->data);
    if (!w->fds || !w->headers || !w->data) {
        return error_memory(err);
    }
    for (size_t s = 0; s < w->n_shards; s++) {
        w->fds[s] = -1;
        w->data[s] = place(w, s, place(w, s, 0, false), true);
    }
    return 0;
}

/* ---- files ---- */

static int fail(const struct writer *w, size_t shard, struct error *err) {
    int code = errno;
    char name[64];
    shard_name(w, shard, name);
    return error_set(err, ERROR_IO, "%.300s/%s: %s", w->folder, name, strerror(code));
}

static int write_at(int fd, uint64_t at, const char *bytes, size_t n) {
    while (n > 0) {
        ssize_t wrote = pwrite(fd, bytes, n, (off_t)at);
        if (wrote < 0 && errno == EINTR) {
            continue;
        }
        if (wrote <= 0) {
            errno = wrote == 0 ? ENOSPC : errno;
            return -1;
        }
        bytes += wrote;
        at += (uint64_t)wrote;
        n -= (size_t)wrote;
    }
    return 0;
}

static int open_shard(struct writer *w, size_t shard, bool create, struct error *err) {
    struct buf header = BUF_INIT;
    char path[PATH_MAX], name[64];
    struct stat st;
    put_header(w, shard, &header);
    shard_name(w, shard, name);
    if (header.failed || snprintf(path, sizeof path, "%s/%s", w->folder, name) >= (int)sizeof path) {
        bool failed = header.failed;
        buf_free(&header);
        return failed ? error_memory(err) : error_set(err, ERROR_INVALID, "the output's path is too long");
    }
    if (w->fds[shard] >= 0) { /* reopening failed at a later file */
        close(w->fds[shard]);
    }
    w->headers[shard] = header.len;
    uint64_t size = header.len + w->data[shard];
    w->fds[shard] = open(path, O_RDWR | O_CLOEXEC | (create ? O_CREAT | O_TRUNC : 0), 0666);
    int rc = w->fds[shard] < 0 ? -1 : 0;
    if (rc == 0 && create) {
        errno = posix_fallocate(w->fds[shard], 0, (off_t)size);
        rc = errno != 0 || write_at(w->fds[shard], 0, header.data, header.len) < 0 ? -1 : 0;
    } else if (rc == 0) {
        rc = fstat(w->fds[shard], &st);
        if (rc == 0 && (uint64_t)st.st_size != size) {
            errno = EINVAL;
            rc = -1;
        }
    }
    if (rc < 0) {
        fail(w, shard, err);
    }
    buf_free(&header);
    return rc;
}

static int open_all(struct writer *w, const char *folder, bool create, struct error *err) {
    free(w->folder);
    w->folder = strdup(folder);
    if (!w->folder) {
        return error_memory(err);
    }
    for (size_t s = 0; s < w->n_shards; s++) {
        if (open_shard(w, s, create, err) < 0) {
            return -1;
        }
    }
    return 0;
}

int writer_create(struct writer *w, const char *folder, struct error *err) {
    return open_all(w, folder, true, err);
}

int writer_reopen(struct writer *w, const char *folder, struct error *err) {
    return open_all(w, folder, false, err);
}

int writer_put(struct writer *w, size_t i, size_t at, const void *bytes, size_t n, struct error *err) {
    const struct writer_tensor *t = &w->tensors[i];
    if (at > t->bytes || n > t->bytes - at) {
        return error_set(err, ERROR_INTERNAL, "%s: written beyond its end", t->name);
    }
    return write_at(w->fds[t->shard], w->headers[t->shard] + t->offset + at, bytes, n) < 0 ? fail(w, t->shard, err) : 0;
}

int writer_get(const struct writer *w, size_t i, size_t at, void *bytes, size_t n, struct error *err) {
    const struct writer_tensor *t = &w->tensors[i];
    char *to = bytes;
    for (size_t done = 0; done < n;) {
        ssize_t got = pread(w->fds[t->shard], to + done, n - done, (off_t)(w->headers[t->shard] + t->offset + at + done));
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            errno = got == 0 ? EIO : errno;
            return fail(w, t->shard, err);
        }
        done += (size_t)got;
    }
    return 0;
}

int writer_sync(struct writer *w, struct error *err) {
    for (size_t s = 0; s < w->n_shards; s++) {
        if (fdatasync(w->fds[s]) < 0) {
            return fail(w, s, err);
        }
    }
    return 0;
}

int writer_put_file(const char *folder, const char *name, const char *bytes, size_t n, struct error *err) {
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/%s", folder, name) >= (int)sizeof path) {
        return error_set(err, ERROR_INVALID, "the output's path is too long");
    }
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    int rc = fd < 0 ? -1 : write_at(fd, 0, bytes, n);
    rc = rc == 0 ? fsync(fd) : rc;
    int code = errno;
    if (fd >= 0) {
        close(fd);
    }
    return rc < 0 ? error_set(err, ERROR_IO, "%.400s: %s", path, strerror(code)) : 0;
}

int writer_put_index(const struct writer *w, struct error *err) {
    struct buf b = BUF_INIT;
    char name[64];
    if (w->n_shards == 1) {
        return 0;
    }
    buf_printf(&b, "{\n  \"metadata\": {\n    \"total_size\": %llu\n  },\n  \"weight_map\": {\n", (unsigned long long)w->total);
    for (size_t i = 0; i < w->n; i++) {
        shard_name(w, w->tensors[i].shard, name);
        buf_puts(&b, "    ");
        buf_json_string(&b, w->tensors[i].name, strlen(w->tensors[i].name));
        buf_printf(&b, ": \"%s\"%s\n", name, i + 1 < w->n ? "," : "");
    }
    buf_puts(&b, "  }\n}\n");
    int rc = b.failed ? error_memory(err) : writer_put_file(w->folder, "model.safetensors.index.json", b.data, b.len, err);
    buf_free(&b);
    return rc;
}

void writer_close(struct writer *w) {
    for (size_t s = 0; w->fds && s < w->n_shards; s++) {
        if (w->fds[s] >= 0) {
            close(w->fds[s]);
        }
    }
    free(w->fds);
    free(w->headers);
    free(w->data);
    free(w->tensors);
    free(w->folder);
    *w = (struct writer){0};
}
