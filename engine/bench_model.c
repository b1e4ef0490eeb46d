#include "bench_model.h"

#include "base/checked.h"

#include <inferd/bench.h>
#include <inferd/buf.h>

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define ALIGNMENT 64u           /* of tensors in the file */
#define PATTERN ((size_t)1 << 20) /* bytes of rows that are drawn; the others repeat them */

static const struct bench_shape shapes[] = {
    {"smol", 30, 576, 1536, 9, 3, 64, 32000, true},
    {"tiny", 22, 2048, 5632, 32, 4, 64, 32000, false},
    {"llama-7b", 32, 4096, 11008, 32, 32, 128, 32000, false},
    {"llama-8b", 32, 4096, 14336, 32, 8, 128, 128256, false},
    {"llama-70b", 80, 8192, 28672, 64, 8, 128, 128256, false},
};

const char *bench_shapes(void) {
    return "smol tiny llama-7b llama-8b llama-70b";
}

/* GGUF's number of each type, and where in a block its F16 factors lie: d, and (-1: none) what is added or taken off. */
static const struct type {
    const char *name;
    enum dtype dtype;
    uint32_t gguf;
    int d, m;
    float quant, scale; /* about how large quants are, and the scales of super-blocks */
    float centre;       /* m / d so that values lie around 0 */
} types[] = {
    {"f32", DTYPE_F32, 0, -1, -1, 0, 0, 0},      {"f16", DTYPE_F16, 1, -1, -1, 0, 0, 0},
    {"bf16", DTYPE_BF16, 30, -1, -1, 0, 0, 0},   {"q4_0", DTYPE_Q4_0, 2, 0, -1, 4.6f, 1, 0},
    {"q4_1", DTYPE_Q4_1, 3, 0, 2, 4.6f, 1, -7.5f}, {"q5_0", DTYPE_Q5_0, 6, 0, -1, 9.2f, 1, 0},
    {"q5_1", DTYPE_Q5_1, 7, 0, 2, 9.2f, 1, -15.5f}, {"q8_0", DTYPE_Q8_0, 8, 0, -1, 74, 1, 0},
    {"q4_k", DTYPE_Q4_K, 12, 0, 2, 4.6f, 36, 7.5f}, {"q5_k", DTYPE_Q5_K, 13, 0, 2, 9.2f, 36, 15.5f},
    {"q6_k", DTYPE_Q6_K, 14, 208, -1, 18, 74, 0},
};
#define N_TYPES (sizeof types / sizeof types[0])

const char *bench_shape_types(void) {
    return "bf16 f16 f32 q8_0 q4_0 q4_1 q5_0 q5_1 q4_k q5_k q6_k";
}

int bench_shape_find(const char *name, const struct bench_shape **out, enum dtype *dtype, struct error *err) {
    size_t len = strcspn(name, ":");
    const char *wanted = name[len] ? name + len + 1 : "bf16";
    const struct bench_shape *shape = NULL;
    const struct type *type = NULL;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        bool same = strlen(shapes[i].name) == len && memcmp(name, shapes[i].name, len) == 0;
        shape = same ? &shapes[i] : shape;
    }
    for (size_t i = 0; i < N_TYPES; i++) {
        type = strcmp(wanted, types[i].name) == 0 ? &types[i] : type;
    }
    if (!shape) {
        return error_set_param(err, ERROR_INVALID, "shape", "there is no such shape; there are: %s", bench_shapes());
    }
    if (!type) {
        return error_set_param(err, ERROR_INVALID, "shape", "random weights are of one of these types: %s", bench_shape_types());
    }
    *out = shape;
    *dtype = type->dtype;
    return 0;
}

static const struct type *type_of(enum dtype dtype) {
    for (size_t i = 0; i < N_TYPES; i++) {
        if (types[i].dtype == dtype) {
            return &types[i];
        }
    }
    return &types[0];
}

/* ---- the tensors --------------------------------------------------------------------------------------------- */

enum { LAYER_TENSORS = 9, MOST_NAME = 64 };

struct planned {
    char name[MOST_NAME];
    size_t n, k; /* k 0: a vector of F32 */
    size_t offset, bytes;
};

static bool matrix_bytes(enum dtype dtype, size_t n, size_t k, size_t *bytes) {
    size_t row;
    return dtype_row_bytes(dtype, k, &row) && checked_mul(row, n, bytes);
}

static void plan_layer(const struct bench_shape *s, size_t layer, struct planned out[LAYER_TENSORS]) {
    size_t E = s->n_embd, Q = s->n_heads * s->head_dim, KV = s->n_kv_heads * s->head_dim, F = s->n_ff;
    const struct {
        const char *name;
        size_t n, k;
    } tensors[LAYER_TENSORS] = {
        {"attn_norm", E, 0}, {"attn_q", Q, E},   {"attn_k", KV, E}, {"attn_v", KV, E},  {"attn_output", E, Q},
        {"ffn_norm", E, 0},  {"ffn_gate", F, E}, {"ffn_up", F, E},  {"ffn_down", E, F},
    };
    for (size_t i = 0; i < LAYER_TENSORS; i++) {
        out[i] = (struct planned){.n = tensors[i].n, .k = tensors[i].k};
        snprintf(out[i].name, MOST_NAME, "blk.%zu.%s.weight", layer, tensors[i].name);
    }
}

