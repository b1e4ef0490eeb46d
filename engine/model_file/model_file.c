#include "model_file/model_file.h"

#include "base/checked.h"
#include "base/utf8.h"
#include "model_file/internal.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* The path as a message shows it: of a long one the end, so that the reason still has room. */
static void fail_v(const char *path, struct error *err, const char *where, const char *fmt, va_list ap) {
    enum { SHOWN = 200 };
    char reason[sizeof err->message];
    vsnprintf(reason, sizeof reason, fmt, ap);
    size_t len = strlen(path);
    error_set(err, ERROR_MODEL, "%s%s: %s%s", len > SHOWN ? "..." : "", len > SHOWN ? path + len - SHOWN : path, where,
              reason);
}

int model_file_fail(const char *path, size_t offset, struct error *err, const char *fmt, ...) {
    char where[40];
    snprintf(where, sizeof where, "offset %zu: ", offset);
    va_list ap;
    va_start(ap, fmt);
    fail_v(path, err, where, fmt, ap);
    va_end(ap);
    return -1;
}

int model_file_fail_path(const char *path, struct error *err, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    fail_v(path, err, "", fmt, ap);
    va_end(ap);
    return -1;
}

/* ---- what the readers fill ---- */

static int add_part(struct model_file *f, const char *path, const struct file_map *map, bool borrowed,
                    struct part **out, struct error *err) {
    struct part *parts = realloc(f->parts, (f->n_parts + 1) * sizeof *parts);
    char *copy = strdup(path);
    if (parts) {
        f->parts = parts;
    }
    if (!parts || !copy) {
        free(copy);
        return error_memory(err);
    }
    *out = &f->parts[f->n_parts++];
    **out = (struct part){.path = copy, .map = *map, .borrowed = borrowed};
    return 0;
}

int model_file_add_part(struct model_file *f, const char *path, struct part **out, struct error *err) {
    struct file_map map;
    if (file_map_open(path, &map, err) < 0) {
        return -1;
    }
    if (add_part(f, path, &map, false, out, err) < 0) {
        file_map_close(&map);
        return -1;
    }
    return 0;
}

bool tensor_bytes(const struct tensor *t, size_t block, size_t block_bytes, size_t *bytes) {
    size_t row = t->shape[t->n_dims - 1], size;
    if (row % block != 0 || !checked_mul(row / block, block_bytes, &size)) {
        return false;
    }
    for (size_t i = 0; i + 1 < t->n_dims; i++) {
        if (!checked_mul(size, t->shape[i], &size) || size > MODEL_MAX_TENSOR_BYTES) {
            return false;
        }
    }
    if (size > MODEL_MAX_TENSOR_BYTES) {
        return false;
    }
    *bytes = size;
    return true;
}

static int check_name(const struct part *p, size_t offset, const char *name, size_t len, struct error *err) {
    if (len < 1 || len >= TENSOR_NAME_MAX) {
        return model_file_fail(p->path, offset, err, "a tensor's name has %zu bytes; 1 to %d are possible", len,
                               TENSOR_NAME_MAX - 1);
    }
    for (size_t i = 0; i < len; i++) {
        if ((unsigned char)name[i] < 0x20 || name[i] == 0x7f) {
            return model_file_fail(p->path, offset, err, "a tensor's name has a control character");
        }
    }
    if (!utf8_is_valid(name, len)) {
        return model_file_fail(p->path, offset, err, "a tensor's name is not valid UTF-8");
    }
    return 0;
}

static int grow_tensors(struct model_file *f, struct error *err) {
    if (f->n_tensors < f->cap_tensors) {
        return 0;
    }
    size_t cap = f->cap_tensors ? 2 * f->cap_tensors : 64; /* <= 2 * MODEL_MAX_TENSORS */
    struct tensor *tensors = realloc(f->tensors, cap * sizeof *tensors);
    if (tensors) {
        f->tensors = tensors;
    }
    struct tensor_origin *origins = realloc(f->origins, cap * sizeof *origins);
    if (origins) {
        f->origins = origins;
    }
    if (!tensors || !origins) {
        return error_memory(err);
    }
    f->cap_tensors = cap;
    return 0;
}

