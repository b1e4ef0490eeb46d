/* Capture and graphs: what is recorded is replayed with its arguments, and what may not be done meanwhile is refused.
 */
#include "device.cuh"
#include "test_emu_runtime.h"

#include <functional>
#include <thread>
#include <vector>

static void add_value(int *to, const int *from, int value) {
    if (threadIdx.x == 0) {
        *to = *from + value;
    }
}
static void multiply_value(int *p, int value) {
    if (threadIdx.x == 0) {
        *p *= value;
    }
}

static int *device_int(int value) {
    int *p;
    OK(cudaMalloc(&p, 4));
    OK(cudaMemcpy(p, &value, 4, cudaMemcpyHostToDevice));
    return p;
}

static int read_int(const int *p) {
    int v = -1;
    OK(cudaMemcpy(&v, p, 4, cudaMemcpyDeviceToHost));
    return v;
}

static size_t nodes_of(cudaGraph_t graph) {
    size_t n = 0;
    OK(cudaGraphGetNodes(graph, nullptr, &n));
    return n;
}

/* Capturing runs nothing; a replay uses the arguments of then and the memory of now. */
static void test_replay(emu_order order) {
    begin(3, order);
    cudaStream_t s;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaStreamCaptureStatus status;
    int *p = device_int(1), *pinned, value = 5;
    OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    OK(cudaMallocHost(&pinned, 4));
    OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
    OK(cudaStreamIsCapturing(s, &status));
    CHECK(status == cudaStreamCaptureStatusActive);
    OK(cudaMemcpyAsync(p, pinned, 4, cudaMemcpyHostToDevice, s));
    OK(LAUNCH(add_value, 1, 32, 0, s, p, p, value));
    value = 6; /* too late */
    OK(LAUNCH(multiply_value, 1, 32, 0, s, p, 10));
    OK(cudaStreamEndCapture(s, &graph));
    OK(cudaStreamIsCapturing(s, &status));
    CHECK(status == cudaStreamCaptureStatusNone);
    CHECK(nodes_of(graph) == 3);
    OK(cudaDeviceSynchronize());
    CHECK(read_int(p) == 1);
    OK(cudaGraphInstantiate(&exec, graph, 0));
    OK(cudaGraphDestroy(graph));
    REFUSED(cudaErrorInvalidValue, cudaGraphInstantiate(&exec, graph, 0));
    REFUSED(cudaErrorInvalidValue, cudaGraphDestroy(graph));
    OK(cudaGraphUpload(exec, s));
    for (int i = 1; i < 4; i++) {
        *pinned = i;
        OK(cudaGraphLaunch(exec, s));
        OK(LAUNCH(add_value, 1, 32, 0, s, p, p, 1)); /* behind it */
        OK(cudaStreamSynchronize(s));
        CHECK(read_int(p) == (i + 5) * 10 + 1);
    }
    struct emu_counts counts;
    emu_get_counts(&counts);
    CHECK(counts.calls[EMU_CALL_GRAPH_LAUNCH] == 3 && counts.graph_kernels_run == 6 && counts.kernels_run == 3 &&
          counts.calls[EMU_CALL_LAUNCH] == 3);
    OK(cudaGraphExecDestroy(exec));
    REFUSED(cudaErrorInvalidValue, cudaGraphLaunch(exec, s));
    REFUSED(cudaErrorInvalidValue, cudaGraphExecDestroy(exec));
}

/* Two launches of one graph come one behind the other, also in different streams. */
static void test_launches_in_order() {
    for (uint64_t seed = 1; seed < 10; seed++) {
        begin(seed);
        cudaStream_t s, other;
        cudaGraph_t graph;
        cudaGraphExec_t exec;
        int *p = device_int(1), *q = device_int(0);
        OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
        OK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
        OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
        OK(LAUNCH(add_value, 1, 32, 0, s, q, p, 1));
        OK(LAUNCH(add_value, 1, 32, 0, s, p, q, 1));
        OK(cudaStreamEndCapture(s, &graph));
        OK(cudaGraphInstantiate(&exec, graph));
        OK(cudaGraphLaunch(exec, s));
        OK(cudaGraphLaunch(exec, other));
        OK(cudaGraphLaunch(exec, s));
        OK(cudaDeviceSynchronize());
        CHECK(read_int(p) == 7);
    }
}

