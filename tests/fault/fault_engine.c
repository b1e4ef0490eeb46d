/* The same within the engine; linked where the engine is. */
#include "fault.h"

#include "runner.h"
#include "sampler.h"

#include <math.h>
#include <stdlib.h>
#include <unistd.h>

/* Without an end, and so that no compiler sees through it. */
__attribute__((noinline)) static int use_up_the_stack(volatile char *above) {
    volatile char here[4096];
    here[0] = 1;
    return above && above[0] != 1 ? 0 : use_up_the_stack(here) + here[0];
}

__attribute__((noinline)) static void fault_crash_now(uint64_t how) {
    volatile int zero = 0, one = 1;
    volatile uintptr_t nowhere = 0x10;
    switch (how) {
    case FAULT_CRASH_WRITE:
        *(volatile int *)nowhere = 1;
        break;
    case FAULT_CRASH_STACK:
        zero = use_up_the_stack(NULL);
        break;
    case FAULT_CRASH_ABORT:
        abort();
    case FAULT_CRASH_DIVIDE:
        one = one / zero;
        break;
    case FAULT_CRASH_JUMP:
        ((void (*)(void))nowhere)();
        break;
    default:
        break;
    }
}

int __real_runner_run(struct runner *r, struct error *err);
int __wrap_runner_run(struct runner *r, struct error *err);
int __wrap_runner_run(struct runner *r, struct error *err) {
    while (atomic_load(&fault_state()->stall)) {
        atomic_store(&fault_state()->stalled, 1);
        usleep(1000);
    }
    atomic_store(&fault_state()->stalled, 0);
    fault_crash_now(atomic_load(&fault_state()->crash));
    return __real_runner_run(r, err);
}

int __real_decoder_start_padded(struct decoder *d, const struct decoder_batch *batch, bool fed, struct error *err);
int __wrap_decoder_start_padded(struct decoder *d, const struct decoder_batch *batch, bool fed, struct error *err);
int __wrap_decoder_start_padded(struct decoder *d, const struct decoder_batch *batch, bool fed, struct error *err) {
    uint64_t this = d->shard.rank + 1;
    while (atomic_load(&fault_state()->rank_stall) == this) {
        usleep(1000);
    }
    if (atomic_load(&fault_state()->rank_fail) == this) {
        return error_set(err, ERROR_DEVICE, "the device is gone");
    }
    return __real_decoder_start_padded(d, batch, fed, err);
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
