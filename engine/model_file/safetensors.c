/*
 * safetensors: u64 header length N, N bytes of JSON, data.
 *   header: {"NAME": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [begin, end]}, "__metadata__": {string:
 * string}} with offsets from the end of the header. A sharded model has model.safetensors.index.json, whose weight_map
 * says which file of the same folder holds each tensor.
 */
#include "model_file/internal.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <inferd/json.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LENGTH_BYTES = 8 };

static const struct st_type {
    const char *name;
    unsigned bits;
    enum dtype dtype;
} st_types[] = {
    {"F32", 32, DTYPE_F32},
    {"F16", 16, DTYPE_F16},
    {"BF16", 16, DTYPE_BF16},
    {"I8", 8, DTYPE_I8},
    {"I32", 32, DTYPE_I32},
    {"BOOL", 8, DTYPE_UNSUPPORTED},
    {"U8", 8, DTYPE_UNSUPPORTED},
    {"I16", 16, DTYPE_UNSUPPORTED},
    {"U16", 16, DTYPE_UNSUPPORTED},
    {"U32", 32, DTYPE_UNSUPPORTED},
    {"I64", 64, DTYPE_UNSUPPORTED},
    {"U64", 64, DTYPE_UNSUPPORTED},
    {"F64", 64, DTYPE_UNSUPPORTED},
    {"C64", 64, DTYPE_UNSUPPORTED},
    {"F8_E4M3", 8, DTYPE_UNSUPPORTED},
    {"F8_E5M2", 8, DTYPE_UNSUPPORTED},
    {"F8_E8M0", 8, DTYPE_UNSUPPORTED},
    {"F6_E2M3", 6, DTYPE_UNSUPPORTED},
    {"F6_E3M2", 6, DTYPE_UNSUPPORTED},
    {"F4", 4, DTYPE_UNSUPPORTED},
};

/* ---- one file ---- */

struct header {
    const struct part *part;
    const char *text; /* the JSON */
    size_t len;
    struct error *err;
};

/* Where the file speaks of a tensor; a scan of the header, for messages only. */
static size_t entry_offset(const struct header *h, const char *name) {
    const char *start;
    size_t n;
    return json_member(h->text, h->len, name, &start, &n) ? LENGTH_BYTES + (size_t)(start - h->text) : LENGTH_BYTES;
}

static int fail_entry(const struct header *h, const char *name, const char *reason) {
    return model_file_fail(h->part->path, entry_offset(h, name), h->err, "%s", reason);
}

/* A JSON number that is a size. Up to 2^48, so exact in the double of a cJSON node. */
static bool json_size(const cJSON *item, size_t *out) {
    double v = cJSON_IsNumber(item) ? item->valuedouble : -1;
    if (!(v >= 0 && v <= (double)MODEL_MAX_TENSOR_BYTES) || v != (double)(size_t)v) {
        return false;
    }
    *out = (size_t)v;
    return true;
}

static int read_type(const struct header *h, const cJSON *entry, struct tensor *t, unsigned *bits) {
    const cJSON *dtype = cJSON_GetObjectItemCaseSensitive(entry, "dtype");
    for (size_t i = 0; cJSON_IsString(dtype) && i < sizeof st_types / sizeof st_types[0]; i++) {
        if (!strcmp(st_types[i].name, dtype->valuestring)) {
            t->dtype = st_types[i].dtype;
            t->type = st_types[i].name;
            *bits = st_types[i].bits;
            return 0;
        }
    }
    return fail_entry(h, entry->string, "a tensor's dtype is missing or unknown");
}

static int read_shape(const struct header *h, const cJSON *entry, struct tensor *t) {
    const cJSON *shape = cJSON_GetObjectItemCaseSensitive(entry, "shape"), *dim;
    if (!cJSON_IsArray(shape)) {
        return fail_entry(h, entry->string, "a tensor's shape is not an array");
    }
    cJSON_ArrayForEach(dim, shape) {
        if (t->n_dims == TENSOR_MAX_DIMS) {
            return fail_entry(h, entry->string, "a tensor has too many dimensions");
        }
        if (!json_size(dim, &t->shape[t->n_dims++])) {
            return fail_entry(h, entry->string, "a tensor's shape has something else than sizes");
        }
    }
    if (t->n_dims == 0) { /* a scalar */
        t->shape[t->n_dims++] = 1;
    }
    return 0;
}

