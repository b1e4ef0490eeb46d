/*
 * INT8 (W8A8) checkpoints for inferd and others: SmoothQuant, weights with a scale a row, GPTQ if wanted, in the
 * compressed-tensors layout that vLLM and transformers load.
 */
#ifndef INFERD_QUANTIZE_H
#define INFERD_QUANTIZE_H

#include <inferd/error.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct quantize_progress {
    const char *stage; /* "reading", "verifying", "quantizing": what goes on */
    size_t done, total;
};

struct quantize_config {
    const char *model;       /* a GGUF file or a folder of safetensors */
    const char *out;         /* the folder to make; while it grows it is called OUT.partial */
    const char *calibration; /* a text file, NULL = none: then alpha must be 0 and gptq off */
    size_t samples;          /* most windows taken from it, evenly spread */
    size_t sample_tokens;    /* tokens of one */
    double alpha;            /* SmoothQuant's, 0 = no smoothing, at most 1 */
    bool clip_mse;           /* a row's scale by the smallest squared error, not by its largest value */
    bool gptq;
    double gptq_damping; /* share of the mean of the Hessian's diagonal */
    uint64_t shard_bytes;
    bool force;              /* an existing model folder OUT is replaced */
    size_t threads;          /* 0 = all the process may use */
    const char *cpu_variant; /* NULL = best */
    /* Called from time to time on the caller's thread; true: stop. May be NULL. */
    bool (*progress)(void *arg, const struct quantize_progress *p);
    void *progress_arg;
};
void quantize_config_default(struct quantize_config *c);

struct quantize_result {
    size_t layers, resumed_layers; /* resumed: made by an earlier run that was interrupted */
    bool began_anew;               /* there was an earlier run of another model or other options: its files are gone */
    size_t files;                  /* of safetensors */
    uint64_t bytes;                /* of tensors */
    size_t calibration_tokens;
    double weight_error; /* of the layers made now, ||W - scale Q|| / ||W||; 0 if there were none */
};

/*
 * Make OUT. It appears whole, by one rename, or not at all. An interrupted run leaves OUT.partial; the same call goes on
 * from there and gives the same bytes. Takes memory for one layer in F32 and, with calibration, for the hidden states of all
 * samples. ERROR_UNAVAILABLE when `progress` stopped it; ERROR_IO for what the file system refuses.
 */
int quantize_model(const struct quantize_config *c, struct quantize_result *out, struct error *err);

#endif
