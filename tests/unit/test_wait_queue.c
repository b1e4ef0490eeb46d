#include "wait_queue.h"

#include <criterion/criterion.h>
#include <stdlib.h>

/* ---- the heap ---- */

struct number {
    struct heap_node node;
    int value;
    bool in;
};

static bool number_before(const struct heap_node *a, const struct heap_node *b) {
    return ((const struct number *)a)->value < ((const struct number *)b)->value;
}

Test(heap, random_inserts_and_removals_beside_an_array) {
    enum { N = 300 };
    static struct number numbers[N];
    struct heap h = {.before = number_before};
    srand(5);
    for (int step = 0; step < 60000; step++) {
        struct number *x = &numbers[rand() % N];
        if (x->in) {
            heap_remove(&h, &x->node);
        } else {
            x->value = rand() % 1000 * N + (int)(x - numbers); /* no two alike */
            heap_insert(&h, &x->node);
        }
        x->in = !x->in;
        if (rand() % 4 == 0 && heap_first(&h)) { /* take the first, as the scheduler does */
            struct number *first = (struct number *)heap_first(&h);
            heap_remove(&h, &first->node);
            first->in = false;
        }
        const struct number *least = NULL;
        for (int i = 0; i < N; i++) {
            if (numbers[i].in && (!least || numbers[i].value < least->value)) {
                least = &numbers[i];
            }
        }
        cr_assert_eq((const struct number *)heap_first(&h), least, "step %d", step);
    }
}

/* ---- the queue ---- */

static struct wait_queue q;
static uint64_t arrivals;

static void open_queue(enum scheduling scheduling, double ageing_s) {
    struct error err;
    arrivals = 0;
    cr_assert_eq(wait_queue_init(&q, scheduling, (uint64_t)(ageing_s * 1e9), &err), 0);
}

static struct sequence *arrive(uint64_t tenant, int32_t priority, double at_s) {
    struct sequence *s = calloc(1, sizeof *s);
    s->tenant_id = tenant;
    s->priority = priority;
    s->arrival = arrivals++;
    s->arrival_ns = (uint64_t)(at_s * 1e9);
    wait_queue_enter(&q, s);
    wait_queue_push(&q, s);
    return s;
}

static void gone(struct sequence *s) {
    wait_queue_leave(&q, s);
    free(s);
}

/* The next one starts to run and costs its tenant so much. */
static struct sequence *serve(uint64_t cost) {
    struct sequence *s = wait_queue_next(&q);
    cr_assert_not_null(s);
    wait_queue_charge(&q, s, cost);
    wait_queue_remove(&q, s);
    return s;
}

static void expect_order(struct sequence *const *order, size_t n) {
    for (size_t i = 0; i < n; i++) {
        struct sequence *s = serve(0);
        cr_assert_eq(s, order[i], "place %zu: arrival %d", i, (int)s->arrival);
        gone(s);
    }
    cr_assert_null(wait_queue_next(&q));
    cr_assert_eq(q.n, 0);
}

Test(wait_queue, first_come_first_served_whatever_the_priority) {
    open_queue(SCHEDULING_FCFS, 1);
    struct sequence *a = arrive(0, 5, 0), *b = arrive(0, -5, 10), *c = arrive(0, 0, 20);
    expect_order((struct sequence *[]){a, b, c}, 3);
    wait_queue_destroy(&q);
}

Test(wait_queue, lower_priority_first_then_arrival) {
    open_queue(SCHEDULING_PRIORITY, 0);
    struct sequence *a = arrive(0, 1, 0), *b = arrive(0, 0, 1e9), *c = arrive(0, 1, 5), *d = arrive(0, INT32_MIN, 1e9),
                    *e = arrive(0, INT32_MAX, 0), *f = arrive(0, 0, 1e9);
    expect_order((struct sequence *[]){d, b, f, a, c, e}, 6);
    wait_queue_destroy(&q);
}

