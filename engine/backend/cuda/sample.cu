/*
 * The choice of a token: the sampler's arithmetic (engine/sampler_math.h), to the bit the token that
 * engine/sampler_choose.c takes from the same logits.
 *
 * What a filter leaves is always the front of all tokens, best first and equal ones by id, less those that min_p takes.
 * So what is left is three numbers: the key of the last one (edge), how many that have just this key (n_equal, lowest
 * ids first), and min_p's floor. A stage walks the row once or more and moves them; nothing is sorted, nothing moved.
 * Weights are whole numbers of 2^-40 of the best token's, so that no order of summing matters.
 *
 *   top_k, top_p    the edge where the count, or the mass, is reached: by histograms of 11, 11 and 10 bits of the key
 *   min_p           a floor under relative probabilities
 *   the draw        each warp weighs its run of ids; the warp in whose run the random number falls looks for the id
 *
 * One block a row; `logits` is read 2 + (4 a filter of rank or mass, 1 a filter of probability) + 2 times, from L2 but
 * for the first.
 */
#include "device.cuh"
#include "launch.h"

#define SAMPLER_INLINE static __device__ __forceinline__
#define SAMPLER_FMA(a, b, c) fma_f32(a, b, c)
#include <inferd/sampler_math.h>

namespace {

typedef unsigned long long mass_t;

constexpr int THREADS = 512, WARPS = THREADS / WARP;
constexpr int CHUNK = 64; /* ids that a warp looks at together; SAMPLER_CHUNK */
constexpr int BUCKETS = 2048;
constexpr int SLOTS = BUCKETS + BUCKETS / 64;
constexpr int CROWD = 8; /* so many lanes of a warp with the same bucket add to it as one */
constexpr int N_DEPTHS = 4; /* how far below the best one, in nats, the edge is looked for first */
constexpr unsigned ALL = 0xffffffffu;
constexpr mass_t NO_MASS = ~0ull; /* more than there is */
constexpr float GREEDY_BELOW = 1e-5f;

enum floor_kind { NO_FLOOR, FLOAT_FLOOR, WEIGHT_FLOOR };

struct sums {
    mass_t mass;
    unsigned count;
};

struct sample_shared {
    mass_t mass[SLOTS]; /* of a bucket at slot_of it */
    RED_ZONE(0)
    unsigned count[SLOTS];
    RED_ZONE(1)
    sums warp[WARPS][N_DEPTHS];
    RED_ZONE(2)
    unsigned keys[WARPS], flags[WARPS];
    RED_ZONE(3)
    unsigned bucket; /* what find_edge's first warp found, and the sums above it */
    sums above;
    int token;
};

/* What is left of a row; the same in all threads. */
struct row {
    const float *z;
    size_t vocab;
    float z_max, scale; /* relative probability = 2^((z - z_max) * scale) */
    unsigned edge, n_equal;
    floor_kind kind;
    float floor, floor_scale;
    int warp, lane;
};

struct wanted { /* as many of the best as are needed until count >= max_count, or mass and min_count are reached */
    unsigned min_count, max_count;
    mass_t mass;
};

__device__ __forceinline__ bool is_reached(const wanted &w, sums s) {
    return s.count >= w.max_count || (s.mass >= w.mass && s.count >= w.min_count);
}

__device__ __forceinline__ mass_t weight_at(const row &r, float z) {
    return sampler_weight(sampler_exp2((z - r.z_max) * r.scale));
}

__device__ __forceinline__ mass_t edge_weight(const row &r) {
    return weight_at(r, sampler_float_of_key(r.edge));
}

__device__ __forceinline__ unsigned warp_max(unsigned v) {
    for (int i = WARP / 2; i > 0; i /= 2) {
        unsigned other = warp_shfl_xor(v, i);
        v = other > v ? other : v;
    }
    return v;
}

__device__ __forceinline__ sums warp_sum(sums s) {
    for (int i = WARP / 2; i > 0; i /= 2) {
        s.mass += warp_shfl_xor(s.mass, i);
        s.count += warp_shfl_xor(s.count, i);
    }
    return s;
}

/* A warp's run of chunks. */
__device__ __forceinline__ void run_of(const row &r, size_t *first, size_t *end) {
    size_t n = (r.vocab + CHUNK - 1) / CHUNK, each = (n + WARPS - 1) / WARPS;
    *first = (size_t)r.warp * each;
    *end = *first + each < n ? *first + each : n;
}

/* A chunk: lane l has ids l and l + 32 of it. kept: it is there and min_p leaves it. */
struct two {
    float z[2];
    unsigned key[2];
    bool kept[2];
};

__device__ __forceinline__ bool above_floor(const row &r, float z) {
    float e = sampler_exp2((z - r.z_max) * r.floor_scale);
    return r.kind == FLOAT_FLOOR ? e >= r.floor : sampler_weight(e) >= sampler_weight(r.floor);
}

__device__ __forceinline__ two load_two(const row &r, size_t chunk) {
    two t;
    unsigned best = 0;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        size_t id = chunk * CHUNK + (size_t)(r.lane + i * WARP);
        t.kept[i] = id < r.vocab;
        t.z[i] = t.kept[i] ? r.z[id] : 0.0f;
        t.key[i] = t.kept[i] ? sampler_key(t.z[i]) : 0;
        best = t.key[i] > best ? t.key[i] : best;
    }
    if (r.kind == FLOAT_FLOOR) { /* chunks whose best is below the floor are passed over as a whole */
        bool passes = above_floor(r, sampler_float_of_key(warp_max(best)));
        t.kept[0] = t.kept[0] && passes;
        t.kept[1] = t.kept[1] && passes;
    }
    if (r.kind != NO_FLOOR) {
        t.kept[0] = t.kept[0] && above_floor(r, t.z[0]);
        t.kept[1] = t.kept[1] && above_floor(r, t.z[1]);
    }
    return t;
}

