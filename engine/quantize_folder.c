#include "quantize_folder.h"

#include "base/file_map.h"
#include "quant/writer.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define MANIFEST "inferd-quantize.progress"
#define MAGIC "inferd-quantize 1 "
enum { DIGITS = 2 * SHA256_BYTES, LINE = DIGITS + 1, HEAD = sizeof MAGIC - 1 + DIGITS + 1 };

static int io_error(const char *path, struct error *err) {
    int code = errno;
    return error_set(err, ERROR_IO, "%.400s: %s", path, strerror(code));
}

static int join(const char *folder, const char *name, char path[PATH_MAX], struct error *err) {
    return snprintf(path, PATH_MAX, "%s/%s", folder, name) < PATH_MAX
               ? 0
               : error_set(err, ERROR_INVALID, "the path is too long");
}

/* OUT without slashes at its end. */
static int trimmed(const char *out, const char *suffix, char path[PATH_MAX], struct error *err) {
    size_t len = strlen(out);
    while (len > 1 && out[len - 1] == '/') {
        len--;
    }
    if (len == 0 || (len == 1 && out[0] == '/')) {
        return error_set(err, ERROR_INVALID, "the output must be a folder that can be made");
    }
    return snprintf(path, PATH_MAX, "%.*s%s", (int)len, out, suffix) < PATH_MAX
               ? 0
               : error_set(err, ERROR_INVALID, "the output's path is too long");
}

/* ---- folders of plain files ---- */

/* Visit the names in a folder, but . and ..; `visit` returns false to stop. */
static int each_name(const char *folder, bool (*visit)(void *arg, const char *path, const char *name), void *arg,
                     struct error *err) {
    DIR *dir = opendir(folder);
    char path[PATH_MAX];
    if (!dir) {
        return io_error(folder, err);
    }
    for (struct dirent *e; (e = readdir(dir));) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) {
            continue;
        }
        if (join(folder, e->d_name, path, err) < 0) {
            closedir(dir);
            return -1;
        }
        if (!visit(arg, path, e->d_name)) {
            break;
        }
    }
    closedir(dir);
    return 0;
}

struct look {
    bool any, config, other; /* any name; config.json; what no model folder has */
};

static bool look_at(void *arg, const char *path, const char *name) {
    struct look *l = arg;
    struct stat st;
    l->any = true;
    l->config = l->config || strcmp(name, "config.json") == 0;
    bool templates = strcmp(name, "additional_chat_templates") == 0;
    if (lstat(path, &st) == 0 && !S_ISREG(st.st_mode) && !(S_ISDIR(st.st_mode) && templates)) {
        l->other = true;
    }
    return true;
}

static bool remove_file(void *arg, const char *path, const char *name) {
    (void)name;
    bool *failed = arg;
    *failed = unlink(path) < 0 || *failed;
    return true;
}

/* A folder that held nothing but files and templates: nothing deeper is followed. */
static int remove_model_folder(const char *folder, bool itself, struct error *err) {
    char inner[PATH_MAX];
    bool failed = false, ignored = false;
    if (join(folder, "additional_chat_templates", inner, err) < 0) {
        return -1;
    }
    if (access(inner, F_OK) == 0 && (each_name(inner, remove_file, &ignored, err) < 0 || rmdir(inner) < 0)) {
        return io_error(inner, err);
    }
    if (each_name(folder, remove_file, &failed, err) < 0) {
        return -1;
    }
    return failed || (itself && rmdir(folder) < 0) ? io_error(folder, err) : 0;
}

