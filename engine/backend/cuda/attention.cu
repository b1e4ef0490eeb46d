/* Attention: which block does what. The arithmetic is in attention.cuh. */
#include "attention.cuh"

#define LOG2_E 1.4426950408889634f

/* ---- sequences of many rows ---- */

/*
 * grid: x = tiles of all sequences, y = key heads. Sequence i has tiles from cu_seqlens[i] * group / ROWS + i on:
 * enough of them for its rows, whatever is rounded down. The last ones, which see most, begin first.
 */
template <enum dtype KV, int DIM, int WARPS_M>
static __global__ void __launch_bounds__(ATTENTION_THREADS, 2) attention_long(attention_job job) {
    constexpr int ROWS = 16 * WARPS_M;
    const int tile = (int)(gridDim.x - 1 - blockIdx.x), group = (int)job.group;
    int low = 0, high = (int)job.n_sequences; /* the sequence is in [low, high) */
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        if (job.cu_seqlens[middle] * group / ROWS + middle <= tile) {
            low = middle;
        } else {
            high = middle;
        }
    }
    const int m0 = (tile - (job.cu_seqlens[low] * group / ROWS + low)) * ROWS;
    const attention_rows r = attention_rows_of(job, low, (int)blockIdx.y, m0, ROWS);
    if (r.rows <= (int)job.short_rows || m0 >= r.packed) { /* the whole block */
        return;
    }
    attend<KV, DIM, WARPS_M>(job, r, false);
}

/* ---- sequences of few rows ---- */

/* grid: x = blocks that share the runs, y = key heads * tiles, z = sequences */
template <enum dtype KV, int DIM>
static __global__ void __launch_bounds__(ATTENTION_THREADS, 2) attention_short(attention_job job) {
    const int m0 = (int)(blockIdx.y % job.short_tiles) * 16;
    const attention_rows r = attention_rows_of(job, (int)blockIdx.z, (int)(blockIdx.y / job.short_tiles), m0, 16);
    if (r.rows > (int)job.short_rows || m0 >= r.packed) { /* the whole block */
        return;
    }
    const int shift = run_shift_of(r.end - 1);
    if (job.sums && (r.begin >> shift) + (int)blockIdx.x > (r.end - 1) >> shift) { /* not so many runs */
        return;
    }
    attend<KV, DIM, 1>(job, r, job.sums != NULL);
}

/* Joins the runs that blocks of attention_short left. grid: x = tokens of all sequences, y = heads */
static __global__ void __launch_bounds__(ATTENTION_THREADS) attention_join(attention_job job) {
    constexpr int DIMS = CUDA_MAX_HEAD_DIM / ATTENTION_THREADS, AHEAD = 8;
    const int sequence = (int)(blockIdx.x / job.short_rows), token = (int)(blockIdx.x % job.short_rows);
    const int thread = (int)threadIdx.x, dim = (int)job.kv.head_dim;
    const int first = job.cu_seqlens[sequence], rows = job.cu_seqlens[sequence + 1] - first;
    if (rows > (int)job.short_rows || token >= rows) { /* the whole block */
        return;
    }
    const int position = job.context_lens[sequence] - rows + token, shift = run_shift_of(position);
    const size_t row = ((size_t)sequence * job.short_rows + (size_t)token) * job.n_heads + blockIdx.y;
    const float *sums = job.sums + row * job.runs * (size_t)dim, *stats = job.stats + row * job.runs * 2;
    float out[DIMS] = {}, sum = 0.0f, top = -INFINITY;
    const int last_run = position >> shift;
    for (int run = lowest_key(position, job.window) >> shift; run <= last_run; run += AHEAD) {
        float tops[AHEAD], weights[AHEAD], values[AHEAD][DIMS]; /* all under way at once */
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            const bool there = run + i <= last_run;
            tops[i] = there ? stats[2 * (run + i)] : -INFINITY;
            weights[i] = there ? stats[2 * (run + i) + 1] : 0.0f;
#pragma unroll
            for (int j = 0; j < DIMS; j++) {
                const int d = thread + j * ATTENTION_THREADS;
                values[i][j] = there && d < dim ? sums[(run + i) * dim + d] : 0.0f;
            }
        }
#pragma unroll
        for (int i = 0; i < AHEAD; i++) { /* what is not there changes nothing */
            const fold_weights f(top, tops[i]);
            sum = f(sum, weights[i]);
#pragma unroll
            for (int j = 0; j < DIMS; j++) {
                out[j] = f(out[j], values[i][j]);
            }
        }
    }
    const float by = sum == 0.0f ? 0.0f : 1.0f / sum;
    bf16 *to = job.out + (size_t)(first + token) * job.ldo + (size_t)blockIdx.y * (size_t)dim;