/* A second stream joins the capture by an event and is joined by another. Without: the graph has a branch too many. */
static void test_branches() {
    int wrong = 0;
    for (uint64_t seed = 1; seed <= 40; seed++) {
        begin(seed);
        cudaStream_t s, branch;
        cudaEvent_t fork, join;
        cudaGraph_t graph;
        cudaGraphExec_t exec;
        int *p = device_int(1), *q = device_int(0), *r = device_int(0);
        bool planted = seed > 20; /* the branch reads what the other writes at the same time */
        OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
        OK(cudaStreamCreateWithFlags(&branch, cudaStreamNonBlocking));
        OK(cudaEventCreate(&fork));
        OK(cudaEventCreate(&join));
        OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
        OK(LAUNCH(add_value, 1, 32, 0, s, p, p, 1));
        OK(cudaEventRecord(fork, s));
        OK(cudaStreamWaitEvent(branch, fork, 0));
        OK(LAUNCH(add_value, 1, 32, 0, s, planted ? p : q, p, 10));
        OK(LAUNCH(add_value, 1, 32, 0, branch, r, p, 100));
        OK(cudaEventRecord(join, branch));
        OK(cudaStreamWaitEvent(s, join, 0));
        OK(LAUNCH(add_value, 1, 32, 0, s, q, r, 1000));
        OK(cudaStreamEndCapture(s, &graph));
        CHECK(nodes_of(graph) == 4);
        OK(cudaGraphInstantiate(&exec, graph));
        OK(cudaGraphLaunch(exec, s));
        OK(cudaStreamSynchronize(s));
        int result = read_int(q);
        CHECK(planted || result == 1102);
        wrong += result != 1102;
        /* the branch is an ordinary stream again */
        OK(LAUNCH(add_value, 1, 32, 0, branch, q, q, 1));
        OK(cudaStreamSynchronize(branch));
        CHECK(read_int(q) == result + 1);
    }
    CHECK(wrong > 0 && wrong < 20);
}

/* A step that a capture does not stand: it gives `code`, and the capture is broken, but the stream is well afterwards.
 */
static void refused_in_capture(cudaError_t code, const char *name, unsigned flags,
                               const std::function<cudaError_t(cudaStream_t s)> &step) {
    for (cudaStreamCaptureMode mode : {cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal}) {
        begin();
        cudaStream_t s;
        cudaGraph_t graph = nullptr;
        cudaStreamCaptureStatus status;
        int *p = device_int(1);
        OK(cudaStreamCreateWithFlags(&s, flags));
        OK(cudaStreamBeginCapture(s, mode));
        OK(LAUNCH(add_value, 1, 32, 0, s, p, p, 1));
        cudaError_t got = step(s);
        check_refused(got, code, __FILE__, __LINE__, name);
        OK(cudaStreamIsCapturing(s, &status));
        CHECK(status == cudaStreamCaptureStatusInvalidated);
        REFUSED(cudaErrorStreamCaptureInvalidated, LAUNCH(add_value, 1, 32, 0, s, p, p, 1));
        graph = reinterpret_cast<cudaGraph_t>(&s);
        REFUSED(cudaErrorStreamCaptureInvalidated, cudaStreamEndCapture(s, &graph));
        CHECK(!graph);
        OK(LAUNCH(add_value, 1, 32, 0, s, p, p, 1));
        OK(cudaStreamSynchronize(s));
        CHECK(read_int(p) == 2);
    }
}

