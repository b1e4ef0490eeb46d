/* The stand-in of cuBLASLt: what it refuses, and that its products are right, by double precision. */
#include "cublasLt.h"
#include "test_emu_runtime.h"

#include <algorithm>
#include <math.h>
#include <string.h>
#include <vector>

#define STATUS(code, call) check((call) == (code), __FILE__, __LINE__, #call " gives " #code)
#define GOOD(call) STATUS(CUBLAS_STATUS_SUCCESS, call)

static uint64_t random_state = 1;
static double random_unit() { /* in [-1, 1) */
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return double(int64_t(random_state >> 11) - (int64_t(1) << 52)) / double(int64_t(1) << 52);
}

/* 16-bit floats by arithmetic, sharing nothing with the product: e from `lowest` exponent, `bits` of fraction. */
static double round_to(double x, int bits, int lowest) {
    if (x == 0) {
        return x;
    }
    int e;
    frexp(x, &e);
    double unit = ldexp(1, std::max(e - 1, lowest) - bits);
    return nearbyint(x / unit) * unit;
}
static uint16_t to_bits(double x, cudaDataType type) { /* x is representable */
    if (type == CUDA_R_16BF) {
        float f = float(x);
        uint32_t u;
        memcpy(&u, &f, 4);
        return uint16_t(u >> 16);
    }
    int e;
    double f = frexp(fabs(x), &e); /* in [0.5, 1) */
    unsigned sign = x < 0 ? 0x8000u : 0;
    if (x == 0 || e < -13) {
        return uint16_t(sign | unsigned(ldexp(fabs(x), 24)));
    }
    return uint16_t(sign | (unsigned(e + 14) << 10) | (unsigned(ldexp(f, 11)) & 1023u));
}
static double from_bits(uint16_t u, cudaDataType type) {
    if (type == CUDA_R_16BF) {
        uint32_t w = uint32_t(u) << 16;
        float f;
        memcpy(&f, &w, 4);
        return f;
    }
    unsigned e = u >> 10 & 31u, f = u & 1023u; /* no infinities here */
    double v = e == 0 ? ldexp(double(f), -24) : ldexp(double(f + 1024), int(e) - 25);
    return u & 0x8000u ? -v : v;
}
static double rounded(double x, cudaDataType type) {
    return type == CUDA_R_16BF ? round_to(x, 7, -126) : type == CUDA_R_16F ? round_to(x, 10, -14) : double(float(x));
}

static size_t size_of(cudaDataType type) {
    return type == CUDA_R_8I ? 1 : type == CUDA_R_16F || type == CUDA_R_16BF ? 2 : 4;
}

/* A product of our shape: y[rows][n] = x[rows][k] w[n][k]^T, that is A = w (transposed), B = x, D = y. */
struct Case {
    cublasComputeType_t compute;
    cudaDataType scale, in, out;
    uint64_t n, k, rows, ldw, ldx, ldy;
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, d;
    cublasLtMatmulPreference_t preference;
};

static Case make(cublasComputeType_t compute, cudaDataType scale, cudaDataType in, cudaDataType out, uint64_t n,
                 uint64_t k, uint64_t rows, uint64_t pad = 0) {
    Case c = {compute, scale, in, out, n, k, rows, k + pad, k + pad, n + pad, {}, {}, {}, {}, {}, {}};
    cublasOperation_t transposed = CUBLAS_OP_T;
    uint64_t workspace = 1 << 20;
    uint32_t alignment = 16;
    GOOD(cublasLtCreate(&c.handle));
    GOOD(cublasLtMatmulDescCreate(&c.desc, compute, scale));
    GOOD(cublasLtMatmulDescSetAttribute(c.desc, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed));
    GOOD(cublasLtMatrixLayoutCreate(&c.a, in, k, n, int64_t(c.ldw)));
    GOOD(cublasLtMatrixLayoutCreate(&c.b, in, k, rows, int64_t(c.ldx)));
    GOOD(cublasLtMatrixLayoutCreate(&c.d, out, n, rows, int64_t(c.ldy)));
    GOOD(cublasLtMatmulPreferenceCreate(&c.preference));
    GOOD(cublasLtMatmulPreferenceSetAttribute(c.preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, 8));
    for (int i = 0; i < 4; i++) {
        GOOD(cublasLtMatmulPreferenceSetAttribute(
            c.preference, cublasLtMatmulPreferenceAttributes_t(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES + i),
            &alignment, 4));
    }
    return c;
}

