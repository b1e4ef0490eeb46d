/*
 * Timings of linear and attention beside the machine's limits, which are measured in the same run with the same
 * threads: read bandwidth over as many bytes as the weights take together, and F32 multiply-adds in registers. Calls go
 * round a set of matrices too large for the caches, as a model's layers do.
 */
#include "ops.h"

#include "backend/cpu/cpu.h"

#include <math.h>
#include <pthread.h>
#include <time.h>

enum {
    REPEATS = 5, /* medians of */
    BENCH_ROWS = 512,
    SET_BYTES = 160 << 20,
    MAX_MATRICES = 512,
    MAX_BENCH_THREADS = 64
};

/* Of one thread the processor time is taken, which other programs on the machine disturb less. */
static clockid_t bench_clock = CLOCK_MONOTONIC;

static double seconds(void) {
    struct timespec ts;
    clock_gettime(bench_clock, &ts);
    return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Median seconds of one call of fn(arg, i), i rising; a measurement takes 20 ms at least. */
static double median_time(void (*fn)(void *arg, size_t i), void *arg) {
    double times[REPEATS];
    size_t calls = 1, next = 0;
    for (;;) {
        double start = seconds();
        for (size_t i = 0; i < calls; i++) {
            fn(arg, next++);
        }
        double took = seconds() - start;
        if (took >= 0.02 || calls >= 1u << 24) {
            break;
        }
        calls = took < 0.002 ? calls * 10 : (size_t)((double)calls * 0.025 / took) + 1;
    }
    for (size_t r = 0; r < REPEATS; r++) {
        double start = seconds();
        for (size_t i = 0; i < calls; i++) {
            fn(arg, next++);
        }
        times[r] = (seconds() - start) / (double)calls;
    }
    qsort(times, REPEATS, sizeof *times, compare);
    return times[REPEATS / 2];
}

/* Limits. */

static volatile double sink;

#define FMA_LOOPS 4000000u
#define FMA_CHAINS 12

#if defined(__x86_64__)
#include <immintrin.h>

__attribute__((target("avx512f"))) static double fma_avx512(void) {
    __m512 a[FMA_CHAINS], b = _mm512_set1_ps(0.999f), c = _mm512_set1_ps(0.001f);
    for (int j = 0; j < FMA_CHAINS; j++) {
        a[j] = _mm512_set1_ps((float)j);
    }
    for (unsigned i = 0; i < FMA_LOOPS; i++) {
        for (int j = 0; j < FMA_CHAINS; j++) {
            a[j] = _mm512_fmadd_ps(a[j], b, c);
        }
    }
    for (int j = 1; j < FMA_CHAINS; j++) {
        a[0] = _mm512_add_ps(a[0], a[j]);
    }
    sink = (double)_mm512_reduce_add_ps(a[0]);
    return 2.0 * 16 * FMA_CHAINS * FMA_LOOPS;
}

__attribute__((target("avx2,fma"))) static double fma_avx2(void) {
    __m256 a[FMA_CHAINS], b = _mm256_set1_ps(0.999f), c = _mm256_set1_ps(0.001f);
    for (int j = 0; j < FMA_CHAINS; j++) {
        a[j] = _mm256_set1_ps((float)j);
    }
    for (unsigned i = 0; i < FMA_LOOPS; i++) {
        for (int j = 0; j < FMA_CHAINS; j++) {
            a[j] = _mm256_fmadd_ps(a[j], b, c);
        }
    }
    for (int j = 1; j < FMA_CHAINS; j++) {
        a[0] = _mm256_add_ps(a[0], a[j]);
    }
    float t[8];
    _mm256_storeu_ps(t, a[0]);
    sink = (double)t[0];
    return 2.0 * 8 * FMA_CHAINS * FMA_LOOPS;
}
#endif

typedef float vec4 __attribute__((vector_size(16)));

static double fma_generic(void) {
    vec4 a[FMA_CHAINS], b = {0.999f, 0.999f, 0.999f, 0.999f}, c = b;
    for (int j = 0; j < FMA_CHAINS; j++) {
        a[j] = b * (float)j;
    }
    for (unsigned i = 0; i < FMA_LOOPS; i++) {
        for (int j = 0; j < FMA_CHAINS; j++) {
            a[j] = a[j] * b + c;
        }
    }
    for (int j = 1; j < FMA_CHAINS; j++) {
        a[0] += a[j];
    }
    sink = (double)a[0][0];
    return 2.0 * 4 * FMA_CHAINS * FMA_LOOPS;
}

struct limit_job {
    double (*flops)(void); /* or NULL: read */
    const uint64_t *data;
    size_t words;
    double amount;
};

/* Four streams, as the kernels read. */
static double read_all(const uint64_t *p, size_t words) {
    size_t quarter = words / 4 / 8 * 8;
    uint64_t sum[4][8] = {{0}};
    for (size_t i = 0; i < quarter; i += 8) {
        for (size_t s = 0; s < 4; s++) {
            for (size_t j = 0; j < 8; j++) {
                sum[s][j] ^= p[s * quarter + i + j];
            }
        }
    }
    uint64_t all = 0;
    for (size_t s = 0; s < 4; s++) {
        for (size_t j = 0; j < 8; j++) {
            all ^= sum[s][j];
        }
    }
    sink = (double)all;
    return (double)(4 * quarter * sizeof *p);
}

static void *limit_thread(void *arg) {
    struct limit_job *job = arg;
    job->amount = job->flops ? job->flops() : read_all(job->data, job->words);
    return NULL;
}

/* Median over repeats of the sum of all threads' work a second. */
static double measure_limit(size_t threads, double (*flops)(void), const uint64_t *data, size_t words) {
    double rates[REPEATS];
    for (size_t r = 0; r < REPEATS; r++) {
        struct limit_job jobs[MAX_BENCH_THREADS];
        pthread_t ids[MAX_BENCH_THREADS];
        double start = seconds(), amount = 0;
        for (size_t i = 0; i < threads; i++) {
            jobs[i] = (struct limit_job){flops, data + i * (words / threads), words / threads, 0};
            if (pthread_create(&ids[i], NULL, limit_thread, &jobs[i]) != 0) {
                abort();
            }
        }
        for (size_t i = 0; i < threads; i++) {
            pthread_join(ids[i], NULL);
            amount += jobs[i].amount;
        }
        rates[r] = amount / (seconds() - start);
    }
    qsort(rates, REPEATS, sizeof *rates, compare);
    return rates[REPEATS / 2];
}

struct limits {
    double flops, bytes; /* a second */
};

static struct limits measure_limits(const char *variant, size_t threads) {
    double (*flops)(void) = fma_generic;
#if defined(__x86_64__)
    if (strcmp(variant, "generic") != 0 && strcmp(variant, "avx2") != 0) {
        flops = fma_avx512;
    } else if (strcmp(variant, "avx2") == 0) {
        flops = fma_avx2;
    }
#endif
    size_t words = SET_BYTES / sizeof(uint64_t);
    uint64_t *data = xmalloc(SET_BYTES);
    memset(data, 1, SET_BYTES);
    struct limits l = {measure_limit(threads, flops, NULL, 0), measure_limit(threads, NULL, data, words)};
    free(data);
    return l;
}

/* linear */

struct linear_bench {
    const struct backend_ops *ops;
    struct backend *b;
    struct weight *w; /* [count] */
    size_t count;
    const float *x;
    float *y;
    size_t rows;
};

static void linear_call(void *arg, size_t i) {
    struct linear_bench *l = arg;
    const struct weight *w = &l->w[i % l->count];
    struct linear_part part = {w, NULL, l->y, w->n};
    OK(l->ops->linear(l->b, l->x, w->k, l->rows, &part, 1, &err));
}

static void bench_linear(const struct backend_ops *ops, struct backend *b, enum dtype dtype, size_t n, size_t k,
                         struct limits limits) {
    static const size_t row_counts[] = {1, 2, 4, 8, 12, 32, 128, 512};
    struct random r = {7};
    struct weight w[MAX_MATRICES];
    struct matrix m = matrix_random(&r, dtype, n, k, 0);
    size_t bytes = n * m.w.row_bytes, count = SET_BYTES / bytes < MAX_MATRICES ? SET_BYTES / bytes : MAX_MATRICES;
    void *data = NULL, *x = NULL, *y = NULL; /* aligned as the engine's are */
    OK(ops->alloc(b, count * bytes, &data, &err));
    OK(ops->alloc(b, BENCH_ROWS * k * sizeof(float), &x, &err));
    OK(ops->alloc(b, BENCH_ROWS * n * sizeof(float), &y, &err));
    for (size_t i = 0; i < count; i++) {
        w[i] = m.w;
        w[i].data = memcpy((uint8_t *)data + i * bytes, m.w.data, bytes);
        OK(ops->weight_load(b, &w[i], &err));
    }
    random_floats(&r, x, BENCH_ROWS * k, 1);
    struct linear_bench l = {ops, b, w, count, x, y, 0};
    for (size_t i = 0; i < sizeof row_counts / sizeof *row_counts; i++) {
        l.rows = row_counts[i];
        double t = median_time(linear_call, &l), flops = 2 * (double)(n * k * l.rows) / t, rate = (double)bytes / t;
        printf("  linear %-5s %5zux%-5zu M %4zu %9.1f us %7.1f GB/s (%3.0f%%) %8.1f GFLOP/s (%3.0f%%)\n",
               dtype_info(dtype)->name, n, k, l.rows, 1e6 * t, 1e-9 * rate, 100 * rate / limits.bytes, 1e-9 * flops,
               100 * flops / limits.flops);
        fflush(stdout);
    }
    for (size_t i = 0; i < count; i++) {
        ops->weight_unload(b, &w[i]);
    }
    matrix_free(&m);
    ops->free(b, data);
    ops->free(b, x);
    ops->free(b, y);
}

/* I8 weights, with activations as integers and as floats, beside the peak of the variant's dot product of bytes. */

static const struct cpu_kernels *bench_kernels;

static double i8_operations(void) {
    return bench_kernels->measure_i8_peak(FMA_LOOPS);
}

static void bench_i8(const struct backend_ops *ops, struct backend *b, enum activation_quant activation, size_t n,
                     size_t k, struct limits limits) {
    static const size_t row_counts[] = {1, 2, 4, 8, 16, 32, 128, 512};
    struct random r = {9};
    size_t bytes = n * k, count = SET_BYTES / bytes < MAX_MATRICES ? SET_BYTES / bytes : MAX_MATRICES;
    int8_t *q = xmalloc(bytes);
    float *scales = xmalloc(n * sizeof *scales);
    struct weight w[MAX_MATRICES];
    void *x = NULL, *y = NULL;
    OK(ops->alloc(b, BENCH_ROWS * k * sizeof(float), &x, &err));
    OK(ops->alloc(b, BENCH_ROWS * n * sizeof(float), &y, &err));
    for (size_t i = 0; i < bytes; i++) {
        q[i] = (int8_t)random_u64(&r);
    }
    for (size_t i = 0; i < n; i++) {
        scales[i] = 0.01f;
    }
    double start = seconds();
    for (size_t i = 0; i < count; i++) {
        w[i] = (struct weight){
            .dtype = DTYPE_I8, .n = n, .k = k, .row_bytes = k, .data = q, .scales = scales, .activation = activation};
        OK(ops->weight_load(b, &w[i], &err));
    }
    const char *name = activation == ACTIVATION_FLOAT ? "I8w" : "I8";
    printf("  load   %-5s %5zux%-5zu %.2f GB/s\n", name, n, k, 1e-9 * (double)(count * bytes) / (seconds() - start));
    random_floats(&r, x, BENCH_ROWS * k, 1);
    struct linear_bench l = {ops, b, w, count, x, y, 0};
    for (size_t i = 0; i < sizeof row_counts / sizeof *row_counts; i++) {
        l.rows = row_counts[i];
        double t = median_time(linear_call, &l), work = 2 * (double)(bytes * l.rows) / t, rate = (double)bytes / t;
        printf("  linear %-5s %5zux%-5zu M %4zu %9.1f us %7.1f GB/s (%3.0f%%) %8.1f GOP/s (%3.0f%%)\n", name, n, k,
               l.rows, 1e6 * t, 1e-9 * rate, 100 * rate / limits.bytes, 1e-9 * work, 100 * work / limits.flops);
        fflush(stdout);
    }
    for (size_t i = 0; i < count; i++) {
        ops->weight_unload(b, &w[i]);
    }
    free(q), free(scales);
    ops->free(b, x);
    ops->free(b, y);
}

static void bench_all_i8(const struct backend_ops *ops, struct backend *b, size_t threads, struct limits limits) {
    static const size_t shapes[][2] = {{1536, 576}, {576, 1536}, {2048, 2048}, {5632, 2048}, {2048, 5632}};
    struct limits i8 = limits;
    bench_kernels = b->kernels;
    if (b->kernels->measure_i8_peak) {
        i8.flops = measure_limit(threads, i8_operations, NULL, 0);
        printf("  dot products of bytes in registers: %.1f GOP/s\n", 1e-9 * i8.flops);
    }
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        bench_i8(ops, b, ACTIVATION_I8_TOKEN, shapes[i][0], shapes[i][1], i8);
    }
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i += 2) {
        bench_i8(ops, b, ACTIVATION_FLOAT, shapes[i][0], shapes[i][1], limits);
    }
}

