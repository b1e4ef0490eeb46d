/*
 * rows.cu, norm.cu, silu.cu, embed.cu and rope_kv.cu on the emulator: against the reference in double precision
 * (tests/ops/reference.c), integers against their definition (backend.h), KV memory and embeddings against the CPU
 * backend, bit by bit. Sizes lie around a vector of eight, a warp's and a block's worth of them; rows are aligned or
 * not.
 */
#include "kernels.h"

static const size_t sizes[] = {1, 7, 8, 63, 64, 65, 256, 576, 2047, 2048, 2056, 4099};
static const uint16_t UNTOUCHED = 0x5a5a;

static float f32_of_bf16(uint16_t u) {
    return (float)reference_bf16(u);
}

/* A row's integers by definition: every quotient is one division of floats. */
struct integers {
    std::vector<int> q;
    float scale;
    int zero;
};
static integers quantised(const std::vector<float> &x, enum activation_quant kind, float scale, int zero) {
    float high = 0, low = 0;
    bool finite = true;
    for (float v : x) {
        high = fmaxf(high, v), low = fminf(low, v);
        finite = finite && isfinite(v);
    }
    integers out = {std::vector<int>(x.size(), 0), scale, zero};
    float least = -128;
    if (kind == ACTIVATION_I8_TOKEN) {
        out.scale = fmaxf(high, -low) / 127, out.zero = 0, least = -127;
    } else if (kind == ACTIVATION_I8_TOKEN_ZERO) {
        out.scale = (high - low) / 255;
    }
    if (!(out.scale > 0)) {
        out.scale = 1;
    }
    if (kind == ACTIVATION_I8_TOKEN_ZERO) {
        out.zero = (int)fminf(127, fmaxf(-128, -128 - rintf(low / out.scale)));
    }
    if (!finite) {
        out.scale = NAN;
        out.zero = kind == ACTIVATION_I8_TOKEN_ZERO ? 0 : out.zero;
        return out;
    }
    for (size_t i = 0; i < x.size(); i++) {
        out.q[i] = (int)fminf(127, fmaxf(least, rintf(x[i] / out.scale) + (float)out.zero));
    }
    return out;
}

static void check_integers(const std::vector<float> &x, const integers &want, const int8_t *q, size_t ld, float scale,
                           const char *what) {
    size_t wrong = 0;
    for (size_t i = 0; i < ld; i++) {
        wrong += q[i] != (i < x.size() ? want.q[i] : 0);
    }
    CHECK(wrong == 0, "%s of %zu: %zu integers differ", what, x.size(), wrong);
    CHECK(memcmp(&scale, &want.scale, sizeof scale) == 0 || (isnan(scale) && isnan(want.scale)),
          "%s of %zu: scale %g, not %g", what, x.size(), (double)scale, (double)want.scale);
}

static size_t padded(size_t k) {
    return (k + ROWS_I8_PAD - 1) / ROWS_I8_PAD * ROWS_I8_PAD;
}

/* ---- rows.cu ---- */

