/*
 * attention.cu on the emulator: against the reference in double precision (tests/ops/reference.c), and its promise that
 * a row has the same bits in any company: alone or among others, its prompt whole or in chunks, as a row of decode
 * whose runs are shared by blocks or not. Memory that no query may see is filled with NaN.
 */
#include "kernels.h"

enum { MAX_SEQUENCES = 6 };

struct attention_case {
    size_t n_heads, n_kv_heads, head_dim, block_size, window;
    enum dtype dtype;
    size_t n_sequences;
    size_t context[MAX_SEQUENCES]; /* tokens in all */
    size_t rows[MAX_SEQUENCES];    /* of these, computed in the call that all others are compared with */
    size_t chunks[3];              /* 0: no more */
};

static const struct cuda_device device = {4, 163 * 1024, 80};

/* A case laid out in memory: K and V of whole contexts in blocks dealt from the end with a stride, and a query for each
 * token. */
struct state {
    const attention_case &c;
    size_t max_blocks = 1, n_blocks = 1, bytes, block_bytes, ldq, ldo;
    std::vector<int32_t> tables; /* [sequence][max_blocks] */
    std::vector<uint8_t> full;   /* every token of every sequence, NaN elsewhere */
    std::vector<uint16_t> q[MAX_SEQUENCES];
    std::vector<uint16_t> out[MAX_SEQUENCES]; /* of the one call */
    float scale;

    explicit state(const attention_case &c_) : c(c_) {
        size_t width = c.n_heads * c.head_dim;
        ldq = width + (c.head_dim % 16 == 0 ? 8 : 3);
        ldo = width + 5;
        scale = (float)(1 / sqrt((double)c.head_dim));
        for (size_t i = 0; i < c.n_sequences; i++) {
            size_t blocks = (c.context[i] + c.block_size - 1) / c.block_size;
            n_blocks += blocks;
            max_blocks = blocks > max_blocks ? blocks : max_blocks;
        }
        tables.assign(c.n_sequences * max_blocks, -1);
        size_t element = c.dtype == DTYPE_I8 ? 1 : 2, scales = c.dtype == DTYPE_I8 ? 2 : 0;
        block_bytes = 2 * c.n_kv_heads * c.block_size * (c.head_dim * element + scales);
        bytes = n_blocks * block_bytes;
        full.assign(bytes, 0x7f);
        size_t dealt = 0, stride = n_blocks % 7 == 0 ? 11 : 7;
        for (size_t i = 0; i < c.n_sequences; i++) {
            for (size_t j = 0; j * c.block_size < c.context[i]; j++) {
                tables[i * max_blocks + j] = (int32_t)(n_blocks - 1 - dealt++ * stride % n_blocks);
            }
            for (size_t p = 0; p < c.context[i]; p++) {
                for (size_t h = 0; h < 2 * c.n_kv_heads; h++) {
                    put_row(i, p, h, h < c.n_kv_heads ? 2 : 1);
                }
            }
            q[i] = random_bf16(c.context[i] * ldq, 3);
        }
    }
    /* Head h of K, or of V behind them: where its row and its scale lie. */
    size_t row_at(size_t sequence, size_t position, size_t h) const {
        size_t block = (size_t)tables[sequence * max_blocks + position / c.block_size];
        size_t token = h * c.block_size + position % c.block_size;
        return block * block_bytes + token * c.head_dim * (c.dtype == DTYPE_I8 ? 1 : 2);
    }
    size_t scale_at(size_t sequence, size_t position, size_t h) const {
        size_t block = (size_t)tables[sequence * max_blocks + position / c.block_size];
        size_t values = 2 * c.n_kv_heads * c.block_size * c.head_dim;
        return block * block_bytes + values + (h * c.block_size + position % c.block_size) * 2;
    }
    void put_row(size_t sequence, size_t position, size_t h, double size) {
        size_t at = row_at(sequence, position, h);
        for (size_t d = 0; d < c.head_dim; d++) {
            double value = random_unit() * size;
            if (c.dtype == DTYPE_I8) {
                full[at + d] = (uint8_t)(int8_t)lrint(127 * value / size);
            } else {
                uint16_t u = c.dtype == DTYPE_F16 ? reference_to_f16(value) : reference_to_bf16(value);
                memcpy(&full[at + 2 * d], &u, 2);
            }
        }
        if (c.dtype == DTYPE_I8) {
            uint16_t u = reference_to_f16((0.75 + random_unit() / 4) * size / 127);
            memcpy(&full[scale_at(sequence, position, h)], &u, 2);
        }
    }
    double element(size_t sequence, size_t position, size_t h, size_t d) const {
        uint16_t u;
        size_t at = row_at(sequence, position, h);
        if (c.dtype == DTYPE_I8) {
            memcpy(&u, &full[scale_at(sequence, position, h)], 2);
            return (double)(int8_t)full[at + d] * reference_f16(u);
        }
        memcpy(&u, &full[at + 2 * d], 2);
        return c.dtype == DTYPE_F16 ? reference_f16(u) : reference_bf16(u);
    }
};

