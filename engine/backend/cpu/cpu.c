/* The CPU backend: opening, memory, weights, and the table of operations. */
#include "block_pack.h"
#include "cpu.h"
#include "pages.h"
#include "topology.h"
#include "weight_i8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_THREADS = 1024,
    MAX_ROWS = 1 << 20,
    PARTIAL_FLOATS = 4 << 20, /* 16 MB: 32 heads of 128 at 131,072 positions */
};

static const struct {
    const char *name;
    const struct cpu_kernels *kernels;
    bool (*available)(void); /* NULL: everywhere */
} variants[] = {
#if defined(__x86_64__)
    {"amx", &cpu_kernels_amx, cpu_has_amx},          {"vnni", &cpu_kernels_vnni, cpu_has_vnni},
    {"avx512", &cpu_kernels_avx512, cpu_has_avx512}, {"avx2", &cpu_kernels_avx2, cpu_has_avx2},
#endif
    {"generic", &cpu_kernels_generic, NULL},
};

const struct cpu_kernels *cpu_test_kernels;

static int pick_variant(const char *name, const struct cpu_kernels **out, struct error *err) {
    if (name && cpu_test_kernels && strcmp(name, cpu_test_kernels->variant) == 0) {
        *out = cpu_test_kernels;
        return 0;
    }
    for (size_t i = 0; i < sizeof variants / sizeof *variants; i++) {
        bool available = !variants[i].available || variants[i].available();
        if (name == NULL ? available : strcmp(name, variants[i].name) == 0) {
            if (!available) {
                return error_set(err, ERROR_DEVICE, "this CPU does not run the variant \"%s\"", name);
            }
            *out = variants[i].kernels;
            return 0;
        }
    }
    return error_set(err, ERROR_DEVICE, "the CPU backend has no such variant");
}

int cpu_grow_quants(struct backend *b, const struct weight *w, struct error *err) {
    bool tiled = cpu_is_tiled(b, w);
    size_t n = tiled ? (b->max_rows + BF16_GROUP - 1) / BF16_GROUP : b->max_rows, bytes;
    if (__builtin_mul_overflow(n, tiled ? bf16_group_bytes(w->k) : quant_row_bytes(w->k), &bytes)) {
        return error_memory(err);
    }
    if (bytes <= b->quants_bytes) {
        return 0;
    }
    uint8_t *quants = pages_map(bytes, 0, false);
    if (!quants) {
        return error_memory(err);
    }
    if (b->quants) {
        pages_unmap(b->quants, b->quants_bytes);
    }
    b->quants = quants;
    b->quants_bytes = bytes;
    return 0;
}

static size_t round_up(size_t n, size_t to) {
    return (n + to - 1) / to * to;
}

/* Floats of scratch a worker needs: for a panel of linear, or for an attention task at MAX_HEAD_DIM (attention.h). */
static size_t scratch_floats(void) {
    size_t panel = (size_t)LINEAR_PANEL * LINEAR_CHUNK;
    size_t attention = (size_t)2 * ATTENTION_KEYS * MAX_HEAD_DIM + (size_t)ATTENTION_QUERIES * ATTENTION_KEYS +
                       (size_t)4 * ATTENTION_QUERIES * MAX_HEAD_DIM + (size_t)8 * round_up(ATTENTION_QUERIES, 16);
    return round_up(panel > attention ? panel : attention, 1024);
}

/* Lay the workspace out from `base` (NULL to measure); returns its size in bytes. No overflow: threads and rows are
 * bounded. */