static void test_quantise(size_t k, size_t ldx, size_t offset, enum activation_quant kind, size_t rows = 7) {
    const size_t ld = padded(k);
    std::vector<uint16_t> x = random_bf16((rows - 1) * ldx + k, 8);
    const float tiny = 0x1p-126f;
    for (size_t i = 0; i < k; i++) {
        x[1 * ldx + i] = 0;
        x[2 * ldx + i] = reference_to_bf16(random_unit() * (double)tiny);            /* scales that are divided by */
        x[3 * ldx + i] = reference_to_bf16((double)(random_u64() % 255) / 2 - 63.5); /* ties: 63.5 / 127 is a half */
        x[4 * ldx + i] = reference_to_bf16(fabs(random_unit()) * 1e30);
    }
    x[3 * ldx] = reference_to_bf16(63.5);
    x[5 * ldx + k / 2] = 0x7fc0;
    x[6 * ldx + k - 1] = 0xff80;
    device_array<uint16_t> x_memory(x, offset);
    device_array<int8_t> q(rows * ld);
    device_array<float> scales(rows);
    device_array<int32_t> zeros(rows);
    struct rows_i8 out = {q.p, ld, scales.p};
    DONE(cuda_quantise_rows(&out, zeros.p, x_memory.p, ldx, rows, k, kind, 0.043f, -5, 0));
    std::vector<int8_t> got = q.download();
    std::vector<float> got_scales = scales.download();
    std::vector<int32_t> got_zeros = zeros.download();
    for (size_t r = 0; r < rows; r++) {
        std::vector<float> row(k);
        for (size_t i = 0; i < k; i++) {
            row[i] = f32_of_bf16(x[r * ldx + i]);
        }
        integers want = quantised(row, kind, 0.043f, -5);
        check_integers(row, want, &got[r * ld], ld, got_scales[r], "quantise");
        CHECK(got_zeros[r] == want.zero, "quantise of %zu: row %zu, zero point %d, not %d", k, r, got_zeros[r],
              want.zero);
    }
}

static void test_gather(size_t dim, size_t ldx, size_t ldy, enum dtype dtype) {
    const std::vector<int32_t> index = {4, 0, 4, 2};
    size_t e = dtype == DTYPE_F32 ? 4 : 2;
    std::vector<uint8_t> x(5 * ldx * e), before(4 * ldy * e, 0xa5);
    for (uint8_t &b : x) {
        b = (uint8_t)random_u64();
    }
    device_array<uint8_t> from(x), to(before);
    device_array<int32_t> at(index);
    DONE(cuda_gather_rows(dtype, to.p, ldy, from.p, ldx, at.p, index.size(), dim, 0));
    std::vector<uint8_t> got = to.download();
    for (size_t r = 0; r < index.size(); r++) {
        memcpy(&before[r * ldy * e], &x[(size_t)index[r] * ldx * e], dim * e);
    }
    CHECK(got == before, "gather of %zu, strides %zu and %zu", dim, ldx, ldy);
}

static void test_convert() {
    const enum dtype types[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};
    const size_t n = 1000;
    std::vector<double> values(n);
    for (size_t i = 0; i < n; i++) {
        values[i] = random_unit() * pow(2, (double)(random_u64() % 40) - 25);
    }
    values[0] = 0, values[1] = 65519, values[2] = -1e6, values[3] = 6e-8;
    for (enum dtype from : types) {
        std::vector<uint8_t> bytes(n * 4);
        for (size_t i = 0; i < n; i++) {
            float f = (float)values[i];
            uint16_t u = from == DTYPE_F16 ? reference_to_f16(values[i]) : reference_to_bf16(values[i]);
            from == DTYPE_F32 ? memcpy(&bytes[4 * i], &f, 4) : memcpy(&bytes[2 * i], &u, 2);
        }
        device_array<uint8_t> x(bytes);
        for (enum dtype to : types) {
            device_array<uint8_t> y(n * 4);
            DONE(cuda_convert(y.p, to, x.p, from, n, 0));
            std::vector<uint8_t> got = y.download();
            size_t wrong = 0;
            for (size_t i = 0; i < n; i++) {
                float f;
                uint16_t u, out;
                memcpy(&f, &bytes[4 * i], 4), memcpy(&u, &bytes[2 * i], 2);
                double value = from == DTYPE_F32 ? (double)f : from == DTYPE_F16 ? reference_f16(u) : reference_bf16(u);
                memcpy(&f, &got[4 * i], 4), memcpy(&out, &got[2 * i], 2);
                wrong += to == DTYPE_F32
                             ? (double)f != value
                             : out != (to == DTYPE_F16 ? reference_to_f16(value) : reference_to_bf16(value));
            }
            CHECK(wrong == 0, "convert %d to %d: %zu wrong", (int)from, (int)to, wrong);
        }
    }
    device_array<float> x(4), y(4);
    CHECK(cuda_convert(y.p, DTYPE_I8, x.p, DTYPE_F32, 4, 0) == cudaErrorInvalidValue, "convert to I8");
}

