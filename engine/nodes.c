#include "nodes.h"

#include "base/checked.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define JOINING_MS 60000  /* between the first process that was started and the last; */
#define PODS_MS 900000    /* of pods, which get an image first */
#define MEETING_PORT "29400" /* of the leader of a LeaderWorkerSet */
#define LOADING_MS 600000 /* between the first and the last that has loaded its stage */

struct node_word {
    uint64_t numbers[NODE_NUMBERS];
    struct error failed; /* code ERROR_NONE: it goes on */
};

/* ---- how it was started ---- */

/* SIZE_MAX: it is no number. */
static size_t number(const char *text) {
    char *end;
    unsigned long n = text && text[0] >= '0' && text[0] <= '9' ? strtoul(text, &end, 10) : ULONG_MAX;
    return n <= 1u << 20 && *end == '\0' ? n : SIZE_MAX;
}

void node_start_from(const char *(*get)(const char *name), struct node_start *out) {
    static const struct {
        const char *by, *size, *rank;
    } starters[] = {
        {"LeaderWorkerSet", "LWS_GROUP_SIZE", "LWS_WORKER_INDEX"},
        {"MPI", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"},
        {"MPI", "PMI_SIZE", "PMI_RANK"},
        {"Slurm", "SLURM_NTASKS", "SLURM_PROCID"},
    };
    *out = (struct node_start){.size = 1};
    for (size_t i = 0; i < sizeof starters / sizeof starters[0]; i++) {
        size_t size = number(get(starters[i].size));
        if (size > 1 && size < SIZE_MAX) {
            *out = (struct node_start){starters[i].by, number(get(starters[i].rank)), size};
            return;
        }
    }
}

static const char *from_environment(const char *name) {
    return getenv(name);
}

size_t nodes_word_bytes(void) {
    return sizeof(struct node_word);
}

/* A job of Slurm may have tasks that have nothing to do with us; what MPI starts, and a LeaderWorkerSet, belongs together. */
static int check_alone(const struct node_start *start, struct error *err) {
    if (start->by && strcmp(start->by, "Slurm") != 0) {
        return error_set_param(err, ERROR_INVALID, "pipeline_parallel", "%s started %zu processes, but pipeline_parallel is 1",
                               start->by, start->size);
    }
    return 0;
}

static int check_stages(const struct node_start *start, size_t n_stages, struct error *err) {
    if (!start->by || start->size != n_stages) {
        return start->by ? error_set_param(err, ERROR_INVALID, "pipeline_parallel",
                                           "pipeline_parallel is %zu, but %s started %zu processes", n_stages, start->by, start->size)
                         : error_set_param(err, ERROR_INVALID, "pipeline_parallel",
                                           "pipeline_parallel is %zu: that many processes have to be started together, by mpirun, srun or a "
                                           "LeaderWorkerSet", n_stages);
    }
    if (start->rank >= start->size) {
        return error_set_param(err, ERROR_INVALID, "pipeline_parallel",
                               "%s started %zu processes, but does not say which of them this one is", start->by, start->size);
    }
    if (n_stages > COLLECTIVE_MAX_RANKS) {
        return error_set_param(err, ERROR_INVALID, "pipeline_parallel", "pipeline_parallel is at most %d", COLLECTIVE_MAX_RANKS);
    }
    return 0;
}

static int find_start(size_t n_stages, struct node_start *out, struct error *err) {
    node_start_from(from_environment, out);
    return n_stages <= 1 ? check_alone(out, err) : check_stages(out, n_stages, err);
}

int nodes_find_self(size_t n_stages, size_t *node, struct error *err) {
    struct node_start start;
    if (find_start(n_stages, &start, err) < 0) {
        return -1;
    }
    *node = n_stages <= 1 ? 0 : start.rank;
    return 0;
}

static bool is_worker_set(const struct node_start *start) {
    return start->by && strcmp(start->by, "LeaderWorkerSet") == 0;
}

void nodes_set_place(void) {
    struct node_start start;
    char place[300];
    const char *leader = getenv("LWS_LEADER_ADDRESS");
    node_start_from(from_environment, &start);
    if (!is_worker_set(&start)) {
        unsetenv("NCCL_COMM_ID"); /* ranks within a process meet without it, and would look for one another there */
    } else if (leader && *leader) {
        int n = snprintf(place, sizeof place, "%s:" MEETING_PORT, leader);
        if (n < (int)sizeof place) {
            setenv("NCCL_COMM_ID", place, 0);
        }
    }
}

int nodes_open(size_t n_stages, const char *device, const char *cuda_module, struct nodes *out, struct error *err) {
    struct node_start start;
    struct nodes made = {.n_stages = n_stages};
    if (find_start(n_stages, &start, err) < 0) {
        return -1;
    }
    if (n_stages <= 1) {
        *out = (struct nodes){.n_stages = 1};
        return 0;
    }
    made.words = calloc(n_stages, sizeof *made.words);
    if (!made.words) {
        return error_memory(err);
    }
    if ((is_worker_set(&start) ? backend_open_nodes(device ? device : "auto", cuda_module, start.rank, n_stages, PODS_MS, &made.group, err)
                               : collective_open_mpi(JOINING_MS, &made.group, err)) < 0) {
        free(made.words);
        return -1;
    }
    made.stage = made.group->rank;
    if (made.group->size != n_stages) { /* which all of them see */
        error_set_param(err, ERROR_INVALID, "pipeline_parallel", "pipeline_parallel is %zu, but MPI knows of %zu processes",
                        n_stages, made.group->size);
        nodes_close(&made);
        return -1;
    }
    made.group->deadline_ms = LOADING_MS;
    if (made.stage != start.rank) { /* who leads was decided by the environment */
        error_set(err, ERROR_DEVICE, "%s calls this process %zu of %zu, but MPI %zu", start.by, start.rank, n_stages, made.stage);
        nodes_give_up(&made, err);
        nodes_close(&made);
        return -1;
    }
    *out = made;
    return 0;
}

void nodes_close(struct nodes *n) {
    if (n->group) {
        n->group->ops->close(n->group);
    }
    free(n->words);
    free(n->message);
    free(n->choices);
    free(n->edits);
    *n = (struct nodes){0};
}

/* ---- while loading ---- */

static int speak(struct nodes *n, const uint64_t *numbers, size_t count, const struct error *failed, struct error *err) {
    struct node_word own = {.failed.code = ERROR_NONE};
    if (count > 0) {
        memcpy(own.numbers, numbers, count * sizeof *numbers);
    }
    if (failed) {
        own.failed = *failed;
    }
    return n->group->ops->all_gather(n->group, &own, sizeof own, n->words, err);
}

/* One turn: every node's numbers are in n->words then. */
static int take_turn(struct nodes *n, const uint64_t *numbers, size_t count, struct error *err) {
    if (speak(n, numbers, count, NULL, err) < 0) {
        return -1;
    }
    for (size_t i = 0; i < n->n_stages; i++) {
        struct error *failed = &n->words[i].failed;
        if (failed->code != ERROR_NONE) {
            n->over = true;
            failed->param[sizeof failed->param - 1] = failed->message[sizeof failed->message - 1] = '\0';
            *err = *failed;
            return error_prefix(err, "node %zu", i);
        }
    }
    return 0;
}

void nodes_give_up(struct nodes *n, const struct error *why) {
    struct error ignored;
    if (n->group && !n->loaded && !n->over) {
        n->over = true;
        (void)speak(n, NULL, 0, why, &ignored);
    }
}

int nodes_must_agree(struct nodes *n, const uint64_t *numbers, size_t count, const char *what, struct error *err) {
    if (take_turn(n, numbers, count, err) < 0) {
        return -1;
    }
    for (size_t i = 1; i < n->n_stages; i++) {
        if (memcmp(n->words[0].numbers, n->words[i].numbers, count * sizeof *numbers) != 0) {
            n->over = true; /* all see it */
            return error_set(err, ERROR_INVALID, "node %zu was started with another %s than node 0", i, what);
        }
    }
    return 0;
}

int nodes_least(struct nodes *n, size_t *x, struct error *err) {
    const uint64_t own = *x;
    if (take_turn(n, &own, 1, err) < 0) {
        return -1;
    }
    for (size_t i = 0; i < n->n_stages; i++) {
        size_t other = (size_t)n->words[i].numbers[0];
        *x = other < *x ? other : *x;
    }
    return 0;
}

int nodes_ready(struct nodes *n, size_t timeout_ms, struct error *err) {
    if (take_turn(n, NULL, 0, err) < 0) {
        return -1;
    }
    n->loaded = true;
    n->group->deadline_ms = timeout_ms;
    return 0;
}

/* ---- tasks ---- */

/* The arrays follow where there are any: of used_blocks entries a sequence. */
struct header {
    uint32_t task, rows, n_sequences, n_logits, n_copies, used_blocks;
    uint64_t first, count;
};

struct part {
    int32_t *array;
    size_t n, stride, lines; /* lines of n entries, stride apart */
};

/* Where the arrays of a step lie, in the order in which they are sent. */
#define N_PARTS 9
static void parts_of(const struct decoder_batch *b, size_t used, struct part parts[N_PARTS]) {
    parts[0] = (struct part){b->token_ids, b->rows, 0, 1};
    parts[1] = (struct part){b->positions, b->rows, 0, 1};
    parts[2] = (struct part){b->slot_mapping, b->rows, 0, 1};
    parts[3] = (struct part){b->cu_seqlens, b->n_sequences + 1, 0, 1};
    parts[4] = (struct part){b->context_lens, b->n_sequences, 0, 1};
    parts[5] = (struct part){b->block_tables, used, b->max_blocks, b->n_sequences};
    parts[6] = (struct part){b->logit_rows, b->n_logits, 0, 1};
    parts[7] = (struct part){b->copy_from, b->n_copies, 0, 1};
    parts[8] = (struct part){b->copy_to, b->n_copies, 0, 1};
}

static size_t message_length(const struct decoder_batch *b, size_t used) {
    return 3 * b->rows + 2 * b->n_sequences + 1 + used * b->n_sequences + b->n_logits + 2 * b->n_copies;
}

int nodes_reserve(struct nodes *n, size_t max_rows, size_t max_sequences, size_t max_blocks, size_t max_edits, struct error *err) {
    size_t blocks, rest = 4 * max_rows + 4 * max_sequences + 1;
    if (!checked_mul(max_blocks, max_sequences, &blocks) || !checked_add(blocks, rest, &n->capacity)) {
        return error_memory(err);
    }
    n->max_rows = max_rows;
    n->max_sequences = max_sequences;
    n->max_edits = max_edits;
    n->message = calloc(n->capacity, sizeof *n->message);
    n->choices = calloc(max_edits > 0 ? max_rows : 1, sizeof *n->choices);
    n->edits = calloc(max_edits + 1, sizeof *n->edits);
    return n->message && n->choices && n->edits ? 0 : error_memory(err);
}

static void copy_parts(const struct decoder_batch *b, size_t used, int32_t *message, bool out) {
    struct part parts[N_PARTS];
    parts_of(b, used, parts);
    for (size_t i = 0; i < N_PARTS; i++) {
        for (size_t line = 0; line < parts[i].lines; line++, message += parts[i].n) {
            int32_t *array = parts[i].array + line * parts[i].stride;
            if (parts[i].n > 0) {
                memcpy(out ? message : array, out ? array : message, parts[i].n * sizeof *message);
            }
        }
    }
}

int nodes_tell(struct nodes *n, enum node_task task, const struct decoder_batch *b, size_t block_size, size_t first,
               size_t count, struct error *err) {
    struct header h = {.task = (uint32_t)task, .first = first, .count = count};
    size_t length = 0;
    if (task == NODE_STEP) {
        size_t longest = 0;
        for (size_t i = 0; i < b->n_sequences; i++) {
            longest = (size_t)b->context_lens[i] > longest ? (size_t)b->context_lens[i] : longest;
        }
        h.used_blocks = (uint32_t)((longest + block_size - 1) / block_size);
        h.rows = (uint32_t)b->rows;
        h.n_sequences = (uint32_t)b->n_sequences;
        h.n_logits = (uint32_t)b->n_logits;
        h.n_copies = (uint32_t)b->n_copies;
        length = message_length(b, h.used_blocks);
        if (length > n->capacity) {
            return error_set(err, ERROR_INTERNAL, "a step is larger than the largest");
        }
        copy_parts(b, h.used_blocks, n->message, true);
    }
    return n->group->ops->broadcast(n->group, &h, sizeof h, 0, err) < 0 ||
                   (length > 0 && n->group->ops->broadcast(n->group, n->message, length * sizeof *n->message, 0, err) < 0)
               ? -1
               : 0;
}

/* ---- choices ---- */

int nodes_tell_choice(struct nodes *n, size_t vocab_size, const struct choice_row *rows, size_t count, struct error *err) {
    const struct collective_ops *ops = n->group->ops;
    size_t n_edits = 0;
    for (size_t i = 0; i < count; i++) {
        if (count > n->max_rows || rows[i].n_edits > n->max_edits - n_edits) {
            return error_set(err, ERROR_INTERNAL, "more choices than the most, or more edits of logits");
        }
        n->choices[i] = rows[i];
        n->choices[i].edits = NULL; /* an address of this process */
        if (rows[i].n_edits > 0) {
            memcpy(n->edits + n_edits, rows[i].edits, rows[i].n_edits * sizeof *n->edits);
        }
        n_edits += rows[i].n_edits;
    }
    struct header h = {.task = NODE_CHOOSE, .rows = (uint32_t)n_edits, .first = vocab_size, .count = count};
    return ops->broadcast(n->group, &h, sizeof h, 0, err) < 0 ||
                   ops->broadcast(n->group, n->choices, count * sizeof *n->choices, 0, err) < 0 ||
                   (n_edits > 0 && ops->broadcast(n->group, n->edits, n_edits * sizeof *n->edits, 0, err) < 0)
               ? -1
               : 0;
}

static int hear_choice(struct nodes *n, const struct header *h, struct error *err) {
    const struct collective_ops *ops = n->group->ops;
    size_t n_edits = 0;
    if (h->count > n->max_rows || h->rows > n->max_edits) {
        return error_set(err, ERROR_INTERNAL, "the leader has more choices than the most");
    }
    if (ops->broadcast(n->group, n->choices, h->count * sizeof *n->choices, 0, err) < 0 ||
        (h->rows > 0 && ops->broadcast(n->group, n->edits, h->rows * sizeof *n->edits, 0, err) < 0)) {
        return -1;
    }
    for (size_t i = 0; i < h->count; i++) {
        struct choice_row *row = &n->choices[i];
        if (row->n_edits > h->rows - n_edits) {
            return error_set(err, ERROR_INTERNAL, "the leader's choices have other edits than it sent");
        }
        row->edits = n->edits + n_edits;
        n_edits += row->n_edits;
    }
    return 0;
}

/* Nodes hear of a task from those before them, so that the first that does not answer is the one that is gone. */
int nodes_beat(struct nodes *n, struct error *err) {
    const struct collective_ops *ops = n->group->ops;
    char answer = 0;
    if (n->stage > 0) {
        return ops->send(n->group, &answer, 1, 0, err);
    }
    for (size_t i = 1; i < n->n_stages; i++) {
        if (ops->recv(n->group, &answer, 1, i, err) < 0) {
            return -1;
        }
    }
    return 0;
}

int nodes_hear(struct nodes *n, enum node_task *task, struct decoder_batch *b, size_t *first, size_t *count,
               struct error *err) {
    struct header h;
    if (n->group->ops->broadcast(n->group, &h, sizeof h, 0, err) < 0) {
        return -1;
    }
    if (h.task > NODE_BYE) {
        return error_set(err, ERROR_INTERNAL, "the leader asks for what no node can do");
    }
    if (h.task == NODE_CHOOSE && hear_choice(n, &h, err) < 0) {
        return -1;
    }
    if (h.task == NODE_STEP) {
        b->rows = h.rows;
        b->n_sequences = h.n_sequences;
        b->n_logits = h.n_logits;
        b->n_copies = h.n_copies;
        size_t length = message_length(b, h.used_blocks);
        if (h.rows > n->max_rows || h.n_logits > n->max_rows || h.n_sequences > n->max_sequences ||
            h.n_copies > n->max_sequences || h.used_blocks > b->max_blocks || length > n->capacity) {
            return error_set(err, ERROR_INTERNAL, "the leader's step is larger than the largest");
        }
        if (n->group->ops->broadcast(n->group, n->message, length * sizeof *n->message, 0, err) < 0) {
            return -1;
        }
        copy_parts(b, h.used_blocks, n->message, false);
    }
    *task = (enum node_task)h.task;
    *first = h.first;
    *count = h.count;
    return 0;
}
