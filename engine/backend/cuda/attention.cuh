/*
 * Paged causal attention, out = softmax(scale q k^T) v, in the manner of FlashAttention-2 (Dao 2023): tiles of queries
 * stay, tiles of keys and values stream through shared memory, the softmax is taken online, in powers of two.
 *
 * Rows. The query heads that share a key head are packed with the tokens into the rows of the tensor cores' products:
 * packed row m of a sequence is token m / group, head m % group of the group. A warp has 16 rows (two of a lane: lane /
 * 4 and 8 more). A block has WARPS_M x WARPS_N warps: the WARPS_N warps of the same rows share out the keys of a tile
 * for the scores and the features of the head for the sums, and tell each other maxima and weights.
 *
 * One arithmetic. A row's keys are cut into runs (launch.h, CUDA_KV_SPLIT; their length depends on the row's own
 * position alone); a run is summed tile by tile from scratch, and runs are joined in order by fold_weights. Every step
 * is the same operation on the same numbers for any WARPS_M and WARPS_N, whether a block walks all runs or several
 * share them and a second kernel joins what they leave in the workspace; a tile where a row sees nothing changes
 * nothing. So a row's result has the same bits in any company. Sums of weights go through the tensor cores as one more
 * column.
 *
 * Numbers. BF16 KV is multiplied as BF16; F16 and I8 as F16, to which queries are converted (beyond 65504: infinity).
 * I8: a byte is exactly a half; the key's scale is applied to the score, the value's to the value, rounded to F16.
 * A value that is no number is none in all rows of its tile, also in those that do not see it.
 */
#ifndef INFERD_CUDA_ATTENTION_CUH
#define INFERD_CUDA_ATTENTION_CUH

#include "kv_memory.cuh"

#include <math.h>

#define ATTENTION_WARPS 4
#define ATTENTION_THREADS (ATTENTION_WARPS * WARP)
/* Sequences of at most so many rows in a step (or of one: job.short_rows) are taken in tiles of 16 rows, and their runs
 * shared out over blocks. */
#define ATTENTION_SHORT_ROWS 8

struct attention_job {
    const bf16 *q;
    size_t ldq;
    bf16 *out;
    size_t ldo;
    kv_memory kv;
    const int32_t *block_tables;
    size_t max_blocks;
    const int32_t *cu_seqlens, *context_lens;
    uint32_t n_sequences, n_heads, group; /* group: query heads of a key head */
    int32_t window;                       /* 0: none */
    float scale;                          /* times log2 e */
    bool q_wide, kv_wide;                 /* 16 bytes at a time */
    uint32_t short_tiles;                 /* tiles of a short sequence */
    /* What blocks leave that share the runs of short sequences, NULL if none do: slot ((sequence * short_rows + token)
     * * n_heads + head) * runs + run of sums[head_dim], and of {largest score, sum of weights}. */
    float *sums, *stats;
    uint32_t short_rows, runs; /* short_rows: the most rows of a short sequence */
};

/* One block's work: rows m0 .. m0 + ROWS of a sequence, one key head, keys begin .. end. */
struct attention_rows {
    int sequence, kv_head;
    int first_row, rows, before;  /* in the batch; tokens before the first */
    int m0, packed;               /* packed rows of the sequence */
    int begin, end;               /* keys that some row sees */
    int first_position, last_low; /* all rows see the keys of last_low .. first_position */
};