/* ---- norm.cu ---- */

static double worst_norm, worst_silu, worst_rope;

static void note(double *worst, double error) {
    *worst = error > *worst ? error : *worst;
}

static void test_rms_norm(size_t groups, size_t dim, size_t pad, size_t offset, bool in_place) {
    const size_t rows = 3, ld = groups * dim + pad;
    std::vector<uint16_t> x = random_bf16(rows * ld, 2);
    std::vector<float> w = random_f32(dim, 2);
    device_array<uint16_t> from(x, offset), other(std::vector<uint16_t>(rows * ld, UNTOUCHED), offset);
    device_array<float> weight(w, offset == 16 ? 0 : 4);
    device_array<uint16_t> &to = in_place ? from : other;
    DONE(cuda_rms_norm(to.p, ld, from.p, ld, weight.p, rows, groups, dim, 1e-5f, 0));
    std::vector<uint16_t> got = to.download();
    std::vector<double> want, result, row(dim), out(dim);
    for (size_t r = 0; r < rows; r++) {
        for (size_t g = 0; g < groups; g++) {
            for (size_t i = 0; i < dim; i++) {
                row[i] = reference_bf16(x[r * ld + g * dim + i]);
                result.push_back(reference_bf16(got[r * ld + g * dim + i]));
            }
            reference_rms_norm(row.data(), w.data(), dim, 1e-5, out.data());
            want.insert(want.end(), out.begin(), out.end());
        }
        for (size_t i = groups * dim; i < ld; i++) {
            CHECK(got[r * ld + i] == (in_place ? x[r * ld + i] : UNTOUCHED), "rms_norm writes beside row %zu", r);
        }
    }
    double error = relative_error(result, want);
    note(&worst_norm, error);
    CHECK(error < 4e-3, "rms_norm of %zu x %zu: error %.2g", groups, dim, error);
}

static void test_add_rms_norm(size_t dim, size_t pad, size_t offset, bool residual) {
    const size_t rows = 3, ld = dim + pad, ldq = padded(dim);
    std::vector<float> x = random_f32(rows * ld, 2), w = random_f32(dim, 2);
    std::vector<uint16_t> r = random_bf16(rows * ld, 1);
    device_array<float> weight(w), x1(x, offset * 2), x2(x, offset * 2);
    device_array<uint16_t> more(r, offset), y(std::vector<uint16_t>(rows * ld, UNTOUCHED), offset);
    device_array<int8_t> q(rows * ldq);
    device_array<float> scales(rows);
    struct rows_i8 i8 = {q.p, ldq, scales.p};
    uint16_t *added = residual ? more.p : NULL;
    DONE(cuda_add_rms_norm(y.p, ld, NULL, x1.p, ld, added, ld, weight.p, rows, dim, 1e-6f, 0));
    DONE(cuda_add_rms_norm(NULL, 0, &i8, x2.p, ld, added, ld, weight.p, rows, dim, 1e-6f, 0));
    std::vector<float> sum = x1.download(), sum2 = x2.download(), got_scales = scales.download();
    std::vector<uint16_t> got = y.download();
    std::vector<int8_t> got_q = q.download();
    std::vector<double> want, result, from_q, row(dim), out(dim);
    for (size_t i = 0; i < rows; i++) {
        size_t wrong = 0;
        for (size_t j = 0; j < ld; j++) {
            float s = x[i * ld + j] + (residual && j < dim ? f32_of_bf16(r[i * ld + j]) : 0);
            wrong += memcmp(&s, &sum[i * ld + j], 4) != 0 || memcmp(&s, &sum2[i * ld + j], 4) != 0;
            CHECK(j < dim || got[i * ld + j] == UNTOUCHED, "add_rms_norm writes beside row %zu", i);
        }
        CHECK(wrong == 0, "add_rms_norm of %zu: %zu sums differ", dim, wrong);
        for (size_t j = 0; j < dim; j++) {
            row[j] = (double)sum[i * ld + j];
            result.push_back(reference_bf16(got[i * ld + j]));
            from_q.push_back((double)got_q[i * ldq + j] * (double)got_scales[i]);
        }
        reference_rms_norm(row.data(), w.data(), dim, 1e-6, out.data());
        want.insert(want.end(), out.begin(), out.end());
        double largest = 0, largest_q = 0, far = 0;
        for (size_t j = 0; j < ldq; j++) {
            double q_j = got_q[i * ldq + j], scale = (double)got_scales[i];
            CHECK(j < dim || q_j == 0, "add_rms_norm: column %zu of %zu is not zero", j, dim);
            largest = j < dim ? fmax(largest, fabs(out[j])) : largest;
            largest_q = fmax(largest_q, fabs(q_j));
            far = j < dim ? fmax(far, fabs(q_j - out[j] / scale)) : far;
        }
        CHECK(fabs((double)got_scales[i] * 127 / largest - 1) < 1e-6 && largest_q == 127 && far < 0.501,
              "add_rms_norm of %zu: scale %g of %g, %g off", dim, (double)got_scales[i], largest, far);
    }
    double error = relative_error(result, want);
    note(&worst_norm, error);
    CHECK(error < 4e-3, "add_rms_norm of %zu: error %.2g", dim, error);
}

