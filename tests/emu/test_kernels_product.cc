/*
 * The product kernels on the emulator: 8-bit products bit for bit against integer sums and the documented epilogue,
 * float products against double precision (tests/ops/reference.c), blocks against what the gguf package makes of them.
 * Every size lies on, before and behind an edge of some tile. Device memory ends where the data ends, so that the
 * emulator sees a read beyond; what y has beside its columns is looked at afterwards.
 */
extern "C" { /* C, and first: launch.h includes the same */
#include "ops/reference.h"
}

#include "emu.h"
#include "geometry.h"
#include "launch.h"
#include "machine.h"
#include "ops/golden_blocks.h"

#include <initializer_list>
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
static void done(cudaError_t rc, int line) {
    if (rc == cudaSuccess) {
        rc = cudaDeviceSynchronize();
    }
    check(rc == cudaSuccess, line, "%s; %s", cudaGetErrorString(rc), emu_last_fault());
    if (rc != cudaSuccess) { /* it stays */
        exit(1);
    }
}
#define DONE(call) done((call), __LINE__)

static uint64_t random_state = 20261130;
static uint32_t random_u32() {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 32);
}
static double random_unit() { /* in [-1, 1) */
    return (double)random_u32() / 2147483648.0 - 1;
}

/* Device memory of exactly these elements. */
template <typename T> struct device_array {
    T *p = NULL;
    size_t n = 0;
    device_array() {
    }
    explicit device_array(size_t count) : n(count) {
        DONE(cudaMalloc((void **)&p, n * sizeof(T)));
    }
    explicit device_array(const std::vector<T> &v) : device_array(v.size()) {
        upload(v);
    }
    device_array(const device_array &) = delete;
    device_array &operator=(const device_array &) = delete;
    ~device_array() {
        DONE(cudaFree(p));
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

/* y of a part: rows of ldy elements, the last without what lies beside it. */
struct result {
    size_t rows, n, ld, element;
    device_array<uint8_t> memory;
    static constexpr uint8_t UNTOUCHED = 0xa5;
    result(size_t rows_, size_t n_, size_t ld_, bool f32)
        : rows(rows_), n(n_), ld(ld_), element(f32 ? 4 : 2), memory(((rows_ - 1) * ld_ + n_) * element) {
        clear();
    }
    void clear() {
        memory.upload(std::vector<uint8_t>(memory.n, UNTOUCHED));
    }
    std::vector<uint8_t> bits() const { /* [rows][n], and nothing else was written */
        std::vector<uint8_t> all = memory.download(), out;
        for (size_t r = 0; r < rows; r++) {
            const uint8_t *row = all.data() + r * ld * element;
            out.insert(out.end(), row, row + n * element);
            for (size_t i = n * element; r + 1 < rows && i < ld * element; i++) {
                CHECK(row[i] == UNTOUCHED, "row %zu: byte %zu beside the columns was written", r, i - n * element);
            }
        }
        return out;
    }
    std::vector<double> values() const {
        std::vector<uint8_t> b = bits();
        std::vector<double> v(rows * n);
        for (size_t i = 0; i < v.size(); i++) {
            float f;
            uint16_t h;
            memcpy(&h, &b[i * element], 2);
            memcpy(&f, &b[i * element], element);
            v[i] = element == 4 ? (double)f : reference_bf16(h);
        }
        return v;
    }
};

/* Strides of y that let a kernel store 16 bytes, or 8, 4 or one element at once. */
static size_t some_stride(size_t n) {
    const size_t strides[] = {n + 15 - (n + 7) % 8, n + 1, n + 2, n + 3};
    return strides[random_u32() % 4];
}

static struct cuda_device test_device(int sm_count) {
    struct cuda_device d = {};
    d.sm_count = sm_count;
    d.shared_optin = 163 * 1024;
    d.compute = 80;
    return d;
}

/* ---- geometry ---- */

static void test_geometry() {
    const uint32_t shapes[][2] = {{1, 1}, {1, 7}, {16, 3}, {17, 5}, {40, 11}, {128, 2}};
    for (const auto &shape : shapes) {
        uint32_t m = shape[0], n = shape[1];
        std::vector<int> seen(m * n);
        for (uint32_t i = 0; i < m * n; i++) {
            struct tile_at t = tile_of(i, m, n);
            bool inside = t.m < m && t.n < n;
            CHECK(inside, "tile %u of %u x %u lies outside", i, m, n);
            if (inside) {
                seen[t.m * n + t.n]++;
            }
        }
        for (int s : seen) {
            CHECK(s == 1, "a tile of %u x %u is taken %d times", m, n, s);
        }
    }
    for (int sms : {1, 30, 108, 132}) {
        const struct cuda_device device = test_device(sms);
        for (size_t n : std::initializer_list<size_t>{1, 64, 576, 4096, 4160, 11008, 151936}) {
            for (size_t k : std::initializer_list<size_t>{64, 576, 4096, 11008}) {
                size_t workspace = cuda_gemm_i8_workspace(&device, 700, n, k), most = 0;
                for (size_t rows = 1; rows <= 700; rows += rows < 200 ? 1 : 7) {
                    struct gemm_i8_plan p = gemm_i8_plan_of(sms, rows, n, k);
                    struct gemm_i8_shape s = gemm_i8_shape_of(p.tile);
                    CHECK(p.tiles_m * s.rows >= rows && (p.tiles_m - 1) * s.rows < rows, "%zu rows: tiles", rows);
                    CHECK(p.tiles_n * s.columns >= n && (p.tiles_n - 1) * s.columns < n, "%zu columns: tiles", n);
                    CHECK((size_t)p.steps * s.bytes >= k && p.steps_per_split * p.splits >= p.steps &&
                              p.steps_per_split * (p.splits - 1) < p.steps,
                          "%u steps in %u splits of %u", p.steps, p.splits, p.steps_per_split);
                    CHECK(p.splits == 1 || p.tiles_m * p.tiles_n < (size_t)sms, "split though there are enough tiles");
                    size_t bytes = gemm_i8_partial_bytes(&p, rows, n);
                    most = bytes > most ? bytes : most;
                }
                CHECK(most <= workspace, "workspace of n %zu, k %zu: %zu, and %zu are used", n, k, workspace, most);
            }
        }
    }
    struct gemm_i8_plan p = gemm_i8_plan_of(108, 64, 4096, 4096); /* the middle sizes: 64 tiles for 108 */
    CHECK(p.tile == GEMM_I8_64X64 && p.splits > 1, "64 x 4096 x 4096 is not split");
    p = gemm_i8_plan_of(108, 2048, 4096, 4096);
    CHECK(p.tile == GEMM_I8_128X128 && p.splits == 1, "2048 x 4096 x 4096 is split");
    for (size_t n : std::initializer_list<size_t>{1, 4, 5, 16, 17, 49152, 151936}) {
        for (unsigned split : std::initializer_list<unsigned>{1, 2, 4}) {
            CHECK(gemv_blocks(n, split) * (GEMV_WARPS / split) * GEMV_COLUMNS >= n, "columns are missing");
        }
    }
}

/* ---- 8 bits ---- */

enum zero_kind { SYMMETRIC, ZERO_OF_ROWS, ZERO_OF_ALL };

/* Weights and rows of bytes, and the exact sums. */
struct bytes_case {
    size_t rows, n, k, ld;
    std::vector<int8_t> w, x;
    std::vector<float> s_channel, s_token, bias;
    std::vector<int32_t> zeros, row_sums;
    enum zero_kind kind;

    bytes_case(size_t rows_, size_t n_, size_t k_, enum zero_kind kind_, bool extreme)
        : rows(rows_), n(n_), k(k_), kind(kind_) {
        ld = ceil_div(k, ROWS_I8_PAD) * ROWS_I8_PAD;
        w.resize(n * ld);
        x.resize(rows * ld);
        row_sums.resize(n);
        for (size_t j = 0; j < n; j++) {
            for (size_t i = 0; i < k; i++) {
                w[j * ld + i] = (int8_t)(extreme ? (j % 2 ? -128 : 127) : (int)(random_u32() % 255) - 127);
                row_sums[j] += w[j * ld + i];
            }
            s_channel.push_back(0.001f + 0.0001f * (float)(random_u32() % 100));
            bias.push_back((float)random_unit());
        }
        for (size_t r = 0; r < rows; r++) {
            for (size_t i = 0; i < k; i++) {
                x[r * ld + i] = (int8_t)(extreme ? (r % 2 ? -128 : 127) : r == 1 ? 0 : (int)(random_u32() % 256) - 128);
            }
            s_token.push_back(0.01f + 0.001f * (float)(random_u32() % 100));
            zeros.push_back(kind == SYMMETRIC ? 0 : kind == ZERO_OF_ALL ? -37 : (int)(random_u32() % 256) - 128);
        }
    }
    /* bits of y as launch.h and backend.h have it, in the order of product.cuh */
    std::vector<uint8_t> expected(bool with_bias, bool f32) const {
        std::vector<uint8_t> out;
        for (size_t r = 0; r < rows; r++) {
            for (size_t j = 0; j < n; j++) {
                int64_t sum = 0;
                for (size_t i = 0; i < k; i++) {
                    sum += x[r * ld + i] * w[j * ld + i];
                }
                sum -= (int64_t)zeros[r] * row_sums[j];
                float scale = s_token[r] * s_channel[j], y = (float)sum * scale;
                y = with_bias ? y + bias[j] : y;
                uint16_t h = reference_to_bf16((double)y);
                const uint8_t *from = f32 ? (const uint8_t *)&y : (const uint8_t *)&h;
                out.insert(out.end(), from, from + (f32 ? 4 : 2));
            }
        }
        return out;
    }
};

/* A weight of the case's first columns on the device. */
struct bytes_weight {
    device_array<int8_t> data;
    device_array<float> scales;
    device_array<int32_t> row_sums;
    struct cuda_weight w = {};
    bytes_weight(const struct bytes_case &c) : data(c.w), scales(c.s_channel), row_sums(c.row_sums) {
        w.dtype = DTYPE_I8;
        w.activation = c.kind == SYMMETRIC      ? ACTIVATION_I8_TOKEN
                       : c.kind == ZERO_OF_ROWS ? ACTIVATION_I8_TOKEN_ZERO
                                                : ACTIVATION_I8_STATIC;
        w.input_zero_point = c.kind == ZERO_OF_ALL ? c.zeros[0] : 0;
        w.n = c.n, w.k = c.k, w.k_padded = c.ld, w.row_bytes = c.ld;
        w.data = data.p;
        w.scales = scales.p;
        w.row_sums = c.kind == SYMMETRIC ? NULL : row_sums.p;
    }
};

static void test_bytes(size_t rows, size_t n, size_t k, enum zero_kind kind, bool extreme) {
    struct bytes_case c(rows, n, k, kind, extreme);
    bytes_weight w(c);
    device_array<int8_t> x(c.x);
    device_array<float> s_token(c.s_token), bias(c.bias);
    device_array<int32_t> zeros(c.zeros);
    struct rows_i8 q = {x.p, c.ld, s_token.p};
    const int32_t *z = kind == ZERO_OF_ROWS ? zeros.p : NULL;
    for (int form = 0; form < 3; form++) {
        bool f32 = form == 0, with_bias = form == 1;
        std::vector<uint8_t> want = c.expected(with_bias, f32);
        struct result y(rows, n, some_stride(n), f32);
        struct cuda_part part = {&w.w, with_bias ? bias.p : NULL, y.memory.p, y.ld, f32 ? DTYPE_F32 : DTYPE_BF16};
        for (int sms : {1, 108}) { /* never split, and as often as there is something to split */
            struct cuda_device device = test_device(sms);
            size_t bytes = cuda_gemm_i8_workspace(&device, rows, n, k);
            device_array<uint8_t> workspace(bytes + 16);
            DONE(cuda_gemm_i8(&device, &q, z, rows, &part, workspace.p, bytes, 0));
            CHECK(y.bits() == want, "gemm_i8 %zu x %zu x %zu, %d multiprocessors, form %d, kind %d", rows, n, k, sms,
                  form, (int)kind);
            y.clear();
        }
        if (rows <= CUDA_GEMV_ROWS) {
            struct cuda_device device = test_device(108);
            DONE(cuda_gemv_i8(&device, &q, z, rows, &part, 1, 0));
            CHECK(y.bits() == want, "gemv_i8 %zu x %zu x %zu, form %d, kind %d", rows, n, k, form, (int)kind);
        }
    }
}

/* A workspace that is too small costs splits, not bits. */
static void test_small_workspace() {
    struct bytes_case c(20, 65, 4096, SYMMETRIC, false);
    bytes_weight w(c);
    device_array<int8_t> x(c.x);
    device_array<float> s_token(c.s_token);
    struct rows_i8 q = {x.p, c.ld, s_token.p};
    struct result y(20, 65, 65, true);
    struct cuda_part part = {&w.w, NULL, y.memory.p, 65, DTYPE_F32};
    struct cuda_device device = test_device(108);
    CHECK(gemm_i8_plan_of(108, 20, 65, 4096).splits > 1, "nothing to test");
    DONE(cuda_gemm_i8(&device, &q, NULL, 20, &part, NULL, 0, 0));
    CHECK(y.bits() == c.expected(false, true), "without a workspace");
}

static void test_parts_i8() {
    struct bytes_case a(3, 66, 1000, SYMMETRIC, false), b(3, 5, 1000, SYMMETRIC, false),
        d(3, 17, 1000, SYMMETRIC, false);
    b.x = d.x = a.x;
    b.s_token = d.s_token = a.s_token;
    bytes_weight wa(a), wb(b), wd(d);
    device_array<int8_t> x(a.x);
    device_array<float> s_token(a.s_token), bias(b.bias);
    struct result ya(3, 66, 70, false), yb(3, 5, 8, true), yd(3, 17, 17, false);
    struct cuda_part parts[3] = {{&wa.w, NULL, ya.memory.p, ya.ld, DTYPE_BF16},
                                 {&wb.w, bias.p, yb.memory.p, yb.ld, DTYPE_F32},
                                 {&wd.w, NULL, yd.memory.p, yd.ld, DTYPE_BF16}};
    struct rows_i8 q = {x.p, a.ld, s_token.p};
    struct cuda_device device = test_device(108);
    for (size_t n = 2; n <= 3; n++) {
        ya.clear(), yb.clear(), yd.clear();
        DONE(cuda_gemv_i8(&device, &q, NULL, 3, parts, n, 0));
        CHECK(ya.bits() == a.expected(false, false), "part 0 of %zu", n);
        CHECK(yb.bits() == b.expected(true, true), "part 1 of %zu", n);
        std::vector<uint8_t> untouched(3 * 17 * 2, result::UNTOUCHED);
        CHECK(yd.bits() == (n == 3 ? d.expected(false, false) : untouched), "part 2 of %zu", n);
    }
}

static void test_bytes_all() {
    const size_t rows[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 32, 33, 64, 65, 129},
                 columns[] = {1, 7, 63, 64, 65, 130}, ks[] = {32, 64, 100, 192, 544};
    size_t i = 0;
    for (size_t r : rows) {
        for (size_t e = 0; e < 2; e++, i++) { /* every size of each kind meets several of the others */
            test_bytes(r, columns[i % 6], ks[i % 5], (enum zero_kind)(i % 3), false);
        }
    }
    for (size_t steps = 1; steps <= 40; steps++) { /* GEMV: shared out, each warp still has what is under way at once */
        unsigned split = gemv_i8_split(steps);
        CHECK(split == 1 || (GEMV_WARPS % split == 0 && steps / split >= 4), "%zu steps are shared by %u", steps, split);
        CHECK(steps < 16 || split == GEMV_WARPS, "%zu steps are not shared", steps);
    }
    test_bytes(8, 65, 2176, ZERO_OF_ROWS, false);
    test_bytes(3, 10, 8260, ZERO_OF_ROWS, false); /* all four warps share columns, with a rest */
    test_bytes(1, 130, 4100, SYMMETRIC, false);
    for (size_t r : std::initializer_list<size_t>{16, 20, 40, 70, 129}) { /* split, in every tile */
        CHECK(gemm_i8_plan_of(108, r, 65, 2176).splits > 1, "nothing is split");
        test_bytes(r, 65, 2170, (enum zero_kind)(r % 3), false);
    }
    test_bytes(40, 4100, 64, SYMMETRIC, false); /* 64x128 tiles by n */
    test_bytes(2, 66, 8192, SYMMETRIC, true);
    test_bytes(18, 66, 8192, ZERO_OF_ROWS, true);
    test_small_workspace();
    test_parts_i8();
}

/* ---- floats ---- */

static const enum dtype float_types[] = {DTYPE_I8,   DTYPE_BF16, DTYPE_Q4_0, DTYPE_Q4_1, DTYPE_Q5_0,
                                         DTYPE_Q5_1, DTYPE_Q8_0, DTYPE_Q4_K, DTYPE_Q5_K, DTYPE_Q6_K};

/* Where the F16 of a block lie: -1: no more. */
static void scales_of(enum dtype t, int at[2]) {
    at[0] = t == DTYPE_Q6_K ? 208 : 0;
    at[1] = t == DTYPE_Q4_1 || t == DTYPE_Q5_1 || t == DTYPE_Q4_K || t == DTYPE_Q5_K ? 2 : -1;
}

/* A weight matrix on the device, and its values. */
struct float_weight {
    struct cuda_weight w = {};
    std::vector<double> values; /* [n][k] */
    device_array<uint8_t> data;
    device_array<float> scales;

    static std::vector<uint8_t> random_rows(enum dtype t, size_t n, size_t row_bytes, size_t k) {
        std::vector<uint8_t> rows(n * row_bytes);
        for (uint8_t &b : rows) {
            b = (uint8_t)random_u32();
        }
        const struct dtype_info *info = dtype_info(t);
        for (size_t i = 0; t != DTYPE_I8 && i < rows.size(); i += info->bytes) {
            int at[2] = {0, -1};
            if (t != DTYPE_BF16) {
                scales_of(t, at);
            }
            for (int a : at) {
                if (a >= 0) {
                    double v = random_unit();
                    uint16_t h = t == DTYPE_BF16 ? reference_to_bf16(v) : reference_to_f16(0.05 * v);
                    memcpy(&rows[i + (size_t)a], &h, 2);
                }
            }
        }
        for (size_t i = 0; t == DTYPE_I8 && i < rows.size(); i++) { /* zeros behind k */
            rows[i] = i % row_bytes < k ? rows[i] : 0;
        }
        return rows;
    }
    static size_t bytes_of_row(enum dtype t, size_t k) {
        return t == DTYPE_I8 ? ceil_div(k, ROWS_I8_PAD) * ROWS_I8_PAD : k / dtype_info(t)->block * dtype_info(t)->bytes;
    }
    float_weight(enum dtype t, size_t n, size_t k, const std::vector<uint8_t> &rows, const std::vector<float> &s)
        : values(n * k), data(rows), scales(s) {
        w.dtype = t;
        w.activation = ACTIVATION_FLOAT;
        w.n = n, w.k = k;
        w.row_bytes = rows.size() / n;
        w.k_padded = t == DTYPE_I8 ? w.row_bytes : k;
        w.data = data.p;
        w.scales = t == DTYPE_I8 ? scales.p : NULL;
        for (size_t j = 0; j < n; j++) {
            const uint8_t *row = &rows[j * w.row_bytes];
            if (t == DTYPE_I8) {
                for (size_t i = 0; i < k; i++) {
                    values[j * k + i] = (double)s[j] * (int8_t)row[i];
                }
            } else {
                reference_dequantise(t, row, k, &values[j * k]);
            }
        }
    }
};

static std::vector<float> random_scales(size_t n) {
    std::vector<float> s;
    for (size_t i = 0; i < n; i++) {
        s.push_back(0.01f + 0.01f * (float)(random_u32() % 100));
    }
    return s;
}

/* Rows of BF16, and as doubles without what lies beside them. */
struct float_rows {
    size_t rows, k, ld;
    std::vector<uint16_t> bits;
    std::vector<double> values; /* [rows][k] */
    float_rows(size_t rows_, size_t k_, size_t ld_)
        : rows(rows_), k(k_), ld(ld_), bits((rows_ - 1) * ld_ + k_, 0x7fc0) {
        for (size_t r = 0; r < rows; r++) { /* NaN beside the columns */
            for (size_t i = 0; i < k; i++) {
                bits[r * ld + i] = reference_to_bf16(r == 1 ? 0 : random_unit());
                values.push_back(reference_bf16(bits[r * ld + i]));
            }
        }
    }
};

/* The size of the difference in that of the result; a result that nearly vanishes counts as what k products of random
 * signs come to. size: the sums of absolute products. */
static double relative_error(const std::vector<double> &got, const std::vector<double> &want,
                             const std::vector<double> &size, size_t k) {
    double d = 0, squares = 0, squares_of_size = 0;
    for (size_t i = 0; i < got.size(); i++) {
        if (isnan(got[i])) {
            return (double)INFINITY;
        }
        d += (got[i] - want[i]) * (got[i] - want[i]);
        squares += want[i] * want[i];
        squares_of_size += size[i] * size[i];
    }
    return sqrt(d / fmax(fmax(squares, squares_of_size / (double)k), 1e-30));
}

static double worst_gemv, worst_gemm_exact, worst_gemm_block, worst_bf16;

static cudaError_t run_float(bool gemv, const void *x, size_t ldx, size_t rows, const struct cuda_part *part, int sms) {
    struct cuda_device device = test_device(sms);
    return gemv ? cuda_gemv_float(&device, x, ldx, rows, part, 1, 0) : cuda_gemm_float(&device, x, ldx, rows, part, 0);
}

/* All rows at once against the reference, then some rows alone: the same bits. */
static void test_float(enum dtype t, size_t rows, size_t n, size_t k, size_t ldx, bool with_bias) {
    float_weight w(t, n, k, float_weight::random_rows(t, n, float_weight::bytes_of_row(t, k), k), random_scales(n));
    float_rows x(rows, k, ldx);
    std::vector<float> b = random_scales(n);
    device_array<uint16_t> dx(x.bits);
    device_array<float> bias(b);
    std::vector<double> want(rows * n), scale(rows * n);
    reference_linear(x.values.data(), rows, k, w.values.data(), n, with_bias ? b.data() : NULL, want.data(),
                     scale.data());
    for (int gemv = rows <= CUDA_GEMV_ROWS; gemv >= 0; gemv--) {
        bool exact = gemv || t == DTYPE_I8 || t == DTYPE_BF16;
        std::vector<uint8_t> f32_bits;
        for (int f32 = 1; f32 >= 0; f32--) {
            struct result y(rows, n, some_stride(n), f32);
            struct cuda_part part = {&w.w, with_bias ? bias.p : NULL, y.memory.p, y.ld, f32 ? DTYPE_F32 : DTYPE_BF16};
            DONE(run_float(gemv, dx.p, ldx, rows, &part, 1));
            double error = relative_error(y.values(), want, scale, k), &worst = !f32    ? worst_bf16
                                                                                : gemv  ? worst_gemv
                                                                                : exact ? worst_gemm_exact
                                                                                        : worst_gemm_block;
            worst = error > worst ? error : worst;
            CHECK(error < (f32 && exact ? 2e-6 : 5e-3), "%s %s %zu x %zu x %zu, ldx %zu, f32 %d: error %g",
                  gemv ? "gemv" : "gemm", dtype_info(t)->name, rows, n, k, ldx, f32, error);
            if (f32) {
                f32_bits = y.bits();
            }
        }
        for (size_t r = 0; r < rows; r += rows < 4 ? 1 : rows / 3) { /* and through the other tiles */
            for (size_t company = 1; company <= rows - r; company += rows / 2 + 1) {
                struct result y(company, n, n, true);
                struct cuda_part part = {&w.w, with_bias ? bias.p : NULL, y.memory.p, n, DTYPE_F32};
                DONE(run_float(gemv, dx.p + r * ldx, ldx, company, &part, 108));
                std::vector<uint8_t> got = y.bits();
                CHECK(memcmp(got.data(), &f32_bits[r * n * 4], got.size()) == 0,
                      "%s %s: row %zu of %zu in other company", gemv ? "gemv" : "gemm", dtype_info(t)->name, r, rows);
            }
        }
    }
}

/* Every element of a block alone, by rows of the identity: in F32 by the GEMV, rounded to BF16 by the GEMM. */
static void test_golden_block(const struct golden_block *g, size_t blocks) {
    const struct dtype_info *info = dtype_info(g->dtype);
    size_t k = blocks * info->block, n = 3;
    std::vector<uint8_t> rows;
    for (size_t i = 0; i < n * blocks; i++) {
        rows.insert(rows.end(), g->block, g->block + info->bytes);
    }
    float_weight w(g->dtype, n, k, rows, std::vector<float>(n));
    std::vector<uint16_t> identity(k * k);
    for (size_t i = 0; i < k; i++) {
        identity[i * k + i] = 0x3f80;
    }
    device_array<uint16_t> x(identity);
    struct result y(k, n, n, true);
    struct cuda_part part = {&w.w, NULL, y.memory.p, n, DTYPE_F32};
    DONE(run_float(false, x.p, k, k, &part, 1));
    std::vector<double> got = y.values();
    for (size_t i = 0; i < k; i++) {
        double element = (double)g->elements[i % info->block], want = reference_bf16(reference_to_bf16(element));
        for (size_t j = 0; j < n; j++) {
            CHECK(got[i * n + j] == want, "gemm %s: element %zu is %g, not %g", info->name, i, got[i * n + j], want);
        }
    }
    y.clear();
    for (size_t i = 0; i < k; i += CUDA_GEMV_ROWS) {
        part.y = y.memory.p + i * n * 4;
        DONE(run_float(true, x.p + i * k, k, CUDA_GEMV_ROWS, &part, 1));
    }
    got = y.values();
    for (size_t i = 0; i < k; i++) {
        double want = (double)g->elements[i % info->block];
        for (size_t j = 0; j < n; j++) {
            CHECK(got[i * n + j] == want, "gemv %s: element %zu is %.9g, not %.9g", info->name, i, got[i * n + j],
                  want);
        }
    }
}

/* Parts of several types: those of one type side by side share a launch. */
static void test_parts_float() {
    const enum dtype types[] = {DTYPE_Q4_K, DTYPE_Q4_K, DTYPE_Q6_K};
    const size_t n[] = {65, 6, 18}, k = 512, rows = 3;
    float_rows x(rows, k, k);
    device_array<uint16_t> dx(x.bits);
    float_weight *w[3];
    struct result *y[3];
    struct cuda_part parts[3];
    for (size_t i = 0; i < 3; i++) {
        w[i] = new float_weight(types[i], n[i], k,
                                float_weight::random_rows(types[i], n[i], float_weight::bytes_of_row(types[i], k), k),
                                random_scales(n[i]));
        y[i] = new struct result(rows, n[i], n[i] + i, true);
        parts[i] = {&w[i]->w, NULL, y[i]->memory.p, y[i]->ld, DTYPE_F32};
    }
    struct cuda_device device = test_device(108);
    struct emu_counts before, after;
    emu_get_counts(&before);
    DONE(cuda_gemv_float(&device, dx.p, k, rows, parts, 3, 0));
    emu_get_counts(&after);
    CHECK(after.kernels_run - before.kernels_run == 2, "%d launches", (int)(after.kernels_run - before.kernels_run));
    for (size_t i = 0; i < 3; i++) {
        std::vector<double> want(rows * n[i]), scale(rows * n[i]);
        reference_linear(x.values.data(), rows, k, w[i]->values.data(), n[i], NULL, want.data(), scale.data());
        double error = relative_error(y[i]->values(), want, scale, k);
        CHECK(error < 2e-6, "part %zu: error %g", i, error);
        delete w[i];
        delete y[i];
    }
}

static void test_floats_all() {
    const size_t rows[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 33, 64, 65, 129}, columns[] = {1, 7, 63, 64, 65, 130};
    size_t i = 0;
    for (enum dtype t : float_types) {
        size_t block = dtype_info(t)->block;
        for (size_t e = 0; e < 6; e++, i++) { /* the sizes go round over the types */
            size_t k = block == 256 ? 256 * (1 + i % 3) : block == 32 ? 32 * (1 + i % 5) : 8 * (1 + i % 30);
            test_float(t, rows[i % 16], columns[i % 6], k, k + 8 * (i % 2), i % 4 == 0);
        }
        test_float(t, 8, 9, block == 256 ? 2304 : 2112, block == 256 ? 2304 : 2112,
                   false);                                          /* GEMV: warps share columns */
        test_float(t, 5, 66, 256 * (1 + i % 2), 256 * 2 + 3, true); /* odd rows of x */
        test_float(t, 70, 66, 256, 259, false);
    }
    for (enum dtype t : {DTYPE_I8, DTYPE_BF16}) { /* any k */
        for (size_t k : std::initializer_list<size_t>{1, 7, 33, 63, 65, 130, 257}) {
            test_float(t, 3, 10, k, k, false);
            test_float(t, 20, 65, k, ceil_div(k, 8) * 8, false);
        }
    }
    for (const struct golden_block &g : golden_blocks) {
        test_golden_block(&g, dtype_info(g.dtype)->block == 256 ? 1 : 3);
    }
    test_parts_float();
}

/* Nothing to do is nothing done; too much is refused. */
static void test_edges() {
    struct cuda_device device = test_device(108);
    struct cuda_weight w = {};
    struct cuda_part part = {&w, NULL, NULL, 0, DTYPE_F32};
    struct rows_i8 q = {NULL, 64, NULL};
    struct emu_counts before, after;
    emu_get_counts(&before);
    DONE(cuda_gemm_i8(&device, &q, NULL, 0, &part, NULL, 0, 0));
    DONE(cuda_gemv_i8(&device, &q, NULL, 0, &part, 1, 0));
    DONE(cuda_gemm_float(&device, NULL, 0, 0, &part, 0));
    DONE(cuda_gemv_float(&device, NULL, 0, 0, &part, 1, 0));
    emu_get_counts(&after);
    CHECK(after.kernels_run == before.kernels_run, "zero rows launch something");
    w.dtype = DTYPE_F32;
    w.n = w.k = 8;
    CHECK(cuda_gemv_i8(&device, &q, NULL, 9, &part, 1, 0) == cudaErrorInvalidValue, "nine rows of a GEMV");
    CHECK(cuda_gemv_float(&device, NULL, 0, 9, &part, 1, 0) == cudaErrorInvalidValue, "nine rows of a GEMV");
    CHECK(cuda_gemv_float(&device, NULL, 0, 1, &part, 1, 0) == cudaErrorInvalidValue, "weights of F32");
    CHECK(cuda_gemm_float(&device, NULL, 0, 1, &part, 0) == cudaErrorInvalidValue, "weights of F32");
}

/* Each kernel and tile, with k long enough that every buffer of a ring is used again. */
static void test_sample() {
    for (size_t rows : std::initializer_list<size_t>{3, 16, 20, 40, 70}) {
        test_bytes(rows, 66, 1100, (enum zero_kind)(rows % 3), false);
    }
    test_bytes(129, 130, 500, SYMMETRIC, false); /* 128x128: a step is 64 bytes */
    for (enum dtype t : {DTYPE_I8, DTYPE_Q4_K}) {
        for (size_t rows : std::initializer_list<size_t>{5, 16, 40}) {
            test_float(t, rows, 66, 512, 512, false);
        }
    }
    test_float(DTYPE_Q6_K, 129, 130, 256, 256, false);
}

/* --sample: a few seconds of it, for builds that check every access. */
int main(int argc, char **argv) {
    struct emu_options options;
    emu_get_options(&options);
    options.alignment = 16; /* device memory ends where the data ends */
    DONE(emu_configure(&options));
    struct cuda_device device = test_device(108);
    device.shared_optin = 163 * 1024;
    DONE(cuda_prepare_gemm_i8(&device));
    DONE(cuda_prepare_gemm_float(&device));
    if (argc > 1 && strcmp(argv[1], "--sample") == 0) {
        test_sample();
    } else {
        test_geometry();
        test_bytes_all();
        test_floats_all();
        test_edges();
    }
    CHECK(emu_check_memory() == 0, "memory beside allocations was written");
    printf("largest relative error: gemv %.2g, gemm of I8 and BF16 %.2g, of blocks %.2g, of y rounded to BF16 %.2g\n",
           worst_gemv, worst_gemm_exact, worst_gemm_block, worst_bf16);
    printf("%zu checks, %zu failures\n", checks, failures);
    return failures > 0;
}
