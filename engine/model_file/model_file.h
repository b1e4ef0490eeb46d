/*
 * Model files behind one interface: GGUF v2/v3 (single and split) and safetensors (single, and sharded by
 * model.safetensors.index.json, with config.json beside it). Memory-mapped read-only; every count, length,
 * offset and product is checked against the file before use, so a crafted file costs one sentence:
 * "FILE: offset N: reason" with ERROR_MODEL. Opened objects are immutable: any thread may read.
 */
#ifndef INFERD_MODEL_FILE_H
#define INFERD_MODEL_FILE_H

#include <inferd/backend.h>
#include <inferd/buf.h>
#include <inferd/error.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct model_file;
struct cJSON;

#define TENSOR_MAX_DIMS 6
#define TENSOR_NAME_MAX 128 /* bytes with the NUL */

/* A tensor of a type that the formats know and inferd does not compute with (IQ2_XS, MXFP4, F8_E4M3, I64 ...): it is
 * listed, and a model that needs it is refused with tensor.type. dtype_row_bytes is false for it. */
#define DTYPE_UNSUPPORTED DTYPE_COUNT

struct tensor {
    const char *name;              /* NUL-terminated, printable UTF-8, owned by the file */
    enum dtype dtype;              /* DTYPE_UNSUPPORTED: look at `type` */
    const char *type;              /* as the format calls it: "Q4_K", "BF16", "IQ2_XS"; static */
    size_t n_dims;                 /* 1..TENSOR_MAX_DIMS (a scalar has shape [1]) */
    size_t shape[TENSOR_MAX_DIMS]; /* row-major, outermost first (GGUF's order is reversed on reading): a linear
                                      layer is [out_features][in_features] in both formats */
    const void *data;              /* in the mapping; alignment is the file's, so maybe none */
    size_t size;                   /* bytes, checked: the product of the shape in this type */
    uint32_t part;                 /* of which file, 0 unless split or sharded */
};

enum model_format { MODEL_FORMAT_GGUF, MODEL_FORMAT_SAFETENSORS };

/* `path`: a .gguf file (any part of a split opens all), a .safetensors file, or a folder. */
int model_file_open(const char *path, struct model_file **out, struct error *err);
void model_file_close(struct model_file *f);

enum model_format model_file_format(const struct model_file *f);
const char *model_file_path(const struct model_file *f);
size_t model_file_n_tensors(const struct model_file *f);
const struct tensor *model_file_tensor(const struct model_file *f, size_t i);
/* NULL if none; a binary search (no hash: its worst case is the file's choice). */
const struct tensor *model_file_find(const struct model_file *f, const char *name);

/* config.json of a safetensors model (owned by the file), NULL for a GGUF. */
const struct cJSON *model_file_config(const struct model_file *f);

/* What says how the matrices are quantised (quant/scheme.h), the first of: quantization_config and compression_config in
 * config.json, quantize_config.json, hf_quant_config.json. NULL if nothing does. Owned by the file. */
const struct cJSON *model_file_quantization(const struct model_file *f);

/* Give pages of the mapping back that were only read to be converted (size bytes at data, in a tensor): they come back
 * from the file when looked at again. */
void model_file_release(const struct model_file *f, const void *data, size_t size);

/* GGUF metadata. Getters return false when the key is absent or of another type (integers of any width and
 * sign convert when they fit; floats of both widths convert, and integers where a double is asked for). Strings are
 * borrowed, any bytes, not NUL-terminated. Of split files the first part's metadata count. The values of meta_type are
 * the format's own. */
enum meta_type {
    META_UINT8,
    META_INT8,
    META_UINT16,
    META_INT16,
    META_UINT32,
    META_INT32,
    META_FLOAT32,
    META_BOOL,
    META_STRING,
    META_ARRAY,
    META_UINT64,
    META_INT64,
    META_FLOAT64,
};
struct meta_string {
    const char *data;
    size_t len;
};
bool model_file_has(const struct model_file *f, const char *key);
bool model_file_get_int(const struct model_file *f, const char *key, int64_t *out);
bool model_file_get_double(const struct model_file *f, const char *key, double *out);
bool model_file_get_bool(const struct model_file *f, const char *key, bool *out);
bool model_file_get_string(const struct model_file *f, const char *key, struct meta_string *out);

/* Arrays: count and element type; then elements. String arrays are indexed at opening, so element i is O(1). */
bool model_file_get_array(const struct model_file *f, const char *key, enum meta_type *type, size_t *n);
bool model_file_array_string(const struct model_file *f, const char *key, size_t i, struct meta_string *out);
bool model_file_array_int(const struct model_file *f, const char *key, size_t i, int64_t *out);
bool model_file_array_double(const struct model_file *f, const char *key, size_t i, double *out);

/* What `inferd inspect` prints: metadata (long arrays shortened) and tensors, as text or as JSON. `quantization`: a line
 * about how the matrices are quantised; NULL: they are not. */
int model_file_describe(const struct model_file *f, bool json, const char *quantization, struct buf *out,
                        struct error *err);

#endif
