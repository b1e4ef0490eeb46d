/*
 * In cuBLASLt's words, columns first: D[n][rows] = A[k][n]^T B[k][rows], A the weight as it lies, B the rows, D the result.
 */
#include "cublas.h"

#include <cublasLt.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PLANS 4096u    /* places in the table, a power of two */
#define CANDIDATES 8   /* of the heuristic's, timed */
#define ROUNDS 3       /* of which the fastest counts */
#define QUEUE 8        /* products timed in a row: one alone would be as slow as its launch */
#define QUEUE_MS 1.0f  /* but not for much longer than this */
#define FIXED_ROWS 128 /* what the one algorithm of batch_invariant is chosen for */
#define MAGIC "INFPLAN1"
#define FILE_MOST ((size_t)4 << 20)

/* What an algorithm is chosen for. No padding: keys are compared and hashed as bytes. */
struct plan_key {
    uint64_t n, k;
    uint32_t rows; /* the bucket; 0: any */
    uint16_t wide_x, wide_y; /* F32 */
    uint32_t align; /* bytes: what all addresses and rows are multiples of, 16 at most */
    uint32_t exact; /* these rows alone, which the bucket's algorithm does not take; 0: all of the bucket */
};
_Static_assert(sizeof(struct plan_key) == 32, "padding");

struct plan {
    struct plan_key key;
    cublasLtMatmulAlgo_t algo;
    uint32_t used, checked; /* checked: this cuBLASLt takes it (one from the file is asked about once) */
};

struct cublas {
    struct backend *b;
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t narrow, wide; /* BF16, F32 as TF32 */
    cublasLtMatrixLayout_t a, x, y;
    cublasLtMatmulPreference_t preference;
    cudaEvent_t begin, end;
    struct plan *plans; /* [PLANS], open addressing */
    bool changed; /* something was timed that is not in the file */
    char identity[512]; /* device and versions */
    char path[4096];    /* of the file; "" for none */
};

size_t cublas_bucket(size_t rows) {
    size_t step = rows <= 8 ? 1 : rows <= 64 ? 8 : rows <= 256 ? 16 : 64;
    if (rows > 512) {
        size_t power = 1024;
        while (power < rows) {
            power *= 2;
        }
        return power;
    }
    return (rows + step - 1) / step * step;
}

/* ---- errors -------------------------------------------------------------------------------------------------- */

static const char *status_text(cublasStatus_t s) {
    switch (s) {
    case CUBLAS_STATUS_NOT_INITIALIZED:
        return "not initialised";
    case CUBLAS_STATUS_ALLOC_FAILED:
        return "out of memory";
    case CUBLAS_STATUS_INVALID_VALUE:
        return "invalid value";
    case CUBLAS_STATUS_ARCH_MISMATCH:
        return "not on this device";
    case CUBLAS_STATUS_EXECUTION_FAILED:
        return "execution failed";
    case CUBLAS_STATUS_NOT_SUPPORTED:
        return "not supported";
    default:
        return "internal error";
    }
}

static int check(struct cublas *c, cublasStatus_t s, const char *what, struct error *err) {
    if (s == CUBLAS_STATUS_SUCCESS) {
        return 0;
    }
    error_set(err, ERROR_DEVICE, "CUDA device %d: cuBLASLt: %s failed: %s", c->b->ordinal, what, status_text(s));
    if (s == CUBLAS_STATUS_EXECUTION_FAILED) {
        c->b->lost = *err;
    }
    return -1;
}

/* ---- a product ----------------------------------------------------------------------------------------------- */

struct product {
    const struct cuda_weight *w;
    const void *x;
    size_t ldx;
    void *y;
    size_t ldy;
    enum dtype y_dtype;
    bool wide; /* W and x F32 */
};

