/*
 * What a test may do to the emulated devices: describe them, choose the order of their work, make calls fail, and ask
 * what has happened. C and C++; every function may be called from any thread.
 *
 * A program that the test only starts is told the same through the environment: INFERD_EMU, a list of key=value split
 * by commas, read at the first call of the runtime:
 *   fast                   order=eager, protect=0, poison=0
 *   devices, name, sm, compute (80, 90), memory, context (bytes; K, M, G), driver (as 13000; 0: none),
 *   order (random, lazy, eager), seed, protect, poison, align, kernels, verbose, peers (1, 0, lie, pcie)
 *   inject=CALL:N:CODE[:COUNT]   as emu_inject; CALL as in emu_call, in small letters (malloc, host_alloc, launch, ...)
 *   stall=CALL:N:SECONDS         as emu_inject_stall
 *   trigger=PATH                 injections and stalls count calls only once that file is there
 */
#ifndef EMU_H
#define EMU_H

#include "cuda_errors.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define EMU_MAX_DEVICES 16

/* When the work of streams is done. Always in a legal order: that of each stream, of events, and of the default stream. */
enum emu_order {
    EMU_ORDER_RANDOM, /* mostly only when somebody waits, at random among streams, now and then earlier */
    EMU_ORDER_LAZY,   /* only what is waited for, in the order of the calls */
    EMU_ORDER_EAGER,  /* at once; the fastest */
};

/* Devices and one another's memory. */
enum emu_peers {
    EMU_PEERS,      /* they see it, by NVLink */
    EMU_PEERS_NONE, /* they say that they do not */
    EMU_PEERS_LIE,  /* they say that they do, and what they read is old */
    EMU_PEERS_PCIE, /* they see it, without atomics */
};

struct emu_options {
    int devices; /* 0: the driver finds none */
    char name[64];
    int sm_count;
    int compute;          /* 80, 86, 89, 90 */
    size_t memory_bytes;  /* of each device */
    size_t context_bytes; /* of them taken by the first use of a device */
    int driver_version;   /* below CUDART_VERSION: cudaErrorInsufficientDriver; 0: no driver */
    enum emu_order order;
    uint64_t seed; /* also of the threads of kernels (emu_set_order_seed; 0 with EMU_ORDER_EAGER) */
    bool protect;     /* host code that touches device memory gets SIGSEGV; a kernel that touches another device's too */
    bool poison;      /* new memory, shared too, holds NaN of every type, and indices out of any range */
    size_t alignment; /* 16: the end of an allocation lies at a guard page; 256: as cudaMalloc promises */
    bool no_kernels;  /* launches of kernels, products, memsets and graphs are checked and do nothing: the host's work is left */
    bool verbose;     /* every refused call is told on stderr */
    enum emu_peers peers;
};

void emu_default_options(struct emu_options *options); /* without the environment */
void emu_get_options(struct emu_options *options);
/* Ends everything on all devices (memory, streams, events, graphs, sticky errors, injections, counters) and starts anew;
 * what a program still holds is gone. cudaErrorInvalidValue: nonsense, nothing happened. */
cudaError_t emu_configure(const struct emu_options *options);

/* Calls that can be made to fail. */
enum emu_call {
    EMU_CALL_MALLOC,
    EMU_CALL_HOST_ALLOC,
    EMU_CALL_LAUNCH,       /* of a kernel, outside of graphs */
    EMU_CALL_COPY,         /* copies and memsets, outside of graphs */
    EMU_CALL_SYNC,         /* waiting for a stream, an event, or a device */
    EMU_CALL_GRAPH_LAUNCH, /* cudaGraphLaunch */
    EMU_CALL_CREATE,       /* streams, events, capture, graphs */
    EMU_CALL_MATMUL,       /* cublasLtMatmul */
    EMU_CALL_COLLECTIVE,   /* of NCCL: each launch, also while a graph is recorded */
    EMU_CALLS
};

/* The n-th such call from now (1: the next) and count - 1 behind it fail with `code`. A code that a kernel's fault would
 * give (700 .. 719 without 701 and 704 .. 713) comes as such: the call succeeds, the device's work fails, and the error
 * stays until cudaDeviceReset; of EMU_CALL_SYNC and EMU_CALL_MALLOC it comes from the call itself. */
void emu_inject(enum emu_call call, uint64_t n, uint64_t count, cudaError_t code);
/* The n-th such call takes that many seconds longer. */
void emu_inject_stall(enum emu_call call, uint64_t n, double seconds);
void emu_inject_clear(void);

struct emu_counts {
    uint64_t calls[EMU_CALLS];
    uint64_t kernels_run, graph_kernels_run; /* the latter by graphs */
    uint64_t collectives;                    /* of NCCL, that took place: one for all its ranks */
    uint64_t collective_bytes;               /* that the ranks gave to them */
    uint64_t copies_to_device, copies_to_host, copies_on_device, memsets;
    uint64_t bytes_to_device, bytes_to_host;
    uint64_t frees;
    uint64_t functions_loaded; /* kernels that a device meets for the first time: a GPU loads their code then */
    uint64_t attributes_set;   /* of kernels */
    uint64_t waits_ahead; /* for an event behind which its device has more to do (never with EMU_ORDER_EAGER) */
    uint64_t calls_ns;    /* spent in calls of the runtime, by all threads: with no_kernels, what the emulator itself takes */
    /* now */
    size_t device_bytes[EMU_MAX_DEVICES]; /* as asked for */
    size_t host_bytes;                    /* pinned */
    size_t allocations, streams, events, graphs, pending;
};
void emu_get_counts(struct emu_counts *counts);
void emu_reset_counts(void); /* those that only grow */

/* From now on the communicators of this device report the error (of ncclResult_t), and what is queued with them does not end. */
void emu_fail_nccl(int device, int result);

/* The sentence about the last call that was refused, or fault, in any thread. "": none. */
void emu_get_report(char *text, size_t size);

/* Bytes beside allocations that were written to: the number of allocations concerned (0 is well), told by the report. The
 * same check is made by every wait of a protected device and by cudaFree. */
size_t emu_check_memory(void);

#ifdef __cplusplus
}
#endif
#endif