static size_t workspace_layout(struct backend *b, char *base) {
    size_t at = 0;
#define TAKE(field, n)                                                                                                 \
    do {                                                                                                               \
        (field) = (void *)(base ? base + at : NULL);                                                                   \
        at += round_up((n) * sizeof *(field), 4096);                                                                   \
    } while (0)
    TAKE(b->scratch, b->threads * b->scratch_floats);
    TAKE(b->ranges, b->max_rows);
    TAKE(b->partials, b->partial_floats);
    TAKE(b->i8_scales, b->max_rows);
    TAKE(b->i8_offsets, b->max_rows);
    for (size_t i = 0; i < ROPE_CACHES; i++) {
        TAKE(b->rope[i].inv_freq, (size_t)MAX_HEAD_DIM / 2);
        TAKE(b->rope[i].positions, b->max_rows);
        TAKE(b->rope[i].cosines, b->max_rows * (MAX_HEAD_DIM / 2));
        TAKE(b->rope[i].sines, b->max_rows * (MAX_HEAD_DIM / 2));
    }
#undef TAKE
    return at;
}

static void read_device_name(char *out, size_t size) {
    snprintf(out, size, "CPU");
    FILE *f = fopen("/proc/cpuinfo", "re");
    if (!f) {
        return;
    }
    char line[256];
    while (fgets(line, sizeof line, f)) {
        char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) == 0 && colon) {
            colon[strcspn(colon, "\n")] = 0;
            snprintf(out, size, "%s", colon + (colon[1] == ' ' ? 2 : 1));
            break;
        }
    }
    fclose(f);
}

static void cpu_close(struct backend *b) {
    if (!b) {
        return;
    }
    pool_free(b->pool);
    i8_close(b);
    arena_clear(&b->packed);
    if (b->quants) {
        pages_unmap(b->quants, b->quants_bytes);
    }
    pages_unmap(b->workspace, b->workspace_bytes);
    if (b->stays) {
        topology_stay_on(b->affinity);
    }
    free(b);
}

/* A rank's share of what the process may keep busy. */
static size_t threads_of(size_t rank, size_t n_ranks) {
    size_t all = cpu_available_threads(), ranks = n_ranks > 1 ? n_ranks : 1;
    size_t share = all / ranks + (rank < all % ranks);
    return share > 0 ? share : 1;
}

/* Threads stay on CPUs of their own where they have them all; large memory is spread over the nodes of these CPUs. */
static int start_threads(struct backend *b, size_t rank, size_t n_ranks, struct error *err) {
    bool mask[MAX_CPUS], bound = false;
    uint16_t cpus[MAX_CPUS];
    struct topology t;
    if (topology_affinity(mask)) {
        topology_read("/sys/devices/system", mask, &t);
        if (n_ranks > 1 && topology_share(&t, rank, n_ranks, &t)) {
            memcpy(b->affinity, mask, sizeof mask);
            b->stays = true;
            topology_stay(&t); /* the rank's own thread, and those that it starts */
        }
        b->nodes = topology_nodes(&t);
        bound = topology_place(&t, b->threads, cpus);
    }
    b->pool = pool_create(b->threads, bound ? cpus : NULL, err);
    return b->pool ? 0 : -1;
}

static int cpu_open(const struct backend_config *config, struct backend **out, struct error *err) {
    const struct cpu_kernels *kernels = NULL;
    if (pick_variant(config->variant, &kernels, err) < 0) {
        return -1;
    }
    if (config->threads > MAX_THREADS) {
        return error_set_param(err, ERROR_INVALID, "threads", "threads must be at most %d", MAX_THREADS);
    }
    if (config->max_rows == 0 || config->max_rows > MAX_ROWS) {
        return error_set(err, ERROR_INVALID, "the CPU backend takes 1 to %d rows in a call, not %zu", MAX_ROWS,
                         config->max_rows);
    }
    struct backend *b = calloc(1, sizeof *b);
    if (!b) {
        return error_memory(err);
    }
    b->kernels = kernels;
    b->threads = config->threads > 0 ? config->threads : threads_of(config->rank, config->n_ranks);
    if (b->threads > MAX_THREADS) {
        b->threads = MAX_THREADS;
    }
    b->max_rows = config->max_rows;
    b->memory_total = cpu_available_memory(); /* reads files: once, for info() is asked at every step */
    b->scratch_floats = scratch_floats();
    b->partial_floats = PARTIAL_FLOATS;
    read_device_name(b->device, sizeof b->device);
    b->workspace_bytes = workspace_layout(b, NULL);
    b->workspace = pages_map(b->workspace_bytes, 0, false); /* each thread's part falls where it runs */
    if (!b->workspace) {
        error_memory(err);
        goto fail;
    }
    workspace_layout(b, b->workspace);
    if (start_threads(b, config->rank, config->n_ranks, err) < 0) {
        goto fail;
    }
    *out = b;
    return 0;
fail:
    cpu_close(b);
    return -1;
}

