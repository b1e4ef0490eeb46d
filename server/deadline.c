#include "deadline.h"

#include <inferd/clock.h>
#include <stdlib.h>

static void place(struct deadlines *ds, struct deadline *d, size_t i) {
    ds->heap[i] = d;
    d->slot = i + 1;
}

static void sift_up(struct deadlines *ds, struct deadline *d, size_t i) {
    while (i > 0 && ds->heap[(i - 1) / 2]->at_ns > d->at_ns) {
        place(ds, ds->heap[(i - 1) / 2], i);
        i = (i - 1) / 2;
    }
    place(ds, d, i);
}

static void sift_down(struct deadlines *ds, struct deadline *d, size_t i) {
    for (size_t child = 2 * i + 1; child < ds->n; child = 2 * i + 1) {
        if (child + 1 < ds->n && ds->heap[child + 1]->at_ns < ds->heap[child]->at_ns) {
            child++;
        }
        if (ds->heap[child]->at_ns >= d->at_ns) {
            break;
        }
        place(ds, ds->heap[child], i);
        i = child;
    }
    place(ds, d, i);
}

static void take_out(struct deadlines *ds, struct deadline *d) {
    size_t i = d->slot - 1;
    struct deadline *last = ds->heap[--ds->n];
    d->slot = 0;
    if (last != d) {
        last->slot = 0;
        sift_up(ds, last, i);
        sift_down(ds, last, last->slot - 1);
    }
}

/* The timer counts whole milliseconds: rounded up, it never comes before its time. */
static void arm(struct deadlines *ds) {
    if (ds->n == 0) {
        loop_timer_stop(ds->timer);
        return;
    }
    uint64_t now = clock_now_ns(), at = ds->heap[0]->at_ns;
    loop_timer_set(ds->timer, at > now ? (at - now + 999999) / 1000000 : 0);
}

static void on_timer(void *arg) {
    struct deadlines *ds = arg;
    uint64_t now = clock_now_ns();
    while (ds->n > 0 && ds->heap[0]->at_ns <= now) {
        struct deadline *d = ds->heap[0];
        take_out(ds, d);
        ds->expired(d, ds->arg);
    }
    arm(ds);
}

int deadlines_open(struct deadlines *ds, struct loop *l, void (*expired)(struct deadline *d, void *arg), void *arg,
                   struct error *err) {
    *ds = (struct deadlines){.expired = expired, .arg = arg};
    return loop_timer_new(l, on_timer, ds, &ds->timer, err);
}

void deadlines_close(struct deadlines *ds) {
    loop_timer_free(ds->timer);
    free(ds->heap);
    *ds = (struct deadlines){0};
}

int deadline_reserve(struct deadlines *ds, struct error *err) {
    if (ds->reserved == ds->cap) {
        size_t cap = ds->cap ? 2 * ds->cap : 64;
        struct deadline **heap = realloc(ds->heap, cap * sizeof *heap);
        if (!heap) {
            return error_memory(err);
        }
        ds->heap = heap;
        ds->cap = cap;
    }
    ds->reserved++;
    return 0;
}

void deadline_release(struct deadlines *ds, struct deadline *d) {
    deadline_set(ds, d, 0);
    ds->reserved--;
}

void deadline_set(struct deadlines *ds, struct deadline *d, uint64_t at_ns) {
    const struct deadline *first = ds->n ? ds->heap[0] : NULL;
    uint64_t before = first ? first->at_ns : 0;
    if (d->slot) {
        take_out(ds, d);
    }
    d->at_ns = at_ns;
    if (at_ns) {
        sift_up(ds, d, ds->n++);
    }
    const struct deadline *now_first = ds->n ? ds->heap[0] : NULL;
    if (now_first != first || (now_first && now_first->at_ns != before)) {
        arm(ds);
    }
}
