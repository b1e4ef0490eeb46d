/* What the tests of kernels share: checks that count, random numbers, and device memory. C++, one file a program. */
#ifndef TESTS_EMU_KERNELS_H
#define TESTS_EMU_KERNELS_H

extern "C" {
#include "ops/reference.h"
#include <inferd/backend.h>
}
#include "emu.h"
#include "launch.h"
#include "machine.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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

/* A call that must succeed, and all work with it. An error of the device stays, so the program ends. */
static void done(cudaError_t rc, int line) {
    if (rc == cudaSuccess) {
        rc = cudaDeviceSynchronize();
    }
    if (rc != cudaSuccess) {
        printf("line %d: %s; %s\n", line, cudaGetErrorString(rc), emu_last_fault());
        exit(1);
    }
}
#define DONE(call) done((call), __LINE__)

static uint64_t random_state = 20261130;
static uint64_t random_u64() { /* SplitMix64 (Steele, Lea & Flood 2014) */
    uint64_t z = random_state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}
static inline double random_unit() { /* in [-1, 1) */
    return ldexp((double)(random_u64() >> 11), -52) - 1;
}
static inline std::vector<uint16_t> random_bf16(size_t n, double size) {
    std::vector<uint16_t> v(n);
    for (uint16_t &x : v) {
        x = reference_to_bf16(random_unit() * size);
    }
    return v;
}
static inline std::vector<float> random_f32(size_t n, double size) {
    std::vector<float> v(n);
    for (float &x : v) {
        x = (float)(random_unit() * size);
    }
    return v;
}

/* Device memory that ends `offset` bytes and n elements behind its beginning: a kernel that goes beyond is seen.
 * `offset` moves what p points at off the alignment that an allocation has. */
template <typename T> struct device_array {
    uint8_t *memory = NULL;
    T *p = NULL;
    size_t n = 0;
    explicit device_array(size_t count, size_t offset = 0) : n(count) {
        DONE(cudaMalloc((void **)&memory, n * sizeof(T) + offset));
        p = (T *)(memory + offset);
    }
    explicit device_array(const std::vector<T> &v, size_t offset = 0) : device_array(v.size(), offset) {
        upload(v);
    }
    device_array(const device_array &) = delete;
    device_array &operator=(const device_array &) = delete;
    ~device_array() {
        DONE(cudaFree(memory));
    }
    void upload(const std::vector<T> &v) {
        DONE(cudaMemcpy(p, v.data(), n * sizeof(T), cudaMemcpyHostToDevice));
    }
    std::vector<T> download() const {
        std::vector<T> v(n);
        DONE(cudaMemcpy(v.data(), p, n * sizeof(T), cudaMemcpyDeviceToHost));
        return v;
    }
};

/* ||x - reference|| / ||reference|| */
static inline double relative_error(const std::vector<double> &x, const std::vector<double> &reference) {
    double difference = 0, size = 0;
    for (size_t i = 0; i < x.size(); i++) {
        difference += (x[i] - reference[i]) * (x[i] - reference[i]);
        size += reference[i] * reference[i];
    }
    return size > 0 ? sqrt(difference / size) : sqrt(difference);
}

static inline int finish(const char *name) {
    printf("%s: %zu checks, %zu failures\n", name, checks, failures);
    return failures > 0 || checks == 0;
}

#endif