bool bench_shape_bytes(const struct bench_shape *s, enum dtype dtype, size_t *layer, size_t *rest) {
    struct planned plan[LAYER_TENSORS];
    size_t sum = 0, table;
    plan_layer(s, 0, plan);
    for (size_t i = 0; i < LAYER_TENSORS; i++) {
        size_t bytes = 0;
        if (plan[i].k && (!matrix_bytes(dtype, plan[i].n, plan[i].k, &bytes) || !checked_add(sum, bytes, &sum))) {
            return false;
        }
    }
    if (!matrix_bytes(dtype, s->vocab_size, s->n_embd, &table)) {
        return false;
    }
    *layer = sum;
    *rest = s->tied ? table : 2 * table;
    return true;
}

/* All tensors with their places; owned by the caller. NULL without memory. */
static struct planned *plan_all(const struct bench_shape *s, size_t n_layers, enum dtype dtype, size_t *n, size_t *bytes) {
    struct planned *plan = calloc(3 + n_layers * LAYER_TENSORS, sizeof *plan);
    if (!plan) {
        return NULL;
    }
    size_t used = 0, at = 0;
    plan[used++] = (struct planned){"token_embd.weight", s->vocab_size, s->n_embd, 0, 0};
    plan[used++] = (struct planned){"output_norm.weight", s->n_embd, 0, 0, 0};
    if (!s->tied) {
        plan[used++] = (struct planned){"output.weight", s->vocab_size, s->n_embd, 0, 0};
    }
    for (size_t l = 0; l < n_layers; l++, used += LAYER_TENSORS) {
        plan_layer(s, l, plan + used);
    }
    for (size_t i = 0; i < used; i++) { /* bench_shape_bytes has seen that nothing overflows */
        plan[i].bytes = plan[i].n * sizeof(float);
        (void)(plan[i].k && matrix_bytes(dtype, plan[i].n, plan[i].k, &plan[i].bytes));
        plan[i].offset = at;
        at += (plan[i].bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    }
    *n = used;
    *bytes = at;
    return plan;
}

/* ---- the file's head ----------------------------------------------------------------------------------------- */

static void put_u32(struct buf *b, uint32_t v) {
    buf_append(b, &v, sizeof v);
}

static void put_u64(struct buf *b, uint64_t v) {
    buf_append(b, &v, sizeof v);
}

static void put_string(struct buf *b, const char *s) {
    put_u64(b, strlen(s));
    buf_puts(b, s);
}

static void put_head(struct buf *b, const struct bench_shape *s, size_t n_layers, size_t context_length,
                     const struct type *t, const struct planned *plan, size_t n) {
    const struct {
        const char *key;
        size_t value;
    } keys[] = {
        {"llama.block_count", n_layers},
        {"llama.context_length", context_length},
        {"llama.embedding_length", s->n_embd},
        {"llama.feed_forward_length", s->n_ff},
        {"llama.attention.head_count", s->n_heads},
        {"llama.attention.head_count_kv", s->n_kv_heads},
        {"llama.attention.key_length", s->head_dim},
        {"llama.attention.value_length", s->head_dim},
        {"general.alignment", ALIGNMENT},
    };
    enum { N_KEYS = sizeof keys / sizeof keys[0], UINT32 = 4, FLOAT32 = 6, STRING = 8 };
    const float eps = 1e-5f;
    buf_puts(b, "GGUF");
    put_u32(b, 3);
    put_u64(b, n);
    put_u64(b, N_KEYS + 3);
    put_string(b, "general.architecture");
    put_u32(b, STRING);
    put_string(b, "llama");
    put_string(b, "general.name");
    put_u32(b, STRING);
    put_string(b, s->name);
    put_string(b, "llama.attention.layer_norm_rms_epsilon");
    put_u32(b, FLOAT32);
    buf_append(b, &eps, sizeof eps);
    for (size_t i = 0; i < N_KEYS; i++) {
        put_string(b, keys[i].key);
        put_u32(b, UINT32);
        put_u32(b, (uint32_t)keys[i].value);
    }
    for (size_t i = 0; i < n; i++) {
        put_string(b, plan[i].name);
        put_u32(b, plan[i].k ? 2 : 1);
        put_u64(b, plan[i].k ? plan[i].k : plan[i].n); /* innermost first */
        if (plan[i].k) {
            put_u64(b, plan[i].n);
        }
        put_u32(b, plan[i].k ? t->gguf : 0);
        put_u64(b, plan[i].offset);
    }
    while (b->len % ALIGNMENT != 0) {
        buf_putc(b, '\0');
    }
}

/* ---- the weights --------------------------------------------------------------------------------------------- */

/* xorshift64* (Vigna 2016) */
static uint64_t draw(uint64_t *state) {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * 0x2545f4914f6cdd1du;
}

/* F16 of a positive normal number, cut. */
static uint16_t half(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    int exponent = (int)(bits >> 23 & 255) - 127 + 15;
    uint32_t sign = bits >> 16 & 0x8000;
    return (uint16_t)(exponent <= 0 ? sign | 1 : exponent >= 31 ? sign | 0x7bff : sign | (uint32_t)exponent << 10 | (bits >> 13 & 1023));
}

static void put_factor(char *block, int at, float x) {
    if (at >= 0) {
        uint16_t h = half(x);
        memcpy(block + at, &h, sizeof h);
    }
}

/* n elements of about variance 1/k, so that activations keep their size. */
static void fill_floats(char *out, size_t n, enum dtype dtype, size_t k, uint64_t *random) {
    float size = sqrtf(3.0f / (float)k) / 32768;
    for (size_t i = 0; i < n; i++) {
        float x = (float)((int)(draw(random) >> 48) - 32768) * size;
        uint32_t bits;
        memcpy(&bits, &x, sizeof bits);
        uint16_t h = dtype == DTYPE_F16 ? half(x) : (uint16_t)(bits >> 16);
        if (dtype == DTYPE_F32) {
            memcpy(out + 4 * i, &x, sizeof x);
        } else {
            memcpy(out + 2 * i, &h, sizeof h);
        }
    }
}

static void fill_blocks(char *out, size_t bytes, const struct type *t, size_t k, uint64_t *random) {
    size_t block = dtype_info(t->dtype)->bytes;
    float d = 1 / (sqrtf((float)k) * t->quant * t->scale);
    for (size_t i = 0; i + 8 <= bytes; i += 8) {
        uint64_t r = draw(random);
        memcpy(out + i, &r, 8);
    }
    for (size_t i = 0; i < bytes; i += block) {
        put_factor(out + i, t->d, d);
        put_factor(out + i, t->m, d * t->centre);
    }
}

static void fill_tensor(char *out, const struct planned *p, const struct type *t, uint64_t *random) {
    if (!p->k) {
        const float one = 1;
        for (size_t i = 0; i < p->n; i++) {
            memcpy(out + 4 * i, &one, sizeof one);
        }
        return;
    }
    size_t row = p->bytes / p->n, rows = PATTERN / row < p->n ? PATTERN / row : p->n;
    rows = rows > 0 ? rows : 1;
    if (t->d < 0) {
        fill_floats(out, rows * p->k, t->dtype, p->k, random);
    } else {
        fill_blocks(out, rows * row, t, p->k, random);
    }
    for (size_t done = rows; done < p->n; done += rows) {
        size_t more = p->n - done < rows ? p->n - done : rows;
        memcpy(out + done * row, out, more * row);
    }
}

static int write_model(int fd, const struct buf *head, const struct planned *plan, size_t n, size_t bytes,
                       const struct type *t, struct error *err) {
    size_t total = head->len + bytes;
    uint64_t random = 0x9e3779b97f4a7c15u;
    char *p = ftruncate(fd, (off_t)total) == 0 ? mmap(NULL, total, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
    if (p == MAP_FAILED) {
        return error_set(err, ERROR_IO, "%zu MiB of anonymous memory cannot be had: %s", total >> 20, strerror(errno));
    }
    memcpy(p, head->data, head->len);
    for (size_t i = 0; i < n; i++) {
        fill_tensor(p + head->len + plan[i].offset, &plan[i], t, &random);
    }
    munmap(p, total);
    return 0;
}

int bench_model_make(const struct bench_shape *s, size_t n_layers, enum dtype dtype, size_t context_length, int *fd,
                     char path[BENCH_MODEL_PATH], struct error *err) {
    struct buf head = BUF_INIT;
    size_t n, bytes;
    int made = -1, rc = -1;
    struct planned *plan = plan_all(s, n_layers, dtype, &n, &bytes);
    if (plan) {
        put_head(&head, s, n_layers, context_length, type_of(dtype), plan, n);
    }
    if (!plan || head.failed) {
        error_memory(err);
    } else if ((made = memfd_create("inferd-bench", MFD_CLOEXEC)) < 0) {
        error_set(err, ERROR_IO, "anonymous memory cannot be had: %s", strerror(errno));
    } else {
        rc = write_model(made, &head, plan, n, bytes, type_of(dtype), err);
    }
    buf_free(&head);
    free(plan);
    if (rc < 0) {
        if (made >= 0) {
            close(made);
        }
        return -1;
    }
    snprintf(path, BENCH_MODEL_PATH, "/proc/self/fd/%d", made);
    *fd = made;
    return 0;
}