/* ---- silu.cu ---- */

static void test_silu(size_t dim, size_t pad, size_t offset, enum activation activation, size_t rows = 3) {
    const size_t ld = 2 * dim + pad, ldq = padded(dim);
    std::vector<uint16_t> x = random_bf16(rows * ld, 6);
    x[dim / 2] = reference_to_bf16(dim > 1 ? -200 : 2); /* e^200 is none, and the result 0 */
    device_array<uint16_t> gate_up(x, offset);
    device_array<int8_t> q(rows * ldq);
    device_array<float> scales(rows);
    struct rows_i8 i8 = {q.p, ldq, scales.p};
    DONE(cuda_silu_mul(NULL, 0, &i8, gate_up.p, ld, gate_up.p + dim, ld, rows, dim, activation, 0));
    DONE(cuda_silu_mul(gate_up.p, ld, NULL, gate_up.p, ld, gate_up.p + dim, ld, rows, dim, activation,
                       0)); /* in place */
    std::vector<uint16_t> got = gate_up.download();
    std::vector<int8_t> got_q = q.download();
    std::vector<float> got_scales = scales.download();
    std::vector<double> want, result;
    for (size_t r = 0; r < rows; r++) {
        double largest = 0, far = 0;
        for (size_t i = 0; i < dim; i++) {
            double g = reference_bf16(x[r * ld + i]), up = reference_bf16(x[r * ld + dim + i]);
            want.push_back((activation == ACTIVATION_SILU ? reference_silu(g) : reference_gelu_tanh(g)) * up);
            result.push_back(reference_bf16(got[r * ld + i]));
            largest = fmax(largest, fabs(want.back()));
            far = fmax(far, fabs(got_q[r * ldq + i] - want.back() / (double)got_scales[r]));
        }
        for (size_t i = dim; i < ld; i++) {
            CHECK(got[r * ld + i] == x[r * ld + i], "silu_mul writes beside row %zu", r);
        }
        for (size_t i = dim; i < ldq; i++) {
            CHECK(got_q[r * ldq + i] == 0, "silu_mul: column %zu of %zu is not zero", i, dim);
        }
        CHECK(fabs((double)got_scales[r] * 127 / largest - 1) < 2e-6 && far < 0.501,
              "silu_mul of %zu: scale %g of %g, %g off", dim, (double)got_scales[r], largest, far);
    }
    double error = relative_error(result, want);
    note(&worst_silu, error);
    CHECK(error < 4e-3, "silu_mul of %zu: error %.2g", dim, error);
}

