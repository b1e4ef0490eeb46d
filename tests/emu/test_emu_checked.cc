/*
 * Kernels whose accesses are checked one by one (checked_access.cc): races are found whatever the order of the threads,
 * and only races. Compiled as checked kernels are, with the functions of the thread sanitizer replaced.
 */
#include "device.cuh"
#include "machine.h"

#include <stdio.h>
#include <string.h>

static size_t checks, failures;
static void check(bool ok, int line, const char *what) {
    checks++;
    if (!ok && ++failures <= 20) {
        printf("line %d: %s: %s\n", line, what, emu_last_fault());
    }
}
#define CHECK(ok, what) check((ok), __LINE__, what)

cudaError_t emu_enqueue(cudaStream_t, const char *, std::function<cudaError_t(int)> work) {
    return work(0);
}
emu_limits emu_stream_limits(cudaStream_t) {
    return {80, 163 * 1024};
}
size_t emu_shared_allowed(cudaStream_t, const void *) {
    return 48 * 1024;
}

enum { THREADS = 96 };
struct scene_shared {
    alignas(16) int v[THREADS];
    RED_ZONE(16)
    int other[8];
    unsigned char bytes[8];
    alignas(16) uint4 pieces[THREADS];
};
typedef void scene_function(scene_shared &, int *);

template <scene_function *Scene> static __global__ void scene_kernel(int *global) {
    SHARED(scene_shared, s);
    Scene(s, global);
}

/* Global memory: out has a word for each thread of two blocks, and more that all of them see. */
static unsigned own() {
    return blockIdx.x * THREADS + threadIdx.x;
}

/* ---- well ordered ---- */

static void by_barriers(scene_shared &s, int *out) {
    unsigned i = threadIdx.x;
    for (int round = 0; round < 3; round++) {
        s.v[i] = (int)i + round;
        block_sync();
        out[own()] = s.v[THREADS - 1 - i] + s.v[0];
        block_sync();
    }
}
static void by_warp_syncs(scene_shared &s, int *out) {
    unsigned i = threadIdx.x;
    for (int round = 0; round < 3; round++) {
        s.v[i] = (int)i + round;
        warp_sync();
        out[own()] = s.v[i ^ 31] + s.v[i & ~31u];
        warp_sync();
    }
}
static void neighbouring_bytes(scene_shared &s, int *) {
    if (threadIdx.x < 8) {
        s.bytes[threadIdx.x] = (unsigned char)threadIdx.x;
    }
    s.v[threadIdx.x] = 1;
}
static void atomics(scene_shared &s, int *out) {
    if (threadIdx.x == 0) {
        s.other[0] = 0;
    }
    block_sync();
    atomicAdd(&s.other[0], 1);
    block_sync();
    out[own()] = s.other[0];
}
static void own_values(scene_shared &s, int *out) {
    s.v[threadIdx.x] = 1;
    s.v[threadIdx.x] += 2;
    out[own()] = s.v[threadIdx.x];
}
static void copies(scene_shared &s, int *out) {
    unsigned i = threadIdx.x;
    for (int round = 0; round < 2; round++) {
        async_copy_16(&s.pieces[i], &out[2 * THREADS + 4 * (i % 8)], true);
        async_commit();
        async_wait<0>();
        block_sync();
        uint32_t r[4];
        load_matrix_x4(r, &s.pieces[(i + 32) % THREADS]);
        out[own()] = (int)r[0];
        block_sync();
    }
}

static void global_well(scene_shared &s, int *out) {
    int *all = out + 2 * THREADS;
    s.v[threadIdx.x] = __ldg(all) + all[1]; /* all read the same */
    out[own()] = s.v[threadIdx.x];
    block_sync();
    s.v[threadIdx.x] = out[blockIdx.x * THREADS + (threadIdx.x + 1) % THREADS];
    atomicAdd(&all[2], 1);
}
static void global_in_place(scene_shared &, int *out) {
    int *four = out + (own() / 4 * 4);
    if (threadIdx.x % 4 == 0) {
        uint4 v = load_16(four);
        v.x++;
        store_16(four, v);
    }
}

/* ---- races ---- */

static void global_without_barrier(scene_shared &s, int *out) {
    out[own()] = 1;
    s.v[threadIdx.x] = out[blockIdx.x * THREADS + (threadIdx.x + 1) % THREADS];
}
static void blocks_write_the_same(scene_shared &, int *out) {
    if (threadIdx.x == 0) {
        out[2 * THREADS] = 1;
    }
}
static void blocks_read_what_others_write(scene_shared &s, int *out) {
    s.v[threadIdx.x] = out[(own() + THREADS) % (2 * THREADS)];
    out[own()] = 1;
}
static void all_blocks_read_one_writes(scene_shared &s, int *out) {
    int *all = out + 2 * THREADS;
    s.v[threadIdx.x] = all[0];
    block_sync();
    if (blockIdx.x == 1 && threadIdx.x == 3) {
        all[0] = 1;
    }
}
static void constant_that_is_written(scene_shared &s, int *out) {
    out[own()] = 1;
    s.v[threadIdx.x] = __ldg(&out[own()]);
}

