/*
 * What the driver tells of the GPU that computes: memory, temperature, power, errors. A thread of its own asks now and
 * then; the loop reads what it found, and never waits for it: a driver may hang for good.
 */
#ifndef INFERD_GPU_MONITOR_H
#define INFERD_GPU_MONITOR_H

#include <inferd/error.h>
#include <stdbool.h>
#include <stddef.h>

struct gpu_monitor;

enum gpu_value {
    GPU_UP, /* 1: the driver answered the last time */
    GPU_MEMORY_USED, /* bytes, of all processes */
    GPU_MEMORY_TOTAL,
    GPU_TEMPERATURE, /* degrees Celsius */
    GPU_POWER,       /* W */
    GPU_ENERGY,      /* J */
    GPU_BUSY,        /* share of the time in which a kernel ran, 0 to 1 */
    GPU_ECC_CORRECTED, /* errors since the driver was loaded */
    GPU_ECC_UNCORRECTED,
    GPU_XIDS,     /* errors that the driver reported since the start */
    GPU_LAST_XID, /* the number of the last, 0 = none */
    GPU_THROTTLE, /* bits of NVML's clocks event reasons */
    GPU_VALUES
};

struct gpu_monitor_config {
    const char *library; /* GPU_LIBRARY */
    const char *libcuda; /* "libcuda.so.1" */
    const char *dev;     /* "/dev" */
    size_t ordinal;      /* CUDA's number of the device */
    unsigned int period_ms;
    unsigned int patience_ms; /* a driver that has not answered for so long does not answer */
};
#define GPU_MONITOR_PERIOD_MS 1000
#define GPU_MONITOR_PATIENCE_MS 6000

/* ERROR_DEVICE: there is no such library here. The strings must outlive it. */
int gpu_monitor_open(const struct gpu_monitor_config *config, struct gpu_monitor **out, struct error *err);

/*
 * False: the thread hangs in the driver and is left behind, with its memory. Then the process ends (exit, return from
 * main) without running what libraries want to do at the end, which could wait for that thread. NULL is fine.
 */
bool gpu_monitor_close(struct gpu_monitor *m);

/* Any thread; never waits. What the driver does not tell is NaN, of counts 0. */
void gpu_monitor_read(const struct gpu_monitor *m, double out[GPU_VALUES]);

/*
 * Why the GPU cannot be relied on any more, words for a probe; NULL while all is well, and where the driver never told
 * anything. Any thread; never waits. NULL has no trouble.
 */
const char *gpu_monitor_trouble(const struct gpu_monitor *m);

#endif
