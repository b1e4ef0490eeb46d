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

static void admit(struct scheduler *s) {
    while (!list_empty(&s->waiting) && s->n_running < s->max_sequences && s->rows < s->max_batched_tokens) {
        struct sequence *seq = LIST_ENTRY(s->waiting.next, struct sequence, node);
        size_t need = kv_cache_blocks_for(s->kv, seq->n_tokens);
        /* One token more: else its first decode would at once preempt somebody, perhaps itself. */
        size_t soon = seq->n_tokens < seq->max_total ? seq->n_tokens + 1 : seq->n_tokens;
        if (kv_cache_blocks_for(s->kv, soon) > s->kv->n_free || !kv_cache_take(s->kv, seq->blocks, need)) {
            break; /* in order of arrival: nobody overtakes */
        }
        seq->n_blocks = need;
        list_remove(&seq->node);
        list_push_back(&s->running, &seq->node);
        seq->state = SEQUENCE_RUNNING;
        s->n_waiting--;
        s->n_running++;
        size_t left = left_to_compute(seq), room = s->max_batched_tokens - s->rows;
        put(s, seq, left < room ? left : room);
    }
}

void scheduler_schedule(struct scheduler *s) {
    s->n_scheduled = 0;
    s->rows = 0;
    schedule_decodes(s);
    schedule_chunks(s);
    admit(s);
}

void scheduler_computed(struct scheduler *s) {
    for (size_t i = 0; i < s->n_scheduled; i++) {
        s->scheduled[i]->n_computed += s->scheduled[i]->n_scheduled;
        s->scheduled[i]->n_scheduled = 0;
    }
}
