#include "nodes.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- how a process was started ---- */

static const char *const *environment; /* name, value, ..., NULL */

static const char *get(const char *name) {
    for (const char *const *e = environment; *e; e += 2) {
        if (strcmp(*e, name) == 0) {
            return e[1];
        }
    }
    return NULL;
}

#define START(...) start_of((const char *const[]){__VA_ARGS__ __VA_OPT__(, ) NULL})
static struct node_start start_of(const char *const *e) {
    struct node_start out;
    environment = e;
    node_start_from(get, &out);
    return out;
}

static void is(struct node_start s, const char *by, size_t rank, size_t size) {
    cr_expect(by ? s.by && strcmp(s.by, by) == 0 : !s.by, "by %s, not %s", s.by ? s.by : "nobody", by ? by : "nobody");
    cr_expect(s.rank == rank && s.size == size, "%zu of %zu, not %zu of %zu", s.rank, s.size, rank, size);
}

Test(nodes, start) {
    is(START(), NULL, 0, 1);
    is(START("OMPI_COMM_WORLD_SIZE", "4", "OMPI_COMM_WORLD_RANK", "3"), "MPI", 3, 4);
    is(START("PMI_SIZE", "2", "PMI_RANK", "1"), "MPI", 1, 2);
    is(START("SLURM_NTASKS", "8", "SLURM_PROCID", "0"), "Slurm", 0, 8);
    is(START("LWS_GROUP_SIZE", "2", "LWS_WORKER_INDEX", "1", "LWS_LEADER_ADDRESS", "a-0.a"), "LeaderWorkerSet", 1, 2);
    /* mpirun within a job of Slurm: mpirun knows better */
    is(START("SLURM_NTASKS", "8", "SLURM_PROCID", "0", "OMPI_COMM_WORLD_SIZE", "2", "OMPI_COMM_WORLD_RANK", "1"), "MPI", 1, 2);
    /* one is nobody's group */
    is(START("OMPI_COMM_WORLD_SIZE", "1", "OMPI_COMM_WORLD_RANK", "0"), NULL, 0, 1);
    is(START("SLURM_NTASKS", "1", "SLURM_PROCID", "0"), NULL, 0, 1);
    static const char *const no_numbers[] = {"", "two", "-2", " 2", "2x", "0", "99999999999999999999", "1048577"};
    for (size_t i = 0; i < sizeof no_numbers / sizeof no_numbers[0]; i++) {
        is(START("OMPI_COMM_WORLD_SIZE", no_numbers[i], "OMPI_COMM_WORLD_RANK", "1"), NULL, 0, 1);
    }
}

Test(nodes, nobody_started_any) {
    struct nodes n;
    struct error err;
    unsetenv("OMPI_COMM_WORLD_SIZE");
    unsetenv("PMI_SIZE");
    unsetenv("SLURM_NTASKS");
    unsetenv("LWS_GROUP_SIZE");
    cr_assert(nodes_open(1, NULL, NULL, &n, &err) == 0 && !n.group);
    cr_assert(nodes_open(2, NULL, NULL, &n, &err) < 0 && err.code == ERROR_INVALID);
    cr_expect_str_eq(err.param, "pipeline_parallel");
    cr_expect(strstr(err.message, "by mpirun, srun or a LeaderWorkerSet"), "%s", err.message);
    setenv("SLURM_NTASKS", "3", 1);
    cr_expect(nodes_open(1, NULL, NULL, &n, &err) == 0, "the other tasks of a job may be anything");
    cr_expect(nodes_open(2, NULL, NULL, &n, &err) < 0 && strstr(err.message, "pipeline_parallel is 2, but Slurm started 3"), "%s", err.message);
    size_t self = 7;
    setenv("SLURM_PROCID", "2", 1);
    cr_expect(nodes_find_self(1, &self, &err) == 0 && self == 0, "a task of a job that is a server of its own");
    cr_expect(nodes_find_self(3, &self, &err) == 0 && self == 2);
    cr_expect(nodes_find_self(2, &self, &err) < 0 && self == 2);
    unsetenv("SLURM_NTASKS");
    setenv("LWS_GROUP_SIZE", "2", 1);
    setenv("LWS_WORKER_INDEX", "1", 1);
    cr_expect(nodes_find_self(2, &self, &err) == 0 && self == 1);
    cr_expect(nodes_open(1, NULL, NULL, &n, &err) < 0 && err.code == ERROR_INVALID, "two that would each take itself for the leader");
    cr_expect(nodes_open(2, "cpu", NULL, &n, &err) < 0 && err.code == ERROR_UNSUPPORTED && strstr(err.message, "by MPI alone"), "%s",
              err.message);
    cr_expect_str_eq(err.param, "device");
    static const char *const indices[] = {"2", "-1", "one", ""};
    for (size_t i = 0; i < sizeof indices / sizeof indices[0]; i++) {
        setenv("LWS_WORKER_INDEX", indices[i], 1);
        cr_expect(nodes_find_self(2, &self, &err) < 0 && strstr(err.message, "does not say which"), "%s", err.message);
    }
    unsetenv("LWS_WORKER_INDEX");
    cr_expect(nodes_find_self(2, &self, &err) < 0 && err.code == ERROR_INVALID);
}