/* attention */

struct attention_bench {
    const struct backend_ops *ops;
    struct backend *b;
    struct attention_args args;
};

static void attention_call(void *arg, size_t i) {
    (void)i;
    struct attention_bench *a = arg;
    OK(a->ops->attention(a->b, &a->args, &err));
}

static void bench_attention(const struct backend_ops *ops, struct backend *b, enum dtype dtype, size_t sequences,
                            size_t context, size_t rows, size_t heads, size_t kv_heads, size_t dim,
                            struct limits limits) {
    enum { BLOCK = 16 };
    size_t blocks = (context + BLOCK - 1) / BLOCK, total = sequences * rows, width = heads * dim;
    struct kv_layer kv = {
        .dtype = dtype, .n_blocks = blocks * sequences, .block_size = BLOCK, .n_kv_heads = kv_heads, .head_dim = dim};
    size_t bytes = kv_layer_bytes(kv.dtype, kv.n_blocks, BLOCK, kv_heads, dim);
    OK(ops->alloc(b, bytes, &kv.data, &err));
    struct random r = {8};
    float *row = xmalloc(kv_heads * dim * sizeof *row);
    for (size_t i = 0; i < blocks * sequences * BLOCK; i++) {
        int32_t slot = (int32_t)i;
        random_floats(&r, row, kv_heads * dim, 1);
        OK(ops->kv_store(b, &kv, row, kv_heads * dim, row, kv_heads * dim, &slot, 1, &err));
    }
    free(row);
    int32_t *tables = xmalloc(sequences * blocks * sizeof *tables), *cu = xmalloc((sequences + 1) * sizeof *cu);
    int32_t *contexts = xmalloc(sequences * sizeof *contexts);
    float *q = xmalloc(total * width * sizeof *q), *out = xmalloc(total * width * sizeof *out);
    random_floats(&r, q, total * width, 1);
    for (size_t i = 0; i < sequences; i++) {
        contexts[i] = (int32_t)context;
        cu[i + 1] = (int32_t)((i + 1) * rows);
        for (size_t j = 0; j < blocks; j++) {
            tables[i * blocks + j] = (int32_t)(j * sequences + i);
        }
    }
    struct attention_bench a = {ops,
                                b,
                                {.q = q,
                                 .ldq = width,
                                 .out = out,
                                 .ldo = width,
                                 .kv = &kv,
                                 .block_tables = tables,
                                 .max_blocks = blocks,
                                 .cu_seqlens = cu,
                                 .context_lens = contexts,
                                 .n_sequences = sequences,
                                 .rows = total,
                                 .n_heads = heads,
                                 .n_kv_heads = kv_heads,
                                 .head_dim = dim,
                                 .scale = 0.125f}};
    double keys = 0;
    for (size_t i = 0; i < rows; i++) {
        keys += (double)(context - i);
    }
    double t = median_time(attention_call, &a), flops = 4 * keys * (double)(sequences * width) / t;
    double rate = (double)sequences * (double)context * (double)kv_layer_bytes(dtype, 1, 1, kv_heads, dim) / t;
    printf(
        "  attention %-4s %2zu/%zu x %-3zu  %2zu sequences, %4zu of %5zu %9.1f us %7.1f GB/s (%3.0f%%) %8.1f GFLOP/s "
        "(%3.0f%%)\n",
        dtype_info(dtype)->name, heads, kv_heads, dim, sequences, rows, context, 1e6 * t, 1e-9 * rate,
        100 * rate / limits.bytes, 1e-9 * flops, 100 * flops / limits.flops);
    ops->free(b, kv.data);
    free(tables), free(cu), free(contexts), free(q), free(out);
}