Test(wait_queue, waiting_is_worth_priority) {
    open_queue(SCHEDULING_PRIORITY, 10); /* ten seconds a level */
    struct sequence *old = arrive(0, 3, 100), *middle = arrive(0, 1, 115), *late = arrive(0, 0, 131),
                    *urgent = arrive(0, -2, 131);
    /* at 131 s: old has waited 31 s and stands at -0.1, middle at -0.6, late at 0, urgent at -2 */
    expect_order((struct sequence *[]){urgent, middle, old, late}, 4);
    wait_queue_destroy(&q);
}

Test(wait_queue, a_clock_that_stands_or_leaps_does_no_harm) {
    open_queue(SCHEDULING_PRIORITY, 10);
    struct sequence *a = arrive(0, 0, 50), *b = arrive(0, 0, 50), *c = arrive(0, 0, 1e9), *d = arrive(0, 0, 1e9);
    expect_order((struct sequence *[]){a, b, c, d}, 4); /* in order of arrival all the same */
    struct sequence *extreme[] = {arrive(0, INT32_MIN, 1e10), arrive(0, INT32_MIN, 1e10), arrive(0, INT32_MAX, 0),
                                  arrive(0, INT32_MAX, 1e10)};
    expect_order(extreme, 4);
    wait_queue_destroy(&q);
}

Test(wait_queue, preempted_ones_come_first) {
    open_queue(SCHEDULING_FCFS, 0);
    struct sequence *a = arrive(1, 0, 0), *b = arrive(2, 0, 1);
    wait_queue_remove(&q, b);
    b->preempted = true;
    wait_queue_push(&q, b);
    expect_order((struct sequence *[]){b, a}, 2);
    wait_queue_destroy(&q);

    open_queue(SCHEDULING_PRIORITY, 0);
    a = arrive(1, -1, 0), b = arrive(2, 0, 1);
    struct sequence *c = arrive(3, 1, 2);
    wait_queue_remove(&q, b);
    b->preempted = true;
    wait_queue_push(&q, b);
    wait_queue_charge(&q, c, 1000);
    expect_order((struct sequence *[]){a, b, c}, 3);
    wait_queue_destroy(&q);
}

/* ---- shares ---- */

Test(wait_queue, tenants_get_equal_work_not_equal_turns) {
    open_queue(SCHEDULING_FCFS, 0);
    uint64_t work[3] = {0};
    for (int i = 0; i < 3000; i++) { /* one floods the queue before the others come */
        arrive(1, 0, 0);
    }
    for (int i = 0; i < 500; i++) {
        arrive(2, 0, 1);
        arrive(0, 0, 1); /* nobody's requests are one tenant */
    }
    for (int i = 0; i < 600; i++) {
        struct sequence *s = wait_queue_next(&q);
        uint64_t cost = s->tenant_id == 1 ? 100 : s->tenant_id == 2 ? 1000 : 300, tenant = s->tenant_id;
        gone(serve(cost));
        work[tenant] += cost;
        for (int a = 0; a < 3; a++) {
            for (int b = 0; b < a; b++) { /* the bound of Sheng et al.: the largest pieces of work */
                cr_assert_leq(llabs((long long)work[a] - (long long)work[b]), 2000);
            }
        }
    }
    while (wait_queue_next(&q)) {
        gone(serve(1));
    }
    wait_queue_destroy(&q);
}

Test(wait_queue, a_dearer_tenant_gets_a_smaller_share) {
    open_queue(SCHEDULING_FCFS, 0);
    static const uint32_t costs[] = {1, 4, 16, 0}; /* 0 is as 1 */
    uint64_t work[4] = {0};
    for (uint64_t i = 0; i < 4000; i++) {
        struct sequence *s = calloc(1, sizeof *s);
        s->tenant_id = i % 4;
        s->tenant_cost = costs[i % 4];
        s->arrival = arrivals++;
        wait_queue_enter(&q, s);
        wait_queue_push(&q, s);
    }
    for (int i = 0; i < 370; i++) {
        struct sequence *s = serve(10);
        work[s->tenant_id]++;
        gone(s);
    }
    for (int i = 0; i < 4; i++) {
        cr_expect_leq(llabs((long long)work[i] - (long long)(160 / (costs[i] ? costs[i] : 1))), 2, "%d: %d", i, (int)work[i]);
    }
    while (wait_queue_next(&q)) {
        gone(serve(1));
    }
    wait_queue_destroy(&q);
}