static cublasStatus_t shape(cublasLtMatrixLayout_t l, cudaDataType_t type, uint64_t rows, uint64_t columns, size_t ld) {
    int64_t stride = (int64_t)ld;
    uint32_t t = (uint32_t)type;
    cublasStatus_t s = cublasLtMatrixLayoutSetAttribute(l, CUBLASLT_MATRIX_LAYOUT_TYPE, &t, sizeof t);
    s = s ? s : cublasLtMatrixLayoutSetAttribute(l, CUBLASLT_MATRIX_LAYOUT_ROWS, &rows, sizeof rows);
    s = s ? s : cublasLtMatrixLayoutSetAttribute(l, CUBLASLT_MATRIX_LAYOUT_COLS, &columns, sizeof columns);
    return s ? s : cublasLtMatrixLayoutSetAttribute(l, CUBLASLT_MATRIX_LAYOUT_LD, &stride, sizeof stride);
}

static int shape_all(struct cublas *c, const struct product *p, size_t rows, struct error *err) {
    cudaDataType_t in = p->wide ? CUDA_R_32F : CUDA_R_16BF, out = p->y_dtype == DTYPE_F32 ? CUDA_R_32F : CUDA_R_16BF;
    TRY(check(c, shape(c->a, in, p->w->k, p->w->n, p->w->k), "a layout", err));
    TRY(check(c, shape(c->x, in, p->w->k, rows, p->ldx), "a layout", err));
    return check(c, shape(c->y, out, p->w->n, rows, p->ldy), "a layout", err);
}

static cublasLtMatmulDesc_t description(const struct cublas *c, const struct product *p) {
    return p->wide ? c->wide : c->narrow;
}

/* The layouts are set. */
static cublasStatus_t multiply(struct cublas *c, const struct product *p, const cublasLtMatmulAlgo_t *algo) {
    static const float one = 1, zero = 0;
    struct backend *b = c->b;
    return cublasLtMatmul(c->handle, description(c, p), &one, p->w->data, c->a, p->x, c->x, &zero, p->y, c->y, p->y, c->y, algo,
                          b->scratch.data, CUBLAS_WORKSPACE, b->stream);
}

/* The layouts are set. */
static bool accepts(struct cublas *c, const struct product *p, const cublasLtMatmulAlgo_t *algo) {
    cublasLtMatmulHeuristicResult_t r;
    return cublasLtMatmulAlgoCheck(c->handle, description(c, p), c->a, c->x, c->y, c->y, algo, &r) == CUBLAS_STATUS_SUCCESS &&
           r.workspaceSize <= CUBLAS_WORKSPACE;
}

static uint32_t alignment(const struct product *p) {
    size_t in = p->wide ? 4 : 2, out = p->y_dtype == DTYPE_F32 ? 4 : 2;
    size_t all = (size_t)p->x | (size_t)p->y | (size_t)p->w->data | p->ldx * in | p->w->k * in | p->ldy * out | 16;
    return (uint32_t)(all & (~all + 1)); /* the lowest bit */
}

/* ---- choosing ------------------------------------------------------------------------------------------------ */

/* The heuristic's best, fastest first as it thinks. The layouts are set. */
static int candidates(struct cublas *c, const struct product *p, uint32_t align, cublasLtMatmulHeuristicResult_t *out, int *n,
                      struct error *err) {
    uint64_t workspace = CUBLAS_WORKSPACE;
    /* A sum that is split has an order of its own for each way to split it. */
    uint32_t reductions = c->b->batch_invariant ? CUBLASLT_REDUCTION_SCHEME_NONE : CUBLASLT_REDUCTION_SCHEME_MASK;
    const struct {
        cublasLtMatmulPreferenceAttributes_t name;
        const void *value;
        size_t bytes;
    } attributes[] = {
        {CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace},
        {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions, sizeof reductions},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &align, sizeof align},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &align, sizeof align},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &align, sizeof align},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &align, sizeof align},
    };
    for (size_t i = 0; i < sizeof attributes / sizeof *attributes; i++) {
        TRY(check(c, cublasLtMatmulPreferenceSetAttribute(c->preference, attributes[i].name, attributes[i].value,
                                                          attributes[i].bytes),
                  "a preference", err));
    }
    cublasStatus_t s = cublasLtMatmulAlgoGetHeuristic(c->handle, description(c, p), c->a, c->x, c->y, c->y, c->preference,
                                                      CANDIDATES, out, n);
    if (s == CUBLAS_STATUS_SUCCESS && *n > 0) {
        return 0;
    }
    check(c, s == CUBLAS_STATUS_SUCCESS ? CUBLAS_STATUS_NOT_SUPPORTED : s, "the choice of an algorithm", err);
    return error_prefix(err, "a product with a matrix of %zu x %zu", p->w->n, p->w->k);
}

