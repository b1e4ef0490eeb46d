/* The stand-in of NCCL: what ranks do together is done as the real one promises, and misuse that would hang or be undefined there
 * is refused or told. */
#include "device.cuh"
#include "nccl.h"
#include "test_emu_runtime.h"

#include <atomic>
#include <functional>
#include <math.h>
#include <string.h>
#include <thread>
#include <vector>

namespace {

const int RANKS = 3;
const size_t N = 100;

struct rank {
    int number;
    ncclComm_t comm;
    cudaStream_t stream;
    float *x, *y; /* [RANKS * N] */
};

float value(int rank, size_t i) {
    return float(rank + 1) + 0.001f * float(i * size_t(rank + 2));
}

void fill(float *p, int rank) {
    for (unsigned i = threadIdx.x; i < N; i += blockDim.x) {
        p[i] = value(rank, i);
    }
}
void scale(float *p, size_t n, float by) {
    for (unsigned i = threadIdx.x; i < n; i += blockDim.x) {
        p[i] = mul_f32(p[i], by);
    }
}

std::vector<float> read(rank &r, const float *p, size_t n) {
    std::vector<float> v(n);
    OK(cudaMemcpyAsync(v.data(), p, n * sizeof(float), cudaMemcpyDeviceToHost, r.stream));
    OK(cudaStreamSynchronize(r.stream));
    return v;
}

void in_threads(int n, const std::function<void(int)> &body) {
    std::vector<std::thread> threads;
    for (int i = 0; i < n; i++) {
        threads.emplace_back(body, i);
    }
    for (std::thread &t : threads) {
        t.join();
    }
}

/* body on every rank, each a thread with a device, a communicator, a stream and x filled. end: the communicators are destroyed. */
void with_ranks(int n, uint64_t seed, emu_order order, const std::function<void(rank &)> &body, bool end = true) {
    begin(seed, order, n);
    ncclUniqueId id;
    CHECK(ncclGetUniqueId(&id) == ncclSuccess);
    in_threads(n, [&](int i) {
        rank r = {i, nullptr, nullptr, nullptr, nullptr};
        OK(cudaSetDevice(i));
        CHECK(ncclCommInitRank(&r.comm, n, id, i) == ncclSuccess);
        OK(cudaStreamCreateWithFlags(&r.stream, cudaStreamNonBlocking));
        OK(cudaMalloc(reinterpret_cast<void **>(&r.x), RANKS * N * sizeof(float)));
        OK(cudaMalloc(reinterpret_cast<void **>(&r.y), RANKS * N * sizeof(float)));
        OK(LAUNCH(fill, 1, 32, 0, r.stream, r.x, i));
        body(r);
        if (end && r.comm) {
            CHECK(ncclCommDestroy(r.comm) == ncclSuccess);
        }
    });
}

const emu_order ORDERS[] = {EMU_ORDER_RANDOM, EMU_ORDER_LAZY, EMU_ORDER_EAGER};

/* ---- what is promised ---- */

void check_calls(rank &r) {
    OK(LAUNCH(scale, 1, 32, 0, r.stream, r.x, N, 2.0f));
    CHECK(ncclAllReduce(r.x, r.y, N, ncclFloat32, ncclSum, r.comm, r.stream) == ncclSuccess);
    std::vector<float> got = read(r, r.y, N);
    for (size_t i = 0; i < N; i++) {
        float sum = 2 * (value(0, i) + value(1, i) + value(2, i));
        CHECK(fabsf(got[i] - sum) < 1e-4f);
    }
    CHECK(ncclAllGather(r.x, r.y, N, ncclFloat32, r.comm, r.stream) == ncclSuccess);
    OK(LAUNCH(scale, 1, 32, 0, r.stream, r.y, RANKS * N, 0.5f));
    got = read(r, r.y, RANKS * N);
    for (size_t i = 0; i < RANKS * N; i++) {
        CHECK(got[i] == value(int(i / N), i % N));
    }
    CHECK(ncclBroadcast(r.x, r.x, N * sizeof(float), ncclInt8, 1, r.comm, r.stream) == ncclSuccess);
    CHECK(read(r, r.x, 1)[0] == 2 * value(1, 0));
}

/* Each to the next and from the one before, two of them at once. */
void check_ring(rank &r) {
    int next = (r.number + 1) % RANKS, before = (r.number + RANKS - 1) % RANKS;
    CHECK(ncclGroupStart() == ncclSuccess && ncclGroupStart() == ncclSuccess);
    CHECK(ncclSend(r.x, N, ncclFloat32, next, r.comm, r.stream) == ncclSuccess);
    CHECK(ncclRecv(r.y, N, ncclFloat32, before, r.comm, r.stream) == ncclSuccess);
    CHECK(ncclGroupEnd() == ncclSuccess);
    CHECK(ncclSend(r.x + 1, 1, ncclFloat32, next, r.comm, r.stream) == ncclSuccess);
    CHECK(ncclRecv(r.y + N, 1, ncclFloat32, before, r.comm, r.stream) == ncclSuccess && ncclGroupEnd() == ncclSuccess);
    std::vector<float> got = read(r, r.y, N + 1);
    CHECK(got[7] == value(before, 7) && got[N] == value(before, 1));
}

/* What one rank adds to what it received goes on to the next: through all of them and back. */
void check_pipeline(rank &r) {
    OK(LAUNCH(scale, 1, 32, 0, r.stream, r.x, N, 0.0f));
    for (int round = 0; round < 2; round++) {
        if (r.number > 0) {
            CHECK(ncclRecv(r.x, 4, ncclInt8, r.number - 1, r.comm, r.stream) == ncclSuccess);
        }
        OK(LAUNCH(fill, 1, 32, 0, r.stream, r.x + 1, r.number));
        if (r.number + 1 < RANKS) {
            CHECK(ncclSend(r.x + 1, 4, ncclInt8, r.number + 1, r.comm, r.stream) == ncclSuccess);
        }
    }
    CHECK(read(r, r.x, 1)[0] == (r.number > 0 ? value(r.number - 1, 0) : 0.0f));
}

/* A graph's calls meet the others' anew with each launch. */
void check_graph(rank &r) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    OK(cudaStreamSynchronize(r.stream));
    CHECK(ncclAllReduce(r.y, r.y, 1, ncclFloat32, ncclMax, r.comm, r.stream) == ncclSuccess); /* connects */
    OK(cudaStreamBeginCapture(r.stream, cudaStreamCaptureModeThreadLocal));
    CHECK(ncclAllReduce(r.x, r.y, N, ncclFloat32, ncclMax, r.comm, r.stream) == ncclSuccess);
    OK(LAUNCH(scale, 1, 32, 0, r.stream, r.x, N, 2.0f));
    OK(cudaStreamEndCapture(r.stream, &graph));
    OK(cudaGraphInstantiate(&exec, graph, 0));
    for (int i = 0; i < 3; i++) {
        OK(cudaGraphLaunch(exec, r.stream));
    }
    CHECK(read(r, r.y, 1)[0] == 4 * value(RANKS - 1, 0));
    OK(cudaGraphExecDestroy(exec));
    OK(cudaGraphDestroy(graph));
}

