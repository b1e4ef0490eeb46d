/*
 * Faults that a test can cause in a running program. The hooks are put in by the linker (-Wl,--wrap), in builds with
 * -Dfault_hooks=true alone: neither the engine nor the server knows of them, and any other build holds none.
 *
 * The switches lie in one page of memory. The environment variable FAULT_FILE names a file that is mapped for it, so
 * that a test in another process flips them as it goes; tests/api/faults.py writes the same layout. Without it they are
 * the program's own (fault_state()).
 */
#ifndef INFERD_TEST_FAULT_H
#define INFERD_TEST_FAULT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define FAULT_MAGIC 0x746c756166u

enum fault_crash { FAULT_CRASH_WRITE = 1, FAULT_CRASH_STACK, FAULT_CRASH_ABORT, FAULT_CRASH_DIVIDE, FAULT_CRASH_JUMP };

/* One 64-bit number each. "Counts down": at N > 0 it strikes the N-th time from then, and is 0 afterwards. */
struct fault_state {
    _Atomic uint64_t magic;         /* FAULT_MAGIC, written by the program with the hooks */
    _Atomic uint64_t stall;         /* != 0: a step of the engine does not end before this is 0 again */
    _Atomic uint64_t stalled;       /* a step is being held now */
    _Atomic uint64_t nan_row;       /* counts down the rows of logits that are sampled: that one gets a NaN */
    _Atomic uint64_t nan_seed;      /* != 0: only rows of requests with this seed are counted */
    _Atomic uint64_t nan_struck;    /* how often */
    _Atomic uint64_t alloc_n;       /* counts down calls for memory: that one fails */
    _Atomic uint64_t alloc_more;    /* and as many behind it */
    _Atomic uint64_t alloc_calls;   /* how many there were */
    _Atomic uint64_t alloc_struck;  /* how many failed */
    _Atomic int64_t clock_offset_s; /* is added to the wall clock */
    _Atomic uint64_t crash;         /* != 0: what the next step does (enum fault_crash) */
    _Atomic uint64_t rank_stall;    /* N + 1: the pass of rank N does not begin before this is another number */
    _Atomic uint64_t rank_fail;     /* N + 1: its device is gone */
};

struct fault_state *fault_state(void);

/* One more of what is counted down: is it the one? */
bool fault_strikes(_Atomic uint64_t *countdown);

#endif
