/* The machine's limits with the threads of a backend: read bandwidth far beyond the caches, and the peaks of
 * arithmetic. */
#include "cpu.h"

#include <sys/mman.h>
#include <time.h>

enum {
    BUFFER_MIB = 1024,     /* caches of hundreds of MB exist */
    BUFFER_LEAST_MIB = 64, /* with little memory */
    BUFFER_SHARE = 8,      /* at most this part of the memory */
    PIECES = 16,           /* of the buffer, or of the rounds, a thread: who is held up does less */
    PASSES = 5,            /* the best counts: a limit is what was reached once */
    PEAK_NS = 4000000,     /* a pass over a peak */
};

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

struct read_loop {
    const struct cpu_kernels *kernels;
    char *buffer;
    size_t piece; /* bytes */
};

static void touch_piece(void *arg, size_t i, size_t worker) {
    (void)worker;
    const struct read_loop *loop = arg;
    for (size_t at = 0; at < loop->piece; at += 4096) { /* pages that nobody wrote would all be one page of zeros */
        loop->buffer[i * loop->piece + at] = (char)(i + at);
    }
}

static void read_piece(void *arg, size_t i, size_t worker) {
    (void)worker;
    const struct read_loop *loop = arg;
    loop->kernels->measure_read(loop->buffer + i * loop->piece, loop->piece);
}

static double best_pass(struct backend *b, size_t n, void (*fn)(void *arg, size_t i, size_t worker), void *arg) {
    uint64_t best = UINT64_MAX;
    for (int i = 0; i < PASSES; i++) {
        uint64_t start = now_ns();
        pool_run(b->pool, n, fn, arg);
        uint64_t took = now_ns() - start;
        best = took < best ? took : best;
    }
    return (double)(best > 0 ? best : 1) * 1e-9;
}

static int measure_bandwidth(struct backend *b, double *out, struct error *err) {
    size_t n = b->threads * PIECES, mib = BUFFER_MIB, most = b->memory_total / BUFFER_SHARE >> 20;
    mib = most < mib ? most : mib;
    mib = mib < BUFFER_LEAST_MIB ? BUFFER_LEAST_MIB : mib;
    struct read_loop loop = {.kernels = b->kernels, .piece = (mib << 20) / n / 4096 * 4096};
    if (loop.piece == 0) {
        loop.piece = 4096;
    }
    void *p = mmap(NULL, n * loop.piece, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
        return error_memory(err);
    }
    (void)madvise(p, n * loop.piece, MADV_HUGEPAGE);
    loop.buffer = p;
    pool_run(b->pool, n, touch_piece, &loop);
    *out = (double)(n * loop.piece) / best_pass(b, n, read_piece, &loop);
    munmap(p, n * loop.piece);
    return 0;
}

struct peak_loop {
    double (*kernel)(size_t rounds);
    size_t rounds;
};

static void peak_piece(void *arg, size_t i, size_t worker) {
    (void)i, (void)worker;
    const struct peak_loop *loop = arg;
    loop->kernel(loop->rounds);
}

/* Operations a second; 0 without such a kernel. */
static double measure_peak(struct backend *b, double (*kernel)(size_t rounds)) {
    if (!kernel) {
        return 0;
    }
    struct peak_loop loop = {kernel, 1024};
    for (;;) { /* how many rounds take long enough: the clock rises meanwhile */
        uint64_t start = now_ns();
        kernel(loop.rounds);
        if (now_ns() - start >= PEAK_NS || loop.rounds > (size_t)1 << 30) {
            break;
        }
        loop.rounds *= 2;
    }
    loop.rounds = loop.rounds / PIECES + 1;
    size_t n = b->threads * PIECES;
    return (double)n * kernel(loop.rounds) / best_pass(b, n, peak_piece, &loop);
}

int cpu_measure(struct backend *b, struct backend_limits *out, struct error *err) {
    struct backend_limits limits = {0};
    if (measure_bandwidth(b, &limits.read_bytes_per_s, err) < 0) {
        return -1;
    }
    limits.i8_ops_per_s = measure_peak(b, b->kernels->measure_i8_peak);
    limits.bf16_ops_per_s = measure_peak(b, b->kernels->measure_bf16_peak);
    limits.f32_ops_per_s = measure_peak(b, b->kernels->measure_f32_peak);
    *out = limits;
    return 0;
}
