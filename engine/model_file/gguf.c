/*
 * GGUF, versions 2 and 3, little-endian (layout as in ggml's docs/gguf.md):
 *   "GGUF", u32 version, u64 n_tensors, u64 n_keys, keys, tensor entries, padding to `alignment`, data.
 *   key: string name, u32 type, value.  string: u64 length, bytes.  array: u32 type, u64 count, elements.
 *   tensor entry: string name, u32 n_dims, u64 dims[n_dims] (innermost first), u32 type, u64 offset into the data.
 * A split model is files NAME-00001-of-0000N.gguf; the first has the metadata, each has split.no and split.count.
 */
#include "base/checked.h"
#include "base/utf8.h"
#include "model_file/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MIN_KEY_BYTES = 8 + 1 + 4 + 1,            /* name of one byte, type, the smallest value */
    MIN_TENSOR_BYTES = 8 + 1 + 4 + 8 + 4 + 8, /* name of one byte, one dimension */
    DEFAULT_ALIGNMENT = 32,
};

/* The format's element types by number. A dtype of DTYPE_UNSUPPORTED can be listed, not computed with. */
static const struct gguf_type {
    const char *name;
    size_t block, bytes;
    enum dtype dtype;
} gguf_types[] = {
    [0] = {"F32", 1, 4, DTYPE_F32},
    [1] = {"F16", 1, 2, DTYPE_F16},
    [2] = {"Q4_0", 32, 18, DTYPE_Q4_0},
    [3] = {"Q4_1", 32, 20, DTYPE_Q4_1},
    [6] = {"Q5_0", 32, 22, DTYPE_Q5_0},
    [7] = {"Q5_1", 32, 24, DTYPE_Q5_1},
    [8] = {"Q8_0", 32, 34, DTYPE_Q8_0},
    [10] = {"Q2_K", 256, 84, DTYPE_UNSUPPORTED},
    [11] = {"Q3_K", 256, 110, DTYPE_UNSUPPORTED},
    [12] = {"Q4_K", 256, 144, DTYPE_Q4_K},
    [13] = {"Q5_K", 256, 176, DTYPE_Q5_K},
    [14] = {"Q6_K", 256, 210, DTYPE_Q6_K},
    [15] = {"Q8_K", 256, 292, DTYPE_UNSUPPORTED},
    [16] = {"IQ2_XXS", 256, 66, DTYPE_UNSUPPORTED},
    [17] = {"IQ2_XS", 256, 74, DTYPE_UNSUPPORTED},
    [18] = {"IQ3_XXS", 256, 98, DTYPE_UNSUPPORTED},
    [19] = {"IQ1_S", 256, 50, DTYPE_UNSUPPORTED},
    [20] = {"IQ4_NL", 32, 18, DTYPE_UNSUPPORTED},
    [21] = {"IQ3_S", 256, 110, DTYPE_UNSUPPORTED},
    [22] = {"IQ2_S", 256, 82, DTYPE_UNSUPPORTED},
    [23] = {"IQ4_XS", 256, 136, DTYPE_UNSUPPORTED},
    [24] = {"I8", 1, 1, DTYPE_I8},
    [25] = {"I16", 1, 2, DTYPE_UNSUPPORTED},
    [26] = {"I32", 1, 4, DTYPE_I32},
    [27] = {"I64", 1, 8, DTYPE_UNSUPPORTED},
    [28] = {"F64", 1, 8, DTYPE_UNSUPPORTED},
    [29] = {"IQ1_M", 256, 56, DTYPE_UNSUPPORTED},
    [30] = {"BF16", 1, 2, DTYPE_BF16},
    [34] = {"TQ1_0", 256, 54, DTYPE_UNSUPPORTED},
    [35] = {"TQ2_0", 256, 66, DTYPE_UNSUPPORTED},
    [39] = {"MXFP4", 32, 17, DTYPE_UNSUPPORTED},
    [40] = {"NVFP4", 64, 36, DTYPE_UNSUPPORTED},
    [41] = {"Q1_0", 128, 18, DTYPE_UNSUPPORTED},
};

/* ---- bytes ---- */

struct reader {
    const unsigned char *data;
    size_t size, pos; /* pos <= size */
    const char *path;
    struct error *err;
};

