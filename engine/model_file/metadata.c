/* GGUF metadata once it is read: lookup and conversion. */
#include "model_file/internal.h"

#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    size_t size; /* bytes of a scalar */
} types[] = {
    [META_UINT8] = {"uint8", 1},     [META_INT8] = {"int8", 1},     [META_UINT16] = {"uint16", 2},
    [META_INT16] = {"int16", 2},     [META_UINT32] = {"uint32", 4}, [META_INT32] = {"int32", 4},
    [META_FLOAT32] = {"float32", 4}, [META_BOOL] = {"bool", 1},     [META_STRING] = {"string", 0},
    [META_ARRAY] = {"array", 0},     [META_UINT64] = {"uint64", 8}, [META_INT64] = {"int64", 8},
    [META_FLOAT64] = {"float64", 8},
};

size_t meta_type_size(enum meta_type t) {
    return (size_t)t < sizeof types / sizeof types[0] ? types[t].size : 0;
}

const char *meta_type_name(enum meta_type t) {
    return (size_t)t < sizeof types / sizeof types[0] ? types[t].name : "unknown";
}

bool meta_is_int(enum meta_type t) {
    return t <= META_INT32 || t == META_UINT64 || t == META_INT64;
}

static enum meta_type element_type(const struct meta *m) {
    return m->type == META_ARRAY ? m->element : m->type;
}

bool meta_element_uint64(const struct meta *m, size_t i, uint64_t *out) {
    enum meta_type t = element_type(m);
    if (i >= m->count || !(t == META_UINT8 || t == META_UINT16 || t == META_UINT32 || t == META_UINT64)) {
        return false;
    }
    size_t size = meta_type_size(t);
    *out = load_le(m->value + i * size, size);
    return true;
}

bool meta_element_int(const struct meta *m, size_t i, int64_t *out) {
    uint64_t v;
    if (meta_element_uint64(m, i, &v)) {
        if (v > INT64_MAX) {
            return false;
        }
        *out = (int64_t)v;
        return true;
    }
    enum meta_type t = element_type(m);
    if (i >= m->count || !meta_is_int(t)) {
        return false;
    }
    size_t size = meta_type_size(t);
    v = load_le(m->value + i * size, size);
    unsigned shift = 64 - 8 * (unsigned)size; /* the sign bit to the top and back */
    *out = (int64_t)(v << shift) >> shift;
    return true;
}

bool meta_element_double(const struct meta *m, size_t i, double *out) {
    if (i >= m->count) {
        return false;
    }
    enum meta_type t = element_type(m);
    if (t == META_FLOAT32) {
        uint32_t bits = (uint32_t)load_le(m->value + 4 * i, 4);
        float v;
        memcpy(&v, &bits, sizeof v);
        *out = (double)v;
        return true;
    }
    if (t == META_FLOAT64) {
        uint64_t bits = load_le(m->value + 8 * i, 8);
        memcpy(out, &bits, sizeof *out);
        return true;
    }
    uint64_t u;
    int64_t s;
    if (meta_element_uint64(m, i, &u)) {
        *out = (double)u;
        return true;
    }
    if (meta_element_int(m, i, &s)) {
        *out = (double)s;
        return true;
    }
    return false;
}

void metadata_free(struct metadata *m) {
    for (size_t i = 0; i < m->n; i++) {
        free(m->items[i].strings);
    }
    free(m->items);
    free(m->index.slots);
    *m = (struct metadata){0};
}

const struct meta *metadata_find(const struct metadata *m, const char *key) {
    size_t i;
    return name_index_find(&m->index, key, strlen(key), &i) ? &m->items[i] : NULL;
}

bool metadata_get_int(const struct metadata *m, const char *key, int64_t *out) {
    const struct meta *item = metadata_find(m, key);
    return item && item->type != META_ARRAY && meta_element_int(item, 0, out);
}

/* ---- model_file.h ---- */

bool model_file_has(const struct model_file *f, const char *key) {
    return metadata_find(&f->meta, key) != NULL;
}

bool model_file_get_int(const struct model_file *f, const char *key, int64_t *out) {
    return metadata_get_int(&f->meta, key, out);
}

bool model_file_get_double(const struct model_file *f, const char *key, double *out) {
    const struct meta *m = metadata_find(&f->meta, key);
    return m && m->type != META_ARRAY && meta_element_double(m, 0, out);
}

bool model_file_get_bool(const struct model_file *f, const char *key, bool *out) {
    const struct meta *m = metadata_find(&f->meta, key);
    if (!m || m->type != META_BOOL) {
        return false;
    }
    *out = *m->value != 0;
    return true;
}

bool model_file_get_string(const struct model_file *f, const char *key, struct meta_string *out) {
    const struct meta *m = metadata_find(&f->meta, key);
    if (!m || m->type != META_STRING) {
        return false;
    }
    *out = m->string;
    return true;
}

static const struct meta *find_array(const struct model_file *f, const char *key) {
    const struct meta *m = metadata_find(&f->meta, key);
    return m && m->type == META_ARRAY ? m : NULL;
}

bool model_file_get_array(const struct model_file *f, const char *key, enum meta_type *type, size_t *n) {
    const struct meta *m = find_array(f, key);
    if (!m) {
        return false;
    }
    *type = m->element;
    *n = m->count;
    return true;
}

bool model_file_array_string(const struct model_file *f, const char *key, size_t i, struct meta_string *out) {
    const struct meta *m = find_array(f, key);
    if (!m || m->element != META_STRING || i >= m->count) {
        return false;
    }
    *out = m->strings[i];
    return true;
}

bool model_file_array_int(const struct model_file *f, const char *key, size_t i, int64_t *out) {
    const struct meta *m = find_array(f, key);
    return m && meta_element_int(m, i, out);
}

bool model_file_array_double(const struct model_file *f, const char *key, size_t i, double *out) {
    const struct meta *m = find_array(f, key);
    return m && meta_element_double(m, i, out);
}
