/* Devices and their absence, errors that stay and errors that do not, and errors that are ordered. */
#include "cublasLt.h"
#include "device.cuh"
#include "test_emu_runtime.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void set_value(int *p, int value) {
    if (threadIdx.x == 0) {
        *p = value;
    }
}
struct big_block {
    unsigned char bytes[100 << 10];
};
static void use_shared(int *p) {
    SHARED(big_block, s);
    s.bytes[threadIdx.x] = (unsigned char)threadIdx.x;
    if (threadIdx.x == 0) {
        *p = s.bytes[0];
    }
}

static double seconds() {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
}

static void test_devices() {
    begin(1, EMU_ORDER_RANDOM, 3);
    struct emu_options o;
    emu_get_options(&o);
    o.compute = 90;
    o.sm_count = 7;
    snprintf(o.name, sizeof o.name, "A device");
    OK(emu_configure(&o));
    int n, v;
    struct cudaDeviceProp p;
    char id[32], other[32];
    OK(cudaGetDeviceCount(&n));
    OK(cudaGetDeviceProperties(&p, 2));
    CHECK(n == 3 && strcmp(p.name, "A device") == 0 && p.major == 9 && p.minor == 0 && p.multiProcessorCount == 7);
    CHECK(p.sharedMemPerBlockOptin == 227 << 10 && p.sharedMemPerBlock == 48 << 10 &&
          p.totalGlobalMem == o.memory_bytes);
    OK(cudaDeviceGetAttribute(&v, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0));
    CHECK(v == 227 << 10);
    OK(cudaDeviceGetAttribute(&v, cudaDevAttrComputeCapabilityMajor, 0));
    CHECK(v == 9);
    REFUSED(cudaErrorInvalidValue, cudaDeviceGetAttribute(&v, cudaDeviceAttr(126), 0));
    OK(cudaDeviceGetPCIBusId(id, sizeof id, 0));
    OK(cudaDeviceGetPCIBusId(other, sizeof other, 1));
    CHECK(strcmp(id, other) != 0);
    REFUSED(cudaErrorInvalidDevice, cudaSetDevice(3));
    REFUSED(cudaErrorInvalidDevice, cudaSetDevice(-1));
    REFUSED(cudaErrorInvalidDevice, cudaGetDeviceProperties(&p, 3));
    OK(cudaSetDevice(2));
    OK(cudaGetDevice(&v));
    CHECK(v == 2);
    OK(cudaDriverGetVersion(&v));
    CHECK(v == 13000);
    o.alignment = 5;
    REFUSED(cudaErrorInvalidValue, emu_configure(&o));
    CHECK(strcmp(cudaGetErrorName(cudaErrorIllegalAddress), "cudaErrorIllegalAddress") == 0);
    CHECK(strcmp(cudaGetErrorString(cudaErrorMemoryAllocation), "out of memory") == 0);
    CHECK(strcmp(cudaGetErrorString(cudaError_t(1001)), "unrecognized error code") == 0);
}

static void test_no_device() {
    struct emu_options o;
    int n = 9, *p;
    cublasLtHandle_t handle;
    for (int driver : {0, 12040, 13000}) {
        emu_default_options(&o);
        o.driver_version = driver;
        o.devices = driver < 13000 ? 1 : 0;
        OK(emu_configure(&o));
        cudaError_t code = driver < 13000 ? cudaErrorInsufficientDriver : cudaErrorNoDevice;
        REFUSED(code, cudaGetDeviceCount(&n));
        CHECK(n == 0);
        REFUSED(code, cudaSetDevice(0));
        REFUSED(code, cudaMalloc(&p, 4));
        REFUSED(code, cudaDeviceSynchronize());
        CHECK(cublasLtCreate(&handle) == CUBLAS_STATUS_NOT_INITIALIZED);
        (void)cudaGetLastError();
        OK(cudaDriverGetVersion(&n));
        CHECK(n == driver);
        OK(cudaRuntimeGetVersion(&n));
        CHECK(n == 13000);
    }
}