static size_t left(const struct reader *r) {
    return r->size - r->pos;
}

static int read_uint(struct reader *r, size_t bytes, const char *what, uint64_t *out) {
    if (left(r) < bytes) {
        return model_file_fail(r->path, r->pos, r->err, "the file ends inside %s", what);
    }
    *out = load_le(r->data + r->pos, bytes);
    r->pos += bytes;
    return 0;
}

static int read_u32(struct reader *r, const char *what, uint32_t *out) {
    uint64_t v = 0;
    if (read_uint(r, 4, what, &v) < 0) {
        return -1;
    }
    *out = (uint32_t)v;
    return 0;
}

static int read_string(struct reader *r, const char *what, struct meta_string *out) {
    size_t start = r->pos;
    uint64_t len = 0;
    if (read_uint(r, 8, what, &len) < 0) {
        return -1;
    }
    if (len > left(r)) {
        return model_file_fail(r->path, start, r->err, "%s claims %llu bytes, %zu are left in the file", what,
                               (unsigned long long)len, left(r));
    }
    *out = (struct meta_string){(const char *)r->data + r->pos, (size_t)len};
    r->pos += (size_t)len;
    return 0;
}

/* ---- metadata ---- */

static int read_string_array(struct reader *r, struct metadata *meta, struct meta *m) {
    if (m->count > GGUF_MAX_STRINGS - meta->n_strings) {
        return model_file_fail(r->path, m->offset, r->err, "more than %d strings in arrays", GGUF_MAX_STRINGS);
    }
    meta->n_strings += m->count;
    m->strings = calloc(m->count ? m->count : 1, sizeof *m->strings);
    if (!m->strings) {
        return error_memory(r->err);
    }
    for (size_t i = 0; i < m->count; i++) {
        if (read_string(r, "a string of an array", &m->strings[i]) < 0) {
            return -1;
        }
    }
    return 0;
}

static int check_bools(struct reader *r, const unsigned char *p, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (p[i] > 1) {
            return model_file_fail(r->path, (size_t)(p - r->data) + i, r->err, "a bool is neither 0 nor 1");
        }
    }
    return 0;
}

/* m->count scalars of type t. */
static int read_scalars(struct reader *r, struct meta *m, enum meta_type t) {
    size_t bytes;
    if (!checked_mul(m->count, meta_type_size(t), &bytes) || bytes > left(r)) {
        return model_file_fail(r->path, m->offset, r->err, "%zu values of type %s, %zu bytes are left in the file",
                               m->count, meta_type_name(t), left(r));
    }
    m->value = r->data + r->pos;
    r->pos += bytes;
    return t == META_BOOL ? check_bools(r, m->value, m->count) : 0;
}

static int read_array(struct reader *r, struct metadata *meta, struct meta *m) {
    uint32_t type = 0;
    uint64_t count = 0;
    if (read_u32(r, "an array's type", &type) < 0 || read_uint(r, 8, "an array's length", &count) < 0) {
        return -1;
    }
    if (type == META_ARRAY) {
        return model_file_fail(r->path, m->offset, r->err, "an array of arrays is not supported");
    }
    size_t least = type == META_STRING ? 8 : meta_type_size((enum meta_type)type);
    if (least == 0) {
        return model_file_fail(r->path, m->offset, r->err, "an array of unknown type %u", type);
    }
    if (count > left(r) / least) {
        return model_file_fail(r->path, m->offset, r->err,
                               "an array claims %llu elements, %zu bytes are left in the file",
                               (unsigned long long)count, left(r));
    }
    m->element = (enum meta_type)type;
    m->count = (size_t)count;
    return type == META_STRING ? read_string_array(r, meta, m) : read_scalars(r, m, m->element);
}

static int read_value(struct reader *r, struct metadata *meta, struct meta *m) {
    uint32_t type = 0;
    size_t start = r->pos;
    if (read_u32(r, "a value's type", &type) < 0) {
        return -1;
    }
    m->type = (enum meta_type)type;
    m->count = 1;
    m->offset = r->pos;
    if (type == META_STRING) {
        return read_string(r, "a string", &m->string);
    }
    if (type == META_ARRAY) {
        return read_array(r, meta, m);
    }
    if (meta_type_size(m->type) == 0) {
        return model_file_fail(r->path, start, r->err, "unknown metadata type %u", type);
    }
    return read_scalars(r, m, m->type);
}

