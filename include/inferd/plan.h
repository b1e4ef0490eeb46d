/*
 * Will a model fit, on what, and how fast: answered from a model's headers and a catalogue of cards, by the arithmetic
 * that the engine takes its memory by (engine/plan.h, decoder_workspace_bytes, kv_layer_bytes). No weights are read and no
 * device is needed. Any thread; nothing is kept.
 */
#ifndef INFERD_PLAN_API_H
#define INFERD_PLAN_API_H

#include <inferd/error.h>
#include <stdbool.h>
#include <stddef.h>

/* Bounds of what is asked; those of the daemon's own settings are in its table. */
#define PLAN_MAX_RANKS 1024      /* tensor_parallel * pipeline_parallel * replicas */
#define PLAN_MAX_TP 256
#define PLAN_MAX_WARNINGS 16
#define PLAN_MAX_REMEDIES 8
#define PLAN_MAX_OPTIONS 64 /* set-ups that plan_recommend gives */

/* ---- cards ---- */

struct plan_gpu {
    char name[32];      /* "a100-80g" */
    char full_name[64]; /* "NVIDIA A100 80 GB SXM" */
    char link[16];      /* "nvlink", "pcie", "none" */
    char why_not[128];  /* inferd does not run on it, and why; "" = it does */
    size_t memory;      /* bytes as the driver reports them; of "cpu" what the process may still take */
    double bandwidth;   /* bytes/s of memory */
    double int8, bf16, fp8; /* dense operations/s by data sheet; 0 = none */
    double link_bandwidth;  /* bytes/s to the peers, one direction */
    double watts;
    double price_hour, price_buy; /* in one currency, the user's; 0 = not given */
};

/* All cards of the catalogue; static after the first call, which must not race with another. ERROR_INTERNAL, ERROR_MEMORY */
int plan_gpus(const struct plan_gpu **out, size_t *n, struct error *err);
/*
 * "NAME" or "NAMExN": a card and how many. Names of the catalogue, their aliases, "cpu" (this machine's memory), and "local"
 * (the GPU that `device` cuda would take, by the module named, NULL or "" = the usual one). ERROR_INVALID, param "gpu";
 * ERROR_DEVICE for "local".
 */
int plan_gpu_find(const char *text, const char *module, struct plan_gpu *out, size_t *n, struct error *err);
/* The user's prices of a card (of the catalogue), from the next plan_gpu_find on. ERROR_MODEL: there is no such card. */
int plan_set_price(const char *name, double hour, double buy, struct error *err);
/* The built-in models' names, one after the other; NULL behind the last. */
const char *plan_model_name(size_t i);

/* ---- the question ---- */

enum plan_zero { PLAN_ZERO_0, PLAN_ZERO_1, PLAN_ZERO_2, PLAN_ZERO_3 };

struct plan_question {
    const char *model; /* a folder, a .gguf, a config.json, or a name of the catalogue */
    struct plan_gpu gpu;
    size_t n_gpus; /* that there are; 0 = as many as the ranks */
    size_t tensor_parallel, pipeline_parallel, replicas; /* 0 = 1, but tensor_parallel 0 = n_gpus / the others */
    const char *weights, *kv_dtype; /* as the settings; NULL = auto, f16 */
    size_t max_model_len; /* 0 = the model's own, cut to what fits */
    size_t max_sequences; /* 0 = 1 must fit, and the most is told */
    size_t kv_tokens;     /* of KV for all together, in place of max_sequences * max_model_len; 0 = these */
    size_t max_batched_tokens, kv_block_size; /* 0 = 512, 16 */
    double memory_utilization; /* (0, 1]; 0 = 0.9 */
    size_t overhead; /* bytes a rank in place of workspace, graphs, communication and context; 0 = computed */
    size_t prompt;   /* tokens that the time to the first one is told for; 0 = 512 or the context */
};

/* ---- the answer ---- */

struct plan_rank {
    size_t weights, kv, workspace, graphs, communication, context; /* bytes */
    size_t margin; /* of usable, what is left */
    size_t total;  /* the sum of the first six */
    size_t usable; /* memory * memory_utilization */
};

/* A range: what is between the better and the worse of what engines reach of the roofline. 0, 0: not known. */
struct plan_range {
    double low, high;
};

