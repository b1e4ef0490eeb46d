/* Streams and events: what is ordered is always done in order, and what is not, in some seed, is not. */
#include "device.cuh"
#include "test_emu_runtime.h"

#include <algorithm>
#include <functional>
#include <set>
#include <string.h>
#include <thread>
#include <vector>

static void set_value(int *p, int value) {
    if (threadIdx.x == 0) {
        *p = value;
    }
}
static void add_value(int *to, const int *from, int value) {
    if (threadIdx.x == 0) {
        *to = *from + value;
    }
}

static const uint64_t SEEDS = 40;

/* Of SEEDS runs, those in which `run` gives another value than `right`. */
static int wrong_of(int right, const std::function<int()> &run, emu_order order = EMU_ORDER_RANDOM) {
    int wrong = 0;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        begin(seed, order);
        wrong += run() != right;
    }
    return wrong;
}

static int read_int(const int *p) {
    int v = -1;
    OK(cudaMemcpy(&v, p, sizeof v, cudaMemcpyDeviceToHost));
    return v;
}

/* A value made in one stream and used in another. */
static int across_streams(bool with_event, unsigned flags) {
    cudaStream_t a, b;
    cudaEvent_t made;
    int *p, *q;
    OK(cudaStreamCreateWithFlags(&a, flags));
    OK(cudaStreamCreateWithFlags(&b, flags));
    OK(cudaEventCreateWithFlags(&made, cudaEventDisableTiming));
    OK(cudaMalloc(&p, 4));
    OK(cudaMalloc(&q, 4));
    OK(cudaMemset(p, 0, 4));
    OK(cudaDeviceSynchronize());
    OK(LAUNCH(set_value, 1, 32, 0, a, p, 7));
    if (with_event) {
        OK(cudaEventRecord(made, a));
        OK(cudaStreamWaitEvent(b, made, 0));
    }
    OK(LAUNCH(add_value, 1, 32, 0, b, q, p, 1));
    OK(cudaStreamSynchronize(b));
    OK(cudaStreamSynchronize(a));
    OK(cudaStreamDestroy(a));
    OK(cudaStreamDestroy(b));
    OK(cudaEventDestroy(made));
    return read_int(q);
}

/* Work of the default stream between two of another. */
static int through_default(unsigned flags) {
    cudaStream_t a;
    int *p;
    OK(cudaStreamCreateWithFlags(&a, flags));
    OK(cudaMalloc(&p, 4));
    OK(cudaMemset(p, 0, 4));
    OK(cudaDeviceSynchronize());
    OK(LAUNCH(set_value, 1, 32, 0, a, p, 7));
    OK(LAUNCH(add_value, 1, 32, 0, nullptr, p, p, 10));
    OK(LAUNCH(add_value, 1, 32, 0, a, p, p, 100));
    OK(cudaDeviceSynchronize());
    return read_int(p);
}

/* A pinned buffer is filled again for a second copy. */
static int reused_buffer(bool with_wait) {
    cudaStream_t a;
    cudaEvent_t copied;
    int *p, *pinned;
    OK(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking));
    OK(cudaEventCreateWithFlags(&copied, cudaEventDisableTiming));
    OK(cudaMalloc(&p, 8));
    OK(cudaMallocHost(&pinned, 4));
    *pinned = 1;
    OK(cudaMemcpyAsync(p, pinned, 4, cudaMemcpyHostToDevice, a));
    OK(cudaEventRecord(copied, a));
    if (with_wait) {
        OK(cudaEventSynchronize(copied));
    }
    *pinned = 2;
    OK(cudaMemcpyAsync(p + 1, pinned, 4, cudaMemcpyHostToDevice, a));
    OK(cudaStreamSynchronize(a));
    return read_int(p) * 10 + read_int(p + 1);
}

/* A result is looked at before the copy was waited for. */
static int early_look(bool with_wait) {
    int *p, *pinned, seen;
    OK(cudaMalloc(&p, 4));
    OK(cudaMallocHost(&pinned, 4));
    *pinned = 0;
    OK(LAUNCH(set_value, 1, 32, 0, nullptr, p, 9));
    OK(cudaMemcpyAsync(pinned, p, 4, cudaMemcpyDeviceToHost, nullptr));
    if (with_wait) {
        OK(cudaStreamSynchronize(nullptr));
    }
    seen = *pinned;
    OK(cudaDeviceSynchronize());
    return seen;
}

