/*
 * The machine that runs kernels: every wrapper of device.cuh against a scalar definition, and planted faults, each of
 * which must be caught. The runtime is not needed here: launches run at once.
 */
#include "device.cuh"
#include "machine.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <vector>

static size_t checks, failures;
#define CHECK(ok, ...) check((ok), __LINE__, __VA_ARGS__)
__attribute__((format(printf, 3, 4))) static void check(bool ok, int line, const char *format, ...) {
    checks++;
    if (ok || ++failures > 20) {
        return;
    }
    va_list arguments;
    va_start(arguments, format);
    printf("line %d: ", line);
    vprintf(format, arguments);
    printf("\n");
    va_end(arguments);
}

cudaError_t emu_enqueue(cudaStream_t, const char *, std::function<cudaError_t(int)> work) {
    return work(0);
}
emu_limits emu_stream_limits(cudaStream_t) {
    return {80, 163 * 1024};
}
static size_t shared_allowed = 48 * 1024;
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
}

int main() {
    test_sum();
    printf("%zu checks, %zu failed\n", checks, failures);
    return failures != 0;
}