static void destroy(Case &c) {
    GOOD(cublasLtMatmulPreferenceDestroy(c.preference));
    GOOD(cublasLtMatrixLayoutDestroy(c.d));
    GOOD(cublasLtMatrixLayoutDestroy(c.b));
    GOOD(cublasLtMatrixLayoutDestroy(c.a));
    GOOD(cublasLtMatmulDescDestroy(c.desc));
    GOOD(cublasLtDestroy(c.handle));
}

static std::vector<cublasLtMatmulHeuristicResult_t> offers(const Case &c,
                                                           cublasStatus_t expected = CUBLAS_STATUS_SUCCESS) {
    std::vector<cublasLtMatmulHeuristicResult_t> found(8);
    int n = 0;
    STATUS(expected,
           cublasLtMatmulAlgoGetHeuristic(c.handle, c.desc, c.a, c.b, c.d, c.d, c.preference, 8, found.data(), &n));
    found.resize(size_t(n));
    return found;
}

/* Random values of a type, on the host as doubles and on the device. */
struct Matrix {
    std::vector<double> values;
    void *device;
    size_t bytes;
};
static Matrix random_matrix(cudaDataType type, uint64_t columns, uint64_t length, uint64_t ld) {
    Matrix m = {std::vector<double>(columns * length), nullptr, columns * ld * size_of(type)};
    std::vector<unsigned char> raw(m.bytes, 0xff); /* between columns: NaN, -1 */
    for (uint64_t i = 0; i < columns; i++) {
        for (uint64_t j = 0; j < length; j++) {
            double v = type == CUDA_R_8I ? floor(random_unit() * 128) : rounded(random_unit(), type);
            m.values[i * length + j] = v;
            void *at = raw.data() + (i * ld + j) * size_of(type);
            if (type == CUDA_R_8I) {
                *static_cast<int8_t *>(at) = int8_t(v);
            } else if (type == CUDA_R_32F) {
                float f = float(v);
                memcpy(at, &f, 4);
            } else {
                uint16_t u = to_bits(v, type);
                memcpy(at, &u, 2);
            }
        }
    }
    OK(cudaMalloc(&m.device, m.bytes));
    OK(cudaMemcpy(m.device, raw.data(), m.bytes, cudaMemcpyHostToDevice));
    return m;
}

static double element(const std::vector<unsigned char> &raw, cudaDataType type, size_t i) {
    const unsigned char *at = raw.data() + i * size_of(type);
    if (type == CUDA_R_8I) {
        return double(int8_t(*at));
    }
    if (type == CUDA_R_32I) {
        int32_t v;
        memcpy(&v, at, 4);
        return v;
    }
    if (type == CUDA_R_32F) {
        float v;
        memcpy(&v, at, 4);
        return v;
    }
    uint16_t u;
    memcpy(&u, at, 2);
    return from_bits(u, type);
}

static std::vector<unsigned char> fetch(const void *p, size_t bytes) {
    std::vector<unsigned char> raw(bytes);
    OK(cudaMemcpy(raw.data(), p, bytes, cudaMemcpyDeviceToHost));
    return raw;
}

static std::vector<unsigned char> multiply(const Case &c, const Matrix &w, const Matrix &x, void *y, size_t y_bytes,
                                           const cublasLtMatmulAlgo_t *algo, void *workspace = nullptr,
                                           size_t workspace_bytes = 0) {
    float one = 1, zero = 0;
    int32_t one_int = 1, zero_int = 0;
    bool integer = c.scale == CUDA_R_32I;
    OK(cudaMemset(y, 0xee, y_bytes));
    OK(cudaDeviceSynchronize());
    GOOD(cublasLtMatmul(c.handle, c.desc, integer ? static_cast<void *>(&one_int) : &one, w.device, c.a, x.device, c.b,
                        integer ? static_cast<void *>(&zero_int) : &zero, y, c.d, y, c.d, algo, workspace,
                        workspace_bytes, nullptr));
    OK(cudaDeviceSynchronize());
    return fetch(y, y_bytes);
}

