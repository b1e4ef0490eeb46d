/* Planted faults: each is caught, and the machine goes on working afterwards. */
#include "test_emu.h"

#include <stdio.h>
#include <string.h>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#define UNDER_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define UNDER_ASAN 1
#endif
#endif
#ifndef UNDER_ASAN
#define UNDER_ASAN 0
#endif
#if defined(__SANITIZE_THREAD__)
#define UNDER_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define UNDER_TSAN 1
#endif
#endif
#ifndef UNDER_TSAN
#define UNDER_TSAN 0
#endif
/* What these kernels do wrong is told by the emulator, not by UBSan or ASan. */
#define PLANTED __attribute__((no_sanitize("undefined"), no_sanitize("address"), noinline))

/* ---- missing barriers: a wrong result in some order, and nearly in every one ---- */

enum { THREADS = 128 };
struct exchange_shared {
    int first[THREADS], second[THREADS];
};

/* Every thread's number passes twice through shared memory, to the thread opposite and back. */
static __global__ void exchange_kernel(int *out, bool first_barrier, bool second_barrier, bool third_barrier) {
    SHARED(exchange_shared, s);
    unsigned i = threadIdx.x, opposite = THREADS - 1 - i;
    s.first[i] = (int)i + 1000;
    if (first_barrier) {
        block_sync();
    }
    int v = s.first[opposite];
    if (second_barrier) {
        block_sync(); /* all have read before it is written again */
    }
    s.first[i] = v;
    if (third_barrier) {
        block_sync();
    }
    out[i] = s.first[opposite];
}

/* The same within a warp. */
static __global__ void warp_exchange_kernel(int *out, bool first_sync, bool second_sync, bool third_sync) {
    SHARED(exchange_shared, s);
    unsigned i = threadIdx.x, opposite = i ^ 31u;
    s.first[i] = (int)i + 1000;
    if (first_sync) {
        warp_sync();
    }
    int v = s.first[opposite];
    if (second_sync) {
        warp_sync();
    }
    s.first[i] = v;
    if (third_sync) {
        warp_sync();
    }
    out[i] = s.first[opposite];
}

typedef void exchange_function(int *, bool, bool, bool);

static bool exchange_is_right(exchange_function *kernel, int missing) {
    std::vector<int> out(THREADS, 0);
    cudaError_t error =
        LAUNCH(kernel, 1, THREADS, sizeof(exchange_shared), 0, out.data(), missing != 0, missing != 1, missing != 2);
    bool right = error == cudaSuccess;
    for (int i = 0; i < THREADS; i++) {
        right = right && out[(size_t)i] == i + 1000;
    }
    return right;
}

static void test_missing_barriers() {
    exchange_function *const kernels[] = {exchange_kernel, warp_exchange_kernel};
    for (exchange_function *kernel : kernels) {
        for (uint64_t seed = 0; seed < 8; seed++) {
            emu_set_order_seed(seed);
            CHECK(exchange_is_right(kernel, -1), "seed %d: wrong with all barriers", (int)seed);
            for (int missing = 0; missing < 3; missing++) {
                bool right = exchange_is_right(kernel, missing);
                CHECK(!right, "seed %d: barrier %d is missing, and nobody sees it", (int)seed, missing);
            }
        }
    }
    emu_set_order_seed(1);
}

/* One writer, one reader of another warp: the wrong order comes up in about half of the seeds. */
static __global__ void one_way_kernel(int *out, unsigned writer) {
    SHARED(exchange_shared, s);
    if (threadIdx.x == writer) {
        s.first[0] = 7;
    }
    if (threadIdx.x == 64) {
        *out = s.first[0];
    }
}

static void test_one_way_race() {
    for (unsigned writer : {0u, 65u, 127u}) { /* in a warp before, in the same, behind */
        int wrong = 0;
        for (uint64_t seed = 1; seed <= 32; seed++) {
            emu_set_order_seed(seed);
            int out = 0;
            cudaError_t error = LAUNCH(one_way_kernel, 1, THREADS, sizeof(exchange_shared), 0, &out, writer);
            CHECK(error == cudaSuccess, "error %d", error);
            wrong += out != 7;
        }
        CHECK(wrong >= 6 && wrong <= 26, "writer %u: %d of 32 orders show the race", writer, wrong);
    }
    emu_set_order_seed(1);
}

