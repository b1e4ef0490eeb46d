/*
 * Points in time at which something is to happen, the earliest first: a binary heap, and one timer of the loop for its
 * top. By the monotonic clock, so that setting the machine's clock moves none. Loop thread only.
 */
#ifndef INFERD_DEADLINE_H
#define INFERD_DEADLINE_H

#include "loop.h"

#include <inferd/error.h>
#include <stddef.h>
#include <stdint.h>

/* Member of whatever has one. at_ns is clock_now_ns; set only by deadline_set. */
struct deadline {
    uint64_t at_ns;
    size_t slot; /* in the heap, from 1 on; 0 = not in it */
};

struct deadlines {
    struct deadline **heap; /* [n], slot 1 at heap[0]; owned */
    size_t n, cap, reserved;
    struct loop_timer *timer;
    void (*expired)(struct deadline *d, void *arg);
    void *arg;
};

/* expired(d, arg) is called once for each that passes; it is out of the heap by then. */
int deadlines_open(struct deadlines *ds, struct loop *l, void (*expired)(struct deadline *d, void *arg), void *arg,
                   struct error *err);
void deadlines_close(struct deadlines *ds); /* a zeroed one is fine */

/* Make room for one more, so that deadline_set cannot fail; give the room back (its deadline leaves the heap). */
int deadline_reserve(struct deadlines *ds, struct error *err);
void deadline_release(struct deadlines *ds, struct deadline *d);

/* Put it in, or move it. at_ns 0: take it out. */
void deadline_set(struct deadlines *ds, struct deadline *d, uint64_t at_ns);

#endif