int model_file_add_tensor(struct model_file *f, size_t offset, const char *name, size_t len, const struct tensor *t,
                          size_t data_offset, struct error *err) {
    const struct part *p = &f->parts[f->n_parts - 1];
    if (check_name(p, offset, name, len, err) < 0) {
        return -1;
    }
    if (f->n_tensors == MODEL_MAX_TENSORS) {
        return model_file_fail(p->path, offset, err, "more than %d tensors", MODEL_MAX_TENSORS);
    }
    if (grow_tensors(f, err) < 0) {
        return -1;
    }
    char *copy = strndup(name, len);
    if (!copy) {
        return error_memory(err);
    }
    f->tensors[f->n_tensors] = *t;
    f->tensors[f->n_tensors].name = copy;
    f->tensors[f->n_tensors].part = (uint32_t)(f->n_parts - 1);
    f->origins[f->n_tensors] = (struct tensor_origin){copy, data_offset};
    f->n_tensors++;
    return 0;
}

struct extent {
    size_t start, end;
    const char *name;
};

static int compare_extents(const void *a, const void *b) {
    const struct extent *x = a, *y = b;
    return x->start != y->start ? (x->start > y->start) - (x->start < y->start) : (x->end > y->end) - (x->end < y->end);
}

static int check_overlap(const struct part *p, struct extent *extents, size_t n, struct error *err) {
    if (n < 2) {
        return 0;
    }
    qsort(extents, n, sizeof *extents, compare_extents);
    for (size_t i = 1; i < n; i++) {
        if (extents[i].start < extents[i - 1].end) {
            return model_file_fail(p->path, extents[i].start, err, "the data of %s and %s overlap", extents[i - 1].name,
                                   extents[i].name);
        }
    }
    return 0;
}

int model_file_place_tensors(struct model_file *f, size_t first, struct error *err) {
    const struct part *p = &f->parts[f->n_parts - 1];
    size_t n = f->n_tensors - first, used = 0;
    struct extent *extents = calloc(n ? n : 1, sizeof *extents);
    if (!extents) {
        return error_memory(err);
    }
    int rc = 0;
    for (size_t i = first; i < f->n_tensors && rc == 0; i++) {
        struct tensor *t = &f->tensors[i];
        size_t start = f->origins[i].offset;
        if (start > p->map.size || t->size > p->map.size - start) {
            rc = model_file_fail(p->path, start, err, "the %zu bytes of tensor %s pass the end of the file (%zu bytes)",
                                 t->size, t->name, p->map.size);
            break;
        }
        t->data = p->map.data + start;
        if (t->size > 0) {
            extents[used++] = (struct extent){start, start + t->size, t->name};
        }
    }
    if (rc == 0) {
        rc = check_overlap(p, extents, used, err);
    }
    free(extents);
    return rc;
}

int model_file_index_tensors(struct model_file *f, struct error *err) {
    struct name_index *x = &f->tensor_index;
    x->slots = calloc(f->n_tensors ? f->n_tensors : 1, sizeof *x->slots);
    if (!x->slots) {
        return error_memory(err);
    }
    x->n = f->n_tensors;
    for (size_t i = 0; i < x->n; i++) {
        x->slots[i] = (struct name_slot){f->tensors[i].name, strlen(f->tensors[i].name), i};
    }
    name_index_sort(x);
    const struct name_slot *twice = name_index_duplicate(x);
    if (twice) {
        return model_file_fail(f->parts[f->tensors[twice->index].part].path, f->origins[twice->index].offset, err,
                               "tensor %s appears twice", twice->name);
    }
    return 0;
}

/* ---- opening ---- */

static bool ends_with(const char *s, const char *suffix) {
    size_t n = strlen(s), m = strlen(suffix);
    return n >= m && !strcmp(s + n - m, suffix);
}

/* By its first bytes; the extension only helps to word the refusal. */
static int open_file(struct model_file *f, const char *path, struct error *err) {
    if (ends_with(path, ".index.json")) {
        return safetensors_open_index(f, path, err);
    }
    struct file_map map;
    if (file_map_open(path, &map, err) < 0) {
        return -1;
    }
    unsigned char head[9] = {0};
    memcpy(head, map.data ? map.data : head, map.size < sizeof head ? map.size : sizeof head);
    file_map_close(&map);
    if (!memcmp(head, "GGUF", 4) || ends_with(path, ".gguf")) {
        return gguf_open(f, path, err);
    }
    if (head[8] == '{' || ends_with(path, ".safetensors")) {
        return safetensors_open_file(f, path, err);
    }
    if (!memcmp(head, "PK\3\4", 4) || !memcmp(head, "\x80\2", 2)) {
        return model_file_fail(path, 0, err, "a pickled PyTorch file; only GGUF and safetensors are supported");
    }
    if (!memcmp(head, "lmgg", 4) || !memcmp(head, "fmgg", 4) || !memcmp(head, "tjgg", 4) || !memcmp(head, "algg", 4)) {
        return model_file_fail(path, 0, err, "a GGML file from before GGUF is not supported");
    }
    return model_file_fail(path, 0, err, "neither a GGUF nor a safetensors file");
}