static int read_key(struct reader *r, struct metadata *meta) {
    if (meta->n == meta->cap) {
        size_t cap = meta->cap ? meta->cap * 2 : 32;
        struct meta *items = realloc(meta->items, cap * sizeof *items); /* cap <= 2 * GGUF_MAX_KEYS */
        if (!items) {
            return error_memory(r->err);
        }
        meta->items = items;
        meta->cap = cap;
    }
    size_t start = r->pos;
    struct meta *m = &meta->items[meta->n];
    *m = (struct meta){0};
    if (read_string(r, "a metadata key", &m->key) < 0) {
        return -1;
    }
    if (m->key.len == 0 || m->key.len > GGUF_MAX_KEY_LEN) {
        return model_file_fail(r->path, start, r->err, "a metadata key of %zu bytes; 1 to %d are possible", m->key.len,
                               GGUF_MAX_KEY_LEN);
    }
    for (size_t i = 0; i < m->key.len; i++) {
        if ((unsigned char)m->key.data[i] < 0x20 || m->key.data[i] == 0x7f) {
            return model_file_fail(r->path, start, r->err, "a metadata key has a control character");
        }
    }
    if (!utf8_is_valid(m->key.data, m->key.len)) {
        return model_file_fail(r->path, start, r->err, "a metadata key is not valid UTF-8");
    }
    meta->n++; /* from here on metadata_free knows it */
    return read_value(r, meta, m);
}

static int index_keys(struct reader *r, struct metadata *meta) {
    meta->index.slots = calloc(meta->n ? meta->n : 1, sizeof *meta->index.slots);
    if (!meta->index.slots) {
        return error_memory(r->err);
    }
    meta->index.n = meta->n;
    for (size_t i = 0; i < meta->n; i++) {
        meta->index.slots[i] = (struct name_slot){meta->items[i].key.data, meta->items[i].key.len, i};
    }
    name_index_sort(&meta->index);
    const struct name_slot *twice = name_index_duplicate(&meta->index);
    if (twice) {
        size_t offset = (size_t)((const unsigned char *)twice->name - r->data) - 8;
        return model_file_fail(r->path, offset, r->err, "a metadata key appears twice");
    }
    return 0;
}

/* ---- tensors ---- */

static int read_dims(struct reader *r, struct tensor *t) {
    uint32_t n = 0;
    size_t start = r->pos;
    if (read_u32(r, "a tensor's dimensions", &n) < 0) {
        return -1;
    }
    if (n < 1 || n > GGUF_MAX_DIMS) {
        return model_file_fail(r->path, start, r->err, "a tensor of %u dimensions; 1 to %d are possible", n,
                               GGUF_MAX_DIMS);
    }
    t->n_dims = n;
    for (size_t i = 0; i < n; i++) {
        uint64_t d = 0;
        if (read_uint(r, 8, "a tensor's dimensions", &d) < 0) {
            return -1;
        }
        if (d < 1 || d > MODEL_MAX_TENSOR_BYTES) {
            return model_file_fail(r->path, r->pos - 8, r->err, "a tensor's dimension is %llu", (unsigned long long)d);
        }
        t->shape[n - 1 - i] = (size_t)d; /* the file has the innermost first */
    }
    return 0;
}

static int read_type(struct reader *r, struct tensor *t, const struct gguf_type **out) {
    uint32_t type = 0;
    if (read_u32(r, "a tensor's type", &type) < 0) {
        return -1;
    }
    if (type >= sizeof gguf_types / sizeof gguf_types[0] || !gguf_types[type].name) {
        return model_file_fail(r->path, r->pos - 4, r->err, "unknown tensor type %u", type);
    }
    *out = &gguf_types[type];
    t->dtype = (*out)->dtype;
    t->type = (*out)->name;
    return 0;
}