template <enum dtype KV, int DIM, int WARPS_M> struct attention_tile {
    static constexpr bool I8 = KV == DTYPE_I8;
    static constexpr int WARPS_N = ATTENTION_WARPS / WARPS_M;
    static constexpr int ROWS = 16 * WARPS_M;
    static constexpr int KEYS = DIM > 128 ? 32 : 64;
    static constexpr int KEY_TILES = KEYS / 8 / WARPS_N; /* of 8 keys, that a warp scores */
    static constexpr int DIMS = DIM / WARPS_N;           /* features that a warp sums */
    static constexpr int OUT_TILES = DIMS / 8;
    static constexpr int ROW_BYTES = DIM * (I8 ? 1 : 2);
    static constexpr int PIECES = ROW_BYTES / 16;
    static constexpr int STRIDE = ROW_BYTES + 16;           /* an odd number of 16 bytes: no bank is met twice */
    static constexpr bool Q_STAYS = DIM <= (I8 ? 64 : 128); /* in registers; else it is read again for each tile */

    struct stage {
        alignas(16) uint8_t k[KEYS][STRIDE], v[KEYS][STRIDE];
        f16 k_scales[I8 ? KEYS : 8], v_scales[I8 ? KEYS : 8];
    };
    typedef uint16_t query_row[DIM + 8];
    struct alignas(128) shared {
        stage stages[2];
        attention_rows rows; /* here, since registers are few */
        alignas(16) query_row q[Q_STAYS ? 1 : ROWS];
        RED_ZONE(16)
        float maxima[WARPS_N][ROWS];
        RED_ZONE(16)
        alignas(16) uint16_t weights[WARPS_N > 1 ? ROWS : 1][KEYS + 8];
    };
    static_assert(sizeof(query_row[ROWS]) <= sizeof(stage), "queries pass through a stage on their way to registers");
};

/* The length of the runs of a row at `position`, as a power of two. */
static __device__ __forceinline__ int run_shift_of(int position) {
    int shift = 8; /* CUDA_KV_SPLIT */
    while (position >> shift >= CUDA_KV_RUNS) {
        shift++;
    }
    return shift;
}

/* 2^-infinity is 0, and where all is -infinity so far, nothing is subtracted. */
static __device__ __forceinline__ float finite_or_0(float top) {
    return top == -INFINITY ? 0.0f : top;
}

/* What the sums so far, and those of the next run, are multiplied by when they are joined: sum = so_far * total + by *
 * run. */
struct fold_weights {
    float so_far, by;
    __device__ __forceinline__ fold_weights(float &top, float run_top) {
        const float joined = fmaxf(top, run_top), reference = finite_or_0(joined);
        so_far = exp2_fast(top - reference);
        by = exp2_fast(run_top - reference);
        top = joined;
    }
    __device__ __forceinline__ float operator()(float total, float run) const {
        return fma_f32(run, by, mul_f32(total, so_far));
    }
};

/* Four bytes to halves: pairs (0, 1) and (2, 3), or (0, 2) and (1, 3). With its sign bit flipped a byte is x + 128, and
 * as the low byte of 0x6400, 1024, it is 1152 + x; what is left of the subtraction is exact. */
template <bool EVEN_ODD> static __device__ __forceinline__ void halves_of_i8(uint32_t (&out)[2], uint32_t bytes) {
    const uint32_t u = bytes ^ 0x80808080u, k1024 = 0x64646464u, k1152 = 0x64806480u;
    out[0] = sub_f16x2(byte_permute(u, k1024, EVEN_ODD ? 0x4240 : 0x4140), k1152);
    out[1] = sub_f16x2(byte_permute(u, k1024, EVEN_ODD ? 0x4341 : 0x4342), k1152);
}

template <enum dtype KV>
static __device__ __forceinline__ void multiply(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    const uint32_t b[2] = {b0, b1};
    if constexpr (KV == DTYPE_BF16) {
        mma_bf16(d, a, b);
    } else {
        mma_f16(d, a, b);
    }
}

template <enum dtype KV> static __device__ __forceinline__ uint32_t pack(float low, float high) {
    return KV == DTYPE_BF16 ? pack_bf16(low, high) : pack_f16(low, high);
}

static __device__ __forceinline__ int lowest_key(int position, int window) {
    return window > 0 && position >= window ? position + 1 - window : 0;
}

static __device__ __forceinline__ attention_rows attention_rows_of(const attention_job &job, int sequence, int kv_head,
                                                                   int m0, int tile_rows) {
    attention_rows r;
    r.sequence = sequence;
    r.kv_head = kv_head;
    r.first_row = job.cu_seqlens[sequence];
    r.rows = job.cu_seqlens[sequence + 1] - r.first_row;
    r.before = job.context_lens[sequence] - r.rows;
    r.m0 = m0;
    r.packed = r.rows * (int)job.group;
    const int last = m0 + tile_rows < r.packed ? m0 + tile_rows - 1 : r.packed - 1;
    r.first_position = r.before + m0 / (int)job.group;
    const int last_position = r.before + last / (int)job.group;
    r.begin = lowest_key(r.first_position, job.window);
    r.last_low = lowest_key(last_position, job.window);
    r.end = last_position + 1 > 0 ? last_position + 1 : 0;
    return r;
}

