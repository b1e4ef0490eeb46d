/*
 * Sums through peer memory, for what is small: each rank lays its part into memory that the others read, tells them by flags, and
 * sums what all have laid down, in the order of the ranks, in F32, rounded once: the same bits on every rank, and the same in one
 * shot (each rank sums everything) and in two (each sums a share, and the sums go round). One launch a call, nothing for the host to
 * do, so graphs replay it. (NVIDIA's and vLLM's all-reduce kernels have the same two shapes.)
 */
#ifndef INFERD_CUDA_PEER_H
#define INFERD_CUDA_PEER_H

#include <inferd/backend.h>
#include <stddef.h>
#include <stdint.h>

#define PEER_MOST 8                     /* ranks */
#define PEER_BLOCKS 32                  /* of each launch, always: so each block meets the others' in every call */
#define PEER_BYTES ((size_t)1 << 20)    /* of a call */
#define PEER_ONE_SHOT ((size_t)1 << 18) /* up to here; half of it of more than 4 ranks */

/*
 * A rank's memory: flags that the others write, the number of its calls, then the data. What is laid down in a call may be read by a
 * rank that is late until this one has met it in the next call; so calls take turns with two places.
 */
#define PEER_ROUNDS 2 /* meetings of a call */
struct peer_memory {
    uint32_t flags[PEER_ROUNDS][PEER_BLOCKS][PEER_MOST];
    uint32_t calls[PEER_BLOCKS];
    uint32_t unused[32];
    unsigned char parts[2][PEER_BYTES], sums[2][PEER_BYTES];
};

/* All ranks' memories, as one of them sees them. By value into kernels. */
struct peer_view {
    struct peer_memory *ranks[PEER_MOST];
    uint32_t rank, size;
    const uint32_t *stop; /* host memory that devices see: 1 = wait for nobody any more */
};

#ifdef __cplusplus
extern "C" {
#endif

/* `key`: what the ranks of a group share (the emulator brings their launches together by it). n elements, bytes <= PEER_BYTES.
 * An int is a cudaError_t, which is not named here. */
int cuda_peer_sum(const struct peer_view *v, const void *key, void *x, enum dtype dtype, size_t n, int two_shots, void *stream);
/* As collective_ops.all_reduce_add_rms_norm; the rows together <= PEER_BYTES. */
int cuda_peer_sum_norm(const struct peer_view *v, const void *key, void *y, size_t ldy, const struct rows_i8 *q, float *x, size_t ldx,
                       const void *residual, size_t ldr, const float *w, size_t rows, size_t dim, float eps, void *stream);
/* The first rank, before any launch. */
void cuda_peer_begin(const void *key);
/* Whatever this rank has under way ends, whoever is missing. */
void cuda_peer_stop(const struct peer_view *v, const void *key, uint32_t *stop);

#ifdef __cplusplus
}
#endif
#endif
