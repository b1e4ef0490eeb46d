/*
 * The engine thread: requests in by the mailbox, events out by the ring, between them one loop of
 *
 *     collect, step = schedule, run, sample, deliver
 *
 * It opens the model itself (a device belongs to the thread that opened it), owns every sequence, the scheduler and
 * the KV bookkeeping, and frees only between steps. Once open, a step allocates nothing.
 */
#include "ahead.h"
#include "base/signal_stack.h"
#include "batch.h"
#include "choices.h"
#include "event_ring.h"
#include "kv_cache.h"
#include "mailbox.h"
#include "rule_sampler.h"
#include "runner.h"
#include "sampler.h"
#include "scheduler.h"
#include "step_stats.h"

#include <inferd/clock.h>

#include <assert.h>
#include <math.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(ENGINE_EVENT_TEXT >= DETOKENIZER_MAX_OUT + ENGINE_MAX_STOP_LEN,
               "an event must hold what one token can release");

#define EVENT_RING_CAPACITY ((size_t)128 << 10) /* bytes: two thousand tokens */

/* Written by the engine thread, read by any. */
struct counters {
    atomic_uint_fast64_t running, kv_blocks_used, kv_blocks_cached;
    atomic_uint_fast64_t drafts, drafted_tokens, accepted_at[ENGINE_MAX_SPECULATIVE];
    atomic_uint_fast64_t prompt_tokens, generation_tokens, queried_tokens, cached_tokens, steps, steps_ahead, preemptions, forks,
        nonfinite_logits, last_step_ns;
};

struct engine {
    /* Fixed after open, read by any thread. */
    struct text *text;
    char model_name[128];
    struct sequence_limits limits;
    struct engine_config config;
    size_t n_kv_blocks;

    struct mailbox mailbox;
    struct event_ring events;
    struct counters counters;
    struct step_stats step_stats;
    pthread_t thread;
    struct error why_lost; /* written before `lost` */
    atomic_bool lost;
    uint64_t beat_ns; /* of a pipeline: how long the other nodes hear nothing at most; 0: there are none */

    /* The engine thread's own. */
    struct runner runner;
    struct kv_cache kv_cache;
    struct scheduler scheduler;
    struct sampler sampler;
    struct choices choices;            /* of a device that chooses by the sampler's arithmetic */
    struct ahead ahead;                /* of such a device */
    struct rule_sampler rule;          /* in place of the sampler, of a device that has its own rule */
    struct engine_event event;         /* the one being built */
    char decoded[DETOKENIZER_MAX_OUT]; /* of the token being delivered */
};

void engine_config_default(struct engine_config *c) {
    *c = (struct engine_config){
        .device = "auto",
        .weights = "auto",
        .kv_dtype = "f16",
        .max_sequences = 32,
        .max_batched_tokens = 512,
        .max_waiting = 256,
        .max_waiting_tokens = 1048576,
        .kv_block_size = 16,
        .memory_utilization = 0.9,
        .scheduling = "fcfs",
        .priority_ageing = 60,
        .prefix_cache = true,
        .cuda_graphs = true,
    };
}

void engine_request_default(struct engine_request *r) {
    *r = (struct engine_request){.speculative_tokens = -1, .n_prompt_logprobs = -1};
    engine_sampling_default(&r->sampling);
}

/* ---- events ---- */

static struct engine_event *new_event(struct engine *e, const struct sequence *s, enum engine_event_kind kind) {
    struct engine_event *event = &e->event;
    event->id = s->id;
    event->kind = kind;
    event->token = -1;
    event->logprob = 0;
    event->rank = 0;
    event->n_top = 0;
    event->text_len = 0;
    event->finish = FINISH_STOP;
    event->stop_index = event->stop_token = -1;
    event->prompt_tokens = (uint32_t)s->n_prompt;
    event->completion_tokens = (uint32_t)sequence_n_generated(s);
    event->cached_tokens = (uint32_t)s->n_cached;
    event->error.code = ERROR_NONE;
    event->error.param[0] = event->error.message[0] = '\0';
    return event;
}

static void publish_gauges(struct engine *e) {
    atomic_store_explicit(&e->counters.running, e->scheduler.n_running, memory_order_relaxed);
    atomic_store_explicit(&e->counters.kv_blocks_used, kv_cache_used(&e->kv_cache), memory_order_relaxed);
    atomic_store_explicit(&e->counters.forks, e->scheduler.forks, memory_order_relaxed);
    atomic_store_explicit(&e->counters.queried_tokens, e->scheduler.queried_tokens, memory_order_relaxed);
    atomic_store_explicit(&e->counters.cached_tokens, e->scheduler.cached_tokens, memory_order_relaxed);
    atomic_store_explicit(&e->counters.kv_blocks_cached, e->kv_cache.n_cached, memory_order_relaxed);
}