static void test_refused() {
    static int *p, *pinned, plain;
    static cudaEvent_t e;
    const cudaError_t unsupported = cudaErrorStreamCaptureUnsupported, implicit = cudaErrorStreamCaptureImplicit;
    const unsigned own = cudaStreamNonBlocking, blocking = cudaStreamDefault;
    const struct {
        cudaError_t code;
        const char *name;
        unsigned flags;
        std::function<cudaError_t(cudaStream_t)> step;
    } steps[] = {
        {unsupported, "cudaMalloc", own, [](cudaStream_t) { return cudaMalloc(&p, 4); }},
        {unsupported, "cudaHostAlloc", own, [](cudaStream_t) { return cudaHostAlloc(&pinned, 4); }},
        {unsupported, "cudaStreamSynchronize", own, [](cudaStream_t s) { return cudaStreamSynchronize(s); }},
        {unsupported, "cudaStreamQuery", own, [](cudaStream_t s) { return cudaStreamQuery(s); }},
        {unsupported, "cudaDeviceSynchronize", own, [](cudaStream_t) { return cudaDeviceSynchronize(); }},
        {unsupported, "cudaMemcpy", own,
         [](cudaStream_t) { return cudaMemcpy(&plain, &plain, 4, cudaMemcpyHostToHost); }},
        {implicit, "cudaMemcpy", blocking,
         [](cudaStream_t) { return cudaMemcpy(&plain, &plain, 4, cudaMemcpyHostToHost); }},
        {implicit, "a kernel in the default stream", blocking,
         [](cudaStream_t) { return LAUNCH(add_value, 1, 32, 0, nullptr, p, p, 1); }},
        {implicit, "an event in the default stream", blocking,
         [](cudaStream_t) {
             OK(cudaEventCreate(&e));
             return cudaEventRecord(e, nullptr);
         }},
        {unsupported, "a copy to memory that is not pinned", own,
         [](cudaStream_t s) {
             struct cudaPointerAttributes at;
             OK(cudaPointerGetAttributes(&at, &plain));
             return cudaMemcpyAsync(&plain, &plain, 4, cudaMemcpyHostToHost, s);
         }},
        {cudaErrorCapturedEvent, "cudaEventSynchronize", own,
         [](cudaStream_t s) {
             OK(cudaEventCreate(&e));
             OK(cudaEventRecord(e, s));
             return cudaEventSynchronize(e);
         }},
        {cudaErrorCapturedEvent, "cudaEventQuery", own,
         [](cudaStream_t s) {
             OK(cudaEventCreate(&e));
             OK(cudaEventRecord(e, s));
             return cudaEventQuery(e);
         }},
        {unsupported, "cudaEventQuery of another", own,
         [](cudaStream_t) {
             OK(cudaEventCreate(&e));
             return cudaEventQuery(e);
         }},
        {cudaErrorStreamCaptureIsolation, "a wait for work outside", own,
         [](cudaStream_t s) {
             cudaStream_t other;
             OK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
             OK(cudaEventCreate(&e));
             OK(cudaEventRecord(e, other));
             return cudaStreamWaitEvent(s, e, 0);
         }},
        {implicit, "the default stream waits for the captured one", own,
         [](cudaStream_t s) {
             OK(cudaEventCreate(&e));
             OK(cudaEventRecord(e, s));
             return cudaStreamWaitEvent(nullptr, e, 0);
         }},
        {cudaErrorStreamCaptureMerge, "two captures meet", own,
         [](cudaStream_t s) {
             cudaStream_t other;
             OK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
             OK(cudaEventCreate(&e));
             OK(cudaStreamBeginCapture(other, cudaStreamCaptureModeRelaxed));
             OK(cudaEventRecord(e, other));
             return cudaStreamWaitEvent(s, e, 0);
         }},
        {cudaErrorStreamCaptureUnmatched, "the end on a stream that joined", own,
         [](cudaStream_t s) {
             cudaStream_t other;
             cudaGraph_t graph;
             OK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
             OK(cudaEventCreate(&e));
             OK(cudaEventRecord(e, s));
             OK(cudaStreamWaitEvent(other, e, 0));
             return cudaStreamEndCapture(other, &graph);
         }},
    };
    for (const auto &step : steps) {
        refused_in_capture(step.code, step.name, step.flags, step.step);
    }
}

/* What is allowed, or refused without harm. */
static void test_allowed() {
    begin();
    cudaStream_t s, other;
    cudaEvent_t e;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    int *p = device_int(1), *q;
    OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    REFUSED(cudaErrorStreamCaptureUnsupported, cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeRelaxed));
    REFUSED(cudaErrorIllegalState, cudaStreamEndCapture(s, &graph));
    OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
    REFUSED(cudaErrorIllegalState, cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
    OK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    OK(cudaEventCreate(&e));
    OK(LAUNCH(add_value, 1, 32, 0, s, p, p, 1));
    OK(LAUNCH(add_value, 1, 32, 0, other, p, p, 10)); /* not captured */
    OK(cudaThreadExchangeStreamCaptureMode(&mode));   /* on one's own risk */
    OK(cudaMalloc(&q, 4));
    OK(cudaStreamSynchronize(other));
    OK(cudaThreadExchangeStreamCaptureMode(&mode));
    CHECK(mode == cudaStreamCaptureModeRelaxed);
    OK(cudaStreamEndCapture(s, &graph));
    CHECK(nodes_of(graph) == 1 && read_int(p) == 11);
    OK(cudaGraphInstantiate(&exec, graph));
    REFUSED(cudaErrorInvalidResourceHandle, cudaGraphLaunch(exec, reinterpret_cast<cudaStream_t>(&s)));
    REFUSED(cudaErrorInvalidValue, cudaGraphInstantiate(&exec, graph, 7));
    OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed)); /* an empty one */
    OK(cudaMalloc(&q, 4));
    OK(cudaStreamEndCapture(s, &graph));
    OK(cudaGraphInstantiate(&exec, graph));
    int *pinned; /* which keeps its place in the stream */
    OK(cudaMallocHost(&pinned, sizeof *pinned));
    *pinned = 1;
    OK(LAUNCH(multiply_value, 1, 32, 0, s, pinned, 5));
    OK(cudaGraphLaunch(exec, s));
    OK(cudaStreamSynchronize(s));
    CHECK(*pinned == 5);
}