/* Milliseconds of n products in a row; < 0: it does not run. */
static float time_of_row(struct cublas *c, const struct product *p, const cublasLtMatmulAlgo_t *algo, int n) {
    float ms;
    bool ok = cudaEventRecord(c->begin, c->b->stream) == cudaSuccess;
    for (int i = 0; ok && i < n; i++) {
        ok = multiply(c, p, algo) == CUBLAS_STATUS_SUCCESS;
    }
    struct error ignored;
    if (!ok || cudaEventRecord(c->end, c->b->stream) != cudaSuccess || cuda_wait(c->b, c->end, "timing", &ignored) < 0 ||
        cudaEventElapsedTime(&ms, c->begin, c->end) != cudaSuccess) {
        (void)cudaGetLastError();
        return -1;
    }
    return ms;
}

/* Milliseconds of one; < 0: it does not run. */
static float time_of(struct cublas *c, const struct product *p, const cublasLtMatmulAlgo_t *algo) {
    float best = time_of_row(c, p, algo, 1), alone; /* the first loads code: not counted */
    if (best < 0 || (alone = time_of_row(c, p, algo, 1)) < 0) {
        return -1;
    }
    int n = alone * QUEUE < QUEUE_MS ? QUEUE : alone < QUEUE_MS ? (int)(QUEUE_MS / alone) : 1;
    for (int i = 0; i < ROUNDS; i++) {
        float ms = time_of_row(c, p, algo, n) / (float)n;
        if (ms < 0) {
            return -1;
        }
        best = i == 0 || ms < best ? ms : best;
    }
    return best;
}

/* One for all numbers of rows, that the heuristic would take for FIXED_ROWS. Each is asked about: later there is none
 * to go over to. */
static int choose_fixed(struct cublas *c, const struct product *p, uint32_t align, cublasLtMatmulAlgo_t *out, struct error *err) {
    cublasLtMatmulHeuristicResult_t found[CANDIDATES];
    int n;
    TRY(shape_all(c, p, FIXED_ROWS, err));
    TRY(candidates(c, p, align, found, &n, err));
    for (int i = 0; i < n; i++) {
        bool good = found[i].state == CUBLAS_STATUS_SUCCESS;
        for (size_t rows = 1; good && rows <= c->b->max_rows; rows++) {
            TRY(shape_all(c, p, rows, err));
            good = accepts(c, p, &found[i].algo);
        }
        if (good) {
            *out = found[i].algo;
            return 0;
        }
    }
    return error_set(err, ERROR_DEVICE, "cuBLASLt has no algorithm that multiplies any number of rows with a matrix of %zu x %zu",
                     p->w->n, p->w->k);
}

