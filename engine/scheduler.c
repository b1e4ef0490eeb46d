#include "scheduler.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define AHEAD 4 /* so many sequences early are lines asked for: all others' were touched since the last step */

int scheduler_init(struct scheduler *s, struct kv_cache *kv, const struct scheduler_config *c, struct error *err) {
    if (c->max_sequences == 0 || c->max_batched_tokens < c->max_sequences) {
        return error_set_param(err, ERROR_INVALID, "max_batched_tokens",
                               "max_batched_tokens (%zu) must be at least max_sequences (%zu)", c->max_batched_tokens,
                               c->max_sequences);
    }
    *s = (struct scheduler){
        .kv = kv, .max_sequences = c->max_sequences, .max_batched_tokens = c->max_batched_tokens};
    list_init(&s->running);
    s->scheduled = calloc(c->max_sequences, sizeof(struct sequence *));
    s->copy_from = calloc(c->max_sequences, sizeof *s->copy_from);
    s->copy_to = calloc(c->max_sequences, sizeof *s->copy_to);
    if (!s->scheduled || !s->copy_from || !s->copy_to) {
        scheduler_destroy(s);
        return error_memory(err);
    }
    if (wait_queue_init(&s->waiting, c->scheduling, c->ageing_ns, err) < 0) {
        scheduler_destroy(s);
        return -1;
    }
    return 0;
}

void scheduler_destroy(struct scheduler *s) {
    free(s->scheduled);
    free(s->copy_from);
    free(s->copy_to);
    wait_queue_destroy(&s->waiting);
    *s = (struct scheduler){0};
}

/* Are K and V of its whole prompt there? */
static bool has_prompt(const struct sequence *seq) {
    return seq->state == SEQUENCE_RUNNING && seq->n_computed >= seq->n_prompt;
}

/* ---- into the queues and out of them ---- */

static void wait(struct scheduler *s, struct sequence *seq) {
    seq->state = SEQUENCE_WAITING;
    wait_queue_push(&s->waiting, seq);
}

/* Running sequences are in order of rank. Most belong at the end. */
static void run(struct scheduler *s, struct sequence *seq) {
    struct list *before = s->running.prev;
    while (before != &s->running && sequence_before(seq, LIST_ENTRY(before, struct sequence, node))) {
        before = before->prev;
    }
    list_push_front(before, &seq->node);
    seq->state = SEQUENCE_RUNNING;
    s->n_waiting--;
    s->n_running++;
}

/* Whose KV of the prompt is, or will be, good for this one too: NULL if it must find or compute it by itself. */
static struct sequence *usable_parent(const struct sequence *seq, struct sequence *parent) {
    if (parent && parent->parent) {
        parent = parent->parent; /* which has none */
    }
    bool usable = parent && seq->may_hit && !parent->score_only && parent->n_prompt == seq->n_prompt &&
                  memcmp(parent->tokens, seq->tokens, seq->n_prompt * sizeof *seq->tokens) == 0 &&
                  memcmp(parent->cache_salt, seq->cache_salt, sizeof seq->cache_salt) == 0;
    return usable && (!parent->preempted || has_prompt(parent)) ? parent : NULL;
}

void scheduler_add(struct scheduler *s, struct sequence *seq, struct sequence *parent) {
    s->n_waiting++;
    wait_queue_enter(&s->waiting, seq);
    seq->n_charged = seq->n_prompt;
    seq->parent = usable_parent(seq, parent);
    if (seq->parent) {
        list_push_back(&seq->parent->children, &seq->node);
    }
    if (seq->parent && !has_prompt(seq->parent)) {
        seq->state = SEQUENCE_HELD;
    } else {
        wait(s, seq);
    }
}

/* The parent's prompt is computed: those that could not be forked wait for a place, and share it then. */
static void release_children(struct scheduler *s, struct sequence *parent) {
    LIST_FOR_EACH(pos, &parent->children) {
        struct sequence *child = LIST_ENTRY(pos, struct sequence, node);
        if (child->state == SEQUENCE_HELD) {
            wait(s, child);
        }
    }
}

/* The parent's KV goes: they go on by themselves. */
static void part_with_children(struct scheduler *s, struct sequence *parent) {
    release_children(s, parent);
    LIST_FOR_EACH_SAFE(pos, next, &parent->children) {
        list_remove(pos);
        LIST_ENTRY(pos, struct sequence, node)->parent = NULL;
    }
}

static void part_with_parent(struct sequence *child) {
    if (child->parent) {
        list_remove(&child->node);
        child->parent = NULL;
    }
}

static void stop_running(struct scheduler *s, struct sequence *seq) {
    list_remove(&seq->node);
    s->n_running--;
    kv_cache_release(s->kv, seq->blocks, seq->n_blocks);
    seq->n_blocks = 0;
    seq->n_computed = 0;
    seq->n_published = 0;
}