Test(nodes, where_they_meet) {
    unsetenv("OMPI_COMM_WORLD_SIZE");
    unsetenv("PMI_SIZE");
    unsetenv("SLURM_NTASKS");
    unsetenv("NCCL_COMM_ID");
    unsetenv("LWS_GROUP_SIZE");
    setenv("LWS_LEADER_ADDRESS", "model-0.model.default", 1);
    nodes_set_place();
    cr_expect_null(getenv("NCCL_COMM_ID"), "it is no set of several");
    setenv("LWS_GROUP_SIZE", "2", 1);
    nodes_set_place();
    cr_expect_str_eq(getenv("NCCL_COMM_ID"), "model-0.model.default:29400");
    setenv("NCCL_COMM_ID", "10.0.0.1:5000", 1);
    nodes_set_place();
    cr_expect_str_eq(getenv("NCCL_COMM_ID"), "10.0.0.1:5000", "who says where is heard");
    setenv("LWS_GROUP_SIZE", "1", 1);
    nodes_set_place();
    cr_expect_null(getenv("NCCL_COMM_ID"), "ranks within the process would meet there");
}

/* ---- among threads ---- */

#define MOST 3

struct member {
    struct collective *group;
    struct nodes nodes;
    void (*fn)(struct nodes *n);
};

static void *run(void *arg) {
    struct member *m = arg;
    m->nodes = (struct nodes){.group = m->group, .stage = m->group->rank, .n_stages = m->group->size};
    struct error err;
    cr_assert(nodes_reserve(&m->nodes, 8, 4, 6, 5, &err) == 0);
    m->fn(&m->nodes);
    nodes_close(&m->nodes);
    return NULL;
}

static void among(size_t n, void (*fn)(struct nodes *)) {
    struct collective *groups[MOST];
    struct member members[MOST];
    pthread_t threads[MOST];
    struct error err;
    cr_assert(collective_open_threads(n, 5000, groups, &err) == 0);
    for (size_t i = 0; i < n; i++) {
        members[i] = (struct member){.group = groups[i], .fn = fn};
        cr_assert(pthread_create(&threads[i], NULL, run, &members[i]) == 0);
    }
    for (size_t i = 0; i < n; i++) {
        pthread_join(threads[i], NULL);
    }
}

/* Arrays with room for 8 rows, 4 sequences of 6 blocks. */
struct step {
    int32_t token_ids[8], positions[8], slot_mapping[8], cu_seqlens[5], context_lens[4], block_tables[24], logit_rows[8], from[4], to[4];
};

static struct decoder_batch batch_of(struct step *s) {
    return (struct decoder_batch){.token_ids = s->token_ids, .positions = s->positions, .slot_mapping = s->slot_mapping,
                                  .cu_seqlens = s->cu_seqlens, .context_lens = s->context_lens, .block_tables = s->block_tables,
                                  .max_blocks = 6, .logit_rows = s->logit_rows, .copy_from = s->from, .copy_to = s->to};
}

static void make_step(struct step *s, struct decoder_batch *b) {
    *s = (struct step){0};
    *b = batch_of(s);
    b->rows = 5;
    b->n_sequences = 2;
    b->n_logits = 2;
    b->n_copies = 1;
    for (int32_t i = 0; i < 5; i++) {
        s->token_ids[i] = 100 + i;
        s->positions[i] = 200 + i;
        s->slot_mapping[i] = 300 + i;
    }
    memcpy(s->cu_seqlens, (const int32_t[]){0, 3, 5}, 3 * sizeof(int32_t));
    memcpy(s->context_lens, (const int32_t[]){33, 20}, 2 * sizeof(int32_t)); /* 3 blocks of 16, and 2 */
    for (int32_t i = 0; i < 12; i++) {
        s->block_tables[i] = 400 + i;
    }
    memcpy(s->logit_rows, (const int32_t[]){2, 4}, 2 * sizeof(int32_t));
    s->from[0] = 7;
    s->to[0] = 9;
}

