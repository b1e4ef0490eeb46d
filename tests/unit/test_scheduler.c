#include "scheduler.h"

#include <criterion/criterion.h>
#include <stdlib.h>

/* A scheduler over a pool, and steps without a model: every computed sequence gets one more token. */
struct rig {
    struct kv_cache kv;
    struct scheduler s;
    size_t arrivals;
};

static void rig_open(struct rig *r, size_t blocks, size_t block_size, size_t max_sequences, size_t max_tokens) {
    struct error err;
    *r = (struct rig){0};
    cr_assert_eq(kv_cache_init(&r->kv, blocks, block_size, &err), 0);
    cr_assert_eq(scheduler_init(&r->s, &r->kv, max_sequences, max_tokens, &err), 0);
}

static void rig_close(struct rig *r) {
    cr_assert(list_empty(&r->s.running) && list_empty(&r->s.waiting));
    cr_assert_eq(kv_cache_used(&r->kv), 0);
    scheduler_destroy(&r->s);
    kv_cache_destroy(&r->kv);
}

static struct sequence *add(struct rig *r, size_t prompt, size_t total) {
    struct sequence *q = calloc(1, sizeof *q);
    list_init(&q->node);
    q->n_prompt = q->n_tokens = prompt;
    q->max_total = total;
    q->blocks = calloc(total / r->kv.block_size + 1, sizeof *q->blocks);
    q->arrival = r->arrivals++;
    scheduler_add(&r->s, q);
    return q;
}

static void drop(struct rig *r, struct sequence *q) {
    scheduler_remove(&r->s, q);
    free(q->blocks);
    free(q);
}

/* Check what must hold of every step. */
static void check_step(const struct rig *r) {
    size_t rows = 0;
    for (size_t i = 0; i < r->s.n_scheduled; i++) {
        const struct sequence *q = r->s.scheduled[i];
        rows += q->n_scheduled;
        cr_assert_gt(q->n_scheduled, 0);
        cr_assert_eq(q->state, SEQUENCE_RUNNING);
        cr_assert_leq(q->n_computed + q->n_scheduled, q->n_tokens);
        cr_assert_geq(q->n_blocks * r->kv.block_size, q->n_computed + q->n_scheduled);
        for (size_t j = 0; j < i; j++) {
            cr_assert_neq(r->s.scheduled[j], q, "a sequence is scheduled once");
        }
    }
    cr_assert_eq(rows, r->s.rows);
    cr_assert_leq(rows, r->s.max_batched_tokens);
    cr_assert_leq(r->s.n_scheduled, r->s.max_sequences);
    cr_assert_leq(r->s.n_running, r->s.max_sequences);
}

/* Returns how many sequences ended. */
static size_t step(struct rig *r) {
    scheduler_schedule(&r->s);
    check_step(r);
    scheduler_computed(&r->s);
    size_t ended = 0;
    for (size_t i = 0; i < r->s.n_scheduled; i++) {
        struct sequence *q = r->s.scheduled[i];
        if (q->n_computed == q->n_tokens && ++q->n_tokens == q->max_total) {
            drop(r, q);
            ended++;
        }
    }
    return ended;
}

Test(scheduler, a_long_prompt_comes_in_chunks_beside_decodes) {
    struct rig r;
    rig_open(&r, 100, 16, 4, 32);
    struct sequence *a = add(&r, 3, 1000), *b = add(&r, 100, 200);
    step(&r);
    cr_assert_eq(a->n_tokens, 4, "the short prompt has its first token");
    cr_assert_eq(b->n_computed, 29, "the long one got the rest of the budget");
    step(&r);
    cr_assert_eq(a->n_tokens, 5, "a decode goes on while the other prefills");
    cr_assert_eq(b->n_computed, 29 + 31);
    cr_assert_eq(r.s.scheduled[0], a, "decodes come first");
    step(&r);
    step(&r);
    cr_assert_eq(b->n_tokens, 101);
    drop(&r, a);
    drop(&r, b);
    rig_close(&r);
}

