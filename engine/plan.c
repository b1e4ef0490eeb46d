#include "plan.h"

#include <stdint.h>
#include <stdio.h>

#define MIB(bytes) ((bytes) >> 20)

#define GRAPH_NODES_OF_LAYER 16 /* kernels of a layer, at most */
#define GRAPH_NODES_BESIDES 16
#define GRAPH_NODE_BYTES ((size_t)8 << 10) /* a kernel's parameters and what the driver keeps beside them; a guess on the safe side */

static size_t least(size_t a, size_t b) {
    return a < b ? a : b;
}

static size_t most(size_t a, size_t b) {
    return a > b ? a : b;
}

static size_t blocks_of(size_t n, size_t to) {
    return n / to + (n % to != 0);
}

size_t plan_graph_bytes(size_t n, size_t n_layers) {
    return n * (n_layers * GRAPH_NODES_OF_LAYER + GRAPH_NODES_BESIDES) * GRAPH_NODE_BYTES;
}

static size_t budget_of(const struct plan_input *in) {
    return (size_t)((double)in->total * in->utilization);
}

static size_t fixed_of(const struct plan_input *in) {
    return in->context_bytes + in->weight_bytes + in->workspace_bytes + in->graph_bytes;
}

size_t plan_affordable_tokens(const struct plan_input *in) {
    size_t budget = budget_of(in), fixed = fixed_of(in);
    size_t tokens = budget > fixed ? (budget - fixed) / in->token_bytes : 0;
    return least(tokens / in->block_size * in->block_size,
                 INT32_MAX / 2 / in->block_size * in->block_size); /* slots are 32-bit */
}

/* Tokens of KV where nobody said how many, no more than `affordable`. */
static size_t choose_tokens(const struct plan_input *in, size_t len, size_t affordable) {
    if (in->fill) {
        return affordable;
    }
    size_t each = blocks_of(len, in->block_size) * in->block_size;
    size_t of_use = in->max_sequences > affordable / each ? affordable : in->max_sequences * each;
    size_t tokens = least(of_use, in->total / PLAN_KV_SHARE / in->token_bytes);
    return least(most(tokens, in->max_model_len), affordable);
}

static int refuse(const struct plan_input *in, size_t budget, size_t len, struct error *err) {
    size_t need = most(most(len, in->kv_tokens), in->block_size), other = in->context_bytes + in->graph_bytes;
    char taken[96] = "";
    if (other > 0) {
        snprintf(taken, sizeof taken, "%zu MiB are taken by the device's context, graphs and others, ", MIB(other));
    }
    return error_set(
        err, ERROR_DOES_NOT_FIT,
        "the model does not fit: of %zu MiB available, memory_utilization %g allows %zu MiB; %sweights need %zu MiB, "
        "workspace %zu MiB, and KV of %zu tokens %zu MiB",
        MIB(in->total), in->utilization, MIB(budget), taken, MIB(in->weight_bytes), MIB(in->workspace_bytes), need,
        MIB(need * in->token_bytes));
}

int plan_make(const struct plan_input *in, struct plan *out, struct error *err) {
    if (in->max_model_len > in->context_length) {
        return error_set_param(err, ERROR_INVALID, "max_model_len",
                               "max_model_len is %zu, but the model was made for at most %zu tokens", in->max_model_len,
                               in->context_length);
    }
    size_t budget = budget_of(in), fixed = fixed_of(in), affordable = plan_affordable_tokens(in);
    size_t len = in->max_model_len ? in->max_model_len : in->context_length;
    size_t tokens = in->kv_tokens ? in->kv_tokens : choose_tokens(in, len, affordable);
    size_t n_blocks = blocks_of(tokens, in->block_size);
    if (in->max_model_len == 0) {
        len = least(len, n_blocks * in->block_size);
    }
    if (n_blocks == 0 || n_blocks * in->block_size < len || n_blocks * in->block_size > affordable) {
        return refuse(in, budget, len, err);
    }
    size_t kv = n_blocks * in->block_size * in->token_bytes;
    *out = (struct plan){
        .n_blocks = n_blocks,
        .max_model_len = len,
        .bytes = {[ENGINE_MEMORY_WEIGHTS] = in->weight_bytes,
                  [ENGINE_MEMORY_WORKSPACE] = in->workspace_bytes,
                  [ENGINE_MEMORY_GRAPHS] = in->graph_bytes,
                  [ENGINE_MEMORY_CONTEXT] = in->context_bytes,
                  [ENGINE_MEMORY_KV] = kv,
                  [ENGINE_MEMORY_MARGIN] = in->total - fixed - kv},
    };
    return 0;
}
