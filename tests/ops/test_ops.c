/*
 * Every operation of the CPU backend, each variant that this machine runs, against the reference: a plain program, so
 * that it also runs under the thread sanitizer.
 *
 *   test_ops [--variant NAME] [--only NAME]   the tests, or one of them
 *   test_ops --bench [--threads N] [--variant NAME] [--only TYPE|attention]
 *                                 timings beside the machine's limits, measured in the same run
 */
#include "ops.h"

#include "backend/cpu/cpu.h"

#include <math.h>
#include <stdarg.h>
#include <time.h>

#if defined(__x86_64__)
extern const struct cpu_kernels cpu_kernels_amx_emulated;
#endif

size_t checks, failures;
struct error err;

void check(bool ok, const char *file, int line, const char *fmt, ...) {
    checks++;
    if (ok) {
        return;
    }
    failures++;
    if (failures <= 20) {
        va_list ap;
        va_start(ap, fmt);
        fprintf(stderr, "%s:%d: ", file, line);
        vfprintf(stderr, fmt, ap);
        fputc('\n', stderr);
        va_end(ap);
    }
}

void *xmalloc(size_t bytes) {
    void *p = calloc(bytes > 0 ? bytes : 1, 1);
    if (!p) {
        fprintf(stderr, "test_ops: out of memory\n");
        abort();
    }
    return p;
}