void test_promises() {
    for (emu_order order : ORDERS) {
        for (uint64_t seed = 1; seed <= 5; seed++) {
            with_ranks(RANKS, seed, order, check_calls);
            with_ranks(RANKS, seed, order, check_ring);
            with_ranks(RANKS, seed, order, check_pipeline);
            with_ranks(RANKS, seed, order, check_graph);
        }
    }
    emu_counts counts;
    emu_get_counts(&counts);
    CHECK(counts.collectives == 4);
}

/* The order of a sum depends on the communicator and on where in the message an element lies, and on nothing else. */
void test_order_of_sums() {
    int others = 0, elsewhere = 0;
    std::vector<float> first;
    for (uint64_t seed = 1; seed <= 8; seed++) {
        std::vector<float> got[3];
        with_ranks(RANKS, seed, EMU_ORDER_RANDOM, [&](rank &r) {
            CHECK(ncclAllReduce(r.x, r.y, N, ncclFloat32, ncclSum, r.comm, r.stream) == ncclSuccess);
            CHECK(ncclAllReduce(r.x, r.y + N, N, ncclFloat32, ncclSum, r.comm, r.stream) == ncclSuccess);
            CHECK(ncclAllReduce(r.x, r.y + 2 * N, N / 2, ncclFloat32, ncclSum, r.comm, r.stream) == ncclSuccess);
            got[r.number] = read(r, r.y, 2 * N + N / 2);
        });
        CHECK(memcmp(got[0].data(), got[1].data(), got[0].size() * sizeof(float)) == 0);
        CHECK(memcmp(got[0].data(), &got[0][N], N * sizeof(float)) == 0);
        elsewhere += memcmp(got[0].data(), &got[0][2 * N], N / 2 * sizeof(float)) != 0;
        first = seed == 1 ? got[0] : first;
        others += memcmp(first.data(), got[0].data(), N * sizeof(float)) != 0;
    }
    CHECK(others > 0 && elsewhere > 0);
}

