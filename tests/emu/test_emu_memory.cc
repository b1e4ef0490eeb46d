/* Memory: bounds, freed memory, copies, protection, what is left of the device. */
#include "device.cuh"
#include "test_emu_runtime.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* Kernels that do what they are told, right or wrong. */
static void write_byte(unsigned char *p, long at, unsigned char value) {
    if (threadIdx.x == 0) {
        p[at] = value;
    }
}
static void read_byte(const unsigned char *p, long at, unsigned char *out) {
    if (threadIdx.x == 0) {
        *out = p[at];
    }
}

static cudaError_t run_write(unsigned char *p, long at) {
    cudaError_t error = LAUNCH(write_byte, 1, 32, 0, nullptr, p, at, (unsigned char)1);
    return error == cudaSuccess ? cudaDeviceSynchronize() : error;
}

static cudaError_t run_read(const unsigned char *p, long at, unsigned char *out) {
    cudaError_t error = LAUNCH(read_byte, 1, 32, 0, nullptr, p, at, out);
    return error == cudaSuccess ? cudaDeviceSynchronize() : error;
}

static void test_bounds() {
    static const size_t sizes[] = {16, 4096, 10000, 3 << 20};
    unsigned char *p, *out;
    for (size_t size : sizes) { /* multiples of 16: the first byte behind faults, read or written */
        for (int write = 0; FAULTS_ARE_CAUGHT && write < 2; write++) {
            begin();
            OK(cudaMalloc(&p, size));
            OK(cudaMalloc(&out, 1));
            OK(run_read(p, 0, out));
            OK(run_write(p, long(size) - 1));
            REFUSED(cudaErrorIllegalAddress, write ? run_write(p, long(size)) : run_read(p, long(size), out));
            CHECK(report_has("0 bytes behind the end of the allocation"));
            REFUSED(cudaErrorIllegalAddress, cudaMalloc(&p, 1));
        }
    }
    for (long at : {13L, 15L, -1L}) { /* up to the next multiple of 16, and before: found at the next wait */
        begin();
        OK(cudaMalloc(&p, 13));
        REFUSED(cudaErrorIllegalAddress, run_write(p, at));
        CHECK(report_has("beside the allocation of 13 bytes"));
    }
    begin(); /* or, unprotected, by whoever asks */
    struct emu_options o;
    emu_get_options(&o);
    o.protect = false;
    OK(emu_configure(&o));
    OK(cudaMalloc(&p, 13));
    OK(run_write(p, 12));
    CHECK(emu_check_memory() == 0);
    OK(run_write(p, 14));
    CHECK(emu_check_memory() == 1 && report_has("beside the allocation"));
    REFUSED(cudaErrorIllegalAddress, cudaFree(p));
}

static void test_alignment() {
    for (size_t alignment : {size_t(16), size_t(256)}) {
        begin();
        struct emu_options o;
        emu_get_options(&o);
        o.alignment = alignment;
        OK(emu_configure(&o));
        for (size_t size = 1; size < 9000; size += 311) {
            unsigned char *p;
            OK(cudaMalloc(&p, size));
            CHECK(uintptr_t(p) % alignment == 0);
            CHECK((uintptr_t(p) + (size + alignment - 1) / alignment * alignment) % 4096 == 0);
        }
        CHECK(emu_check_memory() == 0);
    }
}

static void test_freed(bool protect) {
    begin();
    struct emu_options o;
    emu_get_options(&o);
    o.protect = protect;
    OK(emu_configure(&o));
    unsigned char *p, *q, *out;
    OK(cudaMalloc(&p, 64));
    OK(cudaMalloc(&out, 1));
    OK(cudaFree(p));
    OK(cudaMalloc(&q, 64));
    CHECK(p != q); /* an address is used once */
    REFUSED(cudaErrorInvalidValue, cudaFree(p));
    CHECK(report_has("was freed"));
    REFUSED(cudaErrorInvalidValue, cudaFree(q + 16));
    REFUSED(cudaErrorInvalidValue, cudaFreeHost(q));
    REFUSED(cudaErrorInvalidValue, cudaMemset(p, 0, 1));
    if (FAULTS_ARE_CAUGHT) {
        REFUSED(cudaErrorIllegalAddress, run_read(p, 5, out));
        CHECK(report_has("that was freed"));
    }
    begin();
    OK(cudaFree(nullptr));
    OK(cudaFreeHost(nullptr));
    OK(cudaMalloc(&p, 0));
    CHECK(!p);
    REFUSED(cudaErrorInvalidValue, cudaMalloc(static_cast<void **>(nullptr), 1));
}