static void count(atomic_uint_fast64_t *counter, uint64_t n) {
    atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

/*
 * The end of a sequence: everything it holds is given back first, so that whoever sees the terminal event may use
 * the id again and sees it in no gauge.
 */
static void end_sequence(struct engine *e, struct sequence *s, const struct engine_event *terminal) {
    ahead_forget(&e->ahead, s);
    scheduler_remove(&e->scheduler, s);
    mailbox_forget(&e->mailbox, s);
    publish_gauges(e);
    event_ring_push(&e->events, terminal);
    sequence_free(s);
}

static void cancel_sequence(struct engine *e, struct sequence *s) {
    struct engine_event *done = new_event(e, s, ENGINE_EVENT_DONE);
    done->finish = FINISH_CANCELLED;
    end_sequence(e, s, done);
}

static void fail_sequence(struct engine *e, struct sequence *s, const struct error *why) {
    struct engine_event *failed = new_event(e, s, ENGINE_EVENT_ERROR);
    failed->finish = FINISH_ERROR;
    failed->error = *why;
    end_sequence(e, s, failed);
}

/* The device is gone: nobody's step can be computed. */
static void lose_device(struct engine *e, const struct error *why) {
    if (!atomic_load(&e->lost)) {
        e->why_lost = *why;
        atomic_store(&e->lost, true);
    }
}

/* A step failed. On a device that works by itself more of it may be under way, whose results nobody would tell apart, and ranks
 * stopped in the middle of what they do together: it goes with the step, whatever the reason. */
static void step_failed(struct engine *e, struct error *why) {
    if (runner_is_fragile(&e->runner)) {
        why->code = ERROR_DEVICE;
    }
    if (why->code == ERROR_DEVICE) {
        if (e->runner.n_ranks > 1 || e->runner.nodes.group) {
            error_prefix(why, "step %llu", (unsigned long long)atomic_load(&e->counters.steps) + 1);
        }
        lose_device(e, why);
    }
}

static void fail_all(struct engine *e) {
    for (struct sequence *s; (s = scheduler_any(&e->scheduler));) {
        fail_sequence(e, s, &e->why_lost);
    }
    event_ring_notify(&e->events);
}

/* The text ended without a stop string so far: what the detokenizer and the matcher still hold comes out. */
static void finish_sequence(struct engine *e, struct sequence *s, enum finish_reason why, int32_t stop_index,
                            int32_t stop_token) {
    struct engine_event *done = new_event(e, s, ENGINE_EVENT_DONE);
    if (stop_index < 0) {
        size_t len = detokenizer_finish(&s->detokenizer, e->decoded);
        size_t n = stop_matcher_push(&s->stops, e->decoded, len, done->text, &stop_index);
        if (stop_index < 0) {
            n += stop_matcher_finish(&s->stops, done->text + n);
        } else {
            why = FINISH_STOP;
        }
        done->text_len = (uint16_t)n;
    }
    done->finish = why;
    done->stop_index = stop_index;
    done->stop_token = stop_token;
    end_sequence(e, s, done);
}

/* ---- collect ---- */

/* Take in what the mailbox has, sleeping if there is nothing to do; false when the engine is to end. */
static bool collect(struct engine *e) {
    struct list arrived, cancelled;
    list_init(&arrived);
    list_init(&cancelled);
    bool goes_on = mailbox_collect(&e->mailbox, scheduler_any(&e->scheduler) == NULL, e->beat_ns, &arrived, &cancelled);
    LIST_FOR_EACH_SAFE(pos, next, &arrived) {
        struct sequence *s = LIST_ENTRY(pos, struct sequence, node);
        list_remove(pos);
        /* A parent was submitted before: the scheduler has it, unless it ended or the id is of a later one. */
        struct sequence *parent = s->parent_id ? mailbox_find(&e->mailbox, s->parent_id) : NULL;
        scheduler_add(&e->scheduler, s, parent && parent->arrival < s->arrival ? parent : NULL);
    }
    if (!list_empty(&cancelled)) {
        LIST_FOR_EACH_SAFE(pos, next, &cancelled) {
            list_remove(pos);
            cancel_sequence(e, LIST_ENTRY(pos, struct sequence, cancel_node));
        }
        event_ring_notify(&e->events);
    }
    return goes_on;
}

/* ---- step ---- */

/* It runs; for the first time? */
static void start_sequence(struct engine *e, struct sequence *s) {
    if (!s->started) {
        mailbox_started(&e->mailbox, s);
        s->started = true;
        event_ring_push(&e->events, new_event(e, s, ENGINE_EVENT_STARTED));
    }
}

static void schedule(struct engine *e) {
    scheduler_schedule(&e->scheduler);
    struct scheduler *sch = &e->scheduler;
    for (size_t i = 0; i < sch->n_scheduled; i++) {
        start_sequence(e, sch->scheduled[i]);
    }
    event_ring_notify(&e->events); /* a long prefill is known to run while it does */
    atomic_store_explicit(&e->counters.preemptions, sch->preemptions, memory_order_relaxed);
    publish_gauges(e);
}

/* The step is computed, and what the device can choose is chosen. */
static int run(struct engine *e, struct error *err) {
    struct decoder_batch *b = &e->runner.batch;
    struct scheduler *sch = &e->scheduler;
    batch_fill(b, sch->scheduled, sch->n_scheduled, e->kv_cache.block_size);
    batch_copies(b, sch->copy_from, sch->copy_to, sch->n_copies);
    uint64_t start = clock_now_ns();
    if (choices_plan(&e->choices, &e->runner, sch, &e->sampler, e->text)) {
        const struct ahead_rows rows = {sch->scheduled, sch->n_scheduled};
        return runner_start(&e->runner, b, false, err) < 0 ||
                       choices_queue(&e->choices, &e->runner, &e->sampler, err) < 0 ||
                       ahead_queue(&e->ahead, &rows, &e->runner, sch, &e->sampler, &e->choices, e->text, err) < 0
                   ? -1
                   : choices_take(&e->choices, &e->runner, err);
    }
    if (runner_run(&e->runner, err) < 0 || choices_queue(&e->choices, &e->runner, &e->sampler, err) < 0 ||
        choices_take(&e->choices, &e->runner, err) < 0) {
        return -1;
    }
    if (b->n_logits == b->rows) { /* no prompts in it */
        step_cost_add(&sch->step_cost, b->rows, (double)(clock_now_ns() - start) * 1e-9);
    }
    return 0;
}

static enum sample_result sample(struct engine *e, const struct sequence *s, size_t logits_row, const float *logits,
                                 struct sample *out) {
    const struct sample_input in = choices_input(s, e->text, logits);
    if (choices_has(&e->choices, logits_row)) {
        int32_t token = e->choices.of_row[logits_row];
        *out = (struct sample){.token = token, .state = s->sampler};
        return token >= 0 ? SAMPLE_OK : token == CHOICE_NO_TOKEN ? SAMPLE_NO_TOKEN : SAMPLE_NONFINITE;
    }
    return e->runner.ops->sample ? rule_sampler_sample(&e->rule, s, logits_row, &in, out)
                                 : sampler_sample(&e->sampler, &in, out);
}

/* Which end id is this: 0 none, 1 the model's, 2 the request's. */
static int end_kind(const struct sequence *s, int32_t token) {
    for (size_t i = 0; i < s->n_end_ids; i++) {
        if (s->end_ids[i] == token) {
            return i < s->n_model_end_ids ? 1 : 2;
        }
    }
    return 0;
}

/* Append the token, tell its text, and end the sequence if this was its last: false then. */
static bool deliver(struct engine *e, struct sequence *s, const struct sample *sampled) {
    int32_t token = sampled->token, stop_index = -1;
    assert(s->n_tokens < s->max_total);
    if (sequence_n_generated(s) == 0) {
        count(&e->counters.prompt_tokens, s->n_prompt);
    }
    s->tokens[s->n_tokens++] = token;
    s->sampler = sampled->state;
    count(&e->counters.generation_tokens, 1);

    int end = end_kind(s, token);
    if (end == 0 || s->include_stop) {
        struct engine_event *event = new_event(e, s, ENGINE_EVENT_TOKEN);
        size_t len = detokenizer_push(&s->detokenizer, token, e->decoded);
        event->text_len = (uint16_t)stop_matcher_push(&s->stops, e->decoded, len, event->text, &stop_index);
        event->token = token;
        event->logprob = sampled->logprob;
        event->n_top = sampled->n_top;
        memcpy(event->top, sampled->top, sampled->n_top * sizeof event->top[0]);
        event_ring_push(&e->events, event);
    }
    if (end != 0 || stop_index >= 0) {
        finish_sequence(e, s, FINISH_STOP, stop_index, end == 2 ? token : -1);
        return false;
    }
    if (s->n_tokens == s->max_total) {
        finish_sequence(e, s, FINISH_LENGTH, -1, -1);
        return false;
    }
    if (sequence_repeats(s) && sequence_n_generated(s) >= s->min_tokens) {
        finish_sequence(e, s, FINISH_REPETITION, -1, -1);
        return false;
    }
    return true;
}

/* A sequence whose logits give no token ends. */
static bool fail_sample(struct engine *e, struct sequence *s, enum sample_result result) {
    struct error why;
    if (result == SAMPLE_NONFINITE) {
        count(&e->counters.nonfinite_logits, 1);
        scheduler_distrust(&e->scheduler, s);
        error_set(&why, ERROR_INTERNAL, "the model computed logits that are not finite numbers");
    } else {
        error_set_param(&why, ERROR_INVALID, s->allowed ? "allowed_token_ids" : "bad_words",
                        "allowed_token_ids, bad_words and min_tokens leave no token to choose from");
    }
    fail_sequence(e, s, &why);
    return false;
}

/* *token is the one that was sampled, -1 if none was; false: the sequence ended. */
static bool sample_and_deliver(struct engine *e, struct sequence *s, size_t logits_row, const float *logits,
                               int32_t *token) {
    struct sample sampled = {.token = -1};
    enum sample_result result = sample(e, s, logits_row, logits, &sampled);
    *token = sampled.token;
    return result == SAMPLE_OK ? deliver(e, s, &sampled) : fail_sample(e, s, result);
}

/* Tell the next token of the prompt; logits (NULL for the first token) are those before it. */
static bool tell_prompt_token(struct engine *e, struct sequence *s, const float *logits) {
    struct sample scored = {.token = s->tokens[s->n_prompt_told], .logprob = NAN};
    if (logits && e->runner.ops->sample) { /* the device tells no logits */
        scored.logprob = e->rule.logprob;
        scored.rank = 1;
    } else if (logits) {
        enum sample_result result = sampler_score(&e->sampler, logits, scored.token, s->n_prompt_logprobs, &scored);
        if (result != SAMPLE_OK) {
            return fail_sample(e, s, result);
        }
    }
    struct engine_event *event = new_event(e, s, ENGINE_EVENT_PROMPT);
    event->token = scored.token;
    event->logprob = scored.logprob;
    event->rank = scored.rank;
    event->n_top = scored.n_top;
    memcpy(event->top, scored.top, scored.n_top * sizeof event->top[0]);
    event_ring_push(&e->events, event);
    s->n_prompt_told++;
    return true;
}

/* Of the draft that s had in this step, n_kept tokens were right; s has sampled them and one more, unless it ended. */
static void end_draft(struct engine *e, struct sequence *s, size_t n_draft, size_t n_kept, bool lives) {
    count(&e->counters.drafts, 1);
    count(&e->counters.drafted_tokens, n_draft);
    for (size_t i = 0; i < n_kept; i++) {
        count(&e->counters.accepted_at[i], 1);
    }
    if (lives) {
        s->n_computed =
            s->n_tokens - 1; /* also K and V of the tokens that were kept; those of the others do not count */
        speculation_learn(&s->speculation, n_draft, n_kept);
    }
}

/* Whoever waits for this prompt has its first token from the same logits. */
static void sample_children(struct engine *e, struct sequence *parent, size_t logits_row, const float *logits) {
    int32_t token;
    for (struct sequence *child;
         sequence_n_generated(parent) == 0 && (child = scheduler_fork(&e->scheduler, parent));) {
        start_sequence(e, child);
        sample_and_deliver(e, child, logits_row, logits, &token);
    }
}

/*
 * What the step computed for its i-th sequence: tell tokens of the prompt, sample what comes behind all tokens, and
 * behind each token of the draft for as long as what was sampled is what was drafted. `logits_row` is the first of its
 * rows with logits; returns that of the next sequence.
 */
static size_t take_rows(struct engine *e, size_t i, size_t logits_row) {
    struct sequence *s = e->scheduler.scheduled[i];
    const struct decoder_batch *b = &e->runner.batch;
    bool lives = s->n_prompt_logprobs < 0 || s->n_prompt_told > 0 || tell_prompt_token(e, s, NULL);
    bool wrong = false;
    size_t n_draft = s->n_draft, n_kept = 0;
    s->n_draft = 0;
    if (e->runner.ops->sample) {
        rule_sampler_look_ahead(&e->rule, e->scheduler.scheduled, e->scheduler.n_scheduled, i, logits_row);
    }
    for (; logits_row < b->n_logits && b->logit_rows[logits_row] < b->cu_seqlens[i + 1]; logits_row++) {
        const float *logits = NULL;
        struct error err;
        if (!lives || wrong) {
            continue; /* behind a token that does not come */
        }
        if (!choices_has(&e->choices, logits_row) && runner_get_logits(&e->runner, logits_row, &logits, &err) < 0) {
            step_failed(e, &err);
            fail_sequence(e, s, &err);
            lives = false;
        } else if ((size_t)b->positions[b->logit_rows[logits_row]] + 1 < s->n_prompt) {
            lives = tell_prompt_token(e, s, logits);
        } else {
            int32_t drafted = n_kept < n_draft ? s->tokens[s->n_tokens] : -1, token;
            sample_children(e, s, logits_row, logits);
            lives = sample_and_deliver(e, s, logits_row, logits, &token);
            wrong = token != drafted;
            n_kept += !wrong;
        }
    }
    if (n_draft > 0) {
        end_draft(e, s, n_draft, n_kept, lives);
    }
    if (lives && s->score_only && s->n_computed == s->n_tokens) {
        count(&e->counters.prompt_tokens, s->n_prompt);
        finish_sequence(e, s, FINISH_LENGTH, -1, -1);
    }
    return logits_row;
}

static size_t scheduled_tokens(const struct scheduler *sch) {
    size_t n = 0;
    for (size_t i = 0; i < sch->n_scheduled; i++) {
        n += sch->scheduled[i]->n_scheduled;
    }
    return n;
}

static void end_step(struct engine *e, size_t n_tokens, size_t n_sequences, uint64_t began, uint64_t computed) {
    uint64_t now = clock_now_ns();
    step_stats_observe(&e->step_stats, n_tokens, n_sequences, now - began, now - computed);
    count(&e->counters.steps, 1);
    atomic_store_explicit(&e->counters.last_step_ns, now, memory_order_relaxed);
    publish_gauges(e);
    event_ring_notify(&e->events);
}

/* The step that was queued ahead: queue another one behind it, and deliver its tokens. */
static void finish_under_way(struct engine *e) {
    struct scheduler *sch = &e->scheduler;
    const struct ahead_rows *rows = &e->ahead.under_way;
    struct error err;
    uint64_t began = clock_now_ns();
    int rc = ahead_queue(&e->ahead, rows, &e->runner, sch, &e->sampler, &e->choices, e->text, &err);
    rc = rc == 0 ? runner_chosen(&e->runner, e->choices.tokens, rows->n, &err) : rc;
    uint64_t computed = clock_now_ns();
    sch->n_scheduled = 0;
    for (size_t i = 0; i < rows->n; i++) {
        struct sequence *s = rows->sequences[i];
        e->choices.of_row[i] = e->choices.tokens[i];
        if (s) {
            s->n_scheduled = 1;
            sch->scheduled[sch->n_scheduled++] = s;
        }
    }
    size_t n_tokens = sch->n_scheduled;
    if (rc == 0) {
        scheduler_computed(sch);
    } else {
        step_failed(e, &err);
    }
    for (size_t i = 0; i < rows->n; i++) {
        struct sequence *s = rows->sequences[i];
        int32_t token;
        if (s && rc < 0) {
            fail_sequence(e, s, &err);
        } else if (s) {
            sample_and_deliver(e, s, i, NULL, &token);
        }
    }
    ahead_turn(&e->ahead);
    if (n_tokens > 0) { /* not all have ended meanwhile */
        count(&e->counters.steps_ahead, 1);
        end_step(e, n_tokens, n_tokens, began, computed); /* a token each */
    }
}

static void step(struct engine *e) {
    struct scheduler *sch = &e->scheduler;
    struct error err;
    uint64_t began = clock_now_ns();
    if (e->ahead.under_way.n > 0) {
        finish_under_way(e);
        return;
    }
    schedule(e);
    assert(sch->n_scheduled > 0); /* the oldest always fits */
    size_t n_tokens = scheduled_tokens(sch), n_sequences = sch->n_scheduled;
    int rc = run(e, &err);
    uint64_t computed = clock_now_ns();
    if (rc == 0) {
        scheduler_computed(sch);
        rule_sampler_begin(&e->rule);
    } else {
        step_failed(e, &err);
    }
    for (size_t i = 0, logits_row = 0; i < sch->n_scheduled; i++) {
        if (rc < 0) {
            fail_sequence(e, sch->scheduled[i], &err);
        } else {
            logits_row = take_rows(e, i, logits_row);
        }
    }
    ahead_turn(&e->ahead);
    end_step(e, n_tokens, n_sequences, began, computed);
}

/* ---- life ---- */

static bool by_priority(const struct engine_config *c) {
    return c->scheduling && strcmp(c->scheduling, "priority") == 0;
}

static int check_config(const struct engine_config *c, struct error *err) {
    const struct {
        const char *name;
        size_t value, min, max;
    } sizes[] = {
        {"threads", c->threads, 0, 4096},
        {"max_model_len", c->max_model_len, 0, (size_t)1 << 27},
        {"max_sequences", c->max_sequences, 1, ENGINE_MAX_SEQUENCES},
        {"max_batched_tokens", c->max_batched_tokens, 1, 65536},
        {"max_waiting", c->max_waiting, 0, 1000000},
        {"max_waiting_tokens", c->max_waiting_tokens, 0, (size_t)1 << 40},
        {"kv_block_size", c->kv_block_size, 8, 256},
        {"kv_tokens", c->kv_tokens, 0, (size_t)1 << 30},
        {"speculative_tokens", c->speculative_tokens, 0, ENGINE_MAX_SPECULATIVE},
        {"tensor_parallel", c->tensor_parallel, 0, COLLECTIVE_MAX_RANKS},
        {"pipeline_parallel", c->pipeline_parallel, 0, COLLECTIVE_MAX_RANKS},
        {"null_step_time", c->null_step_ns, 0, (size_t)3600000000000},
    };
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        if (sizes[i].value < sizes[i].min || sizes[i].value > sizes[i].max) {
            return error_set_param(err, ERROR_INVALID, sizes[i].name, "%s must be between %zu and %zu", sizes[i].name,
                                   sizes[i].min, sizes[i].max);
        }
    }
    if ((c->kv_block_size & (c->kv_block_size - 1)) != 0) {
        return error_set_param(err, ERROR_INVALID, "kv_block_size", "kv_block_size must be a power of two");
    }
    if (!(c->memory_utilization > 0 && c->memory_utilization <= 1)) {
        return error_set_param(err, ERROR_INVALID, "memory_utilization",
                               "memory_utilization must be above 0 and at most 1");
    }
    if (c->scheduling && strcmp(c->scheduling, "fcfs") != 0 && !by_priority(c)) {
        return error_set_param(err, ERROR_INVALID, "scheduling", "scheduling must be fcfs or priority, not %s",
                               c->scheduling);
    }
    if (!(c->rank_timeout >= 0 && c->rank_timeout <= 86400)) {
        return error_set_param(err, ERROR_INVALID, "rank_timeout", "rank_timeout must be between 0 and 86400 seconds");
    }
    if (!(c->priority_ageing >= 0 && c->priority_ageing <= 1e9)) {
        return error_set_param(err, ERROR_INVALID, "priority_ageing",
                               "priority_ageing must be between 0 and 1e9 seconds");
    }
    return 0;
}

