/*
 * y = sum over the ranks, in their order, of what each has (peer.h):  s = x_0; s = s + x_1; ..  in F32, rounded once.
 *
 * Block b of every rank has the same elements, so it is enough that blocks of the same number meet: it lays its part down, meets,
 * and sums what all have laid down; in two shots it sums only its rank's share of these elements, lays the sums down, meets again,
 * and takes the others' shares. peer_sum_norm goes by rows, and what is summed goes through the norm at once.
 */
#include "norm_row.cuh"
#include "peer.h"

#ifdef INFERD_EMU
#define THREADS 64 /* each is a fiber */
#else
#define THREADS 256
#endif

/* All of the block's writes so far are seen by the blocks of this number on the other ranks, and theirs by it. */
static __device__ __forceinline__ void meet(const peer_view &v, unsigned round, uint32_t call) {
    fence_system();
    block_sync();
    if (threadIdx.x < v.size) {
        store_flag(&v.ranks[threadIdx.x]->flags[round][blockIdx.x][v.rank], call);
    }
    block_sync();
    if (threadIdx.x < v.size) {
        const uint32_t *flag = &v.ranks[v.rank]->flags[round][blockIdx.x][threadIdx.x];
        for (uint32_t looks = 1; (int32_t)(load_flag(flag) - call) < 0; looks++) {
            if (looks % 1024 == 0 && load_flag(v.stop) != 0) {
                break;
            }
            spin();
        }
    }
    block_sync();
}

/* The number of this call, the same in all blocks and ranks. */
static __device__ __forceinline__ uint32_t begin_call(const peer_view &v) {
    const uint32_t call = v.ranks[v.rank]->calls[blockIdx.x] + 1;
    block_sync();
    if (threadIdx.x == 0) {
        v.ranks[v.rank]->calls[blockIdx.x] = call;
    }
    return call;
}

/* Sixteen bytes of T, or one T where addresses or sizes do not allow it. */
template <typename T> struct wide_unit {
    static const size_t N = 16 / sizeof(T);
    static __device__ __forceinline__ void load(float (&v)[N], const T *p) {
        union {
            uint4 bits;
            T x[N];
        } u;
        u.bits = *(const uint4 *)p;
#pragma unroll
        for (size_t i = 0; i < N; i++) {
            v[i] = to_f32(u.x[i]);
        }
    }
    static __device__ __forceinline__ void store(T *p, const float (&v)[N]) {
        union {
            uint4 bits;
            T x[N];
        } u;
#pragma unroll
        for (size_t i = 0; i < N; i++) {
            u.x[i] = from_f32<T>(v[i]);
        }
        store_16(p, u.bits);
    }
    static __device__ __forceinline__ void copy(T *to, const T *from) {
        store_16(to, *(const uint4 *)from);
    }
};
template <typename T> struct single_unit {
    static const size_t N = 1;
    static __device__ __forceinline__ void load(float (&v)[N], const T *p) {
        v[0] = to_f32(*p);
    }
    static __device__ __forceinline__ void store(T *p, const float (&v)[N]) {
        *p = from_f32<T>(v[0]);
    }
    static __device__ __forceinline__ void copy(T *to, const T *from) {
        *to = *from;
    }
};

template <typename T, typename UNIT>
static __device__ __forceinline__ void sum_unit(T *to, const peer_view &v, uint32_t turn, size_t at) {
    float sum[UNIT::N], more[UNIT::N];
    UNIT::load(sum, (const T *)v.ranks[0]->parts[turn] + at);
    for (uint32_t r = 1; r < v.size; r++) {
        UNIT::load(more, (const T *)v.ranks[r]->parts[turn] + at);
#pragma unroll
        for (size_t i = 0; i < UNIT::N; i++) {
            sum[i] = add_f32(sum[i], more[i]);
        }
    }
    UNIT::store(to, sum);
}

/* units: of UNIT::N elements, n in all. */
template <typename T, typename UNIT, bool TWO>
static __global__ void __launch_bounds__(THREADS) peer_sum(const __grid_constant__ peer_view v, T *x, size_t units) {
    const uint32_t call = begin_call(v), turn = call & 1u;
    const size_t each = (units + PEER_BLOCKS - 1) / PEER_BLOCKS, first = blockIdx.x * each;
    const size_t begin = first < units ? first : units, end = first + each < units ? first + each : units;
    T *part = (T *)v.ranks[v.rank]->parts[turn], *sums = (T *)v.ranks[v.rank]->sums[turn];
    for (size_t i = begin + threadIdx.x; i < end; i += THREADS) {
        UNIT::copy(part + i * UNIT::N, x + i * UNIT::N);
    }
    meet(v, 0, call);
    if (!TWO) {
        for (size_t i = begin + threadIdx.x; i < end; i += THREADS) {
            sum_unit<T, UNIT>(x + i * UNIT::N, v, turn, i * UNIT::N);
        }
        return;
    }
    const size_t n = end > begin ? end - begin : 0, share = (n + v.size - 1) / v.size, mine = begin + v.rank * share;
    for (size_t i = mine + threadIdx.x; i < mine + share && i < end; i += THREADS) {
        sum_unit<T, UNIT>(sums + i * UNIT::N, v, turn, i * UNIT::N);
    }
    meet(v, 1, call);
    for (size_t i = begin + threadIdx.x; i < end; i += THREADS) {
        UNIT::copy(x + i * UNIT::N, (const T *)v.ranks[(i - begin) / share]->sums[turn] + i * UNIT::N);
    }
}

