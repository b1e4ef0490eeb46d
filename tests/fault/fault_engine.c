/* The same within the engine; linked where the engine is. */
#include "fault.h"

#include "runner.h"
#include "sampler.h"

#include <math.h>
#include <unistd.h>

int __real_runner_run(struct runner *r, struct error *err);
int __wrap_runner_run(struct runner *r, struct error *err);
int __wrap_runner_run(struct runner *r, struct error *err) {
    while (atomic_load(&fault_state()->stall)) {
        atomic_store(&fault_state()->stalled, 1);
        usleep(1000);
    }
    atomic_store(&fault_state()->stalled, 0);
    return __real_runner_run(r, err);
}

enum sample_result __real_sampler_sample(struct sampler *s, const struct sample_input *in, struct sample *out);
enum sample_result __wrap_sampler_sample(struct sampler *s, const struct sample_input *in, struct sample *out);
enum sample_result __wrap_sampler_sample(struct sampler *s, const struct sample_input *in, struct sample *out) {
    uint64_t seed = atomic_load(&fault_state()->nan_seed);
    if ((seed == 0 || seed == in->seed) && fault_strikes(&fault_state()->nan_row)) {
        atomic_fetch_add(&fault_state()->nan_struck, 1);
        ((float *)(uintptr_t)in->logits)[s->vocab_size / 2] = NAN; /* the runner's memory, and this step's alone */
    }
    return __real_sampler_sample(s, in, out);
}
