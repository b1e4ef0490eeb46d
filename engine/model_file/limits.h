/* What a model file may at most claim. Every count is besides held to what the bytes left in the file can hold. */
#ifndef INFERD_MODEL_FILE_LIMITS_H
#define INFERD_MODEL_FILE_LIMITS_H

#include <stddef.h>

enum model_file_limits {
    GGUF_MAX_PARTS = 1024,             /* files of a split */
    GGUF_MAX_KEYS = 65536,             /* metadata keys of a file */
    GGUF_MAX_KEY_LEN = 65535,          /* bytes of a key (the format's own bound) */
    GGUF_MAX_STRINGS = 1 << 24,        /* elements of all string arrays of a file: 256 MiB of index */
    GGUF_MAX_DIMS = 4,                 /* of a tensor; at least 1 */
    GGUF_MAX_ALIGNMENT = 1 << 20,      /* general.alignment: a power of two from 1 */
    MODEL_MAX_TENSORS = 1 << 20,       /* tensors of a model, all files together */
    SAFETENSORS_MAX_HEADER = 32 << 20, /* bytes of a JSON header */
    SAFETENSORS_MAX_SHARDS = 4096,
    MODEL_MAX_INDEX_JSON = 64 << 20,  /* bytes of model.safetensors.index.json */
    MODEL_MAX_CONFIG_JSON = 16 << 20, /* bytes of config.json */
    MODEL_MAX_PATH = 4096,
};

/* Bytes in one tensor, and so the most that any product of its shape may come to. */
#define MODEL_MAX_TENSOR_BYTES ((size_t)1 << 48)

#endif