static void name_model(struct engine *e, const char *path) {
    struct meta_string name;
    if (model_file_get_string(e->runner.file, "general.name", &name) && name.len > 0) {
        size_t n = name.len < sizeof e->model_name ? name.len : sizeof e->model_name - 1;
        memcpy(e->model_name, name.data, n);
        return;
    }
    /* the last component of the path, without slashes at its end */
    size_t end = strlen(path);
    while (end > 1 && path[end - 1] == '/') {
        end--;
    }
    size_t begin = end;
    while (begin > 0 && path[begin - 1] != '/') {
        begin--;
    }
    size_t n = end - begin < sizeof e->model_name ? end - begin : sizeof e->model_name - 1;
    memcpy(e->model_name, path + begin, n);
}

/* On the engine thread: the model, then everything sized by it, then one token through all of it. */
static int open_model(struct engine *e, struct error *err) {
    const struct engine_config *c = &e->config;
    uint64_t since = clock_now_ns();
    struct nodes nodes;
    if (nodes_open(c->pipeline_parallel, c->device, c->cuda_module, &nodes, err) < 0) {
        return -1;
    }
    if (text_open_with(c->model, c->chat_template, &e->text, err) < 0) {
        nodes_give_up(&nodes, err);
        nodes_close(&nodes);
        return -1;
    }
    double text_seconds = clock_lap(&since);
    if (runner_open_stage(&e->runner, c, &nodes, err) < 0) {
        return -1;
    }
    since = clock_now_ns();
    e->runner.load_seconds[ENGINE_LOAD_TEXT] = text_seconds;
    e->beat_ns = e->runner.nodes.group ? (uint64_t)e->runner.nodes.group->deadline_ms * 1000000 / 3 : 0;
    size_t model_vocab = e->runner.decoder->config.vocab_size, text_vocab = text_vocab_size(e->text);
    e->limits = (struct sequence_limits){
        .text = e->text,
        /* Embeddings are often padded, and tokenizers know tokens that a model has no row for. */
        .vocab_size = text_vocab < model_vocab ? text_vocab : model_vocab,
        .max_model_len = e->runner.kv.max_model_len,
        .kv_block_size = c->kv_block_size,
        .speculative_tokens = c->speculative_tokens,
        .prefix_cache = c->prefix_cache,
    };
    e->n_kv_blocks = e->runner.kv.n_blocks;
    const struct scheduler_config scheduling = {
        .max_sequences = c->max_sequences,
        .max_batched_tokens = c->max_batched_tokens,
        .scheduling = by_priority(c) ? SCHEDULING_PRIORITY : SCHEDULING_FCFS,
        .ageing_ns = (uint64_t)(c->priority_ageing * 1e9),
    };
    name_model(e, c->model);
    if (kv_cache_init(&e->kv_cache, e->n_kv_blocks, c->kv_block_size, err) < 0 ||
        scheduler_init(&e->scheduler, &e->kv_cache, &scheduling, err) < 0 ||
        sampler_init(&e->sampler, e->limits.vocab_size, e->limits.max_model_len, err) < 0) {
        return -1;
    }
    if (e->runner.ops->sample && rule_sampler_init(&e->rule, &e->runner, e->text, e->limits.vocab_size, err) < 0) {
        return -1;
    }
    if (e->runner.ops->choose &&
        (choices_open(&e->choices, e->runner.max_rows, e->runner.ops->choice_edits, err) < 0 ||
         ahead_open(&e->ahead, e->runner.max_sequences, e->runner.batch.max_blocks, err) < 0)) {
        return -1;
    }
    e->runner.load_seconds[ENGINE_LOAD_MEMORY] += clock_lap(&since);
    if (runner_self_test(&e->runner, err) < 0) {
        return -1;
    }
    e->runner.load_seconds[ENGINE_LOAD_SELF_TEST] = clock_lap(&since);
    return 0;
}