static void cpu_info(const struct backend *b, struct backend_info *out) {
    *out = (struct backend_info){
        .name = "cpu",
        .variant = b->kernels->variant,
        .device = b->device,
        .threads = b->threads,
        .activation_dtype = DTYPE_F32,
        .memory_total = b->memory_total,
    };
}

/* Operations return when they are done. */
static int cpu_sync(struct backend *b, struct error *err) {
    (void)b, (void)err;
    return 0;
}

/* Large pieces are mapped, so that pages nobody has written take no memory; the header before the piece says which. */
struct allocation {
    _Alignas(64) size_t mapped_bytes; /* of the mapping, header included; 0: from the heap */
};
enum { MAP_FROM = 256 * 1024 };

static int cpu_alloc(struct backend *b, size_t bytes, void **out, struct error *err) {
    (void)b;
    if (bytes > SIZE_MAX / 2) {
        return error_memory(err);
    }
    size_t total = round_up(sizeof(struct allocation) + bytes, 64);
    struct allocation *a = total >= MAP_FROM ? pages_map(total, b->nodes, true) : aligned_alloc(64, total);
    if (!a) {
        return error_memory(err);
    }
    if (total < MAP_FROM) {
        memset(a, 0, total);
    }
    a->mapped_bytes = total >= MAP_FROM ? total : 0;
    *out = a + 1;
    return 0;
}

static void cpu_free(struct backend *b, void *p) {
    (void)b;
    if (!p) {
        return;
    }
    struct allocation *a = (struct allocation *)p - 1;
    if (a->mapped_bytes > 0) {
        pages_unmap(a, a->mapped_bytes);
    } else {
        free(a);
    }
}

static int cpu_copy(struct backend *b, void *dst, const void *src, size_t bytes, struct error *err) {
    (void)b, (void)err;
    if (bytes > 0) {
        memcpy(dst, src, bytes);
    }
    return 0;
}

struct pack_job {
    const struct weight *w;
    uint8_t *out;
    size_t group_bytes;
};

static void pack_task(void *arg, size_t i, size_t worker) {
    (void)worker;
    const struct pack_job *job = arg;
    block_pack_group(job->w, i, job->out + i * job->group_bytes);
}

static int pack_blocks(struct backend *b, struct weight *w, struct error *err) {
    size_t group_bytes = block_group_bytes(w->dtype, w->k), groups = (w->n - 1) / BLOCK_GROUP + 1, bytes;
    if (__builtin_mul_overflow(group_bytes, groups, &bytes)) {
        return error_memory(err);
    }
    if (cpu_grow_quants(b, w, err) < 0) {
        return -1;
    }
    void *packed = arena_alloc(&b->packed, bytes);
    if (!packed) {
        return error_memory(err);
    }
    struct pack_job job = {w, packed, group_bytes};
    pool_run(b->pool, groups, pack_task, &job);
    w->packed = packed;
    w->data = packed;
    return 0;
}

/*
 * F32, F16 and BF16 are read from the file's own bytes in place, at any alignment. Blocks are packed at the same bits
 * where the variant has kernels for it, so that sixteen outputs lie side by side, and what they came from may go. I8 is packed as well (weight_i8.c).
 */
