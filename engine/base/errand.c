#include <inferd/errand.h>

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct errand {
    int (*fn)(void *x);
    int code;
    bool done, left; /* left: nobody waits any more */
    pthread_mutex_t lock;
    pthread_cond_t ended;
    _Alignas(max_align_t) char x[];
};

static void errand_free(struct errand *e) {
    pthread_mutex_destroy(&e->lock);
    pthread_cond_destroy(&e->ended);
    free(e);
}

static void *run(void *arg) {
    struct errand *e = arg;
    int code = e->fn(e->x);
    pthread_mutex_lock(&e->lock);
    e->code = code;
    e->done = true;
    bool left = e->left;
    pthread_cond_signal(&e->ended);
    pthread_mutex_unlock(&e->lock);
    if (left) {
        errand_free(e);
    }
    return NULL;
}

static struct errand *errand_new(int (*fn)(void *x), const void *x, size_t bytes) {
    struct errand *e = calloc(1, sizeof *e + bytes);
    pthread_condattr_t clock;
    if (!e) {
        return NULL;
    }
    e->fn = fn;
    if (bytes > 0) {
        memcpy(e->x, x, bytes);
    }
    pthread_mutex_init(&e->lock, NULL);
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&e->ended, &clock);
    pthread_condattr_destroy(&clock);
    return e;
}

bool errand_run(int (*fn)(void *x), void *x, size_t bytes, size_t ms, int *code) {
    struct errand *e = errand_new(fn, x, bytes);
    pthread_t thread;
    struct timespec until;
    if (!e) {
        return false;
    }
    if (pthread_create(&thread, NULL, run, e) != 0) {
        errand_free(e);
        return false;
    }
    pthread_detach(thread);
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += (time_t)(ms / 1000);
    until.tv_nsec += (long)(ms % 1000) * 1000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_mutex_lock(&e->lock);
    for (int rc = 0; !e->done && rc == 0;) {
        rc = pthread_cond_timedwait(&e->ended, &e->lock, &until);
    }
    bool done = e->done;
    e->left = !done;
    if (done) {
        *code = e->code;
        if (bytes > 0) {
            memcpy(x, e->x, bytes);
        }
    }
    pthread_mutex_unlock(&e->lock);
    if (done) {
        errand_free(e);
    }
    return done;
}
