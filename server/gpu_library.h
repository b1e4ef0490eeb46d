/*
 * NVIDIA's management library, libnvidia-ml.so.1 (NVML), found at run time and never linked: it comes with the driver and is
 * absent elsewhere. Names and numbers are those of its public interface, https://docs.nvidia.com/deploy/nvml-api/ .
 * Its calls may block for as long as the driver does: never on the loop.
 */
#ifndef INFERD_GPU_LIBRARY_H
#define INFERD_GPU_LIBRARY_H

#include <inferd/error.h>
#include <stdbool.h>
#include <stddef.h>

#define GPU_LIBRARY "libnvidia-ml.so.1"

/* Results of its calls. */
enum {
    NVML_SUCCESS = 0,
    NVML_NOT_SUPPORTED = 3,
    NVML_GPU_IS_LOST = 15,
};

struct nvml_memory {
    unsigned long long total, free, used; /* bytes */
};
struct nvml_utilization {
    unsigned int gpu, memory; /* percent of the time since the last sample */
};
struct nvml_event {
    void *device;
    unsigned long long type, data; /* data: the Xid */
    unsigned int gpu_instance, compute_instance;
};

enum { NVML_TEMPERATURE_GPU = 0 };
enum { NVML_ECC_CORRECTED = 0, NVML_ECC_UNCORRECTED = 1, NVML_ECC_VOLATILE = 0 };
enum { NVML_EVENT_XID = 8 };
enum { NVML_P2P_READ = 0, NVML_P2P_WRITE = 1, NVML_P2P_NVLINK = 2 };

/* X(member, name in the library, parameters); each returns one of the results above. */
#define NVML_NEEDED(X)                                                                                                 \
    X(init, "nvmlInit_v2", (void))                                                                                     \
    X(shutdown, "nvmlShutdown", (void))                                                                                \
    X(device_count, "nvmlDeviceGetCount_v2", (unsigned int *))                                                         \
    X(device_by_index, "nvmlDeviceGetHandleByIndex_v2", (unsigned int, void **))                                       \
    X(device_by_bus, "nvmlDeviceGetHandleByPciBusId_v2", (const char *, void **))                                      \
    X(memory, "nvmlDeviceGetMemoryInfo", (void *, struct nvml_memory *))                                               \
    X(driver_version, "nvmlSystemGetDriverVersion", (char *, unsigned int))

/* NULL where the library does not have it. */
#define NVML_OPTIONAL(X)                                                                                               \
    X(cuda_version, "nvmlSystemGetCudaDriverVersion_v2", (int *)) /* 1000 * major + 10 * minor */                      \
    X(name, "nvmlDeviceGetName", (void *, char *, unsigned int))                                                       \
    X(minor_number, "nvmlDeviceGetMinorNumber", (void *, unsigned int *)) /* of /dev/nvidiaN */                        \
    X(temperature, "nvmlDeviceGetTemperature", (void *, int sensor, unsigned int *)) /* degrees Celsius */             \
    X(power, "nvmlDeviceGetPowerUsage", (void *, unsigned int *))                    /* mW */                          \
    X(energy, "nvmlDeviceGetTotalEnergyConsumption", (void *, unsigned long long *)) /* mJ since the driver began */   \
    X(utilization, "nvmlDeviceGetUtilizationRates", (void *, struct nvml_utilization *))                               \
    X(ecc_errors, "nvmlDeviceGetTotalEccErrors", (void *, int severity, int counter, unsigned long long *))            \
    X(throttle, "nvmlDeviceGetCurrentClocksEventReasons", (void *, unsigned long long *))                              \
    X(throttle_before_12, "nvmlDeviceGetCurrentClocksThrottleReasons", (void *, unsigned long long *))                 \
    X(event_set_create, "nvmlEventSetCreate", (void **))                                                               \
    X(event_register, "nvmlDeviceRegisterEvents", (void *, unsigned long long, void *set))                             \
    X(event_wait, "nvmlEventSetWait_v2", (void *set, struct nvml_event *, unsigned int ms))                            \
    X(event_set_free, "nvmlEventSetFree", (void *set))                                                                 \
    X(p2p_status, "nvmlDeviceGetP2PStatus", (void *, void *, int, int *)) /* 0: it works */

struct gpu_library {
    void *handle;
#define X(member, name, parameters) int(*member) parameters;
    NVML_NEEDED(X)
    NVML_OPTIONAL(X)
#undef X
    const char *(*error_string)(int rc);
};

/* Loads it and finds its functions; asks the driver nothing. ERROR_DEVICE. */
int gpu_library_load(const char *file, struct gpu_library *out, struct error *err);
void gpu_library_unload(struct gpu_library *l); /* a zeroed one is fine */
const char *gpu_library_error(const struct gpu_library *l, int rc);

/*
 * The device that CUDA knows by this number, which need not be NVML's: found by its place on the bus, which CUDA's own
 * driver library tells; where that is absent, by the number. `libcuda` is its file. Returns one of the results.
 */
int gpu_library_device(const struct gpu_library *l, const char *libcuda, size_t ordinal, void **out);

#endif