static int read_offsets(const struct header *h, const cJSON *entry, size_t *begin, size_t *end) {
    const cJSON *offsets = cJSON_GetObjectItemCaseSensitive(entry, "data_offsets");
    const cJSON *first = cJSON_IsArray(offsets) ? offsets->child : NULL, *second = first ? first->next : NULL;
    if (!second || second->next || !json_size(first, begin) || !json_size(second, end) || *begin > *end) {
        return fail_entry(h, entry->string, "a tensor's data_offsets are not [begin, end]");
    }
    return 0;
}

/* The bytes of the shape; types below a byte need a whole number of bytes in all. */
static bool shape_bytes(const struct tensor *t, unsigned bits, size_t *out) {
    size_t n;
    if (bits >= 8) {
        return tensor_bytes(t, 1, bits / 8, out);
    }
    if (!tensor_bytes(t, 1, 1, &n) || n * bits % 8 != 0) { /* n <= 2^48 */
        return false;
    }
    *out = n * bits / 8;
    return true;
}

static int read_entry(const struct header *h, struct model_file *f, const cJSON *entry) {
    struct tensor t = {0};
    unsigned bits = 0;
    size_t begin = 0, end = 0;
    if (!cJSON_IsObject(entry)) {
        return fail_entry(h, entry->string, "a tensor's entry is not an object");
    }
    if (read_type(h, entry, &t, &bits) < 0 || read_shape(h, entry, &t) < 0 ||
        read_offsets(h, entry, &begin, &end) < 0) {
        return -1;
    }
    if (!shape_bytes(&t, bits, &t.size) || t.size != end - begin) {
        return fail_entry(h, entry->string, "a tensor's data_offsets do not go with its dtype and shape");
    }
    /* h->len and begin are far below SIZE_MAX / 2 */
    return model_file_add_tensor(f, LENGTH_BYTES, entry->string, strlen(entry->string), &t,
                                 LENGTH_BYTES + h->len + begin, h->err);
}

static int read_annotation(const struct header *h, const cJSON *item) {
    const cJSON *value;
    if (!cJSON_IsObject(item)) {
        return fail_entry(h, item->string, "__metadata__ is not an object");
    }
    cJSON_ArrayForEach(value, item) {
        if (!cJSON_IsString(value)) {
            return fail_entry(h, item->string, "__metadata__ has something else than strings");
        }
    }
    return 0;
}

static int read_entries(const struct header *h, struct model_file *f, cJSON *root) {
    cJSON *item;
    cJSON_ArrayForEach(item, root) {
        bool annotation = !strcmp(item->string, "__metadata__");
        if ((annotation ? read_annotation(h, item) : read_entry(h, f, item)) < 0) {
            return -1;
        }
    }
    f->parts[f->n_parts - 1].annotation = cJSON_DetachItemFromObjectCaseSensitive(root, "__metadata__");
    return 0;
}

int safetensors_read_part(struct model_file *f, struct error *err) {
    const struct part *p = &f->parts[f->n_parts - 1];
    size_t first = f->n_tensors;
    if (p->map.size < LENGTH_BYTES) {
        return model_file_fail(p->path, 0, err, "the file ends inside the header's length");
    }
    uint64_t len = load_le(p->map.data, LENGTH_BYTES);
    if (len > p->map.size - LENGTH_BYTES || len > SAFETENSORS_MAX_HEADER) {
        return model_file_fail(p->path, 0, err, "a header of %llu bytes; %zu follow in the file and %d are the most",
                               (unsigned long long)len, p->map.size - LENGTH_BYTES, SAFETENSORS_MAX_HEADER);
    }
    struct header h = {p, (const char *)p->map.data + LENGTH_BYTES, (size_t)len, err};
    cJSON *root;
    if (json_parse(h.text, h.len, NULL, &root, err) < 0) {
        return err->code == ERROR_MEMORY
                   ? -1
                   : model_file_fail(p->path, LENGTH_BYTES, err, "the header is %.300s", err->message);
    }
    int rc = cJSON_IsObject(root) ? read_entries(&h, f, root)
                                  : model_file_fail(p->path, LENGTH_BYTES, err, "the header is not a JSON object");
    cJSON_Delete(root);
    return rc < 0 ? -1 : model_file_place_tensors(f, first, err);
}

