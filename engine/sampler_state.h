#ifndef INFERD_SAMPLER_STATE_H
#define INFERD_SAMPLER_STATE_H

#include <inferd/engine.h>

/*
 * What one choice hands to the next of its sequence; nothing else is remembered. sampler_sample reads the one of its
 * input and gives the next in its output: a choice that is dropped (a draft that was refused) leaves no trace.
 */
struct sampler_state {
    double mirostat_mu;
};

static inline struct sampler_state sampler_state_first(const struct sampling *p) {
    return (struct sampler_state){.mirostat_mu = 2 * (double)p->mirostat_tau};
}

#endif