static bool same_place(const char *a, const char *b) {
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

/* The folder of a model's files: itself, or where the one file lies. */
static int model_folder(const char *model, char folder[PATH_MAX], struct error *err) {
    struct stat st;
    const char *slash = strrchr(model, '/');
    int n = stat(model, &st) == 0 && S_ISDIR(st.st_mode) ? snprintf(folder, PATH_MAX, "%s", model)
            : slash ? snprintf(folder, PATH_MAX, "%.*s", slash == model ? 1 : (int)(slash - model), model)
                    : snprintf(folder, PATH_MAX, ".");
    return n < PATH_MAX ? 0 : error_set(err, ERROR_INVALID, "the model's path is too long");
}

int partial_folder_check(const char *out, const char *source, bool force, struct error *err) {
    char path[PATH_MAX], folder[PATH_MAX];
    struct stat st;
    struct look l = {0};
    if (trimmed(out, "", path, err) < 0 || model_folder(source, folder, err) < 0) {
        return -1;
    }
    if (lstat(path, &st) < 0) {
        return errno == ENOENT ? 0 : io_error(path, err);
    }
    if (same_place(path, folder)) {
        return error_set(err, ERROR_INVALID, "%.300s: the output would take the place of the model itself", path);
    }
    if (!S_ISDIR(st.st_mode)) {
        return error_set(err, ERROR_INVALID, "%.300s exists and is not a folder", path);
    }
    if (each_name(path, look_at, &l, err) < 0) {
        return -1;
    }
    if (l.any && !force) {
        return error_set(err, ERROR_INVALID, "%.300s exists (--force replaces a model folder)", path);
    }
    if (l.any && (!l.config || l.other)) {
        return error_set(err, ERROR_INVALID, "%.300s is not a model folder, and --force replaces nothing else", path);
    }
    return 0;
}

/* ---- the manifest: a line with the fingerprint, then a line with a digest for each finished unit ---- */

static bool read_digest(const char *hex, uint8_t out[SHA256_BYTES]) {
    for (size_t i = 0; i < SHA256_BYTES; i++) {
        unsigned byte;
        if (sscanf(hex + 2 * i, "%2x", &byte) != 1) {
            return false;
        }
        out[i] = (uint8_t)byte;
    }
    return true;
}

static int read_units(struct partial_folder *f, const char *lines, size_t len, struct error *err) {
    size_t n = len / LINE; /* a line that was cut is none */
    f->digests = calloc(n + 1, sizeof *f->digests);
    if (!f->digests) {
        return error_memory(err);
    }
    while (f->n < n && lines[f->n * LINE + DIGITS] == '\n' && read_digest(lines + f->n * LINE, f->digests[f->n])) {
        f->n++;
    }
    return 0;
}

static int begin_manifest(struct partial_folder *f, const char *head, struct error *err) {
    char path[PATH_MAX];
    if (join(f->path, MANIFEST, path, err) < 0) {
        return -1;
    }
    f->digests = calloc(1, sizeof *f->digests);
    if (!f->digests) {
        return error_memory(err);
    }
    return ftruncate(f->manifest, 0) < 0 || pwrite(f->manifest, head, HEAD, 0) != HEAD || fsync(f->manifest) < 0
               ? io_error(path, err)
               : 0;
}

struct clearing {
    bool failed;
};

static bool clear_file(void *arg, const char *path, const char *name) {
    struct clearing *c = arg;
    if (strcmp(name, MANIFEST) != 0) {
        c->failed = unlink(path) < 0 || c->failed;
    }
    return true;
}

/* What an earlier run left, if it is of the same fingerprint; else nothing of it stays. */
static int take_over(struct partial_folder *f, const char *head, const char *content, size_t len, struct error *err) {
    struct clearing c = {false};
    if (len >= HEAD && memcmp(content, head, HEAD) == 0) {
        f->resumed = true;
        return read_units(f, content + HEAD, len - HEAD, err);
    }
    if (len > 0 && (len < sizeof MAGIC - 1 || memcmp(content, MAGIC, sizeof MAGIC - 1) != 0)) {
        return error_set(err, ERROR_INVALID, "%.300s is not of an earlier run: remove it", f->path);
    }
    f->began_anew = len > 0;
    char inner[PATH_MAX];
    bool ignored = false;
    if (join(f->path, "additional_chat_templates", inner, err) < 0) {
        return -1;
    }
    if (access(inner, F_OK) == 0 && (each_name(inner, remove_file, &ignored, err) < 0 || rmdir(inner) < 0)) {
        return io_error(inner, err);
    }
    if (each_name(f->path, clear_file, &c, err) < 0) {
        return -1;
    }
    return c.failed ? io_error(f->path, err) : begin_manifest(f, head, err);
}

static int open_manifest(struct partial_folder *f, bool made, const char *head, struct error *err) {
    char path[PATH_MAX], *content;
    struct stat st;
    if (join(f->path, MANIFEST, path, err) < 0) {
        return -1;
    }
    f->manifest = open(path, O_RDWR | O_CLOEXEC | (made ? O_CREAT : 0), 0666);
    if (f->manifest < 0 && errno == ENOENT) {
        return error_set(err, ERROR_INVALID, "%.300s is not of an earlier run: remove it", f->path);
    }
    if (f->manifest < 0) {
        return io_error(path, err);
    }
    if (flock(f->manifest, LOCK_EX | LOCK_NB) < 0) {
        return errno == EWOULDBLOCK ? error_set(err, ERROR_INVALID, "another process is writing %.300s", f->path)
                                    : io_error(path, err);
    }
    if (fstat(f->manifest, &st) < 0 || st.st_size > 1 << 20) {
        return error_set(err, ERROR_INVALID, "%.300s is not of an earlier run: remove it", f->path);
    }
    size_t len = (size_t)st.st_size;
    content = malloc(len + 1);
    if (!content) {
        return error_memory(err);
    }
    int rc = pread(f->manifest, content, len, 0) == (ssize_t)len ? take_over(f, head, content, len, err)
                                                                 : io_error(path, err);
    free(content);
    return rc;
}

int partial_folder_open(struct partial_folder *f, const char *out, const uint8_t fingerprint[SHA256_BYTES],
                        struct error *err) {
    struct partial_folder made = {.manifest = -1};
    char head[HEAD + 1] = MAGIC;
    sha256_hex(fingerprint, head + sizeof MAGIC - 1);
    head[HEAD - 1] = '\n';
    if (trimmed(out, "", made.out, err) < 0 || trimmed(out, ".partial", made.path, err) < 0) {
        return -1;
    }
    bool fresh = mkdir(made.path, 0777) == 0;
    if (!fresh && errno != EEXIST) {
        return io_error(made.path, err);
    }
    struct look l = {0};
    if (each_name(made.path, look_at, &l, err) < 0 || open_manifest(&made, !l.any, head, err) < 0) {
        partial_folder_close(&made);
        return -1;
    }
    *f = made;
    return 0;
}

int partial_folder_keep(struct partial_folder *f, size_t n, struct error *err) {
    f->n = n;
    return ftruncate(f->manifest, (off_t)(HEAD + n * LINE)) < 0 ? io_error(f->path, err) : 0;
}

int partial_folder_add(struct partial_folder *f, const uint8_t digest[SHA256_BYTES], struct error *err) {
    char line[LINE + 1];
    sha256_hex(digest, line);
    line[DIGITS] = '\n';
    if (pwrite(f->manifest, line, LINE, (off_t)(HEAD + f->n * LINE)) != LINE || fdatasync(f->manifest) < 0) {
        return io_error(f->path, err);
    }
    f->n++;
    return 0;
}

/* ---- the end ---- */

static int sync_folder(const char *path, struct error *err) {
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int rc = fd < 0 || fsync(fd) < 0 ? io_error(path, err) : 0;
    if (fd >= 0) {
        close(fd);
    }
    return rc;
}

static int sync_parent(const char *path, struct error *err) {
    char parent[PATH_MAX];
    snprintf(parent, sizeof parent, "%s", path);
    char *slash = strrchr(parent, '/');
    if (!slash) {
        return sync_folder(".", err);
    }
    slash[slash == parent] = '\0';
    return sync_folder(parent, err);
}

int partial_folder_commit(struct partial_folder *f, bool force, struct error *err) {
    char path[PATH_MAX];
    if (join(f->path, MANIFEST, path, err) < 0) {
        return -1;
    }
    if (unlink(path) < 0 || sync_folder(f->path, err) < 0) {
        return io_error(path, err);
    }
    if (rename(f->path, f->out) == 0) { /* also onto an empty folder */
        return sync_parent(f->out, err);
    }
    if (!force || (errno != ENOTEMPTY && errno != EEXIST)) {
        return io_error(f->out, err);
    }
    if (renameat2(AT_FDCWD, f->path, AT_FDCWD, f->out, RENAME_EXCHANGE) < 0) {
        return io_error(f->out, err);
    }
    return sync_parent(f->out, err) < 0 ? -1 : remove_model_folder(f->path, true, err);
}

void partial_folder_close(struct partial_folder *f) {
    if (f->manifest >= 0 && f->path[0]) {
        close(f->manifest);
    }
    free(f->digests);
    *f = (struct partial_folder){.manifest = -1};
}

/* ---- files beside the weights ---- */

static int copy_file(const char *from_folder, const char *to_folder, const char *name, struct error *err) {
    char path[PATH_MAX];
    struct file_map map;
    if (join(from_folder, name, path, err) < 0) {
        return -1;
    }
    if (access(path, F_OK) != 0) {
        return 0;
    }
    if (file_map_open(path, &map, err) < 0) {
        return -1;
    }
    int rc = writer_put_file(to_folder, name, map.data ? (const char *)map.data : "", map.size, err);
    file_map_close(&map);
    return rc;
}

struct template_copy {
    char from[PATH_MAX], to[PATH_MAX];
    int rc;
    struct error *err;
};

static bool copy_template(void *arg, const char *path, const char *name) {
    (void)path;
    struct template_copy *c = arg;
    size_t len = strlen(name);
    if (len > 6 && strcmp(name + len - 6, ".jinja") == 0) {
        c->rc = copy_file(c->from, c->to, name, c->err);
    }
    return c->rc == 0;
}

int copy_model_files(const char *model, const char *to, struct error *err) {
    static const char *const names[] = {
        "tokenizer.json",    "tokenizer_config.json", "tokenizer.model",        "special_tokens_map.json",
        "added_tokens.json", "vocab.json",            "merges.txt",             "chat_template.jinja",
        "chat_template.json", "generation_config.json", "LICENSE",
    };
    char folder[PATH_MAX];
    if (model_folder(model, folder, err) < 0) {
        return -1;
    }
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (copy_file(folder, to, names[i], err) < 0) {
            return -1;
        }
    }
    struct template_copy c = {.err = err};
    if (join(folder, "additional_chat_templates", c.from, err) < 0 ||
        join(to, "additional_chat_templates", c.to, err) < 0) {
        return -1;
    }
    if (access(c.from, F_OK) != 0) {
        return 0;
    }
    if (mkdir(c.to, 0777) < 0 && errno != EEXIST) {
        return io_error(c.to, err);
    }
    return each_name(c.from, copy_template, &c, err) < 0 ? -1 : c.rc;
}
