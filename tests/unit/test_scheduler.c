#include "scheduler.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

/*
 * A scheduler over a pool, and steps without a model: every computed sequence gets one more token. Instead of K and V, a
 * slot of the pool holds a value that depends on the token there and on all before it, so that each step can check that
 * every sequence finds its own.
 */
struct rig {
    struct kv_cache kv;
    struct scheduler s;
    uint64_t *slots; /* [blocks * block_size] */
    size_t arrivals;
    uint64_t now_ns;
    struct item *live[512];
    size_t n_live;
};

struct item {
    struct sequence seq;
    uint64_t text;
    uint64_t *values; /* [max_total], of its tokens */
};

static void rig_open_with(struct rig *r, size_t blocks, size_t block_size, size_t max_sequences, size_t max_tokens,
                          enum scheduling scheduling, uint64_t ageing_ns) {
    struct error err;
    *r = (struct rig){0};
    const struct scheduler_config c = {
        .max_sequences = max_sequences, .max_batched_tokens = max_tokens, .scheduling = scheduling, .ageing_ns = ageing_ns};
    cr_assert_eq(kv_cache_init(&r->kv, blocks, block_size, &err), 0);
    cr_assert_eq(scheduler_init(&r->s, &r->kv, &c, &err), 0);
    r->slots = calloc(blocks * block_size, sizeof *r->slots);
}

static void rig_open(struct rig *r, size_t blocks, size_t block_size, size_t max_sequences, size_t max_tokens) {
    rig_open_with(r, blocks, block_size, max_sequences, max_tokens, SCHEDULING_FCFS, 0);
}

static void rig_close(struct rig *r) {
    cr_assert_null(scheduler_any(&r->s));
    cr_assert(r->s.n_running == 0 && r->s.n_waiting == 0);
    cr_assert_eq(kv_cache_used(&r->kv), 0);
    cr_assert_eq(r->kv.n_free, r->kv.n_blocks);
    scheduler_destroy(&r->s);
    kv_cache_destroy(&r->kv);
    free(r->slots);
}

static uint64_t value_after(uint64_t before, int32_t token) {
    uint64_t x = (before ^ (uint32_t)token) * 0x9e3779b97f4a7c15u;
    return (x ^ x >> 29) * 0xbf58476d1ce4e5b9u + 1;
}

static void set_token(struct item *q, size_t at, int32_t token) {
    q->seq.tokens[at] = token;
    q->values[at] = value_after(at ? q->values[at - 1] : 0, token);
}

/* Texts 2k and 2k + 1 begin with the same 24 tokens; sequences of text 0 take no part in the prefix cache. */
static struct item *make(struct rig *r, uint64_t text, size_t prompt, size_t total) {
    struct item *q = calloc(1, sizeof *q);
    struct sequence *s = &q->seq;
    list_init(&s->node);
    list_init(&s->children);
    q->text = text;
    q->values = calloc(total, sizeof *q->values);
    s->n_prompt = s->n_tokens = prompt;
    s->max_total = total;
    s->may_hit = true;
    s->tokens = calloc(total, sizeof *s->tokens);
    s->blocks = calloc(total / r->kv.block_size + 1, sizeof *s->blocks);
    if (text > 0) {
        s->keys = calloc(total / r->kv.block_size + 1, sizeof *s->keys);
        cr_assert(kv_key_root(s->cache_salt, &s->keys[0]));
    }
    for (size_t i = 0; i < prompt; i++) {
        set_token(q, i, (int32_t)(i < 24 ? text / 2 : text) * 1000 + (int32_t)i);
    }
    s->arrival = r->arrivals++;
    s->arrival_ns = r->now_ns;
    cr_assert_lt(r->n_live, 512);
    r->live[r->n_live++] = q;
    return q;
}

static struct sequence *add_text(struct rig *r, uint64_t text, size_t prompt, size_t total, struct sequence *parent) {
    struct item *q = make(r, text, prompt, total);
    scheduler_add(&r->s, &q->seq, parent);
    return &q->seq;
}

static struct sequence *add(struct rig *r, size_t prompt, size_t total) {
    return add_text(r, 0, prompt, total, NULL);
}

static struct sequence *add_with(struct rig *r, size_t prompt, size_t total, int32_t priority, uint64_t tenant) {
    struct item *q = make(r, 0, prompt, total);
    q->seq.priority = priority;
    q->seq.tenant_id = tenant;
    scheduler_add(&r->s, &q->seq, NULL);
    return &q->seq;
}