/* ---- a rank that does not come ---- */

void settle(const rank &r) {
    for (int i = 0; i < 200; i++) {
        CHECK(cudaStreamQuery(r.stream) == cudaErrorNotReady);
    }
}

void test_stalled_rank() {
    for (emu_order order : ORDERS) {
        with_ranks(
            2, 3, order,
            [](rank &r) {
                ncclResult_t async = ncclInternalError;
                OK(cudaStreamSynchronize(r.stream));
                if (r.number == 0) {
                    CHECK(ncclAllReduce(r.x, r.y, N, ncclFloat32, ncclSum, r.comm, r.stream) == ncclSuccess);
                    OK(LAUNCH(scale, 1, 32, 0, r.stream, r.x, N, 2.0f));
                    settle(r);
                    CHECK(ncclCommGetAsyncError(r.comm, &async) == ncclSuccess && async == ncclSuccess);
                    CHECK(ncclCommAbort(r.comm) == ncclSuccess);
                    CHECK(read(r, r.x, 1)[0] == 2 * value(0, 0)); /* the stream goes on */
                    CHECK(ncclAllReduce(r.x, r.y, N, ncclFloat32, ncclSum, r.comm, r.stream) == ncclInvalidArgument);
                    CHECK(ncclCommAbort(r.comm) == ncclInvalidArgument);
                }
            },
            false);
    }
}

/* Sends that wait for each other's receives, without a group. */
void test_crossed_sends() {
    with_ranks(
        2, 4, EMU_ORDER_RANDOM,
        [](rank &r) {
            CHECK(ncclSend(r.x, N, ncclFloat32, 1 - r.number, r.comm, r.stream) == ncclSuccess);
            CHECK(ncclRecv(r.y, N, ncclFloat32, 1 - r.number, r.comm, r.stream) == ncclSuccess);
            settle(r);
            CHECK(ncclCommAbort(r.comm) == ncclSuccess);
            OK(cudaStreamSynchronize(r.stream));
        },
        false);
}

void test_reported_error() {
    with_ranks(
        2, 5, EMU_ORDER_RANDOM,
        [](rank &r) {
            ncclResult_t async = ncclSuccess;
            emu_fail_nccl(r.number, ncclRemoteError);
            CHECK(ncclAllReduce(r.x, r.y, N, ncclFloat32, ncclSum, r.comm, r.stream) == ncclSuccess);
            settle(r);
            CHECK(ncclCommGetAsyncError(r.comm, &async) == ncclSuccess && async == ncclRemoteError);
            CHECK(ncclCommAbort(r.comm) == ncclSuccess);
            OK(cudaStreamSynchronize(r.stream));
        },
        false);
}

/* A device that is lost does not come either. */
void test_lost_device() {
    with_ranks(
        2, 6, EMU_ORDER_RANDOM,
        [](rank &r) {
            OK(cudaStreamSynchronize(r.stream));
            if (r.number == 1) {
                emu_inject(EMU_CALL_COLLECTIVE, 1, 1, cudaErrorECCUncorrectable);
                CHECK(ncclAllReduce(r.x, r.y, N, ncclFloat32, ncclSum, r.comm, r.stream) == ncclSuccess);
                CHECK(cudaStreamSynchronize(r.stream) == cudaErrorECCUncorrectable);
            }
        },
        false);
}

