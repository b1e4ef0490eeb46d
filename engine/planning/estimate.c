/*
 * Speed by the roofline (Williams et al. 2009): a step takes the longer of what it reads over the memory's bandwidth and what
 * it computes over the card's rate, each at the share that engines reach: the ranges below are the lower and the upper end of
 * what is published of vLLM, TensorRT-LLM, gpt-fast and LMDeploy on A100 and H100. Nothing here was measured with inferd.
 */
#include "planning/ask.h"

#include <string.h>

static const double decode_share[2] = {0.50, 0.80};  /* of the bandwidth */
static const double prefill_share[2] = {0.35, 0.65}; /* of the rate of operations */
/*
 * An all-reduce of `bytes` among the ranks of a node takes a fixed time, then what its pieces take one behind the other, up to where
 * the wire is kept busy, and behind that what the wire takes. Over NVLink 4 to 9 us are published for a few KB, 14 to 21 for 256 KB,
 * 31 to 40 for 1 MB (sglang PR 2904, vLLM's own kernel, 4 H100). Over PCIe nothing but NCCL's 20 us and the wire is supposed.
 */
#define NVLINK_SECONDS 8e-6
#define NVLINK_SECONDS_A_BYTE 26e-12 /* up to NVLINK_PIECES */
#define NVLINK_PIECES 1e6
#define PCIE_SECONDS 20e-6
/* Between stages on different nodes: a message of the stream, of the size of a step, over a network of 100 Gbit/s. */
#define HOP_SECONDS 20e-6
#define HOP_BYTES_A_SECOND 12.5e9
#define DEFAULT_PROMPT 512

/* What a token's pass needs of one rank, over all stages. */
struct work {
    double bytes;      /* of weights that a step of `rows` reads */
    double parameters; /* of matrices that a token is multiplied by */
};

static struct work work_of(const struct ask *k, double rows) {
    struct work w = {0, 0};
    size_t n, bytes, tp = k->q.tensor_parallel;
    const struct shape_tensor *t = shape_tensors(&k->shape, k->format, &n);
    for (size_t i = 0; i < n; i++) {
        double share = 1, used = 1;
        if (t[i].is_vector || !shape_tensor_bytes(&k->shape, &t[i], k->format, tp, 1, &bytes)) {
            continue;
        }
        if (t[i].layer == SHAPE_FIRST && !(k->shape.tied && t[i].cut == CUT_VOCAB)) {
            continue; /* a table: one row of it a token */
        }
        if (t[i].is_expert && k->shape.n_experts > 0) {
            used = (double)k->shape.n_experts_used / (double)k->shape.n_experts;
            share = rows * used < 1 ? rows * used : 1;
            share = share < used ? used : share;
        }
        w.bytes += share * (double)bytes;
        w.parameters += used * (double)t[i].n * (double)t[i].k * (double)t[i].count / (t[i].cut == CUT_NONE ? 1 : (double)tp);
    }
    return w;
}

static double rate_of(const struct ask *k) {
    const struct plan_gpu *g = &k->q.gpu;
    return k->format == WEIGHTS_INT8 && g->int8 > 0 ? g->int8 : g->bf16;
}

static double all_reduce_seconds(const struct ask *k, double bytes) {
    const struct plan_question *q = &k->q;
    bool nvlink = strcmp(q->gpu.link, "nvlink") == 0;
    double tp = (double)q->tensor_parallel, pieces = nvlink ? (bytes < NVLINK_PIECES ? bytes : NVLINK_PIECES) : 0;
    double wire = q->gpu.link_bandwidth > 0 ? 2 * (tp - 1) / tp * (bytes - pieces) / q->gpu.link_bandwidth : 0;
    return (nvlink ? NVLINK_SECONDS : PCIE_SECONDS) + pieces * NVLINK_SECONDS_A_BYTE + wire;
}

/* Two sums a layer, activations of 16 bits; and the stream of 32 bits to each next stage. */
static double collective_seconds(const struct ask *k, double rows) {
    const struct plan_question *q = &k->q;
    double bytes = rows * (double)k->shape.n_embd * 2, hops = (double)(q->pipeline_parallel - 1);
    double sums = q->tensor_parallel > 1 ? 2 * (double)k->shape.n_layers * all_reduce_seconds(k, bytes) : 0;
    return sums + hops * (HOP_SECONDS + 2 * bytes / HOP_BYTES_A_SECOND);
}

static double larger(double a, double b) {
    return a > b ? a : b;
}

/* Seconds of a step that makes a token for each of `batch` sequences of `context` tokens. */
static double token_seconds(const struct ask *k, const struct plan_answer *a, double batch, double context, double share,
                            double rate_share) {
    struct work w = work_of(k, batch);
    double kv = batch * context * (double)a->kv_bytes_per_token / (double)k->q.tensor_parallel;
    double read = (w.bytes + kv) / (k->q.gpu.bandwidth * share);
    double compute = 2 * w.parameters * batch / (rate_of(k) * rate_share);
    return larger(read, compute) + collective_seconds(k, batch);
}

static double first_token_seconds(const struct ask *k, double prompt, double share, double rate_share) {
    struct work w = work_of(k, prompt);
    const struct shape *s = &k->shape;
    double attention = 2 * prompt * prompt * (double)(s->n_heads * s->head_dim) * (double)s->n_layers / (double)k->q.tensor_parallel;
    double compute = (2 * w.parameters * prompt) / (rate_of(k) * rate_share) + attention / (k->q.gpu.bf16 * rate_share);
    return larger(w.bytes / (k->q.gpu.bandwidth * share), compute) + collective_seconds(k, prompt);
}

int estimate(const struct ask *k, struct plan_answer *a, struct error *err) {
    const struct plan_question *q = &k->q;
    (void)err;
    if (!(q->gpu.bandwidth > 0) || !(rate_of(k) > 0)) {
        return 0; /* this machine's processor: `inferd bench` measures */
    }
    double prompt = (double)(q->prompt ? q->prompt : a->asked_context < DEFAULT_PROMPT ? a->asked_context : DEFAULT_PROMPT);
    double batch = (double)a->asked_sequences, context = (double)a->asked_context / 2; /* half full, as over its time */
    a->first_token = (struct plan_range){first_token_seconds(k, prompt, decode_share[1], prefill_share[1]),
                                         first_token_seconds(k, prompt, decode_share[0], prefill_share[0])};
    a->token = (struct plan_range){token_seconds(k, a, batch, context, decode_share[1], prefill_share[1]),
                                   token_seconds(k, a, batch, context, decode_share[0], prefill_share[0])};
    a->token_communication = collective_seconds(k, batch);
    double all = batch * (double)q->replicas; /* the stages of a pipeline work one behind the other */
    a->tokens_per_second = (struct plan_range){all / a->token.high, all / a->token.low};
    if (q->gpu.price_hour > 0) {
        double second = q->gpu.price_hour * (double)(a->n_ranks * q->replicas) / 3600;
        a->price_per_million = (struct plan_range){second / a->tokens_per_second.high * 1e6, second / a->tokens_per_second.low * 1e6};
    }
    return 0;
}
