/* The state of a machine, and what the files that make it up ask of one another. Not for others. */
#ifndef EMU_MACHINE_STATE_H
#define EMU_MACHINE_STATE_H

#include "emu_launch.h"
#include "fiber.h"
#include "machine.h"
#include "machine_kernel.h"
#include "warp_math.h"

#include <atomic>
#include <memory>
#include <vector>

namespace emu {

enum {
    WARP = 32,
    MAX_THREADS = 1024,
    MAX_WARPS = MAX_THREADS / WARP,
    SHARED_DEFAULT = 48 * 1024,
    SHARED_AREA = 256 * 1024, /* what is mapped: more than any device has */
    SHARED_ALIGNMENT = 128,
    RED_ZONE_SLACK = 4 * 1024, /* of red zones, which a GPU does not have */
};

enum class place : unsigned char { start, running, warp_operation, barrier, end };

struct copy_16 { /* of async_copy_16: not yet there */
    unsigned char *to;
    const void *from; /* NULL: zeros */
};

struct gpu_thread : emu_thread {
    struct gpu_warp *warp;
    emu_fiber *fiber; /* NULL before it first runs and after its end */
    unsigned what;    /* the operation it waits in */
    place at;
    std::vector<copy_16> copies;     /* in the order of their issue */
    std::vector<size_t> copy_groups; /* where in copies each committed group ends */
    size_t copies_done, groups_done;
};

struct gpu_warp {
    gpu_thread *threads; /* 32, or fewer in the last warp */
    unsigned number, n_threads;
    unsigned step, from, position; /* of the phase: lane (step * position + from) % 32 is next */
    unsigned ready;                /* lanes still to run in this phase */
    unsigned arrived, what;        /* at a rendezvous, and at which */
    bool mismatch;
    unsigned parity, syncs;
    unsigned votes[2];
    uint64_t slots[2][WARP];
    struct emu_mma_lane mma[WARP];
    uint32_t *matrix[WARP];
    const void *rows[WARP];
};

struct red_zone {
    const unsigned char *bytes;
    size_t size;
};

struct machine {
    const emu_kernel *kernel = nullptr;
    uint64_t random = 0, launch_number = 0;
    bool in_order = false;

    gpu_thread threads[MAX_THREADS] = {};
    gpu_warp warps[MAX_WARPS] = {};
    gpu_thread *current = nullptr;
    unsigned n_threads = 0, n_warps = 0, n_at_barrier = 0;
    /* of the block phase, between two barriers: warp (step * position + from) % ring is next */
    unsigned warp_step = 1, warp_from = 0, warp_position = 0, warp_ring = 1;
    gpu_warp *warp = nullptr; /* the one that runs */

    unsigned char *area = nullptr;   /* SHARED_AREA bytes between two unreadable pages */
    unsigned char *shared = nullptr; /* the block's; ends with the area, up to the alignment */
    size_t shared_bytes = 0, built_size = 0;
    void (*built_by)(void *) = nullptr;
    std::vector<red_zone> red_zones;
    std::unique_ptr<emu_byte[]> bytes;          /* of the area, if accesses are checked */
    std::unique_ptr<emu_memory_log> memory_log; /* of all other memory */
    /* The present phase, and the first one of the block and of the grid: emu_moment. */
    uint32_t phase = 0, block_phase = 0, grid_phase = 0;

    emu_fiber home = {}; /* the OS thread */
    void *signal_stack = nullptr;
    emu_fiber fibers[MAX_THREADS] = {};
    unsigned n_fibers = 0;
    emu_fiber *idle[MAX_THREADS] = {};
    unsigned n_idle = 0;
    emu_fiber *running = nullptr;

    cudaError_t error = cudaSuccess;
    uint64_t n_blocks = 0, n_warp_rendezvous = 0, n_block_rendezvous = 0, n_switches = 0, n_checked = 0;

    bool open();
    ~machine();
};

extern EMU_TLS machine *here; /* the calling OS thread's, while it runs a kernel */

/* ---- faults.cc ---- */

extern std::atomic<uint64_t> order_seed;
extern std::atomic<bool> poison_shared;
void count(machine &m); /* into the counters of the process */

/* The message gets the kernel's name, the block and the current thread. */
void record_fault(machine &m, cudaError_t error, const char *text);
/* From within a fiber: the grid ends here, and the fibers that were under way are dropped. */
[[noreturn]] __attribute__((format(printf, 3, 4))) void fault(machine &m, cudaError_t error, const char *format, ...);
/* Not all lanes of a warp came to the same operation; not all threads to the barrier. */
[[noreturn]] void fault_warp(machine &m, const gpu_warp &w);
[[noreturn]] void fault_barrier(machine &m);

/* ---- shared_memory.cc ---- */

/* Lay the block's shared memory at the end of the area; around it lies what nobody may write. */
void place_shared(machine &m, size_t bytes);
void begin_shared(machine &m); /* of each block */
/* After a block: what was written where nobody may, or "". */
void check_shared(machine &m, char *text, size_t size);
void end_shared(machine &m); /* of a grid */
/* The addresses that lanes gave to load_matrix. */
void check_rows(machine &m, gpu_warp &w, unsigned matrices);

} // namespace emu

#endif