static int cpu_weight_load(struct backend *b, struct weight *w, struct error *err) {
    const struct dtype_info *info = dtype_info(w->dtype);
    size_t row_bytes;
    switch (w->dtype) {
    case DTYPE_F32:
    case DTYPE_F16:
    case DTYPE_BF16:
    case DTYPE_I8:
    case DTYPE_Q4_0:
    case DTYPE_Q4_1:
    case DTYPE_Q5_0:
    case DTYPE_Q5_1:
    case DTYPE_Q8_0:
    case DTYPE_Q4_K:
    case DTYPE_Q5_K:
    case DTYPE_Q6_K:
        break;
    default:
        return error_set(err, ERROR_UNSUPPORTED, "the CPU backend does not compute with weights of type %s",
                         info->name);
    }
    if (w->n == 0 || w->k == 0 || !w->data) {
        return error_set(err, ERROR_INVALID, "a weight matrix has no elements");
    }
    if (!dtype_row_bytes(w->dtype, w->k, &row_bytes)) {
        return error_set(err, ERROR_MODEL, "a row of %zu elements is no whole number of %s blocks of %zu", w->k,
                         info->name, info->block);
    }
    if (w->row_bytes < row_bytes) {
        return error_set(err, ERROR_MODEL, "a row of %zu elements of type %s takes %zu bytes, not %zu", w->k,
                         info->name, row_bytes, w->row_bytes);
    }
    w->packed = NULL;
    struct block_layout layout;
    if (w->dtype == DTYPE_I8) {
        return i8_weight_load(b, w, err);
    }
    if (cpu_is_tiled(b, w)) {
        return cpu_grow_quants(b, w, err);
    }
    return b->kernels->linear_block && block_layout(w->dtype, &layout) ? pack_blocks(b, w, err) : 0;
}

static void cpu_weight_unload(struct backend *b, struct weight *w) {
    if (w->dtype == DTYPE_I8) {
        i8_weight_unload(b, w);
    } else {
        arena_free(&b->packed, w->packed);
    }
    w->packed = NULL;
}

int check_rows(const struct backend *b, const char *op, size_t rows, struct error *err) {
    if (rows > b->max_rows) {
        return error_set(err, ERROR_INTERNAL, "%s of %zu rows, but the backend was opened for %zu", op, rows,
                         b->max_rows);
    }
    return 0;
}

struct row_loop {
    void (*fn)(const void *arg, size_t begin, size_t end);
    const void *arg;
    size_t rows, chunk;
};

static void run_row_chunk(void *arg, size_t i, size_t worker) {
    (void)worker;
    const struct row_loop *loop = arg;
    size_t begin = i * loop->chunk, end = begin + loop->chunk;
    loop->fn(loop->arg, begin, end < loop->rows ? end : loop->rows);
}

void for_rows(struct backend *b, size_t rows, size_t cost, void (*fn)(const void *arg, size_t begin, size_t end),
              const void *arg) {
    enum { WORTH = 8192 }; /* floats: a few microseconds, several times what it takes to share them out */
    size_t chunk = cost >= WORTH ? 1 : (WORTH + cost - 1) / (cost > 0 ? cost : 1);
    struct row_loop loop = {fn, arg, rows, chunk};
    pool_run(b->pool, (rows + chunk - 1) / chunk, run_row_chunk, &loop);
}

const struct backend_ops backend_cpu_ops = {
    .abi = BACKEND_ABI,
    .name = "cpu",
    .open = cpu_open,
    .close = cpu_close,
    .info = cpu_info,
    .sync = cpu_sync,
    .alloc = cpu_alloc,
    .free = cpu_free,
    .upload = cpu_copy,
    .download = cpu_copy,
    .host_alloc = cpu_alloc,
    .host_free = cpu_free,
    .weight_load = cpu_weight_load,
    .weight_unload = cpu_weight_unload,
    .embed = profiled_embed,
    .rms_norm = profiled_rms_norm,
    .linear = profiled_linear,
    .rope = profiled_rope,
    .kv_store = profiled_kv_store,
    .kv_copy = cpu_kv_copy,
    .attention = profiled_attention,
    .silu_mul = profiled_silu_mul,
    .gather_rows = profiled_gather_rows,
    .profile = cpu_profile,
    .measure = cpu_measure,
};