/* The tiles of a block in order: whole chunks of 2^shift keys, every step-th of them. */
struct tile_walk {
    int key, chunk_end, chunk, step, shift, end;
    __device__ __forceinline__ void open_chunk() {
        key = chunk << shift;
        chunk_end = end - key > 1 << shift ? key + (1 << shift) : end;
    }
    __device__ __forceinline__ void next(int keys) {
        key += keys;
        if (key >= chunk_end && key < end) {
            chunk += step;
            if (end >> shift < chunk) {
                key = end;
            } else {
                open_chunk();
            }
        }
    }
};

/* ---- loads ---- */

/* Rows key0 .. key0 + KEYS of K and V into a stage, zeros where no row of the block looks. */
template <class TILE>
static __device__ __forceinline__ void load_tile(typename TILE::stage &stage, const attention_job &job,
                                                 const attention_rows &r, int key0) {
    const kv_memory &kv = job.kv;
    const int32_t *table = job.block_tables + (size_t)r.sequence * job.max_blocks;
    const uint32_t mask = (1u << kv.block_shift) - 1;
    const size_t tokens = (size_t)kv.n_kv_heads << kv.block_shift; /* from a key to its value */
    if (job.kv_wide) {
#pragma unroll 4
        for (int i = (int)threadIdx.x; i < TILE::KEYS * TILE::PIECES; i += ATTENTION_THREADS) {
            const int row = i / TILE::PIECES, at = i % TILE::PIECES * 16, key = key0 + row;
            const bool valid = key >= r.begin && key < r.end && at < (int)kv.row_bytes;
            const uint8_t *k = kv.data;
            if (valid) {
                const size_t token = kv_token(kv, (uint32_t)r.kv_head, false, (uint32_t)key & mask);
                k = kv_row(kv, (size_t)table[key >> kv.block_shift], token) + at;
            }
            async_copy_16(&stage.k[row][at], k, valid);
            async_copy_16(&stage.v[row][at], valid ? k + tokens * kv.row_bytes : k, valid);
        }
    } else { /* head_dim of small models */
        for (int row = (int)threadIdx.x / WARP; row < TILE::KEYS; row += ATTENTION_WARPS) {
            const int key = key0 + row;
            const bool valid = key >= r.begin && key < r.end;
            const uint8_t *k = kv.data;
            if (valid) {
                const size_t token = kv_token(kv, (uint32_t)r.kv_head, false, (uint32_t)key & mask);
                k = kv_row(kv, (size_t)table[key >> kv.block_shift], token);
            }
            for (int at = (int)threadIdx.x % WARP; at < TILE::ROW_BYTES; at += WARP) {
                const bool inside = valid && at < (int)kv.row_bytes;
                stage.k[row][at] = inside ? k[at] : (uint8_t)0;
                stage.v[row][at] = inside ? k[tokens * kv.row_bytes + at] : (uint8_t)0;
            }
        }
    }
    if constexpr (TILE::I8) { /* 8 tokens' scales are 16 bytes, of one block */
        if ((int)threadIdx.x < TILE::KEYS / 8 * 2) {
            const bool is_v = (int)threadIdx.x >= TILE::KEYS / 8;
            const int at = (int)threadIdx.x % (TILE::KEYS / 8) * 8, key = key0 + at;
            const bool valid = key + 8 > r.begin && key < r.end;
            const void *from = kv.data;
            if (valid) {
                from = kv_scale(kv, (size_t)table[key >> kv.block_shift],
                                kv_token(kv, (uint32_t)r.kv_head, is_v, (uint32_t)key & mask));
            }
            async_copy_16(is_v ? &stage.v_scales[at] : &stage.k_scales[at], from, valid);
        }
    }
}

/* The block's queries as the products take them: 16 bits, zeros behind the head and behind the last row. For I8 the
 * features of each 16 lie in the order in which bytes reach a lane: its four are 4t .. 4t + 3. */