/* All that is offered for a case is right; integers exactly, floats within what n roundings of F32 and the output give.
 */
static void check_products(cublasComputeType_t compute, cudaDataType scale, cudaDataType in, cudaDataType out,
                           uint64_t n, uint64_t k, uint64_t rows, uint64_t pad) {
    Case c = make(compute, scale, in, out, n, k, rows, pad);
    Matrix w = random_matrix(in, n, k, c.ldw), x = random_matrix(in, rows, k, c.ldx);
    size_t y_bytes = rows * c.ldy * size_of(out);
    unsigned char *y, *workspace;
    OK(cudaMalloc(&y, y_bytes));
    OK(cudaMalloc(&workspace, 1 << 20));
    bool tf32 = compute == CUBLAS_COMPUTE_32F_FAST_TF32;
    double relative = out == CUDA_R_16BF ? ldexp(1, -8) : out == CUDA_R_16F ? ldexp(1, -11) : ldexp(1, -24);
    auto list = offers(c);
    CHECK(list.size() >= 2);
    for (size_t a = 0; a <= list.size(); a++) { /* the last: without a choice */
        std::vector<unsigned char> raw = multiply(c, w, x, y, y_bytes, a < list.size() ? &list[a].algo : nullptr,
                                                  workspace, a < list.size() ? list[a].workspaceSize : size_t(1) << 20);
        bool right = true, untouched = true;
        for (uint64_t r = 0; r < rows; r++) {
            for (uint64_t i = 0; i < n; i++) {
                double sum = 0, size = 0;
                for (uint64_t j = 0; j < k; j++) {
                    double p = w.values[i * k + j], q = x.values[r * k + j];
                    sum += tf32 ? round_to(p, 10, -126) * round_to(q, 10, -126) : p * q;
                    size += fabs(p * q);
                }
                double got = element(raw, out, r * c.ldy + i);
                if (in == CUDA_R_8I) {
                    right &= got == (out == CUDA_R_8I ? std::max(-128.0, std::min(127.0, sum)) : sum);
                } else {
                    right &= fabs(got - sum) <= relative * fabs(sum) + size * double(k) * ldexp(1, -24);
                }
            }
            for (uint64_t i = n; i < c.ldy; i++) {
                for (size_t b = 0; b < size_of(out); b++) {
                    untouched &= raw[(r * c.ldy + i) * size_of(out) + b] == 0xee;
                }
            }
        }
        CHECK(right && untouched);
    }
    OK(cudaFree(workspace));
    OK(cudaFree(y));
    OK(cudaFree(x.device));
    OK(cudaFree(w.device));
    destroy(c);
}

static void test_products() {
    begin();
    const struct {
        cublasComputeType_t compute;
        cudaDataType scale, in, out;
        uint64_t pad;
    } kinds[] = {
        {CUBLAS_COMPUTE_32F, CUDA_R_32F, CUDA_R_16BF, CUDA_R_16BF, 8},
        {CUBLAS_COMPUTE_32F, CUDA_R_32F, CUDA_R_16BF, CUDA_R_32F, 8},
        {CUBLAS_COMPUTE_32F, CUDA_R_32F, CUDA_R_16F, CUDA_R_16F, 8},
        {CUBLAS_COMPUTE_32F, CUDA_R_32F, CUDA_R_16F, CUDA_R_32F, 8},
        {CUBLAS_COMPUTE_32F, CUDA_R_32F, CUDA_R_32F, CUDA_R_32F, 4},
        {CUBLAS_COMPUTE_32F_FAST_TF32, CUDA_R_32F, CUDA_R_32F, CUDA_R_32F, 4},
        {CUBLAS_COMPUTE_32I, CUDA_R_32I, CUDA_R_8I, CUDA_R_32I, 16},
        {CUBLAS_COMPUTE_32I, CUDA_R_32F, CUDA_R_8I, CUDA_R_8I, 16},
        {CUBLAS_COMPUTE_32F, CUDA_R_32F, CUDA_R_8I, CUDA_R_32F, 16},
    };
    for (const auto &kind : kinds) {
        check_products(kind.compute, kind.scale, kind.in, kind.out, 16, 32, 1, kind.pad);
        check_products(kind.compute, kind.scale, kind.in, kind.out, 48, 336, 5, 0);
        check_products(kind.compute, kind.scale, kind.in, kind.out, 16, 64, 70, kind.pad);
    }
    check_products(CUBLAS_COMPUTE_32F, CUDA_R_32F, CUDA_R_16F, CUDA_R_16F, 8, 8, 3, 0);
}

