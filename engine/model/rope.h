/* Rotary position embedding: from a model's numbers to the frequencies of a rope_table. */
#ifndef INFERD_ROPE_H
#define INFERD_ROPE_H

#include <stddef.h>

enum rope_scaling {
    ROPE_SCALING_NONE,
    ROPE_SCALING_LINEAR, /* positions divided by `factor` (Chen et al. 2023) */
    ROPE_SCALING_LLAMA3, /* long wavelengths divided, short ones kept, a ramp between (Llama 3.1) */
    ROPE_SCALING_YARN,   /* Peng et al. 2023, section 3.2-3.4 */
};

struct rope_config {
    double theta;
    enum rope_scaling scaling;
    double factor;
    double low_freq_factor, high_freq_factor; /* llama3 */
    double original_context;                  /* llama3, yarn */
    double beta_fast, beta_slow;              /* yarn */
    double attention_factor;                  /* yarn: multiplies cos and sin; 0 = 0.1 ln(factor) + 1 */
};

/*
 * inv_freq[i] = theta^(-2i/n_rot), scaled; i < n_rot / 2. `factors` [n_rot / 2] divide them besides (GGUF's
 * rope_freqs.weight), NULL = none. *mscale is what cos and sin are multiplied by.
 */
void rope_frequencies(const struct rope_config *c, size_t n_rot, const float *factors, float *inv_freq, float *mscale);

#endif