/* SplitMix64 (Steele, Lea & Flood 2014) */
uint64_t random_u64(struct random *r) {
    uint64_t z = r->state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

double random_unit(struct random *r) {
    return ldexp((double)(random_u64(r) >> 11), -52) - 1;
}

void random_floats(struct random *r, float *p, size_t n, double size) {
    for (size_t i = 0; i < n; i++) {
        p[i] = (float)(random_unit(r) * size);
    }
}

static void put_u16(uint8_t *p, uint16_t u) {
    p[0] = (uint8_t)u;
    p[1] = (uint8_t)(u >> 8);
}

/* Random bits, but for the F16 that scale a block: those are of a size that weights have, now and then subnormal. */
static void random_block(struct random *r, enum dtype dtype, uint8_t *block) {
    size_t bytes = dtype_info(dtype)->bytes;
    for (size_t i = 0; i < bytes; i++) {
        block[i] = (uint8_t)random_u64(r);
    }
    double size = random_u64(r) % 16 == 0 ? 1e-6 : 0.02;
    uint16_t d = reference_to_f16(random_unit(r) * size), m = reference_to_f16(random_unit(r) * size);
    switch (dtype) {
    case DTYPE_F32: {
        float f = (float)random_unit(r);
        memcpy(block, &f, sizeof f);
        break;
    }
    case DTYPE_F16:
        put_u16(block, reference_to_f16(random_unit(r) * (size < 0.01 ? 1e-5 : 1)));
        break;
    case DTYPE_BF16:
        put_u16(block, reference_to_bf16(random_unit(r)));
        break;
    case DTYPE_Q4_1:
    case DTYPE_Q5_1:
    case DTYPE_Q4_K:
    case DTYPE_Q5_K:
        put_u16(block, d);
        put_u16(block + 2, m);
        break;
    case DTYPE_Q6_K:
        put_u16(block + 208, d);
        break;
    default:
        put_u16(block, d);
        break;
    }
}

struct matrix matrix_random(struct random *r, enum dtype dtype, size_t n, size_t k, size_t misalign) {
    const struct dtype_info *info = dtype_info(dtype);
    struct matrix m = {.w = {.dtype = dtype, .n = n, .k = k, .row_bytes = k / info->block * info->bytes}};
    m.memory = xmalloc(misalign + n * m.w.row_bytes);
    m.w.data = m.memory + misalign;
    for (size_t i = 0; i < n * m.w.row_bytes; i += info->bytes) {
        random_block(r, dtype, m.memory + misalign + i);
    }
    m.values = xmalloc(n * k * sizeof *m.values);
    for (size_t i = 0; i < n; i++) {
        reference_dequantise(dtype, m.memory + misalign + i * m.w.row_bytes, k, m.values + i * k);
    }
    return m;
}

void matrix_free(struct matrix *m) {
    free(m->memory);
    free(m->values);
}

double *to_double(const float *p, size_t rows, size_t ld, size_t n) {
    double *d = xmalloc(rows * n * sizeof *d);
    for (size_t r = 0; r < rows; r++) {
        for (size_t i = 0; i < n; i++) {
            d[r * n + i] = (double)p[r * ld + i];
        }
    }
    return d;
}

bool same_bits(const float *a, const float *b, size_t n) {
    return n == 0 || memcmp(a, b, n * sizeof *a) == 0;
}

/* False if the machine does not run the variant. */
static bool fixture_open(struct fixture *f, const struct backend_ops *ops, const char *variant) {
    *f = (struct fixture){.ops = ops, .variant = variant};
    for (size_t i = 0; i < MAX_TEST_THREADS; i++) {
        struct backend_config config = {.threads = i + 1, .max_rows = TEST_ROWS, .variant = variant};
        if (ops->open(&config, &f->b[i], &err) < 0) {
            printf("%-12s skipped: %s\n", variant, err.message);
            for (size_t j = 0; j < i; j++) {
                ops->close(f->b[j]);
            }
            return false;
        }
    }
    return true;
}

static double seconds(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

/* `only`: one of the tests, or NULL. */
static bool run_variant(const struct backend_ops *ops, const char *variant, const char *only) {
    static const struct {
        const char *name;
        void (*run)(const struct fixture *f);
    } tests[] = {{"backend", test_backend}, {"pool", test_pool},     {"rows", test_rows},
                 {"i8", test_i8},           {"linear", test_linear}, {"attention", test_attention}};
    struct fixture f;
    if (!fixture_open(&f, ops, variant)) {
        return false;
    }
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++) {
        if (only && strcmp(only, tests[i].name) != 0) {
            continue;
        }
        size_t checks_before = checks, failures_before = failures;
        double start = seconds();
        tests[i].run(&f);
        printf("%-12s %-10s %8zu checks, %zu failed, %.1f s\n", variant, tests[i].name, checks - checks_before,
               failures - failures_before, seconds() - start);
        fflush(stdout);
    }
    for (size_t i = 0; i < MAX_TEST_THREADS; i++) {
        ops->close(f.b[i]);
    }
    return true;
}

const char *best_variant(const struct backend_ops *ops) {
    struct backend *b;
    struct backend_info info;
    if (ops->open(&(struct backend_config){.threads = 1, .max_rows = 1}, &b, &err) < 0) {
        return "none";
    }
    ops->info(b, &info);
    ops->close(b);
    return info.variant; /* a constant */
}

int main(int argc, char **argv) {
    static const char *const all[] = {"generic", "avx2", "avx512", "vnni", "amx", "amx-emulated"};
#if defined(__x86_64__)
    if (cpu_has_bf16()) { /* what its other instructions are */
        cpu_test_kernels = &cpu_kernels_amx_emulated;
    }
#endif
    const char *const *variants = all;
    const char *one = NULL, *only = NULL;
    size_t n_variants = sizeof all / sizeof *all, threads = 0;
    bool timings = false;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--bench") == 0) {
            timings = true;
        } else if (strcmp(argv[i], "--variant") == 0 && i + 1 < argc) {
            one = argv[++i];
            variants = &one;
            n_variants = 1;
        } else if (strcmp(argv[i], "--threads") == 0 && i + 1 < argc) {
            threads = strtoul(argv[++i], NULL, 10);
        } else if (strcmp(argv[i], "--only") == 0 && i + 1 < argc) {
            only = argv[++i];
        } else {
            fprintf(stderr, "usage: test_ops [--bench [--threads N]] [--only TEST|TYPE|attention] [--variant NAME]\n");
            return 2;
        }
    }
    const struct backend_ops *ops;
    if (backend_find("cpu", NULL, &ops, &err) < 0) {
        fprintf(stderr, "%s\n", err.message);
        return 1;
    }
    CHECK(backend_find("abacus", NULL, &ops, &err) < 0 && err.code == ERROR_DEVICE, "an unknown device is found");
    if (timings) {
        bench(ops, variants, n_variants, threads, only);
        return 0;
    }
#if defined(__SANITIZE_THREAD__)
    if (!one) { /* threads do the same in each, and take twenty times as long here */
        one = best_variant(ops);
        variants = &one;
        n_variants = 1;
    }
#endif
#if defined(__x86_64__)
    if (cpu_test_kernels) {
        test_amx();
    }
#endif
    bool any = false;
    for (size_t i = 0; i < n_variants; i++) {
        any = run_variant(ops, variants[i], only) || any;
    }
    CHECK(any, "no variant runs on this machine");
    printf("%zu checks, %zu failed\n", checks, failures);
    return failures > 0 ? 1 : 0;
}
