/*
 * The server's life as the service manager hears of it: how far loading is and that it goes on, readiness, the watchdog
 * (fed while the loop runs and the engine is idle or ends its steps), the drain. Nothing happens without a manager
 * (notify.h). Loop thread, but for supervision_progress.
 */
#ifndef INFERD_SUPERVISION_H
#define INFERD_SUPERVISION_H

#include <inferd/error.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

struct loop_timer;
struct server;

struct supervision {
    struct loop_timer *timer; /* NULL: nobody is told */
    uint64_t watchdog_ms;     /* how often the watchdog is fed; 0: there is none */
    /* of the load: written by the engine's thread */
    _Atomic uint64_t load_done, load_all, load_steps;
    uint64_t steps_told;
};

/* Begins with "loading". Needs the loop and the model's name. */
int supervision_open(struct server *s, struct error *err);
void supervision_close(struct server *s);

/* engine_config.on_progress; arg is the struct server. Any thread. */
void supervision_progress(void *arg, uint64_t done, uint64_t all);

/* The engine passed its self-test, and requests are taken. */
void supervision_ready(struct server *s);
/* The drain begins; n requests are to end. */
void supervision_stopping(struct server *s, size_t n);

#endif