template <enum dtype KV, class TILE, int DIM>
static __device__ __forceinline__ void load_queries(typename TILE::query_row *to, const attention_job &job,
                                                    const attention_rows &r) {
    const int head_dim = (int)job.kv.head_dim, group = (int)job.group;
    for (int i = (int)threadIdx.x; i < TILE::ROWS * (DIM / 8); i += ATTENTION_THREADS) {
        const int row = i / (DIM / 8), d = i % (DIM / 8) * 8, m = r.m0 + row;
        uint32_t pairs[4] = {0, 0, 0, 0};
        if (m < r.packed && d < head_dim) {
            const bf16 *q = job.q + (size_t)(r.first_row + m / group) * job.ldq +
                            (size_t)(r.kv_head * group + m % group) * (size_t)head_dim + d;
            if (job.q_wide) {
                const uint4 bits = load_16(q);
                pairs[0] = bits.x, pairs[1] = bits.y, pairs[2] = bits.z, pairs[3] = bits.w;
            } else {
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    const float low = d + 2 * j < head_dim ? to_f32(q[2 * j]) : 0.0f;
                    const float high = d + 2 * j + 1 < head_dim ? to_f32(q[2 * j + 1]) : 0.0f;
                    pairs[j] = pack_bf16(low, high);
                }
            }
        }
#pragma unroll
        for (int j = 0; j < 4; j++) {
            if constexpr (KV != DTYPE_BF16) {
                pairs[j] = pack_f16(f32_of(pairs[j] << 16), f32_of(pairs[j] & 0xffff0000u));
            }
            const int pair = d % 16 / 2 + j; /* of the 16's eight */
            const int at = TILE::I8 ? d / 16 * 16 + pair / 2 * 2 + pair % 2 * 8 : d + 2 * j;
            memcpy(&to[row][at], &pairs[j], sizeof pairs[j]);
        }
    }
}

/* ---- products ---- */

/* The 16 x 16 fragment of rows row0.. and columns column0.. of a matrix of 16-bit elements. */
template <int STRIDE>
static __device__ __forceinline__ void load_a(uint32_t (&a)[4], const uint16_t (*matrix)[STRIDE], int row0,
                                              int column0) {
    const int lane = (int)threadIdx.x % WARP;
    load_matrix_x4(a, &matrix[row0 + lane % 16][column0 + lane / 16 * 8]);
}

/* scores[j][..] = q k^T of the warp's rows and its KEY_TILES * 8 keys. */
template <enum dtype KV, class TILE, int DIM>
static __device__ __forceinline__ void score(float (&scores)[TILE::KEY_TILES][4], const typename TILE::stage &stage,
                                             const uint32_t (*q_stays)[4], const typename TILE::query_row *q,
                                             int warp_m, int warp_n) {
    constexpr int TILES = TILE::KEY_TILES, STEPS = DIM / 16;
    constexpr int PER_MATRIX = TILE::I8 ? 2 : 1; /* steps of 16 features in two 16-byte columns */
    constexpr int COLUMNS = TILES == 1 ? 4 : 2;  /* 16-byte columns of one load */
    constexpr int STEPS_A_LOAD = COLUMNS / 2 * PER_MATRIX;
    const int lane = (int)threadIdx.x % WARP;
    const int key = warp_n * TILES * 8 + (TILES == 1 ? lane % 8 : lane / 16 * 8 + lane % 8);
    const int column = (TILES == 1 ? lane / 8 : lane / 8 % 2) * 16;
#pragma unroll
    for (int j = 0; j < TILES; j++) {
        scores[j][0] = scores[j][1] = scores[j][2] = scores[j][3] = 0.0f;
    }
#pragma unroll
    for (int step = 0; step < STEPS; step += STEPS_A_LOAD) {
        uint32_t a[STEPS_A_LOAD][4];
#pragma unroll
        for (int i = 0; i < STEPS_A_LOAD; i++) {
            if constexpr (TILE::Q_STAYS) {
                a[i][0] = q_stays[step + i][0], a[i][1] = q_stays[step + i][1];
                a[i][2] = q_stays[step + i][2], a[i][3] = q_stays[step + i][3];
            } else {
                load_a(a[i], q, warp_m * 16, (step + i) * 16);
            }
        }
#pragma unroll
        for (int j = 0; j < TILES; j += 2) { /* two tiles a load, or one of them twice as far */
            uint32_t b[4];
            load_matrix_x4(b, &stage.k[key + j * 8][step / PER_MATRIX * 32 + column]);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int tile = TILES == 1 ? 0 : j + i / 2;
                const int column_of = TILES == 1 ? i : i % 2;
                if constexpr (TILE::I8) {
                    uint32_t halves[2];
                    halves_of_i8<false>(halves, b[i]);
                    multiply<KV>(scores[tile], a[column_of], halves[0], halves[1]);
                } else if (i % 2 == 1) {
                    multiply<KV>(scores[tile], a[column_of / 2], b[i - 1], b[i]);
                }
            }
        }
    }
}