/* ---- stale shared memory ---- */

struct stale_shared {
    float f;
    uint16_t half, brain;
    int i;
    signed char bytes[4];
};
static __global__ void stale_kernel(stale_shared *out) {
    SHARED(stale_shared, s);
    if (threadIdx.x == 0) {
        out[blockIdx.x] = s;
        s = {1.0f, 0, 0, 1, {1, 1, 1, 1}};
    }
}
static void test_stale() {
    stale_shared out[3];
    CHECK(LAUNCH(stale_kernel, 3, 64, sizeof(stale_shared), 0, out) == cudaSuccess, "%s", emu_last_fault());
    for (const stale_shared &s : out) {
        float f16_seen = __half2float(__ushort_as_half(s.half)),
              brain = __bfloat162float(__ushort_as_bfloat16(s.brain));
        CHECK(s.f != s.f && f16_seen != f16_seen && brain != brain, "memory of a new block is no NaN");
        CHECK(s.i > 1000000 && s.bytes[0] == -1 && s.bytes[1] == 127, "memory of a new block: %d", s.i);
    }
}

/* ---- out of bounds ---- */

struct bounds_shared {
    int a[30];
    RED_ZONE(4)
    int b[31];
};
static PLANTED __global__ void bounds_kernel(int *sink, int at, bool write) {
    SHARED(bounds_shared, s);
    int *p = s.a;
    block_sync();
    if (threadIdx.x == 33) {
        if (write) {
            p[at] = 1;
        } else {
            *sink = p[at];
        }
    }
    block_sync();
}

static void test_bounds() {
    const int words = sizeof(bounds_shared) / 4, rounded = (words + 31) / 32 * 32;
    int sink;
#define BOUNDS(at, write) LAUNCH(bounds_kernel, 2, 64, sizeof(bounds_shared), 0, &sink, at, write)
    CHECK(BOUNDS(29, true) == cudaSuccess && BOUNDS(words - 1, true) == cudaSuccess, "%s", emu_last_fault());
    CHECK_FAULT(BOUNDS(30, true), cudaErrorIllegalAddress, "red zone of the shared memory was written, at offset 120");
    CHECK_FAULT(BOUNDS(words, true), cudaErrorIllegalAddress, "1 bytes behind");
    CHECK_FAULT(BOUNDS(-1, true), cudaErrorIllegalAddress, "before the beginning of the shared memory");
    CHECK(words < rounded, "no room to write in");
    if (!UNDER_TSAN) {
        CHECK_FAULT(BOUNDS(rounded, true), cudaErrorIllegalAddress, "behind the 372 bytes");
        CHECK_FAULT(BOUNDS(rounded, false), cudaErrorIllegalAddress, "thread (33, 0, 0)");
    }
#undef BOUNDS
}

/* ---- warps and barriers that not all reach ---- */

enum warp_fault {
    NO_FAULT,
    HALF_AT_SHUFFLE,
    OTHER_OPERATION,
    OTHER_OPERAND,
    OTHER_SIZE,
    ENDED_LANE,
    LANE_AT_BARRIER,
    BARRIER_NOT_BY_ALL,
    BARRIER_NOT_BY_WARP,
};
static __global__ void warp_fault_kernel(int *out, enum warp_fault fault) {
    unsigned lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    bool odd = warp == 1 && lane >= 16;
    int v = (int)threadIdx.x;
    if (fault == ENDED_LANE && warp == 1 && lane == 5) {
        return;
    }
    if (fault == HALF_AT_SHUFFLE ? !odd : fault != BARRIER_NOT_BY_ALL && fault != BARRIER_NOT_BY_WARP) {
        if (fault == OTHER_OPERATION && odd) {
            v += (int)warp_ballot(true);
        } else if (fault == OTHER_SIZE && odd) {
            v += (int)warp_shfl_xor((uint64_t)v, 1);
        } else if (fault == LANE_AT_BARRIER && odd) {
            block_sync();
        } else {
            v += warp_shfl_xor(v, fault == OTHER_OPERAND && odd ? 2 : 1);
        }
    }
    if ((fault == BARRIER_NOT_BY_ALL && threadIdx.x == 70) || (fault == BARRIER_NOT_BY_WARP && warp == 2)) {
        return;
    }
    block_sync();
    out[threadIdx.x] = v;
}

