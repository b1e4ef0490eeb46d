#include "fake_engine.h"

#include <inferd/clock.h>
#include <inferd/engine.h>
#include <inferd/list.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define BLOCK 16

struct sequence {
    struct list node;
    uint64_t id;
    char *answer; /* [n_answer], one token a byte */
    size_t n_answer;
    size_t cut; /* bytes that will be shown, when a stop string comes */
    int stop_index;
    size_t hold; /* bytes that are held back while tokens come */
    size_t n_prompt, max_tokens, done, shown;
    bool loop, stall, cancelled, running, started;
    long delay_ms, prefill_ms, error_at, repetition_at;
    uint32_t choice;
    int n_logprobs;
    uint64_t due_ns;
};

struct queued {
    struct list node;
    struct engine_event event;
};

struct engine {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t work, ready;
    struct list waiting, running, events;
    struct engine_config config;
    void (*notify)(void *arg);
    void *notify_arg;
    bool stop, draining;
    struct engine_stats stats;
};

void engine_config_default(struct engine_config *c) {
    *c = (struct engine_config){.max_model_len = 4096, .max_sequences = 32, .max_waiting = 256};
}

void engine_request_default(struct engine_request *r) {
    *r = (struct engine_request){.speculative_tokens = -1, .n_prompt_logprobs = -1};
    engine_sampling_default(&r->sampling);
}

static void emit(struct engine *e, const struct engine_event *event) {
    struct queued *q = calloc(1, sizeof *q);
    q->event = *event;
    list_push_back(&e->events, &q->node);
    pthread_cond_broadcast(&e->ready);
    if (e->notify) {
        e->notify(e->notify_arg);
    }
}

static void finish(struct engine *e, struct sequence *q, enum finish_reason why) {
    struct engine_event event = {
        .id = q->id,
        .kind = ENGINE_EVENT_DONE,
        .token = -1,
        .finish = why,
        .stop_index = -1,
        .stop_token = -1,
        .prompt_tokens = (uint32_t)q->n_prompt,
        .completion_tokens = (uint32_t)q->done,
    };
    if (why == FINISH_STOP && q->stop_index >= 0 && q->cut <= q->done) {
        event.stop_index = q->stop_index;
    }
    size_t end = event.stop_index >= 0 ? q->cut : q->done;
    if (why != FINISH_CANCELLED && end > q->shown) {
        event.text_len = (uint16_t)(end - q->shown);
        for (size_t i = 0; i < event.text_len; i++) {
            event.text[i] = q->answer[(q->shown + i) % q->n_answer];
        }
    }
    emit(e, &event);
    list_remove(&q->node);
    e->stats.running -= q->running;
    e->stats.waiting -= !q->running;
    e->stats.kv_blocks_used -= q->running ? (q->n_prompt + q->max_tokens + BLOCK - 1) / BLOCK : 0;
    free(q->answer);
    free(q);
}

/* One byte further. Text is shown in whole characters. */
static void one_token(struct engine *e, struct sequence *q) {
    size_t at = q->done % q->n_answer;
    struct engine_event event = {.id = q->id, .kind = ENGINE_EVENT_TOKEN, .stop_index = -1, .stop_token = -1};
    event.token = (unsigned char)q->answer[at];
    event.logprob = -0.25f;
    for (int i = 0; i < q->n_logprobs; i++) {
        event.top[i] = (struct token_logprob){(event.token + i) % 256, -0.25f - (float)i};
        event.n_top++;
    }
    q->done++;
    event.completion_tokens = (uint32_t)q->done;
    e->stats.generation_tokens++;
    size_t end = q->done > q->hold ? q->done - q->hold : 0;
    if (q->stop_index >= 0 && end > q->cut) {
        end = q->cut;
    }
    bool whole = ((unsigned char)q->answer[end % q->n_answer] & 0xc0) != 0x80;
    for (size_t i = q->shown; whole && i < end; i++) {
        event.text[event.text_len++] = q->answer[i % q->n_answer];
    }
    q->shown += event.text_len;
    emit(e, &event);
}