static void close_model(struct engine *e) {
    if (e->scheduler.scheduled) {
        for (struct sequence *s; (s = scheduler_any(&e->scheduler));) {
            scheduler_remove(&e->scheduler, s);
            sequence_free(s);
        }
    }
    ahead_close(&e->ahead);
    rule_sampler_destroy(&e->rule);
    choices_close(&e->choices);
    sampler_destroy(&e->sampler);
    scheduler_destroy(&e->scheduler);
    kv_cache_destroy(&e->kv_cache);
    runner_close(&e->runner);
}

/* What engine_open tells its new thread, and hears from it. */
struct opening {
    struct engine *engine;
    struct error *err;
    int rc;
    sem_t done;
};

/* Nothing to do: are the other nodes there? */
static void beat(struct engine *e) {
    struct error err;
    if (runner_beat(&e->runner, &err) < 0) {
        err.code = ERROR_DEVICE;
        lose_device(e, &err);
        event_ring_alert(&e->events); /* the callers look at it then */
    }
}

static void *engine_thread(void *arg) {
    struct opening *opening = arg;
    struct engine *e = opening->engine;
    pthread_setname_np(pthread_self(), "engine");
    signal_stack_use();
    int rc = open_model(e, opening->err);
    opening->rc = rc;
    sem_post(&opening->done); /* opening is gone from here on */
    while (rc == 0 && collect(e)) {
        bool lost = atomic_load_explicit(&e->lost, memory_order_relaxed);
        if (!lost && scheduler_any(&e->scheduler)) {
            step(e);
        } else if (!lost) {
            beat(e);
        }
        if (atomic_load_explicit(&e->lost, memory_order_relaxed)) {
            fail_all(e);
        }
    }
    close_model(e);
    return NULL;
}

