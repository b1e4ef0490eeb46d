/*
 * The model in memory, ready to run steps: file, backend, weights, decoder, KV memory and the arrays of a step.
 * Everything is called on the engine thread, which is the backend's one rank thread.
 */
#ifndef INFERD_RUNNER_H
#define INFERD_RUNNER_H

#include "memory.h"
#include "model/decoder.h"
#include "plan.h"

#include <inferd/engine.h>

struct runner {
    const struct backend_ops *ops;
    struct backend *backend;
    struct backend_info backend_info;
    char device_why[BACKEND_WHY]; /* see backend_open */
    struct model_file *file;
    struct decoder decoder;
    struct decoder_batch batch; /* arrays of host_alloc, with room for the largest step */
    size_t max_rows, max_sequences;
    size_t logits_first, logits_end; /* which of batch.logit_rows have their logits in memory */
    float *host_logits;              /* [max_logits][vocab_size] of a device that does not sample; pinned */
    struct plan kv;
    size_t kv_token_bytes;
    size_t memory_used[ENGINE_MEMORY_KINDS]; /* as planned, where a device does not tell */
    double load_seconds[ENGINE_LOAD_PHASES]; /* what runner_open does of them */
};

/* max_logits: rows of logits in memory at once, 0 = what the engine needs: max_sequences, and no fewer than
 * RUNNER_LOGITS, so that the many rows of a prompt's logprobs do not read the head's weights for each. */
#define RUNNER_LOGITS 16
int runner_open(struct runner *r, const struct engine_config *config, size_t max_logits, struct error *err);
/* The same with `available` bytes of memory, for who knows better than the system (0 = what the system says). */
int runner_open_within(struct runner *r, const struct engine_config *config, size_t max_logits, size_t available,
                       struct error *err);
void runner_close(struct runner *r); /* NULL, a zeroed and a half-open one are fine */

/* Run the step in r->batch. */
int runner_run(struct runner *r, struct error *err);
/* Queue a step whose logits stay on the device (one that chooses), without waiting. See decoder_start. */
int runner_start(struct runner *r, const struct decoder_batch *batch, bool fed, struct error *err);
/* Logits [vocab_size] of the i-th of batch.logit_rows after a run; valid until the next call. Rows that are not in
 * memory are computed, in place of what is. Best asked for in order. */
int runner_get_logits(struct runner *r, size_t i, const float **out, struct error *err);

/* Fails if logits are not finite. On a device with `ready` first all that start-up has to run there (decoder_warm_up),
 * then the largest step, else one token. KV blocks from 0 on are written. */
int runner_self_test(struct runner *r, struct error *err);

/* r->batch: rows [begin, end) of one sequence from position 0 on, whose KV block i is block i; logits of all rows. */
void runner_fill_plain(struct runner *r, const int32_t *tokens, size_t begin, size_t end);

/*
 * For tests: compute a whole prompt from position 0 in chunks of `chunk` rows, without an engine, and hand the logits
 * [vocab_size] of each position to `sink`. Uses KV blocks from 0 on.
 */
typedef void runner_sink(void *arg, size_t position, const float *logits);
int runner_evaluate(struct runner *r, const int32_t *tokens, size_t n, size_t chunk, runner_sink *sink, void *arg,
                    struct error *err);

#endif
