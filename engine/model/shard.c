#include "model/shard.h"

#include "model/source.h"

#include <stdio.h>
#include <string.h>

/* Part i of n, as even as it goes: the first ones have one more. */
static struct range even(size_t all, size_t n, size_t i) {
    size_t each = all / n, more = all % n;
    return (struct range){i * each + (i < more ? i : more), each + (i < more)};
}

void shard_whole(const struct model_config *c, struct shard *out) {
    struct error never;
    (void)shard_make(c, 0, 1, 0, 1, 1, out, &never); /* one rank and one stage always go */
}

bool shard_is_valid_tp(size_t n_heads, size_t n_kv_heads, size_t n) {
    return n > 0 && n_heads % n == 0 && (n_kv_heads % n == 0 || n % n_kv_heads == 0);
}

static int refuse_tp(const struct model_config *c, size_t n, struct error *err) {
    char valid[256] = "";
    size_t len = 0;
    for (size_t i = 1; i <= c->n_heads && len < sizeof valid - 24; i++) {
        if (shard_is_valid_tp(c->n_heads, c->n_kv_heads, i)) {
            len += (size_t)snprintf(valid + len, sizeof valid - len, "%s%zu", len ? ", " : "", i);
        }
    }
    return error_set_param(err, ERROR_INVALID, "tensor_parallel",
                           "tensor_parallel cannot be %zu: the model's %zu query heads and %zu heads of keys and values go to %s ranks",
                           n, c->n_heads, c->n_kv_heads, valid);
}

struct range shard_cut_ff(size_t n_ff, size_t unit, size_t n_ranks, size_t rank) {
    while (unit > 1 && n_ff / unit < n_ranks) {
        unit = unit > 32 ? 32 : 1;
    }
    struct range units = even(n_ff / unit + (n_ff % unit != 0), n_ranks, rank);
    size_t first = units.first * unit, end = first + units.n * unit;
    first = first < n_ff ? first : n_ff;
    end = end < n_ff ? end : n_ff;
    return (struct range){first, end - first};
}

int shard_make(const struct model_config *c, size_t rank, size_t n_ranks, size_t stage, size_t n_stages, size_t ff_unit,
               struct shard *out, struct error *err) {
    if (!shard_is_valid_tp(c->n_heads, c->n_kv_heads, n_ranks)) {
        return refuse_tp(c, n_ranks, err);
    }
    if (n_stages < 1 || n_stages > c->n_layers) {
        return error_set_param(err, ERROR_INVALID, "pipeline_parallel",
                               "pipeline_parallel cannot be %zu: the model has %zu layers to share", n_stages, c->n_layers);
    }
    size_t heads = c->n_heads / n_ranks, group = c->n_heads / c->n_kv_heads; /* query heads of a KV head */
    size_t padded = c->vocab_size / n_ranks + (c->vocab_size % n_ranks != 0);
    size_t first = rank * padded < c->vocab_size ? rank * padded : c->vocab_size;
    *out = (struct shard){
        .rank = rank,
        .n_ranks = n_ranks,
        .stage = stage,
        .n_stages = n_stages,
        .layers = even(c->n_layers, n_stages, stage),
        .heads = {rank * heads, heads},
        .kv_heads = {rank * heads / group, c->n_kv_heads > n_ranks ? c->n_kv_heads / n_ranks : 1},
        .ff = shard_cut_ff(c->n_ff, ff_unit > 0 ? ff_unit : 1, n_ranks, rank),
        .vocab = {first, c->vocab_size - first < padded ? c->vocab_size - first : padded},
        .vocab_padded = padded,
    };
    return 0;
}

void shard_config(const struct model_config *c, const struct shard *s, struct model_config *out) {
    struct model_config made = *c;
    made.n_layers = s->layers.n;
    made.n_heads = s->heads.n;
    made.n_kv_heads = s->kv_heads.n;
    made.n_ff = s->ff.n;
    memset(made.sliding, 0, sizeof made.sliding);
    memcpy(made.sliding, c->sliding + s->layers.first, s->layers.n * sizeof made.sliding[0]);
    *out = made;
}

static struct range of_dimension(const struct shard *s, const struct model_config *c, enum role_dimension d) {
    switch (d) {
    case ROLE_DIM_VOCAB:
        return s->vocab;
    case ROLE_DIM_Q:
        return (struct range){s->heads.first * c->head_dim, s->heads.n * c->head_dim};
    case ROLE_DIM_KV:
        return (struct range){s->kv_heads.first * c->head_dim, s->kv_heads.n * c->head_dim};
    case ROLE_DIM_FF:
        return s->ff;
    case ROLE_DIM_NONE:
    case ROLE_DIM_EMBD:
    case ROLE_DIM_HEAD:
        break;
    }
    return (struct range){0, role_size(d, c)};
}

/* Is a tensor of the model itself in this stage? The embedding in the first, what follows the layers in the last. */
static bool is_in_stage(const struct shard *s, const struct model_config *c, const struct role *r) {
    bool first = s->stage == 0, last = s->stage + 1 == s->n_stages;
    bool embedding = r == &model_roles[0];
    return embedding ? first || (last && c->tied_head) : last;
}

bool shard_tensor(const struct shard *s, const struct model_config *c, const struct role *r, int layer, struct range *rows,
                  struct range *columns) {
    *rows = of_dimension(s, c, r->n);
    *columns = of_dimension(s, c, r->k);
    return layer < 0 ? is_in_stage(s, c, r)
                     : (size_t)layer >= s->layers.first && (size_t)layer < s->layers.first + s->layers.n;
}

int shard_ff_unit(const struct model_file *file, const struct model_config *c, enum weights_format format, size_t *out,
                  struct error *err) {
    struct model_source source;
    const struct role *down = NULL;
    size_t unit = format == WEIGHTS_INT8_WEIGHT_ONLY ? 32 : 1;
    for (size_t i = 0; i < n_layer_roles; i++) {
        down = layer_roles[i].k == ROLE_DIM_FF ? &layer_roles[i] : down;
    }
    if (model_source_open(&source, file, c, err) < 0) {
        return -1;
    }
    int rc = 0;
    for (size_t i = 0; i < c->n_layers && rc == 0; i++) {
        struct matrix m;
        rc = model_source_matrix(&source, down, (int)i, &m, err);
        if (rc == 0) {
            bool packed = m.scheme.layout == QUANT_PACKED || m.scheme.layout == QUANT_GPTQ || m.scheme.layout == QUANT_AWQ;
            size_t block = m.scheme.layout == QUANT_PLAIN ? dtype_info(m.data->dtype)->block : 1;
            block = m.n_groups > 1 && !m.g_idx ? m.group : block;
            block = packed && block < 32 ? 32 : block;
            unit = block > unit ? block : unit;
        }
    }
    model_source_close(&source);
    if (rc < 0) {
        return error_prefix(err, "%s", model_file_path(file));
    }
    *out = unit;
    return 0;
}