/* Signals are the program's business: none is delivered to the engine thread, and those that it starts, but for its own
 * faults: blocked, these would end the process without a word. */
static int start_thread(struct engine *e, struct opening *opening, struct error *err) {
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
    sigset_t all, before;
    sigfillset(&all);
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
        sigdelset(&all, faults[i]);
    }
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = pthread_create(&e->thread, NULL, engine_thread, opening);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return rc == 0 ? 0 : error_set(err, ERROR_IO, "a thread cannot be started: %s", strerror(rc));
}

static void free_engine(struct engine *e) {
    mailbox_destroy(&e->mailbox);
    event_ring_destroy(&e->events);
    text_free(e->text);
    free(e);
}

int engine_open(const struct engine_config *config, struct engine **out, struct error *err) {
    if (check_config(config, err) < 0) {
        return -1;
    }
    struct engine *e = calloc(1, sizeof *e);
    if (!e) {
        return error_memory(err);
    }
    e->config = *config;
    struct opening opening = {.engine = e, .err = err, .rc = -1};
    sem_init(&opening.done, 0, 0);
    if (mailbox_init(&e->mailbox, config->max_sequences + config->max_waiting, config->max_waiting_tokens, err) < 0 ||
        event_ring_init(&e->events, EVENT_RING_CAPACITY, err) < 0 || start_thread(e, &opening, err) < 0) {
        goto fail;
    }
    while (sem_wait(&opening.done) < 0) {
        /* interrupted by a signal */
    }
    if (opening.rc < 0) {
        pthread_join(e->thread, NULL);
        goto fail;
    }
    sem_destroy(&opening.done);
    /* The strings belong to the caller and are not needed any more. */
    e->config.model = e->config.device = e->config.cpu_variant = e->config.scheduling = NULL;
    e->config.weights = e->config.kv_dtype = e->config.cuda_module = e->config.cache_folder = NULL;
    *out = e;
    return 0;
fail:
    sem_destroy(&opening.done);
    free_engine(e);
    return -1;
}