/* out[j][..] += weights of 16 keys, a, times their values' features: the warp's own. */
template <enum dtype KV, class TILE>
static __device__ __forceinline__ void weigh(float (&out)[TILE::OUT_TILES][4], const typename TILE::stage &stage,
                                             const uint32_t (&a)[4], int key0, int warp_n) {
    const int lane = (int)threadIdx.x % WARP;
    const uint8_t *row = stage.v[key0 + lane % 16];
    if constexpr (!TILE::I8) {
#pragma unroll
        for (int j = 0; j < TILE::OUT_TILES; j += 2) {
            uint32_t b[4];
            load_matrix_x4_transposed(b, row + (warp_n * TILE::DIMS + j * 8 + lane / 16 * 8) * 2);
            multiply<KV>(out[j], a, b[0], b[1]);
            multiply<KV>(out[j + 1], a, b[2], b[3]);
        }
    } else {
        /* A lane's register holds two features of two keys: tile j has the even ones of 16, tile j + 1 the odd ones. */
        uint32_t scales[2];
        memcpy(&scales[0], &stage.v_scales[key0 + lane % 4 * 2], sizeof scales[0]);
        memcpy(&scales[1], &stage.v_scales[key0 + 8 + lane % 4 * 2], sizeof scales[1]);
#pragma unroll
        for (int j = 0; j < TILE::OUT_TILES; j += 4) {
            uint32_t b[4] = {0, 0, 0, 0};
            if constexpr (TILE::OUT_TILES == 2) {
                uint32_t two[2];
                load_matrix_x2_transposed(two, row + warp_n * TILE::DIMS);
                b[0] = two[0], b[1] = two[1];
            } else {
                load_matrix_x4_transposed(b, row + warp_n * TILE::DIMS + j * 8 + lane / 16 * 16);
            }
#pragma unroll
            for (int i = 0; i < 4 && j + i < TILE::OUT_TILES; i += 2) {
                uint32_t low[2], high[2];
                halves_of_i8<true>(low, b[i]);
                halves_of_i8<true>(high, b[i + 1]);
                multiply<KV>(out[j + i], a, mul_f16x2(low[0], scales[0]), mul_f16x2(high[0], scales[1]));
                multiply<KV>(out[j + i + 1], a, mul_f16x2(low[1], scales[0]), mul_f16x2(high[1], scales[1]));
            }
        }
    }
}

/* ---- one block ---- */

/* The sums of a lane's rows: out is of the warp's features, sum the row's weights (each of four columns' the same). */
template <class TILE> struct row_sums {
    float out[TILE::OUT_TILES][4], sum[4], top[2];
    __device__ __forceinline__ void clear(int h) {
#pragma unroll
        for (int j = 0; j < TILE::OUT_TILES; j++) {
            out[j][2 * h] = out[j][2 * h + 1] = 0.0f;
        }
        sum[2 * h] = sum[2 * h + 1] = 0.0f;
        top[h] = -INFINITY;
    }
    __device__ __forceinline__ void scale(int h, float by) {
#pragma unroll
        for (int j = 0; j < TILE::OUT_TILES; j++) {
            out[j][2 * h] = mul_f32(out[j][2 * h], by);
            out[j][2 * h + 1] = mul_f32(out[j][2 * h + 1], by);
        }
        sum[2 * h] = mul_f32(sum[2 * h], by);
        sum[2 * h + 1] = mul_f32(sum[2 * h + 1], by);
    }
    __device__ __forceinline__ void fold(int h, const row_sums &run) {
        const fold_weights f(top[h], run.top[h]);
#pragma unroll
        for (int j = 0; j < TILE::OUT_TILES; j++) {
            out[j][2 * h] = f(out[j][2 * h], run.out[j][2 * h]);
            out[j][2 * h + 1] = f(out[j][2 * h + 1], run.out[j][2 * h + 1]);
        }
        sum[2 * h] = f(sum[2 * h], run.sum[2 * h]);
    }
    /* The feature of pair `pair` (of OUT_TILES) of row h, and its two neighbouring values. */
    __device__ __forceinline__ int pair(int pair, int h, float (&v)[2]) const {
        const int t = (int)threadIdx.x % 4;
        if constexpr (TILE::I8) {
            const int j = pair / 2 * 2, c = pair % 2;
            v[0] = out[j][2 * h + c], v[1] = out[j + 1][2 * h + c];
            return j * 8 + 4 * t + 2 * c;
        } else {
            v[0] = out[pair][2 * h], v[1] = out[pair][2 * h + 1];
            return pair * 8 + 2 * t;
        }
    }
};