static void advance(struct engine *e, struct sequence *q, uint64_t now) {
    if (q->cancelled) {
        finish(e, q, FINISH_CANCELLED);
        return;
    }
    if (!q->started) {
        q->started = true;
        e->stats.prompt_tokens += q->n_prompt;
        emit(e, &(struct engine_event){.id = q->id, .kind = ENGINE_EVENT_STARTED, .token = -1});
        q->due_ns = now + (uint64_t)q->prefill_ms * 1000000u;
        return;
    }
    if (q->stall || now < q->due_ns) {
        return;
    }
    if (q->error_at >= 0 && (size_t)q->error_at == q->done) {
        struct engine_event event = {.id = q->id, .kind = ENGINE_EVENT_ERROR, .token = -1};
        error_set(&event.error, ERROR_INTERNAL, "the fake engine was told to fail");
        emit(e, &event);
        q->cancelled = true;
        list_remove(&q->node);
        e->stats.running--;
        e->stats.kv_blocks_used -= (q->n_prompt + q->max_tokens + BLOCK - 1) / BLOCK;
        free(q->answer);
        free(q);
        return;
    }
    if (q->repetition_at >= 0 && (size_t)q->repetition_at == q->done) {
        finish(e, q, FINISH_REPETITION);
    } else if (q->done == q->max_tokens) {
        finish(e, q, FINISH_LENGTH);
    } else if (q->done == q->n_answer && !q->loop) {
        finish(e, q, FINISH_STOP);
    } else {
        one_token(e, q);
        q->due_ns = now + (uint64_t)q->delay_ms * 1000000u;
        if (q->stop_index >= 0 && q->done >= q->cut + q->hold + 1) {
            finish(e, q, FINISH_STOP);
        }
    }
}

/* When the next thing happens, UINT64_MAX for never. */
static uint64_t next_due(const struct engine *e) {
    uint64_t due = list_empty(&e->waiting) || e->stats.running == e->config.max_sequences ? UINT64_MAX : 0;
    LIST_FOR_EACH(node, &e->running) {
        const struct sequence *q = LIST_ENTRY(node, struct sequence, node);
        uint64_t at = q->cancelled || !q->started ? 0 : q->stall ? UINT64_MAX : q->due_ns;
        due = at < due ? at : due;
    }
    LIST_FOR_EACH(node, &e->waiting) {
        due = LIST_ENTRY(node, struct sequence, node)->cancelled ? 0 : due;
    }
    return due;
}

static void admit(struct engine *e) {
    LIST_FOR_EACH_SAFE(node, next, &e->waiting) {
        struct sequence *q = LIST_ENTRY(node, struct sequence, node);
        if (q->cancelled) {
            finish(e, q, FINISH_CANCELLED);
        } else if (e->stats.running < e->config.max_sequences) {
            list_remove(&q->node);
            list_push_back(&e->running, &q->node);
            q->running = true;
            e->stats.waiting--;
            e->stats.running++;
            e->stats.kv_blocks_used += (q->n_prompt + q->max_tokens + BLOCK - 1) / BLOCK;
        }
    }
}

static void *engine_main(void *arg) {
    struct engine *e = arg;
    pthread_mutex_lock(&e->lock);
    while (!e->stop) {
        uint64_t due = next_due(e), now = clock_now_ns();
        if (due == UINT64_MAX) {
            pthread_cond_wait(&e->work, &e->lock);
        } else if (due > now) {
            struct timespec until = {.tv_sec = (time_t)(due / 1000000000u), .tv_nsec = (long)(due % 1000000000u)};
            pthread_cond_timedwait(&e->work, &e->lock, &until);
        }
        admit(e);
        LIST_FOR_EACH_SAFE(node, next, &e->running) {
            advance(e, LIST_ENTRY(node, struct sequence, node), clock_now_ns());
        }
        e->stats.steps++;
        e->stats.last_step_ns = clock_now_ns();
        e->stats.idle = list_empty(&e->running) && list_empty(&e->waiting);
        pthread_mutex_unlock(&e->lock); /* let others in between two steps */
        pthread_mutex_lock(&e->lock);
    }
    LIST_FOR_EACH_SAFE(node, next, &e->running) {
        finish(e, LIST_ENTRY(node, struct sequence, node), FINISH_CANCELLED);
    }
    LIST_FOR_EACH_SAFE(node, next, &e->waiting) {
        finish(e, LIST_ENTRY(node, struct sequence, node), FINISH_CANCELLED);
    }
    pthread_mutex_unlock(&e->lock);
    return NULL;
}

