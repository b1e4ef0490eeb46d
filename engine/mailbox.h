/*
 * Requests and cancels on their way to the engine thread: a short lock over an inbox and a table of live ids.
 *
 * A sequence is live from mailbox_submit until the engine thread calls mailbox_forget: so long can it be
 * cancelled, its id cannot be used again, and it counts against the bound of live requests.
 */
#ifndef INFERD_MAILBOX_H
#define INFERD_MAILBOX_H

#include "sequence.h"

#include <pthread.h>

struct mailbox {
    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t news;
    struct list inbox;      /* submitted, not yet collected */
    struct sequence **live; /* [n_buckets] chains by id */
    size_t n_buckets;       /* a power of two */
    size_t max_live;
    atomic_size_t n_live; /* written under the lock, read by any thread */
    uint64_t arrivals;
    bool cancel_pending; /* some live sequence was marked since the last collect */
    bool draining, closing;
};

enum mailbox_news { MAILBOX_CANCELS = 1, MAILBOX_CLOSING = 2 };

int mailbox_init(struct mailbox *m, size_t max_live, struct error *err);
void mailbox_destroy(struct mailbox *m);

/* Any thread. On success the sequence is the engine thread's. */
int mailbox_submit(struct mailbox *m, struct sequence *s, struct error *err);
void mailbox_cancel(struct mailbox *m, uint64_t id);
void mailbox_drain(struct mailbox *m);
void mailbox_close(struct mailbox *m);
size_t mailbox_n_live(const struct mailbox *m);

/*
 * Engine thread: move the inbox to the end of *to. With `wait`, sleep until there is news. Returns
 * a set of mailbox_news.
 */
unsigned mailbox_collect(struct mailbox *m, bool wait, struct list *to);
void mailbox_forget(struct mailbox *m, struct sequence *s);

#endif