/* Scores to powers of two relative to the row's largest so far, to which run's sums are brought. */
template <class TILE>
static __device__ __forceinline__ void soften(float (&scores)[TILE::KEY_TILES][4], row_sums<TILE> &run,
                                              typename TILE::shared &s, const typename TILE::stage &stage,
                                              const attention_job &job, const int (&positions)[2], int key0,
                                              bool masked, int warp_m, int warp_n) {
    const int lane = (int)threadIdx.x % WARP, own = warp_n * TILE::KEY_TILES * 8 + lane % 4 * 2;
    float top[2] = {-INFINITY, -INFINITY};
#pragma unroll
    for (int j = 0; j < TILE::KEY_TILES; j++) {
        float by[2] = {job.scale, job.scale};
        if constexpr (TILE::I8) {
            by[0] = mul_f32(to_f32(stage.k_scales[own + 8 * j]), job.scale);
            by[1] = mul_f32(to_f32(stage.k_scales[own + 8 * j + 1]), job.scale);
        }
#pragma unroll
        for (int c = 0; c < 4; c++) {
            scores[j][c] = mul_f32(scores[j][c], by[c % 2]);
        }
    }
    if (masked) {
        const int low[2] = {lowest_key(positions[0], job.window), lowest_key(positions[1], job.window)};
#pragma unroll
        for (int j = 0; j < TILE::KEY_TILES; j++) {
#pragma unroll
            for (int c = 0; c < 4; c++) {
                const int key = key0 + own + 8 * j + c % 2;
                scores[j][c] = key > positions[c / 2] || key < low[c / 2] ? -INFINITY : scores[j][c];
            }
        }
    }
#pragma unroll
    for (int j = 0; j < TILE::KEY_TILES; j++) {
#pragma unroll
        for (int c = 0; c < 4; c++) {
            top[c / 2] = fmaxf(top[c / 2], scores[j][c]);
        }
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        top[h] = fmaxf(top[h], warp_shfl_xor(top[h], 1));
        top[h] = fmaxf(top[h], warp_shfl_xor(top[h], 2));
    }
    if constexpr (TILE::WARPS_N > 1) {
        const int row = warp_m * 16 + lane / 4;
        if (lane % 4 == 0) {
            s.maxima[warp_n][row] = top[0];
            s.maxima[warp_n][row + 8] = top[1];
        }
        block_sync();
#pragma unroll
        for (int n = 0; n < TILE::WARPS_N; n++) {
            top[0] = fmaxf(top[0], s.maxima[n][row]);
            top[1] = fmaxf(top[1], s.maxima[n][row + 8]);
        }
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const float before = run.top[h];
        run.top[h] = fmaxf(before, top[h]);
        top[h] = finite_or_0(run.top[h]);
        run.scale(h, exp2_fast(before - top[h]));
    }
#pragma unroll
    for (int j = 0; j < TILE::KEY_TILES; j++) {
#pragma unroll
        for (int c = 0; c < 4; c++) {
            scores[j][c] = exp2_fast(scores[j][c] - top[c / 2]);
        }
    }
}

