/*
 * The emulator's control for tests of kernels that run on a GPU: there is nothing to set, and what is counted are the
 * launches (the linker's --wrap, launches.c). tests/emu/emu.h is the real one.
 */
#ifndef EMU_H
#define EMU_H

#include <cuda_runtime.h>
#include <stddef.h>
#include <stdint.h>

struct emu_options {
    size_t alignment;
};
struct emu_counts {
    uint64_t kernels_run;
};

#ifdef __cplusplus
extern "C" {
#endif
extern uint64_t launches;
#ifdef __cplusplus
}
#endif

static inline void emu_default_options(struct emu_options *options) {
    options->alignment = 256;
}
static inline void emu_get_options(struct emu_options *options) {
    emu_default_options(options);
}
static inline cudaError_t emu_configure(const struct emu_options *options) {
    int devices = 0;
    (void)options;
    cudaError_t rc = cudaGetDeviceCount(&devices);
    return rc == cudaSuccess && devices == 0 ? cudaErrorNoDevice : rc;
}
static inline void emu_get_counts(struct emu_counts *counts) {
    counts->kernels_run = launches;
}
static inline size_t emu_check_memory(void) { /* compute-sanitizer looks for that */
    return 0;
}

#endif
