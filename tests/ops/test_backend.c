/* Opening, memory, weights and refusals of the backend; and the pool under load, for the thread sanitizer. */
#include "ops.h"

#include <time.h>

static void test_refused(const struct fixture *f, struct backend_config config, enum error_code code) {
    struct backend *b = NULL;
    CHECK(f->ops->open(&config, &b, &err) < 0 && err.code == code && b == NULL && err.message[0],
          "open with variant %s, %zu threads, %zu rows is not refused", config.variant ? config.variant : "(best)",
          config.threads, config.max_rows);
}

static void test_weights(const struct fixture *f) {
    static const uint8_t data[1024];
    static const float floats[256];
    struct weight good = {.dtype = DTYPE_Q4_K, .n = 2, .k = 256, .row_bytes = 144, .data = data};
    struct weight w = {.dtype = DTYPE_F32, .n = 1, .k = 256, .row_bytes = 1024, .data = floats};
    OK(f->ops->weight_load(f->b[0], &w, &err));
    CHECK(w.data == floats, "floats are not read in place");
    f->ops->weight_unload(f->b[0], &w);
    w = good;
    OK(f->ops->weight_load(f->b[0], &w, &err));
    CHECK(w.data != NULL && (w.data == data) == (w.packed == NULL), "packed blocks are read from where they were");
    f->ops->weight_unload(f->b[0], &w);
    w = good, w.k = 250;
    CHECK(f->ops->weight_load(f->b[0], &w, &err) < 0, "a row of 250 elements of Q4_K");
    w = good, w.row_bytes = 143;
    CHECK(f->ops->weight_load(f->b[0], &w, &err) < 0, "a row of 143 bytes of Q4_K");
    w = good, w.dtype = DTYPE_I32;
    CHECK(f->ops->weight_load(f->b[0], &w, &err) < 0, "a weight of I32");
    w = good, w.n = 0;
    CHECK(f->ops->weight_load(f->b[0], &w, &err) < 0, "a weight without rows");
}

static void test_memory(const struct fixture *f) {
    static const size_t sizes[] = {0, 1, 63, 4096, 262143, 262144, 5000001};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        unsigned char *p = NULL;
        void *out = NULL;
        OK(f->ops->alloc(f->b[0], sizes[i], &out, &err));
        p = out;
        CHECK((uintptr_t)p % 64 == 0, "memory is not aligned");
        bool zero = true;
        for (size_t j = 0; j < sizes[i]; j++) {
            zero = zero && p[j] == 0;
        }
        CHECK(zero, "%zu bytes are not zero", sizes[i]);
        if (sizes[i] >= 5) {
            char back[5] = "";
            OK(f->ops->upload(f->b[0], p + sizes[i] - 5, "four", 5, &err));
            OK(f->ops->sync(f->b[0], &err));
            OK(f->ops->download(f->b[0], back, p + sizes[i] - 5, 5, &err));
            CHECK(strcmp(back, "four") == 0, "what was uploaded is not what is downloaded");
        }
        f->ops->free(f->b[0], out);
    }
    f->ops->free(f->b[0], NULL);
    f->ops->host_free(f->b[0], NULL);
    f->ops->close(NULL);
    void *out = NULL;
    CHECK(f->ops->alloc(f->b[0], SIZE_MAX - 3, &out, &err) < 0 && err.code == ERROR_MEMORY && out == NULL,
          "more memory than there is");
}

static void test_too_many_rows(const struct fixture *f) {
    float x[4] = {0};
    const struct weight w = {.dtype = DTYPE_F32, .n = 1, .k = 1, .row_bytes = 4, .data = x};
    struct linear_part part = {&w, NULL, x, 1};
    CHECK(f->ops->linear(f->b[0], x, 1, TEST_ROWS + 1, &part, 1, &err) < 0, "more rows than the workspace is for");
    CHECK(f->ops->linear(f->b[0], x, 0, 1, &part, 1, &err) < 0, "rows shorter than the weight");
    OK(f->ops->linear(f->b[0], x, 1, 0, &part, 1, &err));
}

