/*
 * The null backend: takes a device's place and computes nothing, so that everything around the arithmetic can be
 * measured and soaked alone. Memory is address space that nobody writes to and that reads as zero: a KV pool of any
 * size costs nothing, and all logits are 0. Tokens come from a rule (choose), never the model's end ids unless those
 * are among the candidates.
 *
 * Time: with step_ns, a step ends at the next multiple of step_ns on CLOCK_MONOTONIC. A client on the same machine so
 * knows when each token was made, and how long the way to it took.
 */
#include <inferd/backend.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

struct backend {
    uint64_t step_ns; /* 0 = no waiting */
    bool tested;      /* the first step was the self-test, which takes no time */
};

static int null_open(const struct backend_config *config, struct backend **out, struct error *err) {
    struct backend *b = calloc(1, sizeof *b);
    if (!b) {
        return error_memory(err);
    }
    b->step_ns = config->step_ns;
    *out = b;
    return 0;
}

static void null_close(struct backend *b) {
    free(b);
}

static void null_info(const struct backend *b, struct backend_info *out) {
    (void)b;
    *out = (struct backend_info){
        .name = "null",
        .variant = "none",
        .device = "nothing: answers are made up",
        .activation_dtype = DTYPE_F32,
        .memory_total = (size_t)1 << 45, /* of the 2^47 that a process can address */
        .own_memory = true,
    };
}

/* The end of every step: until then it "computes". */
static int null_sync(struct backend *b, struct error *err) {
    struct timespec now;
    (void)err;
    if (b->step_ns == 0 || !b->tested) {
        b->tested = true;
        return 0;
    }
    clock_gettime(CLOCK_MONOTONIC, &now);
    uint64_t ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    ns += b->step_ns - ns % b->step_ns;
    const struct timespec until = {.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR) {
    }
    return 0;
}

/* ---- memory ---- */

enum { HEADER = 4096 }; /* a page before the piece: the size of the mapping */

static int null_alloc(struct backend *b, size_t bytes, void **out, struct error *err) {
    (void)b;
    if (bytes > SIZE_MAX / 2) {
        return error_memory(err);
    }
    size_t total = bytes + HEADER;
    char *p = mmap(NULL, total, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) {
        return error_memory(err);
    }
    memcpy(p, &total, sizeof total);
    *out = p + HEADER;
    return 0;
}

static void null_free(struct backend *b, void *p) {
    (void)b;
    if (p) {
        char *base = (char *)p - HEADER;
        size_t total;
        memcpy(&total, base, sizeof total);
        munmap(base, total);
    }
}

static int null_upload(struct backend *b, void *dst, const void *src, size_t bytes, struct error *err) {
    (void)b, (void)dst, (void)src, (void)bytes, (void)err;
    return 0;
}

static int null_download(struct backend *b, void *dst, const void *src, size_t bytes, struct error *err) {
    (void)b, (void)src, (void)err;
    if (bytes > 0) {
        memset(dst, 0, bytes);
    }
    return 0;
}

static int null_weight_load(struct backend *b, struct weight *w, struct error *err) {
    (void)b, (void)err;
    w->packed = NULL;
    return 0;
}

static void null_weight_unload(struct backend *b, struct weight *w) {
    (void)b;
    w->packed = NULL;
}

/* ---- operations ---- */

static int null_embed(struct backend *b, void *y, size_t ldy, const struct weight *table, const int32_t *token_ids,
                      size_t rows, float scale, struct error *err) {
    (void)b, (void)y, (void)ldy, (void)table, (void)token_ids, (void)rows, (void)scale, (void)err;
    return 0;
}

static int null_rms_norm(struct backend *b, void *y, size_t ldy, void *x, size_t ldx, const void *residual, size_t ldr,
                         const float *w, size_t rows, size_t groups, size_t dim, float eps, struct error *err) {
    (void)b, (void)y, (void)ldy, (void)x, (void)ldx, (void)residual, (void)ldr;
    (void)w, (void)rows, (void)groups, (void)dim, (void)eps, (void)err;
    return 0;
}