/* Work of a stream that joined and was not joined back. */
static void test_unjoined() {
    begin();
    cudaStream_t s, branch;
    cudaEvent_t e;
    cudaGraph_t graph;
    int *p = device_int(1);
    OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    OK(cudaStreamCreateWithFlags(&branch, cudaStreamNonBlocking));
    OK(cudaEventCreate(&e));
    OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
    OK(cudaEventRecord(e, s));
    OK(cudaStreamWaitEvent(branch, e, 0));
    OK(LAUNCH(add_value, 1, 32, 0, branch, p, p, 1));
    REFUSED(cudaErrorStreamCaptureUnjoined, cudaStreamEndCapture(s, &graph));
    OK(LAUNCH(add_value, 1, 32, 0, branch, p, p, 1));
    OK(cudaDeviceSynchronize());
    CHECK(read_int(p) == 2);
}

/* What other threads do breaks a global capture, not a thread's own; and they cannot end it. */
static void test_other_threads() {
    for (cudaStreamCaptureMode mode : {cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal}) {
        begin();
        cudaStream_t s;
        cudaGraph_t graph;
        int *p = device_int(1), *q;
        bool global = mode == cudaStreamCaptureModeGlobal;
        OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
        OK(cudaStreamBeginCapture(s, mode));
        OK(LAUNCH(add_value, 1, 32, 0, s, p, p, 1));
        std::thread([&] {
            REFUSED(global ? cudaErrorStreamCaptureUnsupported : cudaSuccess, cudaMalloc(&q, 4));
        }).join();
        REFUSED(global ? cudaErrorStreamCaptureInvalidated : cudaSuccess, cudaStreamEndCapture(s, &graph));
        OK(cudaStreamBeginCapture(s, mode));
        std::thread([&] { REFUSED(cudaErrorStreamCaptureWrongThread, cudaStreamEndCapture(s, &graph)); }).join();
        REFUSED(cudaErrorStreamCaptureInvalidated, cudaStreamEndCapture(s, &graph));
    }
}

/* A graph keeps pointers, not memory. */
static void test_freed_memory() {
    for (bool copy : {!FAULTS_ARE_CAUGHT, true}) {
        begin();
        cudaStream_t s;
        cudaGraph_t graph;
        cudaGraphExec_t exec;
        int *p = device_int(1), *pinned;
        OK(cudaMallocHost(&pinned, 4));
        OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
        OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
        OK(copy ? cudaMemcpyAsync(pinned, p, 4, cudaMemcpyDeviceToHost, s) : LAUNCH(add_value, 1, 32, 0, s, p, p, 1));
        OK(cudaStreamEndCapture(s, &graph));
        OK(cudaGraphInstantiate(&exec, graph));
        OK(cudaGraphLaunch(exec, s));
        OK(cudaStreamSynchronize(s));
        OK(cudaFree(p));
        OK(cudaGraphLaunch(exec, s));
        REFUSED(cudaErrorIllegalAddress, cudaStreamSynchronize(s));
        CHECK(report_has("freed"));
    }
}

void test_capture() {
    test_replay(EMU_ORDER_RANDOM);
    test_replay(EMU_ORDER_LAZY);
    test_replay(EMU_ORDER_EAGER);
    test_launches_in_order();
    test_branches();
    test_refused();
    test_allowed();
    test_unjoined();
    test_other_threads();
    test_freed_memory();
}
