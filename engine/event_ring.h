/*
 * Events from the engine thread to its one consumer: a ring of fixed size under a short lock. A producer that finds
 * it full waits for the consumer (the engine stands still rather than lose or invent an event), until the ring is
 * closed.
 */
#ifndef INFERD_EVENT_RING_H
#define INFERD_EVENT_RING_H

#include <inferd/engine.h>
#include <pthread.h>

struct event_ring {
    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t not_empty, not_full;
    struct engine_event *events; /* [capacity] */
    size_t capacity, first, n;
    bool closed;
    bool pushed; /* since the last event_ring_notify */
    void (*notify)(void *arg);
    void *notify_arg;
};

int event_ring_init(struct event_ring *r, size_t capacity, struct error *err);
void event_ring_destroy(struct event_ring *r);

/* Engine thread: append, waiting for room; after event_ring_close the event is dropped instead. */
void event_ring_push(struct event_ring *r, const struct engine_event *event);
/* Engine thread, once a step: wake the consumer if anything was pushed since the last time. */
void event_ring_notify(struct event_ring *r);

/* Consumer. timeout_ms 0 = do not wait, < 0 = for ever; false when nothing came, or the ring is closed and empty. */
bool event_ring_pop(struct event_ring *r, struct engine_event *out, int timeout_ms);
void event_ring_set_notify(struct event_ring *r, void (*notify)(void *arg), void *arg);
void event_ring_close(struct event_ring *r); /* nobody waits any more, on either side */

#endif
