/*
 * Weights onto the device, through pinned staging slots: I8 in rows padded with zeros to ROWS_I8_PAD, with scales, and
 * with row sums where activations have a zero point; F16 becomes BF16 on the way; BF16, F32 and GGUF blocks as they are.
 * What a weight will need of scratch is taken as it is loaded.
 */
#include "cuda.h"

#include <stdlib.h>
#include <string.h>

#define ALIGN 256u

static bool rounded(size_t n, size_t to, size_t *out) {
    return !__builtin_add_overflow(n, to - 1, out) && (*out -= *out % to, true);
}

/* ---- staging ------------------------------------------------------------------------------------------------- */

int cuda_upload(struct backend *b, void *dst, const void *src, size_t bytes, struct error *err) {
    TRY(cuda_alive(b, err));
    for (size_t at = 0; at < bytes;) {
        size_t n = bytes - at < b->staging.bytes ? bytes - at : b->staging.bytes;
        void *host;
        TRY(cuda_slot(b, &b->staging, &host, err));
        memcpy(host, (const char *)src + at, n);
        TRY(cuda_check(b, cudaMemcpyAsync((char *)dst + at, host, n, cudaMemcpyHostToDevice, b->stream),
                       "a copy to the device", err));
        TRY(cuda_slot_sent(b, &b->staging, err));
        at += n;
    }
    return 0;
}

/* To nearest even. Every F16 is a normal BF16 or zero, but for the last three bits. */
static uint16_t bf16_of_f16(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, rest = (uint32_t)(h & 0x7fffu) << 13, bits;
    float f;
    if (rest >= 0x0f800000u) { /* infinite or NaN */
        return (uint16_t)((sign | rest | 0x7f800000u) >> 16 | (rest & 0x7fffffu ? 0x40u : 0));
    }
    memcpy(&f, &rest, sizeof f);
    f *= 0x1p112f; /* the exponents' biases differ by 112 */
    memcpy(&bits, &f, sizeof bits);
    bits += 0x7fffu + (bits >> 16 & 1);
    return (uint16_t)((sign | bits) >> 16);
}

/* `n` elements from src, as they shall lie on the device. */
static void fill_halves(void *dst, const void *src, size_t n) {
    uint16_t *to = dst;
    const uint16_t *from = src;
    for (size_t i = 0; i < n; i++) {
        to[i] = bf16_of_f16(from[i]);
    }
}

static int upload_f16(struct backend *b, void *dst, const void *src, size_t elements, struct error *err) {
    for (size_t at = 0; at < elements;) {
        size_t most = b->staging.bytes / sizeof(uint16_t), n = elements - at < most ? elements - at : most;
        void *host;
        TRY(cuda_slot(b, &b->staging, &host, err));
        fill_halves(host, (const uint16_t *)src + at, n);
        TRY(cuda_check(b, cudaMemcpyAsync((uint16_t *)dst + at, host, n * sizeof(uint16_t), cudaMemcpyHostToDevice, b->stream),
                       "a copy to the device", err));
        TRY(cuda_slot_sent(b, &b->staging, err));
        at += n;
    }
    return 0;
}

/* sums[n]: NULL where nobody needs them */
static int upload_i8(struct backend *b, const struct cuda_weight *c, void *dst, const struct weight *w, int32_t *sums,
                     struct error *err) {
    if (w->k == 0) {
        return 0;
    }
    size_t most = b->staging.bytes / c->k_padded;
    if (most == 0) {
        return error_set(err, ERROR_UNSUPPORTED, "rows of %zu elements are longer than the CUDA backend takes", w->k);
    }
    for (size_t row = 0; row < w->n;) {
        size_t n = w->n - row < most ? w->n - row : most;
        void *host;
        TRY(cuda_slot(b, &b->staging, &host, err));
        for (size_t i = 0; i < n; i++) {
            const int8_t *from = (const int8_t *)w->data + (row + i) * w->row_bytes;
            int8_t *to = (int8_t *)host + i * c->k_padded;
            memcpy(to, from, w->k);
            memset(to + w->k, 0, c->k_padded - w->k);
            int32_t sum = 0;
            for (size_t j = 0; sums && j < w->k; j++) {
                sum += from[j];
            }
            if (sums) {
                sums[row + i] = sum;
            }
        }
        TRY(cuda_check(b, cudaMemcpyAsync((char *)dst + row * c->k_padded, host, n * c->k_padded, cudaMemcpyHostToDevice, b->stream),
                       "a copy to the device", err));
        TRY(cuda_slot_sent(b, &b->staging, err));
        row += n;
    }
    return 0;
}

/* ---- one weight ---------------------------------------------------------------------------------------------- */

static bool has_zero_point(const struct weight *w) {
    return w->activation == ACTIVATION_I8_TOKEN_ZERO || (w->activation == ACTIVATION_I8_STATIC && w->input_zero_point != 0);
}

