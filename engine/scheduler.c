#include "scheduler.h"

#include <assert.h>
#include <stdlib.h>

int scheduler_init(struct scheduler *s, struct kv_cache *kv, size_t max_sequences, size_t max_batched_tokens,
                   struct error *err) {
    if (max_sequences == 0 || max_batched_tokens < max_sequences) {
        return error_set_param(err, ERROR_INVALID, "max_batched_tokens",
                               "max_batched_tokens (%zu) must be at least max_sequences (%zu)", max_batched_tokens,
                               max_sequences);
    }
    struct sequence **scheduled = calloc(max_sequences, sizeof(struct sequence *));
    if (!scheduled) {
        return error_memory(err);
    }
    *s = (struct scheduler){
        .kv = kv, .max_sequences = max_sequences, .max_batched_tokens = max_batched_tokens, .scheduled = scheduled};
    list_init(&s->waiting);
    list_init(&s->running);
    return 0;
}

void scheduler_destroy(struct scheduler *s) {
    free(s->scheduled);
    s->scheduled = NULL;
}

void scheduler_add(struct scheduler *s, struct sequence *seq) {
    seq->state = SEQUENCE_WAITING;
    list_push_back(&s->waiting, &seq->node);
    s->n_waiting++;
}

static void release_blocks(struct scheduler *s, struct sequence *seq) {
    kv_cache_release(s->kv, seq->blocks, seq->n_blocks);
    seq->n_blocks = 0;
    seq->n_computed = 0;
    seq->n_published = 0;
}

void scheduler_remove(struct scheduler *s, struct sequence *seq) {
    if (seq->state == SEQUENCE_WAITING) {
        s->n_waiting--;
    } else if (seq->state == SEQUENCE_RUNNING) {
        s->n_running--;
    }
    list_remove(&seq->node);
    release_blocks(s, seq);
    seq->state = SEQUENCE_FINISHED;
}

static void preempt(struct scheduler *s, struct sequence *seq) {
    assert(seq->n_scheduled == 0);
    scheduler_remove(s, seq);
    seq->state = SEQUENCE_WAITING;
    list_push_front(&s->waiting, &seq->node);
    s->n_waiting++;
    s->preemptions++;
}

/* Make sure that seq has blocks for n_tokens, preempting from the back; false if seq itself had to go. */
static bool grow(struct scheduler *s, struct sequence *seq, size_t n_tokens) {
    size_t need = kv_cache_blocks_for(s->kv, n_tokens);
    while (need > seq->n_blocks) {
        if (kv_cache_take(s->kv, seq->blocks + seq->n_blocks, need - seq->n_blocks)) {
            seq->n_blocks = need;
            return true;
        }
        struct sequence *victim = LIST_ENTRY(s->running.prev, struct sequence, node);
        preempt(s, victim);
        if (victim == seq) {
            return false;
        }
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

/* Give a waiting sequence the blocks of all its tokens, found or fresh; false, and nothing changed, if too few are free. */
static bool take_blocks(struct scheduler *s, struct sequence *seq) {
    size_t n_idle, n_found = find_prefix(s, seq, &n_idle), need = kv_cache_blocks_for(s->kv, seq->n_tokens);
    /* One token more: else its first decode would at once preempt somebody, perhaps itself. */
    size_t soon = kv_cache_blocks_for(s->kv, seq->n_tokens < seq->max_total ? seq->n_tokens + 1 : seq->n_tokens);
    if (soon - n_found + n_idle > s->kv->n_free) {
        return false;
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
    if (!seq->looked_up) {
        seq->looked_up = true;
        seq->n_cached = seq->n_computed; /* all of it prompt: nothing was generated yet */
        s->queried_tokens += seq->keys && seq->may_hit ? seq->n_prompt : 0;
        s->cached_tokens += seq->n_cached;
    }
    return true;
}

static void admit(struct scheduler *s) {
    while (!list_empty(&s->waiting) && s->n_running < s->max_sequences && s->rows < s->max_batched_tokens) {
        struct sequence *seq = LIST_ENTRY(s->waiting.next, struct sequence, node);
        if (!take_blocks(s, seq)) {
            break; /* in order of arrival: nobody overtakes */
        }
        list_remove(&seq->node);
        list_push_back(&s->running, &seq->node);
        seq->state = SEQUENCE_RUNNING;
        s->n_waiting--;
        s->n_running++;
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
    for (size_t i = 0; i < s->n_scheduled && s->rows < rows; i++) {
        struct sequence *seq = s->scheduled[i];
        size_t share = (rows - s->rows) / (s->n_scheduled - i), room = share > 1 ? share : 1;
        size_t left = seq->max_total - seq->n_tokens; /* the last one is sampled in any case */
        if (seq->speculation.max == 0 || left_to_compute(seq) != 1 || left <= 1) {
            continue;
        }
        size_t n = speculation_draft(&seq->speculation, seq->tokens, seq->n_tokens, room < left - 1 ? room : left - 1);
        seq->n_draft = n > 0 ? draft_room(s, seq, n) : 0;
        seq->n_scheduled += seq->n_draft;
        s->rows += seq->n_draft;
    }
}

void scheduler_schedule(struct scheduler *s) {
    s->n_scheduled = 0;
    s->rows = 0;
    schedule_decodes(s);
    schedule_chunks(s);
    admit(s);
    schedule_drafts(s);
}

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
        seq->n_computed += seq->n_scheduled - seq->n_draft; /* of a draft, nothing counts yet */
        seq->n_scheduled = 0;
        publish(s, seq);
    }
}

void scheduler_distrust(struct scheduler *s, const struct sequence *seq) {
    for (size_t i = 0; i < seq->n_blocks; i++) {
        kv_cache_withdraw(s->kv, seq->blocks[i]);
    }
}
