#include "supervision.h"

#include "config.h"
#include "loop.h"
#include "notify.h"
#include "request.h"
#include "server_state.h"
#include "watchdog.h"

#define LOADING_MS 500      /* between two looks at the load */
#define LOAD_STEP_MS 120000 /* what comes before the weights, one tensor, or one part of what follows may take */
#define LAST_MS 15000       /* behind drain_timeout: the last words, and the step that runs */
#define STATUS_MS 10000     /* between two lines of status where there is no watchdog */

static void tell_load(struct server *s) {
    struct supervision *v = &s->supervision;
    uint64_t steps = atomic_load(&v->load_steps);
    if (steps == v->steps_told) {
        return; /* and the time that was allowed passes */
    }
    v->steps_told = steps;
    uint64_t done = atomic_load(&v->load_done), all = atomic_load(&v->load_all);
    notify_extend_timeout(LOAD_STEP_MS);
    if (done < all) {
        notify_status("Loading %s: %.0f %%", s->model, 100.0 * (double)done / (double)all);
    } else {
        notify_status("Loading %s: 100 %%, testing it", s->model);
    }
}

static void tell_state(struct server *s) {
    size_t running, waiting;
    const char *refusal = server_refusal(s);
    requests_count(s, &running, &waiting);
    if (refusal && s->phase == SERVER_READY) {
        notify_status("Not ready: %s; %zu requests run, %zu wait", refusal, running, waiting);
    } else {
        notify_status("%s %s: %zu requests run, %zu wait", s->phase == SERVER_DRAINING ? "Draining" : "Serving", s->model,
                      running, waiting);
    }
}

static void on_timer(void *arg) {
    struct server *s = arg;
    struct supervision *v = &s->supervision;
    if (s->phase == SERVER_LOADING) {
        tell_load(s);
        loop_timer_set(v->timer, LOADING_MS);
        return;
    }
    if (!watchdog_stalled(s) && v->watchdog_ms > 0) {
        notify_watchdog();
    }
    tell_state(s);
    loop_timer_set(v->timer, v->watchdog_ms > 0 ? v->watchdog_ms : STATUS_MS);
}

int supervision_open(struct server *s, struct error *err) {
    struct supervision *v = &s->supervision;
    if (!notify_wanted()) {
        return 0;
    }
    if (loop_timer_new(s->loop, on_timer, s, &v->timer, err) != 0) {
        return -1;
    }
    uint64_t patience = notify_watchdog_ms();
    v->watchdog_ms = patience > 0 && patience < 3 ? 1 : patience / 3; /* one may be late, one lost */
    notify_status("Loading %s", s->model);
    notify_extend_timeout(LOAD_STEP_MS);
    loop_timer_set(v->timer, LOADING_MS);
    return 0;
}

void supervision_close(struct server *s) {
    loop_timer_free(s->supervision.timer);
    s->supervision.timer = NULL;
}

void supervision_progress(void *arg, uint64_t done, uint64_t all) {
    struct supervision *v = &((struct server *)arg)->supervision;
    atomic_store(&v->load_all, all);
    atomic_store(&v->load_done, done);
    atomic_fetch_add(&v->load_steps, 1);
}

void supervision_ready(struct server *s) {
    if (s->supervision.timer) {
        tell_load(s); /* its end, however short it was */
        tell_state(s);
        notify_ready();
        loop_timer_set(s->supervision.timer, 1);
    }
}

void supervision_stopping(struct server *s, size_t n) {
    double left = n > 0 ? s->config->drain_timeout * 1000 : 0;
    if (!s->supervision.timer) {
        return;
    }
    notify_stopping();
    notify_extend_timeout((uint64_t)left + LAST_MS);
    notify_status("Draining %s: %zu requests have %.0f s to end", s->model, n, s->config->drain_timeout);
}
