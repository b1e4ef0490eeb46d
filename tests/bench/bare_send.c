/*
 * The floor under a server's added latency: nothing but send() to N TCP connections over loopback, one after the other,
 * from processor 0, and nothing but recv() of them on processor 1.
 *   bare_send STREAMS STEP_SECONDS [SECONDS]
 * Each step sends a piece as long as a streamed token's (230 bytes) to every connection; printed is the time from the
 * step's begin to the read. No HTTP, no JSON, no engine: what no server that writes on one core can be below.
 */
#include <arpa/inet.h>
#include <fcntl.h>
#include <inferd/clock.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PIECE 230
#define MOST_SAMPLES ((size_t)8 << 20)
#define WARM_UP_NS 2000000000u
#define NAP_NS 20000 /* before each look, as load --nap: there is nobody to wake */

static _Noreturn void fail(const char *what) {
    perror(what);
    exit(1);
}

static void pin(size_t processor) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(processor, &set);
    if (sched_setaffinity(0, sizeof set, &set) != 0) {
        fail("sched_setaffinity");
    }
}

static int compare(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static void print(uint64_t *ns, size_t n) {
    if (n == 0) {
        puts("nothing came");
        return;
    }
    qsort(ns, n, sizeof *ns, compare);
    printf("%zu reads: p50 %.2f ms, p90 %.2f ms, p99 %.2f ms, most %.2f ms\n", n, (double)ns[n / 2] / 1e6,
           (double)ns[n * 9 / 10] / 1e6, (double)ns[n * 99 / 100] / 1e6, (double)ns[n - 1] / 1e6);
}

/* Reads until the sender closes. */
static void receive(struct sockaddr_in address, size_t streams) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    pin(1);
    uint64_t *samples = malloc(MOST_SAMPLES * sizeof *samples);
    int poll = epoll_create1(0);
    if (!samples || poll < 0) {
        fail("epoll_create1");
    }
    for (size_t i = 0; i < streams; i++) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
        if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) != 0 ||
            epoll_ctl(poll, EPOLL_CTL_ADD, fd, &event) != 0) {
            fail("connect");
        }
    }
    uint64_t begin = clock_now_ns();
    size_t n_samples = 0;
    for (bool open = true; open;) {
        struct timespec nap = {0, NAP_NS};
        struct epoll_event events[256];
        nanosleep(&nap, NULL);
        int n = epoll_wait(poll, events, 256, 0);
        for (int i = 0; i < n && open; i++) {
            char piece[4 * PIECE];
            uint64_t sent;
            ssize_t got = recv(events[i].data.fd, piece, sizeof piece, 0);
            open = got >= (ssize_t)sizeof sent;
            memcpy(&sent, piece, sizeof sent);
            if (open && sent - begin > WARM_UP_NS && n_samples < MOST_SAMPLES) {
                samples[n_samples++] = clock_now_ns() - sent;
            }
        }
    }
    print(samples, n_samples);
}

static void send_steps(const int *fds, size_t streams, uint64_t step_ns, uint64_t run_ns) {
    char piece[PIECE] = {0};
    uint64_t begin = clock_now_ns(), next = begin, busy = 0;
    size_t sent = 0;
    while (next - begin < run_ns) {
        next += step_ns;
        uint64_t now = clock_now_ns();
        if (now < next) {
            struct timespec wait = {(time_t)((next - now) / 1000000000), (long)((next - now) % 1000000000)};
            nanosleep(&wait, NULL);
        }
        now = clock_now_ns();
        memcpy(piece, &now, sizeof now);
        for (size_t i = 0; i < streams; i++) {
            if (send(fds[i], piece, sizeof piece, MSG_NOSIGNAL | MSG_DONTWAIT) != (ssize_t)sizeof piece) {
                fail("send");
            }
        }
        busy += clock_now_ns() - now;
        sent += streams;
    }
    printf("%.2f us a send\n", (double)busy / (double)sent / 1e3);
    fflush(stdout);
}

int main(int argc, char **argv) {
    size_t streams = argc > 2 ? strtoul(argv[1], NULL, 10) : 0;
    double step = argc > 2 ? strtod(argv[2], NULL) : 0, seconds = argc > 3 ? strtod(argv[3], NULL) : 7;
    if (streams < 1 || streams > 10000 || !(step >= 0.0001) || !(step <= 10) || !(seconds >= 3) || !(seconds <= 3600)) {
        fprintf(stderr, "usage: bare_send STREAMS STEP_SECONDS [SECONDS, 3 at least]\n");
        return 2;
    }
    struct rlimit limit = {20000, 20000};
    setrlimit(RLIMIT_NOFILE, &limit);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof address;
    int one = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
    if (listener < 0 || bind(listener, (struct sockaddr *)&address, len) != 0 || listen(listener, 4096) != 0 ||
        getsockname(listener, (struct sockaddr *)&address, &len) != 0) {
        fail("listen");
    }
    pid_t receiver = fork();
    if (receiver < 0) {
        fail("fork");
    }
    if (receiver == 0) {
        receive(address, streams);
        return 0;
    }
    pin(0);
    int *fds = calloc(streams, sizeof *fds);
    for (size_t i = 0; fds && i < streams; i++) {
        fds[i] = accept(listener, NULL, NULL);
        if (fds[i] < 0 || setsockopt(fds[i], IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) != 0) {
            fail("accept");
        }
    }
    if (!fds) {
        fail("calloc");
    }
    send_steps(fds, streams, (uint64_t)(step * 1e9), (uint64_t)(seconds * 1e9));
    for (size_t i = 0; i < streams; i++) {
        close(fds[i]);
    }
    free(fds);
    return waitpid(receiver, NULL, 0) == receiver ? 0 : 1;
}