static void read_after_write(scene_shared &s, int *out) {
    s.v[threadIdx.x] = 1;
    out[own()] = s.v[threadIdx.x / 32 * 32]; /* within the warp, right in every order but one's own */
}
static void write_after_read(scene_shared &s, int *out) {
    s.v[threadIdx.x] = 1;
    block_sync();
    out[own()] = s.v[(threadIdx.x + 40) % THREADS];
    s.v[threadIdx.x] = 1; /* the same value: no order gives a wrong result */
}
static void write_after_write(scene_shared &s, int *) {
    s.other[1] = 5;
}
static void shuffles_order_nothing(scene_shared &s, int *out) {
    unsigned i = threadIdx.x;
    s.v[i] = 1;
    int x = warp_shfl_xor(1, 1);
    out[own()] = s.v[i ^ 1] + x;
}
static void warp_sync_across_warps(scene_shared &s, int *out) {
    s.v[threadIdx.x] = 1;
    warp_sync();
    out[own()] = s.v[(threadIdx.x + 32) % THREADS];
}
static void atomic_and_plain(scene_shared &s, int *out) {
    atomicAdd(&s.other[0], 1);
    out[own()] = s.other[0];
}
static void overlapping_words(scene_shared &s, int *) {
    if (threadIdx.x == 40) {
        s.bytes[5] = 1;
    }
    if (threadIdx.x == 50) {
        uint32_t word = 7;
        memcpy(s.bytes + 4, &word, 4);
    }
}
static void copy_without_barrier(scene_shared &s, int *out) {
    unsigned i = threadIdx.x;
    async_copy_16(&s.pieces[i], &out[2 * THREADS + 4 * (i % 8)], true);
    async_commit();
    async_wait<0>();
    uint32_t r[4];
    load_matrix_x4(r, &s.pieces[(i + 32) % THREADS]);
}
static void copy_into_what_is_read(scene_shared &s, int *out) {
    unsigned i = threadIdx.x;
    s.pieces[i] = make_uint4(1, 2, 3, 4);
    block_sync();
    uint32_t r[4];
    load_matrix_x4(r, &s.pieces[(i + 32) % THREADS]);
    async_copy_16(&s.pieces[i], &out[2 * THREADS + 4 * (i % 8)], true);
    async_commit();
    async_wait<0>();
}
static void copy_lands_late(scene_shared &s, int *out) {
    unsigned i = threadIdx.x;
    async_copy_16(&s.pieces[i], &out[2 * THREADS + 4 * (i % 8)], true);
    async_commit();
    block_sync();
    out[own()] = (int)s.pieces[(i + 1) % THREADS].x;
    async_wait<0>();
}
static void out_of_bounds(scene_shared &s, int *out) {
    int *v = s.v;
    out[own()] = v[threadIdx.x == 70 ? (unsigned)THREADS : threadIdx.x]; /* reads a red zone */
}

template <scene_function *Scene> static bool says(const char *text) {
    bool all = true;
    for (uint64_t seed = 0; seed < 6; seed++) {
        alignas(16) int out[2 * THREADS + 32] = {};
        emu_set_order_seed(seed);
        uint64_t before = emu_fault_count();
        cudaError_t error = LAUNCH(scene_kernel<Scene>, 2, THREADS, sizeof(scene_shared), 0, out);
        bool quiet = error == cudaSuccess && emu_fault_count() == before;
        all = all && (text == nullptr ? quiet : !quiet && strstr(emu_last_fault(), text) != nullptr);
    }
    return all;
}

int main() {
    emu_set_fault_output(false);
    CHECK(says<by_barriers>(nullptr), "by_barriers");
    CHECK(says<by_warp_syncs>(nullptr), "by_warp_syncs");
    CHECK(says<neighbouring_bytes>(nullptr), "neighbouring_bytes");
    CHECK(says<atomics>(nullptr), "atomics");
    CHECK(says<own_values>(nullptr), "own_values");
    CHECK(says<copies>(nullptr), "copies");
    CHECK(says<global_well>(nullptr), "global_well");
    CHECK(says<global_in_place>(nullptr), "global_in_place");
    CHECK(says<global_without_barrier>("a race: memory at"), "global_without_barrier");
    CHECK(says<blocks_write_the_same>("is written after it was written by thread (0, 0, 0) of another block"),
          "blocks_write_the_same");
    CHECK(says<blocks_read_what_others_write>("of another block"), "blocks_read_what_others_write");
    CHECK(says<all_blocks_read_one_writes>("a race: memory at"), "all_blocks_read_one_writes");
    CHECK(says<constant_that_is_written>("is read as constant though it was written by"), "constant_that_is_written");
    CHECK(says<read_after_write>("a race: shared memory at offset"), "read_after_write");
    CHECK(says<write_after_read>("a race: shared memory at offset"), "write_after_read");
    CHECK(says<write_after_write>("is written after it was written by"), "write_after_write");
    CHECK(says<shuffles_order_nothing>("a race"), "shuffles_order_nothing");
    CHECK(says<warp_sync_across_warps>("a race"), "warp_sync_across_warps");
    CHECK(says<atomic_and_plain>("a race"), "atomic_and_plain");
    CHECK(says<overlapping_words>("a race: shared memory at offset"), "overlapping_words");
    CHECK(says<copy_without_barrier>("a race"), "copy_without_barrier");
    CHECK(says<copy_into_what_is_read>("a race"), "copy_into_what_is_read");
    CHECK(says<copy_lands_late>("a race"), "copy_lands_late");
    CHECK(says<out_of_bounds>("4 bytes at offset 384 of the shared memory are out of bounds"), "out_of_bounds");
    printf("%zu checks, %zu failed\n", checks, failures);
    return failures != 0;
}
