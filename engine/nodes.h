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
    NODE_CHOOSE, /* n tokens, of `first` that the vocabulary has: the last stage, on a device that chooses */
    NODE_ROW,    /* the logits in memory at row `first`, of such a device */
    NODE_COPY,   /* KV block first becomes block n, in every layer */
    NODE_BEAT,   /* nothing: the leader is there, and wants to know who else is */
    NODE_BYE,
};

struct node_word; /* what a node says when all speak: nodes.c */

struct nodes {
    struct collective *group; /* NULL: there are no others */
    size_t stage, n_stages;
    bool loaded;             /* steps may follow */
    bool over;               /* one has given up, and all know */
    struct node_word *words; /* [n_stages], owned */
    int32_t *message; /* [capacity], owned: the arrays of a step on their way */
    size_t capacity, max_rows, max_sequences;
    struct choice_row *choices; /* [max_rows], owned; of devices that choose: what was asked last */
    struct logit_edit *edits;   /* [max_edits], owned: theirs */
    size_t max_edits;
};

/* How processes were started, from the environment of this one. */
struct node_start {
    const char *by;    /* "MPI", "Slurm", "LeaderWorkerSet", NULL: nobody says that there are others */
    size_t rank, size; /* 0 of 1; rank SIZE_MAX: nobody says which */
};
void node_start_from(const char *(*get)(const char *name), struct node_start *out);

/*
 * *node: this process's number among the n_stages that were started; 0 if it is alone (n_stages 1, or 0). ERROR_INVALID, param
 * "pipeline_parallel", if not as many were started; with n_stages 1 too if MPI started several: all would take themselves for the leader.
 */
int nodes_find_self(size_t n_stages, size_t *node, struct error *err);

/*
 * Joins the group of n_stages processes, by MPI, or in a LeaderWorkerSet by what the device (backend_open) connects by; of 1, or 0,
 * there is none. The first of what a node does that may fail, so that the others can be told. Fails as nodes_find_self does.
 */
int nodes_open(size_t n_stages, const char *device, const char *cuda_module, struct nodes *out, struct error *err);
/* Before threads are started: where the processes of a LeaderWorkerSet meet (NCCL_COMM_ID) is set, unless it is; for others nowhere. */
void nodes_set_place(void);
void nodes_close(struct nodes *n); /* a zeroed one is fine */

size_t nodes_word_bytes(void); /* of an element of `words`, for who makes a group by himself */

/*
 * While loading all nodes speak in turns: each calls the next three in the same order, and nodes_give_up where it cannot go on, in place
 * of whatever comes next. The others' call then fails with its reason and its code, so that all end as it does.
 */
/* All have the same numbers[count], at most NODE_NUMBERS, or the first that has others is named (ERROR_INVALID). */
#define NODE_NUMBERS 16
int nodes_must_agree(struct nodes *n, const uint64_t *numbers, size_t count, const char *what, struct error *err);
/* *x becomes the smallest of all. */
int nodes_least(struct nodes *n, size_t *x, struct error *err);
/* All are loaded: from now on whoever does not come within timeout_ms is lost. */
int nodes_ready(struct nodes *n, size_t timeout_ms, struct error *err);
void nodes_give_up(struct nodes *n, const struct error *why); /* after nodes_ready, or once all know, nothing */

/* Room for the arrays of the largest step, and for the choices behind it (backend_ops.choice_edits, 0: the device does not choose). */
int nodes_reserve(struct nodes *n, size_t max_rows, size_t max_sequences, size_t max_blocks, size_t max_edits, struct error *err);

/* The leader: what comes next. b of NODE_STEP alone. */
int nodes_tell(struct nodes *n, enum node_task task, const struct decoder_batch *b, size_t block_size, size_t first,
               size_t count, struct error *err);
/* The same for NODE_CHOOSE: rows[count] and their edits, which who has heard of it finds in n->choices. */
int nodes_tell_choice(struct nodes *n, size_t vocab_size, const struct choice_row *rows, size_t count, struct error *err);
/* Is everyone there? On all nodes; the first that is not is named. */
int nodes_beat(struct nodes *n, struct error *err);
/* The others: *b has room for the largest step. */
int nodes_hear(struct nodes *n, enum node_task *task, struct decoder_batch *b, size_t *first, size_t *count,
               struct error *err);

#endif