/* Thousands of short operations back to back, with pauses in which the workers fall asleep. */
static void test_short_operations(const struct fixture *f) {
    enum { DIM = 16384, ROWS = 8 };
    float *x = xmalloc(ROWS * DIM * sizeof *x), *y = xmalloc(ROWS * DIM * sizeof *y),
          *normed = xmalloc(ROWS * DIM * sizeof *normed);
    for (size_t threads = 1; threads <= MAX_TEST_THREADS; threads++) {
        memset(x, 0, ROWS * DIM * sizeof *x);
        for (size_t i = 0; i < ROWS * DIM; i++) {
            y[i] = 1;
        }
        enum { LOOPS = 300 };
        for (size_t i = 0; i < LOOPS; i++) {
            /* x += y comes with a norm that nobody looks at */
            OK(f->ops->rms_norm(f->b[threads - 1], normed, DIM, x, DIM, y, DIM, y, 1 + i % ROWS, 1, DIM, 1e-5f, &err));
            if (i % 100 == 99) {
                struct timespec pause = {0, 2000000};
                nanosleep(&pause, NULL);
            }
        }
        bool right = true;
        for (size_t r = 0; r < ROWS; r++) {
            size_t times = 0;
            for (size_t i = 0; i < LOOPS; i++) {
                times += r < 1 + i % ROWS;
            }
            for (size_t d = 0; d < DIM; d++) {
                right = right && x[r * DIM + d] == (float)times;
            }
        }
        CHECK(right, "rows were added a wrong number of times on %zu threads", threads);
    }
    free(x);
    free(y);
    free(normed);
}

/* Nobody computes, so nobody may use the processor: workers fall asleep. */
static void test_idle(void) {
    struct timespec settle = {0, 20 * 1000000}, pause = {0, 200 * 1000000}, before, after;
    nanosleep(&settle, NULL);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
    nanosleep(&pause, NULL);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
    double used = (double)(after.tv_sec - before.tv_sec) + 1e-9 * (double)(after.tv_nsec - before.tv_nsec);
    CHECK(used < 0.02, "idle backends used %.0f ms of processor time in 200 ms", 1e3 * used);
}

/* Limits of a sane size: what the loops were meant to do was not left out, which would make them endless. */
static void test_measure(const struct fixture *f) {
    struct backend_limits l;
    OK(f->ops->measure(f->b[1], &l, &err));
    CHECK(l.read_bytes_per_s > 1e8 && l.read_bytes_per_s < 1e13, "%g bytes/s are read", l.read_bytes_per_s);
    CHECK(l.f32_ops_per_s > 1e8 && l.f32_ops_per_s < 2e12, "%g F32 operations/s by two threads", l.f32_ops_per_s);
    CHECK(l.i8_ops_per_s > 1e8 && l.i8_ops_per_s < 1e14, "%g INT8 operations/s", l.i8_ops_per_s);
    CHECK(l.bf16_ops_per_s >= 0 && l.bf16_ops_per_s < 5e13, "%g BF16 operations/s", l.bf16_ops_per_s);
}

void test_backend(const struct fixture *f) {
    test_refused(f, (struct backend_config){.threads = 1, .max_rows = 8, .variant = "sse9"}, ERROR_DEVICE);
    test_refused(f, (struct backend_config){.threads = 1, .max_rows = 0}, ERROR_INVALID);
    test_refused(f, (struct backend_config){.threads = 100000, .max_rows = 8}, ERROR_INVALID);
    for (size_t i = 0; i < MAX_TEST_THREADS; i++) {
        struct backend_info info;
        f->ops->info(f->b[i], &info);
        CHECK(strcmp(info.name, "cpu") == 0 && strcmp(info.variant, f->variant) == 0 && info.device[0] &&
                  info.threads == i + 1 && info.activation_dtype == DTYPE_F32 && info.memory_total > 0,
              "info of %zu threads is wrong", i + 1);
    }
    test_weights(f);
    test_memory(f);
    test_too_many_rows(f);
    test_short_operations(f);
    if (strcmp(f->variant, best_variant(f->ops)) == 0) { /* it takes a second or two */
        test_measure(f);
    }
    test_idle();
}