/* ---- over the whole row ---- */

/* The largest key; *finite: no logit is NaN or infinite (as sampler_max). */
__device__ unsigned largest_key(const row &r, sample_shared &s, bool *finite) {
    unsigned best = 0, bad = 0;
    for (size_t i = threadIdx.x; i < r.vocab; i += THREADS) {
        unsigned key = sampler_key(r.z[i]);
        best = key > best ? key : best;
        bad |= (__float_as_uint(r.z[i]) & 0x7f800000u) == 0x7f800000u;
    }
    best = warp_max(best);
    bad = warp_max(bad);
    block_sync();
    if (r.lane == 0) {
        s.keys[r.warp] = best;
        s.flags[r.warp] = bad;
    }
    block_sync();
    for (int w = 0; w < WARPS; w++) {
        best = s.keys[w] > best ? s.keys[w] : best;
        bad |= s.flags[w];
    }
    *finite = bad == 0;
    return best;
}

/* The lowest id with this key, which one has. */
__device__ int first_with_key(const row &r, sample_shared &s, unsigned key) {
    unsigned id = ALL;
    for (size_t i = threadIdx.x; i < r.vocab && id == ALL; i += THREADS) {
        id = sampler_key(r.z[i]) == key ? (unsigned)i : id;
    }
    unsigned best = warp_max(~id);
    block_sync();
    if (r.lane == 0) {
        s.keys[r.warp] = best;
    }
    block_sync();
    for (int w = 0; w < WARPS; w++) {
        best = s.keys[w] > best ? s.keys[w] : best;
    }
    return (int)~best;
}

/* The sums of what is left above each key of `keys` (that key included), and of no more than n_equal at the edge. */
template <int N> __device__ void sums_above(const row &r, sample_shared &s, const unsigned (&keys)[N], sums (&out)[N]) {
    size_t chunk, end;
    sums mine[N] = {};
    for (run_of(r, &chunk, &end); chunk < end; chunk++) {
        two t = load_two(r, chunk);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            if (t.kept[i] && t.key[i] > r.edge) {
                mass_t w = weight_at(r, t.z[i]);
#pragma unroll
                for (int k = 0; k < N; k++) {
                    mine[k].mass += t.key[i] >= keys[k] ? w : 0;
                    mine[k].count += t.key[i] >= keys[k];
                }
            }
        }
    }
    block_sync();
    for (int k = 0; k < N; k++) {
        sums all = warp_sum(mine[k]);
        if (r.lane == 0) {
            s.warp[r.warp][k] = all;
        }
    }
    block_sync();
    for (int k = 0; k < N; k++) {
        out[k] = {0, 0};
        for (int w = 0; w < WARPS; w++) {
            out[k].mass += s.warp[w][k].mass;
            out[k].count += s.warp[w][k].count;
        }
        if (r.edge >= keys[k] && r.edge > 0) {
            out[k].mass += r.n_equal * edge_weight(r);
            out[k].count += r.n_equal;
        }
    }
}

