#include "step_stats.h"

static const double token_bounds[] = {ENGINE_STEP_TOKENS_BOUNDS};
static const double sequence_bounds[] = {ENGINE_STEP_SEQUENCES_BOUNDS};
static const double second_bounds[] = {ENGINE_STEP_SECONDS_BOUNDS};
#define N_TOKEN_BOUNDS (sizeof token_bounds / sizeof token_bounds[0])
#define N_SEQUENCE_BOUNDS (sizeof sequence_bounds / sizeof sequence_bounds[0])
#define N_SECOND_BOUNDS (sizeof second_bounds / sizeof second_bounds[0])
_Static_assert(N_TOKEN_BOUNDS < ENGINE_STEP_BUCKETS && N_SEQUENCE_BOUNDS < ENGINE_STEP_BUCKETS &&
                   N_SECOND_BOUNDS < ENGINE_STEP_BUCKETS,
               "a bucket above all");

static void observe(struct step_histogram *h, const double *bounds, size_t n, double value, uint64_t units) {
    size_t i = 0;
    while (i < n && value > bounds[i]) {
        i++;
    }
    atomic_fetch_add_explicit(&h->counts[i], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&h->sum, units, memory_order_relaxed);
}

void step_stats_observe(struct step_stats *s, size_t tokens, size_t sequences, uint64_t step_ns, uint64_t sampling_ns) {
    observe(&s->tokens, token_bounds, N_TOKEN_BOUNDS, (double)tokens, tokens);
    observe(&s->sequences, sequence_bounds, N_SEQUENCE_BOUNDS, (double)sequences, sequences);
    observe(&s->step, second_bounds, N_SECOND_BOUNDS, (double)step_ns / 1e9, step_ns);
    observe(&s->sampling, second_bounds, N_SECOND_BOUNDS, (double)sampling_ns / 1e9, sampling_ns);
}

static void read(const struct step_histogram *h, double unit, struct engine_histogram *out) {
    for (size_t i = 0; i < ENGINE_STEP_BUCKETS; i++) {
        out->counts[i] = atomic_load_explicit(&h->counts[i], memory_order_relaxed);
    }
    out->sum = (double)atomic_load_explicit(&h->sum, memory_order_relaxed) * unit;
}

void step_stats_read(const struct step_stats *s, struct engine_stats *out) {
    read(&s->tokens, 1, &out->step_tokens);
    read(&s->sequences, 1, &out->step_sequences);
    read(&s->step, 1e-9, &out->step_seconds);
    read(&s->sampling, 1e-9, &out->sampling_seconds);
}
