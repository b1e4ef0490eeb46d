/*
 * How fast a model computes on this machine, without a server (`inferd bench`): the forward pass and the choice of tokens, as
 * the engine runs them, over prompts and streams of given lengths. One thread at a time.
 */
#ifndef INFERD_BENCH_H
#define INFERD_BENCH_H

#include <inferd/backend.h>
#include <inferd/engine.h>

enum bench_kind { BENCH_PREFILL, BENCH_DECODE };

struct bench_case {
    enum bench_kind kind;
    size_t streams;
    size_t context; /* tokens of each stream's prompt: PREFILL computes them, DECODE goes on behind them */
    size_t steps;   /* DECODE: tokens that each stream makes */
};

struct bench_config {
    struct engine_config engine; /* model (unless there is a shape), device, cpu_variant, threads, weights, kv_dtype, kv_block_size */
    const char *shape;           /* random weights of this shape in place of a model: "NAME" or "NAME:TYPE"; NULL = none */
    size_t chunk;                /* rows of a step of PREFILL */
    const struct bench_case *cases; /* [n_cases] that memory is taken for */
    size_t n_cases;
};

/* The names of the shapes, and of the types of their tensors (bf16 is the usual one), parted by spaces. engine.weights acts on
 * them as on a model's. */
const char *bench_shapes(void);
const char *bench_shape_types(void);

struct bench;

struct bench_info {
    const char *architecture, *backend, *variant, *device;
    size_t threads;
    size_t n_layers;
    size_t n_layers_measured; /* fewer: the others had no place in memory, and times are scaled as bench_result says */
    size_t n_parameters;      /* with all layers */
    size_t weight_bytes;      /* as they are computed from, with all layers */
    size_t kv_token_bytes;
    size_t vocab_size;
    enum dtype weight_dtype; /* of most of the weights */
    bool int8_activations;   /* they are multiplied as integers */
};

/* ERROR_DOES_NOT_FIT when not even one layer of a shape has place. */
int bench_open(const struct bench_config *config, struct bench **out, struct error *err);
void bench_close(struct bench *b); /* NULL is fine */
void bench_get_info(const struct bench *b, struct bench_info *out);

/* What the machine can do at most; zeros where the device does not tell. About a second. */
int bench_measure(struct bench *b, struct backend_limits *out, struct error *err);

struct bench_result {
    size_t tokens;           /* PREFILL: of the prompts; DECODE: made */
    double seconds;          /* with all layers: what is measured with two numbers of layers, drawn on in a straight line */
    double sampling_seconds; /* of it, to choose tokens */
    double bytes;            /* read at least: weights once a step, keys and values of each stream once a step */
    double operations;       /* multiplications and additions of matrices and attention */
    double measured_seconds; /* of the layers that there are; what the profile is of */
    size_t threads;
    bool has_profile;
    struct backend_profile profile;
};
/* `c` is one of the cases that it was opened with. The cost of DECODE's prompts does not count. */
int bench_run(struct bench *b, const struct bench_case *c, bool profile, struct bench_result *out, struct error *err);

#endif