/* What was never written reads as no number and no index. */
static void test_poison() {
    for (size_t size : {size_t(64), size_t(40) << 20}) {
        begin();
        unsigned char *p;
        uint32_t word;
        OK(cudaMalloc(&p, size));
        for (size_t at : {size_t(0), size / 2, size - 4}) {
            OK(cudaMemcpy(&word, p + at, 4, cudaMemcpyDeviceToHost));
            CHECK(word == 0x7fff7fff);
        }
        OK(cudaFree(p));
    }
}

static void test_copies() {
    begin();
    unsigned char *a, *b, *pinned, host[64];
    OK(cudaMalloc(&a, 64));
    OK(cudaMalloc(&b, 64));
    OK(cudaMallocHost(&pinned, 64));
    for (unsigned char i = 0; i < 64; i++) {
        host[i] = i;
    }
    OK(cudaMemcpy(a, host, 64, cudaMemcpyHostToDevice));
    OK(cudaMemcpy(b, a, 64, cudaMemcpyDeviceToDevice));
    OK(cudaMemcpy(pinned, b, 64, cudaMemcpyDefault));
    CHECK(memcmp(pinned, host, 64) == 0);
    OK(cudaMemset(b + 4, 7, 8));
    OK(cudaMemcpy2DAsync(pinned, 4, b, 8, 4, 8, cudaMemcpyDeviceToHost, nullptr));
    OK(cudaDeviceSynchronize());
    CHECK(pinned[0] == 0 && pinned[3] == 3 && pinned[4] == 7 && pinned[8] == 16 && pinned[31] == 59);
    /* over the end, beginning outside, the wrong way, no way */
    REFUSED(cudaErrorInvalidValue, cudaMemcpy(a, host, 65, cudaMemcpyHostToDevice));
    CHECK(report_has("destination: 65 bytes from byte 0 on of an allocation of 64 bytes"));
    REFUSED(cudaErrorInvalidValue, cudaMemcpy(host, a + 1, 64, cudaMemcpyDeviceToHost));
    REFUSED(cudaErrorInvalidValue, cudaMemcpyAsync(pinned + 32, a, 33, cudaMemcpyDeviceToHost, nullptr));
    REFUSED(cudaErrorInvalidValue, cudaMemcpy(host, a, 64, cudaMemcpyHostToDevice));
    REFUSED(cudaErrorInvalidValue, cudaMemcpy(a, b, 64, cudaMemcpyHostToDevice));
    REFUSED(cudaErrorInvalidValue, cudaMemcpy(a, b, 64, cudaMemcpyDeviceToHost));
    REFUSED(cudaErrorInvalidValue, cudaMemcpy(host, host + 32, 8, cudaMemcpyDeviceToDevice));
    REFUSED(cudaErrorInvalidMemcpyDirection, cudaMemcpy(a, b, 64, cudaMemcpyKind(7)));
    REFUSED(cudaErrorInvalidValue, cudaMemcpy(a, nullptr, 64, cudaMemcpyHostToDevice));
    REFUSED(cudaErrorInvalidPitchValue, cudaMemcpy2DAsync(a, 4, b, 8, 5, 8, cudaMemcpyDeviceToDevice, nullptr));
    REFUSED(cudaErrorInvalidValue, cudaMemset(a + 60, 0, 5));
    REFUSED(cudaErrorInvalidValue, cudaMemsetAsync(host, 0, 5, nullptr));
    struct emu_counts counts;
    emu_get_counts(&counts);
    CHECK(counts.copies_to_device == 1 && counts.bytes_to_device == 64 && counts.copies_to_host == 2 &&
          counts.copies_on_device == 1 && counts.memsets == 1);
    OK(cudaFreeHost(pinned));
}