static void drop(struct rig *r, struct sequence *s) {
    struct item *q = (struct item *)s;
    scheduler_remove(&r->s, s);
    for (size_t i = 0; i < r->n_live; i++) {
        if (r->live[i] == q) {
            r->live[i] = r->live[--r->n_live];
            break;
        }
    }
    free(s->blocks);
    free(s->tokens);
    free(s->keys);
    free(q->values);
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
    cr_assert_gt(rows, 0);
    cr_assert_leq(rows, r->s.max_batched_tokens);
    cr_assert_leq(r->s.n_scheduled, r->s.max_sequences);
    cr_assert_leq(r->s.n_running, r->s.max_sequences);
    cr_assert_leq(r->s.n_copies, r->s.max_sequences);
}

static uint64_t *slot(struct rig *r, const struct sequence *s, size_t position) {
    size_t size = r->kv.block_size;
    return &r->slots[(size_t)s->blocks[position / size] * size + position % size];
}

/* What the model would do: copy, write, read. */
static void compute(struct rig *r) {
    size_t size = r->kv.block_size;
    for (size_t i = 0; i < r->s.n_copies; i++) {
        memcpy(&r->slots[(size_t)r->s.copy_to[i] * size], &r->slots[(size_t)r->s.copy_from[i] * size],
               size * sizeof *r->slots);
    }
    for (size_t i = 0; i < r->s.n_scheduled; i++) {
        const struct sequence *s = r->s.scheduled[i];
        for (size_t p = s->n_computed; p < s->n_computed + s->n_scheduled; p++) {
            *slot(r, s, p) = ((const struct item *)s)->values[p];
        }
    }
    for (size_t i = 0; i < r->s.n_scheduled; i++) {
        const struct sequence *s = r->s.scheduled[i];
        for (size_t p = 0; p < s->n_computed + s->n_scheduled; p++) {
            cr_assert_eq(*slot(r, s, p), ((const struct item *)s)->values[p], "position %zu of %zu", p, s->n_tokens);
        }
    }
}

/* One more token; true if it was the last. */
static bool extend(struct rig *r, struct sequence *s) {
    set_token((struct item *)s, s->n_tokens, rand() % 3); /* few, so that equal texts come about */
    if (++s->n_tokens < s->max_total) {
        return false;
    }
    drop(r, s);
    return true;
}

static size_t finish_step(struct rig *r) {
    size_t ended = 0;
    compute(r);
    scheduler_computed(&r->s);
    for (size_t i = 0; i < r->s.n_scheduled; i++) {
        struct sequence *s = r->s.scheduled[i];
        if (s->n_computed < s->n_tokens) {
            continue;
        }
        for (struct sequence *child; sequence_n_generated(s) == 0 && (child = scheduler_fork(&r->s, s));) {
            cr_assert_eq(child->n_computed, child->n_tokens);
            ended += extend(r, child);
        }
        ended += extend(r, s);
    }
    return ended;
}