/* The offset into the data section is kept as such until the section's start is known. */
static int read_tensor(struct reader *r, struct model_file *f, size_t alignment) {
    size_t start = r->pos;
    struct meta_string name;
    struct tensor t = {0};
    const struct gguf_type *type = NULL;
    uint64_t offset = 0;
    if (read_string(r, "a tensor's name", &name) < 0 || read_dims(r, &t) < 0 || read_type(r, &t, &type) < 0 ||
        read_uint(r, 8, "a tensor's offset", &offset) < 0) {
        return -1;
    }
    if (!tensor_bytes(&t, type->block, type->bytes, &t.size)) {
        return model_file_fail(r->path, start, r->err,
                               "a tensor's shape does not go with its type %s (blocks of %zu) or is too large", t.type,
                               type->block);
    }
    if (offset % alignment != 0) {
        return model_file_fail(r->path, r->pos - 8, r->err, "a tensor's data at %llu is not aligned to %zu",
                               (unsigned long long)offset, alignment);
    }
    if (offset > r->size) {
        return model_file_fail(r->path, r->pos - 8, r->err, "a tensor's data begins behind the end of the file");
    }
    return model_file_add_tensor(f, start, name.data, name.len, &t, (size_t)offset, r->err);
}

static int read_alignment(struct reader *r, const struct metadata *meta, size_t *out) {
    const struct meta *m = metadata_find(meta, "general.alignment");
    int64_t v = DEFAULT_ALIGNMENT;
    if (m &&
        (m->type == META_ARRAY || !meta_element_int(m, 0, &v) || v < 1 || v > GGUF_MAX_ALIGNMENT || (v & (v - 1)))) {
        return model_file_fail(r->path, m->offset, r->err, "general.alignment must be a power of two up to %d",
                               GGUF_MAX_ALIGNMENT);
    }
    *out = (size_t)v;
    return 0;
}

static int read_tensors(struct reader *r, struct model_file *f, size_t n, size_t alignment) {
    size_t first = f->n_tensors;
    for (size_t i = 0; i < n; i++) {
        if (read_tensor(r, f, alignment) < 0) {
            return -1;
        }
    }
    /* pos <= size <= SSIZE_MAX, alignment <= 2^20, each offset <= size: no sum wraps */
    size_t data_start = (r->pos + alignment - 1) / alignment * alignment;
    for (size_t i = first; i < f->n_tensors; i++) {
        f->origins[i].offset += data_start;
    }
    return model_file_place_tensors(f, first, r->err);
}

static int read_header(struct reader *r, uint32_t *version, size_t *n_tensors, size_t *n_keys) {
    uint64_t tensors = 0, keys = 0;
    if (r->size < 4 || memcmp(r->data, "GGUF", 4) != 0) {
        return model_file_fail(r->path, 0, r->err, "not a GGUF file");
    }
    r->pos = 4;
    if (read_u32(r, "the header", version) < 0) {
        return -1;
    }
    if (*version == 0x02000000 || *version == 0x03000000) {
        return model_file_fail(r->path, 4, r->err, "a big-endian GGUF file is not supported");
    }
    if (*version != 2 && *version != 3) {
        return model_file_fail(r->path, 4, r->err, "GGUF version %u is not supported, only 2 and 3", *version);
    }
    if (read_uint(r, 8, "the header", &tensors) < 0 || read_uint(r, 8, "the header", &keys) < 0) {
        return -1;
    }
    if (tensors > MODEL_MAX_TENSORS || tensors > left(r) / MIN_TENSOR_BYTES) {
        return model_file_fail(r->path, 8, r->err, "the header claims %llu tensors, more than the file can hold",
                               (unsigned long long)tensors);
    }
    if (keys > GGUF_MAX_KEYS || keys > left(r) / MIN_KEY_BYTES) {
        return model_file_fail(r->path, 16, r->err, "the header claims %llu metadata keys, more than the file can hold",
                               (unsigned long long)keys);
    }
    *n_tensors = (size_t)tensors;
    *n_keys = (size_t)keys;
    return 0;
}

int gguf_read_part(struct model_file *f, struct metadata *meta, struct error *err) {
    const struct part *p = &f->parts[f->n_parts - 1];
    struct reader r = {.data = p->map.data, .size = p->map.size, .path = p->path, .err = err};
    size_t n_tensors = 0, n_keys = 0, alignment = 0;
    if (read_header(&r, &f->version, &n_tensors, &n_keys) < 0) {
        return -1;
    }
    for (size_t i = 0; i < n_keys; i++) {
        if (read_key(&r, meta) < 0) {
            return -1;
        }
    }
    if (index_keys(&r, meta) < 0 || read_alignment(&r, meta, &alignment) < 0) {
        return -1;
    }
    return read_tensors(&r, f, n_tensors, alignment);
}

