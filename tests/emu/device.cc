/* Devices, errors, options, injections and counters of the emulated runtime. */
#include "emu_launch.h"
#include "runtime.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

namespace emu {

static thread_local int thread_device = 0;
static thread_local cudaError_t thread_error = cudaSuccess;
thread_local bool in_host_function = false;

static const struct {
    cudaError_t code;
    const char *name, *text;
} error_table[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInitializationError, "cudaErrorInitializationError", "initialization error"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
    {cudaErrorInvalidMemcpyDirection, "cudaErrorInvalidMemcpyDirection", "invalid copy direction for memcpy"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver", "CUDA driver version is insufficient for CUDA runtime version"},
    {cudaErrorDevicesUnavailable, "cudaErrorDevicesUnavailable", "CUDA-capable device(s) is/are busy or unavailable"},
    {cudaErrorInvalidDeviceFunction, "cudaErrorInvalidDeviceFunction", "invalid device function"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorNoKernelImageForDevice, "cudaErrorNoKernelImageForDevice", "no kernel image is available for execution on the device"},
    {cudaErrorECCUncorrectable, "cudaErrorECCUncorrectable", "uncorrectable ECC error encountered"},
    {cudaErrorPeerAccessUnsupported, "cudaErrorPeerAccessUnsupported", "peer access is not supported between these two devices"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
    {cudaErrorLaunchOutOfResources, "cudaErrorLaunchOutOfResources", "too many resources requested for launch"},
    {cudaErrorLaunchTimeout, "cudaErrorLaunchTimeout", "the launch timed out and was terminated"},
    {cudaErrorPeerAccessAlreadyEnabled, "cudaErrorPeerAccessAlreadyEnabled", "peer access is already enabled"},
    {cudaErrorPeerAccessNotEnabled, "cudaErrorPeerAccessNotEnabled", "peer access has not been enabled"},
    {cudaErrorAssert, "cudaErrorAssert", "device-side assert triggered"},
    {cudaErrorHostMemoryAlreadyRegistered, "cudaErrorHostMemoryAlreadyRegistered", "part or all of the requested memory range is already mapped"},
    {cudaErrorHostMemoryNotRegistered, "cudaErrorHostMemoryNotRegistered", "pointer does not correspond to a registered memory region"},
    {cudaErrorHardwareStackError, "cudaErrorHardwareStackError", "hardware stack error"},
    {cudaErrorIllegalInstruction, "cudaErrorIllegalInstruction", "an illegal instruction was encountered"},
    {cudaErrorMisalignedAddress, "cudaErrorMisalignedAddress", "misaligned address"},
    {cudaErrorInvalidAddressSpace, "cudaErrorInvalidAddressSpace", "operation not supported on global/shared address space"},
    {cudaErrorInvalidPc, "cudaErrorInvalidPc", "invalid program counter"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {cudaErrorNotPermitted, "cudaErrorNotPermitted", "operation not permitted"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
    {cudaErrorSystemNotReady, "cudaErrorSystemNotReady", "system not yet initialized"},
    {cudaErrorSystemDriverMismatch, "cudaErrorSystemDriverMismatch", "system has unsupported display driver / cuda driver combination"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported", "operation not permitted when stream is capturing"},
    {cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated", "operation failed due to a previous error during capture"},
    {cudaErrorStreamCaptureMerge, "cudaErrorStreamCaptureMerge", "operation would result in a merge of separate capture sequences"},
    {cudaErrorStreamCaptureUnmatched, "cudaErrorStreamCaptureUnmatched", "capture was not ended in the same stream as it began"},
    {cudaErrorStreamCaptureUnjoined, "cudaErrorStreamCaptureUnjoined", "capturing stream has unjoined work"},
    {cudaErrorStreamCaptureIsolation, "cudaErrorStreamCaptureIsolation", "dependency created on uncaptured work in another stream"},
    {cudaErrorStreamCaptureImplicit, "cudaErrorStreamCaptureImplicit", "operation would make the legacy stream depend on a capturing blocking stream"},
    {cudaErrorCapturedEvent, "cudaErrorCapturedEvent", "operation not permitted on an event last recorded in a capturing stream"},
    {cudaErrorStreamCaptureWrongThread, "cudaErrorStreamCaptureWrongThread", "attempt to terminate a thread-local capture sequence from another thread"},
    {cudaErrorGraphExecUpdateFailure, "cudaErrorGraphExecUpdateFailure", "the graph update was not performed because it included changes which violated constraints specific to instantiated graph update"},
    {cudaErrorUnknown, "cudaErrorUnknown", "unknown error"},};

uint64_t random_u64(Runtime &r) {
    uint64_t z = r.random += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

double now() {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
}

bool is_sticky(cudaError_t code) {
    return code == cudaErrorECCUncorrectable || code == cudaErrorNvlinkUncorrectable ||
           (code >= cudaErrorIllegalAddress && code <= cudaErrorLaunchFailure && code != cudaErrorLaunchOutOfResources &&
            !(code >= cudaErrorPeerAccessAlreadyEnabled && code <= cudaErrorContextIsDestroyed) &&
            code != cudaErrorTooManyPeers && code != cudaErrorHostMemoryAlreadyRegistered &&
            code != cudaErrorHostMemoryNotRegistered);
}

/* ---- options ---- */

static size_t parse_bytes(const char *text) {
    char *end;
    double v = strtod(text, &end);
    size_t unit = *end == 'K' ? size_t(1) << 10 : *end == 'M' ? size_t(1) << 20 : *end == 'G' ? size_t(1) << 30 : 1;
    return size_t(v * double(unit));
}

static const char *const call_names[EMU_CALLS] = {"malloc", "host_alloc", "launch", "copy",
                                                  "sync",   "graph_launch", "create", "matmul"};

/* A broken INFERD_EMU is a mistake in a test: it ends the program. */
static void bad_environment(const std::string &item) {
    fprintf(stderr, "INFERD_EMU: \"%s\" is not understood\n", item.c_str());
    abort();
}

static void parse_injection(Runtime &r, const std::string &item, const std::string &value, bool stall) {
    char name[32];
    unsigned long long n, count = 1;
    double what;
    int got = sscanf(value.c_str(), "%31[a-z_]:%llu:%lf:%llu", name, &n, &what, &count);
    for (int c = 0; got >= 3 && n > 0 && count > 0 && c < EMU_CALLS; c++) {
        if (strcmp(name, call_names[c]) == 0) {
            r.injections.push_back(
                {emu_call(c), n, n + count - 1, stall ? cudaSuccess : cudaError_t(int(what)), stall ? what : 0});
            return;
        }
    }
    bad_environment(item);
}

static void parse_item(Runtime &r, const std::string &item) {
    emu_options &o = r.options;
    size_t eq = item.find('=');
    std::string key = item.substr(0, eq), value = eq == std::string::npos ? "" : item.substr(eq + 1);
    if (key == "fast" && value.empty()) {
        o.order = EMU_ORDER_EAGER;
        o.protect = o.poison = false;
    } else if (value.empty()) {
        bad_environment(item);
    } else if (key == "devices") {
        o.devices = atoi(value.c_str());
    } else if (key == "name") {
        snprintf(o.name, sizeof o.name, "%s", value.c_str());
    } else if (key == "sm") {
        o.sm_count = atoi(value.c_str());
    } else if (key == "compute") {
        o.compute = atoi(value.c_str());
    } else if (key == "memory") {
        o.memory_bytes = parse_bytes(value.c_str());
    } else if (key == "context") {
        o.context_bytes = parse_bytes(value.c_str());
    } else if (key == "driver") {
        o.driver_version = atoi(value.c_str());
    } else if (key == "order" && value == "random") {
        o.order = EMU_ORDER_RANDOM;
    } else if (key == "order" && value == "lazy") {
        o.order = EMU_ORDER_LAZY;
    } else if (key == "order" && value == "eager") {
        o.order = EMU_ORDER_EAGER;
    } else if (key == "seed") {
        o.seed = strtoull(value.c_str(), nullptr, 0);
    } else if (key == "protect") {
        o.protect = value != "0";
    } else if (key == "poison") {
        o.poison = value != "0";
    } else if (key == "align") {
        o.alignment = parse_bytes(value.c_str());
    } else if (key == "verbose") {
        o.verbose = value != "0";
    } else if (key == "inject") {
        parse_injection(r, item, value, false);
    } else if (key == "stall") {
        parse_injection(r, item, value, true);
    } else if (key == "trigger") {
        r.trigger = value;
    } else {
        bad_environment(item);
    }
}

static bool valid_options(const emu_options &o) {
    return o.devices >= 0 && o.devices <= EMU_MAX_DEVICES && o.sm_count > 0 && o.compute >= 80 &&
           (o.alignment == 16 || o.alignment == 256) && o.context_bytes <= o.memory_bytes && o.order >= 0 &&
           o.order <= EMU_ORDER_EAGER && memchr(o.name, 0, sizeof o.name);
}

static void start_devices(Runtime &r) {
    r.random = r.options.seed;
    r.devices = std::vector<Device>(size_t(r.options.devices));
    for (size_t i = 0; i < r.devices.size(); i++) {
        r.devices[i].legacy.handle = cudaStreamLegacy;
        r.devices[i].legacy.device = int(i);
    }
}

Runtime::Runtime() {
    emu_default_options(&options);
    if (const char *text = getenv("INFERD_EMU")) {
        std::string all = text;
        for (size_t at = 0; at < all.size();) {
            size_t end = std::min(all.find(',', at), all.size());
            parse_item(*this, all.substr(at, end - at));
            at = end + 1;
        }
    }
    if (!valid_options(options)) {
        bad_environment(getenv("INFERD_EMU") ? getenv("INFERD_EMU") : "");
    }
    start_devices(*this);
    arm_handler();
}

/* Never destroyed: threads may still use it when the program ends. */
Runtime &runtime() {
    static Runtime *r = new Runtime;
    return *r;
}

/* ---- errors ---- */

cudaError_t remember(cudaError_t code) {
    if (code != cudaSuccess && code != cudaErrorNotReady) {
        thread_error = code;
    }
    return code;
}

cudaError_t fail(Runtime &r, cudaError_t code, const char *format, ...) {
    char text[1024];
    va_list ap;
    va_start(ap, format);
    vsnprintf(text, sizeof text, format, ap);
    va_end(ap);
    r.report = std::string(text) + " (" + cudaGetErrorName(code) + ")";
    if (r.options.verbose) {
        fprintf(stderr, "emulator: %s\n", r.report.c_str());
    }
    return remember(code);
}

static cudaError_t availability(Runtime &r) {
    if (r.options.driver_version < CUDART_VERSION) {
        return fail(r, cudaErrorInsufficientDriver, "the driver is of version %d", r.options.driver_version);
    }
    if (r.options.devices == 0) {
        return fail(r, cudaErrorNoDevice, "the driver finds no device");
    }
    return cudaSuccess;
}

Call::Call(bool need_device) : r(runtime()), lock(r.mutex), error(cudaSuccess) {
    if (emu_in_kernel() || in_host_function) {
        error = fail(r, cudaErrorNotPermitted, "a call of the runtime from inside of a stream's work");
    } else if (need_device) {
        error = availability(r);
        if (error == cudaSuccess) {
            Device &d = here(r);
            d.used = true;
            error = remember(d.sticky);
        }
    }
}

int current_device() {
    return thread_device;
}

Device &here(Runtime &r) {
    if (size_t(thread_device) >= r.devices.size()) {
        thread_device = 0; /* emu_configure took the device away */
    }
    return r.devices[size_t(thread_device)];
}

cudaError_t inject(Runtime &r, Lock &lock, emu_call call, cudaError_t *asynchronous) {
    r.counts.calls[call]++;
    if (r.injections.empty() || (!r.trigger.empty() && access(r.trigger.c_str(), F_OK) != 0)) {
        return cudaSuccess;
    }
    uint64_t n = ++r.seen[call];
    double stall = 0;
    cudaError_t code = cudaSuccess;
    for (const Injection &i : r.injections) {
        if (i.call == call && n >= i.first && n <= i.last) {
            stall += i.stall;
            code = i.code != cudaSuccess ? i.code : code;
        }
    }
    if (stall > 0) {
        lock.unlock();
        struct timespec t = {time_t(stall), long((stall - double(time_t(stall))) * 1e9)};
        nanosleep(&t, nullptr);
        lock.lock();
    }
    if (code == cudaSuccess) {
        return cudaSuccess;
    }
    if (is_sticky(code)) {
        if (asynchronous) {
            *asynchronous = code;
            return cudaSuccess;
        }
        here(r).sticky = code;
    }
    return fail(r, code, "injected into call %llu of %s", (unsigned long long)n, call_names[call]);
}

} // namespace emu

using namespace emu;

extern "C" {

const char *cudaGetErrorName(cudaError_t error) {
    for (const auto &e : error_table) {
        if (e.code == error) {
            return e.name;
        }
    }
    return "unrecognized error code";
}

const char *cudaGetErrorString(cudaError_t error) {
    for (const auto &e : error_table) {
        if (e.code == error) {
            return e.text;
        }
    }
    return "unrecognized error code";
}

cudaError_t cudaGetLastError(void) {
    Runtime &r = runtime();
    Lock lock(r.mutex);
    cudaError_t code = thread_error;
    thread_error = cudaSuccess;
    return !r.devices.empty() && here(r).sticky != cudaSuccess ? here(r).sticky : code;
}

cudaError_t cudaPeekAtLastError(void) {
    Runtime &r = runtime();
    Lock lock(r.mutex);
    return !r.devices.empty() && here(r).sticky != cudaSuccess ? here(r).sticky : thread_error;
}

cudaError_t cudaDriverGetVersion(int *driverVersion) {
    Call c(false);
    if (!driverVersion) {
        return fail(c.r, cudaErrorInvalidValue, "cudaDriverGetVersion: no place for the answer");
    }
    *driverVersion = c.r.options.driver_version;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *runtimeVersion) {
    if (!runtimeVersion) {
        Call c(false);
        return fail(c.r, cudaErrorInvalidValue, "cudaRuntimeGetVersion: no place for the answer");
    }
    *runtimeVersion = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *count) {
    Call c(false);
    if (!count) {
        return fail(c.r, cudaErrorInvalidValue, "cudaGetDeviceCount: no place for the answer");
    }
    *count = 0;
    cudaError_t error = availability(c.r);
    if (error == cudaSuccess) {
        *count = c.r.options.devices;
    }
    return error;
}

/* Also for queries, which make no context: an error for an ordinal that does not exist. */
static cudaError_t check_ordinal(Call &c, int device, const char *what) {
    cudaError_t error = availability(c.r);
    if (error == cudaSuccess && (device < 0 || device >= c.r.options.devices)) {
        error = fail(c.r, cudaErrorInvalidDevice, "%s: device %d of %d", what, device, c.r.options.devices);
    }
    return error;
}

cudaError_t cudaSetDevice(int device) {
    Call c(false);
    cudaError_t error = check_ordinal(c, device, "cudaSetDevice");
    if (error != cudaSuccess) {
        return error;
    }
    thread_device = device;
    Device &d = here(c.r);
    d.used = true; /* as of CUDA 12 */
    return remember(d.sticky);
}

cudaError_t cudaGetDevice(int *device) {
    Call c(false);
    cudaError_t error = availability(c.r);
    if (error == cudaSuccess && !device) {
        error = fail(c.r, cudaErrorInvalidValue, "cudaGetDevice: no place for the answer");
    }
    if (error == cudaSuccess) {
        *device = thread_device;
    }
    return error;
}

/* Shared memory: of a multiprocessor, and what a block may opt in to (all but 1 KB). CUDA programming guide, table of
 * compute capabilities. */
static size_t shared_of_multiprocessor(int compute) {
    return size_t(compute >= 90 ? 228 : compute == 80 || compute == 87 ? 164 : 100) << 10;
}

static int threads_of_multiprocessor(int compute) {
    return compute == 80 || compute == 87 || compute >= 90 ? 2048 : 1536;
}

static int blocks_of_multiprocessor(int compute) {
    return compute == 80 || compute == 87 || compute >= 90 ? 32 : compute == 89 ? 24 : 16;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *prop, int device) {
    Call c(false);
    cudaError_t error = check_ordinal(c, device, "cudaGetDeviceProperties");
    if (error == cudaSuccess && !prop) {
        error = fail(c.r, cudaErrorInvalidValue, "cudaGetDeviceProperties: no place for the answer");
    }
    if (error != cudaSuccess) {
        return error;
    }
    const emu_options &o = c.r.options;
    struct cudaDeviceProp p = {};
    memcpy(p.name, o.name, sizeof o.name);
    p.uuid.bytes[0] = 'e';
    p.uuid.bytes[15] = char(device);
    p.totalGlobalMem = o.memory_bytes;
    p.sharedMemPerBlock = 48 << 10;
    p.regsPerBlock = 65536;
    p.warpSize = 32;
    p.maxThreadsPerBlock = 1024;
    p.maxThreadsDim[0] = p.maxThreadsDim[1] = 1024;
    p.maxThreadsDim[2] = 64;
    p.maxGridSize[0] = INT32_MAX;
    p.maxGridSize[1] = p.maxGridSize[2] = 65535;
    p.totalConstMem = 64 << 10;
    p.major = o.compute / 10;
    p.minor = o.compute % 10;
    p.multiProcessorCount = o.sm_count;
    p.canMapHostMemory = p.concurrentKernels = p.unifiedAddressing = p.streamPrioritiesSupported = 1;
    p.cooperativeLaunch = 1;
    p.asyncEngineCount = 3;
    p.pciBusID = device + 1;
    p.memoryBusWidth = 5120;
    p.l2CacheSize = 40 << 20;
    p.maxThreadsPerMultiProcessor = threads_of_multiprocessor(o.compute);
    p.maxBlocksPerMultiProcessor = blocks_of_multiprocessor(o.compute);
    p.sharedMemPerMultiprocessor = shared_of_multiprocessor(o.compute);
    p.sharedMemPerBlockOptin = p.sharedMemPerMultiprocessor - 1024;
    p.reservedSharedMemPerBlock = 1024;
    p.regsPerMultiprocessor = 65536;
    *prop = p;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attr, int device) {
    struct cudaDeviceProp p;
    cudaError_t error = cudaGetDeviceProperties(&p, device);
    if (error != cudaSuccess) {
        return error;
    }
    const struct {
        enum cudaDeviceAttr attr;
        size_t value;
    } table[] = {
        {cudaDevAttrMaxThreadsPerBlock, size_t(p.maxThreadsPerBlock)},
        {cudaDevAttrMaxBlockDimX, size_t(p.maxThreadsDim[0])},
        {cudaDevAttrMaxBlockDimY, size_t(p.maxThreadsDim[1])},
        {cudaDevAttrMaxBlockDimZ, size_t(p.maxThreadsDim[2])},
        {cudaDevAttrMaxGridDimX, size_t(p.maxGridSize[0])},
        {cudaDevAttrMaxGridDimY, size_t(p.maxGridSize[1])},
        {cudaDevAttrMaxGridDimZ, size_t(p.maxGridSize[2])},
        {cudaDevAttrMaxSharedMemoryPerBlock, p.sharedMemPerBlock},
        {cudaDevAttrTotalConstantMemory, p.totalConstMem},
        {cudaDevAttrWarpSize, size_t(p.warpSize)},
        {cudaDevAttrMaxRegistersPerBlock, size_t(p.regsPerBlock)},
        {cudaDevAttrClockRate, 1410000},
        {cudaDevAttrMultiProcessorCount, size_t(p.multiProcessorCount)},
        {cudaDevAttrIntegrated, 0},
        {cudaDevAttrCanMapHostMemory, 1},
        {cudaDevAttrComputeMode, 0},
        {cudaDevAttrConcurrentKernels, 1},
        {cudaDevAttrEccEnabled, 0},
        {cudaDevAttrPciBusId, size_t(p.pciBusID)},
        {cudaDevAttrPciDeviceId, size_t(p.pciDeviceID)},
        {cudaDevAttrMemoryClockRate, 1512000},
        {cudaDevAttrGlobalMemoryBusWidth, size_t(p.memoryBusWidth)},
        {cudaDevAttrL2CacheSize, size_t(p.l2CacheSize)},
        {cudaDevAttrMaxThreadsPerMultiProcessor, size_t(p.maxThreadsPerMultiProcessor)},
        {cudaDevAttrAsyncEngineCount, size_t(p.asyncEngineCount)},
        {cudaDevAttrUnifiedAddressing, 1},
        {cudaDevAttrPciDomainId, size_t(p.pciDomainID)},
        {cudaDevAttrComputeCapabilityMajor, size_t(p.major)},
        {cudaDevAttrComputeCapabilityMinor, size_t(p.minor)},
        {cudaDevAttrStreamPrioritiesSupported, 1},
        {cudaDevAttrMaxSharedMemoryPerMultiprocessor, p.sharedMemPerMultiprocessor},
        {cudaDevAttrMaxRegistersPerMultiprocessor, size_t(p.regsPerMultiprocessor)},
        {cudaDevAttrManagedMemory, 0},
        {cudaDevAttrCooperativeLaunch, 1},
        {cudaDevAttrMaxSharedMemoryPerBlockOptin, p.sharedMemPerBlockOptin},
        {cudaDevAttrHostRegisterSupported, 1},
        {cudaDevAttrMaxBlocksPerMultiprocessor, size_t(p.maxBlocksPerMultiProcessor)},
        {cudaDevAttrReservedSharedMemoryPerBlock, p.reservedSharedMemPerBlock},
        {cudaDevAttrMemoryPoolsSupported, 0},
    };
    for (const auto &row : table) {
        if (row.attr == attr && value) {
            *value = int(row.value);
            return cudaSuccess;
        }
    }
    Call c(false);
    return fail(c.r, cudaErrorInvalidValue, "cudaDeviceGetAttribute: attribute %d is not known here", int(attr));
}

cudaError_t cudaDeviceGetPCIBusId(char *pciBusId, int len, int device) {
    Call c(false);
    cudaError_t error = check_ordinal(c, device, "cudaDeviceGetPCIBusId");
    if (error == cudaSuccess && (!pciBusId || len < 13)) {
        error = fail(c.r, cudaErrorInvalidValue, "cudaDeviceGetPCIBusId: %d bytes do not hold the answer", len);
    }
    if (error == cudaSuccess) {
        snprintf(pciBusId, size_t(len), "0000:%02X:00.0", unsigned(device + 1) & 0xffu);
    }
    return error;
}

cudaError_t cudaInitDevice(int device, unsigned int, unsigned int) {
    Call c(false);
    cudaError_t error = check_ordinal(c, device, "cudaInitDevice");
    if (error == cudaSuccess) {
        c.r.devices[size_t(device)].used = true;
        error = remember(c.r.devices[size_t(device)].sticky);
    }
    return error;
}

cudaError_t cudaSetDeviceFlags(unsigned int flags) {
    Call c(false);
    cudaError_t error = availability(c.r);
    if (error == cudaSuccess && (flags & ~15u)) {
        error = fail(c.r, cudaErrorInvalidValue, "cudaSetDeviceFlags: %#x", flags);
    }
    return error;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *leastPriority, int *greatestPriority) {
    Call c;
    if (c.error == cudaSuccess) {
        if (leastPriority) {
            *leastPriority = 0;
        }
        if (greatestPriority) {
            *greatestPriority = -5;
        }
    }
    return c.error;
}

cudaError_t cudaDeviceSynchronize(void) {
    Call c;
    cudaError_t error = c.error;
    if (error == cudaSuccess) {
        for (const CapturePtr &capture : c.r.captures) {
            Stream *s = find_stream(c.r, capture->origin);
            if (s && s->device == thread_device) {
                return invalidate(c.r, capture, cudaErrorStreamCaptureUnsupported, "cudaDeviceSynchronize");
            }
        }
        error = refuse_while_capturing(c.r, "cudaDeviceSynchronize");
    }
    if (error == cudaSuccess) {
        error = inject(c.r, c.lock, EMU_CALL_SYNC, nullptr);
    }
    return error == cudaSuccess ? wait_for_device(c.r, c.lock, thread_device) : error;
}

/* Everything of the device: its queues are dropped, not done. */
static void end_device(Runtime &r, Lock &lock, int device) {
    end_captures(r, device);
    drop_pending(r, lock, device);
    for (auto i = r.streams.begin(); i != r.streams.end();) {
        i = i->second->device == device ? r.streams.erase(i) : std::next(i);
    }
    for (auto i = r.events.begin(); i != r.events.end();) {
        i = i->second->device == device ? r.events.erase(i) : std::next(i);
    }
    release_memory(r, device);
    Device fresh;
    fresh.legacy.handle = cudaStreamLegacy;
    fresh.legacy.device = device;
    r.devices[size_t(device)] = std::move(fresh);
}

cudaError_t cudaDeviceReset(void) {
    Call c(false);
    cudaError_t error = availability(c.r);
    if (error != cudaSuccess) {
        return error;
    }
    int device = thread_device;
    while (c.r.devices[size_t(device)].busy) {
        c.r.changed.wait(c.lock);
    }
    end_device(c.r, c.lock, device);
    for (auto i = c.r.execs.begin(); i != c.r.execs.end();) {
        bool of_device = !i->second->graph->nodes.empty() && i->second->graph->nodes[0].device == device;
        i = of_device ? c.r.execs.erase(i) : std::next(i);
    }
    thread_error = cudaSuccess;
    return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int *canAccessPeer, int device, int peerDevice) {
    Call c(false);
    cudaError_t error = check_ordinal(c, device, "cudaDeviceCanAccessPeer");
    if (error == cudaSuccess) {
        error = check_ordinal(c, peerDevice, "cudaDeviceCanAccessPeer");
    }
    if (error == cudaSuccess) {
        *canAccessPeer = device != peerDevice;
    }
    return error;
}

cudaError_t cudaDeviceEnablePeerAccess(int peerDevice, unsigned int flags) {
    Call c;
    cudaError_t error = c.error != cudaSuccess ? c.error : check_ordinal(c, peerDevice, "cudaDeviceEnablePeerAccess");
    if (error != cudaSuccess) {
        return error;
    }
    if (flags != 0 || peerDevice == thread_device) {
        return fail(c.r, flags != 0 ? cudaErrorInvalidValue : cudaErrorInvalidDevice,
                    "cudaDeviceEnablePeerAccess: device %d from %d, flags %u", peerDevice, thread_device, flags);
    }
    if (here(c.r).peers >> peerDevice & 1u) {
        return fail(c.r, cudaErrorPeerAccessAlreadyEnabled, "cudaDeviceEnablePeerAccess: device %d from %d", peerDevice,
                    thread_device);
    }
    here(c.r).peers |= 1u << peerDevice;
    return cudaSuccess;
}

cudaError_t cudaDeviceDisablePeerAccess(int peerDevice) {
    Call c;
    cudaError_t error = c.error != cudaSuccess ? c.error : check_ordinal(c, peerDevice, "cudaDeviceDisablePeerAccess");
    if (error != cudaSuccess) {
        return error;
    }
    if (!(here(c.r).peers >> peerDevice & 1u)) {
        return fail(c.r, cudaErrorPeerAccessNotEnabled, "cudaDeviceDisablePeerAccess: device %d from %d", peerDevice,
                    thread_device);
    }
    here(c.r).peers &= ~(1u << peerDevice);
    return cudaSuccess;
}

/* ---- kernels' attributes ---- */

cudaError_t cudaFuncSetAttribute(const void *func, enum cudaFuncAttribute attr, int value) {
    Call c;
    if (c.error != cudaSuccess) {
        return c.error;
    }
    if (!func) {
        return fail(c.r, cudaErrorInvalidDeviceFunction, "cudaFuncSetAttribute: no function");
    }
    if (attr == cudaFuncAttributePreferredSharedMemoryCarveout && value >= -1 && value <= 100) {
        return cudaSuccess;
    }
    int optin = int(shared_of_multiprocessor(c.r.options.compute)) - 1024;
    if (attr != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 || value > optin) {
        return fail(c.r, cudaErrorInvalidValue, "cudaFuncSetAttribute: attribute %d, value %d; a block may have %d bytes",
                    int(attr), value, optin);
    }
    here(c.r).shared_allowed[func] = value;
    return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attr, const void *func) {
    Call c;
    if (c.error != cudaSuccess) {
        return c.error;
    }
    if (!attr || !func) {
        return fail(c.r, func ? cudaErrorInvalidValue : cudaErrorInvalidDeviceFunction, "cudaFuncGetAttributes: NULL");
    }
    *attr = {};
    attr->maxThreadsPerBlock = 1024;
    attr->ptxVersion = attr->binaryVersion = c.r.options.compute;
    auto found = here(c.r).shared_allowed.find(func);
    attr->maxDynamicSharedSizeBytes = found == here(c.r).shared_allowed.end() ? 48 << 10 : found->second;
    attr->preferredShmemCarveout = -1;
    return cudaSuccess;
}

/* By threads, blocks and shared memory; the emulator knows of no registers. */
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *numBlocks, const void *func, int blockSize,
                                                          size_t dynamicSMemSize) {
    Call c;
    if (c.error != cudaSuccess) {
        return c.error;
    }
    if (!numBlocks || !func || blockSize <= 0) {
        return fail(c.r, func ? cudaErrorInvalidValue : cudaErrorInvalidDeviceFunction,
                    "cudaOccupancyMaxActiveBlocksPerMultiprocessor: blocks of %d threads", blockSize);
    }
    int compute = c.r.options.compute;
    auto found = here(c.r).shared_allowed.find(func);
    size_t allowed = found == here(c.r).shared_allowed.end() ? size_t(48) << 10 : size_t(found->second);
    int warps = (blockSize + 31) / 32;
    int blocks = std::min(blocks_of_multiprocessor(compute), threads_of_multiprocessor(compute) / (32 * warps));
    blocks = std::min(blocks, int(shared_of_multiprocessor(compute) / (dynamicSMemSize + 1024)));
    *numBlocks = blockSize > 1024 || dynamicSMemSize > allowed ? 0 : blocks;
    return cudaSuccess;
}

/* ---- emu.h ---- */

void emu_default_options(struct emu_options *options) {
    *options = {};
    options->devices = 1;
    snprintf(options->name, sizeof options->name, "Emulated GPU");
    options->sm_count = 4;
    options->compute = 80;
    options->memory_bytes = size_t(2) << 30;
    options->context_bytes = size_t(16) << 20;
    options->driver_version = CUDART_VERSION;
    options->order = EMU_ORDER_RANDOM;
    options->seed = 1;
    options->protect = options->poison = true;
    options->alignment = 16;
}

void emu_get_options(struct emu_options *options) {
    Runtime &r = runtime();
    Lock lock(r.mutex);
    *options = r.options;
}

cudaError_t emu_configure(const struct emu_options *options) {
    Runtime &r = runtime();
    Lock lock(r.mutex);
    if (!valid_options(*options)) {
        return fail(r, cudaErrorInvalidValue, "emu_configure: nonsense");
    }
    for (size_t i = 0; i < r.devices.size(); i++) {
        while (r.devices[i].busy) {
            r.changed.wait(lock);
        }
        end_device(r, lock, int(i));
    }
    r.execs.clear();
    r.graphs.clear();
    r.injections.clear();
    r.freed.clear();
    r.counts = {};
    r.report.clear();
    r.options = *options;
    start_devices(r);
    thread_error = cudaSuccess;
    thread_device = 0;
    return cudaSuccess;
}

void emu_inject(enum emu_call call, uint64_t n, uint64_t count, cudaError_t code) {
    Runtime &r = runtime();
    Lock lock(r.mutex);
    r.injections.push_back({call, r.seen[call] + n, r.seen[call] + n + count - 1, code, 0});
}

void emu_inject_stall(enum emu_call call, uint64_t n, double seconds) {
    Runtime &r = runtime();
    Lock lock(r.mutex);
    r.injections.push_back({call, r.seen[call] + n, r.seen[call] + n, cudaSuccess, seconds});
}

void emu_inject_clear(void) {
    Runtime &r = runtime();
    Lock lock(r.mutex);
    r.injections.clear();
}

void emu_get_counts(struct emu_counts *counts) {
    Runtime &r = runtime();
    Lock lock(r.mutex);
    *counts = r.counts;
    counts->allocations = r.allocations.size();
    counts->streams = r.streams.size();
    counts->events = r.events.size();
    counts->graphs = r.graphs.size() + r.execs.size();
    counts->pending = r.pending.size();
    for (const auto &a : r.allocations) {
        if (!a.second.host) {
            counts->device_bytes[a.second.device] += a.second.size;
        } else {
            counts->host_bytes += a.second.size;
        }
    }
}

void emu_reset_counts(void) {
    Runtime &r = runtime();
    Lock lock(r.mutex);
    r.counts = {};
}

void emu_get_report(char *text, size_t size) {
    Runtime &r = runtime();
    Lock lock(r.mutex);
    snprintf(text, size, "%s", r.report.c_str());
}

size_t emu_check_memory(void) {
    Runtime &r = runtime();
    Lock lock(r.mutex);
    return check_canaries(r);
}
}

struct emu_limits emu_stream_limits(cudaStream_t stream) {
    Runtime &r = runtime();
    Lock lock(r.mutex);
    (void)stream; /* all devices are alike */
    return {r.options.compute, shared_of_multiprocessor(r.options.compute) - 1024};
}

size_t emu_shared_allowed(cudaStream_t stream, const void *function) {
    Runtime &r = runtime();
    Lock lock(r.mutex);
    Stream *s = find_stream(r, stream);
    size_t allowed = 48 << 10;
    if (s) {
        Device &d = r.devices[size_t(s->device)];
        auto found = d.shared_allowed.find(function);
        if (found != d.shared_allowed.end()) {
            allowed = size_t(found->second);
        }
    }
    return allowed;
}