/* A fault stays with its device until it is reset; another error is told once. */
static void test_sticky() {
    begin(1, EMU_ORDER_RANDOM, 2);
    cudaStream_t s;
    int *p, *pinned;
    OK(cudaStreamCreate(&s));
    OK(cudaMalloc(&p, 16));
    OK(cudaMallocHost(&pinned, sizeof *pinned));
    *pinned = 1;
    OK(LAUNCH(set_value, 1, 32, 0, s, p + 4, 1));
    OK(LAUNCH(set_value, 1, 32, 0, s, pinned, 2)); /* not done any more */
    REFUSED(cudaErrorIllegalAddress, cudaStreamSynchronize(s));
    CHECK(*pinned == 1);
    CHECK(report_has("set_value failed on device 0"));
    int *q;
    cudaEvent_t e;
    size_t bytes;
    REFUSED(cudaErrorIllegalAddress, cudaMalloc(&q, 4));
    REFUSED(cudaErrorIllegalAddress, cudaFree(p));
    REFUSED(cudaErrorIllegalAddress, cudaEventCreate(&e));
    REFUSED(cudaErrorIllegalAddress, cudaMemGetInfo(&bytes, &bytes));
    REFUSED(cudaErrorIllegalAddress, LAUNCH(set_value, 1, 32, 0, s, p, 2));
    REFUSED(cudaErrorIllegalAddress, cudaDeviceSynchronize());
    REFUSED(cudaErrorIllegalAddress, cudaStreamDestroy(s));
    REFUSED(cudaErrorIllegalAddress, cudaPeekAtLastError());
    OK(cudaSetDevice(1)); /* the other is well */
    OK(cudaMalloc(&q, 4));
    OK(LAUNCH(set_value, 1, 32, 0, nullptr, q, 2));
    OK(cudaDeviceSynchronize());
    REFUSED(cudaErrorIllegalAddress, cudaSetDevice(0));
    OK(cudaDeviceReset());
    OK(cudaDeviceSynchronize());
    REFUSED(cudaErrorInvalidResourceHandle, cudaStreamSynchronize(s));
    REFUSED(cudaErrorInvalidValue, cudaFree(p));
    OK(cudaMalloc(&p, 4));
    OK(cudaFree(p));
    OK(cudaFree(q)); /* of the other device, which was not reset */
}

static void test_last_error() {
    begin();
    CHECK(LAUNCH(set_value, 1, 2048, 0, nullptr, static_cast<int *>(nullptr), 2) == cudaErrorInvalidConfiguration);
    CHECK(cudaSetDevice(9) == cudaErrorInvalidDevice);
    CHECK(cudaDeviceSynchronize() == cudaSuccess && cudaPeekAtLastError() == cudaErrorInvalidDevice);
    CHECK(cudaGetLastError() == cudaErrorInvalidDevice && cudaGetLastError() == cudaSuccess);
    int *p; /* a launch asks for it too */
    OK(cudaMalloc(&p, 4));
    CHECK(cudaSetDevice(9) == cudaErrorInvalidDevice);
    CHECK(LAUNCH(set_value, 1, 32, 0, nullptr, p, 1) == cudaErrorInvalidDevice);
    OK(LAUNCH(set_value, 1, 32, 0, nullptr, p, 1));
    OK(cudaDeviceSynchronize());
}

static void test_shared_memory() {
    begin();
    int *p, blocks;
    struct cudaFuncAttributes attributes;
    OK(cudaMalloc(&p, 4));
    CHECK(LAUNCH(use_shared, 1, 64, sizeof(big_block), nullptr, p) == cudaErrorInvalidValue);
    REFUSED(cudaErrorInvalidValue,
            cudaFuncSetAttribute(use_shared, cudaFuncAttributeMaxDynamicSharedMemorySize, (163 << 10) + 1));
    OK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, use_shared, 64, sizeof(big_block)));
    CHECK(blocks == 0);
    OK(cudaFuncSetAttribute(use_shared, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(big_block)));
    OK(cudaFuncGetAttributes(&attributes, use_shared));
    CHECK(attributes.maxDynamicSharedSizeBytes == sizeof(big_block) && attributes.maxThreadsPerBlock == 1024);
    OK(LAUNCH(use_shared, 1, 64, sizeof(big_block), nullptr, p));
    OK(cudaDeviceSynchronize());
    const struct {
        int threads;
        size_t shared;
        int blocks;
    } expected[] = {{64, 100 << 10, 1}, {64, 0, 32}, {1024, 0, 2}, {33, 0, 32},
                    {256, 40 << 10, 4}, {96, 0, 21}, {2000, 0, 0}};
    for (const auto &e : expected) {
        OK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, use_shared, e.threads, e.shared));
        CHECK(blocks == e.blocks);
    }
}

/* ---- injection ---- */