struct call {
    size_t n = 0;
    size_t sequences[MAX_SEQUENCES], context[MAX_SEQUENCES], rows[MAX_SEQUENCES];
    size_t max_context = 0; /* what the host says; 0: the largest */
    bool shares = true;     /* there is workspace */
    size_t window = 0;
    void add(size_t sequence, size_t context_, size_t rows_) {
        sequences[n] = sequence, context[n] = context_, rows[n++] = rows_;
    }
};

/* Only what a query of the call may see is in memory; the rows' results, [rows][n_heads * head_dim]. */
static std::vector<uint16_t> attend(const state &s, const call &call) {
    const attention_case &c = s.c;
    size_t element = c.dtype == DTYPE_I8 ? 1 : 2, width = c.n_heads * c.head_dim;
    std::vector<uint8_t> memory(s.bytes, 0x7f);
    std::vector<int32_t> cu_seqlens(1, 0), context_lens, tables;
    std::vector<uint16_t> q;
    size_t max_query = 0, max_context = call.max_context;
    for (size_t i = 0; i < call.n; i++) {
        size_t sequence = call.sequences[i], context = call.context[i], first = context - call.rows[i];
        if (context == 0) { /* fills up a bucket: rows of nobody */
            first = 0;
        }
        size_t low = c.window > 0 && first + 1 > c.window ? first + 1 - c.window : 0;
        for (size_t p = low; p < context; p++) {
            for (size_t h = 0; h < 2 * c.n_kv_heads; h++) {
                size_t at = s.row_at(sequence, p, h);
                memcpy(&memory[at], &s.full[at], c.head_dim * element);
                if (c.dtype == DTYPE_I8) {
                    at = s.scale_at(sequence, p, h);
                    memcpy(&memory[at], &s.full[at], 2);
                }
            }
        }
        cu_seqlens.push_back(cu_seqlens.back() + (int32_t)call.rows[i]);
        context_lens.push_back((int32_t)context);
        tables.insert(tables.end(), s.tables.begin() + (ptrdiff_t)(sequence * s.max_blocks),
                      s.tables.begin() + (ptrdiff_t)((sequence + 1) * s.max_blocks));
        q.insert(q.end(), s.q[sequence].begin() + (ptrdiff_t)(first * s.ldq),
                 s.q[sequence].begin() + (ptrdiff_t)((first + call.rows[i]) * s.ldq));
        max_query = call.rows[i] > max_query ? call.rows[i] : max_query;
        max_context = context > max_context ? context : max_context;
    }
    size_t total = (size_t)cu_seqlens.back();
    q.resize((total - 1) * s.ldq + width);
    device_array<uint8_t> kv_memory(memory);
    device_array<uint16_t> q_memory(q), out(std::vector<uint16_t>((total - 1) * s.ldo + width, 0x5a5a));
    device_array<int32_t> cu(cu_seqlens), lens(context_lens), table(tables);
    size_t workspace_bytes =
        call.shares ? cuda_attention_workspace(&device, call.n, c.n_heads, c.n_kv_heads, c.head_dim, max_context) : 16;
    device_array<uint8_t> workspace(workspace_bytes);
    struct kv_layer kv = {kv_memory.p, c.dtype, s.n_blocks, c.block_size, c.n_kv_heads, c.head_dim};
    struct attention_args args = {};
    args.q = q_memory.p, args.ldq = s.ldq;
    args.out = out.p, args.ldo = s.ldo;
    args.kv = &kv;
    args.block_tables = table.p, args.max_blocks = s.max_blocks;
    args.cu_seqlens = cu.p, args.context_lens = lens.p;
    args.n_sequences = call.n, args.rows = total;
    args.max_query = max_query, args.max_context = max_context;
    args.n_heads = c.n_heads, args.n_kv_heads = c.n_kv_heads, args.head_dim = c.head_dim;
    args.scale = s.scale, args.window = c.window;
    DONE(cuda_attention(&device, &args, workspace.p, workspace_bytes, 0));
    std::vector<uint16_t> all = out.download(), packed;
    for (size_t r = 0; r < total; r++) {
        packed.insert(packed.end(), all.begin() + (ptrdiff_t)(r * s.ldo), all.begin() + (ptrdiff_t)(r * s.ldo + width));
        for (size_t i = width; r + 1 < total && i < s.ldo; i++) {
            CHECK(all[r * s.ldo + i] == 0x5a5a, "attention writes beside row %zu", r);
        }
    }
    return packed;
}

