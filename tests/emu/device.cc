/* Devices, errors and attributes of kernels. */
#include "emu_launch.h"
#include "runtime.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

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
    {cudaErrorInvalidPitchValue, "cudaErrorInvalidPitchValue", "invalid pitch argument"},
    {cudaErrorInvalidMemcpyDirection, "cudaErrorInvalidMemcpyDirection", "invalid copy direction for memcpy"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver",
     "CUDA driver version is insufficient for CUDA runtime version"},
    {cudaErrorDevicesUnavailable, "cudaErrorDevicesUnavailable", "CUDA-capable device(s) is/are busy or unavailable"},
    {cudaErrorInvalidDeviceFunction, "cudaErrorInvalidDeviceFunction", "invalid device function"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorNoKernelImageForDevice, "cudaErrorNoKernelImageForDevice",
     "no kernel image is available for execution on the device"},
    {cudaErrorECCUncorrectable, "cudaErrorECCUncorrectable", "uncorrectable ECC error encountered"},
    {cudaErrorPeerAccessUnsupported, "cudaErrorPeerAccessUnsupported",
     "peer access is not supported between these two devices"},
    {cudaErrorNvlinkUncorrectable, "cudaErrorNvlinkUncorrectable",
     "uncorrectable NVLink error detected during the execution"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorIllegalState, "cudaErrorIllegalState", "the operation cannot be performed in the present state"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
    {cudaErrorLaunchOutOfResources, "cudaErrorLaunchOutOfResources", "too many resources requested for launch"},
    {cudaErrorLaunchTimeout, "cudaErrorLaunchTimeout", "the launch timed out and was terminated"},
    {cudaErrorPeerAccessAlreadyEnabled, "cudaErrorPeerAccessAlreadyEnabled", "peer access is already enabled"},
    {cudaErrorPeerAccessNotEnabled, "cudaErrorPeerAccessNotEnabled", "peer access has not been enabled"},
    {cudaErrorAssert, "cudaErrorAssert", "device-side assert triggered"},
    {cudaErrorHostMemoryAlreadyRegistered, "cudaErrorHostMemoryAlreadyRegistered",
     "part or all of the requested memory range is already mapped"},
    {cudaErrorHostMemoryNotRegistered, "cudaErrorHostMemoryNotRegistered",
     "pointer does not correspond to a registered memory region"},
    {cudaErrorHardwareStackError, "cudaErrorHardwareStackError", "hardware stack error"},
    {cudaErrorIllegalInstruction, "cudaErrorIllegalInstruction", "an illegal instruction was encountered"},
    {cudaErrorMisalignedAddress, "cudaErrorMisalignedAddress", "misaligned address"},
    {cudaErrorInvalidAddressSpace, "cudaErrorInvalidAddressSpace",
     "operation not supported on global/shared address space"},
    {cudaErrorInvalidPc, "cudaErrorInvalidPc", "invalid program counter"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {cudaErrorNotPermitted, "cudaErrorNotPermitted", "operation not permitted"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
    {cudaErrorSystemNotReady, "cudaErrorSystemNotReady", "system not yet initialized"},
    {cudaErrorSystemDriverMismatch, "cudaErrorSystemDriverMismatch",
     "system has unsupported display driver / cuda driver combination"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
     "operation not permitted when stream is capturing"},
    {cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated",
     "operation failed due to a previous error during capture"},
    {cudaErrorStreamCaptureMerge, "cudaErrorStreamCaptureMerge",
     "operation would result in a merge of separate capture sequences"},
    {cudaErrorStreamCaptureUnmatched, "cudaErrorStreamCaptureUnmatched",
     "capture was not ended in the same stream as it began"},
    {cudaErrorStreamCaptureUnjoined, "cudaErrorStreamCaptureUnjoined", "capturing stream has unjoined work"},
    {cudaErrorStreamCaptureIsolation, "cudaErrorStreamCaptureIsolation",
     "dependency created on uncaptured work in another stream"},
    {cudaErrorStreamCaptureImplicit, "cudaErrorStreamCaptureImplicit",
     "operation would make the legacy stream depend on a capturing blocking stream"},
    {cudaErrorCapturedEvent, "cudaErrorCapturedEvent",
     "operation not permitted on an event last recorded in a capturing stream"},
    {cudaErrorStreamCaptureWrongThread, "cudaErrorStreamCaptureWrongThread",
     "attempt to terminate a thread-local capture sequence from another thread"},
    {cudaErrorGraphExecUpdateFailure, "cudaErrorGraphExecUpdateFailure",
     "the graph update was not performed because it included changes which violated constraints specific to "
     "instantiated graph update"},
    {cudaErrorUnknown, "cudaErrorUnknown", "unknown error"},
};

bool is_sticky(cudaError_t code) {
    return code == cudaErrorECCUncorrectable || code == cudaErrorNvlinkUncorrectable ||
           (code >= cudaErrorIllegalAddress && code <= cudaErrorLaunchFailure &&
            code != cudaErrorLaunchOutOfResources &&
            !(code >= cudaErrorPeerAccessAlreadyEnabled && code <= cudaErrorContextIsDestroyed) &&
            code != cudaErrorTooManyPeers && code != cudaErrorHostMemoryAlreadyRegistered &&
            code != cudaErrorHostMemoryNotRegistered);
}

/* ---- errors ---- */

cudaError_t remember(cudaError_t code) {
    if (code != cudaSuccess && code != cudaErrorNotReady && !is_sticky(code)) { /* those stay with the device */
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
    return remember(note(r, code, "%s", text));
}

cudaError_t take_last_error(Runtime &r) {
    cudaError_t code = thread_error;
    thread_error = cudaSuccess;
    return !r.devices.empty() && here(r).sticky != cudaSuccess ? here(r).sticky : code;
}

void use_first_device() {
    thread_device = 0;
    thread_error = cudaSuccess;
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

Call::~Call() {
    if (lock.owns_lock()) {
        r.counts.calls_ns += uint64_t(1e9 * (now() - began));
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

/* Shared memory: of a multiprocessor, and what a block may opt in to (all but 1 KB). CUDA programming guide, table of
 * compute capabilities. */
static size_t shared_of_multiprocessor(int compute) {
    return size_t(compute >= 90 ? 228 : compute == 80 || compute == 87 ? 164 : 100) << 10;
}

size_t shared_of_block(int compute) {
    return shared_of_multiprocessor(compute) - 1024;
}

void end_device(Runtime &r, Lock &lock, int device) {
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
    return take_last_error(r);
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
    p.sharedMemPerBlockOptin = shared_of_block(o.compute);
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
        *canAccessPeer = device != peerDevice && c.r.options.peers != EMU_PEERS_NONE;
    }
    return error;
}

cudaError_t cudaDeviceGetP2PAttribute(int *value, enum cudaDeviceP2PAttr attr, int srcDevice, int dstDevice) {
    int can;
    cudaError_t error = cudaDeviceCanAccessPeer(&can, srcDevice, dstDevice);
    Call c(false);
    if (error != cudaSuccess || srcDevice == dstDevice) {
        return error != cudaSuccess ? error : fail(c.r, cudaErrorInvalidDevice, "cudaDeviceGetP2PAttribute: device %d and itself", srcDevice);
    }
    bool pcie = c.r.options.peers == EMU_PEERS_PCIE;
    switch (attr) {
    case cudaDevP2PAttrAccessSupported:
        *value = can;
        return cudaSuccess;
    case cudaDevP2PAttrNativeAtomicSupported:
        *value = can && !pcie;
        return cudaSuccess;
    case cudaDevP2PAttrPerformanceRank:
        *value = pcie;
        return cudaSuccess;
    }
    return fail(c.r, cudaErrorInvalidValue, "cudaDeviceGetP2PAttribute: attribute %d", int(attr));
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

static void load_function(Runtime &r, Device &d, const void *function) {
    r.counts.functions_loaded += d.loaded.insert(function).second;
}

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
    int optin = int(shared_of_block(c.r.options.compute));
    if (attr != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 || value > optin) {
        return fail(c.r, cudaErrorInvalidValue,
                    "cudaFuncSetAttribute: attribute %d, value %d; a block may have %d bytes", int(attr), value, optin);
    }
    here(c.r).shared_allowed[func] = value;
    load_function(c.r, here(c.r), func);
    c.r.counts.attributes_set++;
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
}

struct emu_limits emu_stream_limits(cudaStream_t stream) {
    Runtime &r = runtime();
    Lock lock(r.mutex);
    (void)stream; /* all devices are alike */
    return {r.options.compute, shared_of_block(r.options.compute)};
}

size_t emu_shared_allowed(cudaStream_t stream, const void *function) {
    Runtime &r = runtime();
    Lock lock(r.mutex);
    Stream *s = find_stream(r, stream);
    size_t allowed = 48 << 10;
    if (s) {
        Device &d = r.devices[size_t(s->device)];
        load_function(r, d, function);
        auto found = d.shared_allowed.find(function);
        if (found != d.shared_allowed.end()) {
            allowed = size_t(found->second);
        }
    }
    return allowed;
}