/* The layouts are those of the product to come, which is repeated to time it. */
static int choose(struct cublas *c, const struct product *p, uint32_t align, cublasLtMatmulAlgo_t *out, struct error *err) {
    cublasLtMatmulHeuristicResult_t found[CANDIDATES];
    float best_ms = -1;
    int n, best = -1;
    TRY(candidates(c, p, align, found, &n, err));
    for (int i = 0; i < n; i++) {
        bool good = found[i].state == CUBLAS_STATUS_SUCCESS && accepts(c, p, &found[i].algo);
        if (!good || (best >= 0 && (c->b->ready || c->b->capturing))) {
            continue;
        }
        float ms = n > 1 && !c->b->ready && !c->b->capturing ? time_of(c, p, &found[i].algo) : -1;
        if (best < 0 || (ms >= 0 && (best_ms < 0 || ms < best_ms))) { /* not timed: the heuristic's order counts */
            best_ms = ms;
            best = i;
        }
        c->changed |= ms >= 0;
    }
    if (best < 0) {
        check(c, CUBLAS_STATUS_NOT_SUPPORTED, "the choice of an algorithm", err);
        return error_prefix(err, "a product with a matrix of %zu x %zu", p->w->n, p->w->k);
    }
    *out = found[best].algo;
    return 0;
}

/* ---- the table ----------------------------------------------------------------------------------------------- */

static uint64_t fnv(uint64_t h, const void *bytes, size_t n) { /* FNV-1a, 64 bits */
    const unsigned char *p = bytes;
    for (size_t i = 0; i < n; i++) {
        h = (h ^ p[i]) * 0x100000001b3u;
    }
    return h;
}
#define FNV_BEGIN 0xcbf29ce484222325u

/* Where the key is, or would be; NULL when the table is full. */
static struct plan *place_of(struct cublas *c, const struct plan_key *key) {
    uint64_t h = fnv(FNV_BEGIN, key, sizeof *key);
    for (uint64_t i = 0; i < PLANS; i++) {
        struct plan *p = &c->plans[(h + i) & (PLANS - 1)];
        if (!p->used || memcmp(&p->key, key, sizeof *key) == 0) {
            return p;
        }
    }
    return NULL;
}

static struct plan_key key_of(const struct cublas *c, const struct product *p, size_t rows) {
    return (struct plan_key){.n = p->w->n,
                             .k = p->w->k,
                             .rows = c->b->batch_invariant ? 0 : (uint32_t)cublas_bucket(rows),
                             .wide_x = p->wide,
                             .wide_y = p->y_dtype == DTYPE_F32,
                             .align = alignment(p)};
}

/* On return the layouts are those of the product. */
static int find_algo(struct cublas *c, const struct product *p, size_t rows, const struct plan_key *key,
                     cublasLtMatmulAlgo_t *out, struct error *err) {
    struct plan *plan = place_of(c, key);
    TRY(shape_all(c, p, rows, err));
    if (plan && plan->used && (plan->checked || accepts(c, p, &plan->algo))) {
        plan->checked = 1;
        *out = plan->algo;
        return 0;
    }
    TRY(c->b->batch_invariant ? choose_fixed(c, p, key->align, out, err) : choose(c, p, key->align, out, err));
    if (plan) {
        *plan = (struct plan){.key = *key, .algo = *out, .used = 1, .checked = 1};
    }
    return shape_all(c, p, rows, err);
}

int cublas_product(struct cublas *c, const struct cuda_weight *w, const void *x, size_t ldx, void *y, size_t ldy,
                   enum dtype y_dtype, size_t rows, struct error *err) {
    const struct product p = {w, x, ldx, y, ldy, y_dtype, w->dtype == DTYPE_F32};
    struct plan_key key = key_of(c, &p, rows);
    cublasLtMatmulAlgo_t algo;
    TRY(find_algo(c, &p, rows, &key, &algo, err));
    cublasStatus_t s = multiply(c, &p, &algo);
    if (s != CUBLAS_STATUS_SUCCESS && s != CUBLAS_STATUS_EXECUTION_FAILED && !c->b->batch_invariant) {
        /* What is good for the bucket's largest number of rows need not be for this one. Nothing was queued. */
        (void)cudaGetLastError();
        key.exact = (uint32_t)rows;
        TRY(find_algo(c, &p, rows, &key, &algo, err));
        s = multiply(c, &p, &algo);
    }
    return check(c, s, "a product", err);
}

