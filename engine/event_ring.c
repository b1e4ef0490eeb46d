#include "event_ring.h"

#include <inferd/clock.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

int event_ring_init(struct event_ring *r, size_t capacity, struct error *err) {
    *r = (struct event_ring){.capacity = capacity, .events = calloc(capacity, sizeof *r->events)};
    if (!r->events) {
        return error_memory(err);
    }
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&r->not_empty, &attr);
    pthread_condattr_destroy(&attr);
    pthread_cond_init(&r->not_full, NULL);
    pthread_mutex_init(&r->lock, NULL);
    return 0;
}

void event_ring_destroy(struct event_ring *r) {
    if (!r->events) {
        return; /* never initialised */
    }
    pthread_cond_destroy(&r->not_empty);
    pthread_cond_destroy(&r->not_full);
    pthread_mutex_destroy(&r->lock);
    free(r->events);
    r->events = NULL;
}

/* Copies what is set: the text of an event is far shorter than its room. */
static void copy_event(struct engine_event *to, const struct engine_event *from) {
    size_t head = offsetof(struct engine_event, text), tail = offsetof(struct engine_event, finish);
    memcpy(to, from, head);
    memcpy(to->text, from->text, from->text_len);
    memcpy((char *)to + tail, (const char *)from + tail, sizeof *to - tail);
}

/* With the lock held: the consumer may be asleep. Called outside the lock, the callback could run after close. */
static void notify_locked(struct event_ring *r) {
    if (r->pushed && r->notify && !r->closed) {
        r->notify(r->notify_arg);
    }
    r->pushed = false;
}

void event_ring_push(struct event_ring *r, const struct engine_event *event) {
    pthread_mutex_lock(&r->lock);
    while (r->n == r->capacity && !r->closed) {
        notify_locked(r);
        pthread_cond_wait(&r->not_full, &r->lock);
    }
    if (!r->closed) {
        copy_event(&r->events[(r->first + r->n) % r->capacity], event);
        r->n++;
        r->pushed = true;
        pthread_cond_signal(&r->not_empty);
    }
    pthread_mutex_unlock(&r->lock);
}

void event_ring_notify(struct event_ring *r) {
    pthread_mutex_lock(&r->lock);
    notify_locked(r);
    pthread_mutex_unlock(&r->lock);
}

static bool wait_for_event(struct event_ring *r, int timeout_ms) {
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
    while (r->n == 0 && !r->closed && timeout_ms != 0 && rc == 0) {
        rc = timeout_ms < 0 ? pthread_cond_wait(&r->not_empty, &r->lock)
                            : pthread_cond_timedwait(&r->not_empty, &r->lock, &until);
    }
    return r->n > 0;
}

bool event_ring_pop(struct event_ring *r, struct engine_event *out, int timeout_ms) {
    pthread_mutex_lock(&r->lock);
    bool got = wait_for_event(r, timeout_ms);
    if (got) {
        copy_event(out, &r->events[r->first]);
        r->first = (r->first + 1) % r->capacity;
        r->n--;
        pthread_cond_signal(&r->not_full);
    }
    pthread_mutex_unlock(&r->lock);
    return got;
}

void event_ring_set_notify(struct event_ring *r, void (*notify)(void *arg), void *arg) {
    pthread_mutex_lock(&r->lock);
    r->notify = notify;
    r->notify_arg = arg;
    r->pushed = r->n > 0;
    pthread_mutex_unlock(&r->lock);
}

void event_ring_close(struct event_ring *r) {
    pthread_mutex_lock(&r->lock);
    r->closed = true;
    pthread_cond_broadcast(&r->not_empty);
    pthread_cond_broadcast(&r->not_full);
    pthread_mutex_unlock(&r->lock);
}
