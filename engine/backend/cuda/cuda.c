/* The CUDA backend: opening, errors, memory, and the table of operations. */
#include "cuda.h"

#include "collective.h"
#include "cublas.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STAGING_BYTES ((size_t)16 << 20)

/* ---- errors -------------------------------------------------------------------------------------------------- */

/* After these the context still works. */
static bool is_harmless(cudaError_t rc) {
    switch (rc) {
    case cudaErrorMemoryAllocation:
    case cudaErrorInvalidValue:
    case cudaErrorInvalidConfiguration:
    case cudaErrorLaunchOutOfResources:
    case cudaErrorStreamCaptureUnsupported:
    case cudaErrorStreamCaptureInvalidated:
    case cudaErrorStreamCaptureImplicit:
        return true;
    default:
        return false;
    }
}

int cuda_check(struct backend *b, cudaError_t rc, const char *what, struct error *err) {
    if (rc == cudaSuccess) {
        return 0;
    }
    (void)cudaGetLastError(); /* so that the next call is not blamed */
    /* Once it serves, nothing is taken any more and nothing may fail: what was queued behind this call is in doubt. */
    error_set(err, rc == cudaErrorMemoryAllocation && !b->ready ? ERROR_DOES_NOT_FIT : ERROR_DEVICE,
              "CUDA device %d: %s failed: %s", b->ordinal, what, cudaGetErrorString(rc));
    if (b->ready || !is_harmless(rc)) {
        b->lost = *err;
    }
    return -1;
}

/* Threads come to several backends: a test's, or one that opens for others. */
void cuda_use(const struct backend *b) {
    static _Thread_local int current = -1;
    if (current != b->ordinal && cudaSetDevice(b->ordinal) == cudaSuccess) {
        current = b->ordinal;
    }
}

int cuda_wait(struct backend *b, cudaEvent_t event, const char *what, struct error *err) {
    if (b->group) {
        return cuda_group_wait(b->group, event, what, err);
    }
    return cuda_check(b, event ? cudaEventSynchronize(event) : cudaStreamSynchronize(b->stream), what, err);
}

int cuda_alive(const struct backend *b, struct error *err) {
    cuda_use(b);
    if (b->lost.code != ERROR_NONE) {
        *err = b->lost;
        return -1;
    }
    return 0;
}

/* ---- memory -------------------------------------------------------------------------------------------------- */

int cuda_grow(struct backend *b, struct cuda_buffer *buffer, size_t bytes, const char *what, struct error *err) {
    if (bytes <= buffer->bytes) {
        return 0;
    }
    TRY(cuda_alive(b, err));
    if (b->fixed || b->capturing) {
        return error_set(err, ERROR_INTERNAL, "%s needs %zu bytes, and %zu were reserved", what, bytes, buffer->bytes);
    }
    TRY(cuda_wait(b, NULL, what, err));
    TRY(cuda_check(b, cudaFree(buffer->data), what, err));
    *buffer = (struct cuda_buffer){0};
    if (cuda_check(b, cudaMalloc(&buffer->data, bytes), what, err) < 0) {
        return error_prefix(err, "%zu MiB", bytes >> 20);
    }
    buffer->bytes = bytes;
    return 0;
}

int cuda_slots_open(struct backend *b, struct cuda_slots *s, size_t bytes, struct error *err) {
    for (size_t i = 0; i < CUDA_SLOTS; i++) {
        TRY(cuda_check(b, cudaHostAlloc(&s->slots[i].host, bytes, cudaHostAllocDefault), "pinned host memory", err));
        TRY(cuda_check(b, cudaEventCreateWithFlags(&s->slots[i].copied, cudaEventDisableTiming), "an event", err));
    }
    s->bytes = bytes;
    return 0;
}

void cuda_slots_close(struct cuda_slots *s) {
    for (size_t i = 0; i < CUDA_SLOTS; i++) {
        if (s->slots[i].copied) {
            cudaEventDestroy(s->slots[i].copied);
        }
        if (s->slots[i].host) {
            cudaFreeHost(s->slots[i].host);
        }
    }
    *s = (struct cuda_slots){0};
}

int cuda_slot(struct backend *b, struct cuda_slots *s, void **host, struct error *err) {
    if (s->slots[s->next].used) {
        TRY(cuda_wait(b, s->slots[s->next].copied, "waiting for a copy", err));
    }
    *host = s->slots[s->next].host;
    return 0;
}

int cuda_slot_sent(struct backend *b, struct cuda_slots *s, struct error *err) {
    TRY(cuda_check(b, cudaEventRecord(s->slots[s->next].copied, b->stream), "an event", err));
    s->slots[s->next].used = true;
    s->next = (s->next + 1) % CUDA_SLOTS;
    return 0;
}