/* ---- the file: MAGIC, length and text of the identity, number of plans, their keys and algorithms, FNV of all -- */

struct plan_record {
    struct plan_key key;
    cublasLtMatmulAlgo_t algo;
};

static void load(struct cublas *c) {
    unsigned char *bytes = NULL;
    FILE *f = c->path[0] ? fopen(c->path, "rbe") : NULL;
    if (!f) {
        return;
    }
    size_t id = strlen(c->identity), head = sizeof MAGIC - 1 + 2 * sizeof(uint32_t) + id, size = 0;
    bytes = malloc(FILE_MOST);
    if (bytes) {
        size = fread(bytes, 1, FILE_MOST, f);
    }
    fclose(f);
    uint32_t id_len, n;
    uint64_t sum;
    if (size < head + sizeof sum || memcmp(bytes, MAGIC, sizeof MAGIC - 1) != 0) {
        goto out;
    }
    memcpy(&id_len, bytes + sizeof MAGIC - 1, sizeof id_len);
    if (id_len != id || memcmp(bytes + sizeof MAGIC - 1 + sizeof id_len, c->identity, id) != 0) {
        goto out;
    }
    memcpy(&n, bytes + head - sizeof n, sizeof n);
    memcpy(&sum, bytes + size - sizeof sum, sizeof sum);
    if (n > PLANS / 2 || size != head + n * sizeof(struct plan_record) + sizeof sum ||
        sum != fnv(FNV_BEGIN, bytes, size - sizeof sum)) {
        goto out;
    }
    for (uint32_t i = 0; i < n; i++) {
        struct plan_record r;
        memcpy(&r, bytes + head + i * sizeof r, sizeof r);
        struct plan *p = place_of(c, &r.key);
        if (p && !p->used) {
            *p = (struct plan){.key = r.key, .algo = r.algo, .used = 1};
        }
    }
out:
    free(bytes);
}

static bool write_all(FILE *f, uint64_t *sum, const void *bytes, size_t n) {
    *sum = fnv(*sum, bytes, n);
    return fwrite(bytes, 1, n, f) == n;
}

static bool write_plans(const struct cublas *c, FILE *f) {
    uint64_t sum = FNV_BEGIN;
    uint32_t id = (uint32_t)strlen(c->identity), n = 0;
    for (size_t i = 0; i < PLANS; i++) {
        n += c->plans[i].used && n < PLANS / 2;
    }
    bool ok = write_all(f, &sum, MAGIC, sizeof MAGIC - 1) && write_all(f, &sum, &id, sizeof id) &&
              write_all(f, &sum, c->identity, id) && write_all(f, &sum, &n, sizeof n);
    for (size_t i = 0; ok && n > 0 && i < PLANS; i++) {
        if (c->plans[i].used) {
            const struct plan_record r = {c->plans[i].key, c->plans[i].algo};
            ok = write_all(f, &sum, &r, sizeof r);
            n--;
        }
    }
    return ok && fwrite(&sum, 1, sizeof sum, f) == sizeof sum;
}

void cublas_save(struct cublas *c) {
    char temporary[sizeof c->path + 32];
    if (!c->path[0] || !c->changed) {
        return;
    }
    snprintf(temporary, sizeof temporary, "%s.%ld", c->path, (long)getpid());
    FILE *f = fopen(temporary, "wbe");
    if (!f) {
        return;
    }
    bool ok = write_plans(c, f);
    ok = fclose(f) == 0 && ok;
    if (ok && rename(temporary, c->path) == 0) {
        c->changed = false;
    } else {
        unlink(temporary);
    }
}