/* ---- the edge ---- */

/* Where a bucket lies: lanes that walk 64 buckets each meet different banks. */
__device__ __forceinline__ unsigned slot_of(unsigned bucket) {
    return bucket + bucket / 64;
}

/* A key not above the one that find_edge looks for: most of the row is passed over by it. */
__device__ unsigned key_below_edge(const row &r, sample_shared &s, const wanted &w) {
    unsigned keys[N_DEPTHS];
    sums above[N_DEPTHS];
    for (int k = 0; k < N_DEPTHS; k++) {
        keys[k] = sampler_key(r.z_max - (float)(2 << k)); /* 2, 4, 8, 16 */
    }
    sums_above(r, s, keys, above);
    for (int k = 0; k < N_DEPTHS; k++) {
        if (is_reached(w, above[k])) {
            return keys[k];
        }
    }
    return 0;
}

/* Of a flat row whole warps have the same few buckets, and would wait for one another: as long as the first lane's is
 * that of a crowd, the crowd's sum is added at once. Sums of integers: the same in any order. */
__device__ __forceinline__ void add_to_bucket(const row &r, sample_shared &s, bool in, unsigned slot, mass_t weight) {
    unsigned open = warp_ballot(in);
    while (__popc(open) >= CROWD) {
        int first = __ffs((int)open) - 1;
        unsigned theirs = warp_shfl(slot, first);
        bool one = in && slot == theirs;
        unsigned crowd = warp_ballot(one);
        if (__popc(crowd) < CROWD) {
            break;
        }
        sums all = warp_sum({one ? weight : 0, 0});
        if (r.lane == first) {
            atomicAdd(&s.mass[slot], all.mass);
            atomicAdd(&s.count[slot], (unsigned)__popc(crowd));
        }
        in = in && !one;
        open &= ~crowd;
    }
    if (in) {
        atomicAdd(&s.mass[slot], weight);
        atomicAdd(&s.count[slot], 1u);
    }
}

/* s.mass and s.count: what is left with key >= least, in the buckets of its bits [shift, shift + bits), if the others
 * above are those of prefix. */
__device__ void fill_buckets(const row &r, sample_shared &s, unsigned least, unsigned prefix, unsigned mask, int shift,
                             unsigned n_buckets) {
    block_sync();
    for (int i = (int)threadIdx.x; i < SLOTS; i += THREADS) {
        s.mass[i] = 0;
        s.count[i] = 0;
    }
    block_sync();
    size_t chunk, end;
    for (run_of(r, &chunk, &end); chunk < end; chunk++) {
        two t = load_two(r, chunk);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            bool in = t.kept[i] && t.key[i] >= r.edge && t.key[i] >= least && (t.key[i] & mask) == prefix;
            add_to_bucket(r, s, in, slot_of(t.key[i] >> shift & (n_buckets - 1)), in ? weight_at(r, t.z[i]) : 0);
        }
    }
    block_sync();
}

/* The first bucket from the top with which w is reached (0 if none is): s.bucket, and the sums above it in s.above. */
__device__ void find_bucket(const row &r, sample_shared &s, const wanted &w, sums above, unsigned n_buckets) {
    if (r.warp == 0) {
        unsigned each = n_buckets / WARP, top = n_buckets - 1 - (unsigned)r.lane * each;
        sums mine = {0, 0};
        for (unsigned i = 0; i < each; i++) {
            mine.mass += s.mass[slot_of(top - i)];
            mine.count += s.count[slot_of(top - i)];
        }
        sums until = mine; /* of this lane and those before it */
        for (int d = 1; d < WARP; d *= 2) {
            mass_t mass = warp_shfl_up(until.mass, (unsigned)d);
            unsigned count = warp_shfl_up(until.count, (unsigned)d);
            until.mass += r.lane >= d ? mass : 0;
            until.count += r.lane >= d ? count : 0;
        }
        until.mass += above.mass;
        until.count += above.count;
        unsigned reached = warp_ballot(is_reached(w, until)) | 1u << (WARP - 1); /* the last lane if none is */
        if ((reached & (0u - reached)) == 1u << r.lane) {
            sums at = {until.mass - mine.mass, until.count - mine.count};
            unsigned bucket = top, last = top - (each - 1);
            while (bucket > last && !is_reached(w, {at.mass + s.mass[slot_of(bucket)], at.count + s.count[slot_of(bucket)]})) {
                at.mass += s.mass[slot_of(bucket)];
                at.count += s.count[slot_of(bucket)];
                bucket--;
            }
            s.bucket = bucket;
            s.above = at;
        }
    }
    block_sync();
}