static double worst_error;

static void check_values(const state &s, size_t sequence) {
    const attention_case &c = s.c;
    size_t context = c.context[sequence], rows = c.rows[sequence], dim = c.head_dim, width = c.n_heads * dim;
    std::vector<double> k(context * dim), v(context * dim), q(dim), want(dim), all, result;
    for (size_t h = 0; h < c.n_heads; h++) {
        size_t kv_head = h / (c.n_heads / c.n_kv_heads);
        for (size_t p = 0; p < context; p++) {
            for (size_t d = 0; d < dim; d++) {
                k[p * dim + d] = s.element(sequence, p, kv_head, d);
                v[p * dim + d] = s.element(sequence, p, c.n_kv_heads + kv_head, d);
            }
        }
        for (size_t r = 0; r<rows; r += rows> 20 ? 7 : 1) {
            size_t position = context - rows + r, end = position + 1;
            size_t begin = c.window > 0 && end > c.window ? end - c.window : 0;
            for (size_t d = 0; d < dim; d++) {
                q[d] = reference_bf16(s.q[sequence][position * s.ldq + h * dim + d]);
            }
            reference_attention(q.data(), k.data(), v.data(), dim, begin, end, (double)s.scale, want.data());
            for (size_t d = 0; d < dim; d++) {
                all.push_back(want[d]);
                result.push_back(reference_bf16(s.out[sequence][r * width + h * dim + d]));
            }
        }
    }
    double error = relative_error(result, all);
    worst_error = error > worst_error ? error : worst_error;
    CHECK(error < 4e-3, "heads %zu/%zu x %zu %s, context %zu, rows %zu: error %.2g", c.n_heads, c.n_kv_heads, dim,
          c.dtype == DTYPE_I8    ? "I8"
          : c.dtype == DTYPE_F16 ? "F16"
                                 : "BF16",
          context, rows, error);
}

static void check_same(const state &s, size_t sequence, size_t first, const uint16_t *out, size_t rows,
                       const char *what, size_t number) {
    const attention_case &c = s.c;
    size_t width = c.n_heads * c.head_dim, differ = 0;
    for (size_t i = 0; i < rows * width; i++) {
        differ += out[i] != s.out[sequence][first * width + i];
    }
    CHECK(differ == 0,
          "heads %zu/%zu x %zu, dtype %d, window %zu, context %zu, rows from %zu, %s %zu: %zu of %zu differ", c.n_heads,
          c.n_kv_heads, c.head_dim, (int)c.dtype, c.window, c.context[sequence], first, what, number, differ,
          rows * width);
}