/* Returns how many sequences ended. */
static size_t step(struct rig *r) {
    scheduler_schedule(&r->s);
    check_step(r);
    return finish_step(r);
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

Test(scheduler, it_is_known_whether_somebody_could_be_admitted) {
    struct rig r;
    rig_open(&r, 8, 8, 2, 64);
    cr_assert_not(scheduler_could_admit(&r.s), "nobody waits");
    struct sequence *a = add_text(&r, 2, 30, 40, NULL);
    cr_assert(scheduler_could_admit(&r.s));
    step(&r);
    struct sequence *large = add(&r, 40, 50);
    for (int i = 0; i < 3; i++) {
        cr_assert_not(scheduler_could_admit(&r.s), "six blocks are wanted, and three are free");
        step(&r);
        cr_assert_eq(large->state, SEQUENCE_WAITING);
    }
    drop(&r, large);
    struct sequence *alike = add_text(&r, 3, 40, 50, NULL); /* three of its blocks are a's */
    cr_assert(scheduler_could_admit(&r.s));
    step(&r);
    cr_assert_eq(alike->state, SEQUENCE_RUNNING);
    struct sequence *last = add(&r, 1, 5);
    cr_assert_not(scheduler_could_admit(&r.s), "two run");
    step(&r);
    cr_assert_eq(last->state, SEQUENCE_WAITING);
    drop(&r, a);
    cr_assert(scheduler_could_admit(&r.s));
    step(&r);
    cr_assert_eq(last->state, SEQUENCE_RUNNING);
    drop(&r, last);
    drop(&r, alike);
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
    const struct scheduler_config c = {.max_sequences = 8, .max_batched_tokens = 7};
    cr_assert_eq(scheduler_init(&s, NULL, &c, &err), -1);
    cr_assert_str_eq(err.param, "max_batched_tokens");
}

/* ---- priorities ---- */

Test(scheduler, the_worst_priority_is_preempted_then_the_latest) {
    struct rig r;
    rig_open_with(&r, 6, 8, 4, 64, SCHEDULING_PRIORITY, 0);
    struct sequence *low = add_with(&r, 7, 48, 9, 0), *high = add_with(&r, 7, 48, -1, 0),
                    *later_high = add_with(&r, 7, 48, -1, 0);
    for (int i = 0; i < 11; i++) { /* two blocks each are full */
        step(&r);
    }
    cr_assert_eq(r.s.preemptions, 1);
    cr_assert_eq(low->state, SEQUENCE_WAITING, "though it came first");
    while (later_high->state == SEQUENCE_RUNNING) {
        step(&r);
    }
    cr_assert_eq(high->state, SEQUENCE_RUNNING);
    while (scheduler_any(&r.s)) {
        step(&r);
    }
    rig_close(&r);
}

Test(scheduler, a_waiting_one_pushes_nobody_out) {
    struct rig r;
    rig_open_with(&r, 100, 8, 2, 64, SCHEDULING_PRIORITY, 0);
    struct sequence *a = add_with(&r, 7, 30, 9, 0), *b = add_with(&r, 7, 40, 9, 0);
    step(&r);
    struct sequence *worse = add_with(&r, 7, 20, 5, 0), *urgent = add_with(&r, 7, 20, -100, 0);
    step(&r);
    cr_assert(a->state == SEQUENCE_RUNNING && b->state == SEQUENCE_RUNNING && urgent->state == SEQUENCE_WAITING);
    cr_assert_eq(r.s.preemptions, 0);
    while (step(&r) == 0) {
    }
    step(&r);
    cr_assert(urgent->state == SEQUENCE_RUNNING && worse->state == SEQUENCE_WAITING, "but it is the next");
    while (scheduler_any(&r.s)) {
        step(&r);
    }
    rig_close(&r);
}

Test(scheduler, ageing_ends_starvation) {
    for (int ageing = 0; ageing < 2; ageing++) {
        struct rig r;
        rig_open_with(&r, 100, 8, 1, 64, SCHEDULING_PRIORITY, ageing ? 1000 : 0);
        struct sequence *meek = add_with(&r, 4, 8, 10, 0);
        bool ran = false;
        add_with(&r, 4, 8, 0, 0);
        for (int i = 0; i < 200 && !ran; i++) { /* there is always one with a better priority */
            r.now_ns += 100;
            if (i % 3 == 0) {
                add_with(&r, 4, 8, 0, 0);
            }
            ran = i > 2 && meek->state == SEQUENCE_RUNNING;
            if (!ran) {
                step(&r);
            }
        }
        cr_assert_eq(ran, ageing == 1);
        while (scheduler_any(&r.s)) {
            step(&r);
        }
        rig_close(&r);
    }
}

Test(scheduler, tenants_share_the_machine) {
    static const struct {
        size_t n, prompt, generated;
    } loads[2][3] = {
        {{0}, {300, 20, 10}, {60, 60, 140}}, /* many short ones before few long ones */
        {{0}, {150, 200, 2}, {150, 4, 100}}, /* all prompt, all answer */
    };
    for (int l = 0; l < 2; l++) {
        struct rig r;
        uint64_t done[3] = {0};
        rig_open(&r, 1000, 8, 4, 64);
        for (uint64_t t = 1; t < 3; t++) {
            for (size_t i = 0; i < loads[l][t].n; i++) {
                add_with(&r, loads[l][t].prompt, loads[l][t].prompt + loads[l][t].generated, 0, t);
            }
        }
        for (int i = 0; i < 1200; i++) {
            scheduler_schedule(&r.s);
            check_step(&r);
            for (size_t k = 0; k < r.s.n_scheduled; k++) {
                const struct sequence *q = r.s.scheduled[k];
                bool prompt = q->n_computed < q->n_prompt;
                done[q->tenant_id] += q->n_scheduled * (prompt ? WAIT_COST_PROMPT : WAIT_COST_GENERATED);
            }
            finish_step(&r);
        }
        cr_assert(r.s.n_waiting > 20);
        double share = (double)done[1] / (double)(done[1] + done[2]);
        cr_assert(share > 0.45 && share < 0.55, "load %d: %g of the work", l, share);
        while (scheduler_any(&r.s)) {
            step(&r);
        }
        rig_close(&r);
    }
}

/* ---- the prefix cache and forks ---- */

Test(scheduler, a_prompt_is_found_but_for_its_last_token) {
    struct rig r;
    rig_open(&r, 100, 8, 4, 64);
    struct sequence *a = add_text(&r, 1, 32, 33, NULL);
    step(&r);
    struct sequence *same = add_text(&r, 1, 32, 40, NULL), *longer = add_text(&r, 1, 33, 40, NULL),
                    *other = add_text(&r, 2, 32, 40, NULL);
    step(&r);
    cr_assert(same->n_cached == 24 && longer->n_cached == 32 && other->n_cached == 0, "%zu %zu %zu", same->n_cached,
              longer->n_cached, other->n_cached);
    cr_assert_eq(r.s.cached_tokens, 56);
    cr_assert_eq(r.s.queried_tokens, 32 + 32 + 33 + 32);
    (void)a;
    while (scheduler_any(&r.s)) {
        step(&r);
    }
    rig_close(&r);
}

Test(scheduler, a_preempted_one_finds_its_own_blocks) {
    struct rig r;
    rig_open(&r, 12, 8, 4, 200);
    struct sequence *a = add_text(&r, 1, 40, 56, NULL), *b = add_text(&r, 2, 40, 72, NULL);
    while (r.s.preemptions == 0) {
        step(&r);
    }
    cr_assert(b->state == SEQUENCE_WAITING && b->n_computed == 0);
    const struct sequence *child = add_text(&r, 2, 40, 41, b);
    cr_assert(child->state == SEQUENCE_WAITING && !child->parent, "nobody waits for one that lost its KV");
    while (a->state != SEQUENCE_FINISHED && step(&r) == 0) {
    }
    scheduler_schedule(&r.s);
    cr_assert_eq(b->state, SEQUENCE_RUNNING);
    cr_assert_geq(b->n_computed, 24, "what nobody needed meanwhile is still there: %zu", b->n_computed);
    cr_assert_eq(b->n_cached, 0, "that is no saving of its client's");
    finish_step(&r);
    while (scheduler_any(&r.s)) {
        step(&r);
    }
    rig_close(&r);
}

Test(scheduler, children_share_the_prompt_and_copy_when_they_write) {
    struct rig r;
    rig_open(&r, 100, 8, 4, 64);
    struct sequence *p = add_text(&r, 1, 20, 40, NULL), *c = add_text(&r, 1, 20, 40, p), *d = add_text(&r, 1, 20, 40, p),
                    *stranger = add_text(&r, 2, 20, 40, p), *e = add_text(&r, 1, 20, 40, p);
    cr_assert(c->state == SEQUENCE_HELD && d->state == SEQUENCE_HELD && e->state == SEQUENCE_HELD);
    cr_assert_eq(stranger->state, SEQUENCE_WAITING, "it has another prompt");
    step(&r);
    cr_assert_eq(r.s.forks, 2, "there are four places");
    cr_assert(c->state == SEQUENCE_RUNNING && c->n_tokens == 21 && d->n_tokens == 21 && p->n_tokens == 21);
    cr_assert_eq(e->state, SEQUENCE_WAITING, "the other goes its own way");
    cr_assert(c->blocks[2] == p->blocks[2] && kv_cache_used(&r.kv) == 3 + 3);
    cr_assert(c->n_cached == 20 && p->n_cached == 0);
    step(&r);
    cr_assert_eq(r.s.n_copies, 2, "the last user of a block needs no copy");
    cr_assert(c->blocks[0] == p->blocks[0] && c->blocks[1] == p->blocks[1]);
    cr_assert(c->blocks[2] != p->blocks[2] && d->blocks[2] != p->blocks[2] && d->blocks[2] != c->blocks[2]);
    step(&r);
    cr_assert_eq(r.s.n_copies, 0);
    drop(&r, p);
    drop(&r, c);
    step(&r);
    step(&r);
    cr_assert_eq(e->n_cached, 16, "its parent is gone: by the prefix cache");
    while (scheduler_any(&r.s)) {
        step(&r);
    }
    rig_close(&r);
}

Test(scheduler, late_children_share_what_runs) {
    for (uint64_t text = 0; text < 2; text++) { /* without and with the prefix cache */
        for (size_t prompt = 1; prompt < 26; prompt++) {
            struct rig r;
            rig_open(&r, 100, 8, 4, 64);
            struct sequence *p = add_text(&r, text, prompt, 60, NULL);
            for (size_t i = 0; i < prompt; i++) {
                step(&r);
            }
            size_t used = kv_cache_used(&r.kv);
            struct sequence *c = add_text(&r, text, prompt, 60, p), *d = add_text(&r, text, prompt, 60, c);
            cr_assert(c->state == SEQUENCE_WAITING && d->parent == p);
            scheduler_schedule(&r.s);
            cr_assert(c->n_computed == prompt - 1 && c->n_scheduled == 1 && d->n_computed == prompt - 1);
            cr_assert_leq(kv_cache_used(&r.kv), used + 3, "all but the last block is shared, and p may grow");
            cr_assert_eq(r.s.n_copies, prompt % 8 == 1 ? 0 : 2, "nothing is copied that is not used");
            cr_assert_eq(c->n_cached, text ? prompt - 1 : 0);
            finish_step(&r);
            cr_assert_eq(r.s.forks, 2);
            while (scheduler_any(&r.s)) {
                step(&r);
            }
            rig_close(&r);
        }
    }
}

Test(scheduler, no_fork_without_a_block_to_go_on_with) {
    struct rig r;
    rig_open(&r, 3, 8, 4, 64);
    struct sequence *p = add_text(&r, 1, 16, 20, NULL), *c = add_text(&r, 1, 16, 20, p), *d = add_text(&r, 1, 16, 20, p);
    step(&r);
    cr_assert(p->n_tokens == 17 && c->state == SEQUENCE_RUNNING && d->state == SEQUENCE_WAITING);
    while (scheduler_any(&r.s)) {
        step(&r);
    }
    rig_close(&r);
}

Test(scheduler, children_survive_their_parent) {
    struct rig r;
    rig_open(&r, 100, 8, 4, 8);
    struct sequence *p = add_text(&r, 1, 20, 40, NULL), *c = add_text(&r, 1, 20, 40, p), *d = add_text(&r, 1, 20, 40, c);
    cr_assert_eq(d->parent, p, "a child's child hangs on the parent too");
    step(&r);
    cr_assert(p->n_computed == 8 && c->state == SEQUENCE_HELD);
    drop(&r, p);
    cr_assert_eq(c->state, SEQUENCE_WAITING);
    drop(&r, d);
    while (scheduler_any(&r.s)) {
        step(&r);
    }
    cr_assert_eq(r.s.forks, 0);
    rig_close(&r);
}

/*
 * Everything at once and for long: a pool far too small, prefixes, parents, priorities, tenants, cancels. The slots of the
 * pool hold, instead of K and V, a value that depends on all tokens up to there: each sequence must find its own.
 */
Test(scheduler, nobody_ever_reads_what_is_not_his) {
    srand(11);
    size_t preemptions = 0, forks = 0, hits = 0;
    for (int round = 0; round < 6; round++) {
        struct rig r;
        size_t ended = 0, steps = 0, most = 64, blocks = 8 + (size_t)rand() % 12;
        rig_open_with(&r, blocks, 8, 1 + (size_t)rand() % 8, 8 + (size_t)rand() % 40,
                      round % 2 ? SCHEDULING_PRIORITY : SCHEDULING_FCFS, round % 3 == 0 ? 0 : 1000);
        while (ended < 3000 || r.n_live > 0) {
            while (ended < 3000 && r.n_live < 20) {
                struct item *parent = r.n_live > 0 && rand() % 2 ? r.live[(size_t)rand() % r.n_live] : NULL;
                uint64_t text = parent ? parent->text : (uint64_t)rand() % 7;
                size_t prompt = parent ? parent->seq.n_prompt : 1 + (size_t)rand() % (most - 1);
                struct item *q = make(&r, text, prompt, prompt + 1 + (size_t)rand() % (most - prompt));
                q->seq.priority = rand() % 3;
                q->seq.tenant_id = (uint64_t)rand() % 3;
                scheduler_add(&r.s, &q->seq, parent ? &parent->seq : NULL);
            }
            r.now_ns += (uint64_t)rand() % 100;
            ended += step(&r);
            if (rand() % 20 == 0 && r.n_live > 0) {
                drop(&r, &r.live[(size_t)rand() % r.n_live]->seq);
                ended++;
            }
            cr_assert_lt(++steps, 200000, "no progress");
        }
        preemptions += r.s.preemptions;
        forks += r.s.forks;
        hits += r.s.cached_tokens;
        rig_close(&r);
    }
    cr_assert(preemptions > 1000 && forks > 1000 && hits > 10000, "%zu %zu %zu", preemptions, forks, hits);
}