static void tell_and_hear(struct nodes *n) {
    struct error err;
    struct step sent, heard = {0};
    struct decoder_batch b, h = batch_of(&heard);
    enum node_task task;
    size_t first = 0, count = 0;
    make_step(&sent, &b);
    if (n->stage == 0) {
        cr_assert(nodes_tell(n, NODE_STEP, &b, 16, 0, 0, &err) == 0);
        cr_assert(nodes_tell(n, NODE_LOGITS, NULL, 16, 11, 5, &err) == 0);
        b.rows = b.n_sequences = b.n_logits = 1;
        b.n_copies = 0;
        sent.context_lens[0] = 96;
        cr_assert(nodes_tell(n, NODE_STEP, &b, 16, 0, 0, &err) == 0);
        cr_assert(nodes_tell(n, NODE_BYE, NULL, 16, 0, 0, &err) == 0);
        return;
    }
    cr_assert(nodes_hear(n, &task, &h, &first, &count, &err) == 0, "%s", err.message);
    cr_expect(task == NODE_STEP && h.rows == 5 && h.n_sequences == 2 && h.n_logits == 2 && h.n_copies == 1);
    cr_expect(memcmp(heard.token_ids, sent.token_ids, sizeof sent.token_ids) == 0);
    cr_expect(memcmp(heard.positions, sent.positions, sizeof sent.positions) == 0);
    cr_expect(memcmp(heard.slot_mapping, sent.slot_mapping, sizeof sent.slot_mapping) == 0);
    cr_expect(memcmp(heard.cu_seqlens, sent.cu_seqlens, sizeof sent.cu_seqlens) == 0);
    cr_expect(memcmp(heard.context_lens, sent.context_lens, sizeof sent.context_lens) == 0);
    cr_expect(memcmp(heard.logit_rows, sent.logit_rows, sizeof sent.logit_rows) == 0);
    cr_expect(heard.from[0] == 7 && heard.to[0] == 9);
    for (int32_t i = 0; i < 6; i++) { /* of each sequence the blocks that the longest one has */
        cr_expect_eq(heard.block_tables[i], i < 3 ? 400 + i : 0);
        cr_expect_eq(heard.block_tables[6 + i], i < 3 ? 406 + i : 0);
    }
    cr_assert(nodes_hear(n, &task, &h, &first, &count, &err) == 0);
    cr_expect(task == NODE_LOGITS && first == 11 && count == 5);
    cr_assert(nodes_hear(n, &task, &h, &first, &count, &err) == 0);
    cr_expect(task == NODE_STEP && h.rows == 1 && h.n_copies == 0 && heard.block_tables[5] == 405);
    cr_assert(nodes_hear(n, &task, &h, &first, &count, &err) == 0);
    cr_expect(task == NODE_BYE);
}

Test(nodes, steps_come_as_they_were_told) {
    among(2, tell_and_hear);
    among(3, tell_and_hear);
}

static void too_large(struct nodes *n) {
    struct error err;
    struct step s, heard;
    struct decoder_batch b, h = batch_of(&heard);
    enum node_task task;
    size_t first, count;
    make_step(&s, &b);
    if (n->stage == 0) {
        b.rows = 8;
        cr_expect(nodes_tell(n, NODE_STEP, &b, 16, 0, 0, &err) < 0, "nobody takes it");
        return;
    }
    n->max_rows = 7; /* as of a node with other settings */
    cr_assert(nodes_hear(n, &task, &h, &first, &count, &err) < 0 && err.code == ERROR_INTERNAL);
    n->group->ops->abort(n->group); /* as engine_follow does */
}

Test(nodes, a_step_larger_than_the_arrays) {
    among(2, too_large);
}

/* ---- choices ---- */

