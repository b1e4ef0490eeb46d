/*
 * The border between the two halves of the emulator: the machine that runs kernels (machine.cc) and the runtime that
 * keeps devices, streams and graphs (the stand-in of the CUDA runtime). C++ only.
 */
#ifndef EMU_LAUNCH_H
#define EMU_LAUNCH_H

#include "cuda_errors.h"
#include "vector_types.h"

#include <functional>
#include <stddef.h>

/* A launch with its arguments. May be copied and run any number of times (a graph replays it). */
struct emu_kernel {
    const char *name;
    const void *function; /* address of the kernel: the key of its attributes */
    dim3 grid, block;
    size_t shared;              /* bytes of dynamic shared memory */
    size_t shared_allowed;      /* what emu_shared_allowed said when it was launched */
    std::function<void()> body; /* what one thread does */
    bool in_order = false; /* blocks and threads, whatever the seed: of several devices whose blocks wait for one another */
};

/* What a launch may ask of a device. */
struct emu_limits {
    int compute;         /* 80, 90, ... */
    size_t shared_optin; /* bytes a block may have at most: 163 KB on sm_80, 227 KB on sm_90 */
};

/* ---- the machine gives ---- */

/* Whether the device would take this launch: cudaSuccess, cudaErrorInvalidValue or cudaErrorInvalidConfiguration.
 * LAUNCH calls it before emu_enqueue. */
cudaError_t emu_check_launch(const struct emu_kernel *kernel, const struct emu_limits *limits);

/* Run the whole grid on the calling thread, which is `device` meanwhile. Several threads may run kernels at once, one
 * each. A hard error of the kernel stops the grid: its message goes to stderr and to emu_last_fault (machine.h), and
 * the return is what the runtime makes sticky: cudaErrorIllegalAddress, cudaErrorMisalignedAddress or
 * cudaErrorLaunchFailure. */
cudaError_t emu_run_kernel(const struct emu_kernel *kernel, int device);

/* Whether the calling thread is inside a kernel (a fiber): no call of the runtime is legal there. */
bool emu_in_kernel(void);

/* Called for an address that a kernel touched illegally (SIGSEGV inside emu_run_kernel, on the alternate stack): writes
 * what the runtime knows about it ("3 bytes behind the allocation of 400 bytes at ...") into text, or nothing. NULL:
 * none. */
extern void (*emu_describe_address)(const void *address, char *text, size_t size);

/* ---- the runtime gives ---- */

/* Put work into a stream (0: the default one), or into the graph that is being captured. The return is the error of the
 * call; `work` reports its own later, when it is run on the thread of the stream's device. */
cudaError_t emu_enqueue(cudaStream_t stream, const char *name, std::function<cudaError_t(int device)> work);

/* The same of kernels that wait for one another: the k-th of each of the `ranks` of `key` are run at the same time, when all have
 * come to it. emu_begin_peers: key is another group's from now on. emu_stop_peers: what this rank has under way ends, undone. */
cudaError_t emu_enqueue_peers(cudaStream_t stream, const char *name, const void *key, unsigned rank, unsigned ranks,
                              const struct emu_kernel &kernel);
void emu_begin_peers(const void *key);
void emu_stop_peers(const void *key, unsigned rank);
/* In a kernel that waits for another device. */
void emu_let_others_run(void);

/* The limits of the stream's device. */
struct emu_limits emu_stream_limits(cudaStream_t stream);

/* Dynamic shared bytes that `function` may have on the stream's device: 48 KB, or what cudaFuncSetAttribute
 * (cudaFuncAttributeMaxDynamicSharedMemorySize) set. */
size_t emu_shared_allowed(cudaStream_t stream, const void *function);

#endif