/* How many tokens of this weight are needed on top of `s` until w is reached, at most n. */
__device__ unsigned needed(const wanted &w, sums s, mass_t weight, unsigned n) {
    if (is_reached(w, s)) {
        return 0;
    }
    unsigned by_count = w.max_count - s.count, by_mass = s.count < w.min_count ? w.min_count - s.count : 0;
    if (s.mass < w.mass) {
        mass_t missing = w.mass - s.mass, more = weight > 0 ? missing / weight + (missing % weight != 0) : NO_MASS;
        by_mass = more > by_mass ? (more < ALL ? (unsigned)more : ALL) : by_mass;
    }
    unsigned least = by_count < by_mass ? by_count : by_mass;
    return least < n ? least : n;
}

/* Of what is left, the best until w is reached (all if it never is). */
__device__ void keep_best(row &r, sample_shared &s, const wanted &w) {
    unsigned least = key_below_edge(r, s, w), prefix = 0, mask = 0, equal = 0;
    sums above = {0, 0};
    for (int d = 0; d < 3; d++) {
        int shift = d == 0 ? 21 : d == 1 ? 10 : 0;
        unsigned size = d < 2 ? 2048 : 1024;
        fill_buckets(r, s, least, prefix, mask, shift, size);
        find_bucket(r, s, w, above, size);
        above = s.above;
        equal = s.count[slot_of(s.bucket)];
        prefix |= s.bucket << shift;
        mask |= (size - 1) << shift;
    }
    if (prefix > r.edge || (prefix == r.edge && r.edge > 0)) {
        unsigned available = prefix == r.edge && r.n_equal < equal ? r.n_equal : equal;
        r.edge = prefix;
        r.n_equal = needed(w, above, edge_weight(r), available);
    }
}

/* ---- stages ---- */

__device__ sums left(const row &r, sample_shared &s) {
    const unsigned keys[1] = {0};
    sums all[1];
    sums_above(r, s, keys, all);
    return all[0];
}

__device__ void keep_min_p(row &r, sample_shared &s, const cuda_choice &c, bool first) {
    row with = r;
    with.kind = first && c.min_keep == 1 ? FLOAT_FLOOR : WEIGHT_FLOOR;
    with.floor = c.min_p;
    with.floor_scale = r.scale;
    if (with.kind == WEIGHT_FLOOR && with.edge > 0 && !above_floor(with, sampler_float_of_key(with.edge))) {
        with.n_equal = 0;
    }
    if (c.min_keep > 1 && left(with, s).count < c.min_keep) {
        keep_best(r, s, {1, c.min_keep, NO_MASS});
    } else {
        r = with;
    }
}

__device__ void set_temperature(row &r, float t) {
    r.scale = SAMPLER_LOG2E / (t < GREEDY_BELOW ? GREEDY_BELOW : t);
}

__device__ void run_stage(row &r, sample_shared &s, const cuda_choice &c, int stage) {
    switch (stage) {
    case CHOICE_TEMPERATURE:
        set_temperature(r, c.temperature);
        break;
    case CHOICE_TOP_K:
        keep_best(r, s, {1, c.top_k, NO_MASS});
        break;
    case CHOICE_TOP_P: {
        mass_t want = (mass_t)((double)left(r, s).mass * (double)c.top_p);
        keep_best(r, s, {c.min_keep, ALL, want > 0 ? want : 1});
        break;
    }
    case CHOICE_MIN_P:
        keep_min_p(r, s, c, false);
        break;
    }
}

/* As gather_first of the host: a first min_p in a row of top_k and min_p comes before the top_k. */
__device__ void run_stages(row &r, sample_shared &s, const cuda_choice &c) {
    int at = 0, end;
    for (; at < c.n_stages && c.stages[at] == CHOICE_TEMPERATURE; at++) {
        set_temperature(r, c.temperature);
    }
    bool early = false;
    for (end = at; end < c.n_stages && !early; end++) {
        early = c.stages[end] == CHOICE_MIN_P;
        if (!early && c.stages[end] != CHOICE_TOP_K) {
            break;
        }
    }
    early = early && c.min_keep == 1;
    if (early) {
        keep_min_p(r, s, c, true);
    }
    for (; at < c.n_stages; at++) {
        if (!(early && c.stages[at] == CHOICE_MIN_P)) {
            run_stage(r, s, c, c.stages[at]);
        }
    }
}

