/*
 * Events from the engine thread to its one consumer: packed one behind another into three buffers of fixed size that
 * change places. The producer fills the first and the consumer empties the last, both without a lock; the middle one is
 * what they exchange, under a short lock, once a step and once a batch. So a lock and a wake-up are paid for a step,
 * not for an event, and an event takes the bytes it has, not the most it could.
 *
 * A producer that finds no room waits for the consumer (the engine stands still rather than lose or invent an event),
 * until the ring is closed.
 */
#ifndef INFERD_EVENT_RING_H
#define INFERD_EVENT_RING_H

#include <inferd/engine.h>
#include <pthread.h>

struct event_buffer {
    char *bytes; /* [capacity] */
    size_t len, at;
    size_t n; /* events from `at` on */
};

struct event_ring {
    size_t capacity;
    struct event_buffer filling;  /* the producer's */
    struct event_buffer emptying; /* the consumer's */

    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t published, taken;
    struct event_buffer between; /* published, and not taken yet; at = 0 */
    bool producer_waits, consumer_waits;
    bool closed;
    bool news; /* published since the last call of notify */
    void (*notify)(void *arg);
    void *notify_arg;
};

/* capacity: bytes of each buffer, at least EVENT_RING_MIN. */
#define EVENT_RING_MIN (sizeof(struct engine_event) + 16)
int event_ring_init(struct event_ring *r, size_t capacity, struct error *err);
void event_ring_destroy(struct event_ring *r);

/* Engine thread: append; nobody sees it before event_ring_notify, unless the buffer is full. Waits for room; after
 * event_ring_close the event is dropped instead. */
void event_ring_push(struct event_ring *r, const struct engine_event *event);
/* Engine thread, once a step: publish what was pushed, and wake the consumer. */
void event_ring_notify(struct event_ring *r);
/* Notify where there may be no event: something else is to be looked at. */
void event_ring_alert(struct event_ring *r);

/* Consumer. timeout_ms 0 = do not wait, < 0 = for ever; false when nothing came, or the ring is closed and empty. */
bool event_ring_pop(struct event_ring *r, struct engine_event *out, int timeout_ms);
/* Consumer: events left of the batch that event_ring_pop takes from. */
size_t event_ring_batch_left(const struct event_ring *r);
/* Consumer: the ids of the first n of these, or of as many as there are; returns how many. */
size_t event_ring_peek(const struct event_ring *r, uint64_t *ids, size_t n);
void event_ring_set_notify(struct event_ring *r, void (*notify)(void *arg), void *arg);
void event_ring_close(struct event_ring *r); /* nobody waits any more, on either side */

#endif