static void test_pointers() {
    begin(1, EMU_ORDER_RANDOM, 2);
    unsigned char *p, *pinned, *plain = new unsigned char[64];
    void *there;
    struct cudaPointerAttributes at;
    OK(cudaSetDevice(1));
    OK(cudaMalloc(&p, 64));
    OK(cudaHostAlloc(&pinned, 64));
    OK(cudaSetDevice(0));
    OK(cudaPointerGetAttributes(&at, p + 63));
    CHECK(at.type == cudaMemoryTypeDevice && at.device == 1 && at.devicePointer == p + 63 && !at.hostPointer);
    OK(cudaPointerGetAttributes(&at, pinned));
    CHECK(at.type == cudaMemoryTypeHost && at.hostPointer == pinned);
    OK(cudaPointerGetAttributes(&at, plain));
    CHECK(at.type == cudaMemoryTypeUnregistered && !at.devicePointer);
    OK(cudaHostGetDevicePointer(&there, pinned, 0));
    CHECK(there == pinned);
    REFUSED(cudaErrorInvalidValue, cudaHostGetDevicePointer(&there, plain, 0));
    OK(cudaHostRegister(plain, 64, cudaHostRegisterDefault));
    REFUSED(cudaErrorHostMemoryAlreadyRegistered, cudaHostRegister(plain + 8, 8, 0));
    OK(cudaPointerGetAttributes(&at, plain + 8));
    CHECK(at.type == cudaMemoryTypeHost);
    OK(cudaHostUnregister(plain));
    REFUSED(cudaErrorHostMemoryNotRegistered, cudaHostUnregister(plain));
    OK(cudaFreeHost(pinned));
    OK(cudaFree(p)); /* from another device */
    delete[] plain;
}

/* A device is full when it is full, and has all of it back at the end. */
static void test_limits() {
    begin();
    struct emu_options o;
    emu_get_options(&o);
    o.memory_bytes = 64 << 20;
    o.context_bytes = 8 << 20;
    OK(emu_configure(&o));
    size_t before, free_bytes, total;
    unsigned char *p, *q;
    OK(cudaMemGetInfo(&before, &total));
    CHECK(total == 64 << 20 && before == 56 << 20);
    REFUSED(cudaErrorMemoryAllocation, cudaMalloc(&p, (56 << 20) + 1));
    CHECK(report_has("8388608 of 67108864 are taken"));
    REFUSED(cudaErrorMemoryAllocation, cudaMalloc(&p, SIZE_MAX));
    OK(cudaMalloc(&p, 50 << 20));
    OK(cudaMalloc(&q, 1)); /* small ones take 2 MB together */
    OK(cudaMemGetInfo(&free_bytes, &total));
    CHECK(free_bytes == 4 << 20);
    REFUSED(cudaErrorMemoryAllocation, cudaMalloc(&p, 5 << 20));
    OK(cudaFree(q));
    OK(cudaFree(p));
    OK(cudaMemGetInfo(&free_bytes, &total));
    CHECK(free_bytes == before);
    struct emu_counts counts;
    emu_get_counts(&counts);
    CHECK(counts.allocations == 0 && counts.device_bytes[0] == 0 && counts.frees == 2 &&
          counts.calls[EMU_CALL_MALLOC] == 5);
}