static void name_file(struct cublas *c, const char *folder) {
    int driver = 0, runtime = 0;
    (void)cudaDriverGetVersion(&driver);
    (void)cudaRuntimeGetVersion(&runtime);
    snprintf(c->identity, sizeof c->identity, "%s; compute %d; driver %d; runtime %d; cublasLt %zu; workspace %zu", c->b->model,
             c->b->device.compute, driver, runtime, cublasLtGetVersion(), CUBLAS_WORKSPACE);
    uint64_t h = fnv(FNV_BEGIN, c->identity, strlen(c->identity));
    char rank[32] = ""; /* ranks have other shapes, and save at once */
    if (c->b->n_ranks > 1) {
        snprintf(rank, sizeof rank, "-%zu-of-%zu", c->b->rank, c->b->n_ranks);
    }
    int n = snprintf(c->path, sizeof c->path, "%s/cublaslt-%016llx%s.plans", folder, (unsigned long long)h, rank);
    if (n < 0 || (size_t)n >= sizeof c->path) {
        c->path[0] = '\0';
    }
    (void)mkdir(folder, 0755); /* there already, most often */
}

/* ---- life ---------------------------------------------------------------------------------------------------- */

static int describe(struct cublas *c, cublasComputeType_t compute, cublasLtMatmulDesc_t *out, struct error *err) {
    cublasOperation_t transposed = CUBLAS_OP_T;
    TRY(check(c, cublasLtMatmulDescCreate(out, compute, CUDA_R_32F), "a description", err));
    return check(c, cublasLtMatmulDescSetAttribute(*out, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed),
                 "a description", err);
}

static int open_all(struct cublas *c, struct error *err) {
    c->plans = calloc(PLANS, sizeof *c->plans);
    if (!c->plans) {
        return error_memory(err);
    }
    TRY(check(c, cublasLtCreate(&c->handle), "opening it", err));
    TRY(describe(c, CUBLAS_COMPUTE_32F, &c->narrow, err));
    TRY(describe(c, CUBLAS_COMPUTE_32F_FAST_TF32, &c->wide, err));
    TRY(check(c, cublasLtMatrixLayoutCreate(&c->a, CUDA_R_16BF, 1, 1, 1), "a layout", err));
    TRY(check(c, cublasLtMatrixLayoutCreate(&c->x, CUDA_R_16BF, 1, 1, 1), "a layout", err));
    TRY(check(c, cublasLtMatrixLayoutCreate(&c->y, CUDA_R_16BF, 1, 1, 1), "a layout", err));
    TRY(check(c, cublasLtMatmulPreferenceCreate(&c->preference), "a preference", err));
    TRY(cuda_check(c->b, cudaEventCreate(&c->begin), "an event", err));
    return cuda_check(c->b, cudaEventCreate(&c->end), "an event", err);
}

int cublas_open(struct backend *b, const char *folder, struct cublas **out, struct error *err) {
    struct cublas *c = calloc(1, sizeof *c);
    if (!c) {
        return error_memory(err);
    }
    c->b = b;
    if (open_all(c, err) < 0) {
        cublas_close(c);
        return -1;
    }
    if (folder && !b->batch_invariant) { /* which times nothing */
        name_file(c, folder);
        load(c);
    }
    *out = c;
    return 0;
}

void cublas_close(struct cublas *c) {
    if (!c) {
        return;
    }
    cublasLtMatrixLayout_t layouts[] = {c->a, c->x, c->y};
    cublasLtMatmulDesc_t descriptions[] = {c->narrow, c->wide};
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        if (layouts[i]) {
            cublasLtMatrixLayoutDestroy(layouts[i]);
        }
    }
    for (size_t i = 0; i < sizeof descriptions / sizeof *descriptions; i++) {
        if (descriptions[i]) {
            cublasLtMatmulDescDestroy(descriptions[i]);
        }
    }
    if (c->preference) {
        cublasLtMatmulPreferenceDestroy(c->preference);
    }
    if (c->begin) {
        cudaEventDestroy(c->begin);
    }
    if (c->end) {
        cudaEventDestroy(c->end);
    }
    if (c->handle) {
        cublasLtDestroy(c->handle);
    }
    free(c->plans);
    free(c);
}