/* TF32 is not F32, algorithms differ in bits, and each gives a row the same bits in any company. */
static void test_orders() {
    begin();
    Case c = make(CUBLAS_COMPUTE_32F, CUDA_R_32F, CUDA_R_16BF, CUDA_R_32F, 64, 512, 9);
    Matrix w = random_matrix(CUDA_R_16BF, 64, 512, 512), x = random_matrix(CUDA_R_16BF, 9, 512, 512);
    size_t bytes = 9 * 64 * 4, one_row = 64 * 4;
    unsigned char *y, *workspace;
    OK(cudaMalloc(&y, bytes));
    OK(cudaMalloc(&workspace, 1 << 20));
    auto list = offers(c);
    std::vector<std::vector<unsigned char>> results;
    uint64_t rows = 1;
    for (const auto &offer : list) {
        rows = 9;
        GOOD(cublasLtMatrixLayoutSetAttribute(c.b, CUBLASLT_MATRIX_LAYOUT_COLS, &rows, 8));
        GOOD(cublasLtMatrixLayoutSetAttribute(c.d, CUBLASLT_MATRIX_LAYOUT_COLS, &rows, 8));
        results.push_back(multiply(c, w, x, y, bytes, &offer.algo, workspace, 1 << 20));
        rows = 1;
        GOOD(cublasLtMatrixLayoutSetAttribute(c.b, CUBLASLT_MATRIX_LAYOUT_COLS, &rows, 8));
        GOOD(cublasLtMatrixLayoutSetAttribute(c.d, CUBLASLT_MATRIX_LAYOUT_COLS, &rows, 8));
        std::vector<unsigned char> alone = multiply(c, w, x, y, one_row, &offer.algo, workspace, 1 << 20);
        CHECK(memcmp(alone.data(), results.back().data(), one_row) == 0);
    }
    for (size_t i = 0; i < results.size(); i++) {
        for (size_t j = 0; j < i; j++) {
            CHECK(results[i] != results[j]);
        }
    }
    destroy(c);
    /* the best for one row is another than for many: whoever leaves the choice gets other bits */
    Case few = make(CUBLAS_COMPUTE_32F, CUDA_R_32F, CUDA_R_16BF, CUDA_R_16BF, 64, 512, 1);
    Case many = make(CUBLAS_COMPUTE_32F, CUDA_R_32F, CUDA_R_16BF, CUDA_R_16BF, 64, 512, 200);
    CHECK(memcmp(&offers(few)[0].algo, &offers(many)[0].algo, sizeof(cublasLtMatmulAlgo_t)) != 0);
    destroy(few);
    destroy(many);
}

