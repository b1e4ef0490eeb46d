#include "event_ring.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

int event_ring_init(struct event_ring *r, size_t capacity, struct error *err) {
    *r = (struct event_ring){.capacity = capacity};
    assert(capacity >= EVENT_RING_MIN);
    r->filling.bytes = malloc(capacity);
    r->emptying.bytes = malloc(capacity);
    r->between.bytes = malloc(capacity);
    if (!r->filling.bytes || !r->emptying.bytes || !r->between.bytes) {
        free(r->filling.bytes);
        free(r->emptying.bytes);
        free(r->between.bytes);
        *r = (struct event_ring){0};
        return error_memory(err);
    }
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&r->published, &attr);
    pthread_condattr_destroy(&attr);
    pthread_cond_init(&r->taken, NULL);
    pthread_mutex_init(&r->lock, NULL);
    return 0;
}

void event_ring_destroy(struct event_ring *r) {
    if (!r->capacity) {
        return; /* never initialised */
    }
    pthread_cond_destroy(&r->published);
    pthread_cond_destroy(&r->taken);
    pthread_mutex_destroy(&r->lock);
    free(r->filling.bytes);
    free(r->emptying.bytes);
    free(r->between.bytes);
    *r = (struct event_ring){0};
}

/* ---- an event as bytes --------------------------------------------------------------------------------------- */

/*
 * What is set of an event, in this order: all up to `top`; n_top of those; text_len of the text; all between text and
 * error; the error, of an ERROR. Records begin at multiples of 8 from the start of a buffer.
 */
enum {
    HEAD = offsetof(struct engine_event, top),
    TAIL_AT = offsetof(struct engine_event, text) + ENGINE_EVENT_TEXT,
    ERROR_AT = offsetof(struct engine_event, error),
    TAIL = ERROR_AT - TAIL_AT,
};

static size_t record_size(const struct engine_event *e) {
    size_t n = HEAD + e->n_top * sizeof e->top[0] + e->text_len + TAIL;
    n += e->kind == ENGINE_EVENT_ERROR ? sizeof e->error : 0;
    return (n + 7) / 8 * 8;
}

static char *put(char *to, const void *from, size_t n) {
    memcpy(to, from, n);
    return to + n;
}

static void pack(char *to, const struct engine_event *e) {
    to = put(to, e, HEAD);
    to = put(to, e->top, e->n_top * sizeof e->top[0]);
    to = put(to, e->text, e->text_len);
    to = put(to, (const char *)e + TAIL_AT, TAIL);
    if (e->kind == ENGINE_EVENT_ERROR) {
        put(to, &e->error, sizeof e->error);
    }
}

static const char *get(void *to, const char *from, size_t n) {
    memcpy(to, from, n);
    return from + n;
}

static void unpack(struct engine_event *e, const char *from) {
    from = get(e, from, HEAD);
    from = get(e->top, from, e->n_top * sizeof e->top[0]);
    from = get(e->text, from, e->text_len);
    from = get((char *)e + TAIL_AT, from, TAIL);
    if (e->kind == ENGINE_EVENT_ERROR) {
        get(&e->error, from, sizeof e->error);
    } else {
        e->error.code = ERROR_NONE;
        e->error.param[0] = e->error.message[0] = '\0';
    }
}

/* ---- producer ------------------------------------------------------------------------------------------------ */

static void swap(struct event_buffer *a, struct event_buffer *b) {
    struct event_buffer was = *a;
    *a = *b;
    *b = was;
}

/* With the lock held: the consumer may be asleep. Called outside the lock, the callback could run after close. */
static void notify_locked(struct event_ring *r) {
    if (r->news && r->notify && !r->closed) {
        r->notify(r->notify_arg);
    }
    r->news = false;
}