#pragma unroll
    for (int i = 0; i < DIMS; i++) {
        const int d = thread + i * ATTENTION_THREADS;
        if (d < dim) {
            to[d] = from_f32<bf16>(mul_f32(out[i], by));
        }
    }
}

/* ---- launches ---- */

/* Warps along the rows of sequences of many: two sets of sums of 256 features do not fit into a warp's registers. */
static constexpr int long_warps(int dim) {
    return dim > 128 ? 2 : 4;
}

template <enum dtype KV, int... DIM> static cudaError_t allow_dims(size_t most) {
    cudaError_t rc = cudaSuccess;
    ((rc = rc == cudaSuccess
               ? allow_shared(attention_short<KV, DIM>, sizeof(typename attention_tile<KV, DIM, 1>::shared), most)
               : rc),
     ...);
    ((rc = rc == cudaSuccess ? allow_shared(attention_long<KV, DIM, long_warps(DIM)>,
                                            sizeof(typename attention_tile<KV, DIM, long_warps(DIM)>::shared), most)
                             : rc),
     ...);
    return rc;
}

extern "C" cudaError_t cuda_prepare_attention(const struct cuda_device *device) {
    cudaError_t rc = allow_dims<DTYPE_F16, 64, 128, 256>(device->shared_optin);
    rc = rc == cudaSuccess ? allow_dims<DTYPE_BF16, 64, 128, 256>(device->shared_optin) : rc;
    return rc == cudaSuccess ? allow_dims<DTYPE_I8, 64, 128, 256>(device->shared_optin) : rc;
}

template <enum dtype KV, int DIM>
static cudaError_t launch(const attention_job &job, size_t rows, size_t max_query, unsigned blocks,
                          cudaStream_t stream) {
    constexpr int WARPS_M = long_warps(DIM);
    constexpr size_t ROWS = 16 * WARPS_M;
    const size_t long_bytes = sizeof(typename attention_tile<KV, DIM, WARPS_M>::shared);
    const size_t short_bytes = sizeof(typename attention_tile<KV, DIM, 1>::shared);
    const dim3 short_grid(blocks, job.kv.n_kv_heads * job.short_tiles, job.n_sequences);
    cudaError_t rc = LAUNCH((attention_short<KV, DIM>), short_grid, ATTENTION_THREADS, short_bytes, stream, job);
    if (rc == cudaSuccess && max_query > job.short_rows) {
        const dim3 grid((unsigned)(rows * job.group / ROWS + job.n_sequences), job.kv.n_kv_heads);
        rc = LAUNCH((attention_long<KV, DIM, WARPS_M>), grid, ATTENTION_THREADS, long_bytes, stream, job);
    }
    return rc;
}

template <enum dtype KV>
static cudaError_t launch_dim(const attention_job &job, size_t rows, size_t max_query, unsigned blocks,
                              cudaStream_t stream) {
    if (job.kv.head_dim <= 64) {
        return launch<KV, 64>(job, rows, max_query, blocks, stream);
    }
    if (job.kv.head_dim <= 128) {
        return launch<KV, 128>(job, rows, max_query, blocks, stream);
    }
    return launch<KV, 256>(job, rows, max_query, blocks, stream);
}

static size_t at_least_1(size_t n) {
    return n > 0 ? n : 1;
}

/* The most runs of a row whose context has max_context tokens. */
static size_t runs_of(size_t max_context) {
    size_t runs = at_least_1((max_context + CUDA_KV_SPLIT - 1) / CUDA_KV_SPLIT);
    return runs < CUDA_KV_RUNS ? runs : CUDA_KV_RUNS;
}

static size_t short_tiles_of(size_t short_rows, size_t group) {
    return (short_rows * group + 15) / 16;
}

/*
 * Blocks that share each short sequence's runs: enough for some on each multiprocessor, if there are as many runs. A short
 * context alone has few, a block a key head below CUDA_KV_SPLIT keys. More would need another arithmetic: within a run
 * each tile's weights are taken against the largest score so far, so a run that is cut adds up otherwise. Shorter runs
 * for all would give every row more joins, in prefill too, where a run of one tile is joined as often as it is summed.
 * (Blocks that share features or query heads would read all keys again for each.)
 */
static size_t blocks_of(const struct cuda_device *device, size_t tiles, size_t runs) {
    size_t blocks = (4 * (size_t)device->sm_count + tiles - 1) / tiles;
    return blocks < 1 ? 1 : blocks < runs ? blocks : runs;
}

static size_t slots_bytes(size_t rows, size_t n_heads, size_t head_dim, size_t runs) {
    return rows * n_heads * runs * (head_dim + 2) * sizeof(float);
}