/* ---- split files ---- */

/* Does the path end in -NNNNN-of-NNNNN.gguf? *prefix is the length of what stands before. */
static bool split_name(const char *path, size_t *prefix, unsigned *number, unsigned *count) {
    enum { SUFFIX = 20 }; /* "-00001-of-00003.gguf" */
    size_t len = strlen(path);
    if (len <= SUFFIX) {
        return false;
    }
    const char *s = path + len - SUFFIX;
    for (size_t i = 0; i < SUFFIX; i++) {
        char pattern = "-#####-of-#####.gguf"[i];
        if (pattern == '#' ? s[i] < '0' || s[i] > '9' : s[i] != pattern) {
            return false;
        }
    }
    *prefix = len - SUFFIX;
    *number = (unsigned)strtoul(s + 1, NULL, 10);
    *count = (unsigned)strtoul(s + 10, NULL, 10);
    return true;
}

/* What the keys of a part say: must be part `number` (from 0) of `count`. */
static int check_split(const struct part *p, const struct metadata *meta, unsigned number, unsigned count,
                       struct error *err) {
    int64_t split_no = 0, split_count = 1;
    metadata_get_int(meta, "split.no", &split_no);
    metadata_get_int(meta, "split.count", &split_count);
    if (split_count == 0) {
        split_count = 1;
    }
    if (split_count != count || split_no != number) {
        return model_file_fail_path(p->path, err, "the file calls itself part %lld of %lld, its name part %u of %u",
                                    (long long)split_no + (split_no < INT64_MAX), (long long)split_count, number + 1,
                                    count);
    }
    return 0;
}

static int open_single(struct model_file *f, const char *path, struct error *err) {
    struct part *p;
    if (model_file_add_part(f, path, &p, err) < 0 || gguf_read_part(f, &f->meta, err) < 0) {
        return -1;
    }
    int64_t count = 1;
    if (metadata_get_int(&f->meta, "split.count", &count) && count > 1) {
        return model_file_fail_path(path, err, "one of %lld parts, but its name does not end in -00001-of-%05lld.gguf",
                                    (long long)count, (long long)count);
    }
    return 0;
}

static int open_part(struct model_file *f, const char *prefix, size_t prefix_len, unsigned number, unsigned count,
                     struct error *err) {
    char path[MODEL_MAX_PATH + 32];
    snprintf(path, sizeof path, "%.*s-%05u-of-%05u.gguf", (int)prefix_len, prefix, number + 1, count);
    struct part *p;
    struct metadata other = {0}, *meta = number == 0 ? &f->meta : &other;
    if (model_file_add_part(f, path, &p, err) < 0) {
        return -1;
    }
    int rc = gguf_read_part(f, meta, err);
    if (rc == 0) {
        rc = check_split(p, meta, number, count, err);
    }
    metadata_free(&other);
    return rc;
}

int gguf_open(struct model_file *f, const char *path, struct error *err) {
    size_t prefix;
    unsigned number, count;
    f->format = MODEL_FORMAT_GGUF;
    if (!split_name(path, &prefix, &number, &count) || count <= 1) {
        return open_single(f, path, err);
    }
    if (count > GGUF_MAX_PARTS || number < 1 || number > count) {
        return model_file_fail_path(path, err, "part %u of %u; up to %d parts are possible", number, count,
                                    GGUF_MAX_PARTS);
    }
    for (unsigned i = 0; i < count; i++) {
        if (open_part(f, path, prefix, i, count, err) < 0) {
            return -1;
        }
    }
    int64_t total;
    if (metadata_get_int(&f->meta, "split.tensors.count", &total) &&
        (total < 0 || (uint64_t)total != (uint64_t)f->n_tensors)) {
        return model_file_fail_path(f->parts[0].path, err, "split.tensors.count is %lld, the parts have %zu tensors",
                                    (long long)total, f->n_tensors);
    }
    return 0;
}
