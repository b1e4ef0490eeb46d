/*
 * The machine that runs kernels: every wrapper of device.cuh against a scalar definition, and planted faults, each of
 * which must be caught. The runtime is not needed here: launches run at once.
 */
#include "test_emu.h"

#include <set>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <thread>
#include <vector>

static size_t checks, failures;
size_t shared_allowed = 48 * 1024;

void check(bool ok, const char *file, int line, const char *format, ...) {
    checks++;
    if (ok || ++failures > 20) {
        return;
    }
    va_list arguments;
    va_start(arguments, format);
    printf("%s:%d: ", file, line);
    vprintf(format, arguments);
    printf("\n");
    va_end(arguments);
}

void check_fault(const std::function<cudaError_t()> &launch, cudaError_t code, const char *text, const char *file,
                 int line) {
    uint64_t before = emu_fault_count();
    emu_set_fault_output(false);
    cudaError_t error = launch();
    emu_set_fault_output(true);
    check(error == code, file, line, "error %d instead of %d: %s", error, code, emu_last_fault());
    check(emu_fault_count() == before + 1, file, line, "%d hard errors", (int)(emu_fault_count() - before));
    check(strstr(emu_last_fault(), text) != nullptr, file, line, "'%s' does not say '%s'", emu_last_fault(), text);
}

cudaError_t emu_enqueue(cudaStream_t, const char *, std::function<cudaError_t(int)> work) {
    return work(0);
}
emu_limits emu_stream_limits(cudaStream_t) {
    return {80, 163 * 1024};
}
size_t emu_shared_allowed(cudaStream_t, const void *) {
    return shared_allowed;
}

/* ---- a block's sum: shared memory, barriers, shuffles, atomics ---- */

struct sum_shared {
    int values[256];
    RED_ZONE(16)
    int sums[8];
};

template <int Threads> static __global__ void sum_kernel(int *out, const int *in, int n) {
    SHARED(sum_shared, s);
    int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    s.values[threadIdx.x] = i < n ? in[i] : 0;
    block_sync();
    int v = s.values[Threads - 1 - threadIdx.x];
    for (int d = WARP / 2; d > 0; d /= 2) {
        v += warp_shfl_xor(v, d);
    }
    if (threadIdx.x % WARP == 0) {
        s.sums[threadIdx.x / WARP] = v;
    }
    block_sync();
    if (threadIdx.x == 0) {
        int total = 0;
        for (int w = 0; w < Threads / WARP; w++) {
            total += s.sums[w];
        }
        atomicAdd(out, total);
    }
}

static void test_sum() {
    std::vector<int> in(1000);
    int want = 0, out;
    for (int i = 0; i < 1000; i++) {
        want += in[(size_t)i] = i * i % 77;
    }
    for (uint64_t seed = 0; seed < 10; seed++) {
        emu_set_order_seed(seed);
        out = 0;
        cudaError_t error = LAUNCH((sum_kernel<256>), 4, 256, sizeof(sum_shared), 0, &out, in.data(), 1000);
        CHECK(error == cudaSuccess && out == want, "seed %d: error %d, sum %d of %d", (int)seed, error, out, want);
    }
    emu_set_order_seed(1);
}

/* Devices are threads of the host; each has a machine of its own. */
static void test_host_threads() {
    std::vector<int> in(1000, 1), out(3, 0);
    std::vector<std::thread> devices;
    for (size_t d = 0; d < 3; d++) {
        devices.emplace_back([&, d] {
            for (int i = 0; i < 20; i++) {
                cudaError_t error = LAUNCH((sum_kernel<256>), 4, 256, sizeof(sum_shared), 0, &out[d], in.data(), 1000);
                if (error != cudaSuccess) {
                    out[d] = -1000000;
                }
            }
        });
    }
    for (std::thread &device : devices) {
        device.join();
    }
    for (int sum : out) {
        CHECK(sum == 20000, "sum %d", sum);
    }
}

/* ---- indices and order ---- */

static __global__ void indices_kernel(unsigned *seen, std::vector<unsigned> *order) {
    unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    unsigned i = block * blockDim.x * blockDim.y * blockDim.z + thread;
    seen[i]++;
    order->push_back(i);
}