static void test_warps() {
    std::vector<int> out(96);
#define WARP_FAULT(fault) LAUNCH(warp_fault_kernel, 2, 96, 0, 0, out.data(), fault)
    for (uint64_t seed = 0; seed < 4; seed++) {
        emu_set_order_seed(seed);
        CHECK(WARP_FAULT(NO_FAULT) == cudaSuccess, "%s", emu_last_fault());
        CHECK_FAULT(WARP_FAULT(HALF_AT_SHUFFLE), cudaErrorLaunchFailure,
                    "warp 1 cannot go on: lanes 0000ffff wait in warp_shfl_xor by 1 of 4 bytes; lanes ffff0000 wait in "
                    "block_sync");
        CHECK_FAULT(WARP_FAULT(OTHER_OPERATION), cudaErrorLaunchFailure, "lanes ffff0000 wait in warp_ballot");
        CHECK_FAULT(WARP_FAULT(OTHER_OPERAND), cudaErrorLaunchFailure, "lanes ffff0000 wait in warp_shfl_xor by 2");
        CHECK_FAULT(WARP_FAULT(OTHER_SIZE), cudaErrorLaunchFailure, "warp_shfl_xor by 1 of 8 bytes");
        CHECK_FAULT(WARP_FAULT(ENDED_LANE), cudaErrorLaunchFailure, "lanes 00000020 have ended");
        CHECK_FAULT(WARP_FAULT(LANE_AT_BARRIER), cudaErrorLaunchFailure, "lanes ffff0000 wait in block_sync");
        CHECK_FAULT(WARP_FAULT(BARRIER_NOT_BY_ALL), cudaErrorLaunchFailure, "thread (70, 0, 0) has ended");
        CHECK_FAULT(WARP_FAULT(BARRIER_NOT_BY_WARP), cudaErrorLaunchFailure, "block_sync is not reached by all");
        CHECK_FAULT(LAUNCH(warp_fault_kernel, 1, 80, 0, 0, out.data(), NO_FAULT), cudaErrorLaunchFailure,
                    "the block has only 16 threads there");
        CHECK(WARP_FAULT(NO_FAULT) == cudaSuccess && out[3] == 5, "%s", emu_last_fault());
    }
    CHECK(strstr(emu_last_fault(), "kernel warp_fault_kernel, block (0, 0, 0)") != nullptr, "%s", emu_last_fault());
    emu_set_order_seed(1);
#undef WARP_FAULT
}

/* ---- addresses ---- */

enum address_fault {
    WELL,
    LOAD,
    STORE,
    COPY_TO,
    COPY_FROM,
    COPY_TO_GLOBAL,
    COPY_FROM_SHARED,
    MATRIX,
    MATRIX_GLOBAL,
    LDG
};
struct address_shared {
    alignas(16) unsigned char bytes[1024];
};
static __global__ void address_kernel(unsigned char *memory, enum address_fault fault) {
    SHARED(address_shared, s);
    unsigned char *own = memory + 16 * threadIdx.x, *mine = s.bytes + 16 * threadIdx.x;
    bool wrong = threadIdx.x == 3;
    uint4 v = load_16(own + (wrong && fault == LOAD ? 8 : 0));
    store_16(own + (wrong && fault == STORE ? 4 : 0), v);
    async_copy_16(wrong && fault == COPY_TO          ? mine + 4
                  : wrong && fault == COPY_TO_GLOBAL ? own
                                                     : mine,
                  wrong && fault == COPY_FROM          ? own + 2
                  : wrong && fault == COPY_FROM_SHARED ? mine
                                                       : own,
                  true);
    async_commit();
    async_wait<0>();
    block_sync();
    uint32_t r[4];
    load_matrix_x4(r, wrong && fault == MATRIX ? mine + 8 : wrong && fault == MATRIX_GLOBAL ? own : mine);
    if (fault == LDG) {
        own[0] = (unsigned char)__ldg((const int *)(own + (wrong ? 2 : 0)));
    }
}