/* An algorithm is written down as numbers and made again from them. */
static void test_saved_algorithm() {
    begin();
    Case c = make(CUBLAS_COMPUTE_32F, CUDA_R_32F, CUDA_R_16BF, CUDA_R_16BF, 64, 512, 3);
    cublasLtMatmulHeuristicResult_t checked;
    for (const auto &offer : offers(c)) {
        int32_t id, split;
        uint32_t tile, stages, reduction, swizzle, custom;
        uint16_t inner, cluster;
        cublasLtMatmulAlgo_t again;
        size_t written;
        const struct {
            cublasLtMatmulAlgoConfigAttributes_t name;
            void *value;
            size_t size;
        } parts[] = {{CUBLASLT_ALGO_CONFIG_ID, &id, 4},
                     {CUBLASLT_ALGO_CONFIG_TILE_ID, &tile, 4},
                     {CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &split, 4},
                     {CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &reduction, 4},
                     {CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, &swizzle, 4},
                     {CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, &custom, 4},
                     {CUBLASLT_ALGO_CONFIG_STAGES_ID, &stages, 4},
                     {CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID, &inner, 2},
                     {CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, &cluster, 2}};
        for (const auto &part : parts) {
            GOOD(cublasLtMatmulAlgoConfigGetAttribute(&offer.algo, part.name, part.value, part.size, &written));
            CHECK(written == part.size);
        }
        GOOD(cublasLtMatmulAlgoInit(c.handle, c.compute, c.scale, c.in, c.in, c.out, c.out, id, &again));
        for (const auto &part : parts) {
            STATUS(part.name == CUBLASLT_ALGO_CONFIG_ID ? CUBLAS_STATUS_INVALID_VALUE : CUBLAS_STATUS_SUCCESS,
                   cublasLtMatmulAlgoConfigSetAttribute(&again, part.name, part.value, part.size));
        }
        GOOD(cublasLtMatmulAlgoCheck(c.handle, c.desc, c.a, c.b, c.d, c.d, &again, &checked));
        CHECK(memcmp(&again, &offer.algo, sizeof again) == 0 && checked.workspaceSize == offer.workspaceSize);
        uint32_t wrong = 3;
        GOOD(cublasLtMatmulAlgoConfigSetAttribute(&again, CUBLASLT_ALGO_CONFIG_TILE_ID, &wrong, 4));
        STATUS(CUBLAS_STATUS_INVALID_VALUE,
               cublasLtMatmulAlgoCheck(c.handle, c.desc, c.a, c.b, c.d, c.d, &again, &checked));
        STATUS(CUBLAS_STATUS_INVALID_VALUE,
               cublasLtMatmulAlgoConfigSetAttribute(&again, CUBLASLT_ALGO_CONFIG_TILE_ID, &wrong, 3));
    }
    int ids[8], n;
    GOOD(cublasLtMatmulAlgoGetIds(c.handle, c.compute, c.scale, c.in, c.in, c.out, c.out, 8, ids, &n));
    CHECK(n == 2);
    cublasLtMatmulAlgo_t algo;
    STATUS(CUBLAS_STATUS_INVALID_VALUE,
           cublasLtMatmulAlgoInit(c.handle, c.compute, c.scale, c.in, c.in, c.out, c.out, 12345, &algo));
    memset(&algo, 0, sizeof algo);
    STATUS(CUBLAS_STATUS_INVALID_VALUE, cublasLtMatmulAlgoCheck(c.handle, c.desc, c.a, c.b, c.d, c.d, &algo, &checked));
    destroy(c);
}

/* Combinations of section "INT8: what it supports" and their like. */
static void test_refused_types() {
    begin();
    const struct {
        cublasComputeType_t compute;
        cudaDataType scale, in, out;
    } refused[] = {
        {CUBLAS_COMPUTE_32I, CUDA_R_32F, CUDA_R_8I, CUDA_R_16F},
        {CUBLAS_COMPUTE_32I, CUDA_R_32F, CUDA_R_8I, CUDA_R_16BF},
        {CUBLAS_COMPUTE_32I, CUDA_R_32I, CUDA_R_8I, CUDA_R_8I},
        {CUBLAS_COMPUTE_32I, CUDA_R_32F, CUDA_R_8I, CUDA_R_32I},
        {CUBLAS_COMPUTE_32I, CUDA_R_32F, CUDA_R_8I, CUDA_R_32F},
        {CUBLAS_COMPUTE_32F, CUDA_R_32F, CUDA_R_8I, CUDA_R_16F},
        {CUBLAS_COMPUTE_32F, CUDA_R_32F, CUDA_R_16BF, CUDA_R_16F},
        {CUBLAS_COMPUTE_32I, CUDA_R_32I, CUDA_R_16BF, CUDA_R_32I},
        {CUBLAS_COMPUTE_32F_FAST_TF32, CUDA_R_32F, CUDA_R_16BF, CUDA_R_16BF},
    };
    for (const auto &r : refused) {
        Case c = make(r.compute, r.scale, r.in, r.out, 64, 64, 16);
        offers(c, CUBLAS_STATUS_NOT_SUPPORTED);
        destroy(c);
    }
}