static void choose(struct nodes *n) {
    static const struct logit_edit first[] = {{.id = 3, .bias = -1}, {.id = 9, .count = 2}}, third[] = {{.id = 5, .masked = 1}};
    const struct choice_row rows[] = {{.logits_row = 1, .edits = first, .n_edits = 2, .temperature = 0.5f},
                                      {.logits_row = 4, .greedy = true},
                                      {.logits_row = 6, .edits = third, .n_edits = 1, .top_k = 7, .random = UINT64_MAX}};
    struct error err;
    struct step heard = {0};
    struct decoder_batch h = batch_of(&heard);
    enum node_task task;
    size_t vocab = 0, count = 0;
    if (n->stage == 0) {
        cr_assert(nodes_tell_choice(n, 260, rows, 3, &err) == 0, "%s", err.message);
        cr_assert(nodes_tell_choice(n, 260, rows + 1, 1, &err) == 0, "%s", err.message);
        return;
    }
    cr_assert(nodes_hear(n, &task, &h, &vocab, &count, &err) == 0, "%s", err.message);
    cr_assert(task == NODE_CHOOSE && vocab == 260 && count == 3);
    for (size_t i = 0; i < 3; i++) {
        struct choice_row got = n->choices[i];
        cr_expect(got.n_edits == rows[i].n_edits && memcmp(got.edits, rows[i].edits, got.n_edits * sizeof *got.edits) == 0);
        cr_expect(got.logits_row == rows[i].logits_row && got.greedy == rows[i].greedy && got.temperature == rows[i].temperature);
        cr_expect(got.top_k == rows[i].top_k && got.random == rows[i].random);
    }
    cr_assert(nodes_hear(n, &task, &h, &vocab, &count, &err) == 0, "%s", err.message);
    cr_expect(task == NODE_CHOOSE && count == 1 && n->choices[0].greedy && n->choices[0].n_edits == 0);
}

Test(nodes, choices_come_as_they_were_told) {
    among(2, choose);
    among(3, choose);
}

/* Of a leader with other settings, or one that is mad. */
static void too_many_choices(struct nodes *n) {
    static const struct logit_edit edits[6];
    const struct choice_row row = {.edits = edits, .n_edits = 6}, rows[9] = {0};
    struct error err;
    struct step heard;
    struct decoder_batch h = batch_of(&heard);
    enum node_task task;
    size_t vocab, count;
    if (n->stage == 0) {
        cr_expect(nodes_tell_choice(n, 260, &row, 1, &err) < 0 && err.code == ERROR_INTERNAL, "5 edits are the most");
        cr_expect(nodes_tell_choice(n, 260, rows, 9, &err) < 0 && err.code == ERROR_INTERNAL, "8 rows are the most");
        cr_expect(nodes_tell_choice(n, 260, rows, 8, &err) < 0, "nobody takes it");
        return;
    }
    n->max_rows = 7;
    cr_assert(nodes_hear(n, &task, &h, &vocab, &count, &err) < 0 && err.code == ERROR_INTERNAL);
    n->group->ops->abort(n->group);
}

Test(nodes, more_choices_than_there_is_room_for) {
    among(2, too_many_choices);
}

static void turns(struct nodes *n) {
    struct error err;
    size_t least = 10 - n->stage;
    const uint64_t same[] = {1, 2, 3}, other[] = {1, 2, n->stage == 2 ? 4 : 3};
    n->words = calloc(n->n_stages, nodes_word_bytes());
    cr_assert(nodes_must_agree(n, same, 3, "model", &err) == 0, "%s", err.message);
    cr_assert(nodes_least(n, &least, &err) == 0 && least == 8);
    cr_assert(nodes_must_agree(n, other, 3, "model", &err) < 0 && err.code == ERROR_INVALID);
    cr_expect_str_eq(err.message, "node 2 was started with another model than node 0");
    nodes_give_up(n, &err); /* all know: nobody waits */
}

Test(nodes, numbers_of_all) {
    among(3, turns);
}

/* Node 1 cannot go on, whatever the others are about to ask. */
static void one_gives_up(struct nodes *n) {
    struct error err, why;
    size_t least = 1;
    n->words = calloc(n->n_stages, nodes_word_bytes());
    if (n->stage == 1) {
        error_set_param(&why, ERROR_DOES_NOT_FIT, "kv_tokens", "it does not fit");
        nodes_give_up(n, &why);
        return;
    }
    cr_assert(nodes_least(n, &least, &err) < 0 && err.code == ERROR_DOES_NOT_FIT);
    cr_expect_str_eq(err.message, "node 1: it does not fit");
    cr_expect_str_eq(err.param, "kv_tokens");
    nodes_give_up(n, &err);
}

Test(nodes, one_gives_up) {
    among(2, one_gives_up);
    among(3, one_gives_up);
}

static void ready(struct nodes *n) {
    struct error err;
    n->words = calloc(n->n_stages, nodes_word_bytes());
    cr_assert(nodes_ready(n, 1234, &err) == 0);
    cr_expect(n->loaded && n->group->deadline_ms == 1234);
    error_set(&err, ERROR_DEVICE, "a step failed");
    nodes_give_up(n, &err); /* too late to be told so */
}

Test(nodes, ready) {
    among(3, ready);
}
