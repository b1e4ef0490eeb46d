#include "deadline.h"

#include <criterion/criterion.h>
#include <inferd/clock.h>
#include <stdlib.h>

#define MS UINT64_C(1000000)

static struct error err;

struct item {
    struct deadline deadline;
    uint64_t fired_ns;
    int order;
};

static struct loop *loop;
static int n_fired, expected;

static void on_expired(struct deadline *d, void *arg) {
    struct item *item = (struct item *)(void *)d;
    cr_assert_null(arg);
    cr_assert_eq(d->slot, 0);
    item->fired_ns = clock_now_ns();
    item->order = ++n_fired;
    if (n_fired == expected) {
        loop_stop(loop);
    }
}

static void run(struct deadlines *ds, int n) {
    (void)ds;
    n_fired = 0;
    expected = n;
    if (n > 0) {
        loop_run(loop);
    }
}

/* In order of time whatever the order of setting; never before the time, and soon after it. */
Test(deadline, many_fire_in_order) {
    enum { N = 500 };
    static struct item items[N];
    struct deadlines ds;
    cr_assert_eq(loop_open(&loop, &err), 0);
    cr_assert_eq(deadlines_open(&ds, loop, on_expired, NULL, &err), 0);
    uint64_t now = clock_now_ns();
    srand(5);
    for (int i = 0; i < N; i++) {
        cr_assert_eq(deadline_reserve(&ds, &err), 0);
        deadline_set(&ds, &items[i].deadline, now + 20 * MS + (uint64_t)(rand() % 200) * MS / 2);
    }
    for (int i = 0; i < N; i += 3) { /* moved */
        deadline_set(&ds, &items[i].deadline, now + 20 * MS + (uint64_t)(rand() % 200) * MS / 2);
    }
    int out = 0;
    for (int i = 0; i < N; i += 7) { /* taken out again */
        deadline_set(&ds, &items[i].deadline, 0);
        out++;
    }
    run(&ds, N - out);
    for (int i = 0; i < N; i++) {
        const struct item *a = &items[i];
        if (i % 7 == 0) {
            cr_assert_eq(a->fired_ns, 0);
            continue;
        }
        cr_assert_geq(a->fired_ns, a->deadline.at_ns);
        cr_assert_lt(a->fired_ns, a->deadline.at_ns + 100 * MS);
        for (int j = 0; j < N; j++) {
            if (j % 7 != 0 && items[j].deadline.at_ns < a->deadline.at_ns) {
                cr_assert_lt(items[j].order, a->order);
            }
        }
    }
    for (int i = 0; i < N; i++) {
        deadline_release(&ds, &items[i].deadline);
    }
    cr_assert(ds.n == 0 && ds.reserved == 0);
    deadlines_close(&ds);
    loop_free(loop);
}

/* The timer follows the earliest one when that is moved or taken away. */
Test(deadline, the_earliest_may_change) {
    struct item early = {0}, late = {0};
    struct deadlines ds;
    cr_assert_eq(loop_open(&loop, &err), 0);
    cr_assert_eq(deadlines_open(&ds, loop, on_expired, NULL, &err), 0);
    cr_assert(deadline_reserve(&ds, &err) == 0 && deadline_reserve(&ds, &err) == 0);
    uint64_t now = clock_now_ns();
    deadline_set(&ds, &late.deadline, now + 3600 * 1000 * MS);
    deadline_set(&ds, &early.deadline, now + 10 * MS);
    deadline_set(&ds, &early.deadline, now + 7200 * 1000 * MS);
    deadline_set(&ds, &late.deadline, now + 30 * MS);
    run(&ds, 1);
    cr_assert(late.fired_ns >= now + 30 * MS && early.fired_ns == 0);
    deadline_set(&ds, &late.deadline, 1); /* long past: at once */
    run(&ds, 1);
    cr_assert_gt(late.fired_ns, now + 30 * MS);
    deadline_release(&ds, &early.deadline);
    deadline_release(&ds, &late.deadline);
    deadlines_close(&ds);
    loop_free(loop);
}