void scheduler_remove(struct scheduler *s, struct sequence *seq) {
    switch (seq->state) {
    case SEQUENCE_HELD:
        s->n_waiting--;
        break;
    case SEQUENCE_WAITING:
        wait_queue_remove(&s->waiting, seq);
        s->n_waiting--;
        break;
    case SEQUENCE_RUNNING:
        stop_running(s, seq);
        break;
    case SEQUENCE_FINISHED:
        return;
    }
    part_with_parent(seq);
    part_with_children(s, seq);
    wait_queue_leave(&s->waiting, seq);
    seq->state = SEQUENCE_FINISHED;
}

static void preempt(struct scheduler *s, struct sequence *seq) {
    assert(seq->n_scheduled == 0);
    stop_running(s, seq);
    part_with_children(s, seq);
    seq->preempted = true;
    wait(s, seq);
    s->n_waiting++;
    s->preemptions++;
}

struct sequence *scheduler_any(const struct scheduler *s) {
    return list_empty(&s->running) ? wait_queue_next(&s->waiting)
                                   : LIST_ENTRY(s->running.next, struct sequence, node);
}

/* ---- running sequences ---- */

/* Take n blocks, preempting from the worst on while they are not free; false if seq itself had to go. */
static bool take_or_preempt(struct scheduler *s, struct sequence *seq, int32_t *blocks, size_t n) {
    while (!kv_cache_take(s->kv, blocks, n)) {
        struct sequence *victim = LIST_ENTRY(s->running.prev, struct sequence, node);
        preempt(s, victim);
        if (victim == seq) {
            return false;
        }
    }
    return true;
}

static void copy_block(struct scheduler *s, int32_t from, int32_t to) {
    s->copy_from[s->n_copies] = from;
    s->copy_to[s->n_copies++] = to;
}

/* Make sure that seq has blocks of its own for its tokens from n_computed to n_tokens; false if it was preempted. */
static bool grow(struct scheduler *s, struct sequence *seq, size_t n_tokens) {
    size_t need = kv_cache_blocks_for(s->kv, n_tokens), next = seq->n_computed / s->kv->block_size;
    if (need > seq->n_blocks) {
        if (!take_or_preempt(s, seq, seq->blocks + seq->n_blocks, need - seq->n_blocks)) {
            return false;
        }
        seq->n_blocks = need;
    }
    if (!kv_cache_is_writable(s->kv, seq->blocks[next])) {
        int32_t copy, shared = seq->blocks[next];
        if (!take_or_preempt(s, seq, &copy, 1)) {
            return false;
        }
        copy_block(s, shared, copy);
        seq->blocks[next] = copy;
        kv_cache_release(s->kv, &shared, 1);
    }
    return true;
}

static void put(struct scheduler *s, struct sequence *seq, size_t n) {
    seq->n_scheduled = n;
    s->scheduled[s->n_scheduled++] = seq;
    s->rows += n;
}

static size_t left_to_compute(const struct sequence *seq) {
    return seq->n_tokens - seq->n_computed;
}

static void schedule_decodes(struct scheduler *s) {
    struct list *pos = s->running.next;
    while (pos != &s->running) {
        struct sequence *seq = LIST_ENTRY(pos, struct sequence, node);
        if (left_to_compute(seq) == 1 && grow(s, seq, seq->n_tokens)) {
            put(s, seq, 1);
        }
        /* grow may have preempted seq itself: then it was the last of the queue and the walk is over. */
        if (seq->state != SEQUENCE_RUNNING) {
            break;
        }
        pos = seq->node.next;
    }
}

static void schedule_chunks(struct scheduler *s) {
    LIST_FOR_EACH(pos, &s->running) {
        struct sequence *seq = LIST_ENTRY(pos, struct sequence, node);
        size_t left = left_to_compute(seq), room = s->max_batched_tokens - s->rows;
        if (left > 1 && room > 0) {
            put(s, seq, left < room ? left : room);
        }
    }
}

/* ---- admission ---- */

/* The key of block i, whose tokens are known; false if none can be had. */
static bool know_key(const struct scheduler *s, struct sequence *seq, size_t i) {
    size_t size = s->kv->block_size;
    while (seq->n_keys <= i) {
        if (!kv_key_next(&seq->keys[seq->n_keys], seq->tokens + seq->n_keys * size, size, &seq->keys[seq->n_keys + 1])) {
            return false;
        }
        seq->n_keys++;
    }
    return true;
}

/*
 * Find the longest cached beginning of seq, short of its last token, whose logits are wanted. The blocks go to
 * seq->blocks without a reference yet; *n_idle says how many of them nobody uses, so that using them takes free ones.
 */