/* ---- files and folders ---- */

/* "FOLDER/NAME" where folder is the first `len` bytes of path ("" = the current one). */
static int join(const char *path, size_t len, const char *name, char out[MODEL_MAX_PATH], struct error *err) {
    const char *slash = len > 0 && path[len - 1] != '/' ? "/" : "";
    int n = snprintf(out, MODEL_MAX_PATH, "%.*s%s%s", (int)len, path, slash, name);
    if (n >= MODEL_MAX_PATH) {
        return model_file_fail_path(path, err, "a path longer than %d bytes", MODEL_MAX_PATH - 1);
    }
    return 0;
}

static size_t folder_length(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? (size_t)(slash - path) + 1 : 0;
}

/* A JSON file that must be an object. */
static int read_json_file(const char *path, size_t max, cJSON **out, struct error *err) {
    struct file_map map;
    if (file_map_open(path, &map, err) < 0) {
        return -1;
    }
    cJSON *root = NULL;
    int rc = 0;
    if (map.size > max) {
        rc = model_file_fail(path, 0, err, "the file has %zu bytes, %zu are the most", map.size, max);
    } else if (json_parse((const char *)map.data, map.size, NULL, &root, err) < 0) {
        rc = err->code == ERROR_MEMORY ? -1 : model_file_fail_path(path, err, "%.300s", err->message);
    } else if (!cJSON_IsObject(root)) {
        rc = model_file_fail(path, 0, err, "not a JSON object");
    }
    file_map_close(&map);
    if (rc < 0) {
        cJSON_Delete(root);
        return -1;
    }
    *out = root;
    return 0;
}

/* A JSON file of a folder, when there is one. */
static int read_beside(const char *path, size_t folder_len, const char *name, cJSON **out, struct error *err) {
    char file[MODEL_MAX_PATH];
    if (join(path, folder_len, name, file, err) < 0) {
        return -1;
    }
    if (access(file, F_OK) < 0 && errno == ENOENT) {
        return 0;
    }
    return read_json_file(file, MODEL_MAX_CONFIG_JSON, out, err);
}

/* config.json, and where it says nothing about quantisation the file that may. */
static int read_config(struct model_file *f, const char *path, size_t folder_len, struct error *err) {
    static const char *const names[] = {"quantize_config.json", "hf_quant_config.json"};
    if (read_beside(path, folder_len, "config.json", &f->config, err) < 0) {
        return -1;
    }
    for (size_t i = 0; i < 2 && !model_file_quantization(f); i++) {
        if (read_beside(path, folder_len, names[i], &f->quantization, err) < 0) {
            return -1;
        }
    }
    return 0;
}

static int open_shard(struct model_file *f, const char *path, struct error *err) {
    struct part *p;
    return model_file_add_part(f, path, &p, err) < 0 ? -1 : safetensors_read_part(f, err);
}

int safetensors_open_file(struct model_file *f, const char *path, struct error *err) {
    f->format = MODEL_FORMAT_SAFETENSORS;
    return open_shard(f, path, err) < 0 ? -1 : read_config(f, path, folder_length(path), err);
}

/* ---- sharded ---- */