/* Memory that is not pinned is read and written before the call returns. */
static int unpinned() {
    cudaStream_t a;
    int *p, in = 3, out = 0;
    OK(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking));
    OK(cudaMalloc(&p, 4));
    OK(cudaMemcpyAsync(p, &in, 4, cudaMemcpyHostToDevice, a));
    in = 4;
    OK(LAUNCH(add_value, 1, 32, 0, a, p, p, 10));
    OK(cudaMemcpyAsync(&out, p, 4, cudaMemcpyDeviceToHost, a));
    return out;
}

static void test_order() {
    CHECK(wrong_of(8, [] { return across_streams(true, cudaStreamNonBlocking); }) == 0);
    int wrong = wrong_of(8, [] { return across_streams(false, cudaStreamNonBlocking); });
    CHECK(wrong > 0 && wrong < int(SEEDS));
    CHECK(wrong_of(8, [] { return across_streams(false, cudaStreamDefault); }) > 0);
    CHECK(wrong_of(117, [] { return through_default(cudaStreamDefault); }) == 0);
    CHECK(wrong_of(117, [] { return through_default(cudaStreamNonBlocking); }) > 0);
    CHECK(wrong_of(12, [] { return reused_buffer(true); }) == 0);
    CHECK(wrong_of(12, [] { return reused_buffer(false); }) > int(SEEDS) / 2);
    CHECK(wrong_of(9, [] { return early_look(true); }) == 0);
    CHECK(wrong_of(9, [] { return early_look(false); }) > int(SEEDS) / 2);
    CHECK(wrong_of(13, unpinned) == 0);
    /* the fixed orders: always the same */
    CHECK(wrong_of(
              8, [] { return across_streams(false, cudaStreamNonBlocking); }, EMU_ORDER_EAGER) == 0);
    CHECK(wrong_of(
              12, [] { return reused_buffer(false); }, EMU_ORDER_EAGER) == 0);
    CHECK(wrong_of(
              8, [] { return across_streams(false, cudaStreamNonBlocking); }, EMU_ORDER_LAZY) == int(SEEDS));
    CHECK(wrong_of(
              12, [] { return reused_buffer(false); }, EMU_ORDER_LAZY) == int(SEEDS));
}

/* ---- a random program, and the order that it was done in ---- */

struct Step {
    int id;
    std::vector<int> *log;
};
static void log_step(void *p) {
    Step *s = static_cast<Step *>(p);
    s->log->push_back(s->id);
}

/* Streams (the default one too) and events, used at random; every step must come behind those that it is ordered after.
 */
static std::vector<int> random_program(uint64_t seed, uint64_t program) {
    begin(seed);
    uint64_t state = program;
    auto random = [&state](unsigned n) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        return unsigned(state >> 33) % n;
    };
    enum { STREAMS = 5, EVENTS = 3, STEPS = 60 };
    cudaStream_t streams[STREAMS] = {};
    cudaEvent_t events[EVENTS];
    for (unsigned i = 1; i < STREAMS; i++) {
        OK(cudaStreamCreateWithFlags(&streams[i], i < 3 ? cudaStreamDefault : cudaStreamNonBlocking));
    }
    for (cudaEvent_t &e : events) {
        OK(cudaEventCreate(&e));
    }
    std::vector<int> log;
    std::vector<Step> steps(STEPS);
    std::vector<std::set<int>> before(STEPS); /* steps that must come first */
    std::set<int> of_stream[STREAMS], of_event[EVENTS];
    auto ordered = [&](unsigned s) { /* what the next work of stream s is behind */
                                     std::set<int> all = of_stream[s];
                                     for (unsigned o = 0; o < 3; o++) {
                                         if (s == 0 || (s < 3 && o == 0)) {
                                             all.insert(of_stream[o].begin(), of_stream[o].end());
                                         }
                                     }
                                     return all;
    };
    for (int i = 0; i < STEPS; i++) {
        unsigned s = random(STREAMS), e = random(EVENTS), what = random(10);
        if (what == 0) {
            of_event[e] = ordered(s);
            of_stream[s] = of_event[e];
            OK(cudaEventRecord(events[e], streams[s]));
        } else if (what == 1) {
            std::set<int> all = ordered(s);
            all.insert(of_event[e].begin(), of_event[e].end());
            of_stream[s] = all;
            OK(cudaStreamWaitEvent(streams[s], events[e], 0));
        }
        before[size_t(i)] = ordered(s);
        of_stream[s] = before[size_t(i)];
        of_stream[s].insert(i);
        steps[size_t(i)] = {i, &log};
        OK(cudaLaunchHostFunc(streams[s], log_step, &steps[size_t(i)]));
        if (what == 2) {
            OK(cudaStreamSynchronize(streams[s]));
            for (int done : of_stream[s]) {
                CHECK(std::find(log.begin(), log.end(), done) != log.end());
            }
        }
    }
    OK(cudaDeviceSynchronize());
    CHECK(log.size() == STEPS);
    for (size_t i = 0; i < log.size(); i++) {
        for (int first : before[size_t(log[i])]) {
            CHECK(std::find(log.begin(), log.begin() + long(i), first) != log.begin() + long(i));
        }
    }
    return log;
}