/* Each sequence alone, in chunks. */
static void check_chunks(const state &s, size_t chunk, bool shares) {
    const attention_case &c = s.c;
    size_t width = c.n_heads * c.head_dim;
    for (size_t i = 0; i < c.n_sequences; i++) {
        /* of many small chunks the last ones only */
        size_t start = c.rows[i] > 4 * chunk ? c.rows[i] - 4 * chunk : 0;
        for (size_t first = start; first < c.rows[i]; first += chunk) {
            size_t rows = c.rows[i] - first < chunk ? c.rows[i] - first : chunk;
            call alone;
            alone.add(i, c.context[i] - c.rows[i] + first + rows, rows);
            alone.shares = shares;
            std::vector<uint16_t> out = attend(s, alone);
            check_same(s, i, first, out.data(), rows, shares ? "shared, in chunks of" : "in chunks of", chunk);
        }
    }
    (void)width;
}

/* The last row of every sequence as a decode step, in a bucket that is larger and made for longer contexts. */
static void check_decode(const state &s, bool shares) {
    const attention_case &c = s.c;
    size_t width = c.n_heads * c.head_dim;
    call step;
    step.shares = shares;
    step.max_context = s.max_blocks * c.block_size + 700;
    for (size_t i = 0; i < c.n_sequences; i++) {
        step.add(i, c.context[i], 1);
    }
    if (step.n < MAX_SEQUENCES) {
        step.add(0, 0, 1);
    }
    std::vector<uint16_t> out = attend(s, step);
    for (size_t i = 0; i < c.n_sequences; i++) {
        check_same(s, i, c.rows[i] - 1, &out[i * width], 1, "decode, shared:", shares);
    }
    for (size_t i = c.n_sequences * width; i < step.n * width; i++) {
        CHECK(out[i] == 0, "a row that fills up a bucket is not zero");
    }
}

static void test_case(const attention_case &c) {
    state s(c);
    size_t width = c.n_heads * c.head_dim;
    call all;
    for (size_t i = 0; i < c.n_sequences; i++) {
        all.add(i, c.context[i], c.rows[i]);
    }
    std::vector<uint16_t> out = attend(s, all);
    for (size_t i = 0, at = 0; i < c.n_sequences; at += c.rows[i] * width, i++) {
        s.out[i].assign(out.begin() + (ptrdiff_t)at, out.begin() + (ptrdiff_t)(at + c.rows[i] * width));
        check_values(s, i);
    }
    for (size_t chunk : c.chunks) {
        if (chunk > 0) {
            check_chunks(s, chunk, true);
        }
    }
    if (c.chunks[0] > 0) {
        check_chunks(s, c.chunks[0], false);
    }
    check_decode(s, true);
    check_decode(s, false);
}

static void test_refusals() {
    int32_t none = 0;
    struct kv_layer kv = {&none, DTYPE_F16, 1, 24, 1, 16};
    struct attention_args args = {};
    args.kv = &kv, args.n_heads = args.n_kv_heads = 1, args.head_dim = 16, args.rows = args.n_sequences = 1;
    CHECK(cuda_attention(&device, &args, NULL, 0, 0) == cudaErrorInvalidValue, "blocks of 24 tokens");
    kv.block_size = 16, kv.head_dim = args.head_dim = 264;
    CHECK(cuda_attention(&device, &args, NULL, 0, 0) == cudaErrorInvalidValue, "heads of 264");
    kv.head_dim = args.head_dim = 16, kv.dtype = DTYPE_F32;
    CHECK(cuda_attention(&device, &args, NULL, 0, 0) == cudaErrorInvalidValue, "KV in F32");
}

