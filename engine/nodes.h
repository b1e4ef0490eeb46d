/*
 * A model over several processes: each has a stage of the layers (Huang et al. 2019, GPipe). The leader, node 0, tells the others
 * what to do next, and all do it; what a stage computes goes to the next, and the last one's logits come back to the leader.
 * One thread in each process, that of its rank 0.
 */
#ifndef INFERD_NODES_H
#define INFERD_NODES_H

#include "model/decoder.h"

enum node_task {
    NODE_STEP,   /* the batch */
    NODE_LOGITS, /* rows first .. first + n of the last step's */
    NODE_COPY,   /* KV block first becomes block n, in every layer */
    NODE_BEAT,   /* nothing: the leader is there, and wants to know who else is */
    NODE_BYE,
};

struct nodes {
    struct collective *group;
    size_t stage, n_stages;
    int32_t *message; /* [capacity], owned: the arrays of a step on their way */
    size_t capacity;
};

/* How processes were started, from the environment of this one. */
struct node_start {
    const char *by;    /* "MPI", "Slurm", "LeaderWorkerSet", NULL: nobody says that there are others */
    size_t rank, size; /* 0 of 1 */
};
void node_start_from(const char *(*get)(const char *name), struct node_start *out);

size_t nodes_own_number(void);

/*
 * The group of n_stages processes, by MPI, loading timeouts until nodes_are_loaded. ERROR_INVALID, param "pipeline_parallel",
 * if they are not as many.
 */
int nodes_open(size_t n_stages, struct nodes *out, struct error *err);
/* pipeline_parallel is 1. ERROR_INVALID if MPI started several processes: all would take themselves for the leader. */
int nodes_none(struct error *err);
void nodes_close(struct nodes *n); /* a zeroed one is fine */
/* From now on whoever does not come within timeout_ms is lost. */
void nodes_are_loaded(struct nodes *n, size_t timeout_ms);

/* All have the same numbers[n], or those that have others are named (ERROR_INVALID). */
int nodes_must_agree(struct nodes *n, const uint64_t *numbers, size_t count, const char *what, struct error *err);
/* *x becomes the smallest of all. */
int nodes_least(struct nodes *n, size_t *x, struct error *err);

/* Room for the arrays of the largest step. */
int nodes_reserve(struct nodes *n, size_t max_rows, size_t max_sequences, size_t max_blocks, struct error *err);

/* The leader: what comes next. b of NODE_STEP alone. */
int nodes_tell(struct nodes *n, enum node_task task, const struct decoder_batch *b, size_t block_size, size_t first,
               size_t count, struct error *err);
/* The others: *b has room for the largest step. */
int nodes_hear(struct nodes *n, enum node_task *task, struct decoder_batch *b, size_t *first, size_t *count,
               struct error *err);

#endif