/* run += weights times values, of one tile. */
template <enum dtype KV, class TILE>
static __device__ __forceinline__ void sum_values(row_sums<TILE> &run, const float (&weights)[TILE::KEY_TILES][4],
                                                  typename TILE::shared &s, const typename TILE::stage &stage,
                                                  int warp_m, int warp_n) {
    const int lane = (int)threadIdx.x % WARP;
    const uint32_t ones = KV == DTYPE_BF16 ? 0x3f803f80u : 0x3c003c00u;
    if constexpr (TILE::WARPS_N > 1) {
        const int row = warp_m * 16 + lane / 4, column = warp_n * TILE::KEY_TILES * 8 + lane % 4 * 2;
#pragma unroll
        for (int j = 0; j < TILE::KEY_TILES; j++) {
            const uint32_t upper = pack<KV>(weights[j][0], weights[j][1]),
                           lower = pack<KV>(weights[j][2], weights[j][3]);
            memcpy(&s.weights[row][column + 8 * j], &upper, sizeof upper);
            memcpy(&s.weights[row + 8][column + 8 * j], &lower, sizeof lower);
        }
        block_sync();
    }
#pragma unroll
    for (int step = 0; step < TILE::KEYS / 16; step++) {
        uint32_t a[4];
        if constexpr (TILE::WARPS_N > 1) {
            load_a(a, s.weights, warp_m * 16, step * 16);
        } else {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                a[i] = pack<KV>(weights[2 * step + i / 2][i % 2 * 2], weights[2 * step + i / 2][i % 2 * 2 + 1]);
            }
        }
        weigh<KV, TILE>(run.out, stage, a, step * 16, warp_n);
        multiply<KV>(run.sum, a, ones, ones);
    }
}

static __device__ __forceinline__ void store_pair(bf16 *to, const float (&v)[2], float by) {
    to[0] = from_f32<bf16>(mul_f32(v[0], by));
    to[1] = from_f32<bf16>(mul_f32(v[1], by));
}

/* out = sums / sum of weights, of a lane's row h; zeros for a row that saw nothing. */
template <class TILE>
static __device__ __forceinline__ void store_row(const attention_job &job, const attention_rows &r,
                                                 const row_sums<TILE> &total, int h, int m, int dim0) {
    const int group = (int)job.group, head_dim = (int)job.kv.head_dim;
    bf16 *to = job.out + (size_t)(r.first_row + m / group) * job.ldo +
               (size_t)(r.kv_head * group + m % group) * (size_t)head_dim;
    const float sum = total.sum[2 * h], by = sum == 0.0f ? 0.0f : 1.0f / sum;
#pragma unroll
    for (int i = 0; i < TILE::OUT_TILES; i++) {
        float v[2];
        const int d = dim0 + total.pair(i, h, v);
        if (d < head_dim) {
            store_pair(to + d, v, by);
        }
    }
}

/* A run of a lane's row h to its slot. */
template <class TILE>
static __device__ __forceinline__ void store_run(const attention_job &job, const attention_rows &r,
                                                 const row_sums<TILE> &run, int h, int m, int number, int warp_n) {
    const uint32_t group = job.group, token = (uint32_t)m / group,
                   head = (uint32_t)r.kv_head * group + (uint32_t)m % group;
    const size_t row = ((size_t)r.sequence * job.short_rows + token) * job.n_heads + head;
    const size_t slot = row * job.runs + (size_t)number;
    float *to = job.sums + slot * job.kv.head_dim;
#pragma unroll
    for (int i = 0; i < TILE::OUT_TILES; i++) {
        float v[2];
        const int d = warp_n * TILE::DIMS + run.pair(i, h, v);
        if (d < (int)job.kv.head_dim) {
            to[d] = v[0];
            to[d + 1] = v[1];
        }
    }
    if (warp_n == 0 && threadIdx.x % 4 == 0) {
        job.stats[2 * slot] = run.top[h];
        job.stats[2 * slot + 1] = run.sum[2 * h];
    }
}

/*
 * The rows of one block. With job.sums (short sequences), the block takes chunk blockIdx.x and every gridDim.x-th
 * behind it, a chunk being a run of its last row, and leaves each row's runs in their slots; else it takes all keys and
 * writes out.
 */