/* ---- embed.cu ---- */

static void test_embed(enum dtype dtype, size_t k, float scale) {
    const size_t n = 9;
    const std::vector<int32_t> ids = {3, 0, 8, 3, -1, 9};
    const struct dtype_info *info = dtype_info(dtype);
    size_t row_bytes = dtype == DTYPE_I8 ? padded(k) : k / info->block * info->bytes, ldy = k + 3;
    std::vector<uint8_t> table(n * row_bytes);
    for (uint8_t &b : table) {
        b = (uint8_t)random_u64();
    }
    std::vector<float> scales = random_f32(n, 1);
    for (size_t i = 0; i < n * row_bytes / info->bytes && dtype != DTYPE_I8; i++) { /* numbers, and scales that are */
        uint8_t *block = &table[i * info->bytes];
        uint16_t d = reference_to_f16(random_unit()), m = reference_to_f16(random_unit());
        float f = (float)random_unit();
        if (dtype == DTYPE_F32) {
            memcpy(block, &f, 4);
        } else if (dtype == DTYPE_BF16) {
            d = reference_to_bf16(random_unit());
            memcpy(block, &d, 2);
        } else {
            memcpy(block + (dtype == DTYPE_Q6_K ? 208 : 0), &d, 2);
            if (dtype == DTYPE_Q4_1 || dtype == DTYPE_Q5_1 || dtype == DTYPE_Q4_K || dtype == DTYPE_Q5_K) {
                memcpy(block + 2, &m, 2);
            }
        }
    }
    device_array<uint8_t> data(table);
    device_array<float> row_scales(scales), y(std::vector<float>(ids.size() * ldy, 7));
    device_array<int32_t> token_ids(ids);
    struct cuda_weight w = {};
    w.dtype = dtype, w.n = n, w.k = k, w.k_padded = padded(k), w.row_bytes = row_bytes;
    w.data = data.p, w.scales = dtype == DTYPE_I8 ? row_scales.p : NULL;
    DONE(cuda_embed(y.p, ldy, &w, token_ids.p, 0, ids.size(), scale, 0));
    std::vector<float> got = y.download();
    std::vector<double> row(k), want, result;
    for (size_t r = 0; r < ids.size(); r++) {
        bool known = ids[r] >= 0 && (size_t)ids[r] < n;
        const uint8_t *bytes = &table[known ? (size_t)ids[r] * row_bytes : 0];
        if (dtype != DTYPE_I8) {
            reference_dequantise(dtype, bytes, k, row.data());
        }
        for (size_t i = 0; i < k; i++) {
            double value =
                dtype == DTYPE_I8 ? (double)(int8_t)bytes[i] * (double)scales[known ? (size_t)ids[r] : 0] : row[i];
            want.push_back(known ? value * (double)scale : 0);
            result.push_back((double)got[r * ldy + i]);
        }
        CHECK(got[r * ldy + k] == 7 && got[r * ldy + k + 2] == 7, "embed writes beside row %zu", r);
    }
    double error = relative_error(result, want);
    CHECK(error < 1e-7, "embed %s of %zu: error %.2g", info->name, k, error);
    /* ranks with rows [0, 3), [3, 8) and [8, 9): each token is one's, and zeros on the others */
    const size_t cuts[] = {0, 3, 8, n};
    for (int i = 0; i < 3; i++) {
        struct cuda_weight part = w;
        part.n = cuts[i + 1] - cuts[i];
        part.data = data.p + cuts[i] * row_bytes;
        part.scales = w.scales ? w.scales + cuts[i] : NULL;
        DONE(cuda_embed(y.p, ldy, &part, token_ids.p, (int32_t)cuts[i], ids.size(), scale, 0));
        std::vector<float> its = y.download();
        for (size_t r = 0; r < ids.size(); r++) {
            bool mine = ids[r] >= (int32_t)cuts[i] && ids[r] < (int32_t)cuts[i + 1];
            for (size_t j = 0; j < k; j++) {
                CHECK(its[r * ldy + j] == (mine ? got[r * ldy + j] : 0), "embed %s, rows from %zu: token %d", info->name, cuts[i],
                      ids[r]);
            }
        }
    }
}

