/* What the files of this program share: checks that count, random numbers, random matrices, the backends under test. */
#ifndef TESTS_OPS_OPS_H
#define TESTS_OPS_OPS_H

#include "reference.h"

#include <inferd/backend.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_TEST_THREADS = 4,
    TEST_ROWS = 600, /* max_rows of the backends under test */
};

/* The backends under test: one variant, opened with 1 .. MAX_TEST_THREADS threads. */
struct fixture {
    const struct backend_ops *ops;
    const char *variant;
    struct backend *b[MAX_TEST_THREADS]; /* b[i] has i + 1 threads */
};

extern size_t checks, failures;
extern struct error err; /* of the last operation that failed */
/* Count a check; print the first failures. */
#define CHECK(ok, ...) check((ok), __FILE__, __LINE__, __VA_ARGS__)
void check(bool ok, const char *file, int line, const char *fmt, ...) __attribute__((format(printf, 4, 5)));
/* Call an operation that must succeed. */
#define OK(call)                                                                                                       \
    do {                                                                                                               \
        int rc_ = (call);                                                                                              \
        CHECK(rc_ == 0, "%s: %s", #call, err.message);                                                                 \
    } while (0)

void *xmalloc(size_t bytes); /* zeroed; aborts without memory: a test program may */

struct random {
    uint64_t state;
};
uint64_t random_u64(struct random *r);
double random_unit(struct random *r); /* in [-1, 1) */
void random_floats(struct random *r, float *p, size_t n, double size);

/*
 * A weight of random values. Its bytes begin `misalign` bytes into an allocation that ends where they end, so that a
 * sanitizer sees a read beyond.
 */
struct matrix {
    struct weight w;
    uint8_t *memory;
    double *values; /* [n][k], by the reference */
};
struct matrix matrix_random(struct random *r, enum dtype dtype, size_t n, size_t k, size_t misalign);
void matrix_free(struct matrix *m);

double *to_double(const float *p, size_t rows, size_t ld, size_t n); /* [rows][n]; free it */
bool same_bits(const float *a, const float *b, size_t n);

void test_i8(const struct fixture *f);
void test_linear(const struct fixture *f);
void test_attention(const struct fixture *f);
void test_rows(const struct fixture *f);
void test_backend(const struct fixture *f);
void test_amx(void); /* the tile unit in software; the machine must run it (cpu_has_bf16) */
void test_pool(const struct fixture *f);
/* Print timings of each variant given. threads = 0: as many as the process may run on; `only`: a type's name,
 * "attention", or NULL. */
void bench(const struct backend_ops *ops, const char *const *variants, size_t n_variants, size_t threads,
           const char *only);

/* The name of the variant that this machine runs if nobody chooses. */
const char *best_variant(const struct backend_ops *ops);

#endif