static int cuda_alloc(struct backend *b, size_t bytes, void **out, struct error *err) {
    void *p;
    TRY(cuda_alive(b, err));
    TRY(cuda_check(b, cudaMalloc(&p, bytes ? bytes : 1), "allocating memory", err));
    if (cuda_check(b, cudaMemsetAsync(p, 0, bytes ? bytes : 1, b->stream), "clearing memory", err) < 0) {
        cudaFree(p);
        return -1;
    }
    *out = p;
    return 0;
}

/* Frees wait for the device. */
static void before_free(struct backend *b) {
    cuda_use(b);
    if (b->group) {
        cuda_group_settle(b->group);
    }
}

static void cuda_free(struct backend *b, void *p) {
    before_free(b);
    if (p) {
        cudaFree(p); /* waits for what still uses it */
    }
}

static int cuda_download(struct backend *b, void *dst, const void *src, size_t bytes, struct error *err) {
    TRY(cuda_alive(b, err));
    if (bytes == 0) {
        return 0;
    }
    TRY(b->group ? cuda_wait(b, NULL, "a copy to the host", err) : 0); /* a copy to memory that is not pinned waits by itself */
    TRY(cuda_check(b, cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToHost, b->stream), "a copy to the host", err));
    return cuda_wait(b, NULL, "a copy to the host", err);
}

static int cuda_host_alloc(struct backend *b, size_t bytes, void **out, struct error *err) {
    void *p;
    TRY(cuda_alive(b, err));
    TRY(cuda_check(b, cudaHostAlloc(&p, bytes ? bytes : 1, cudaHostAllocDefault), "pinned host memory", err));
    memset(p, 0, bytes);
    *out = p;
    return 0;
}

static void cuda_host_free(struct backend *b, void *p) {
    before_free(b);
    if (p) {
        cudaFreeHost(p);
    }
}

static int cuda_memory_used(struct backend *b, size_t *bytes, struct error *err) {
    size_t free_bytes, total;
    TRY(cuda_alive(b, err));
    TRY(cuda_check(b, cudaMemGetInfo(&free_bytes, &total), "asking for memory", err));
    *bytes = total - free_bytes;
    return 0;
}

int cuda_memory_overhead(struct backend *b, struct error *err) {
    return cuda_memory_used(b, &b->memory_overhead, err);
}

/* ---- life ---------------------------------------------------------------------------------------------------- */

static int read_device(struct backend *b, int n, struct error *err) {
    struct cudaDeviceProp p;
    TRY(cuda_check_device(b->ordinal, n, NULL, 0, 0, err));
    TRY(cuda_check(b, cudaGetDeviceProperties(&p, b->ordinal), "asking for its properties", err));
    TRY(cuda_check_device(b->ordinal, n, p.name, p.major, p.minor, err));
    b->device = (struct cuda_device){
        .sm_count = p.multiProcessorCount, .shared_optin = p.sharedMemPerBlockOptin, .compute = p.major * 10 + p.minor};
    b->memory_total = p.totalGlobalMem;
    snprintf(b->variant, sizeof b->variant, "sm_%d", b->device.compute);
    snprintf(b->model, sizeof b->model, "%s", p.name);
    snprintf(b->name, sizeof b->name, "CUDA device %d, %s, %zu MiB", b->ordinal, p.name, p.totalGlobalMem >> 20);
    return 0;
}

static void cuda_close(struct backend *b) {
    if (!b) {
        return;
    }
    struct cuda_buffer *buffers[] = {&b->scratch, &b->rows_q, &b->rows_scales, &b->rows_zeros,
                                     &b->wide_x,  &b->wide_y, &b->copy_pairs};
    if (!b->stream) { /* there was no device */
        free(b);
        return;
    }
    cuda_use(b);
    cudaStreamSynchronize(b->stream);
    cublas_close(b->cublas);
    cuda_step_close(b);
    cuda_choose_close(b);
    cuda_slots_close(&b->staging);
    cuda_slots_close(&b->copy_slots);
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++) {
        cudaFree(buffers[i]->data);
    }
    cudaStreamDestroy(b->stream);
    free(b);
}

static int open_all(struct backend *b, const struct backend_config *config, struct error *err) {
    int n;
    TRY(cuda_count_devices(&n, err));
    TRY(cuda_check_count(config->ordinal, b->rank, b->n_ranks, n, err));
    TRY(read_device(b, n, err));
    TRY(cuda_check(b, cudaSetDevice(b->ordinal), "opening it", err));
    cuda_use(b);
    TRY(cuda_check(b, cuda_prepare_gemm_i8(&b->device), "preparing kernels", err));
    TRY(cuda_check(b, cuda_prepare_gemm_float(&b->device), "preparing kernels", err));
    TRY(cuda_check(b, cuda_prepare_attention(&b->device), "preparing kernels", err));
    TRY(cuda_check(b, cudaStreamCreateWithFlags(&b->stream, cudaStreamNonBlocking), "a stream", err));
    TRY(cuda_slots_open(b, &b->staging, STAGING_BYTES, err));
    TRY(cuda_slots_open(b, &b->copy_slots, 2 * CUDA_COPY_PAIRS * sizeof(int32_t), err));
    TRY(cuda_grow(b, &b->copy_pairs, 2 * CUDA_COPY_PAIRS * sizeof(int32_t), "indices of KV blocks", err));
    TRY(cuda_grow(b, &b->scratch, CUBLAS_WORKSPACE, "the workspace of products", err));
    TRY(cublas_open(b, config->cache_folder, &b->cublas, err));
    return cuda_memory_overhead(b, err);
}