struct plan_remedy {
    char what[96];      /* "INT8 weights" */
    char flags[96];     /* "--weights int8" */
    bool fits;          /* with it alone */
    size_t max_tokens, max_sequences; /* with it */
    size_t total;       /* bytes of the fullest rank with it */
};

struct plan_answer {
    bool fits;
    char model[128], architecture[64];
    size_t n_layers, n_heads, n_kv_heads, head_dim, context_length; /* context_length: positions it was made for */
    size_t parameters, active_parameters; /* active: a token's, fewer with experts */
    size_t file_bytes;                    /* of all tensors in their own types */
    size_t tensor_parallel, pipeline_parallel, replicas;
    size_t n_ranks;                       /* of one replica: [stage][tensor rank] */
    struct plan_rank ranks[PLAN_MAX_RANKS];
    size_t fullest;           /* the rank that rules */
    size_t kv_bytes_per_token; /* of one replica, all ranks; a whole block's divided by its tokens */
    size_t asked_context, asked_sequences; /* what the ranks' KV was computed for */
    size_t max_tokens;        /* of KV in the fullest rank's room, whole blocks; of one replica */
    size_t max_sequences;     /* at asked_context */
    size_t max_context;       /* at asked_sequences, no longer than the model's */
    const char *binding;      /* what rules: "weights", "kv", "workspace", "tensor_parallel", "gpus", "context"; static */
    size_t shortage;          /* bytes a rank lacks; 0 = none */
    size_t valid_tp[PLAN_MAX_TP], n_valid_tp;
    struct plan_range first_token, token, tokens_per_second; /* s, s, 1/s of all replicas */
    double token_communication; /* s of `token` that ranks and stages spend on what they tell each other */
    struct plan_range price_per_million; /* of tokens made, if the card has a price an hour */
    char warnings[PLAN_MAX_WARNINGS][192];
    size_t n_warnings;
    struct plan_remedy remedies[PLAN_MAX_REMEDIES];
    size_t n_remedies;
};

/*
 * *out is filled whether it fits or not. ERROR_MODEL: the model cannot be read, or is neither a path nor a name;
 * ERROR_INVALID with param: a number that makes no sense.
 */
int plan_ask(const struct plan_question *q, struct plan_answer *out, struct error *err);

/* ---- what to buy ---- */

struct plan_wish {
    struct plan_question question; /* its gpu and parallelism do not count */
    double latency;                /* s a token at most; 0 = any */
    size_t max_gpus;               /* 0 = 8 */
    double months;                 /* of the project; 0 = not known: no owning */
    double price_kwh;              /* of power, for owned cards */
};

struct plan_option {
    struct plan_gpu gpu;
    size_t n_gpus, tensor_parallel, replicas;
    bool fits; /* true */
    struct plan_range tokens_per_second, token;
    double price_hour;            /* of all cards; 0 = not known */
    double price_cloud, price_own; /* of the project; 0 = not known */
    size_t free_bytes;            /* a rank has left */
    char reason[160];
};

/* The catalogue's set-ups that fit and meet the wish, the cheapest first (without prices: the least memory bought, then the
 * fewest cards). out[PLAN_MAX_OPTIONS]. */
int plan_recommend(const struct plan_wish *w, struct plan_option *out, size_t *n, struct error *err);

/* ---- training: advice alone, inferd does not train ---- */

enum plan_training { PLAN_TRAIN_FULL, PLAN_TRAIN_LORA, PLAN_TRAIN_QLORA };

struct plan_train_question {
    const char *model;
    enum plan_training kind;
    enum plan_zero zero;
    size_t n_gpus;       /* states are shared among them by `zero`; 0 = 1 */
    size_t rank;         /* of LoRA; 0 = 16 */
    bool checkpointing;  /* activations are computed again */
    size_t batch, sequence; /* of one device; 0 = 1, 4096 */
};

struct plan_train_answer {
    size_t parameters, trained; /* trained: that gradients are for */
    size_t weights, gradients, optimizer, activations, logits, total; /* bytes of one device */
};

int plan_train(const struct plan_train_question *q, struct plan_train_answer *out, struct error *err);

#endif