static size_t find_prefix(const struct scheduler *s, struct sequence *seq, size_t *n_idle) {
    size_t n = 0;
    *n_idle = 0;
    while (seq->keys && seq->may_hit && (n + 1) * s->kv->block_size < seq->n_tokens && know_key(s, seq, n)) {
        int32_t block = kv_cache_find(s->kv, &seq->keys[n + 1]);
        if (block < 0) {
            break;
        }
        *n_idle += !kv_cache_in_use(s->kv, block);
        seq->blocks[n++] = block;
    }
    return n;
}

/* The first n blocks of the parent, and what is known of them. */
static void share_blocks(struct scheduler *s, struct sequence *child, const struct sequence *parent, size_t n) {
    for (size_t i = 0; i < n; i++) {
        child->blocks[i] = parent->blocks[i];
        kv_cache_share(s->kv, child->blocks[i]);
    }
    if (parent->keys && child->keys) {
        size_t full = child->n_prompt / s->kv->block_size; /* beyond, the parent's keys are of its own answer */
        child->n_keys = parent->n_keys < full ? parent->n_keys : full;
        memcpy(child->keys, parent->keys, (1 + child->n_keys) * sizeof *child->keys);
        child->n_published = parent->n_published < n ? parent->n_published : n;
    }
}

/* One token more than there are: else the first decode would at once preempt somebody, perhaps itself. */
static size_t blocks_soon(const struct scheduler *s, const struct sequence *seq) {
    return kv_cache_blocks_for(s->kv, seq->n_tokens < seq->max_total ? seq->n_tokens + 1 : seq->n_tokens);
}

/* Shared with the parent that runs. */
static size_t blocks_of_parent(const struct scheduler *s, const struct sequence *seq) {
    return (seq->n_prompt - 1) / s->kv->block_size;
}

/* Are there blocks for a waiting sequence? *n_found lie in seq->blocks, of the prefix cache. */
static bool has_room(const struct scheduler *s, struct sequence *seq, size_t *n_found) {
    size_t n_idle = 0;
    *n_found = seq->parent ? 0 : find_prefix(s, seq, &n_idle);
    size_t shared = seq->parent ? blocks_of_parent(s, seq) : *n_found;
    return blocks_soon(s, seq) - shared + n_idle <= s->kv->n_free;
}

/*
 * The same from a parent that runs: all blocks of the prompt but the one with its last token, which is computed once
 * more for its logits, into a copy.
 */
static void share_parents_blocks(struct scheduler *s, struct sequence *seq) {
    const struct sequence *parent = seq->parent;
    size_t size = s->kv->block_size, last = blocks_of_parent(s, seq);
    share_blocks(s, seq, parent, last);
    bool taken = kv_cache_take(s->kv, seq->blocks + last, 1);
    assert(taken);
    (void)taken;
    seq->n_blocks = last + 1;
    seq->n_computed = seq->n_prompt - 1;
    if (seq->n_computed % size != 0) {
        copy_block(s, parent->blocks[last], seq->blocks[last]);
    }
    s->forks++;
}

/* Give a waiting sequence the blocks of all its tokens, found or fresh; false, and nothing changed, if too few are free. */
static bool take_blocks(struct scheduler *s, struct sequence *seq) {
    size_t n_found, need = kv_cache_blocks_for(s->kv, seq->n_tokens);
    if (!has_room(s, seq, &n_found)) {
        return false;
    }
    if (seq->parent) {
        share_parents_blocks(s, seq);
        return true;
    }
    for (size_t i = 0; i < n_found; i++) {
        kv_cache_share(s->kv, seq->blocks[i]);
    }
    bool taken = kv_cache_take(s->kv, seq->blocks + n_found, need - n_found);
    assert(taken);
    (void)taken;
    seq->n_blocks = need;
    seq->n_published = n_found;
    seq->n_computed = n_found * s->kv->block_size;
    return true;
}

/* What is counted when a sequence runs for the first time: nothing was generated yet, so all of n_cached is prompt. */
static void count_prompt(struct scheduler *s, struct sequence *seq, size_t n_cached) {
    bool looks = seq->keys && seq->may_hit;
    seq->admitted = true;
    seq->n_cached = looks ? n_cached : 0;
    s->queried_tokens += looks ? seq->n_prompt : 0;
    s->cached_tokens += seq->n_cached;
    wait_queue_charge(&s->waiting, seq, WAIT_COST_PROMPT * (seq->n_prompt - n_cached));
}

bool scheduler_could_admit(const struct scheduler *s) {
    struct sequence *next = s->n_running < s->max_sequences ? wait_queue_next(&s->waiting) : NULL;
    size_t n_found;
    return next && has_room(s, next, &n_found);
}