static void test_injection() {
    begin();
    int *p, *q;
    cudaStream_t s;
    emu_inject(EMU_CALL_MALLOC, 2, 1, cudaErrorMemoryAllocation);
    OK(cudaMalloc(&p, 4));
    REFUSED(cudaErrorMemoryAllocation, cudaMalloc(&q, 4));
    CHECK(report_has("injected into call 2 of malloc"));
    OK(cudaMalloc(&q, 4));
    emu_inject(EMU_CALL_LAUNCH, 1, 2, cudaErrorLaunchOutOfResources);
    REFUSED(cudaErrorLaunchOutOfResources, LAUNCH(set_value, 1, 32, 0, nullptr, p, 1));
    REFUSED(cudaErrorLaunchOutOfResources, LAUNCH(set_value, 1, 32, 0, nullptr, p, 1));
    OK(LAUNCH(set_value, 1, 32, 0, nullptr, p, 1));
    emu_inject(EMU_CALL_CREATE, 1, 1, cudaErrorUnknown);
    REFUSED(cudaErrorUnknown, cudaStreamCreate(&s));
    emu_inject(EMU_CALL_HOST_ALLOC, 1, 1, cudaErrorMemoryAllocation);
    REFUSED(cudaErrorMemoryAllocation, cudaMallocHost(&q, 4));
    emu_inject(EMU_CALL_COPY, 1, 1, cudaErrorInvalidValue);
    REFUSED(cudaErrorInvalidValue, cudaMemset(p, 0, 4));
    emu_inject(EMU_CALL_SYNC, 2, 1, cudaErrorLaunchFailure); /* from the call itself, and to stay */
    OK(cudaDeviceSynchronize());
    REFUSED(cudaErrorLaunchFailure, cudaDeviceSynchronize());
    REFUSED(cudaErrorLaunchFailure, cudaFree(p));

    for (emu_call call : {EMU_CALL_LAUNCH, EMU_CALL_COPY}) { /* a fault comes when the work is done */
        begin();
        OK(cudaMalloc(&p, 4));
        emu_inject(call, 1, 1, cudaErrorECCUncorrectable);
        OK(call == EMU_CALL_LAUNCH ? LAUNCH(set_value, 1, 32, 0, nullptr, p, 1) : cudaMemset(p, 0, 4));
        REFUSED(cudaErrorECCUncorrectable, cudaDeviceSynchronize());
    }
    begin();
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    OK(cudaStreamCreate(&s));
    OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
    OK(cudaStreamEndCapture(s, &graph));
    OK(cudaGraphInstantiate(&exec, graph));
    emu_inject(EMU_CALL_GRAPH_LAUNCH, 2, 1, cudaErrorLaunchTimeout);
    OK(cudaGraphLaunch(exec, s));
    OK(cudaStreamSynchronize(s));
    OK(cudaGraphLaunch(exec, s));
    REFUSED(cudaErrorLaunchTimeout, cudaStreamSynchronize(s));
    begin();
    emu_inject(EMU_CALL_MALLOC, 1, 9, cudaErrorMemoryAllocation);
    emu_inject_clear();
    OK(cudaMalloc(&p, 4));
    emu_inject_stall(EMU_CALL_SYNC, 2, 0.15);
    double t0 = seconds();
    OK(cudaDeviceSynchronize());
    double t1 = seconds();
    OK(cudaDeviceSynchronize());
    CHECK(t1 - t0 < 0.1 && seconds() - t1 >= 0.15);
}

/* What INFERD_EMU said, as the child sees it: 0 is well. */
int child_of_test_errors(const char *name) {
    int n = -1, v = 0, *p;
    size_t free_bytes = 0, total = 0;
    struct emu_options o;
    emu_get_options(&o);
    if (strcmp(name, "described") == 0) {
        return cudaGetDeviceCount(&n) != cudaSuccess || n != 2 || cudaMemGetInfo(&free_bytes, &total) != cudaSuccess ||
               total != 96 << 20 || cudaDeviceGetAttribute(&v, cudaDevAttrMultiProcessorCount, 1) != cudaSuccess ||
               v != 13 || o.order != EMU_ORDER_LAZY || o.seed != 77 || o.protect || o.compute != 90 ||
               strcmp(o.name, "X 1") != 0;
    }
    if (strcmp(name, "fast") == 0) {
        return o.order != EMU_ORDER_EAGER || o.protect || o.poison;
    }
    if (strcmp(name, "none") == 0) {
        return cudaGetDeviceCount(&n) != cudaErrorNoDevice;
    }
    if (strcmp(name, "old") == 0) {
        return cudaGetDeviceCount(&n) != cudaErrorInsufficientDriver;
    }
    if (strcmp(name, "inject") == 0) {
        double t0 = seconds();
        bool well = cudaMalloc(&p, 4) == cudaSuccess && cudaMalloc(&p, 4) == cudaErrorMemoryAllocation &&
                    cudaMalloc(&p, 4) == cudaErrorMemoryAllocation && cudaMalloc(&p, 4) == cudaSuccess &&
                    cudaDeviceSynchronize() == cudaSuccess && seconds() - t0 >= 0.1;
        return !well;
    }
    return 9;
}

static int run_child(const char *environment, const char *name) {
    pid_t child = fork();
    if (child == 0) {
        setenv("INFERD_EMU", environment, 1);
        execl("/proc/self/exe", "test_emu_runtime", "--child", name, static_cast<char *>(nullptr));
        _exit(8);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static void test_environment() {
    CHECK(run_child("devices=2,memory=96M,sm=13,order=lazy,seed=77,protect=0,compute=90,name=X 1", "described") == 0);
    CHECK(run_child("fast", "fast") == 0);
    CHECK(run_child("devices=0", "none") == 0);
    CHECK(run_child("driver=12080", "old") == 0);
    CHECK(run_child("inject=malloc:2:2:2,stall=sync:1:0.1", "inject") == 0);
    CHECK(run_child("inject=malloc:2:2:2,stall=sync:1:0.1,trigger=/nonexistent", "inject") == 1);
}

void test_errors() {
    test_devices();
    test_no_device();
    if (FAULTS_ARE_CAUGHT) {
        test_sticky();
    }
    test_last_error();
    test_shared_memory();
    test_injection();
    test_environment();
}