/* The signal that ends a child which touches p, and what it said. */
static int touch_in_child(volatile unsigned char *p, bool write, char *said, size_t size) {
    int ends[2], status = 0;
    if (pipe(ends) != 0) {
        return -1;
    }
    pid_t child = fork();
    if (child == 0) {
        signal(SIGABRT, SIG_DFL);
        dup2(ends[1], 2);
        unsigned char v = 1;
        if (write) {
            *p = v;
        } else {
            v = *p;
        }
        _exit(v == 0);
    }
    close(ends[1]);
    size_t n = 0;
    for (ssize_t got; n < size - 1 && (got = read(ends[0], said + n, size - 1 - n)) > 0;) {
        n += size_t(got);
    }
    said[n] = '\0';
    char rest[512];
    while (read(ends[0], rest, sizeof rest) > 0) {
    }
    close(ends[0]);
    waitpid(child, &status, 0);
    return WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status) == 0 ? 0 : SIGSEGV; /* sanitizers exit */
}

static void test_protection() {
    char said[400];
    begin();
    unsigned char *p, *pinned;
    OK(cudaMalloc(&p, 64));
    OK(cudaMallocHost(&pinned, 64));
    CHECK(touch_in_child(p, false, said, sizeof said) == SIGSEGV);
    CHECK(strstr(said, "host code touches device memory") &&
          strstr(said, "byte 0 of the device allocation of 64 bytes"));
    OK(run_write(p, 3)); /* closed again behind work */
    CHECK(touch_in_child(p + 3, false, said, sizeof said) == SIGSEGV);
    CHECK(touch_in_child(p + 3, true, said, sizeof said) == SIGSEGV);
    CHECK(touch_in_child(pinned, true, said, sizeof said) == 0);
    struct emu_options o;
    emu_get_options(&o);
    o.protect = false;
    OK(emu_configure(&o));
    OK(cudaMalloc(&p, 64));
    CHECK(touch_in_child(p, true, said, sizeof said) == 0);
}

/* A kernel reaches the memory of its own device, and of peers. */
static void test_other_device() {
    unsigned char *p, *q;
    for (int peer = FAULTS_ARE_CAUGHT ? 0 : 1; peer < 2; peer++) {
        begin(1, EMU_ORDER_RANDOM, 2);
        OK(cudaSetDevice(1));
        OK(cudaMalloc(&p, 64));
        OK(cudaMemset(p, 5, 64));
        OK(cudaDeviceSynchronize());
        OK(cudaSetDevice(0));
        OK(cudaMalloc(&q, 64));
        OK(cudaMemcpy(q, p, 64, cudaMemcpyDeviceToDevice)); /* copies need no peer */
        OK(cudaMemcpyPeerAsync(q, 0, p, 1, 64, nullptr));
        REFUSED(cudaErrorInvalidValue, cudaMemcpyPeerAsync(q, 1, p, 1, 64, nullptr));
        int can;
        OK(cudaDeviceCanAccessPeer(&can, 0, 1));
        CHECK(can == 1);
        OK(cudaDeviceGetP2PAttribute(&can, cudaDevP2PAttrNativeAtomicSupported, 0, 1));
        CHECK(can == 1);
        REFUSED(cudaErrorInvalidDevice, cudaDeviceGetP2PAttribute(&can, cudaDevP2PAttrAccessSupported, 1, 1));
        if (peer) {
            OK(cudaDeviceEnablePeerAccess(1, 0));
            REFUSED(cudaErrorPeerAccessAlreadyEnabled, cudaDeviceEnablePeerAccess(1, 0));
        }
        REFUSED(peer ? cudaSuccess : cudaErrorIllegalAddress, run_read(p, 0, q));
        if (peer) {
            unsigned char v;
            OK(cudaMemcpy(&v, q, 1, cudaMemcpyDeviceToHost));
            CHECK(v == 5);
            OK(cudaDeviceDisablePeerAccess(1));
            REFUSED(cudaErrorPeerAccessNotEnabled, cudaDeviceDisablePeerAccess(1));
        }
    }
}

void test_memory() {
    test_bounds();
    test_alignment();
    test_freed(true);
    test_freed(false);
    test_poison();
    test_copies();
    test_pointers();
    test_limits();
    if (FAULTS_ARE_CAUGHT) {
        test_protection();
    }
    test_other_device();
}
