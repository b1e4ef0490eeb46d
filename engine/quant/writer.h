/*
 * A checkpoint of safetensors files that is laid out before a byte of its tensors is known: names, types and shapes first,
 * then files with their headers, then the tensors' bytes in any order. So the work can stop anywhere and go on later in the
 * same files. One thread.
 */
#ifndef INFERD_WRITER_H
#define INFERD_WRITER_H

#include "model_file/model_file.h"

#include <stdint.h>

struct writer_tensor {
    char name[TENSOR_NAME_MAX];
    enum dtype dtype; /* F32, F16, BF16 or I8 */
    size_t n_dims, shape[2];
    size_t bytes;
    size_t shard;
    uint64_t offset; /* in its file, behind the header */
};

struct writer {
    char *folder;                  /* owned */
    struct writer_tensor *tensors; /* [n], in the order of writer_add; owned */
    size_t n, cap;
    size_t n_shards;
    uint64_t total; /* bytes of all tensors */
    int *fds;       /* [n_shards], -1 not open; owned */
    uint64_t *headers, *data; /* [n_shards] bytes of each file: its header, what follows; owned */
};

/* Add a tensor; shape[1] counts when n_dims is 2. */
int writer_add(struct writer *w, const char *name, enum dtype dtype, size_t n_dims, size_t rows, size_t cols,
               struct error *err);
/* After the last one: tensors go to files of at most `shard_bytes` (a larger tensor has one for itself), in order. */
int writer_lay_out(struct writer *w, uint64_t shard_bytes, struct error *err);

/* Create the files in `folder` with their headers, all their space taken; or open those that a writer of the same layout
 * left there, ERROR_IO if they are not of the right size. */
int writer_create(struct writer *w, const char *folder, struct error *err);
int writer_reopen(struct writer *w, const char *folder, struct error *err);

/* Bytes [at, at + n) of tensor i. */
int writer_put(struct writer *w, size_t i, size_t at, const void *bytes, size_t n, struct error *err);
int writer_get(const struct writer *w, size_t i, size_t at, void *bytes, size_t n, struct error *err);
/* All that was put is on the disk when this returns. */
int writer_sync(struct writer *w, struct error *err);
/* At the end: model.safetensors.index.json, if there are several files. */
int writer_put_index(const struct writer *w, struct error *err);
void writer_close(struct writer *w); /* a zeroed one is fine */

/* A whole small file folder/name, synced. */
int writer_put_file(const char *folder, const char *name, const char *bytes, size_t n, struct error *err);

#endif
