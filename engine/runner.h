/*
 * The model in memory, ready to run steps: file, and for each rank backend, weights, decoder and KV memory; and the arrays of a
 * step. Everything is called on the engine thread, which is rank 0's; the others have threads of their own (ranks.h).
 */
#ifndef INFERD_RUNNER_H
#define INFERD_RUNNER_H

#include "memory.h"
#include "model/decoder.h"
#include "nodes.h"
#include "plan.h"
#include "ranks.h"

#include <inferd/engine.h>

/* One rank's part of the model. Its thread's, but for what open leaves behind. */
struct rank {
    const struct backend_ops *ops;
    struct backend *backend;
    struct backend_info info;
    struct collective *host;  /* the ranks on host memory, NULL if it is the only one */
    struct collective *group; /* on device memory; host itself where that is the same */
    char links[BACKEND_LINKS];
    struct shard shard;
    struct model_config config; /* of the shard */
    struct weights weights;     /* until the decoder has them */
    struct decoder decoder;
    int32_t *tokens;            /* [max_logits] of other ranks than the first: what they chose, which is the same; and of the
                                   first of a stage; owned */
    struct plan_input memory;
    size_t own_blocks;          /* of KV, before other nodes had their say */
    size_t taken, reserved;     /* bytes of a device: at the last look; for its largest step */
    size_t used_weights, used_workspace, used_graphs; /* as planned, where a device does not tell */
};

struct runner {
    struct rank *ranks; /* [n_ranks], owned */
    size_t n_ranks;
    struct ranks *threads;
    struct nodes nodes;         /* of a pipeline; group NULL: all layers are in this process */
    struct engine_rank *reports; /* [n_ranks], owned: how they started */
    const struct backend_ops *ops; /* these four are rank 0's */
    struct backend *backend;
    struct backend_info backend_info;
    struct decoder *decoder;
    char device_why[BACKEND_WHY]; /* see backend_open */
    struct model_file *file;
    struct model_config model; /* the whole model's */
    struct decoder_batch batch; /* arrays of host_alloc, with room for the largest step */
    size_t max_rows, max_sequences;
    size_t logits_first, logits_end; /* which of batch.logit_rows have their logits in memory */
    float *host_logits;              /* [max_logits][decoder->logits_ld] of a device that does not sample; pinned */
    struct plan kv;                  /* its bytes are those of all ranks */
    size_t kv_token_bytes, weight_bytes, workspace_bytes, n_parameters, n_threads; /* of all ranks */
    size_t memory_used[ENGINE_MEMORY_KINDS];
    double load_seconds[ENGINE_LOAD_PHASES]; /* what runner_open does of them */
};

/* max_logits: rows of logits in memory at once, 0 = what the engine needs: max_sequences, and no fewer than
 * RUNNER_LOGITS, so that the many rows of a prompt's logprobs do not read the head's weights for each. */
#define RUNNER_LOGITS 16
int runner_open(struct runner *r, const struct engine_config *config, size_t max_logits, struct error *err);
/* A stage of a pipeline: *nodes (nodes_open) are the runner's, also if this fails; the other nodes are told why then. */
int runner_open_stage(struct runner *r, const struct engine_config *config, struct nodes *nodes, struct error *err);
/* The same with `available` bytes of memory, for who knows better than the system (0 = what the system says). */
int runner_open_within(struct runner *r, const struct engine_config *config, size_t max_logits, size_t available,
                       struct error *err);
void runner_close(struct runner *r); /* NULL, a zeroed and a half-open one are fine */

/* Run the step in r->batch. */
int runner_run(struct runner *r, struct error *err);
/* Queue a step whose logits stay on the device (one that chooses), without waiting. See decoder_start. */
int runner_start(struct runner *r, const struct decoder_batch *batch, bool fed, struct error *err);
/* Where the device chooses (backend.h): queue a choice, take one; of several ranks each chooses, and all the same. */
int runner_choose(struct runner *r, size_t vocab_size, const struct choice_row *rows, size_t n, struct error *err);
int runner_chosen(struct runner *r, int32_t *tokens, size_t n, struct error *err);
/* KV block `to` becomes a copy of `from`, in every layer; what was queued is done. */
int runner_copy_block(struct runner *r, int32_t from, int32_t to, struct error *err);
int runner_sync(struct runner *r, struct error *err);
/* Of a pipeline: the leader makes sure that the other nodes are there, and lets them hear so. */
int runner_beat(struct runner *r, struct error *err);
/* Not the leader: do what it says until it says goodbye. */
int runner_follow(struct runner *r, struct error *err);
/* A step that fails cannot be followed by another: of several ranks, or on a device that works by itself. */
static inline bool runner_is_fragile(const struct runner *r) {
    return r->n_ranks > 1 || r->nodes.group != NULL || r->ops->ready != NULL;
}
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