/* ---- the draw ---- */

/* The warp in whose run the target lies; n_equal of its own run, and the target less what comes before it. */
__device__ int warp_of_target(const row &r, const sample_shared &s, mass_t target, mass_t *rest, unsigned *n_equal) {
    mass_t weight = edge_weight(r);
    unsigned open = r.edge > 0 ? r.n_equal : 0;
    *rest = target;
    for (int w = 0; w < WARPS; w++) {
        unsigned equal = s.warp[w][0].count < open ? s.warp[w][0].count : open;
        mass_t mass = s.warp[w][0].mass + equal * weight;
        if (*rest < mass) {
            *n_equal = equal;
            return w;
        }
        *rest -= mass;
        open -= equal;
    }
    return -1; /* target < total: never */
}

/* The id where the running sum passes `rest`; this warp's run. */
__device__ void find_id(const row &r, sample_shared &s, mass_t rest, unsigned n_equal) {
    size_t chunk, end;
    bool found = false;
    for (run_of(r, &chunk, &end); chunk < end && !found; chunk++) {
        two t = load_two(r, chunk);
#pragma unroll
        for (int i = 0; i < 2 && !found; i++) {
            bool at_edge = t.kept[i] && t.key[i] == r.edge;
            unsigned before = warp_ballot(at_edge), below = (1u << r.lane) - 1;
            bool in = t.kept[i] && (t.key[i] > r.edge || (at_edge && (unsigned)__popc(before & below) < n_equal));
            mass_t sum = in ? weight_at(r, t.z[i]) : 0;
            for (int d = 1; d < WARP; d *= 2) {
                mass_t other = warp_shfl_up(sum, (unsigned)d);
                sum += r.lane >= d ? other : 0;
            }
            unsigned passed = warp_ballot(sum > rest);
            found = passed != 0;
            if (found && (passed & (0u - passed)) == 1u << r.lane) {
                s.token = (int)(chunk * CHUNK + (size_t)(r.lane + i * WARP));
            }
            unsigned taken = (unsigned)__popc(before);
            n_equal -= taken < n_equal ? taken : n_equal;
            rest -= found ? 0 : warp_shfl(sum, WARP - 1);
        }
    }
}

__device__ int draw(const row &r, sample_shared &s, uint64_t random) {
    size_t chunk, end;
    sums mine = {0, 0}; /* mass above the edge, count at it */
    for (run_of(r, &chunk, &end); chunk < end; chunk++) {
        two t = load_two(r, chunk);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            mine.mass += t.kept[i] && t.key[i] > r.edge ? weight_at(r, t.z[i]) : 0;
            mine.count += t.kept[i] && t.key[i] == r.edge;
        }
    }
    mine = warp_sum(mine);
    block_sync();
    if (r.lane == 0) {
        s.warp[r.warp][0] = mine;
    }
    block_sync();
    sums above = {0, 0};
    for (int w = 0; w < WARPS; w++) {
        above.mass += s.warp[w][0].mass;
        above.count += s.warp[w][0].count;
    }
    unsigned equal = r.edge == 0 ? 0 : above.count < r.n_equal ? above.count : r.n_equal;
    mass_t rest, total = above.mass + equal * edge_weight(r);
    unsigned n_equal = 0;
    int w = warp_of_target(r, s, sampler_scale_random(random, total), &rest, &n_equal);
    if (w == r.warp) {
        find_id(r, s, rest, n_equal);
    }
    block_sync();
    return s.token;
}

/* ---- logits ---- */

__device__ float edited(float z, const logit_edit &e, const cuda_choice &c) {
    z = add_f32(z, e.bias);
    if (e.count != 0) {
        z = z > 0.0f ? z / c.repetition_penalty : mul_f32(z, c.repetition_penalty);
    }
    if (e.count > 0) {
        z = add_f32(z, -mul_f32((float)e.count, c.frequency_penalty));
        z = add_f32(z, -c.presence_penalty);
    }
    return e.masked ? __uint_as_float(0xff800000u) : z;
}

