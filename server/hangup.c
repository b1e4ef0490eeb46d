#include "hangup.h"

#include "loop.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

struct hangup {
    int epoll_fd;
    struct loop_poll *poll;
    void (*gone)(void *watched);
};

static void on_events(void *arg) {
    struct hangup *h = arg;
    struct epoll_event batch[64];
    int n;
    /* gone() only marks and wakes: nothing watched is freed before the pump, so the whole batch stays valid. */
    do {
        n = epoll_wait(h->epoll_fd, batch, 64, 0);
        for (int i = 0; i < n; i++) {
            h->gone(batch[i].data.ptr);
        }
    } while (n == 64);
}

int hangup_open(struct loop *loop, void (*gone)(void *watched), struct hangup **out, struct error *err) {
    struct hangup *h = calloc(1, sizeof *h);
    if (!h) {
        return error_memory(err);
    }
    h->gone = gone;
    h->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (h->epoll_fd < 0) {
        error_set(err, ERROR_IO, "epoll_create1: %s", strerror(errno));
        free(h);
        return -1;
    }
    if (loop_poll_new(loop, h->epoll_fd, on_events, h, &h->poll, err)) {
        close(h->epoll_fd);
        free(h);
        return -1;
    }
    *out = h;
    return 0;
}

void hangup_free(struct hangup *h) {
    if (h) {
        loop_poll_free(h->poll);
        close(h->epoll_fd);
        free(h);
    }
}

int hangup_add(struct hangup *h, int fd, void *watched, struct error *err) {
    struct epoll_event e = {.events = EPOLLRDHUP | EPOLLONESHOT, .data.ptr = watched};
    if (epoll_ctl(h->epoll_fd, EPOLL_CTL_ADD, fd, &e)) {
        return error_set(err, ERROR_IO, "epoll_ctl: %s", strerror(errno));
    }
    return 0;
}

void hangup_rearm(struct hangup *h, int fd, void *watched) {
    struct epoll_event e = {.events = EPOLLRDHUP | EPOLLONESHOT, .data.ptr = watched};
    epoll_ctl(h->epoll_fd, EPOLL_CTL_MOD, fd, &e);
}

void hangup_remove(struct hangup *h, int fd) {
    epoll_ctl(h->epoll_fd, EPOLL_CTL_DEL, fd, NULL);
}