static void test_indices() {
    std::set<std::vector<unsigned>> orders;
    for (uint64_t seed : {0u, 1u, 2u, 3u, 0u}) {
        emu_set_order_seed(seed);
        std::vector<unsigned> seen(7 * 3 * 2 * 13 * 2 * 5), order;
        cudaError_t error = LAUNCH(indices_kernel, dim3(7, 3, 2), dim3(13, 2, 5), 0, 0, seen.data(), &order);
        CHECK(error == cudaSuccess, "error %d", error);
        for (size_t i = 0; i < seen.size(); i++) {
            CHECK(seen[i] == 1, "thread %zu ran %u times", i, seen[i]);
        }
        bool rising = true;
        for (size_t i = 0; i < order.size(); i++) {
            rising = rising && order[i] == i;
        }
        CHECK(rising == (seed == 0), "seed %d: %s", (int)seed, rising ? "in order" : "out of order");
        orders.insert(order);
    }
    CHECK(orders.size() == 4, "%zu orders", orders.size());
    emu_set_order_seed(1);
}

/* ---- launches that a device refuses ---- */

static __global__ void nothing_kernel() {
}
struct large_shared {
    unsigned char bytes[48 * 1024];
    RED_ZONE(1)
};
struct larger_shared {
    unsigned char bytes[48 * 1024 + 4];
    RED_ZONE(1)
};
template <typename T> static __global__ void shared_kernel(size_t *at) {
    SHARED(T, s);
    s.bytes[threadIdx.x] = 1;
    *at = (size_t)&s;
}

static void test_launch_rules() {
    struct {
        dim3 grid, block;
        size_t shared, allowed;
        cudaError_t error;
    } cases[] = {
        {1, 1, 0, 49152, cudaSuccess},
        {dim3(3, 2, 2), dim3(16, 16, 4), 49152, 49152, cudaSuccess},
        {1, dim3(1, 1, 64), 0, 49152, cudaSuccess},
        {0, 1, 0, 49152, cudaErrorInvalidConfiguration},
        {dim3(1, 0, 1), 1, 0, 49152, cudaErrorInvalidConfiguration},
        {dim3(1, 65536, 1), 1, 0, 49152, cudaErrorInvalidConfiguration},
        {dim3(1, 1, 65536), 1, 0, 49152, cudaErrorInvalidConfiguration},
        {0x80000000u, 1, 0, 49152, cudaErrorInvalidConfiguration},
        {1, 0, 0, 49152, cudaErrorInvalidConfiguration},
        {1, 1025, 0, 49152, cudaErrorInvalidConfiguration},
        {1, dim3(32, 33, 1), 0, 49152, cudaErrorInvalidConfiguration},
        {1, dim3(1, 1, 65), 0, 49152, cudaErrorInvalidConfiguration},
        {1, 1, 60000, 49152, cudaErrorInvalidValue},
        {1, 1, 60000, 60000, cudaSuccess},
        {1, 1, 166912, 166912, cudaSuccess},               /* sm_80's 163 KB */
        {1, 1, 200 * 1024, 232448, cudaErrorInvalidValue}, /* of sm_90 */
    };
    for (const auto &c : cases) {
        shared_allowed = c.allowed;
        cudaError_t error = LAUNCH(nothing_kernel, c.grid, c.block, c.shared, 0);
        CHECK(error == c.error, "grid %u %u %u, block %u %u %u, %zu bytes: %d instead of %d", c.grid.x, c.grid.y,
              c.grid.z, c.block.x, c.block.y, c.block.z, c.shared, error, c.error);
    }
    shared_allowed = 48 * 1024;
    size_t at;
    cudaError_t error = LAUNCH(shared_kernel<large_shared>, 1, 1, sizeof(large_shared), 0, &at);
    CHECK(error == cudaSuccess, "red zones count as shared memory: %s", emu_last_fault());
    CHECK(at % 128 == 0, "shared memory at %zx", at);
    CHECK_FAULT(LAUNCH(shared_kernel<larger_shared>, 1, 1, sizeof(larger_shared), 0, &at), cudaErrorInvalidValue,
                "49156 bytes of shared memory without red zones");
    CHECK_FAULT(LAUNCH(shared_kernel<large_shared>, 1, 1, 1024, 0, &at), cudaErrorIllegalAddress,
                "the launch gave 1024");
}

static __global__ void nested_kernel(cudaError_t *error) {
    *error = LAUNCH(nothing_kernel, 1, 1, 0, 0);
}

int main() {
    test_sum();
    test_host_threads();
    test_indices();
    test_launch_rules();
    cudaError_t nested = cudaSuccess;
    CHECK(LAUNCH(nested_kernel, 1, 1, 0, 0, &nested) == cudaSuccess && nested == cudaErrorNotPermitted,
          "a kernel launched a kernel");
    test_wrappers();
    test_planted_faults();
    printf("%zu checks, %zu failed\n", checks, failures);
    return failures != 0;
}