/* A copy of the row with its edits. */
__device__ void edit_row(row &r, float *copy, const logit_edit *edits, const cuda_choice &c) {
    for (size_t i = threadIdx.x; i < r.vocab; i += THREADS) {
        copy[i] = r.z[i];
    }
    block_sync();
    for (unsigned i = threadIdx.x; i < c.n_edits; i += THREADS) {
        const logit_edit e = edits[c.first_edit + i];
        copy[e.id] = edited(copy[e.id], e, c);
    }
    block_sync();
    r.z = copy;
}

__device__ int choose(row &r, sample_shared &s, const cuda_choice &c, float *copy, const logit_edit *edits) {
    bool finite;
    unsigned best = largest_key(r, s, &finite);
    if (!finite) {
        return CHOICE_NONFINITE;
    }
    if (c.n_edits > 0) {
        edit_row(r, copy, edits, c);
        best = largest_key(r, s, &finite); /* masked ones are infinite */
    }
    r.z_max = sampler_float_of_key(best);
    unsigned bits = __float_as_uint(r.z_max);
    if (bits == 0xff800000u) {
        return CHOICE_NO_TOKEN;
    }
    if ((bits & 0x7f800000u) == 0x7f800000u) {
        return CHOICE_NONFINITE; /* a penalty took a huge logit over the edge */
    }
    if (c.greedy) {
        return first_with_key(r, s, best);
    }
    run_stages(r, s, c);
    return draw(r, s, c.random);
}

__device__ row row_at(const float *z, size_t vocab) {
    row r = {};
    r.z = z;
    r.vocab = vocab;
    r.kind = NO_FLOOR;
    r.warp = (int)threadIdx.x / WARP;
    r.lane = (int)threadIdx.x % WARP;
    set_temperature(r, 1.0f);
    return r;
}

__global__ void __launch_bounds__(THREADS)
    choose_kernel(const float *logits, size_t ld, size_t vocab, const cuda_choice *choices, const logit_edit *edits,
                  const int32_t *ids, float *copies, int32_t *tokens) {
    SHARED(sample_shared, s);
    const cuda_choice &c = choices[blockIdx.x];
    row r = row_at(logits + (size_t)(ids ? blockIdx.x : c.logits_row) * ld, vocab);
    int token = choose(r, s, c, copies + (size_t)blockIdx.x * vocab, edits);
    if (threadIdx.x == 0) {
        tokens[blockIdx.x] = ids && token >= 0 ? ids[(size_t)blockIdx.x * ld + (size_t)token] : token;
    }
}

/* ---- the best of a part ---- */

/* Where this warp's run begins among what is left of the row: how many come before, and how many at the edge may still come. */
__device__ unsigned place_of_run(const row &r, sample_shared &s, unsigned *open) {
    size_t chunk, end;
    sums mine = {0, 0}; /* how many above the edge, at it */
    for (run_of(r, &chunk, &end); chunk < end; chunk++) {
        two t = load_two(r, chunk);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            mine.mass += t.kept[i] && t.key[i] > r.edge;
            mine.count += t.kept[i] && t.key[i] == r.edge;
        }
    }
    mine = warp_sum(mine);
    block_sync();
    if (r.lane == 0) {
        s.warp[r.warp][0] = mine;
    }
    block_sync();
    unsigned place = 0;
    *open = r.n_equal;
    for (int w = 0; w < r.warp; w++) {
        unsigned equal = s.warp[w][0].count < *open ? s.warp[w][0].count : *open;
        place += (unsigned)s.warp[w][0].mass + equal;
        *open -= equal;
    }
    return place;
}