static void test_random_programs() {
    for (uint64_t program = 1; program <= 6; program++) {
        std::set<std::vector<int>> orders;
        for (uint64_t seed = 1; seed <= 8; seed++) {
            orders.insert(random_program(seed, program));
        }
        CHECK(orders.size() > 4);
        CHECK(random_program(3, program) == random_program(3, program)); /* a seed is an order */
    }
}

/* ---- the rest of the calls ---- */

static void test_asking() {
    for (emu_order order : {EMU_ORDER_RANDOM, EMU_ORDER_LAZY}) {
        begin(5, order);
        cudaStream_t a;
        cudaEvent_t e, never;
        int *p, polls = 0;
        OK(cudaStreamCreate(&a));
        OK(cudaEventCreate(&e));
        OK(cudaEventCreate(&never));
        OK(cudaMalloc(&p, 4));
        for (int i = 0; i < 50; i++) {
            OK(LAUNCH(set_value, 1, 32, 0, a, p, i));
        }
        OK(cudaEventRecord(e, a));
        CHECK(cudaStreamQuery(a) == cudaErrorNotReady && cudaGetLastError() == cudaSuccess);
        while (cudaEventQuery(e) == cudaErrorNotReady && polls < 1000) {
            polls++;
        }
        CHECK(polls > 2 && polls < 100);
        OK(cudaStreamQuery(a));
        OK(cudaEventQuery(never));
        OK(cudaEventSynchronize(never));
        OK(cudaStreamWaitEvent(a, never, 0));
        CHECK(read_int(p) == 49);
    }
}

static void test_events() {
    begin(1, EMU_ORDER_LAZY);
    cudaStream_t a;
    cudaEvent_t first, second, untimed;
    float ms = -1;
    int *p;
    OK(cudaStreamCreate(&a));
    OK(cudaMalloc(&p, 4));
    OK(cudaEventCreate(&first));
    OK(cudaEventCreate(&second));
    OK(cudaEventCreateWithFlags(&untimed, cudaEventDisableTiming));
    REFUSED(cudaErrorInvalidResourceHandle, cudaEventElapsedTime(&ms, first, second));
    OK(cudaEventRecord(first, a));
    OK(LAUNCH(set_value, 1, 32, 0, a, p, 1));
    OK(cudaEventRecord(second, a));
    OK(cudaEventRecord(untimed, a));
    CHECK(cudaEventElapsedTime(&ms, first, second) == cudaErrorNotReady);
    OK(cudaEventSynchronize(second));
    OK(cudaEventElapsedTime(&ms, first, second));
    CHECK(ms > 0 && ms < 1e4f);
    REFUSED(cudaErrorInvalidResourceHandle, cudaEventElapsedTime(&ms, first, untimed));
    OK(cudaEventDestroy(second));
    REFUSED(cudaErrorInvalidResourceHandle, cudaEventDestroy(second));
    REFUSED(cudaErrorInvalidResourceHandle, cudaEventRecord(second, a));
    REFUSED(cudaErrorInvalidResourceHandle, cudaStreamWaitEvent(a, second, 0));
    REFUSED(cudaErrorInvalidValue, cudaEventCreateWithFlags(&second, 64));
    /* a wait is for the record that was there when it was queued */
    OK(LAUNCH(set_value, 1, 32, 0, a, p, 2));
    OK(cudaEventRecord(first, a));
    cudaStream_t b;
    OK(cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking));
    OK(cudaStreamWaitEvent(b, first, 0));
    OK(LAUNCH(set_value, 1, 32, 0, a, p, 3));
    OK(cudaEventRecord(first, a));
    OK(cudaStreamSynchronize(b));
    int *pinned;
    OK(cudaMallocHost(&pinned, 4));
    OK(cudaMemcpyAsync(pinned, p, 4, cudaMemcpyDeviceToHost, b));
    OK(cudaStreamSynchronize(b));
    CHECK(*pinned == 2);
}

