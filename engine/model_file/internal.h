/* The opened model as its readers fill it. Only model_file/ includes this. */
#ifndef INFERD_MODEL_FILE_INTERNAL_H
#define INFERD_MODEL_FILE_INTERNAL_H

#include "base/file_map.h"
#include "model_file/limits.h"
#include "model_file/model_file.h"

/* Names sorted by bytes: duplicates are neighbours, a search takes log n steps whatever the names are. */
struct name_slot {
    const char *name;
    size_t len;
    size_t index;
};
struct name_index {
    struct name_slot *slots; /* [n], sorted */
    size_t n;
};
void name_index_sort(struct name_index *x);
/* The slot after an equal one, NULL if all names differ; call after the sort. */
const struct name_slot *name_index_duplicate(const struct name_index *x);
bool name_index_find(const struct name_index *x, const char *name, size_t len, size_t *index);

struct meta {
    struct meta_string key;
    enum meta_type type;
    enum meta_type element;      /* of an array */
    size_t count;                /* elements of an array, else 1 */
    const unsigned char *value;  /* in the mapping: the scalar, or the first element of an array of scalars */
    struct meta_string string;   /* META_STRING */
    struct meta_string *strings; /* [count] of an array of strings; owned */
    size_t offset;               /* of the value in the file, for messages */
};
struct metadata {
    struct meta *items; /* [n], in the file's order */
    size_t n, cap;
    size_t n_strings; /* elements of all string arrays */
    struct name_index index;
};

struct part {
    char *path;
    struct file_map map;
    bool borrowed;            /* the bytes are the caller's, not a mapping */
    struct cJSON *annotation; /* safetensors: its __metadata__ or NULL */
};

struct tensor_origin {
    char *name;    /* what tensor.name points to; owned */
    size_t offset; /* of the data in its part */
};

struct model_file {
    enum model_format format;
    uint32_t version; /* of GGUF */
    char *path;       /* as opened */
    struct part *parts;
    size_t n_parts;

    struct tensor *tensors;        /* [n_tensors] */
    struct tensor_origin *origins; /* [n_tensors] */
    size_t n_tensors, cap_tensors;
    struct name_index tensor_index;

    struct metadata meta; /* GGUF, first part */
    struct cJSON *config;       /* safetensors: config.json */
    struct cJSON *quantization; /* safetensors: quantize_config.json or hf_quant_config.json */
};

/* "PATH: offset N: reason" with ERROR_MODEL; the head of a long path is cut. Returns -1. */
int model_file_fail(const char *path, size_t offset, struct error *err, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* The same without an offset. */
int model_file_fail_path(const char *path, struct error *err, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* A new part at the end, mapped. The pointer holds until the next one. */
int model_file_add_part(struct model_file *f, const char *path, struct part **out, struct error *err);

/*
 * A tensor of the last part at the end of the list: t without its name and data, which lies at `data_offset`
 * of the part (checked later). The name is checked (length, UTF-8, no control characters) and copied; `offset` is
 * where the file speaks of it, for messages.
 */
int model_file_add_tensor(struct model_file *f, size_t offset, const char *name, size_t len, const struct tensor *t,
                          size_t data_offset, struct error *err);
/* Tensors [first, n) of the last part: refuse what passes the end of the file or overlaps, then set their data. */
int model_file_place_tensors(struct model_file *f, size_t first, struct error *err);
/* When all are there: sort the names, refuse duplicates. */
int model_file_index_tensors(struct model_file *f, struct error *err);

/* The product of a shape and its bytes (a row is shape[n - 1] elements in blocks): false if it cannot be. */
bool tensor_bytes(const struct tensor *t, size_t block, size_t block_bytes, size_t *bytes);

/* The readers. Each fills a zeroed *f and leaves freeing to the caller. */
int gguf_open(struct model_file *f, const char *path, struct error *err);
int gguf_read_part(struct model_file *f, struct metadata *meta, struct error *err); /* the last part */
int safetensors_open_file(struct model_file *f, const char *path, struct error *err);
int safetensors_open_index(struct model_file *f, const char *index_path, struct error *err);
int safetensors_open_folder(struct model_file *f, const char *path, struct error *err);
int safetensors_read_part(struct model_file *f, struct error *err); /* the last part */

/* A whole model of one part from memory that outlives it: for tests and fuzzing. */
int model_file_open_memory(enum model_format format, const void *data, size_t size, struct model_file **out,
                           struct error *err);

/* ---- GGUF metadata ---- */

void metadata_free(struct metadata *m);
const struct meta *metadata_find(const struct metadata *m, const char *key); /* NULL if none */
bool metadata_get_int(const struct metadata *m, const char *key, int64_t *out);
size_t meta_type_size(enum meta_type t); /* bytes of a scalar, 0 for strings, arrays and unknown numbers */
const char *meta_type_name(enum meta_type t);
bool meta_is_int(enum meta_type t);
/* Element i of a scalar (i = 0) or of an array of scalars. */
bool meta_element_uint64(const struct meta *m, size_t i, uint64_t *out); /* of the unsigned types */
bool meta_element_int(const struct meta *m, size_t i, int64_t *out);
bool meta_element_double(const struct meta *m, size_t i, double *out);

static inline uint64_t load_le(const unsigned char *p, size_t bytes) {
    uint64_t v = 0;
    for (size_t i = 0; i < bytes; i++) {
        v |= (uint64_t)p[i] << (8 * i);
    }
    return v;
}

#endif