/* ---- rope_kv.cu ---- */

static void test_rope(size_t heads, size_t head_dim, size_t n_rot, enum rope_style style, float mscale) {
    const std::vector<int32_t> positions = {0, 1, 77, 4095, 100000, 1000003};
    const size_t rows = positions.size(), ld = heads * head_dim + 3;
    std::vector<float> inv_freq(n_rot / 2);
    for (size_t i = 0; i < n_rot / 2; i++) {
        inv_freq[i] = (float)pow(10000, -2.0 * (double)i / (double)n_rot);
    }
    std::vector<uint16_t> x = random_bf16(rows * ld, 3);
    device_array<uint16_t> memory(x);
    device_array<float> freq(inv_freq);
    device_array<int32_t> at(positions);
    struct rope_table table = {freq.p, n_rot, mscale, style};
    DONE(cuda_rope(memory.p, ld, heads, head_dim, at.p, rows, &table, 0));
    std::vector<uint16_t> got = memory.download();
    std::vector<double> head(head_dim);
    for (size_t r = 0; r < rows; r++) {
        std::vector<double> want, result;
        for (size_t h = 0; h < heads; h++) {
            for (size_t i = 0; i < head_dim; i++) {
                head[i] = reference_bf16(x[r * ld + h * head_dim + i]);
                result.push_back(reference_bf16(got[r * ld + h * head_dim + i]));
            }
            reference_rope(head.data(), n_rot, style, inv_freq.data(), (double)mscale, positions[r]);
            want.insert(want.end(), head.begin(), head.end());
        }
        double error = relative_error(result, want), most = 0;
        for (size_t i = 0; i < want.size();
             i++) { /* of BF16 half a last place, and 1e-3 of its size would be too far */
            most = fmax(most, fabs(result[i] - want[i]) - fabs(want[i]) / 256);
        }
        note(&worst_rope, error);
        CHECK(error < 3e-3 && most < 3e-6, "rope of %zu in %zu at %d: error %.2g, %.2g", n_rot, head_dim, positions[r],
              error, most);
        for (size_t i = heads * head_dim; i < ld; i++) {
            CHECK(got[r * ld + i] == x[r * ld + i], "rope writes beside row %zu", r);
        }
    }
}