static void test_addresses() {
    alignas(16) static unsigned char memory[1024];
    struct {
        enum address_fault fault;
        cudaError_t error;
        const char *text;
    } cases[] = {
        {LOAD, cudaErrorMisalignedAddress, "thread (3, 0, 0): load_16 at"},
        {STORE, cudaErrorMisalignedAddress, "store_16 at"},
        {COPY_TO, cudaErrorMisalignedAddress, "async_copy_16"},
        {COPY_FROM, cudaErrorMisalignedAddress, "async_copy_16"},
        {COPY_TO_GLOBAL, cudaErrorIllegalAddress, "not in the block's shared memory"},
        {COPY_FROM_SHARED, cudaErrorIllegalAddress, "which is shared memory"},
        {MATRIX, cudaErrorMisalignedAddress, "thread (3, 0, 0): load_matrix"},
        {MATRIX_GLOBAL, cudaErrorIllegalAddress, "not in the block's shared memory"},
        {LDG, cudaErrorMisalignedAddress, "__ldg at"},
    };
    CHECK(LAUNCH(address_kernel, 1, 32, sizeof(address_shared), 0, memory, WELL) == cudaSuccess, "%s",
          emu_last_fault());
    for (const auto &c : cases) {
        CHECK_FAULT(LAUNCH(address_kernel, 1, 32, sizeof(address_shared), 0, memory, c.fault), c.error, c.text);
    }
}

/* ---- what ends a host program and only a kernel here ---- */

static PLANTED __global__ void null_kernel(int *p) {
    if (threadIdx.x == 5) {
        *p = 1;
    }
    block_sync();
}
static PLANTED __global__ void divide_kernel(int *out, int by) {
    warp_sync();
    out[threadIdx.x] = (int)threadIdx.x / (by - (int)threadIdx.x);
}
static PLANTED __global__ void deep_kernel(int *out, int n) {
    volatile unsigned char
        frame[300 * 1024]; /* larger than any stack of a fiber; touched from its end near the caller */
    for (int i = (int)sizeof frame - 1; i >= (int)sizeof frame - n; i -= 512) {
        frame[i] = (unsigned char)i;
    }
    *out = frame[sizeof frame - 1];
}

static void describe(const void *, char *text, size_t size) {
    snprintf(text, size, "nobody knows it");
}

static void test_signals() {
    if (UNDER_TSAN) {
        return; /* signals are the sanitizer's there */
    }
    std::vector<int> out(64);
    int *nowhere = (int *)(uintptr_t)64;
    for (int i = 0; i < 3; i++) {
        CHECK_FAULT(LAUNCH(null_kernel, 1, 64, 0, 0, nowhere), cudaErrorIllegalAddress,
                    "thread (5, 0, 0): access to the illegal address 0x40");
        CHECK_FAULT(LAUNCH(divide_kernel, 1, 32, 0, 0, out.data(), 7), cudaErrorLaunchFailure, "division by zero");
        CHECK_FAULT(LAUNCH(deep_kernel, 1, 32, 0, 0, out.data(), 300 * 1024), cudaErrorLaunchFailure, "stack of");
    }
    emu_describe_address = describe;
    CHECK_FAULT(LAUNCH(null_kernel, 1, 64, 0, 0, nowhere), cudaErrorIllegalAddress, "nobody knows it");
    emu_describe_address = nullptr;
    CHECK(LAUNCH(divide_kernel, 1, 32, 0, 0, out.data(), 100) == cudaSuccess && out[31] == 31 / 69, "%s",
          emu_last_fault());
}

void test_planted_faults() {
    test_missing_barriers();
    test_one_way_race();
    test_stale();
    test_bounds();
    test_warps();
    test_addresses();
    test_signals();
}