Test(wait_queue, idle_time_is_not_saved_up) {
    open_queue(SCHEDULING_FCFS, 0);
    for (int i = 0; i < 300; i++) {
        arrive(1, 0, 0);
        arrive(2, 0, 0);
    }
    for (int i = 0; i < 100; i++) {
        gone(serve(100));
    }
    for (int i = 0; i < 100; i++) {
        arrive(3, 0, 1); /* did nothing so far */
    }
    int turns[4] = {0};
    for (int i = 0; i < 90; i++) {
        struct sequence *s = serve(100);
        turns[s->tenant_id]++;
        gone(s);
    }
    cr_assert(abs(turns[3] - 30) <= 1, "%d turns of 90", turns[3]);
    cr_assert(abs(turns[1] - turns[2]) <= 1);
    while (wait_queue_next(&q)) {
        gone(serve(100));
    }
    /* and with nobody waiting: it is lifted to the one that waited last, and what that one was served since */
    struct sequence *a = arrive(1, 0, 2);
    serve(0);
    wait_queue_charge(&q, a, 1000000);
    struct sequence *b = arrive(3, 0, 3);
    cr_assert_eq(b->tenant->served, a->tenant->served);
    gone(serve(0));
    gone(a);
    wait_queue_destroy(&q);
}

Test(wait_queue, work_done_by_running_ones_counts) {
    open_queue(SCHEDULING_FCFS, 0);
    struct sequence *running = arrive(1, 0, 0);
    serve(0);
    struct sequence *a = arrive(1, 0, 1), *b = arrive(2, 0, 2);
    cr_assert_eq(wait_queue_next(&q), a);
    wait_queue_charge(&q, running, 2);
    cr_assert_eq(wait_queue_next(&q), b, "the other tenant had less");
    expect_order((struct sequence *[]){b, a}, 2);
    gone(running);
    wait_queue_destroy(&q);
}

Test(wait_queue, more_tenants_than_places) {
    enum { N = WAIT_MAX_TENANTS + 500 };
    open_queue(SCHEDULING_FCFS, 0);
    static struct sequence *all[N];
    for (int round = 0; round < 3; round++) {
        for (uint64_t i = 0; i < N; i++) {
            all[i] = arrive(i * 0x100000001u, 0, 0); /* also ids that differ in high bits */
            if (i < WAIT_MAX_TENANTS) {
                cr_assert_eq(all[i]->tenant->id, all[i]->tenant_id);
            }
        }
        cr_assert_eq(q.n, N);
        for (size_t i = 0; i < N; i++) {
            gone(serve(1 + i % 7));
        }
        cr_assert_null(wait_queue_next(&q));
    }
    /* one after the other, there is a place for each */
    for (uint64_t i = 0; i < 4 * N; i++) {
        struct sequence *s = arrive(i, 0, 0);
        cr_assert(s->tenant->known && s->tenant->id == i);
        gone(serve(1));
    }
    wait_queue_destroy(&q);
}

Test(wait_queue, a_hundred_thousand_wait) {
    enum { N = 100000 };
    static struct sequence *all[N];
    open_queue(SCHEDULING_PRIORITY, 1);
    srand(9);
    for (int i = 0; i < N; i++) {
        all[i] = arrive(0, rand() % 100, i * 1e-3);
    }
    for (int i = 0; i < N; i += 3) { /* cancels in the middle */
        wait_queue_remove(&q, all[i]);
        gone(all[i]);
    }
    double last = -1e300;
    while (wait_queue_next(&q)) {
        struct sequence *s = serve(1);
        cr_assert_geq(s->rank, last);
        last = s->rank;
        gone(s);
    }
    wait_queue_destroy(&q);
}