template <typename T, typename UNIT>
static cudaError_t launch(const peer_view &v, const void *key, T *x, size_t units, bool two, cudaStream_t stream) {
    return two ? LAUNCH_PEERS((peer_sum<T, UNIT, true>), key, v.rank, v.size, PEER_BLOCKS, THREADS, 0, stream, v, x, units)
               : LAUNCH_PEERS((peer_sum<T, UNIT, false>), key, v.rank, v.size, PEER_BLOCKS, THREADS, 0, stream, v, x, units);
}

template <typename T>
static cudaError_t sum(const peer_view &v, const void *key, void *x, size_t n, bool two, cudaStream_t stream) {
    const bool wide = (uintptr_t)x % 16 == 0 && n % wide_unit<T>::N == 0;
    return wide ? launch<T, wide_unit<T>>(v, key, (T *)x, n / wide_unit<T>::N, two, stream)
                : launch<T, single_unit<T>>(v, key, (T *)x, n, two, stream);
}

extern "C" int cuda_peer_sum(const struct peer_view *v, const void *key, void *x, enum dtype dtype, size_t n, int two_shots,
                             void *stream) {
    const cudaStream_t s = (cudaStream_t)stream;
    switch (dtype) {
    case DTYPE_F32:
        return sum<float>(*v, key, x, n, two_shots, s);
    case DTYPE_F16:
        return sum<f16>(*v, key, x, n, two_shots, s);
    case DTYPE_BF16:
        return sum<bf16>(*v, key, x, n, two_shots, s);
    default:
        return cudaErrorInvalidValue;
    }
}

/* The row at `at` of the ranks' parts, summed and rounded as the sum itself would be, joins the stream. */
struct summed_row {
    const peer_view *v;
    uint32_t turn;
    size_t at, dim;
    bool wide;
    __device__ __forceinline__ bool add(float (&to)[ROW_VECTOR], size_t i) const {
        float sum[ROW_VECTOR], more[ROW_VECTOR];
        row_load(sum, (const bf16 *)v->ranks[0]->parts[turn] + at, i, dim, wide);
        for (uint32_t r = 1; r < v->size; r++) {
            row_load(more, (const bf16 *)v->ranks[r]->parts[turn] + at, i, dim, wide);
#pragma unroll
            for (int j = 0; j < ROW_VECTOR; j++) {
                sum[j] = add_f32(sum[j], more[j]);
            }
        }
#pragma unroll
        for (int j = 0; j < ROW_VECTOR; j++) {
            to[j] = add_f32(to[j], to_f32(from_f32<bf16>(sum[j])));
        }
        return true;
    }
};

static __global__ void __launch_bounds__(ROW_MAX_THREADS)
    peer_sum_norm(const __grid_constant__ peer_view v, bf16 *y, size_t ldy, int8_t *q, size_t ldq, float *scales, float *x, size_t ldx,
                  const bf16 *residual, size_t ldr, const float *w, size_t rows, size_t dim, float eps, add_norm_wide wide) {
    SHARED(row_shared, shared);
    const uint32_t call = begin_call(v), turn = call & 1u;
    bf16 *part = (bf16 *)v.ranks[v.rank]->parts[turn];
    for (size_t r = blockIdx.x; r < rows; r += PEER_BLOCKS) {
        for (size_t i = threadIdx.x; i < dim; i += blockDim.x) {
            part[r * dim + i] = residual[r * ldr + i];
        }
    }
    meet(v, 0, call);
    for (size_t r = blockIdx.x; r < rows; r += PEER_BLOCKS) {
        const summed_row more = {&v, turn, r * dim, dim, dim % ROW_VECTOR == 0};
        add_norm_row(more, r, shared, y, ldy, q, ldq, scales, x, ldx, w, dim, eps, wide);
        block_sync(); /* shared is used again */
    }
}

extern "C" int cuda_peer_sum_norm(const struct peer_view *v, const void *key, void *y, size_t ldy, const struct rows_i8 *q,
                                  float *x, size_t ldx, const void *residual, size_t ldr, const float *w, size_t rows,
                                  size_t dim, float eps, void *stream) {
    const add_norm_wide wide = {row_is_wide(x, ldx, sizeof(float)), true, row_is_wide(y, ldy, sizeof(bf16)),
                                row_is_wide(w, 0, sizeof(float))};
    return LAUNCH_PEERS(peer_sum_norm, key, v->rank, v->size, PEER_BLOCKS, row_threads(dim), sizeof(row_shared),
                        (cudaStream_t)stream, *v, q ? NULL : (bf16 *)y, ldy, q ? q->q : NULL, q ? q->ld : 0,
                        q ? q->scales : NULL, x, ldx, (const bf16 *)residual, ldr, w, rows, dim, eps, wide);
}

extern "C" void cuda_peer_begin(const void *key) {
#ifdef INFERD_EMU
    emu_begin_peers(key);
#else
    (void)key;
#endif
}

extern "C" void cuda_peer_stop(const struct peer_view *v, const void *key, uint32_t *stop) {
    *(volatile uint32_t *)stop = 1;
#ifdef INFERD_EMU
    emu_stop_peers(key, v->rank);
#else
    (void)v, (void)key;
#endif
}
