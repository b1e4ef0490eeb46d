#include "loop.h"

#include <stdlib.h>
#include <uv.h>

struct hook {
    loop_fn *fn;
    void *arg;
};

struct loop {
    uv_loop_t uv;
    uv_async_t async;
    uv_prepare_t prepare;
    uv_signal_t signals[LOOP_MAX_SIGNALS];
    struct hook signal_hooks[LOOP_MAX_SIGNALS];
    size_t n_signals;
    struct hook wake, turn;
};

struct loop_timer {
    uv_timer_t uv;
    struct hook hook;
};

struct loop_poll {
    uv_poll_t uv;
    struct hook hook;
};

struct work {
    uv_work_t uv;
    loop_fn *work, *after;
    void *arg;
};

static int uv_error(struct error *err, const char *what, int code) {
    return error_set(err, ERROR_IO, "%s: %s", what, uv_strerror(code));
}

static void on_async(uv_async_t *h) {
    struct loop *l = h->data;
    if (l->wake.fn) {
        l->wake.fn(l->wake.arg);
    }
}

static void on_prepare(uv_prepare_t *h) {
    struct loop *l = h->data;
    if (l->turn.fn) {
        l->turn.fn(l->turn.arg);
    }
}

int loop_open(struct loop **out, struct error *err) {
    struct loop *l = calloc(1, sizeof *l);
    if (!l) {
        return error_memory(err);
    }
    int rc = uv_loop_init(&l->uv);
    if (rc) {
        free(l);
        return uv_error(err, "the event loop cannot start", rc);
    }
    rc = uv_async_init(&l->uv, &l->async, on_async);
    if (rc) {
        uv_loop_close(&l->uv);
        free(l);
        return uv_error(err, "the event loop cannot start", rc);
    }
    l->async.data = l;
    uv_prepare_init(&l->uv, &l->prepare);
    l->prepare.data = l;
    uv_prepare_start(&l->prepare, on_prepare);
    *out = l;
    return 0;
}

void loop_free(struct loop *l) {
    if (!l) {
        return;
    }
    l->wake.fn = l->turn.fn = NULL;
    uv_close((uv_handle_t *)&l->async, NULL);
    uv_close((uv_handle_t *)&l->prepare, NULL);
    for (size_t i = 0; i < l->n_signals; i++) {
        uv_close((uv_handle_t *)&l->signals[i], NULL);
    }
    uv_run(&l->uv, UV_RUN_DEFAULT); /* close callbacks, work still in the pool */
    uv_loop_close(&l->uv);
    free(l);
}

void loop_run(struct loop *l) {
    uv_run(&l->uv, UV_RUN_DEFAULT);
}

void loop_stop(struct loop *l) {
    uv_stop(&l->uv);
}

void loop_wake(struct loop *l) {
    uv_async_send(&l->async);
}

void loop_on_wake(struct loop *l, loop_fn *fn, void *arg) {
    l->wake = (struct hook){fn, arg};
}

uint64_t loop_now_ns(const struct loop *l) {
    return uv_now(&l->uv) * 1000000u;
}

void loop_on_turn(struct loop *l, loop_fn *fn, void *arg) {
    l->turn = (struct hook){fn, arg};
}

static void on_signal(uv_signal_t *h, int signum) {
    (void)signum;
    struct hook *hook = h->data;
    hook->fn(hook->arg);
}

int loop_on_signal(struct loop *l, int signum, loop_fn *fn, void *arg, struct error *err) {
    if (l->n_signals == LOOP_MAX_SIGNALS) {
        return error_set(err, ERROR_INTERNAL, "too many signals are watched");
    }
    uv_signal_t *h = &l->signals[l->n_signals];
    int rc = uv_signal_init(&l->uv, h);
    if (rc) {
        return uv_error(err, "signals cannot be watched", rc);
    }
    struct hook *hook = &l->signal_hooks[l->n_signals++];
    *hook = (struct hook){fn, arg};
    h->data = hook;
    rc = uv_signal_start(h, on_signal, signum);
    return rc ? uv_error(err, "signals cannot be watched", rc) : 0;
}

static void on_timer(uv_timer_t *h) {
    struct loop_timer *t = h->data;
    t->hook.fn(t->hook.arg);
}

int loop_timer_new(struct loop *l, loop_fn *fn, void *arg, struct loop_timer **out, struct error *err) {
    struct loop_timer *t = calloc(1, sizeof *t);
    if (!t) {
        return error_memory(err);
    }
    uv_timer_init(&l->uv, &t->uv);
    t->uv.data = t;
    t->hook = (struct hook){fn, arg};
    *out = t;
    return 0;
}

void loop_timer_set(struct loop_timer *t, uint64_t ms) {
    uv_update_time(t->uv.loop); /* a long turn must not shorten it */
    uv_timer_start(&t->uv, on_timer, ms, 0);
}

void loop_timer_stop(struct loop_timer *t) {
    uv_timer_stop(&t->uv);
}

static void free_handle(uv_handle_t *h) {
    free(h->data);
}

void loop_timer_free(struct loop_timer *t) {
    if (t) {
        uv_close((uv_handle_t *)&t->uv, free_handle);
    }
}

static void on_work(uv_work_t *req) {
    struct work *w = req->data;
    w->work(w->arg);
}

static void on_after_work(uv_work_t *req, int status) {
    (void)status; /* never cancelled */
    struct work *w = req->data;
    w->after(w->arg);
    free(w);
}

int loop_work(struct loop *l, loop_fn *work, loop_fn *after, void *arg, struct error *err) {
    struct work *w = calloc(1, sizeof *w);
    if (!w) {
        return error_memory(err);
    }
    *w = (struct work){.work = work, .after = after, .arg = arg};
    w->uv.data = w;
    int rc = uv_queue_work(&l->uv, &w->uv, on_work, on_after_work);
    if (rc) {
        free(w);
        return uv_error(err, "no worker thread", rc);
    }
    return 0;
}

static void on_readable(uv_poll_t *h, int status, int events) {
    (void)status; /* an error is for the reader of the descriptor to find */
    (void)events;
    struct loop_poll *p = h->data;
    p->hook.fn(p->hook.arg);
}

int loop_poll_new(struct loop *l, int fd, loop_fn *fn, void *arg, struct loop_poll **out, struct error *err) {
    struct loop_poll *p = calloc(1, sizeof *p);
    if (!p) {
        return error_memory(err);
    }
    int rc = uv_poll_init(&l->uv, &p->uv, fd);
    if (rc) {
        free(p);
        return uv_error(err, "a descriptor cannot be polled", rc);
    }
    p->uv.data = p;
    p->hook = (struct hook){fn, arg};
    uv_poll_start(&p->uv, UV_READABLE, on_readable);
    *out = p;
    return 0;
}

void loop_poll_pause(struct loop_poll *p, bool pause) {
    if (pause) {
        uv_poll_stop(&p->uv);
    } else {
        uv_poll_start(&p->uv, UV_READABLE, on_readable);
    }
}

void loop_poll_free(struct loop_poll *p) {
    if (p) {
        uv_close((uv_handle_t *)&p->uv, free_handle);
    }
}

const char *loop_library_version(void) {
    return uv_version_string();
}