void engine_close(struct engine *e) {
    if (!e) {
        return;
    }
    mailbox_close(&e->mailbox);
    event_ring_close(&e->events);
    pthread_join(e->thread, NULL);
    /* Sequences that were submitted after the last collect. */
    struct list left, cancelled;
    list_init(&left);
    list_init(&cancelled);
    mailbox_collect(&e->mailbox, false, 0, &left, &cancelled);
    LIST_FOR_EACH_SAFE(pos, next, &left) {
        list_remove(pos);
        sequence_free(LIST_ENTRY(pos, struct sequence, node));
    }
    free_engine(e);
}

int engine_follow(const struct engine_config *config, void (*started)(void *arg), void *arg, struct error *err) {
    struct runner r;
    struct nodes nodes;
    if (check_config(config, err) < 0 || nodes_open(config->pipeline_parallel, config->device, config->cuda_module, &nodes, err) < 0 ||
        runner_open_stage(&r, config, &nodes, err) < 0) {
        return -1;
    }
    started(arg);
    int rc = runner_follow(&r, err);
    if (rc < 0) { /* whatever the reason, the others go on without it, and find it gone */
        err->code = ERROR_DEVICE;
        r.nodes.group->ops->abort(r.nodes.group);
    }
    runner_close(&r);
    return rc;
}