int engine_open(const struct engine_config *config, struct engine **out, struct error *err) {
    const char *load_ms = getenv("FAKE_LOAD_MS"), *fail = getenv("FAKE_LOAD_FAILS");
    if (load_ms) {
        nanosleep(&(struct timespec){.tv_sec = atol(load_ms) / 1000, .tv_nsec = atol(load_ms) % 1000 * 1000000}, NULL);
    }
    if (fail) {
        return error_set(err, ERROR_MODEL, "the fake engine was told not to load");
    }
    struct engine *e = calloc(1, sizeof *e);
    e->config = *config;
    e->config.max_model_len = config->max_model_len ? config->max_model_len : 4096;
    list_init(&e->waiting);
    list_init(&e->running);
    list_init(&e->events);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->work, &monotonic);
    pthread_cond_init(&e->ready, &monotonic);
    pthread_condattr_destroy(&monotonic);
    e->stats.kv_blocks = 4096;
    pthread_create(&e->thread, NULL, engine_main, e);
    *out = e;
    return 0;
}

void engine_close(struct engine *e) {
    if (!e) {
        return;
    }
    pthread_mutex_lock(&e->lock);
    e->stop = true;
    e->notify = NULL;
    pthread_cond_broadcast(&e->work);
    pthread_mutex_unlock(&e->lock);
    pthread_join(e->thread, NULL);
    struct engine_event drop;
    while (engine_poll(e, &drop)) {
    }
    pthread_cond_destroy(&e->work);
    pthread_cond_destroy(&e->ready);
    pthread_mutex_destroy(&e->lock);
    free(e);
}

const struct text *engine_text(const struct engine *e) {
    struct text *t = NULL;
    struct error err;
    (void)e;
    text_open("", &t, &err);
    return t;
}

void engine_get_info(const struct engine *e, struct engine_info *out) {
    *out = (struct engine_info){
        .architecture = "fake",
        .model_name = "fake",
        .backend = "none",
        .device = "nothing",
        .device_why = "",
        .variant = "none",
        .threads = 1,
        .weights = "none",
        .vocab_size = FAKE_VOCAB,
        .max_model_len = e->config.max_model_len,
        .kv_blocks = 4096,
        .kv_block_size = BLOCK,
    };
}

static long number_after(const char *prompt, const char *word, long otherwise) {
    const char *p = strstr(prompt, word);
    return p ? atol(p + strlen(word)) : otherwise;
}

static void read_prompt(struct sequence *q, const char *prompt) {
    const char *say = strstr(prompt, "@say "), *answer = say ? say + 5 : FAKE_DEFAULT_ANSWER;
    const char *end = say ? strstr(answer, "@end") : NULL;
    const char *template = say ? strstr(answer, "\nassistant:") : NULL;
    size_t n = end ? (size_t)(end - answer) : template ? (size_t)(template - answer) : strlen(answer);
    q->answer = strndup(answer, n ? n : 1);
    q->n_answer = n ? n : 1;
    q->loop = strstr(prompt, "@loop") != NULL;
    q->stall = strstr(prompt, "@stall") != NULL;
    const char *token_ms = getenv("FAKE_TOKEN_MS");
    q->delay_ms = number_after(prompt, "@delay=", token_ms ? atol(token_ms) : 0);
    q->prefill_ms = number_after(prompt, "@prefill=", 0);
    q->error_at = number_after(prompt, "@error=", -1);
    q->repetition_at = number_after(prompt, "@repetition=", -1);
}

/* Where the first stop string comes in an answer that is not repeated. */
static void find_stop(struct sequence *q, const struct engine_request *r) {
    q->stop_index = -1;
    for (size_t i = 0; i < r->n_stop; i++) {
        const char *at = memmem(q->answer, q->n_answer, r->stop[i].bytes, r->stop[i].len);
        q->hold = r->stop[i].len - 1 > q->hold ? r->stop[i].len - 1 : q->hold;
        if (at && (q->stop_index < 0 || (size_t)(at - q->answer) < q->cut)) {
            q->stop_index = (int)i;
            q->cut = (size_t)(at - q->answer);
        }
    }
}

static int check(const struct engine *e, const struct engine_request *r, struct error *err) {
    size_t want = r->max_tokens ? r->max_tokens : 1;
    if (r->n_prompt + want > e->config.max_model_len) {
        return error_set(err, ERROR_CONTEXT_LENGTH,
                         "the context holds %zu tokens; the prompt has %zu and %zu are asked for",
                         e->config.max_model_len, r->n_prompt, want);
    }
    if (e->draining) {
        return error_set(err, ERROR_UNAVAILABLE, "draining");
    }
    if (e->stats.waiting >= e->config.max_waiting + (e->config.max_sequences - e->stats.running)) {
        return error_set(err, ERROR_QUEUE_FULL, "the queue is full");
    }
    return 0;
}

