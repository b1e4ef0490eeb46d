/*
 * The launchers: one function for each operation, in the .cu file of its name. All of them queue on `stream` and return
 * the error of the launch; none waits, none allocates. Pointers are device memory unless said otherwise; activations
 * are BF16, row-major, strides in elements. Shapes, formulas and rounding are described in the .cu files. Any rows >= 1
 * (0: nothing happens).
 *
 * On the emulator these are the same functions, compiled by the host compiler.
 */
#ifndef INFERD_CUDA_LAUNCH_H
#define INFERD_CUDA_LAUNCH_H

#include <cuda_runtime.h>
#include <inferd/backend.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A weight on the device. I8: rows of k_padded bytes (k up to a multiple of ROWS_I8_PAD, zeros behind k), scales[n].
 * BF16, F32: rows of k elements. GGUF blocks: as in the file, row by row (row_bytes). data lies at a multiple of 16
 * bytes. */
struct cuda_weight {
    enum dtype dtype;
    enum activation_quant activation;
    size_t n, k, k_padded, row_bytes;
    const void *data;
    const float *scales;
    float input_scale;
    int32_t input_zero_point;
    const int32_t *row_sums; /* [n] sum of each row of an I8 weight, for zero points; NULL if not needed */
};

/* Numbers of the device that geometry depends on. */
struct cuda_device {
    int sm_count;
    size_t shared_optin; /* bytes a block may have */
    int compute;         /* 80, 90, ... */
};

/* Once for each device, before the launches of that file: what is needed of dynamic shared memory is allowed. */
cudaError_t cuda_prepare_gemm_i8(const struct cuda_device *device);
cudaError_t cuda_prepare_gemm_float(const struct cuda_device *device);
cudaError_t cuda_prepare_attention(const struct cuda_device *device);

/* ---- rows: rows.cu, norm.cu, silu.cu, embed.cu ---- */

/* q, scales of x[rows][ldx], k columns; by `kind`: I8_TOKEN, I8_TOKEN_ZERO (zero_points[rows] too) or I8_STATIC (scale,
 * zero point given). Columns k .. q.ld are zeroed. */
cudaError_t cuda_quantise_rows(const struct rows_i8 *q, int32_t *zero_points, const void *x, size_t ldx, size_t rows,
                               size_t k, enum activation_quant kind, float scale, int32_t zero_point,
                               cudaStream_t stream);
cudaError_t cuda_rms_norm(void *y, size_t ldy, const void *x, size_t ldx, const float *w, size_t rows, size_t groups,
                          size_t dim, float eps, cudaStream_t stream);
cudaError_t cuda_add_rms_norm(void *y, size_t ldy, const struct rows_i8 *q, float *x, size_t ldx, const void *residual,
                              size_t ldr, const float *w, size_t rows, size_t dim, float eps, cudaStream_t stream);
/* q NULL: y (BF16), else quantised. y may be gate. */
cudaError_t cuda_silu_mul(void *y, size_t ldy, const struct rows_i8 *q, const void *gate, size_t ldg, const void *up,
                          size_t ldu, size_t rows, size_t dim, enum activation activation, cudaStream_t stream);
cudaError_t cuda_embed(float *y, size_t ldy, const struct cuda_weight *table, const int32_t *token_ids, int32_t first, size_t rows,
                       float scale, cudaStream_t stream);
cudaError_t cuda_gather_rows(enum dtype dtype, void *y, size_t ldy, const void *x, size_t ldx, const int32_t *index,
                             size_t n, size_t dim, cudaStream_t stream);
/* epilogue.cu: y[r][j] = x[r][j] (+ bias[j] where that is not NULL), one rounding; both BF16 or F32; y may be x; x NULL: zeros */
cudaError_t cuda_add_bias(void *y, size_t ldy, enum dtype y_dtype, const void *x, size_t ldx, enum dtype x_dtype,
                          const float *bias, size_t rows, size_t n, cudaStream_t stream);
cudaError_t cuda_convert(void *y, enum dtype to, const void *x, enum dtype from, size_t n, cudaStream_t stream);

/* ---- products: gemm_i8.cu, gemv_i8.cu; gemm_float.cu, gemv_float.cu (weight-only I8, BF16, GGUF blocks) ---- */

/* One part of a product: y[rows][ldy] of y_dtype (BF16 or F32) = x W^T (+ bias[n]). */
struct cuda_part {
    const struct cuda_weight *w;
    const float *bias;
    void *y;
    size_t ldy;
    enum dtype y_dtype;
};
/* W8A8: y = s_token[m] * s_channel[n] * (sum q W - zero_point * row_sum). `workspace`: split-K partials, int32, see
 * cuda_gemm_i8_workspace. The exact integer sum in all of them: the choice of kernel never changes a bit. */
cudaError_t cuda_gemm_i8(const struct cuda_device *device, const struct rows_i8 *x, const int32_t *zero_points,
                         size_t rows, const struct cuda_part *part, void *workspace, size_t workspace_bytes,
                         cudaStream_t stream);
size_t cuda_gemm_i8_workspace(const struct cuda_device *device, size_t max_rows, size_t n, size_t k);
/* dp4a, rows <= CUDA_GEMV_ROWS; up to 3 parts in one launch. */
#define CUDA_GEMV_ROWS 8
cudaError_t cuda_gemv_i8(const struct cuda_device *device, const struct rows_i8 *x, const int32_t *zero_points,
                         size_t rows, const struct cuda_part *parts, size_t n_parts, cudaStream_t stream);
/* x BF16 [rows][ldx]; weights of I8 (weight-only), BF16 or GGUF blocks. GEMV: rows <= CUDA_GEMV_ROWS. */
cudaError_t cuda_gemv_float(const struct cuda_device *device, const void *x, size_t ldx, size_t rows,
                            const struct cuda_part *parts, size_t n_parts, cudaStream_t stream);