int engine_node(size_t pipeline_parallel, size_t *node, struct error *err) {
    nodes_set_place();
    return nodes_find_self(pipeline_parallel, node, err);
}

/* ---- the callers' side ---- */

const struct text *engine_text(const struct engine *e) {
    return e->text;
}

void engine_get_info(const struct engine *e, struct engine_info *out) {
    const struct runner *r = &e->runner; /* fixed after open */
    const struct model_config *c = &r->model;
    *out = (struct engine_info){
        .architecture = c->arch->name,
        .model_name = e->model_name,
        .backend = r->backend_info.name,
        .device = r->backend_info.device,
        .device_why = r->device_why,
        .variant = r->backend_info.variant,
        .threads = r->n_threads,
        .n_layers = c->n_layers,
        .n_parameters = r->n_parameters,
        .weights = weights_describe(&r->decoder->weights),
        .vocab_size = e->limits.vocab_size,
        .max_model_len = e->limits.max_model_len,
        .kv_blocks = e->n_kv_blocks,
        .kv_block_size = e->limits.kv_block_size,
        .weight_bytes = r->weight_bytes,
        .kv_bytes = r->kv_token_bytes * e->n_kv_blocks * e->limits.kv_block_size,
        .workspace_bytes = r->workspace_bytes,
        .tensor_parallel = r->n_ranks,
        .pipeline_parallel = r->nodes.group ? r->nodes.n_stages : 1,
        .n_ranks = r->n_ranks,
        .ranks = r->reports,
    };
    memcpy(out->memory_planned, r->kv.bytes, sizeof out->memory_planned);
    memcpy(out->memory_used, r->memory_used, sizeof out->memory_used);
    memcpy(out->load_seconds, r->load_seconds, sizeof out->load_seconds);
}

