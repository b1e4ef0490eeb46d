#include "wait_queue.h"

#include <stdlib.h>

static struct sequence *of_node(const struct heap_node *node) {
    return LIST_ENTRY(node, struct sequence, wait_node);
}

static bool node_before(const struct heap_node *a, const struct heap_node *b) {
    return sequence_before(of_node(a), of_node(b));
}

int wait_queue_init(struct wait_queue *q, enum scheduling scheduling, uint64_t ageing_ns, struct error *err) {
    struct tenant *tenants = calloc(WAIT_MAX_TENANTS + 1, sizeof *tenants);
    struct tenant **buckets = calloc(WAIT_MAX_TENANTS, sizeof(struct tenant *));
    if (!tenants || !buckets) {
        free(tenants);
        free(buckets);
        return error_memory(err);
    }
    *q = (struct wait_queue){.scheduling = scheduling,
                             .ageing_ns = ageing_ns,
                             .preempted.before = node_before,
                             .tenants = tenants,
                             .buckets = buckets};
    list_init(&q->backlogged);
    list_init(&q->idle);
    for (size_t i = 0; i <= WAIT_MAX_TENANTS; i++) {
        tenants[i].waiting.before = node_before;
        list_init(&tenants[i].node);
        if (i < WAIT_MAX_TENANTS) {
            list_push_back(&q->idle, &tenants[i].node);
        }
    }
    return 0;
}

void wait_queue_destroy(struct wait_queue *q) {
    if (!q) {
        return;
    }
    free(q->tenants);
    free(q->buckets);
    *q = (struct wait_queue){0};
}

/* ---- tenants ---- */

/* The link that holds, or would hold, the tenant with this id. Ids may be numbers in a row, or hashes. */
static struct tenant **find(struct wait_queue *q, uint64_t id) {
    struct tenant **link = &q->buckets[(id ^ id >> 32) % WAIT_MAX_TENANTS];
    while (*link && (*link)->id != id) {
        link = &(*link)->next;
    }
    return link;
}

static struct tenant *tenant_of(struct wait_queue *q, uint64_t id) {
    struct tenant **link = find(q, id), *t = *link;
    if (t) {
        return t;
    }
    if (list_empty(&q->idle)) {
        return &q->tenants[WAIT_MAX_TENANTS];
    }
    t = LIST_ENTRY(q->idle.next, struct tenant, node);
    if (t->known) {
        struct tenant **old = find(q, t->id);
        *old = t->next;
        if (q->last == t) {
            q->last = NULL;
            q->last_served = t->served;
        }
        link = find(q, id);
    }
    t->id = id;
    t->known = true;
    t->served = 0;
    t->next = NULL;
    *link = t;
    return t;
}

static bool is_shared_place(const struct wait_queue *q, const struct tenant *t) {
    return t == &q->tenants[WAIT_MAX_TENANTS];
}

static double rank_of(const struct wait_queue *q, const struct sequence *s) {
    if (q->scheduling == SCHEDULING_FCFS) {
        return 0;
    }
    /* In double nothing overflows, and a rounded sum is still in order; equal ranks go by arrival. */
    return q->ageing_ns == 0 ? (double)s->priority
                             : (double)s->arrival_ns + (double)s->priority * (double)q->ageing_ns;
}

void wait_queue_enter(struct wait_queue *q, struct sequence *s) {
    struct tenant *t = tenant_of(q, s->tenant_id);
    if (t->n_sequences++ == 0) {
        list_remove(&t->node); /* idle no more */
    }
    s->tenant = t;
    t->cost = s->tenant_cost ? s->tenant_cost : 1;
    s->rank = rank_of(q, s);
}

void wait_queue_leave(struct wait_queue *q, struct sequence *s) {
    struct tenant *t = s->tenant;
    s->tenant = NULL;
    if (--t->n_sequences == 0 && !is_shared_place(q, t)) {
        list_push_back(&q->idle, &t->node);
    }
}

void wait_queue_charge(struct wait_queue *q, const struct sequence *s, uint64_t cost) {
    (void)q;
    s->tenant->served += cost * s->tenant->cost;
}

/* ---- waiting ---- */

static void lift(struct wait_queue *q, struct tenant *t) {
    uint64_t lowest = UINT64_MAX;
    LIST_FOR_EACH(pos, &q->backlogged) {
        const struct tenant *other = LIST_ENTRY(pos, struct tenant, node);
        lowest = other->served < lowest ? other->served : lowest;
    }
    if (list_empty(&q->backlogged)) {
        lowest = q->last ? q->last->served : q->last_served;
    }
    t->served = t->served > lowest ? t->served : lowest;
}

void wait_queue_push(struct wait_queue *q, struct sequence *s) {
    q->n++;
    if (s->preempted) {
        heap_insert(&q->preempted, &s->wait_node);
        return;
    }
    if (!heap_first(&s->tenant->waiting)) {
        lift(q, s->tenant);
        list_push_back(&q->backlogged, &s->tenant->node);
    }
    heap_insert(&s->tenant->waiting, &s->wait_node);
}

void wait_queue_remove(struct wait_queue *q, struct sequence *s) {
    q->n--;
    if (s->preempted) {
        heap_remove(&q->preempted, &s->wait_node);
        return;
    }
    struct tenant *t = s->tenant;
    heap_remove(&t->waiting, &s->wait_node);
    if (!heap_first(&t->waiting)) {
        list_remove(&t->node);
        q->last = t;
    }
}

struct sequence *wait_queue_next(const struct wait_queue *q) {
    const struct tenant *best = NULL;
    const struct heap_node *first = NULL, *preempted = heap_first(&q->preempted);
    LIST_FOR_EACH(pos, &q->backlogged) {
        const struct tenant *t = LIST_ENTRY(pos, struct tenant, node);
        if (!best || t->served < best->served ||
            (t->served == best->served && node_before(heap_first(&t->waiting), first))) {
            best = t;
            first = heap_first(&t->waiting);
        }
    }
    if (preempted && (!first || q->scheduling == SCHEDULING_FCFS || node_before(preempted, first))) {
        first = preempted;
    }
    return first ? of_node(first) : NULL;
}
