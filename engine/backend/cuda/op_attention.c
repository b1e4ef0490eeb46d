/* Positions, KV memory and attention: checks, then the launchers of launch.h. */
#include "cuda.h"

#include <string.h>

int cuda_op_rope(struct backend *b, void *x, size_t ldx, size_t heads, size_t head_dim, const int32_t *positions,
                 size_t rows, const struct rope_table *table, struct error *err) {
    TRY(cuda_alive(b, err));
    return cuda_check(b, cuda_rope(x, ldx, heads, head_dim, positions, rows, table, b->stream), "rotating rows", err);
}

int cuda_op_kv_store(struct backend *b, struct kv_layer *kv, const void *k, size_t ldk, const void *v, size_t ldv,
                     const int32_t *slot_mapping, size_t rows, struct error *err) {
    TRY(cuda_alive(b, err));
    return cuda_check(b, cuda_kv_store(kv, k, ldk, v, ldv, slot_mapping, rows, b->stream), "storing keys and values", err);
}

int cuda_op_rope_kv_store(struct backend *b, void *qkv, size_t ld, size_t n_heads, size_t n_kv_heads, size_t head_dim,
                          const int32_t *positions, const int32_t *slot_mapping, size_t rows,
                          const struct rope_table *table, struct kv_layer *kv, struct error *err) {
    TRY(cuda_alive(b, err));
    return cuda_check(b, cuda_rope_kv_store(qkv, ld, n_heads, n_kv_heads, head_dim, positions, slot_mapping, rows, table,
                                            kv, b->stream),
                      "storing keys and values", err);
}

/* ---- copies of blocks ---------------------------------------------------------------------------------------- */

/* Every layer of a step copies the same blocks: their indices are uploaded once. n <= CUDA_COPY_PAIRS. */
static int place_pairs(struct backend *b, const int32_t *from, const int32_t *to, size_t n, struct error *err) {
    size_t bytes = n * sizeof(int32_t), at = CUDA_COPY_PAIRS * sizeof(int32_t);
    if (n == b->n_copied && memcmp(from, b->copied_from, bytes) == 0 && memcmp(to, b->copied_to, bytes) == 0) {
        return 0;
    }
    void *host;
    b->n_copied = 0;
    TRY(cuda_slot(b, &b->copy_slots, &host, err));
    memcpy(host, from, bytes);
    memcpy((char *)host + at, to, bytes);
    TRY(cuda_check(b, cudaMemcpyAsync(b->copy_pairs.data, host, at + bytes, cudaMemcpyHostToDevice, b->stream),
                   "a copy to the device", err));
    TRY(cuda_slot_sent(b, &b->copy_slots, err));
    memcpy(b->copied_from, from, bytes);
    memcpy(b->copied_to, to, bytes);
    b->n_copied = n;
    return 0;
}

/* How many copies from the first on may run at once: none touches a block that an earlier one of them writes, and none
 * writes a block that an earlier one reads. */
static size_t independent(const int32_t *from, const int32_t *to, size_t n) {
    for (size_t i = 1; i < n; i++) {
        for (size_t j = 0; j < i; j++) {
            if (from[i] == to[j] || to[i] == to[j] || to[i] == from[j]) {
                return i;
            }
        }
    }
    return n;
}

int cuda_op_kv_copy(struct backend *b, struct kv_layer *kv, const int32_t *from, const int32_t *to, size_t n,
                    struct error *err) {
    TRY(cuda_alive(b, err));
    for (size_t done = 0; done < n;) {
        size_t part = n - done < CUDA_COPY_PAIRS ? n - done : CUDA_COPY_PAIRS;
        TRY(place_pairs(b, from + done, to + done, part, err));
        const int32_t *at = b->copy_pairs.data;
        for (size_t end = done + part; done < end;) {
            size_t run = independent(from + done, to + done, end - done);
            TRY(cuda_check(b, cuda_kv_copy(kv, at, at + CUDA_COPY_PAIRS, run, b->stream), "copying KV blocks", err));
            at += run;
            done += run;
        }
    }
    return 0;
}

/* ---- attention ----------------------------------------------------------------------------------------------- */

int cuda_op_attention(struct backend *b, const struct attention_args *args, struct error *err) {
    TRY(cuda_alive(b, err));
    if (!b->fixed && !b->capturing) { /* any size does, and a graph may not move it */
        size_t bytes = cuda_attention_workspace(&b->device, args->n_sequences, args->n_heads, args->n_kv_heads, args->head_dim,
                                                args->max_context);
        TRY(cuda_grow(b, &b->scratch, bytes, "the workspace of attention", err));
    }
    return cuda_check(b, cuda_attention(&b->device, args, b->scratch.data, b->scratch.bytes, b->stream), "attention", err);
}