template <enum dtype KV, int DIM, int WARPS_M>
static __device__ __forceinline__ void attend(const attention_job &job, const attention_rows &rows, bool shares) {
    typedef attention_tile<KV, DIM, WARPS_M> TILE;
    typedef typename TILE::shared shared_t;
    SHARED(shared_t, s);
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    const int warp_m = warp / TILE::WARPS_N, warp_n = warp % TILE::WARPS_N;
    const attention_rows &r = s.rows;
    if (threadIdx.x == 0) {
        s.rows = rows;
    }
    block_sync();

    /* The lane's two rows: m and the eighth behind it. */
    const int m = r.m0 + warp_m * 16 + lane / 4;
    int positions[2]; /* -1: no row */
    row_sums<TILE> total, run;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        positions[h] = m + 8 * h < r.packed ? r.before + (m + 8 * h) / (int)job.group : -1;
        total.clear(h);
        run.clear(h);
    }

    tile_walk walk;
    walk.end = r.end;
    walk.shift = shares ? run_shift_of(r.end - 1) : 30;
    walk.step = (int)gridDim.x;
    walk.chunk = shares ? (r.begin >> walk.shift) + (int)blockIdx.x : 0;
    walk.key = walk.chunk_end = r.end;
    if (r.end > 0 && walk.chunk <= (r.end - 1) >> walk.shift) {
        walk.open_chunk();
        const int first = r.begin / TILE::KEYS * TILE::KEYS;
        walk.key = walk.key < first ? first : walk.key;
    }
    if (walk.key < r.end) {
        load_tile<TILE>(s.stages[0], job, r, walk.key);
    }
    async_commit();

    typename TILE::query_row *q = TILE::Q_STAYS ? (typename TILE::query_row *)&s.stages[1] : s.q;
    uint32_t q_stays[TILE::Q_STAYS ? DIM / 16 : 1][4];
    load_queries<KV, TILE, DIM>(q, job, r);
    block_sync();
    if constexpr (TILE::Q_STAYS) {
#pragma unroll
        for (int step = 0; step < DIM / 16; step++) {
            load_a(q_stays[step], q, warp_m * 16, step * 16);
        }
    }

    for (int at = 0; walk.key < r.end; at ^= 1) {
        typename TILE::stage &stage = s.stages[at];
        const int key = walk.key, chunk_end = walk.chunk_end;
        async_wait<0>();
        block_sync(); /* the tile is there, and nobody reads the other stage any more */
        walk.next(TILE::KEYS);
        if (walk.key < r.end) {
            load_tile<TILE>(s.stages[at ^ 1], job, r, walk.key);
        }
        async_commit();
        const bool at_border = key < r.begin || key + TILE::KEYS > r.end;
        if constexpr (TILE::I8) {
            if (at_border) { /* what is no number there may not meet a weight of 0 */
                for (int i = (int)threadIdx.x; i < TILE::KEYS; i += ATTENTION_THREADS) {
                    if (key + i < r.begin || key + i >= r.end) {
                        stage.v_scales[i] = from_f32<f16>(0.0f);
                    }
                }
                block_sync();
            }
        }
        float scores[TILE::KEY_TILES][4];
        score<KV, TILE, DIM>(scores, stage, q_stays, q, warp_m, warp_n);
        const bool masked = key + TILE::KEYS - 1 > r.first_position || key < r.last_low;
        soften<TILE>(scores, run, s, stage, job, positions, key, masked, warp_m, warp_n);
        sum_values<KV, TILE>(run, scores, s, stage, warp_m, warp_n);
        const int end = key + TILE::KEYS;
        if (end % CUDA_KV_SPLIT == 0 || end >= chunk_end) { /* runs end nowhere else */
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const int shift = run_shift_of(positions[h]);
                if (end >= chunk_end || (end & ((1 << shift) - 1)) == 0) {
                    if (!shares) {
                        total.fold(h, run);
                    } else if (key >> shift >= lowest_key(positions[h], job.window) >> shift &&
                               key >> shift <= positions[h] >> shift) {
                        store_run<TILE>(job, r, run, h, m + 8 * h, key >> shift, warp_n);
                    }
                    run.clear(h);
                }
            }
        }
    }
    async_wait<0>();
#pragma unroll
    for (int h = 0; h < 2; h++) {
        if (!shares && m + 8 * h < r.packed) {
            store_row<TILE>(job, r, total, h, m + 8 * h, warp_n * TILE::DIMS);
        }
    }
}

#endif
