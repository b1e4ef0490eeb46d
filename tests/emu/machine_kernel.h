/* What device.h asks of the machine. Every function below is called from inside a kernel, by one GPU thread. */
#ifndef EMU_MACHINE_KERNEL_H
#define EMU_MACHINE_KERNEL_H

#include "cuda_errors.h"
#include "race.h"
#include "vector_types.h"

#include <stddef.h>
#include <stdint.h>

/* What a thread sees of itself. The pointer changes with every switch of fibers. */
struct emu_thread {
    uint3 index; /* threadIdx */
    unsigned lane;
};
struct emu_block {
    uint3 index; /* blockIdx */
    uint3 block_dim, grid_dim;
};
/* Not thread_local: an extern one is reached by a call, lest it wants initialisation. */
#define EMU_TLS __thread __attribute__((tls_model("initial-exec")))
extern EMU_TLS struct emu_thread *emu_self;
extern EMU_TLS struct emu_block emu_here;

/* Operations of a warp: what lanes must agree on. Shuffles carry their size and operand in the higher bits. */
enum emu_operation : unsigned {
    EMU_NONE,
    EMU_WARP_SYNC,
    EMU_SHFL,
    EMU_SHFL_XOR,
    EMU_SHFL_DOWN,
    EMU_SHFL_UP,
    EMU_BALLOT,
    EMU_LDMATRIX_X4,
    EMU_LDMATRIX_X2,
    EMU_LDMATRIX_X4_TRANSPOSED,
    EMU_LDMATRIX_X2_TRANSPOSED,
    EMU_MMA_I8,
    EMU_MMA_F16,
    EMU_MMA_BF16,
};

void emu_block_sync(void);
void emu_warp_sync(void);
/* Give a value, get those of all 32 lanes (valid until this lane's next operation). what: operation | operand << 8 |
 * size << 16. */
const uint64_t *emu_warp_exchange(unsigned what, uint64_t value);
unsigned emu_warp_ballot(bool p);
void emu_load_matrix(enum emu_operation operation, uint32_t *r, const void *row);
void emu_mma(enum emu_operation operation, void *d, const uint32_t *a, const uint32_t *b);

void emu_async_copy_16(void *shared, const void *p, bool valid);
void emu_async_commit(void);
void emu_async_wait(unsigned groups);

/* The dynamic shared memory, as the first thread of a block has built a T in it by `build` (red zones announce
 * themselves then). */
void *emu_shared(size_t size, size_t alignment, void (*build)(void *));
void emu_red_zone(const void *p, size_t size); /* checked when the block ends */

/* An access to memory, by code compiled for it (checked_access.cc). Outside of kernels: nothing happens. */
void emu_checked_access(const void *p, size_t size, enum emu_access access, const void *code);
void emu_constant_load(const void *p, size_t size);
void emu_check_accesses(void); /* such code is there: copies and load_matrix are to be checked as well */

[[noreturn]] void emu_misaligned(const char *operation, const void *p, size_t alignment);

#endif