static int compare_strings(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* A shard lies beside the index: a name that could lead elsewhere is refused. */
static bool is_plain_name(const char *s) {
    return s[0] != '\0' && s[0] != '.' && !strchr(s, '/') && strlen(s) < 256;
}

/* The distinct values of weight_map, sorted: *out[*n], to be freed; the strings are the map's. */
static int shard_names(const char *index_path, const cJSON *map, const char ***out, size_t *n, struct error *err) {
    size_t total = (size_t)cJSON_GetArraySize(map), used = 0, distinct = 0;
    const char **names = calloc(total ? total : 1, sizeof *names);
    if (!names) {
        return error_memory(err);
    }
    const cJSON *item;
    cJSON_ArrayForEach(item, map) {
        if (!cJSON_IsString(item) || !is_plain_name(item->valuestring)) {
            free(names);
            return model_file_fail_path(index_path, err, "weight_map names something else than a file beside it");
        }
        names[used++] = item->valuestring;
    }
    if (used > 1) {
        qsort(names, used, sizeof *names, compare_strings);
    }
    for (size_t i = 0; i < used; i++) {
        if (distinct == 0 || strcmp(names[distinct - 1], names[i]) != 0) {
            names[distinct++] = names[i];
        }
    }
    if (distinct < 1 || distinct > SAFETENSORS_MAX_SHARDS) {
        free(names);
        return model_file_fail_path(index_path, err, "weight_map names %zu files; 1 to %d are possible", distinct,
                                    SAFETENSORS_MAX_SHARDS);
    }
    *out = names;
    *n = distinct;
    return 0;
}

/* Every tensor of the map is in the file that the map says. Leaves tensor_index empty again. */
static int check_weight_map(struct model_file *f, const char *index_path, const cJSON *map, struct error *err) {
    const cJSON *item;
    int rc = model_file_index_tensors(f, err);
    for (item = map->child; item && rc == 0; item = item->next) {
        const struct tensor *t = model_file_find(f, item->string);
        const char *path = t ? f->parts[t->part].path : "";
        if (strcmp(path + folder_length(path), item->valuestring) != 0) {
            rc = model_file_fail_path(index_path, err, "tensor %.*s is not in the file that weight_map names",
                                      TENSOR_NAME_MAX, item->string);
        }
    }
    free(f->tensor_index.slots);
    f->tensor_index = (struct name_index){0};
    return rc;
}

static int open_shards(struct model_file *f, const char *index_path, const cJSON *map, struct error *err) {
    const char **names = NULL;
    size_t n = 0;
    if (shard_names(index_path, map, &names, &n, err) < 0) {
        return -1;
    }
    int rc = 0;
    for (size_t i = 0; i < n && rc == 0; i++) {
        char path[MODEL_MAX_PATH];
        rc = join(index_path, folder_length(index_path), names[i], path, err);
        if (rc == 0) {
            rc = open_shard(f, path, err);
        }
    }
    free(names);
    return rc == 0 ? check_weight_map(f, index_path, map, err) : -1;
}

int safetensors_open_index(struct model_file *f, const char *index_path, struct error *err) {
    cJSON *root;
    f->format = MODEL_FORMAT_SAFETENSORS;
    if (read_json_file(index_path, MODEL_MAX_INDEX_JSON, &root, err) < 0) {
        return -1;
    }
    const cJSON *map = cJSON_GetObjectItemCaseSensitive(root, "weight_map");
    int rc = cJSON_IsObject(map) ? open_shards(f, index_path, map, err)
                                 : model_file_fail_path(index_path, err, "weight_map is missing or not an object");
    cJSON_Delete(root);
    return rc < 0 ? -1 : read_config(f, index_path, folder_length(index_path), err);
}

int safetensors_open_folder(struct model_file *f, const char *path, struct error *err) {
    char file[MODEL_MAX_PATH];
    if (join(path, strlen(path), "model.safetensors.index.json", file, err) < 0) {
        return -1;
    }
    if (access(file, F_OK) == 0) {
        return safetensors_open_index(f, file, err);
    }
    if (join(path, strlen(path), "model.safetensors", file, err) < 0) {
        return -1;
    }
    if (access(file, F_OK) == 0) {
        return safetensors_open_file(f, file, err);
    }
    return model_file_fail_path(path, err,
                                "a folder with neither model.safetensors.index.json nor model.safetensors in it");
}