cudaError_t cuda_gemm_float(const struct cuda_device *device, const void *x, size_t ldx, size_t rows,
                            const struct cuda_part *part, cudaStream_t stream);

/* ---- attention: rope_kv.cu, attention.cu ---- */

cudaError_t cuda_rope(void *x, size_t ldx, size_t heads, size_t head_dim, const int32_t *positions, size_t rows,
                      const struct rope_table *table, cudaStream_t stream);
cudaError_t cuda_kv_store(const struct kv_layer *kv, const void *k, size_t ldk, const void *v, size_t ldv,
                          const int32_t *slot_mapping, size_t rows, cudaStream_t stream);
cudaError_t cuda_rope_kv_store(void *qkv, size_t ld, size_t n_heads, size_t n_kv_heads, size_t head_dim,
                               const int32_t *positions, const int32_t *slot_mapping, size_t rows,
                               const struct rope_table *table, const struct kv_layer *kv, cudaStream_t stream);
/* from, to: device memory */
cudaError_t cuda_kv_copy(const struct kv_layer *kv, const int32_t *from, const int32_t *to, size_t n,
                         cudaStream_t stream);
/* KV is cut into runs of CUDA_KV_SPLIT tokens, doubled until a row's context has at most CUDA_KV_RUNS of them; each run
 * is summed by itself (online softmax) and runs are joined in order, whether one block walks all of them or several
 * share them: the result does not depend on the company. block_size is a power of two, at least 8; head_dim is even, at
 * most CUDA_MAX_HEAD_DIM. `workspace` is 16-byte aligned; any size does, but less than cuda_attention_workspace says
 * may leave multiprocessors idle. */
#define CUDA_KV_SPLIT 256
#define CUDA_KV_RUNS 32
#define CUDA_MAX_HEAD_DIM 256
cudaError_t cuda_attention(const struct cuda_device *device, const struct attention_args *args, void *workspace,
                           size_t workspace_bytes, cudaStream_t stream);
size_t cuda_attention_workspace(const struct cuda_device *device, size_t max_sequences, size_t n_heads,
                                size_t n_kv_heads, size_t head_dim, size_t max_context);

/* ---- ranks: collective.cu ---- */

/* all[rows][size * bytes] from parts[size][rows][bytes]. */
cudaError_t cuda_join_columns(void *all, const void *parts, size_t rows, size_t bytes, size_t size, cudaStream_t stream);
/* y[n] = the sum, in order, of parts[size][stride], of which part `own` lies at mine[n] if that is not NULL; y may be mine. */
cudaError_t cuda_sum_parts(void *y, const void *parts, size_t stride, const void *mine, size_t size, size_t own, enum dtype dtype,
                           size_t n, cudaStream_t stream);

/* ---- sampling: sample.cu ---- */

/* A choice_row as the kernel reads it; edits index into one array. */
struct cuda_choice {
    uint32_t logits_row, first_edit, n_edits, top_k, min_keep;
    float repetition_penalty, frequency_penalty, presence_penalty;
    float temperature, top_p, min_p;
    uint8_t greedy, n_stages, stages[CHOICE_STAGES];
    uint64_t random;
};
/* tokens[n], n <= CUDA_CHOICE_ROWS; logits[..][ld]; workspace: cuda_choose_workspace bytes. */
#define CUDA_CHOICE_ROWS 64
#define CUDA_CHOICE_EDITS 65536 /* of one call of the operation */
cudaError_t cuda_choose(const float *logits, size_t ld, size_t vocab_size, const struct cuda_choice *choices,
                        const struct logit_edit *edits, size_t n, int32_t *tokens, void *workspace,
                        cudaStream_t stream);
size_t cuda_choose_workspace(size_t vocab_size);
/* The same of greedy rows without edits whose logits several ranks have (best.cu): finds[rows] among columns part[..][ld], n of them,
 * from id `first` on; then tokens[rows] from finds[size][rows]. */
cudaError_t cuda_best_of_part(const float *part, size_t ld, size_t first, size_t n, const struct cuda_choice *choices, size_t rows,
                              uint64_t *finds, cudaStream_t stream);
cudaError_t cuda_best_of_ranks(const uint64_t *finds, size_t size, size_t rows, int32_t *tokens, cudaStream_t stream);
/*
 * The same of rows without edits that look at no more than the k best of their logits (sample.cu). cuda_top_of_part: parts[rows][k] of
 * this rank, z CUDA_NO_CANDIDATE where it has fewer, NaN if one of its logits is no finite number. cuda_choose_candidates: tokens[rows] from
 * parts[size][rows][k], rows <= CUDA_CHOICE_ROWS; workspace: cuda_candidates_bytes.
 */
struct cuda_candidate {
    float z;
    int32_t id;
};
#define CUDA_NO_CANDIDATE (-3.402823466e+38f) /* below every other, and finite */
static inline size_t cuda_candidates_bytes(size_t rows, size_t size, size_t k) {
    return rows * size * k * (sizeof(float) + sizeof(int32_t));
}
cudaError_t cuda_top_of_part(const float *part, size_t ld, size_t first, size_t n, const struct cuda_choice *choices, size_t rows, size_t k,
                             struct cuda_candidate *out, cudaStream_t stream);
cudaError_t cuda_choose_candidates(const struct cuda_candidate *parts, size_t size, size_t k, const struct cuda_choice *choices, size_t rows,
                                   int32_t *tokens, void *workspace, cudaStream_t stream);
/* token_ids[i] below 0, i < n, becomes tokens[-1 - token_ids[i]], or 0 where that is no token. */
cudaError_t cuda_feed(int32_t *token_ids, const int32_t *tokens, size_t n, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