static void admit(struct scheduler *s) {
    while (s->n_running < s->max_sequences && s->rows < s->max_batched_tokens) {
        struct sequence *seq = wait_queue_next(&s->waiting);
        if (!seq || !take_blocks(s, seq)) {
            break;
        }
        if (!seq->admitted) {
            count_prompt(s, seq, seq->n_computed);
        }
        wait_queue_remove(&s->waiting, seq);
        part_with_parent(seq);
        run(s, seq);
        size_t left = left_to_compute(seq), room = s->max_batched_tokens - s->rows;
        put(s, seq, left < room ? left : room);
    }
}

/* Room for a draft in the blocks that seq has, and in those that nobody misses: each running one may soon need one. */
static size_t draft_room(struct scheduler *s, struct sequence *seq, size_t room) {
    size_t end = seq->n_tokens + room, need = kv_cache_blocks_for(s->kv, end);
    while (need > seq->n_blocks && s->kv->n_free > s->n_running &&
           kv_cache_take(s->kv, seq->blocks + seq->n_blocks, 1)) {
        seq->n_blocks++;
    }
    size_t held = seq->n_blocks * s->kv->block_size;
    return held < end ? held - seq->n_tokens : room;
}

static void schedule_drafts(struct scheduler *s) {
    size_t rows = s->max_batched_tokens < SCHEDULER_DRAFT_ROWS ? s->max_batched_tokens : SCHEDULER_DRAFT_ROWS;
    double break_even = step_cost_break_even(&s->step_cost, s->rows, s->n_scheduled);
    for (size_t i = 0; i < s->n_scheduled && s->rows < rows; i++) {
        struct sequence *seq = s->scheduled[i];
        size_t share = (rows - s->rows) / (s->n_scheduled - i), room = share > 1 ? share : 1;
        size_t left = seq->max_total - seq->n_tokens; /* the last one is sampled in any case */
        if (seq->speculation.max == 0 || left_to_compute(seq) != 1 || left <= 1) {
            continue;
        }
        size_t n = speculation_draft(&seq->speculation, seq->tokens, seq->n_tokens, room < left - 1 ? room : left - 1,
                                     break_even);
        seq->n_draft = n > 0 ? draft_room(s, seq, n) : 0;
        seq->n_scheduled += seq->n_draft;
        s->rows += seq->n_draft;
    }
}

void scheduler_schedule(struct scheduler *s) {
    s->n_scheduled = 0;
    s->rows = 0;
    s->n_copies = 0;
    s->n_forked = 0;
    schedule_decodes(s);
    schedule_chunks(s);
    admit(s);
    schedule_drafts(s);
}

/* ---- after the step ---- */

/* Blocks that are full and computed can be found from now on. */
static void publish(struct scheduler *s, struct sequence *seq) {
    while (seq->keys && (seq->n_published + 1) * s->kv->block_size <= seq->n_computed &&
           know_key(s, seq, seq->n_published)) {
        size_t i = seq->n_published++;
        seq->blocks[i] = kv_cache_publish(s->kv, seq->blocks[i], &seq->keys[i + 1]);
    }
}

void scheduler_computed(struct scheduler *s) {
    for (size_t i = 0; i < s->n_scheduled; i++) {
        struct sequence *seq = s->scheduled[i];
        if (i + AHEAD < s->n_scheduled) {
            sequence_prefetch(s->scheduled[i + AHEAD]);
        }
        seq->n_computed += seq->n_scheduled - seq->n_draft; /* of a draft, nothing counts yet */
        seq->n_scheduled = 0;
        publish(s, seq);
        if (seq->n_computed > seq->n_charged) {
            wait_queue_charge(&s->waiting, seq, WAIT_COST_GENERATED * (seq->n_computed - seq->n_charged));
            seq->n_charged = seq->n_computed;
        }
    }
}

struct sequence *scheduler_fork(struct scheduler *s, struct sequence *parent) {
    if (list_empty(&parent->children)) {
        return NULL;
    }
    if (s->n_running >= s->max_sequences || s->kv->n_free <= s->n_forked) {
        release_children(s, parent);
        return NULL;
    }
    struct sequence *child = LIST_ENTRY(parent->children.next, struct sequence, node);
    part_with_parent(child);
    child->n_blocks = kv_cache_blocks_for(s->kv, child->n_prompt);
    child->n_computed = child->n_prompt;
    share_blocks(s, child, parent, child->n_blocks);
    count_prompt(s, child, child->n_prompt);
    run(s, child);
    s->n_forked++;
    s->forks++;
    return child;
}

void scheduler_distrust(struct scheduler *s, const struct sequence *seq) {
    for (size_t i = 0; i < seq->n_blocks; i++) {
        kv_cache_withdraw(s->kv, seq->blocks[i]);
    }
}
