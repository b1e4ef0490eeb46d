#include "mailbox.h"

#include <stdlib.h>

int mailbox_init(struct mailbox *m, size_t max_live, struct error *err) {
    size_t n_buckets = 64;
    while (n_buckets < max_live) {
        n_buckets *= 2;
    }
    *m = (struct mailbox){
        .max_live = max_live, .n_buckets = n_buckets, .live = calloc(n_buckets, sizeof(struct sequence *))};
    if (!m->live) {
        return error_memory(err);
    }
    list_init(&m->inbox);
    pthread_mutex_init(&m->lock, NULL);
    pthread_cond_init(&m->news, NULL);
    return 0;
}

void mailbox_destroy(struct mailbox *m) {
    if (!m->live) {
        return; /* never initialised */
    }
    pthread_mutex_destroy(&m->lock);
    pthread_cond_destroy(&m->news);
    free(m->live);
    m->live = NULL;
}

/* The link that holds, or would hold, the sequence with this id. Ids are the caller's, often 1, 2, 3: low bits do. */
static struct sequence **find(struct mailbox *m, uint64_t id) {
    struct sequence **link = &m->live[(id ^ id >> 32) & (m->n_buckets - 1)];
    while (*link && (*link)->id != id) {
        link = &(*link)->next_live;
    }
    return link;
}

int mailbox_submit(struct mailbox *m, struct sequence *s, struct error *err) {
    pthread_mutex_lock(&m->lock);
    struct sequence **link = find(m, s->id);
    int rc = 0;
    if (m->draining || m->closing) {
        rc = error_set(err, ERROR_UNAVAILABLE, "the server is shutting down");
    } else if (*link) {
        rc = error_set_param(err, ERROR_INVALID, "id", "a request with this id is being served already");
    } else if (m->n_live >= m->max_live) {
        rc = error_set(err, ERROR_QUEUE_FULL, "too many requests are waiting; the limit is %zu requests", m->max_live);
    } else {
        s->arrival = m->arrivals++;
        s->next_live = NULL;
        *link = s;
        m->n_live++;
        list_push_back(&m->inbox, &s->node);
        pthread_cond_signal(&m->news);
    }
    pthread_mutex_unlock(&m->lock);
    return rc;
}

void mailbox_cancel(struct mailbox *m, uint64_t id) {
    pthread_mutex_lock(&m->lock);
    struct sequence *s = *find(m, id);
    if (s) {
        atomic_store_explicit(&s->cancelled, true, memory_order_relaxed);
        m->cancel_pending = true;
        pthread_cond_signal(&m->news);
    }
    pthread_mutex_unlock(&m->lock);
}

void mailbox_drain(struct mailbox *m) {
    pthread_mutex_lock(&m->lock);
    m->draining = true;
    pthread_mutex_unlock(&m->lock);
}

void mailbox_close(struct mailbox *m) {
    pthread_mutex_lock(&m->lock);
    m->closing = true;
    pthread_cond_signal(&m->news);
    pthread_mutex_unlock(&m->lock);
}

size_t mailbox_n_live(const struct mailbox *m) {
    return atomic_load_explicit(&m->n_live, memory_order_relaxed);
}

unsigned mailbox_collect(struct mailbox *m, bool wait, struct list *to) {
    pthread_mutex_lock(&m->lock);
    while (wait && list_empty(&m->inbox) && !m->cancel_pending && !m->closing) {
        pthread_cond_wait(&m->news, &m->lock);
    }
    LIST_FOR_EACH_SAFE(pos, next, &m->inbox) {
        list_remove(pos);
        list_push_back(to, pos);
    }
    unsigned news = (m->cancel_pending ? MAILBOX_CANCELS : 0u) | (m->closing ? MAILBOX_CLOSING : 0u);
    m->cancel_pending = false;
    pthread_mutex_unlock(&m->lock);
    return news;
}

void mailbox_forget(struct mailbox *m, struct sequence *s) {
    pthread_mutex_lock(&m->lock);
    struct sequence **link = find(m, s->id);
    *link = s->next_live;
    m->n_live--;
    pthread_mutex_unlock(&m->lock);
}
