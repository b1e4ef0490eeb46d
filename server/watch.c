#include "watch.h"

#include "loop.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

struct watch {
    int epoll_fd;
    struct loop_poll *poll;
    void (*told)(void *watched);
};

static void on_events(void *arg) {
    struct watch *w = arg;
    struct epoll_event batch[64];
    int n;
    /* told() only marks and wakes: nothing watched is freed before the pump, so the whole batch stays valid. */
    do {
        n = epoll_wait(w->epoll_fd, batch, 64, 0);
        for (int i = 0; i < n; i++) {
            w->told(batch[i].data.ptr);
        }
    } while (n == 64);
}

int watch_open(struct loop *loop, void (*told)(void *watched), struct watch **out, struct error *err) {
    struct watch *w = calloc(1, sizeof *w);
    if (!w) {
        return error_memory(err);
    }
    w->told = told;
    w->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (w->epoll_fd < 0) {
        error_set(err, ERROR_IO, "epoll_create1: %s", strerror(errno));
        free(w);
        return -1;
    }
    if (loop_poll_new(loop, w->epoll_fd, on_events, w, &w->poll, err)) {
        close(w->epoll_fd);
        free(w);
        return -1;
    }
    *out = w;
    return 0;
}

void watch_free(struct watch *w) {
    if (w) {
        loop_poll_free(w->poll);
        close(w->epoll_fd);
        free(w);
    }
}

int watch_add(struct watch *w, int fd, uint32_t events, void *watched, struct error *err) {
    struct epoll_event e = {.events = events | EPOLLONESHOT, .data.ptr = watched};
    if (epoll_ctl(w->epoll_fd, EPOLL_CTL_ADD, fd, &e)) {
        return error_set(err, ERROR_IO, "epoll_ctl: %s", strerror(errno));
    }
    return 0;
}

void watch_rearm(struct watch *w, int fd, uint32_t events, void *watched) {
    struct epoll_event e = {.events = events | EPOLLONESHOT, .data.ptr = watched};
    epoll_ctl(w->epoll_fd, EPOLL_CTL_MOD, fd, &e);
}

void watch_remove(struct watch *w, int fd) {
    epoll_ctl(w->epoll_fd, EPOLL_CTL_DEL, fd, NULL);
}