/* out[k]: the k largest of a row, of equal ones the lowest ids, in order of ids; none where there are fewer. */
__global__ void __launch_bounds__(THREADS)
    top_of_part(const float *part, size_t ld, size_t first, size_t n, const cuda_choice *choices, unsigned k, cuda_candidate *out) {
    SHARED(sample_shared, s);
    row r = row_at(part + (size_t)choices[blockIdx.x].logits_row * ld, n);
    cuda_candidate *to = out + (size_t)blockIdx.x * k;
    bool finite;
    unsigned best = largest_key(r, s, &finite);
    const cuda_candidate none = {finite ? CUDA_NO_CANDIDATE : __uint_as_float(0x7fc00000u), 0};
    r.z_max = sampler_float_of_key(best);
    for (unsigned i = threadIdx.x; i < k; i += THREADS) {
        to[i] = none;
    }
    block_sync();
    if (!finite || n == 0) {
        return;
    }
    if (n > k) {
        keep_best(r, s, {1, k, NO_MASS});
    }
    unsigned open, place = place_of_run(r, s, &open), below = (1u << r.lane) - 1;
    size_t chunk, end;
    for (run_of(r, &chunk, &end); chunk < end; chunk++) {
        two t = load_two(r, chunk);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            bool at_edge = t.kept[i] && t.key[i] == r.edge;
            unsigned equal = warp_ballot(at_edge);
            bool in = t.kept[i] && (t.key[i] > r.edge || (at_edge && (unsigned)__popc(equal & below) < open));
            unsigned all = warp_ballot(in), at = place + (unsigned)__popc(all & below);
            if (in && at < k) {
                to[at] = {t.z[i], (int32_t)(first + chunk * CHUNK + (size_t)(r.lane + i * WARP))};
            }
            unsigned taken = (unsigned)__popc(equal);
            open -= taken < open ? taken : open;
            place += (unsigned)__popc(all);
        }
    }
}

/* Rows of what the ranks found, side by side in their order and so in that of the ids: z, ids[rows][size * k]. */
__global__ void join_candidates(const cuda_candidate *parts, size_t rows, size_t size, size_t k, float *z, int32_t *ids) {
    size_t row = size * k;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < rows * row; i += (size_t)gridDim.x * blockDim.x) {
        size_t m = i / row, rank = i % row / k;
        const cuda_candidate c = parts[(rank * rows + m) * k + i % k];
        z[i] = c.z;
        ids[i] = c.id;
    }
}

__global__ void feed_kernel(int32_t *token_ids, const int32_t *tokens, size_t n) {
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n && token_ids[i] < 0) {
        int32_t token = tokens[-1 - token_ids[i]];
        token_ids[i] = token < 0 ? 0 : token;
    }
}

} // namespace

extern "C" cudaError_t cuda_feed(int32_t *token_ids, const int32_t *tokens, size_t n, cudaStream_t stream) {
    if (n == 0) {
        return cudaSuccess;
    }
    return LAUNCH(feed_kernel, dim3((unsigned)((n + 255) / 256)), dim3(256), 0, stream, token_ids, tokens, n);
}

extern "C" size_t cuda_choose_workspace(size_t vocab_size) {
    return (size_t)CUDA_CHOICE_ROWS * vocab_size * sizeof(float);
}

extern "C" cudaError_t cuda_choose(const float *logits, size_t ld, size_t vocab_size, const struct cuda_choice *choices,
                                   const struct logit_edit *edits, size_t n, int32_t *tokens, void *workspace,
                                   cudaStream_t stream) {
    if (n == 0) {
        return cudaSuccess;
    }
    return LAUNCH(choose_kernel, dim3((unsigned)n), dim3(THREADS), sizeof(sample_shared), stream, logits, ld,
                  vocab_size, choices, edits, (const int32_t *)nullptr, (float *)workspace, tokens);
}

extern "C" cudaError_t cuda_top_of_part(const float *part, size_t ld, size_t first, size_t n, const struct cuda_choice *choices,
                                        size_t rows, size_t k, struct cuda_candidate *out, cudaStream_t stream) {
    if (rows == 0) {
        return cudaSuccess;
    }
    return LAUNCH(top_of_part, dim3((unsigned)rows), dim3(THREADS), sizeof(sample_shared), stream, part, ld, first, n, choices,
                  (unsigned)k, out);
}

extern "C" cudaError_t cuda_choose_candidates(const struct cuda_candidate *parts, size_t size, size_t k, const struct cuda_choice *choices,
                                              size_t rows, int32_t *tokens, void *workspace, cudaStream_t stream) {
    size_t row = size * k, blocks = (rows * row + 255) / 256;
    float *z = (float *)workspace;
    int32_t *ids = (int32_t *)(z + rows * row);
    if (rows == 0) {
        return cudaSuccess;
    }
    cudaError_t rc = LAUNCH(join_candidates, dim3((unsigned)(blocks < 1024 ? blocks : 1024)), dim3(256), 0, stream, parts, rows, size, k, z, ids);
    return rc != cudaSuccess ? rc
                             : LAUNCH(choose_kernel, dim3((unsigned)rows), dim3(THREADS), sizeof(sample_shared), stream, z, row, row, choices,
                                      (const logit_edit *)nullptr, (const int32_t *)ids, (float *)nullptr, tokens);
}