/* With the lock held: from `filling` to `between`. */
static void publish_locked(struct event_ring *r) {
    struct event_buffer *from = &r->filling, *to = &r->between;
    while (to->len > 0 && from->len > r->capacity - to->len && !r->closed) {
        notify_locked(r);
        r->producer_waits = true;
        pthread_cond_wait(&r->taken, &r->lock);
        r->producer_waits = false;
    }
    if (from->len > 0 && !r->closed) {
        if (to->len == 0) {
            swap(from, to);
        } else {
            memcpy(to->bytes + to->len, from->bytes, from->len);
            to->len += from->len;
            to->n += from->n;
        }
        r->news = true;
        if (r->consumer_waits) {
            pthread_cond_signal(&r->published);
        }
    }
    from->len = from->n = 0;
}

void event_ring_push(struct event_ring *r, const struct engine_event *event) {
    size_t n = record_size(event);
    if (n > r->capacity - r->filling.len) {
        pthread_mutex_lock(&r->lock);
        publish_locked(r);
        pthread_mutex_unlock(&r->lock);
    }
    pack(r->filling.bytes + r->filling.len, event);
    r->filling.len += n;
    r->filling.n++;
}

void event_ring_notify(struct event_ring *r) {
    pthread_mutex_lock(&r->lock);
    publish_locked(r);
    notify_locked(r);
    pthread_mutex_unlock(&r->lock);
}

void event_ring_alert(struct event_ring *r) {
    pthread_mutex_lock(&r->lock);
    r->news = true;
    notify_locked(r);
    pthread_mutex_unlock(&r->lock);
}

/* ---- consumer ------------------------------------------------------------------------------------------------ */

static void wait_locked(struct event_ring *r, int timeout_ms) {
    struct timespec until;
    if (timeout_ms > 0) {
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_sec += timeout_ms / 1000;
        until.tv_nsec += (long)(timeout_ms % 1000) * 1000000;
        if (until.tv_nsec >= 1000000000) {
            until.tv_nsec -= 1000000000;
            until.tv_sec++;
        }
    }
    int rc = 0;
    r->consumer_waits = true;
    while (r->between.len == 0 && !r->closed && timeout_ms != 0 && rc == 0) {
        rc = timeout_ms < 0 ? pthread_cond_wait(&r->published, &r->lock)
                            : pthread_cond_timedwait(&r->published, &r->lock, &until);
    }
    r->consumer_waits = false;
}

static bool take_batch(struct event_ring *r, int timeout_ms) {
    r->emptying.len = r->emptying.at = r->emptying.n = 0;
    pthread_mutex_lock(&r->lock);
    wait_locked(r, timeout_ms);
    if (r->between.len > 0) {
        swap(&r->between, &r->emptying);
        if (r->producer_waits) {
            pthread_cond_signal(&r->taken);
        }
    }
    pthread_mutex_unlock(&r->lock);
    return r->emptying.len > 0;
}

bool event_ring_pop(struct event_ring *r, struct engine_event *out, int timeout_ms) {
    struct event_buffer *b = &r->emptying;
    if (b->at == b->len && !take_batch(r, timeout_ms)) {
        return false;
    }
    unpack(out, b->bytes + b->at);
    b->at += record_size(out);
    b->n--;
    return true;
}

size_t event_ring_batch_left(const struct event_ring *r) {
    return r->emptying.n;
}

size_t event_ring_peek(const struct event_ring *r, uint64_t *ids, size_t n) {
    const struct event_buffer *b = &r->emptying;
    size_t i = 0;
    for (size_t at = b->at; at < b->len && i < n; i++) {
        struct engine_event e;
        memcpy(&e, b->bytes + at, HEAD);
        ids[i] = e.id;
        at += record_size(&e);
    }
    return i;
}

void event_ring_set_notify(struct event_ring *r, void (*notify)(void *arg), void *arg) {
    pthread_mutex_lock(&r->lock);
    r->notify = notify;
    r->notify_arg = arg;
    r->news = r->between.len > 0;
    pthread_mutex_unlock(&r->lock);
}

void event_ring_close(struct event_ring *r) {
    pthread_mutex_lock(&r->lock);
    r->closed = true;
    pthread_cond_broadcast(&r->published);
    pthread_cond_broadcast(&r->taken);
    pthread_mutex_unlock(&r->lock);
}