/* K and V stored by the CPU backend, from the same values, are the same bytes. */
static void test_kv_store(enum dtype dtype, size_t n_kv_heads, size_t head_dim, size_t block_size) {
    const std::vector<int32_t> slots = {(int32_t)block_size + 3, -1, 2, 3 * (int32_t)block_size - 1, 0};
    const size_t rows = slots.size(), n_heads = 3, width = n_kv_heads * head_dim,
                 ld = n_heads * head_dim + 2 * width + 1;
    const size_t bytes = kv_layer_bytes(dtype, 3, block_size, n_kv_heads, head_dim);
    std::vector<uint16_t> qkv = random_bf16(rows * ld, 3);
    uint16_t *k0 = &qkv[n_heads * head_dim];
    for (size_t i = 0; i < head_dim; i++) {
        k0[i] = 0;                                                 /* no scale */
        k0[2 * ld + i] = reference_to_bf16(random_unit() * 1e-7);  /* a subnormal one, or 0 */
        k0[3 * ld + i] = reference_to_bf16(random_unit() * 1.2e7); /* too large */
    }
    k0[4 * ld] = 0x7fc0; /* NaN */

    struct error err;
    const struct backend_ops *cpu;
    struct backend *backend = NULL;
    struct backend_config config = {};
    config.threads = 1, config.max_rows = rows;
    bool open = backend_find("cpu", NULL, &cpu, &err) == 0 && cpu->open(&config, &backend, &err) == 0;
    CHECK(open, "no CPU backend");
    if (!open) {
        return;
    }
    std::vector<uint8_t> want(bytes, 0xa5);
    struct kv_layer kv = {want.data(), dtype, 3, block_size, n_kv_heads, head_dim};
    for (size_t r = 0; r < rows; r++) {
        std::vector<float> k(width), v(width);
        for (size_t i = 0; i < width; i++) {
            k[i] = f32_of_bf16(k0[r * ld + i]), v[i] = f32_of_bf16(k0[r * ld + width + i]);
        }
        if (slots[r] >= 0) {
            CHECK(cpu->kv_store(backend, &kv, k.data(), width, v.data(), width, &slots[r], 1, &err) == 0, "%s",
                  err.message);
        }
    }
    cpu->close(backend);

    device_array<uint16_t> x(qkv);
    device_array<uint8_t> memory(std::vector<uint8_t>(bytes, 0xa5));
    device_array<int32_t> slot_mapping(slots);
    kv.data = memory.p;
    uint16_t *k = x.p + n_heads * head_dim;
    DONE(cuda_kv_store(&kv, k, ld, k + width, ld, slot_mapping.p, rows, 0));
    std::vector<uint8_t> got = memory.download();
    size_t wrong = 0;
    for (size_t i = 0; i < bytes; i += 2) { /* any NaN will do */
        uint16_t a, b;
        memcpy(&a, &got[i], 2), memcpy(&b, &want[i], 2);
        bool nan = dtype == DTYPE_F16 ? isnan(reference_f16(a)) && isnan(reference_f16(b))
                                      : isnan(reference_bf16(a)) && isnan(reference_bf16(b));
        wrong += a != b && !(nan && dtype != DTYPE_I8) && !(a >> 10 == 0x1f && b >> 10 == 0x1f);
    }
    CHECK(wrong == 0, "kv_store dtype %d, %zu x %zu, blocks of %zu: %zu of %zu differ from the CPU's", (int)dtype,
          n_kv_heads, head_dim, block_size, wrong, bytes / 2);

    /* Fused is rope, then store. */
    std::vector<float> inv_freq = random_f32(head_dim / 2, 1);
    const std::vector<int32_t> positions = {5, 0, 123, 9, 40000};
    device_array<float> freq(inv_freq);
    device_array<int32_t> at(positions);
    struct rope_table table = {freq.p, head_dim / 2 * 2, 1, ROPE_HALVES};
    device_array<uint8_t> memory2(std::vector<uint8_t>(bytes, 0xa5));
    device_array<uint16_t> x2(qkv);
    DONE(cuda_rope(x.p, ld, n_heads + n_kv_heads, head_dim, at.p, rows, &table, 0));
    DONE(cuda_kv_store(&kv, k, ld, k + width, ld, slot_mapping.p, rows, 0));
    kv.data = memory2.p;
    DONE(cuda_rope_kv_store(x2.p, ld, n_heads, n_kv_heads, head_dim, at.p, slot_mapping.p, rows, &table, &kv, 0));
    CHECK(memory.download() == memory2.download() && x.download() == x2.download(),
          "rope_kv_store dtype %d, %zu x %zu: not rope and kv_store", (int)dtype, n_kv_heads, head_dim);

    /* Copies, one after the other. */
    const std::vector<int32_t> from = {0, 1, 0}, to = {1, 2, 0};
    device_array<int32_t> from_memory(from), to_memory(to);
    std::vector<uint8_t> blocks = memory2.download();
    DONE(cuda_kv_copy(&kv, from_memory.p, to_memory.p, from.size(), 0));
    std::vector<uint8_t> copied = memory2.download();
    size_t block = bytes / 3;
    CHECK(memcmp(&copied[0], &blocks[0], block) == 0 && memcmp(&copied[block], &blocks[0], block) == 0 &&
              memcmp(&copied[2 * block], &blocks[0], block) == 0,
          "kv_copy dtype %d, blocks of %zu bytes", (int)dtype, block);
}

