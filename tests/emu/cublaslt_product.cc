/*
 * The products of the stand-in of cuBLASLt: slow, but exact where integers are.
 *
 * The order of a sum: `lanes` (by tile) running sums over k in steps of lanes, within pieces of `chunk` (by stages),
 * piece after piece, and all of that in each of split-K equal ranges; ranges are added in order. It depends on the
 * algorithm and k alone, never on the number of columns. All sums of floats are F32.
 */
#include "cublaslt_inside.h"
#include "runtime.h"

#include <algorithm>
#include <math.h>
#include <string.h>

using namespace emu;

namespace {

float half_to_float(uint16_t h) {
    uint32_t sign = uint32_t(h & 0x8000u) << 16, e = h >> 10 & 31u, f = h & 1023u;
    float v;
    if (e == 0) {
        v = ldexpf(float(f), -24);
        return sign ? -v : v;
    }
    uint32_t bits = sign | (e == 31 ? 0x7f800000u | f << 13 : (e + 112) << 23 | f << 13);
    memcpy(&v, &bits, 4);
    return v;
}

/* To nearest even, of the float's bits; NaN stays one. */
uint16_t float_to_half(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    uint32_t sign = bits >> 16 & 0x8000u, a = bits & 0x7fffffffu;
    if (a > 0x7f800000u) {
        return uint16_t(sign | 0x7fffu);
    }
    if (a >= 0x47800000u) { /* 2^16 */
        return uint16_t(sign | 0x7c00u);
    }
    if (a < 0x38800000u) { /* below 2^-14: units of 2^-24; rintf is to nearest even */
        return uint16_t(sign | uint32_t(rintf(fabsf(x) * 16777216.0f)));
    }
    uint32_t rounded = a + 0xfffu + (a >> 13 & 1u);
    return uint16_t(sign | (rounded - 0x38000000u) >> 13);
}

uint16_t float_to_bfloat(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        return 0x7fff;
    }
    return uint16_t((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

/* 10 bits of fraction, to nearest even. */
float to_tf32(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    if ((bits & 0x7f800000u) != 0x7f800000u) {
        bits = (bits + 0xfffu + (bits >> 13 & 1u)) & ~0x1fffu;
        memcpy(&x, &bits, 4);
    }
    return x;
}

float read_float(const void *p, int type, size_t i) {
    uint32_t bits;
    float v;
    switch (type) {
    case CUDA_R_16BF:
        bits = uint32_t(static_cast<const uint16_t *>(p)[i]) << 16;
        memcpy(&v, &bits, 4);
        return v;
    case CUDA_R_16F:
        return half_to_float(static_cast<const uint16_t *>(p)[i]);
    case CUDA_R_8I:
        return float(static_cast<const int8_t *>(p)[i]);
    default:
        return static_cast<const float *>(p)[i];
    }
}

void write_float(void *p, int type, size_t i, float v) {
    switch (type) {
    case CUDA_R_16BF:
        static_cast<uint16_t *>(p)[i] = float_to_bfloat(v);
        break;
    case CUDA_R_16F:
        static_cast<uint16_t *>(p)[i] = float_to_half(v);
        break;
    case CUDA_R_8I:
        static_cast<int8_t *>(p)[i] = int8_t(std::max(-128.0f, std::min(127.0f, rintf(v))));
        break;
    default:
        static_cast<float *>(p)[i] = v;
    }
}

template <int LANES> float dot_lanes(const float *a, const float *b, size_t n) {
    float acc[LANES] = {};
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        for (int l = 0; l < LANES; l++) {
            acc[l] += a[i + size_t(l)] * b[i + size_t(l)];
        }
    }
    for (int l = 0; i < n; i++, l++) {
        acc[l] += a[i] * b[i];
    }
    for (int width = LANES / 2; width > 0; width /= 2) {
        for (int l = 0; l < width; l++) {
            acc[l] += acc[l + width];
        }
    }
    return acc[0];
}

float dot_pieces(const Algo &algo, const float *a, const float *b, size_t n) {
    size_t chunk = algo.stages == CUBLASLT_MATMUL_STAGES_32x4 ? 32 * 4 : 64 * 3;
    float sum = 0;
    for (size_t i = 0; i < n; i += chunk) {
        size_t len = std::min(chunk, n - i);
        sum += algo.tile == CUBLASLT_MATMUL_TILE_64x64    ? dot_lanes<8>(a + i, b + i, len)
               : algo.tile == CUBLASLT_MATMUL_TILE_128x64 ? dot_lanes<16>(a + i, b + i, len)
                                                          : dot_lanes<32>(a + i, b + i, len);
    }
    return sum;
}

float dot_float(const Algo &algo, const float *a, const float *b, size_t k) {
    if (algo.id == ALGO_PLAIN) {
        return dot_lanes<4>(a, b, k);
    }
    size_t share = (k + size_t(algo.split_k) - 1) / size_t(algo.split_k);
    float sum = 0;
    for (size_t i = 0; i < k; i += share) {
        sum += dot_pieces(algo, a + i, b + i, std::min(share, k - i));
    }
    return sum;
}

int32_t dot_int(const int8_t *a, const int8_t *b, size_t k) {
    uint32_t sum = 0; /* wraps as the device's does */
    for (size_t i = 0; i < k; i++) {
        sum += uint32_t(int32_t(a[i]) * int32_t(b[i]));
    }
    return int32_t(sum);
}

size_t at(const Layout &l, size_t row, size_t col) {
    return l.order == CUBLASLT_ORDER_COL ? col * size_t(l.ld) + row : row * size_t(l.ld) + col;
}

size_t bytes_of(const Layout &l) {
    return (at(l, size_t(l.rows) - 1, size_t(l.cols) - 1) + 1) * size_of(l.type);
}

/* Row `i` of op(A) (or column of op(B)) as k floats. */
void load_vector(const Problem &p, const void *base, const Layout &l, bool across, size_t i, float *out) {
    bool whole = !across && l.order == CUBLASLT_ORDER_COL; /* a column, as our products have them */
    const uint16_t *halves = static_cast<const uint16_t *>(base) + (whole ? i * size_t(l.ld) : 0);
    if (whole && l.type == CUDA_R_16BF) {
        for (size_t j = 0; j < p.k; j++) {
            uint32_t bits = uint32_t(halves[j]) << 16;
            memcpy(&out[j], &bits, 4);
        }
    } else if (whole && l.type == CUDA_R_32F) {
        memcpy(out, static_cast<const float *>(base) + i * size_t(l.ld), p.k * 4);
    } else {
        for (size_t j = 0; j < p.k; j++) {
            out[j] = read_float(base, l.type, across ? at(l, i, j) : at(l, j, i));
        }
    }
    for (size_t j = 0; p.desc.compute == CUBLAS_COMPUTE_32F_FAST_TF32 && j < p.k; j++) {
        out[j] = to_tf32(out[j]);
    }
}

void run_int8(const Product &q, float alpha, float beta) {
    const Problem &p = q.p;
    for (size_t i = 0; i < p.m; i++) {
        for (size_t j = 0; j < p.n; j++) {
            int32_t sum = dot_int(static_cast<const int8_t *>(q.a) + i * size_t(p.a.ld),
                                  static_cast<const int8_t *>(q.b) + j * size_t(p.b.ld), p.k);
            size_t o = at(p.d, i, j);
            if (p.d.type == CUDA_R_32I) {
                int32_t before = q.beta_int != 0 ? static_cast<const int32_t *>(q.c)[at(p.c, i, j)] : 0;
                static_cast<int32_t *>(q.d)[o] =
                    int32_t(uint32_t(q.alpha_int) * uint32_t(sum) + uint32_t(q.beta_int) * uint32_t(before));
            } else {
                float s = q.alpha_vector ? static_cast<const float *>(q.alpha_device)[i] : alpha;
                float v = s * float(sum) + (beta != 0 ? beta * read_float(q.c, p.c.type, at(p.c, i, j)) : 0);
                v += p.desc.epilogue == CUBLASLT_EPILOGUE_BIAS ? read_float(p.desc.bias, p.desc.bias_type, i) : 0;
                write_float(q.d, p.d.type, o, v);
            }
        }
    }
}

void run_float(const Product &q, float alpha, float beta) {
    const Problem &p = q.p;
    std::vector<float> b(p.n * p.k), a(p.k);
    for (size_t j = 0; j < p.n; j++) {
        load_vector(p, q.b, p.b, p.desc.transb != CUBLAS_OP_N, j, b.data() + j * p.k);
    }
    for (size_t i = 0; i < p.m; i++) {
        load_vector(p, q.a, p.a, p.desc.transa == CUBLAS_OP_N, i, a.data());
        float bias = p.desc.epilogue == CUBLASLT_EPILOGUE_BIAS ? read_float(p.desc.bias, p.desc.bias_type, i) : 0;
        for (size_t j = 0; j < p.n; j++) {
            float v = alpha * dot_float(q.algo, a.data(), b.data() + j * p.k, p.k);
            v += beta != 0 ? beta * read_float(q.c, p.c.type, at(p.c, i, j)) : 0;
            write_float(q.d, p.d.type, at(p.d, i, j), v + bias);
        }
    }
}

/* Everything that the product touches, when it is done, must be memory of its device, or of one it may reach. */
cudaError_t check_memory(const Product &q, int device) {
    const Problem &p = q.p;
    const struct {
        const void *at;
        size_t size;
        const char *name;
    } parts[] = {
        {q.a, bytes_of(p.a), "A"},
        {q.b, bytes_of(p.b), "B"},
        {q.c, q.beta != 0 || q.beta_int != 0 || q.beta_device ? bytes_of(p.c) : 0, "C"},
        {q.d, bytes_of(p.d), "D"},
        {p.desc.bias, p.desc.epilogue == CUBLASLT_EPILOGUE_BIAS ? p.m * size_of(p.desc.bias_type) : 0, "the bias"},
        {q.alpha_device, q.alpha_device ? (q.alpha_vector ? p.m * 4 : 4) : 0, "alpha"},
        {q.beta_device, q.beta_device ? size_t(4) : 0, "beta"},
        {q.workspace, workspace_of(q.algo, p), "the workspace"},
    };
    Runtime &r = runtime();
    Lock lock(r.mutex);
    for (const auto &part : parts) {
        const Allocation *a;
        std::string why;
        if (part.size > 0 && !inside_allocation(r, part.at, part.size, &a, &why)) {
            return note(r, cudaErrorIllegalAddress, "cublasLtMatmul: %s: %s", part.name, why.c_str());
        }
        if (part.size > 0 && !a->host && a->device != device && !(r.devices[size_t(device)].peers >> a->device & 1u)) {
            return note(r, cudaErrorIllegalAddress, "cublasLtMatmul on device %d: %s lies on device %d", device,
                        part.name, a->device);
        }
    }
    return cudaSuccess;
}

} // namespace

cudaError_t emu::run_product(const Product &q, int device) {
    cudaError_t error = check_memory(q, device);
    if (error != cudaSuccess) {
        return error;
    }
    Product now = q;
    bool integer = q.p.desc.scale == CUDA_R_32I;
    if (q.alpha_device && !q.alpha_vector) {
        memcpy(integer ? static_cast<void *>(&now.alpha_int) : &now.alpha, q.alpha_device, 4);
    }
    if (q.beta_device) {
        memcpy(integer ? static_cast<void *>(&now.beta_int) : &now.beta, q.beta_device, 4);
    }
    if (workspace_of(q.algo, q.p) > 0) { /* partial sums: whatever was there is gone */
        memset(q.workspace, 0x5a, workspace_of(q.algo, q.p));
    }
    if (is_int8(q.p)) {
        run_int8(now, now.alpha, now.beta);
    } else {
        run_float(now, now.alpha, now.beta);
    }
    return cudaSuccess;
}
