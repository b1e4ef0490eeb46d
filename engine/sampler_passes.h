/*
 * The sampler's walks over the whole vocabulary, compiled for the processor's vector width; the results are the same
 * bits on every processor. Both leave a summary of each SAMPLER_CHUNK ids behind, so that what comes after can pass
 * over the chunks that do not matter.
 */
#ifndef INFERD_SAMPLER_PASSES_H
#define INFERD_SAMPLER_PASSES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SAMPLER_CHUNK 64

static inline size_t sampler_n_chunks(size_t n) {
    return (n + SAMPLER_CHUNK - 1) / SAMPLER_CHUNK;
}

/* The largest key (sampler_key) of z[0..n) and of each chunk; *finite: no z is NaN or infinite. */
uint32_t sampler_max(const float *z, size_t n, uint32_t *chunk_max, bool *finite);

/* e[i] = 2^((z[i] - z_max) * scale), in (0, 1]; the sum of their weights (sampler_weight), and of each chunk. */
uint64_t sampler_exp(float *e, const float *z, size_t n, float z_max, float scale, uint64_t *chunk_sum);

/*
 * The sum of -p * log2(p / p_best) over the tokens, in weights: with the total W of sampler_exp, the entropy is log2(W)
 * + this / W bits (W and this in units of SAMPLER_WEIGHT_ONE). e is what sampler_exp left.
 */
uint64_t sampler_moment(const float *e, const float *z, size_t n, float z_max, float scale);

/* Of a chunk (n <= SAMPLER_CHUNK): bit i says that e[i] >= floor. */
uint64_t sampler_mask(const float *e, size_t n, float floor);

/* Mean and standard deviation (of the population) of those z that are not -infinity; how many these are. */
size_t sampler_spread(const float *z, size_t n, double *mean, double *deviation);

#endif