int engine_submit(struct engine *e, const struct engine_request *r, struct error *err) {
    char *prompt = calloc(1, r->n_prompt + 1);
    struct sequence *q = calloc(1, sizeof *q);
    size_t n = 0;
    for (size_t i = 0; i < r->n_prompt; i++) {
        if (r->prompt[i] < 256 && r->prompt[i] > 0) {
            prompt[n++] = (char)r->prompt[i];
        }
    }
    q->id = r->id;
    q->n_prompt = r->n_prompt;
    q->choice = r->sampling.choice;
    q->n_logprobs = r->sampling.n_logprobs;
    read_prompt(q, prompt);
    q->loop = q->loop || r->ignore_eos;
    find_stop(q, r);
    free(prompt);
    pthread_mutex_lock(&e->lock);
    int rc = check(e, r, err);
    if (rc == 0) {
        q->max_tokens = r->max_tokens ? r->max_tokens : e->config.max_model_len - r->n_prompt;
        list_push_back(&e->waiting, &q->node);
        e->stats.waiting++;
        e->stats.idle = false;
        pthread_cond_broadcast(&e->work);
    } else {
        free(q->answer);
        free(q);
    }
    pthread_mutex_unlock(&e->lock);
    return rc;
}

void engine_cancel(struct engine *e, uint64_t id) {
    pthread_mutex_lock(&e->lock);
    struct list *lists[] = {&e->waiting, &e->running};
    for (size_t i = 0; i < 2; i++) {
        LIST_FOR_EACH(node, lists[i]) {
            struct sequence *q = LIST_ENTRY(node, struct sequence, node);
            q->cancelled = q->cancelled || q->id == id;
        }
    }
    pthread_cond_broadcast(&e->work);
    pthread_mutex_unlock(&e->lock);
}

void engine_set_notify(struct engine *e, void (*notify)(void *arg), void *arg) {
    pthread_mutex_lock(&e->lock);
    e->notify = notify;
    e->notify_arg = arg;
    pthread_mutex_unlock(&e->lock);
}

static bool pop(struct engine *e, struct engine_event *out) {
    if (list_empty(&e->events)) {
        return false;
    }
    struct queued *q = LIST_ENTRY(e->events.next, struct queued, node);
    *out = q->event;
    list_remove(&q->node);
    free(q);
    return true;
}

bool engine_poll(struct engine *e, struct engine_event *out) {
    pthread_mutex_lock(&e->lock);
    bool found = pop(e, out);
    pthread_mutex_unlock(&e->lock);
    return found;
}

size_t engine_pending(const struct engine *e) {
    (void)e;
    return 0;
}

size_t engine_peek(const struct engine *e, uint64_t *ids, size_t n) {
    (void)e, (void)ids, (void)n;
    return 0;
}

bool engine_wait(struct engine *e, struct engine_event *out, int timeout_ms) {
    uint64_t until_ns = clock_now_ns() + (uint64_t)timeout_ms * 1000000u;
    struct timespec until = {.tv_sec = (time_t)(until_ns / 1000000000u), .tv_nsec = (long)(until_ns % 1000000000u)};
    pthread_mutex_lock(&e->lock);
    bool found = pop(e, out);
    while (!found && pthread_cond_timedwait(&e->ready, &e->lock, &until) == 0) {
        found = pop(e, out);
    }
    pthread_mutex_unlock(&e->lock);
    return found;
}

void engine_drain(struct engine *e) {
    pthread_mutex_lock(&e->lock);
    e->draining = true;
    pthread_mutex_unlock(&e->lock);
}

const struct error *engine_lost(const struct engine *e) {
    (void)e;
    return NULL;
}

void engine_get_stats(const struct engine *e, struct engine_stats *out) {
    struct engine *shared = (struct engine *)(uintptr_t)e;
    pthread_mutex_lock(&shared->lock);
    *out = e->stats;
    pthread_mutex_unlock(&shared->lock);
}

int engine_inspect(const char *path, bool json, struct buf *out, struct error *err) {
    (void)path;
    (void)json;
    (void)out;
    return error_set(err, ERROR_UNSUPPORTED, "there is nothing to inspect in a fake engine");
}

int engine_node(size_t pipeline_parallel, size_t *node, struct error *err) {
    (void)pipeline_parallel, (void)err;
    *node = 0;
    return 0;
}

int engine_follow(const struct engine_config *config, void (*started)(void *arg), void *arg, struct error *err) {
    (void)config, (void)started, (void)arg;
    return error_set(err, ERROR_UNSUPPORTED, "the fake engine leads nobody");
}