static void bench_variant(const struct backend_ops *ops, const char *variant, size_t threads, const char *only) {
    struct backend_config config = {.threads = threads, .max_rows = BENCH_ROWS, .variant = variant};
    struct backend *b;
    if (ops->open(&config, &b, &err) < 0) {
        printf("%s: %s\n", variant, err.message);
        return;
    }
    struct backend_info info;
    ops->info(b, &info);
    bench_clock = info.threads == 1 ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC;
    struct limits limits = measure_limits(variant, info.threads);
    printf("%s, %zu threads on %s: reads %.1f GB/s, F32 multiply-adds %.1f GFLOP/s\n", info.variant, info.threads,
           info.device, 1e-9 * limits.bytes, 1e-9 * limits.flops);
    static const enum dtype dtypes[] = {DTYPE_Q4_1, DTYPE_Q8_0, DTYPE_F16,  DTYPE_F32,  DTYPE_BF16, DTYPE_Q4_0,
                                        DTYPE_Q5_0, DTYPE_Q5_1, DTYPE_Q4_K, DTYPE_Q5_K, DTYPE_Q6_K};
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) {
        if (only && strcmp(only, dtype_info(dtypes[i])->name) != 0) {
            continue;
        }
        if (dtype_info(dtypes[i])->block == 256) { /* 576 is no multiple of it: TinyLlama's shape */
            bench_linear(ops, b, dtypes[i], 2048, 2048, limits);
        } else {
            bench_linear(ops, b, dtypes[i], 1536, 576, limits);
            bench_linear(ops, b, dtypes[i], 576, 1536, limits);
        }
    }
    if (!only || strcmp(only, "I8") == 0) {
        bench_all_i8(ops, b, info.threads, limits);
    }
    if (only && strcmp(only, "attention") != 0) {
        ops->close(b);
        return;
    }
    static const enum dtype kv_dtypes[] = {DTYPE_F16, DTYPE_I8};
    for (size_t i = 0; i < 2; i++) {
        bench_attention(ops, b, kv_dtypes[i], 1, 192, 1, 9, 3, 64, limits);
        bench_attention(ops, b, kv_dtypes[i], 32, 192, 1, 9, 3, 64, limits);
        bench_attention(ops, b, kv_dtypes[i], 1, 8192, 1, 9, 3, 64, limits);
        bench_attention(ops, b, kv_dtypes[i], 1, 512, 512, 9, 3, 64, limits);
        bench_attention(ops, b, kv_dtypes[i], 1, 2048, 512, 32, 4, 128, limits);
        bench_attention(ops, b, kv_dtypes[i], 8, 1024, 1, 32, 4, 128, limits);
    }
    ops->close(b);
}

void bench(const struct backend_ops *ops, const char *const *variants, size_t n_variants, size_t threads,
           const char *only) {
    for (size_t i = 0; i < n_variants; i++) {
        bench_variant(ops, variants[i], threads, only);
    }
}