static void test_handles() {
    begin(1, EMU_ORDER_LAZY, 2);
    cudaStream_t a, made_up = reinterpret_cast<cudaStream_t>(&a);
    cudaEvent_t e;
    unsigned flags;
    int priority, least, greatest, *p;
    OK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    OK(cudaStreamCreateWithPriority(&a, cudaStreamNonBlocking, greatest));
    OK(cudaStreamGetFlags(a, &flags));
    OK(cudaStreamGetPriority(a, &priority));
    CHECK(flags == cudaStreamNonBlocking && priority == greatest && least == 0);
    REFUSED(cudaErrorInvalidValue, cudaStreamCreateWithFlags(&a, 2));
    REFUSED(cudaErrorInvalidResourceHandle, cudaStreamSynchronize(made_up));
    REFUSED(cudaErrorInvalidResourceHandle, LAUNCH(set_value, 1, 32, 0, made_up, static_cast<int *>(nullptr), 1));
    REFUSED(cudaErrorInvalidResourceHandle, cudaStreamSynchronize(cudaStreamPerThread));
    /* streams belong to a device */
    OK(cudaMalloc(&p, 4));
    OK(cudaSetDevice(1));
    REFUSED(cudaErrorInvalidResourceHandle, LAUNCH(set_value, 1, 32, 0, a, p, 1));
    OK(cudaEventCreate(&e));
    REFUSED(cudaErrorInvalidResourceHandle, cudaEventRecord(e, a));
    OK(cudaSetDevice(0));
    /* work of a stream that is destroyed is still done */
    OK(LAUNCH(set_value, 1, 32, 0, a, p, 6));
    OK(cudaStreamDestroy(a));
    REFUSED(cudaErrorInvalidResourceHandle, cudaStreamDestroy(a));
    REFUSED(cudaErrorInvalidResourceHandle, cudaStreamDestroy(nullptr));
    OK(cudaDeviceSynchronize());
    CHECK(read_int(p) == 6);
}

/* Work inside of streams makes no calls of the runtime. */
static void call_runtime(void *p) {
    int *device;
    *static_cast<cudaError_t *>(p) = cudaMalloc(&device, 4);
}

/* Two threads, each with streams of both devices. */
static void test_threads() {
    begin(1, EMU_ORDER_RANDOM, 2);
    cudaError_t inside = cudaSuccess;
    OK(cudaLaunchHostFunc(nullptr, call_runtime, &inside));
    CHECK(cudaDeviceSynchronize() == cudaSuccess && inside == cudaErrorNotPermitted);
    (void)cudaGetLastError(); /* it was made by this thread */
    int sums[2] = {0, 0};
    auto work = [&sums](int thread) {
        bool good = cudaSetDevice(thread) == cudaSuccess;
        cudaStream_t a = nullptr, b = nullptr;
        cudaEvent_t e = nullptr;
        int *p = nullptr;
        good &=
            cudaStreamCreate(&a) == cudaSuccess && cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking) == cudaSuccess;
        good &= cudaEventCreate(&e) == cudaSuccess && cudaMalloc(&p, 4) == cudaSuccess;
        good &= cudaMemsetAsync(p, 0, 4, a) == cudaSuccess;
        for (int i = 0; i < 200 && good; i++) {
            good &= LAUNCH(add_value, 1, 32, 0, a, p, p, 1) == cudaSuccess;
            good &= cudaEventRecord(e, a) == cudaSuccess && cudaStreamWaitEvent(b, e, 0) == cudaSuccess;
            good &= LAUNCH(add_value, 1, 32, 0, b, p, p, 1) == cudaSuccess;
            good &= cudaEventRecord(e, b) == cudaSuccess && cudaStreamWaitEvent(a, e, 0) == cudaSuccess;
            if (i % 16 == 0) {
                good &= cudaStreamSynchronize(b) == cudaSuccess;
            }
        }
        good &= cudaMemcpyAsync(&sums[thread], p, 4, cudaMemcpyDeviceToHost, a) == cudaSuccess;
        good &= cudaFree(p) == cudaSuccess;
        sums[thread] = good ? sums[thread] : -1;
    };
    std::thread other(work, 1);
    work(0);
    other.join();
    CHECK(sums[0] == 400);
    CHECK(sums[1] == 400);
}

void test_streams() {
    test_order();
    test_random_programs();
    test_asking();
    test_events();
    test_handles();
    test_threads();
}