/* --sample: a few of the cases, for builds that check every access. */
int main(int argc, char **argv) {
    static const attention_case samples[] = {
        {2, 1, 64, 64, 0, DTYPE_F16, 3, {257, 20, 70}, {2, 12, 40}, {9, 1}},
        {4, 1, 128, 32, 0, DTYPE_I8, 2, {270, 20}, {2, 17}, {10, 4}},
        {2, 1, 256, 16, 20, DTYPE_BF16, 2, {66, 20}, {1, 17}, {7}},
        {3, 3, 80, 8, 0, DTYPE_I8, 1, {40}, {21}, {4}},
    };
    static const attention_case cases[] = {
        /* heads, kv, dim, block, window, type, sequences, contexts, rows, chunks */
        {6, 2, 64, 16, 0, DTYPE_F16, 5, {1, 7, 64, 65, 120}, {1, 7, 64, 1, 60}, {37, 5}},
        {6, 2, 64, 16, 0, DTYPE_BF16, 3, {9, 64, 80}, {9, 1, 33}, {8}},
        {6, 2, 64, 16, 0, DTYPE_I8, 5, {1, 7, 64, 65, 120}, {1, 7, 64, 1, 60}, {37, 5}},
        /* runs of 256 */
        {2, 1, 64, 64, 0, DTYPE_F16, 5, {255, 256, 257, 512, 530}, {2, 12, 40, 2, 40}, {9, 1}},
        {2, 2, 64, 64, 0, DTYPE_I8, 3, {257, 513, 770}, {12, 3, 30}, {9, 1}},
        {4, 1, 128, 32, 0, DTYPE_F16, 3, {300, 40, 270}, {11, 40, 2}, {10, 4}},
        {4, 1, 128, 32, 0, DTYPE_I8, 3, {300, 40, 270}, {11, 40, 2}, {10, 4}},
        {2, 1, 256, 16, 0, DTYPE_BF16, 3, {30, 270, 66}, {20, 10, 1}, {7}},
        {2, 1, 256, 16, 0, DTYPE_I8, 3, {30, 270, 66}, {20, 10, 1}, {7}},
        /* windows: whole tiles and whole runs are out of sight */
        {4, 2, 64, 16, 20, DTYPE_F16, 3, {33, 100, 300}, {33, 3, 50}, {17, 3}},
        {3, 1, 64, 32, 300, DTYPE_I8, 2, {900, 310}, {24, 12}, {10, 3}},
        {2, 1, 256, 16, 1, DTYPE_BF16, 2, {3, 70}, {3, 20}, {6}},
        /* heads that fill no tile, and rows that are not aligned */
        {2, 1, 96, 16, 0, DTYPE_F16, 2, {17, 90}, {17, 41}, {11}},
        {3, 3, 80, 8, 0, DTYPE_BF16, 2, {17, 90}, {17, 21}, {4}},
        {3, 3, 80, 8, 0, DTYPE_I8, 2, {17, 90}, {17, 21}, {4}},
        {4, 2, 8, 16, 0, DTYPE_F16, 2, {20, 66}, {20, 12}, {9}},
        {4, 2, 24, 16, 0, DTYPE_I8, 2, {20, 66}, {20, 12}, {9}},
        {5, 1, 34, 8, 33, DTYPE_F16, 2, {97, 130}, {97, 10}, {31}},
        {2, 1, 2, 8, 0, DTYPE_I8, 2, {3, 70}, {3, 9}, {2}},
        /* more heads in a group than rows in a tile */
        {34, 1, 32, 16, 0, DTYPE_F16, 2, {70, 20}, {9, 1}, {2}},
        /* longer than 32 runs of 256: runs of 512 from position 8192 on */
        {1, 1, 16, 256, 0, DTYPE_I8, 1, {8199}, {12}, {9, 4}},
    };
    struct emu_options options;
    emu_default_options(&options);
    options.alignment = 16;
    if (emu_configure(&options) != cudaSuccess) {
        return 1;
    }
    DONE(cuda_prepare_attention(&device));
    if (argc > 1 && strcmp(argv[1], "--sample") == 0) {
        for (const attention_case &c : samples) {
            test_case(c);
        }
        return finish("test_kernels_attention --sample");
    }
    for (const attention_case &c : cases) {
        test_case(c);
    }
    test_refusals();
    printf("largest error %.2g\n", worst_error);
    return finish("test_kernels_attention");
}