static size_t host_threads(void) {
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? (size_t)CPU_COUNT(&set) : 1;
}

static int cuda_open(const struct backend_config *config, struct backend **out, struct error *err) {
    struct backend *b = calloc(1, sizeof *b);
    if (!b) {
        return error_memory(err);
    }
    b->ordinal = (int)(config->ordinal + config->rank); /* neighbours */
    b->rank = config->rank;
    b->n_ranks = config->n_ranks;
    b->max_rows = config->max_rows ? config->max_rows : 1;
    b->batch_invariant = config->batch_invariant;
    b->threads = config->threads ? config->threads : host_threads();
    if (open_all(b, config, err) < 0) {
        cuda_close(b);
        return -1;
    }
    *out = b;
    return 0;
}

static void cuda_info(const struct backend *b, struct backend_info *out) {
    *out = (struct backend_info){
        .name = "cuda",
        .variant = b->variant,
        .device = b->name,
        .threads = b->threads,
        .activation_dtype = DTYPE_BF16,
        .memory_total = b->memory_total,
        .own_memory = true,
        .memory_overhead = b->memory_overhead,
        .memory_is_ours = true,
    };
}

static int cuda_sync(struct backend *b, struct error *err) {
    TRY(cuda_alive(b, err));
    return cuda_wait(b, NULL, "waiting for the device", err);
}

static int cuda_reserve(struct backend *b, const struct backend_shapes *s, struct error *err) {
    if (s->head_dim > CUDA_MAX_HEAD_DIM || s->head_dim % 2 != 0) {
        return error_set(err, ERROR_UNSUPPORTED, "heads of %zu features; the CUDA backend takes even numbers up to %d", s->head_dim,
                         CUDA_MAX_HEAD_DIM);
    }
    TRY(cuda_step_reserve(b, s->max_rows, s->max_sequences, s->max_blocks, err));
    size_t attention =
        cuda_attention_workspace(&b->device, s->max_sequences, s->n_heads, s->n_kv_heads, s->head_dim, s->max_context);
    TRY(cuda_grow(b, &b->scratch, attention, "the workspace of attention", err));
    TRY(cuda_choose_reserve(b, s->max_logits, s->vocab_size, err));
    TRY(b->group ? cuda_group_reserve(b->group, s, err) : 0);
    b->fixed = true;
    return 0;
}

static int cuda_ready(struct backend *b, struct error *err) {
    TRY(cuda_alive(b, err));
    b->ready = true;
    cublas_save(b->cublas);
    return 0;
}

const struct backend_ops backend_cuda_ops;
__attribute__((visibility("default"))) const struct backend_ops *inferd_backend_cuda(void);

const struct backend_ops *inferd_backend_cuda(void) {
    return &backend_cuda_ops;
}

const struct backend_ops backend_cuda_ops = {
    .abi = BACKEND_ABI,
    .name = "cuda",
    .open = cuda_open,
    .close = cuda_close,
    .info = cuda_info,
    .sync = cuda_sync,
    .alloc = cuda_alloc,
    .free = cuda_free,
    .upload = cuda_upload,
    .download = cuda_download,
    .host_alloc = cuda_host_alloc,
    .host_free = cuda_host_free,
    .weight_load = cuda_weight_load,
    .weight_unload = cuda_weight_unload,
    .embed = cuda_op_embed,
    .rms_norm = cuda_op_rms_norm,
    .linear = cuda_op_linear,
    .rope = cuda_op_rope,
    .kv_store = cuda_op_kv_store,
    .kv_copy = cuda_op_kv_copy,
    .attention = cuda_op_attention,
    .silu_mul = cuda_op_silu_mul,
    .gather_rows = cuda_op_gather_rows,
    .step_begin = cuda_step_begin,
    .reserve = cuda_reserve,
    .memory_used = cuda_memory_used,
    .ready = cuda_ready,
    .add_rms_norm = cuda_op_add_rms_norm,
    .silu_mul_i8 = cuda_op_silu_mul_i8,
    .linear_i8 = cuda_op_linear_i8,
    .rope_kv_store = cuda_op_rope_kv_store,
    .choose = cuda_op_choose,
    .chosen = cuda_op_chosen,
    .feed = cuda_op_feed,
    .choice_edits = CUDA_CHOICE_EDITS,
    .graph_begin = cuda_graph_begin,
    .graph_end = cuda_graph_end,
    .graph_launch = cuda_graph_launch,
    .graph_free = cuda_graph_free,
    .collective_open = cuda_collective_open,
    .nodes_open = cuda_nodes_open,
};