static int load_i8(struct backend *b, struct cuda_loaded *l, const struct weight *w, struct error *err) {
    struct cuda_weight *c = &l->w;
    size_t data, scales, sums = 0, bytes;
    if (!rounded(w->k, ROWS_I8_PAD, &c->k_padded) || __builtin_mul_overflow(c->k_padded, w->n, &data) ||
        !rounded(data, ALIGN, &data) || __builtin_mul_overflow(w->n, sizeof(float), &scales) ||
        !rounded(scales, ALIGN, &scales)) {
        return error_memory(err);
    }
    sums = has_zero_point(w) ? scales : 0;
    bytes = data + scales + sums;
    c->row_bytes = c->k_padded;
    TRY(cuda_check(b, cudaMalloc(&l->memory, bytes > 0 ? bytes : 1), "allocating a weight", err));
    c->data = l->memory;
    c->scales = (const float *)(const void *)((char *)l->memory + data);
    int32_t *host_sums = NULL;
    if (sums) {
        c->row_sums = (const int32_t *)(const void *)((char *)l->memory + data + scales);
        host_sums = malloc(w->n * sizeof *host_sums);
        if (!host_sums) {
            return error_memory(err);
        }
    }
    int rc = upload_i8(b, c, l->memory, w, host_sums, err);
    if (rc == 0 && sums) {
        rc = cuda_upload(b, (char *)l->memory + data + scales, host_sums, w->n * sizeof *host_sums, err);
    }
    free(host_sums);
    return rc < 0 ? -1 : cuda_upload(b, (char *)l->memory + data, w->scales, w->n * sizeof(float), err);
}

static int load_other(struct backend *b, struct cuda_loaded *l, const struct weight *w, struct error *err) {
    size_t bytes;
    if (__builtin_mul_overflow(w->n, w->row_bytes, &bytes)) {
        return error_memory(err);
    }
    TRY(cuda_check(b, cudaMalloc(&l->memory, bytes > 0 ? bytes : 1), "allocating a weight", err));
    l->w.data = l->memory;
    l->w.row_bytes = w->row_bytes;
    l->w.k_padded = w->k;
    if (w->dtype == DTYPE_F16) {
        l->w.dtype = DTYPE_BF16;
        return upload_f16(b, l->memory, w->data, w->n * w->k, err);
    }
    return cuda_upload(b, l->memory, w->data, bytes, err);
}

/* Scratch for products with this weight, of up to max_rows rows. */
static int take_scratch(struct backend *b, const struct cuda_weight *w, struct error *err) {
    size_t rows = b->max_rows;
    if (w->n == 0 || w->k == 0) {
        return 0;
    }
    if (w->dtype == DTYPE_I8 && w->activation != ACTIVATION_FLOAT) {
        TRY(cuda_grow(b, &b->rows_q, rows * w->k_padded, "quantised rows", err));
        TRY(cuda_grow(b, &b->rows_scales, rows * sizeof(float), "quantised rows", err));
        TRY(cuda_grow(b, &b->rows_zeros, rows * sizeof(int32_t), "quantised rows", err));
        TRY(cuda_grow(b, &b->scratch, cuda_gemm_i8_workspace(&b->device, rows, w->n, w->k), "the workspace of products", err));
    }
    if (w->dtype == DTYPE_F32) {
        TRY(cuda_grow(b, &b->wide_x, rows * w->k * sizeof(float), "rows of F32", err));
        TRY(cuda_grow(b, &b->wide_y, rows * w->n * sizeof(float), "rows of F32", err));
    }
    return 0;
}

static bool is_known(enum dtype t) {
    return t < DTYPE_COUNT && t != DTYPE_I32;
}

int cuda_weight_load(struct backend *b, struct weight *w, struct error *err) {
    TRY(cuda_alive(b, err));
    if (!is_known(w->dtype)) {
        return error_set(err, ERROR_UNSUPPORTED, "the CUDA backend does not compute with a matrix of this type or shape");
    }
    struct cuda_loaded *l = calloc(1, sizeof *l);
    if (!l) {
        return error_memory(err);
    }
    l->w = (struct cuda_weight){.dtype = w->dtype,
                                .activation = w->activation,
                                .n = w->n,
                                .k = w->k,
                                .input_scale = w->input_scale,
                                .input_zero_point = w->input_zero_point};
    int rc = w->dtype == DTYPE_I8 ? load_i8(b, l, w, err) : load_other(b, l, w, err);
    if (rc < 0 || take_scratch(b, &l->w, err) < 0) {
        cudaStreamSynchronize(b->stream); /* copies into it may be under way */
        cudaFree(l->memory);
        free(l);
        return error_prefix(err, "a weight of %zu x %zu", w->n, w->k);
    }
    w->data = l->memory;
    w->packed = l;
    w->row_bytes = l->w.row_bytes;
    return 0;
}

void cuda_weight_unload(struct backend *b, struct weight *w) {
    struct cuda_loaded *l = w->packed;
    cuda_use(b);
    if (l) {
        cudaFree(l->memory);
        free(l);
    }
    w->packed = NULL;
    w->data = NULL;
}
