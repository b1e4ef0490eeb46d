/*
 * The event loop: one thread, libuv inside. Everything here is called on the loop thread, except loop_wake.
 */
#ifndef INFERD_LOOP_H
#define INFERD_LOOP_H

#include <inferd/error.h>
#include <stdbool.h>
#include <stdint.h>

struct loop;
struct loop_timer;
struct loop_poll;

typedef void loop_fn(void *arg);

int loop_open(struct loop **out, struct error *err);
/* Every timer freed, every piece of work finished by then. NULL is fine. */
void loop_free(struct loop *l);

/* Run until loop_stop. */
void loop_run(struct loop *l);
void loop_stop(struct loop *l);

/* Any thread: have `fn` called on the loop thread soon. Calls in between are one. */
void loop_wake(struct loop *l);
void loop_on_wake(struct loop *l, loop_fn *fn, void *arg);

/* When this turn began, as clock_now_ns but to some milliseconds: for what is asked at every token. */
uint64_t loop_now_ns(const struct loop *l);

/* The before-sleep hook: called once a turn, before the loop waits. */
void loop_on_turn(struct loop *l, loop_fn *fn, void *arg);

/* fn(arg) on a signal, at most once for each of LOOP_MAX_SIGNALS numbers. */
#define LOOP_MAX_SIGNALS 4
int loop_on_signal(struct loop *l, int signum, loop_fn *fn, void *arg, struct error *err);

/* One-shot timers. */
int loop_timer_new(struct loop *l, loop_fn *fn, void *arg, struct loop_timer **out, struct error *err);
void loop_timer_set(struct loop_timer *t, uint64_t ms); /* again: starts over */
void loop_timer_stop(struct loop_timer *t);
void loop_timer_free(struct loop_timer *t); /* NULL is fine */

/* work(arg) on a thread of the pool, then after(arg) on the loop thread. */
int loop_work(struct loop *l, loop_fn *work, loop_fn *after, void *arg, struct error *err);

/* fn(arg) whenever fd is readable (level-triggered). Close it only after loop_poll_free. */
int loop_poll_new(struct loop *l, int fd, loop_fn *fn, void *arg, struct loop_poll **out, struct error *err);
void loop_poll_pause(struct loop_poll *p, bool pause);
void loop_poll_free(struct loop_poll *p); /* stops at once; NULL is fine */

/* libuv's version as text, for `inferd version`. */
const char *loop_library_version(void);

#endif
