#include "mailbox.h"

#include <inferd/clock.h>

#include <stdlib.h>

#define MAX_BUCKETS 16384 /* chains grow beyond: a bound that is only there to be never reached costs no memory */

int mailbox_init(struct mailbox *m, size_t max_live, size_t max_waiting_tokens, struct error *err) {
    size_t n_buckets = 64;
    while (n_buckets < max_live && n_buckets < MAX_BUCKETS) {
        n_buckets *= 2;
    }
    *m = (struct mailbox){
        .max_live = max_live,
        .max_waiting_tokens = max_waiting_tokens,
        .n_buckets = n_buckets, 
        .live = calloc(n_buckets, sizeof(struct sequence *))};
    if (!m->live) {
        return error_memory(err);
    }
    list_init(&m->inbox);
    list_init(&m->cancelled);
    pthread_mutex_init(&m->lock, NULL);
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&m->news, &attributes);
    pthread_condattr_destroy(&attributes);
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

static int check(const struct mailbox *m, size_t n_prompt, struct error *err) {
    if (m->draining || m->closing) {
        return error_set(err, ERROR_UNAVAILABLE, "the server is shutting down");
    }
    if (m->n_live >= m->max_live) {
        return error_set(err, ERROR_QUEUE_FULL, "too many requests are waiting; the limit is %zu requests", m->max_live);
    }
    size_t tokens = m->waiting_tokens;
    if (m->max_waiting_tokens > 0 && tokens > 0 && n_prompt > m->max_waiting_tokens - (tokens < m->max_waiting_tokens ? tokens : m->max_waiting_tokens)) {
        return error_set(err, ERROR_QUEUE_FULL,
                         "too many prompt tokens are waiting: %zu, and %zu more would pass the limit of %zu tokens", tokens,
                         n_prompt, m->max_waiting_tokens);
    }
    return 0;
}

int mailbox_check(struct mailbox *m, size_t n_prompt, struct error *err) {
    pthread_mutex_lock(&m->lock);
    int rc = check(m, n_prompt, err);
    pthread_mutex_unlock(&m->lock);
    return rc;
}

int mailbox_submit(struct mailbox *m, struct sequence *s, struct error *err) {
    pthread_mutex_lock(&m->lock);
    int rc = check(m, s->n_prompt, err);
    struct sequence **link = find(m, s->id);
    if (rc == 0 && *link) {
        rc = error_set_param(err, ERROR_INVALID, "id", "a request with this id is being served already");
    }
    if (rc == 0) {
        uint64_t now = clock_now_ns();
        m->last_arrival_ns = now > m->last_arrival_ns ? now : m->last_arrival_ns;
        s->arrival_ns = m->last_arrival_ns;
        s->arrival = m->arrivals++;
        s->next_live = NULL;
        *link = s;
        m->n_live++;
        m->waiting_tokens += s->n_prompt;
        list_push_back(&m->inbox, &s->node);
        pthread_cond_signal(&m->news);
    }
    pthread_mutex_unlock(&m->lock);
    return rc;
}

void mailbox_cancel(struct mailbox *m, uint64_t id) {
    pthread_mutex_lock(&m->lock);
    struct sequence *s = *find(m, id);
    if (s && !s->cancelled) {
        s->cancelled = true;
        list_push_back(&m->cancelled, &s->cancel_node);
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

size_t mailbox_waiting_tokens(const struct mailbox *m) {
    return atomic_load_explicit(&m->waiting_tokens, memory_order_relaxed);
}

static void move(struct list *from, struct list *to) {
    LIST_FOR_EACH_SAFE(pos, next, from) {
        list_remove(pos);
        list_push_back(to, pos);
    }
}

bool mailbox_collect(struct mailbox *m, bool wait, uint64_t wait_ns, struct list *arrived, struct list *cancelled) {
    uint64_t until = clock_now_ns() + wait_ns;
    const struct timespec when = {(time_t)(until / 1000000000), (long)(until % 1000000000)};
    pthread_mutex_lock(&m->lock);
    for (int rc = 0; wait && rc == 0 && list_empty(&m->inbox) && list_empty(&m->cancelled) && !m->closing;) {
        rc = wait_ns ? pthread_cond_timedwait(&m->news, &m->lock, &when) : pthread_cond_wait(&m->news, &m->lock);
    }
    move(&m->inbox, arrived);
    move(&m->cancelled, cancelled);
    bool goes_on = !m->closing;
    pthread_mutex_unlock(&m->lock);
    return goes_on;
}

struct sequence *mailbox_find(struct mailbox *m, uint64_t id) {
    pthread_mutex_lock(&m->lock);
    struct sequence *s = *find(m, id);
    pthread_mutex_unlock(&m->lock);
    return s;
}

void mailbox_started(struct mailbox *m, const struct sequence *s) {
    pthread_mutex_lock(&m->lock);
    m->waiting_tokens -= s->n_prompt;
    pthread_mutex_unlock(&m->lock);
}

void mailbox_forget(struct mailbox *m, struct sequence *s) {
    pthread_mutex_lock(&m->lock);
    struct sequence **link = find(m, s->id);
    *link = s->next_live;
    list_remove(&s->cancel_node); /* cancelled since the last collect, or not at all */
    m->n_live--;
    m->waiting_tokens -= s->started ? 0 : s->n_prompt;
    pthread_mutex_unlock(&m->lock);
}