/* ---- misuse ---- */

void expect_apart(const std::function<ncclResult_t(rank &)> &call, const char *words) {
    with_ranks(
        2, 7, EMU_ORDER_LAZY,
        [&](rank &r) {
            CHECK(call(r) == ncclSuccess);
            CHECK(cudaStreamSynchronize(r.stream) == cudaErrorLaunchFailure);
        },
        false);
    CHECK(report_has("the ranks do not do the same") && report_has(words));
}

void test_mismatches() {
    expect_apart([](rank &r) { return ncclAllReduce(r.x, r.y, N - size_t(r.number), ncclFloat32, ncclSum, r.comm, r.stream); },
                 "of 99 (type 7");
    expect_apart(
        [](rank &r) { return ncclAllReduce(r.x, r.y, N, r.number ? ncclFloat16 : ncclFloat32, ncclSum, r.comm, r.stream); },
        "type 6");
    expect_apart([](rank &r) { return ncclAllReduce(r.x, r.y, N, ncclFloat32, r.number ? ncclMax : ncclSum, r.comm, r.stream); },
                 "operation 2");
    expect_apart([](rank &r) { return ncclBroadcast(r.x, r.x, N, ncclFloat32, r.number, r.comm, r.stream); }, "root or peer 1");
    expect_apart(
        [](rank &r) {
            return r.number ? ncclAllGather(r.x, r.y, N, ncclFloat32, r.comm, r.stream)
                            : ncclAllReduce(r.x, r.y, N, ncclFloat32, ncclSum, r.comm, r.stream);
        },
        "ncclAllGather");
    expect_apart(
        [](rank &r) {
            return r.number ? ncclSend(r.x, 3, ncclInt8, 0, r.comm, r.stream) : ncclRecv(r.x, 4, ncclInt8, 1, r.comm, r.stream);
        },
        "ncclRecv of 4");
}

void check_refused(rank &r) {
    float host = 0, *pinned, *other = r.x;
    cudaStream_t stream;
    OK(cudaMallocHost(reinterpret_cast<void **>(&pinned), 64));
    const auto sum = [&r](const void *from, void *to, size_t n, int type, int op, cudaStream_t s) {
        return ncclAllReduce(from, to, n, ncclDataType_t(type), ncclRedOp_t(op), r.comm, s);
    };
    CHECK(sum(&host, r.y, 1, ncclFloat32, ncclSum, r.stream) == ncclInvalidArgument);
    CHECK(sum(pinned, r.y, 1, ncclFloat32, ncclSum, r.stream) == ncclInvalidArgument && report_has("memory of the host"));
    CHECK(sum(r.x, r.y, RANKS * N + 1, ncclFloat32, ncclSum, r.stream) == ncclInvalidArgument);
    CHECK(sum(r.x, r.x + 1, 2, ncclFloat32, ncclSum, r.stream) == ncclInvalidArgument && report_has("overlap"));
    CHECK(sum(r.x, r.y, 1, 12, ncclSum, r.stream) == ncclInvalidArgument);
    CHECK(sum(r.x, r.y, 1, ncclFloat32, 5, r.stream) == ncclInvalidArgument);
    CHECK(ncclAllGather(r.x, r.y, 2 * N, ncclFloat32, r.comm, r.stream) == ncclInvalidArgument);
    CHECK(ncclAllGather(reinterpret_cast<char *>(r.x) + 1, r.y, 4, ncclFloat32, r.comm, r.stream) == ncclInvalidArgument);
    CHECK(ncclBroadcast(r.x, r.x, 1, ncclInt8, 2, r.comm, r.stream) == ncclInvalidArgument);
    CHECK(ncclSend(r.x, 1, ncclInt8, r.number, r.comm, r.stream) == ncclInvalidUsage);
    CHECK(ncclGroupEnd() == ncclInvalidUsage);
    CHECK(ncclGroupStart() == ncclSuccess);
    CHECK(sum(r.x, r.y, 1, ncclFloat32, ncclSum, r.stream) == ncclSuccess);
    CHECK(sum(&host, r.y, 1, ncclFloat32, ncclSum, r.stream) == ncclInvalidArgument);
    CHECK(ncclGroupEnd() == ncclInvalidArgument); /* and nothing of it was queued */
    OK(cudaSetDevice(1 - r.number));
    OK(cudaMalloc(reinterpret_cast<void **>(&other), 64));
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    OK(cudaSetDevice(r.number));
    CHECK(sum(other, r.y, 1, ncclFloat32, ncclSum, r.stream) == ncclInvalidArgument && report_has("memory of device"));
    CHECK(sum(r.x, r.y, 1, ncclFloat32, ncclSum, stream) == ncclUnhandledCudaError);
    OK(cudaFree(other));
    OK(cudaStreamDestroy(stream));
    OK(cudaFreeHost(pinned));
    OK(cudaStreamSynchronize(r.stream));
}