static int open_any(struct model_file *f, const char *path, struct error *err) {
    struct stat st;
    f->path = strdup(path);
    if (!f->path) {
        return error_memory(err);
    }
    if (strlen(path) >= MODEL_MAX_PATH) {
        return model_file_fail_path(path, err, "the path is longer than %d bytes", MODEL_MAX_PATH - 1);
    }
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode)) {
        return safetensors_open_folder(f, path, err);
    }
    return open_file(f, path, err);
}

int model_file_open(const char *path, struct model_file **out, struct error *err) {
    struct model_file *f = calloc(1, sizeof *f);
    if (!f) {
        return error_memory(err);
    }
    if (open_any(f, path, err) < 0 || model_file_index_tensors(f, err) < 0) {
        model_file_close(f);
        return -1;
    }
    *out = f;
    return 0;
}

int model_file_open_memory(enum model_format format, const void *data, size_t size, struct model_file **out,
                           struct error *err) {
    struct model_file *f = calloc(1, sizeof *f);
    struct file_map map = {data, size};
    struct part *p;
    if (!f || !(f->path = strdup("memory"))) {
        free(f);
        return error_memory(err);
    }
    f->format = format;
    if (add_part(f, "memory", &map, true, &p, err) < 0 ||
        (format == MODEL_FORMAT_GGUF ? gguf_read_part(f, &f->meta, err) : safetensors_read_part(f, err)) < 0 ||
        model_file_index_tensors(f, err) < 0) {
        model_file_close(f);
        return -1;
    }
    *out = f;
    return 0;
}

void model_file_close(struct model_file *f) {
    if (!f) {
        return;
    }
    for (size_t i = 0; i < f->n_tensors; i++) {
        free(f->origins[i].name);
    }
    for (size_t i = 0; i < f->n_parts; i++) {
        struct part *p = &f->parts[i];
        free(p->path);
        cJSON_Delete(p->annotation);
        if (!p->borrowed) {
            file_map_close(&p->map);
        }
    }
    metadata_free(&f->meta);
    cJSON_Delete(f->config);
    cJSON_Delete(f->quantization);
    free(f->tensor_index.slots);
    free(f->origins);
    free(f->tensors);
    free(f->parts);
    free(f->path);
    free(f);
}

/* ---- reading ---- */

enum model_format model_file_format(const struct model_file *f) {
    return f->format;
}

const char *model_file_path(const struct model_file *f) {
    return f->path;
}

size_t model_file_n_tensors(const struct model_file *f) {
    return f->n_tensors;
}

const struct tensor *model_file_tensor(const struct model_file *f, size_t i) {
    return i < f->n_tensors ? &f->tensors[i] : NULL;
}

const struct tensor *model_file_find(const struct model_file *f, const char *name) {
    size_t i;
    return name_index_find(&f->tensor_index, name, strlen(name), &i) ? &f->tensors[i] : NULL;
}

const struct cJSON *model_file_config(const struct model_file *f) {
    return f->config;
}

const struct cJSON *model_file_quantization(const struct model_file *f) {
    static const char *const keys[] = {"quantization_config", "compression_config"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        const cJSON *item = cJSON_GetObjectItemCaseSensitive(f->config, keys[i]);
        if (item && !cJSON_IsNull(item)) {
            return item;
        }
    }
    return f->quantization;
}

void model_file_release(const struct model_file *f, const void *data, size_t size) {
    for (size_t i = 0; i < f->n_parts; i++) {
        const struct part *p = &f->parts[i];
        const unsigned char *begin = data;
        if (!p->borrowed && p->map.data && begin >= p->map.data && begin < p->map.data + p->map.size) {
            file_map_release(&p->map, (size_t)(begin - p->map.data), size);
        }
    }
}
