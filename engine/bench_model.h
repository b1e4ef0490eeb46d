/* Models of random weights in memory, for measurements: the shape is real, what they say is noise. */
#ifndef INFERD_BENCH_MODEL_H
#define INFERD_BENCH_MODEL_H

#include <inferd/backend.h>

struct bench_shape {
    const char *name;
    size_t n_layers, n_embd, n_ff, n_heads, n_kv_heads, head_dim, vocab_size;
    bool tied; /* the head is the embedding */
};
/* "NAME" (BF16) or "NAME:TYPE". ERROR_INVALID, param "shape", for another. */
int bench_shape_find(const char *name, const struct bench_shape **out, enum dtype *dtype, struct error *err);

/* Bytes of a layer's matrices, and of embedding and head. */
bool bench_shape_bytes(const struct bench_shape *s, enum dtype dtype, size_t *layer, size_t *rest);

/*
 * A GGUF of the shape's first n_layers in anonymous memory. path (BENCH_MODEL_PATH bytes) names it within this process for as
 * long as *fd is open; what has mapped it keeps it.
 */
#define BENCH_MODEL_PATH 64
int bench_model_make(const struct bench_shape *s, size_t n_layers, enum dtype dtype, size_t context_length, int *fd,
                     char path[BENCH_MODEL_PATH], struct error *err);

#endif