static int null_linear(struct backend *b, const void *x, size_t ldx, size_t rows, const struct linear_part *parts,
                       size_t n_parts, struct error *err) {
    (void)b, (void)x, (void)ldx, (void)rows, (void)parts, (void)n_parts, (void)err;
    return 0;
}

static int null_rope(struct backend *b, void *x, size_t ldx, size_t heads, size_t head_dim, const int32_t *positions,
                     size_t rows, const struct rope_table *table, struct error *err) {
    (void)b, (void)x, (void)ldx, (void)heads, (void)head_dim, (void)positions, (void)rows, (void)table, (void)err;
    return 0;
}

static int null_kv_store(struct backend *b, struct kv_layer *kv, const void *k, size_t ldk, const void *v, size_t ldv,
                         const int32_t *slot_mapping, size_t rows, struct error *err) {
    (void)b, (void)kv, (void)k, (void)ldk, (void)v, (void)ldv, (void)slot_mapping, (void)rows, (void)err;
    return 0;
}

static int null_kv_copy(struct backend *b, struct kv_layer *kv, const int32_t *from, const int32_t *to, size_t n,
                        struct error *err) {
    (void)b, (void)kv, (void)from, (void)to, (void)n, (void)err;
    return 0;
}

static int null_attention(struct backend *b, const struct attention_args *args, struct error *err) {
    (void)b, (void)args, (void)err;
    return 0;
}

static int null_silu_mul(struct backend *b, void *y, size_t ldy, const void *gate, size_t ldg, const void *up,
                         size_t ldu, size_t rows, size_t dim, enum activation activation, struct error *err) {
    (void)b, (void)y, (void)ldy, (void)gate, (void)ldg, (void)up, (void)ldu;
    (void)rows, (void)dim, (void)activation, (void)err;
    return 0;
}

static int null_gather_rows(struct backend *b, enum dtype dtype, void *y, size_t ldy, const void *x, size_t ldx,
                            const int32_t *index, size_t n, size_t dim, struct error *err) {
    (void)b, (void)dtype, (void)y, (void)ldy, (void)x, (void)ldx, (void)index, (void)n, (void)dim, (void)err;
    return 0;
}

/* ---- tokens ---- */

/* One round of SplitMix64 (Steele, Lea & Flood 2014): every bit of the result depends on every bit of x. */
static uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/*
 * Greedy: a function of the token before, so that text comes back to where it was after some hundred tokens, and what
 * looks for repeated text finds some. Else of seed, position and choice, as sampling is.
 */
static int32_t choose(const struct sample_row *r) {
    uint64_t x = mix((uint32_t)r->last_token);
    if (!r->greedy) {
        x = mix(mix(r->seed ^ mix(r->choice)) ^ r->position);
    }
    size_t i = (size_t)(x % r->n_candidates);
    return r->candidates ? r->candidates[i] : (int32_t)i;
}

static int null_sample(struct backend *b, const struct sample_row *rows, size_t n, int32_t *tokens, struct error *err) {
    (void)b, (void)err;
    for (size_t i = 0; i < n; i++) {
        tokens[i] = choose(&rows[i]);
    }
    return 0;
}

const struct backend_ops backend_null_ops = {
    .abi = BACKEND_ABI,
    .name = "null",
    .open = null_open,
    .close = null_close,
    .info = null_info,
    .sync = null_sync,
    .alloc = null_alloc,
    .free = null_free,
    .upload = null_upload,
    .download = null_download,
    .host_alloc = null_alloc,
    .host_free = null_free,
    .weight_load = null_weight_load,
    .weight_unload = null_weight_unload,
    .embed = null_embed,
    .rms_norm = null_rms_norm,
    .linear = null_linear,
    .rope = null_rope,
    .kv_store = null_kv_store,
    .kv_copy = null_kv_copy,
    .attention = null_attention,
    .silu_mul = null_silu_mul,
    .gather_rows = null_gather_rows,
    .sample = null_sample,
};
