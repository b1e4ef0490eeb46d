/*
 * Memory of training, which inferd does not do. Mixed-precision Adam: 2 bytes of weights, 2 of gradients, 12 of states (master
 * copy and two moments in F32) a parameter, shared among devices as ZeRO does (Rajbhandari et al. 2020). Activations
 * of a layer: 34 s b h bytes with attention that keeps no scores (Korthikanti et al. 2022, eq. 2 without its last term); with checkpointing
 * 2 s b h of each layer, and one layer's live. Logits and their gradient in F32. Adapters of LoRA (Hu et al. 2021) at all matrices of
 * the layers: rank * (n + k) each.
 */
#include "planning/ask.h"

#include <stdlib.h>

#define WEIGHT_BYTES 2.0
#define GRADIENT_BYTES 2.0
#define STATE_BYTES 12.0
#define NF4_BYTES 0.53 /* a parameter in 4 bits with its share of scales */
#define ACTIVATION_BYTES 34.0
#define MOST_BYTES 0x1p60

static int out_of_bounds(struct error *err, const char *param, const char *range) {
    return error_set_param(err, ERROR_INVALID, param, "%s must be %s", param, range);
}

static double adapters(const struct shape *s, double rank) {
    double sum = 0;
    const struct shape_tensor *t = s->plain ? s->plain : s->tensors;
    size_t n = s->plain ? s->n_plain : s->n_tensors;
    for (size_t i = 0; i < n; i++) {
        if (t[i].is_vector || t[i].layer < 0) {
            continue;
        }
        sum += rank * (double)(t[i].n + (t[i].is_pair ? 2 : 1) * t[i].k) * (double)t[i].count;
    }
    return sum;
}

static double parameters_of(const struct shape *s) {
    double sum = 0;
    const struct shape_tensor *t = s->plain ? s->plain : s->tensors;
    size_t n = s->plain ? s->n_plain : s->n_tensors;
    for (size_t i = 0; i < n; i++) {
        sum += (double)t[i].n * (double)t[i].k * (double)t[i].count;
    }
    return sum;
}

int plan_train(const struct plan_train_question *q, struct plan_train_answer *out, struct error *err) {
    struct shape s;
    double devices = (double)(q->n_gpus ? q->n_gpus : 1), rank = (double)(q->rank ? q->rank : 16);
    double batch = (double)(q->batch ? q->batch : 1), length = (double)(q->sequence ? q->sequence : 4096);
    if (devices > PLAN_MAX_RANKS) {
        return out_of_bounds(err, "gpu", "at most 1024 cards");
    }
    if (rank > 65536 || batch > 65536 || length > 16777216) {
        return out_of_bounds(err, "rank", "at most 65536, batch at most 65536 and ctx at most 16777216");
    }
    if (shape_open(q->model, &s, err) < 0) {
        return -1;
    }
    double parameters = parameters_of(&s), trained = q->kind == PLAN_TRAIN_FULL ? parameters : adapters(&s, rank);
    double base = q->kind == PLAN_TRAIN_FULL ? 0 : q->kind == PLAN_TRAIN_LORA ? WEIGHT_BYTES : NF4_BYTES;
    double weights = base * parameters + WEIGHT_BYTES * trained;
    double a = length * batch * (double)s.n_embd, layers = (double)s.n_layers, vocabulary = (double)s.vocab_size;
    double activations = q->checkpointing ? 2 * a * layers + ACTIVATION_BYTES * a : ACTIVATION_BYTES * a * layers;
    shape_close(&s);
    if (!(weights + (GRADIENT_BYTES + STATE_BYTES) * trained + activations + 8 * length * batch * vocabulary < MOST_BYTES)) {
        return out_of_bounds(err, "max_sequences", "fewer, or shorter: no machine has so much memory");
    }
    struct plan_train_answer made = {
        .parameters = (size_t)parameters,
        .trained = (size_t)trained,
        .weights = (size_t)(weights / (q->zero >= PLAN_ZERO_3 ? devices : 1)),
        .gradients = (size_t)(GRADIENT_BYTES * trained / (q->zero >= PLAN_ZERO_2 ? devices : 1)),
        .optimizer = (size_t)(STATE_BYTES * trained / (q->zero >= PLAN_ZERO_1 ? devices : 1)),
        .activations = (size_t)activations,
        .logits = (size_t)(2 * length * batch * vocabulary * 4),
    };
    made.total = made.weights + made.gradients + made.optimizer + made.activations + made.logits;
    *out = made;
    return 0;
}