static void test_refused_shapes() {
    begin();
    const cublasStatus_t unsupported = CUBLAS_STATUS_NOT_SUPPORTED, invalid = CUBLAS_STATUS_INVALID_VALUE;
    cublasOperation_t none = CUBLAS_OP_N, transposed = CUBLAS_OP_T;
    for (auto shape : {std::pair<uint64_t, uint64_t>{62, 64}, {64, 62}, {64, 65}}) { /* n, k of multiples of 4 */
        Case c = make(CUBLAS_COMPUTE_32I, CUDA_R_32I, CUDA_R_8I, CUDA_R_32I, shape.first, shape.second, 3);
        offers(c, unsupported);
        destroy(c);
    }
    Case c = make(CUBLAS_COMPUTE_32I, CUDA_R_32I, CUDA_R_8I, CUDA_R_32I, 64, 64, 64);
    for (uint64_t k : {uint64_t(62), uint64_t(64)}) { /* also where columns are aligned */
        GOOD(cublasLtMatrixLayoutSetAttribute(c.a, CUBLASLT_MATRIX_LAYOUT_ROWS, &k, 8));
        GOOD(cublasLtMatrixLayoutSetAttribute(c.b, CUBLASLT_MATRIX_LAYOUT_ROWS, &k, 8));
        CHECK((offers(c, k == 62 ? unsupported : CUBLAS_STATUS_SUCCESS).size() >= 2) == (k == 64));
    }
    int64_t ld = 66, short_ld = 60, well = 64;
    GOOD(cublasLtMatrixLayoutSetAttribute(c.b, CUBLASLT_MATRIX_LAYOUT_LD, &ld, 8));
    offers(c, unsupported);
    GOOD(cublasLtMatrixLayoutSetAttribute(c.b, CUBLASLT_MATRIX_LAYOUT_LD, &short_ld, 8));
    offers(c, invalid);
    GOOD(cublasLtMatrixLayoutSetAttribute(c.b, CUBLASLT_MATRIX_LAYOUT_LD, &well, 8));
    GOOD(cublasLtMatmulDescSetAttribute(c.desc, CUBLASLT_MATMUL_DESC_TRANSA, &none, 4)); /* NN */
    offers(c, unsupported);
    GOOD(cublasLtMatmulDescSetAttribute(c.desc, CUBLASLT_MATMUL_DESC_TRANSB, &transposed, 4)); /* NT */
    offers(c, unsupported);
    GOOD(cublasLtMatmulDescSetAttribute(c.desc, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, 4)); /* TT */
    offers(c, unsupported);
    GOOD(cublasLtMatmulDescSetAttribute(c.desc, CUBLASLT_MATMUL_DESC_TRANSB, &none, 4));
    for (int32_t order : {2, 3, 4}) { /* layouts of Turing */
        GOOD(cublasLtMatrixLayoutSetAttribute(c.a, CUBLASLT_MATRIX_LAYOUT_ORDER, &order, 4));
        offers(c, unsupported);
    }
    int32_t column = CUBLASLT_ORDER_COL;
    GOOD(cublasLtMatrixLayoutSetAttribute(c.a, CUBLASLT_MATRIX_LAYOUT_ORDER, &column, 4));
    uint32_t epilogue = CUBLASLT_EPILOGUE_BIAS, gelu = CUBLASLT_EPILOGUE_GELU; /* behind int32: none */
    GOOD(cublasLtMatmulDescSetAttribute(c.desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, 4));
    offers(c, unsupported);
    destroy(c);
    c = make(CUBLAS_COMPUTE_32F, CUDA_R_32F, CUDA_R_16BF, CUDA_R_16BF, 64, 64, 8);
    GOOD(cublasLtMatmulDescSetAttribute(c.desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &gelu, 4));
    offers(c, unsupported);
    destroy(c);
    c = make(CUBLAS_COMPUTE_32F, CUDA_R_32F, CUDA_R_16BF, CUDA_R_16BF, 64, 64, 8);
    int32_t vector = CUBLASLT_POINTER_MODE_ALPHA_DEVICE_VECTOR_BETA_HOST; /* int8 output only */
    GOOD(cublasLtMatmulDescSetAttribute(c.desc, CUBLASLT_MATMUL_DESC_POINTER_MODE, &vector, 4));
    offers(c, unsupported);
    destroy(c);
    c = make(CUBLAS_COMPUTE_32F, CUDA_R_32F, CUDA_R_16BF, CUDA_R_16BF, 64, 64, 8);
    uint64_t other = 63; /* shapes that do not fit */
    GOOD(cublasLtMatrixLayoutSetAttribute(c.b, CUBLASLT_MATRIX_LAYOUT_ROWS, &other, 8));
    offers(c, invalid);
    STATUS(invalid, cublasLtMatrixLayoutSetAttribute(c.b, CUBLASLT_MATRIX_LAYOUT_ROWS, &other, 4));
    cublasLtHandle_t gone = c.handle;
    destroy(c);
    STATUS(CUBLAS_STATUS_NOT_INITIALIZED, cublasLtDestroy(gone));
}