int engine_submit(struct engine *e, const struct engine_request *r, struct error *err) {
    struct sequence *s;
    if (mailbox_check(&e->mailbox, r->n_prompt, err) < 0 || sequence_new(r, &e->limits, &s, err) < 0) {
        return -1;
    }
    if (mailbox_submit(&e->mailbox, s, err) < 0) {
        sequence_free(s);
        return -1;
    }
    return 0;
}

void engine_cancel(struct engine *e, uint64_t id) {
    mailbox_cancel(&e->mailbox, id);
}

void engine_set_notify(struct engine *e, void (*notify)(void *arg), void *arg) {
    event_ring_set_notify(&e->events, notify, arg);
}

bool engine_poll(struct engine *e, struct engine_event *out) {
    return event_ring_pop(&e->events, out, 0);
}

size_t engine_pending(const struct engine *e) {
    return event_ring_batch_left(&e->events);
}

size_t engine_peek(const struct engine *e, uint64_t *ids, size_t n) {
    return event_ring_peek(&e->events, ids, n);
}

bool engine_wait(struct engine *e, struct engine_event *out, int timeout_ms) {
    return event_ring_pop(&e->events, out, timeout_ms);
}

void engine_drain(struct engine *e) {
    mailbox_drain(&e->mailbox);
}

const struct error *engine_lost(const struct engine *e) {
    return atomic_load(&e->lost) ? &e->why_lost : NULL;
}

void engine_get_stats(const struct engine *e, struct engine_stats *out) {
    const struct counters *c = &e->counters;
    uint64_t live = mailbox_n_live(&e->mailbox);
    uint64_t running = atomic_load_explicit(&c->running, memory_order_relaxed);
    *out = (struct engine_stats){
        .running = running < live ? running : live,
        .waiting = live > running ? live - running : 0,
        .waiting_tokens = mailbox_waiting_tokens(&e->mailbox),
        .kv_blocks_used = atomic_load_explicit(&c->kv_blocks_used, memory_order_relaxed),
        .kv_blocks = e->n_kv_blocks,
        .kv_blocks_cached = atomic_load_explicit(&c->kv_blocks_cached, memory_order_relaxed),
        .prompt_tokens = atomic_load_explicit(&c->prompt_tokens, memory_order_relaxed),
        .generation_tokens = atomic_load_explicit(&c->generation_tokens, memory_order_relaxed),
        .prefix_cache_queries = atomic_load_explicit(&c->queried_tokens, memory_order_relaxed),
        .cached_tokens = atomic_load_explicit(&c->cached_tokens, memory_order_relaxed),
        .steps = atomic_load_explicit(&c->steps, memory_order_relaxed),
        .steps_ahead = atomic_load_explicit(&c->steps_ahead, memory_order_relaxed),
        .preemptions = atomic_load_explicit(&c->preemptions, memory_order_relaxed),
        .forks = atomic_load_explicit(&c->forks, memory_order_relaxed),
        .nonfinite_logits = atomic_load_explicit(&c->nonfinite_logits, memory_order_relaxed),
        .last_step_ns = atomic_load_explicit(&c->last_step_ns, memory_order_relaxed),
        .idle = live == 0,
        .drafts = atomic_load_explicit(&c->drafts, memory_order_relaxed),
        .drafted_tokens = atomic_load_explicit(&c->drafted_tokens, memory_order_relaxed),
    };
    step_stats_read(&e->step_stats, out);
    for (size_t i = 0; i < ENGINE_MAX_SPECULATIVE; i++) {
        out->accepted_at[i] = atomic_load_explicit(&c->accepted_at[i], memory_order_relaxed);
        out->accepted_tokens += out->accepted_at[i];
    }
}
