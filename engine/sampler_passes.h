/* The sampler's walks over the whole vocabulary, compiled for the processor's vector width; the results are the same bits. */
#ifndef INFERD_SAMPLER_PASSES_H
#define INFERD_SAMPLER_PASSES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The largest of z[0..n) as a key (sampler_key); false if one of them is NaN or infinite. */
bool sampler_max_finite(const float *z, size_t n, uint32_t *max_key);
/* The same, where -infinity marks a masked token and is allowed. */
void sampler_max(const float *z, size_t n, uint32_t *max_key);
/* e[i] = 2^((z[i] - z_max) * scale), in (0, 1] or 0 */
void sampler_exp(float *e, const float *z, size_t n, float z_max, float scale);

#endif