/* What depends on pointers: alignments, workspace, memory. */
static void test_refused_calls() {
    begin();
    float one = 1, zero = 0;
    Case c = make(CUBLAS_COMPUTE_32F, CUDA_R_32F, CUDA_R_16BF, CUDA_R_16BF, 64, 512, 8);
    unsigned char *w, *x, *y, *workspace;
    OK(cudaMalloc(&w, 64 * 512 * 2 + 16));
    OK(cudaMalloc(&x, 8 * 512 * 2));
    OK(cudaMalloc(&y, 8 * 64 * 2));
    OK(cudaMalloc(&workspace, 1 << 20));
    auto list = offers(c);
    auto call = [&](const void *at, const cublasLtMatmulAlgo_t *algo, void *space, size_t size) {
        return cublasLtMatmul(c.handle, c.desc, &one, at, c.a, x, c.b, &zero, y, c.d, y, c.d, algo, space, size,
                              nullptr);
    };
    size_t split = 0;
    while (list[split].workspaceSize == 0) {
        split++;
    }
    size_t plain = list.size() - 1, tiled = split == 0 ? 1 : 0;
    GOOD(call(w, &list[split].algo, workspace, list[split].workspaceSize));
    STATUS(CUBLAS_STATUS_INVALID_VALUE, call(w, &list[split].algo, workspace, list[split].workspaceSize - 1));
    STATUS(CUBLAS_STATUS_INVALID_VALUE, call(w, &list[split].algo, nullptr, list[split].workspaceSize));
    STATUS(CUBLAS_STATUS_NOT_SUPPORTED, call(w + 2, &list[tiled].algo, nullptr, 0));
    GOOD(call(w + 2, &list[plain].algo, nullptr, 0));
    STATUS(CUBLAS_STATUS_NOT_SUPPORTED, call(w + 1, &list[plain].algo, nullptr, 0));
    STATUS(CUBLAS_STATUS_INVALID_VALUE, call(nullptr, &list[plain].algo, nullptr, 0));
    GOOD(call(w + 2, nullptr, nullptr, 0)); /* finds what fits */
    uint32_t two = 2;                       /* a caller that only promises 2 bytes is not offered tiles */
    for (int i = 0; i < 4; i++) {
        GOOD(cublasLtMatmulPreferenceSetAttribute(
            c.preference, cublasLtMatmulPreferenceAttributes_t(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES + i), &two,
            4));
    }
    CHECK(offers(c).size() == 1);
    OK(cudaDeviceSynchronize());
    emu_inject(EMU_CALL_MATMUL, 1, 1, cudaErrorMemoryAllocation);
    STATUS(CUBLAS_STATUS_ALLOC_FAILED, call(w, nullptr, nullptr, 0));
    GOOD(call(w + 16 + 64 * 512, nullptr, nullptr, 0)); /* half of it lies behind the end: found when it is done */
    CHECK(cudaDeviceSynchronize() == cudaErrorIllegalAddress && report_has("cublasLtMatmul: A: 65536 bytes from byte"));
    STATUS(CUBLAS_STATUS_EXECUTION_FAILED, call(w, nullptr, nullptr, 0));
    destroy(c);
}