Test(scheduler, no_more_than_max_sequences_and_in_order) {
    struct rig r;
    rig_open(&r, 100, 16, 2, 64);
    struct sequence *a = add(&r, 5, 50), *b = add(&r, 5, 50), *c = add(&r, 5, 50);
    step(&r);
    cr_assert_eq(r.s.n_running, 2);
    cr_assert_eq(r.s.n_waiting, 1);
    cr_assert_eq(c->state, SEQUENCE_WAITING);
    drop(&r, a);
    step(&r);
    cr_assert_eq(c->state, SEQUENCE_RUNNING);
    drop(&r, b);
    drop(&r, c);
    rig_close(&r);
}

Test(scheduler, nobody_overtakes_one_that_waits_for_memory) {
    struct rig r;
    rig_open(&r, 8, 8, 4, 64);
    struct sequence *a = add(&r, 30, 40), *large = add(&r, 40, 50), *small = add(&r, 2, 10);
    step(&r);
    cr_assert_eq(a->state, SEQUENCE_RUNNING);
    cr_assert_eq(large->state, SEQUENCE_WAITING);
    cr_assert_eq(small->state, SEQUENCE_WAITING);
    drop(&r, a);
    step(&r);
    cr_assert_eq(large->state, SEQUENCE_RUNNING);
    cr_assert_eq(small->state, SEQUENCE_RUNNING);
    drop(&r, large);
    drop(&r, small);
    rig_close(&r);
}

Test(scheduler, the_latest_is_preempted_and_keeps_its_tokens) {
    struct rig r;
    rig_open(&r, 4, 8, 4, 64); /* 32 tokens */
    struct sequence *a = add(&r, 7, 32), *b = add(&r, 7, 32);
    for (int i = 0; i < 9; i++) {
        step(&r);
    }
    cr_assert_eq(r.s.preemptions, 0);
    cr_assert_eq(a->n_tokens, 16);
    step(&r); /* two blocks each are full, and there are only four: the next decode needs a third */
    step(&r);
    cr_assert_eq(r.s.preemptions, 1);
    cr_assert_eq(b->state, SEQUENCE_WAITING);
    cr_assert_eq(b->n_computed, 0);
    cr_assert_eq(b->n_blocks, 0);
    cr_assert_geq(b->n_tokens, 16, "what was generated stays");
    cr_assert_eq(a->state, SEQUENCE_RUNNING);
    size_t had = b->n_tokens;
    while (step(&r) == 0) {
    }
    cr_assert_eq(b->n_tokens, had, "it waits until there is room");
    step(&r);
    cr_assert_eq(b->n_tokens, had + 1, "then all its tokens are computed again");
    while (r.s.n_running > 0) {
        step(&r);
    }
    rig_close(&r);
}

Test(scheduler, everybody_ends_in_a_pool_far_too_small) {
    srand(7);
    for (int round = 0; round < 50; round++) {
        struct rig r;
        size_t block = 8, most = 64;
        rig_open(&r, most / block + (size_t)rand() % 6, block, 1 + (size_t)rand() % 8, 8 + (size_t)rand() % 40);
        size_t n = 20, ended = 0, steps = 0;
        for (size_t i = 0; i < n; i++) {
            size_t prompt = 1 + (size_t)rand() % (most - 1);
            add(&r, prompt, prompt + 1 + (size_t)rand() % (most - prompt));
        }
        while (ended < n) {
            ended += step(&r);
            cr_assert_lt(++steps, 20000, "no progress");
        }
        rig_close(&r);
    }
}

Test(scheduler, the_oldest_is_never_preempted) {
    struct rig r;
    rig_open(&r, 8, 8, 8, 32);
    struct sequence *oldest = add(&r, 4, 64);
    for (int i = 0; i < 7; i++) {
        add(&r, 4, 64);
    }
    for (size_t expected = 5; expected < 64; expected++) {
        step(&r);
        cr_assert_eq(oldest->n_tokens, expected, "one token in each step");
    }
    while (r.s.n_running + r.s.n_waiting > 0) {
        step(&r);
    }
    cr_assert_gt(r.s.preemptions, 0);
    rig_close(&r);
}

Test(scheduler, budget_below_the_number_of_sequences_is_refused) {
    struct scheduler s;
    struct error err;
    cr_assert_eq(scheduler_init(&s, NULL, 8, 7, &err), -1);
    cr_assert_str_eq(err.param, "max_batched_tokens");
}