void test_refusals() {
    ncclUniqueId id, wrong;
    ncclComm_t comm = nullptr;
    std::atomic<int> turn{0};
    with_ranks(2, 8, EMU_ORDER_RANDOM, [&turn](rank &r) { /* one by one: reports are told apart, and frees wait for both devices */
        while (turn < r.number) {
            std::this_thread::yield();
        }
        check_refused(r);
        turn++;
        while (turn < 2) {
            std::this_thread::yield();
        }
        CHECK(ncclAllReduce(r.x, r.y, N, ncclFloat32, ncclSum, r.comm, r.stream) == ncclSuccess); /* still in step */
        OK(cudaStreamSynchronize(r.stream));
    });
    begin(9, EMU_ORDER_RANDOM, 2);
    CHECK(ncclGetUniqueId(&id) == ncclSuccess && ncclGetUniqueId(nullptr) == ncclInvalidArgument);
    memset(&wrong, 1, sizeof wrong);
    CHECK(ncclCommInitRank(&comm, 1, wrong, 0) == ncclInvalidArgument && report_has("no such id"));
    CHECK(ncclCommInitRank(&comm, 2, id, 2) == ncclInvalidArgument && ncclCommInitRank(&comm, 0, id, 0) == ncclInvalidArgument);
    cudaStream_t stream;
    cudaGraph_t graph;
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    CHECK(ncclCommInitRank(&comm, 1, id, 0) == ncclUnhandledCudaError);
    CHECK(cudaStreamEndCapture(stream, &graph) == cudaErrorStreamCaptureInvalidated);
    (void)cudaGetLastError();
    CHECK(ncclCommInitRank(&comm, 1, id, 0) == ncclSuccess && ncclCommDestroy(comm) == ncclSuccess);
    CHECK(ncclCommInitRank(&comm, 1, id, 0) == ncclInvalidArgument); /* an id serves once */
    CHECK(ncclGetUniqueId(&id) == ncclSuccess);
    std::atomic<int> refused{0};
    in_threads(2, [&](int i) { /* the first waits, whichever it is */
        ncclComm_t mine = nullptr;
        OK(cudaSetDevice(0));
        ncclResult_t rc = ncclCommInitRank(&mine, 2, id, i);
        if (rc != ncclSuccess) {
            refused++;
            CHECK(rc == ncclInvalidUsage && report_has("on device 0"));
            OK(cudaSetDevice(1));
            CHECK(ncclCommInitRank(&mine, 3, id, i) == ncclInvalidArgument);
            CHECK(ncclCommInitRank(&mine, 2, id, 1 - i) == ncclInvalidUsage && report_has("there already"));
            CHECK(ncclCommInitRank(&mine, 2, id, i) == ncclSuccess);
        }
        CHECK(ncclCommDestroy(mine) == ncclSuccess);
    });
    CHECK(refused == 1);
    CHECK(strcmp(ncclGetErrorString(ncclInvalidUsage), "invalid usage") == 0 && *ncclGetLastError(nullptr));
    OK(cudaSetDevice(0));
}

} // namespace

void test_nccl() {
    test_promises();
    test_order_of_sums();
    test_stalled_rank();
    test_crossed_sends();
    test_reported_error();
    test_lost_device();
    test_mismatches();
    test_refusals();
}
