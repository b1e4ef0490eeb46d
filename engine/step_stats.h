/* Histograms over the engine's steps: written by the engine thread, read by any. */
#ifndef INFERD_STEP_STATS_H
#define INFERD_STEP_STATS_H

#include <inferd/engine.h>
#include <stdatomic.h>

struct step_histogram {
    atomic_uint_fast64_t counts[ENGINE_STEP_BUCKETS]; /* of each bucket alone */
    atomic_uint_fast64_t sum;                         /* tokens, or ns */
};

struct step_stats {
    struct step_histogram tokens, sequences, step, sampling;
};

/* A step ended that computed so many tokens of so many sequences; sampling: what of its time went into sampling and
 * telling tokens. */
void step_stats_observe(struct step_stats *s, size_t tokens, size_t sequences, uint64_t step_ns, uint64_t sampling_ns);
/* Fills the histograms of *out. */
void step_stats_read(const struct step_stats *s, struct engine_stats *out);

#endif
