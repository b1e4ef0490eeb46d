/*
 * Requests and cancels on their way to the engine thread: a short lock over an inbox and a table of live ids.
 *
 * A sequence is live from mailbox_submit until the engine thread calls mailbox_forget: so long can it be
 * cancelled, its id cannot be used again, and it counts against the bound of live requests. Its prompt's tokens are
 * waiting ones until mailbox_started or mailbox_forget.
 */
#ifndef INFERD_MAILBOX_H
#define INFERD_MAILBOX_H

#include "sequence.h"

#include <pthread.h>
#include <stdatomic.h>

struct mailbox {
    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t news;
    struct list inbox;      /* submitted, not yet collected */
    struct sequence **live; /* [n_buckets] chains by id */
    size_t n_buckets;       /* a power of two */
    size_t max_live, max_waiting_tokens;
    atomic_size_t n_live, waiting_tokens; /* written under the lock, read by any thread */
    uint64_t arrivals, last_arrival_ns;
    struct list cancelled; /* live sequences that were marked since the last collect, by cancel_node */
    bool draining, closing;
};

/* max_waiting_tokens 0 = no bound. */
int mailbox_init(struct mailbox *m, size_t max_live, size_t max_waiting_tokens, struct error *err);
void mailbox_destroy(struct mailbox *m);

/*
 * Any thread. Would a request with n_prompt tokens be taken now? ERROR_UNAVAILABLE, or ERROR_QUEUE_FULL with the limit that
 * was reached. One request may always wait, however long it is: refusing it for ever would not be a matter of load.
 */
int mailbox_check(struct mailbox *m, size_t n_prompt, struct error *err);
/* Any thread. The same, and an id that is in use is refused. On success the sequence is the engine thread's. */
int mailbox_submit(struct mailbox *m, struct sequence *s, struct error *err);
void mailbox_cancel(struct mailbox *m, uint64_t id);
void mailbox_drain(struct mailbox *m);
void mailbox_close(struct mailbox *m);
size_t mailbox_n_live(const struct mailbox *m);
size_t mailbox_waiting_tokens(const struct mailbox *m);

/*
 * Engine thread: move the inbox to the end of *arrived (by node), and those that are to be cancelled to *cancelled (by
 * cancel_node; they arrived before or now). With `wait`, sleep until there is news, or wait_ns have passed (0: until there
 * is). False when the engine is to end.
 */
bool mailbox_collect(struct mailbox *m, bool wait, uint64_t wait_ns, struct list *arrived, struct list *cancelled);
struct sequence *mailbox_find(struct mailbox *m, uint64_t id); /* engine thread: a live one that it has, or will get */
void mailbox_started(struct mailbox *m, const struct sequence *s); /* engine thread, once, before s->started is set */
void mailbox_forget(struct mailbox *m, struct sequence *s);

#endif
