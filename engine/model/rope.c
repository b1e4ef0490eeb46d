#include "model/rope.h"

#include <math.h>

#define PI 3.14159265358979323846

static double clamp(double x, double min, double max) {
    return x < min ? min : x > max ? max : x;
}

/* Llama 3.1: wavelengths above original / low are divided by factor, those below original / high kept. */
static double scale_llama3(const struct rope_config *c, double freq) {
    double turns = c->original_context * freq / (2 * PI); /* full turns over the original context */
    double keep = (turns - c->low_freq_factor) / (c->high_freq_factor - c->low_freq_factor);
    keep = clamp(keep, 0, 1);
    return (1 - keep) * freq / c->factor + keep * freq;
}

/* The (fractional) pair index that makes `turns` full turns over the original context. */
static double yarn_pair_of_turns(const struct rope_config *c, size_t n_rot, double turns) {
    return (double)n_rot * log(c->original_context / (turns * 2 * PI)) / (2 * log(c->theta));
}

static double scale_yarn(const struct rope_config *c, size_t n_rot, size_t pair, double freq) {
    double low = floor(yarn_pair_of_turns(c, n_rot, c->beta_fast));
    double high = ceil(yarn_pair_of_turns(c, n_rot, c->beta_slow));
    low = low < 0 ? 0 : low;
    high = high > (double)n_rot - 1 ? (double)n_rot - 1 : high;
    double width = high > low ? high - low : 0.001;
    double interpolate = clamp(((double)pair - low) / width, 0, 1);
    return interpolate * freq / c->factor + (1 - interpolate) * freq;
}

void rope_frequencies(const struct rope_config *c, size_t n_rot, const float *factors, float *inv_freq, float *mscale) {
    for (size_t i = 0; i < n_rot / 2; i++) {
        double freq = pow(c->theta, -2.0 * (double)i / (double)n_rot);
        switch (c->scaling) {
        case ROPE_SCALING_NONE:
            break;
        case ROPE_SCALING_LINEAR:
            freq /= c->factor;
            break;
        case ROPE_SCALING_LLAMA3:
            freq = scale_llama3(c, freq);
            break;
        case ROPE_SCALING_YARN:
            freq = scale_yarn(c, n_rot, i, freq);
            break;
        }
        inv_freq[i] = (float)(factors ? freq / (double)factors[i] : freq);
    }
    *mscale = 1.0f;
    if (c->scaling == ROPE_SCALING_YARN) {
        double automatic = c->factor > 1 ? 0.1 * log(c->factor) + 1 : 1;
        *mscale = (float)(c->attention_factor > 0 ? c->attention_factor : automatic);
    }
}