/* The blocks that share a sequence's runs if one of at most `rows` rows is short; 0 if there is no room for that. */
static size_t share(attention_job *job, const struct cuda_device *device, size_t n_kv_heads, size_t rows,
                    void *workspace, size_t workspace_bytes) {
    size_t slots = job->n_sequences * rows, dim = job->kv.head_dim;
    job->short_rows = (uint32_t)rows;
    job->short_tiles = (uint32_t)short_tiles_of(rows, job->group);
    job->sums = job->stats = NULL;
    size_t blocks = blocks_of(device, job->n_sequences * n_kv_heads * job->short_tiles, job->runs);
    if (blocks > 1) {
        if (slots_bytes(slots, job->n_heads, dim, job->runs) > workspace_bytes) {
            return 0;
        }
        job->sums = (float *)workspace;
        job->stats = job->sums + slots * job->n_heads * job->runs * dim;
    }
    return blocks;
}

extern "C" size_t cuda_attention_workspace(const struct cuda_device *device, size_t max_sequences, size_t n_heads,
                                           size_t n_kv_heads, size_t head_dim, size_t max_context) {
    /* Decode, one row a sequence: with more tiles than this, each block has enough of its own to do. */
    size_t tiles = n_kv_heads * short_tiles_of(1, n_heads / n_kv_heads);
    size_t sharing = (4 * (size_t)device->sm_count - 1) / tiles;
    size_t sequences = at_least_1(max_sequences < sharing ? max_sequences : sharing);
    return slots_bytes(sequences, n_heads, head_dim, runs_of(max_context));
}

extern "C" cudaError_t cuda_attention(const struct cuda_device *device, const struct attention_args *args,
                                      void *workspace, size_t workspace_bytes, cudaStream_t stream) {
    attention_job job;
    size_t dim = args->head_dim;
    if (!kv_memory_of(args->kv, &job.kv) || dim > CUDA_MAX_HEAD_DIM || dim % 2 != 0 || args->kv->head_dim != dim ||
        args->kv->block_size < 8 || args->n_heads % args->n_kv_heads != 0 || args->kv->n_kv_heads != args->n_kv_heads ||
        (uintptr_t)args->kv->data % 16 != 0 || args->n_sequences > 65535) {
        return cudaErrorInvalidValue;
    }
    if (args->rows == 0 || args->n_sequences == 0) {
        return cudaSuccess;
    }
    size_t group = args->n_heads / args->n_kv_heads;
    job.q = (const bf16 *)args->q;
    job.ldq = args->ldq;
    job.out = (bf16 *)args->out;
    job.ldo = args->ldo;
    job.block_tables = args->block_tables;
    job.max_blocks = args->max_blocks;
    job.cu_seqlens = args->cu_seqlens;
    job.context_lens = args->context_lens;
    job.n_sequences = (uint32_t)args->n_sequences;
    job.n_heads = (uint32_t)args->n_heads;
    job.group = (uint32_t)group;
    job.window = args->window < (size_t)INT32_MAX ? (int32_t)args->window : 0;
    job.scale = args->scale * LOG2_E;
    job.q_wide = (uintptr_t)args->q % 16 == 0 && args->ldq % 8 == 0 && dim % 8 == 0;
    job.kv_wide = job.kv.row_bytes % 16 == 0;
    job.runs = (uint32_t)runs_of(args->max_context);
    /* Among long sequences the slots of the short ones may not fit, each having some for as many rows as the most: then
     * one row alone is short. */
    size_t most = args->max_query < ATTENTION_SHORT_ROWS ? at_least_1(args->max_query) : ATTENTION_SHORT_ROWS;
    size_t blocks = share(&job, device, args->n_kv_heads, most, workspace, workspace_bytes);
    if (blocks == 0) {
        blocks = share(&job, device, args->n_kv_heads, 1, workspace, workspace_bytes);
    }
    if (blocks == 0) {
        blocks = 1;
    }
    cudaError_t rc;
    switch (args->kv->dtype) {
    case DTYPE_F16:
        rc = launch_dim<DTYPE_F16>(job, args->rows, args->max_query, (unsigned)blocks, stream);
        break;
    case DTYPE_BF16:
        rc = launch_dim<DTYPE_BF16>(job, args->rows, args->max_query, (unsigned)blocks, stream);
        break;
    default:
        rc = launch_dim<DTYPE_I8>(job, args->rows, args->max_query, (unsigned)blocks, stream);
    }
    if (rc == cudaSuccess && blocks > 1) {
        const dim3 grid((unsigned)(args->n_sequences * job.short_rows), job.n_heads);
        rc = LAUNCH(attention_join, grid, ATTENTION_THREADS, 0, stream, job);
    }
    return rc;
}