/* alpha, beta, bias, and a graph. */
static void test_scales() {
    begin();
    Case c = make(CUBLAS_COMPUTE_32F, CUDA_R_32F, CUDA_R_16BF, CUDA_R_32F, 16, 64, 2);
    Matrix w = random_matrix(CUDA_R_16BF, 16, 64, 64), x = random_matrix(CUDA_R_16BF, 2, 64, 64);
    unsigned char *y, *bias, *scalars;
    float half = 0.5f, two = 2, ones[32], biases[16];
    for (int i = 0; i < 32; i++) {
        ones[i] = float(i);
        biases[i % 16] = float(i % 16) * 0.25f;
    }
    OK(cudaMalloc(&y, sizeof ones));
    OK(cudaMalloc(&bias, sizeof biases));
    OK(cudaMalloc(&scalars, 8));
    OK(cudaMemcpy(bias, biases, sizeof biases, cudaMemcpyHostToDevice));
    OK(cudaMemcpy(scalars, &half, 4, cudaMemcpyHostToDevice));
    OK(cudaMemcpy(scalars + 4, &two, 4, cudaMemcpyHostToDevice));
    uint32_t epilogue = CUBLASLT_EPILOGUE_BIAS;
    const void *pointer = bias;
    GOOD(cublasLtMatmulDescSetAttribute(c.desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, 4));
    GOOD(cublasLtMatmulDescSetAttribute(c.desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &pointer, sizeof pointer));
    cudaStream_t s;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    for (int way = 0; way < 3; way++) { /* numbers of the host, of the device, and both again from a graph */
        int32_t mode = way == 1 ? CUBLASLT_POINTER_MODE_DEVICE : CUBLASLT_POINTER_MODE_HOST;
        GOOD(cublasLtMatmulDescSetAttribute(c.desc, CUBLASLT_MATMUL_DESC_POINTER_MODE, &mode, 4));
        OK(cudaMemcpy(y, ones, sizeof ones, cudaMemcpyHostToDevice));
        if (way == 2) {
            OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
        }
        GOOD(cublasLtMatmul(c.handle, c.desc, way == 1 ? static_cast<void *>(scalars) : &half, w.device, c.a, x.device,
                            c.b, way == 1 ? static_cast<void *>(scalars + 4) : &two, y, c.d, y, c.d, nullptr, nullptr,
                            0, s));
        if (way == 2) {
            OK(cudaStreamEndCapture(s, &graph));
            OK(cudaGraphInstantiate(&exec, graph));
            OK(cudaGraphLaunch(exec, s));
        }
        OK(cudaStreamSynchronize(s));
        std::vector<unsigned char> raw = fetch(y, sizeof ones);
        for (size_t i = 0; i < 32; i++) {
            double sum = 0;
            for (size_t j = 0; j < 64; j++) {
                sum += w.values[i % 16 * 64 + j] * x.values[i / 16 * 64 + j];
            }
            CHECK(fabs(element(raw, CUDA_R_32F, i) - (0.5 * sum + 2 * double(ones[i]) + double(biases[i % 16]))) <
                  1e-4);
        }
    }
    destroy(c);
    /* a scale for each output channel: int8 output */
    c = make(CUBLAS_COMPUTE_32I, CUDA_R_32F, CUDA_R_8I, CUDA_R_8I, 16, 64, 2);
    Matrix wi = random_matrix(CUDA_R_8I, 16, 64, 64), xi = random_matrix(CUDA_R_8I, 2, 64, 64);
    int32_t vector = CUBLASLT_POINTER_MODE_ALPHA_DEVICE_VECTOR_BETA_HOST;
    float zero = 0;
    for (float &v : biases) {
        v = (v + 1) / 4096;
    }
    OK(cudaMemcpy(bias, biases, sizeof biases, cudaMemcpyHostToDevice));
    GOOD(cublasLtMatmulDescSetAttribute(c.desc, CUBLASLT_MATMUL_DESC_POINTER_MODE, &vector, 4));
    GOOD(cublasLtMatmul(c.handle, c.desc, bias, wi.device, c.a, xi.device, c.b, &zero, y, c.d, y, c.d, nullptr, nullptr,
                        0, nullptr));
    OK(cudaDeviceSynchronize());
    std::vector<unsigned char> raw = fetch(y, 32);
    for (size_t i = 0; i < 32; i++) {
        double sum = 0;
        for (size_t j = 0; j < 64; j++) {
            sum += wi.values[i % 16 * 64 + j] * xi.values[i / 16 * 64 + j];
        }
        double expected = std::max(-128.0, std::min(127.0, nearbyint(double(biases[i % 16] * float(sum)))));
        CHECK(element(raw, CUDA_R_8I, i) == expected);
    }
    destroy(c);
}

void test_cublaslt() {
    test_products();
    test_orders();
    test_saved_algorithm();
    test_refused_types();
    test_refused_shapes();
    test_refused_calls();
    test_scales();
}