int main() {
    struct emu_options options;
    emu_default_options(&options);
    options.alignment = 16;
    if (emu_configure(&options) != cudaSuccess) {
        return 1;
    }
    for (size_t n : sizes) {
        for (enum activation_quant kind : {ACTIVATION_I8_TOKEN, ACTIVATION_I8_TOKEN_ZERO, ACTIVATION_I8_STATIC}) {
            test_quantise(n, n + 3, 0, kind);
            test_quantise(n, (n + 7) / 8 * 8, 16, kind);
        }
        test_add_rms_norm(n, n % 8 == 0 ? 8 : 1, 16, true);
        test_add_rms_norm(n, 1, 2, n % 2 == 0);
        test_rms_norm(1, n, n % 8 == 0 ? 8 : 3, 16, n % 2 == 0);
        test_silu(n, n % 8 == 0 ? 8 : 3, 16, ACTIVATION_SILU);
        test_silu(n, 1, 2, ACTIVATION_GELU_TANH);
        for (enum dtype dtype : {DTYPE_F32, DTYPE_BF16}) {
            test_gather(n, n + 1, n + 2, dtype);
            test_gather(n, (n + 7) / 8 * 8, (n + 7) / 8 * 8 + 8, dtype);
        }
        for (enum dtype dtype : {DTYPE_F32, DTYPE_F16, DTYPE_BF16, DTYPE_I8}) {
            test_embed(dtype, n, n % 2 == 0 ? 1 : 24);
        }
    }
    for (enum dtype dtype :
         {DTYPE_Q4_0, DTYPE_Q4_1, DTYPE_Q5_0, DTYPE_Q5_1, DTYPE_Q8_0, DTYPE_Q4_K, DTYPE_Q5_K, DTYPE_Q6_K}) {
        for (size_t blocks : {size_t(1), size_t(3), size_t(9)}) {
            test_embed(dtype, blocks * dtype_info(dtype)->block, 1.5f);
        }
    }
    /* Blocks of more than 256 threads, where rows are few; of 1024 with more than a vector a thread. */
    for (size_t n : {size_t(2500), size_t(8210)}) {
        test_quantise(n, n + 3, 0, ACTIVATION_I8_TOKEN);
        test_quantise(n, (n + 7) / 8 * 8, 16, ACTIVATION_I8_TOKEN_ZERO);
        test_silu(n, 3, 16, ACTIVATION_SILU);
    }
    test_quantise(2500, 2504, 16, ACTIVATION_I8_TOKEN, 65);
    test_silu(2500, 4, 16, ACTIVATION_GELU_TANH, 65);
    test_rms_norm(5, 64, 8, 16, true);
    test_rms_norm(3, 34, 1, 2, true);
    test_rms_norm(2, 520, 0, 16, false);
    test_rms_norm(2, 1001, 1, 2, false);
    test_convert();
    for (enum rope_style style : {ROPE_INTERLEAVED, ROPE_HALVES}) {
        test_rope(9, 64, 64, style, 1);
        test_rope(2, 128, 32, style, 1.25f);
        test_rope(1, 6, 2, style, 1);
    }
    for (enum dtype dtype : {DTYPE_F16, DTYPE_BF16, DTYPE_I8}) {
        test_kv_store(dtype, 2, 64, 16);
        test_kv_store(dtype, 5, 34, 8);
        test_kv_store(dtype, 1, 128, 64);
    }
    printf("largest errors: norm %.2g, silu %.2g, rope %.2g\n", worst_norm, worst_silu, worst_rope);
    return finish("test_kernels_rows");
}
