/*
 * Control of the machine that runs kernels, for tests; C and C++. All of it may be called from any thread, between
 * launches.
 */
#ifndef EMU_MACHINE_H
#define EMU_MACHINE_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The order of threads in a phase (between two rendezvous), of warps and of blocks: a random one from this seed, or
 * rising order with 0, which is faster. At start: the environment's INFERD_EMU_SEED, else 1. */
void emu_set_order_seed(uint64_t seed);

/* Whether shared memory is filled with a pattern of NaNs before each block (default: yes; INFERD_EMU_POISON=0: no). */
void emu_set_poison(bool poison);

/* Whether a hard error is also written to stderr (default: yes). */
void emu_set_fault_output(bool output);

/* The message of the last hard error of a kernel in this process, or "" (valid until the next one), and their number.
 */
const char *emu_last_fault(void);
uint64_t emu_fault_count(void);

struct emu_machine_counters {
    uint64_t launches, blocks, threads;
    uint64_t warp_rendezvous, block_rendezvous; /* completed */
    uint64_t switches;                          /* of fibers */
    uint64_t checked_accesses;                  /* by kernels compiled for it (checked_access.cc) */
};
/* Of all threads of this process since it began. */
void emu_machine_count(struct emu_machine_counters *counters);

#ifdef __cplusplus
}
#endif

#endif
