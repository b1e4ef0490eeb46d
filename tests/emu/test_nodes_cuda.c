/*
 * Processes that NCCL brings together without MPI (backend_open_nodes), over the stand-in of NCCL and its sockets: what they do together,
 * and what each is told when one does not come, dies, or is stopped.
 *
 *     test_nodes_cuda MODULE
 */
#include <inferd/backend.h>
#include <inferd/clock.h>
#include <inferd/collective.h>

#include <arpa/inet.h>
#include <dlfcn.h>
#include <netdb.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const char *module;
static int failures;

#define CHECK(condition, ...)                                                                                          \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            failures++;                                                                                                \
            printf("FAIL %s, line %d: %s: ", __func__, __LINE__, #condition);                                          \
            printf("" __VA_ARGS__);                                                                                    \
            printf("\n");                                                                                              \
        }                                                                                                              \
    } while (0)
#define OK(call) CHECK((call) == 0, "rank %zu: %s", g->rank, err.message)

static void sleep_ms(long ms) {
    nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL);
}

/* In place of the C library's, for the stand-in too: LATER is the name of a pod that has no address in the first second. */
#define LATER "pod-0.set"
static uint64_t began_ns;

int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **out) {
    int (*real)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
    *(void **)&real = dlsym(RTLD_NEXT, "getaddrinfo");
    if (node && strcmp(node, LATER) == 0) {
        if (clock_now_ns() - began_ns < 1000000000) {
            return EAI_NONAME;
        }
        node = "127.0.0.1";
    }
    return real(node, service, hints, out);
}

/* ---- what the processes do ---- */

static void fill(unsigned char *x, size_t n, size_t seed) {
    for (size_t i = 0; i < n; i++) {
        x[i] = (unsigned char)(i * 7 + i / 251 + seed * 31);
    }
}

static bool is_filled(const unsigned char *x, size_t n, size_t seed) {
    for (size_t i = 0; i < n; i++) {
        if (x[i] != (unsigned char)(i * 7 + i / 251 + seed * 31)) {
            return false;
        }
    }
    return true;
}

/* Of one byte, of several pieces and a rest; in place and not. */
static void operations(struct collective *g) {
    static const size_t sizes[] = {0, 1, 1000, 1 << 20, (1 << 20) + 1, (3 << 20) + 77};
    struct error err;
    size_t next = (g->rank + 1) % g->size, before = (g->rank + g->size - 1) % g->size;
    CHECK(getenv("NCCL_COMM_ID") == NULL, "groups within the process would meet there too");
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        size_t n = sizes[i];
        unsigned char *x = malloc(n + 1), *all = calloc(g->size, n + 1);
        for (size_t root = 0; root < g->size; root++) {
            fill(x, n, g->rank == root ? root : 99);
            OK(g->ops->broadcast(g, x, n, root, &err));
            CHECK(is_filled(x, n, root), "rank %zu, %zu bytes from %zu", g->rank, n, root);
        }
        fill(x, n, g->rank);
        OK(g->ops->all_gather(g, x, n, all, &err));
        for (size_t r = 0; r < g->size; r++) {
            CHECK(is_filled(all + r * n, n, r), "rank %zu, %zu bytes of %zu", g->rank, n, r);
        }
        memset(all, 0, g->size * n);
        fill(all + g->rank * n, n, g->rank);
        OK(g->ops->all_gather(g, all + g->rank * n, n, all, &err));
        for (size_t r = 0; r < g->size; r++) {
            CHECK(is_filled(all + r * n, n, r), "rank %zu, %zu bytes of %zu in place", g->rank, n, r);
        }
        fill(x, n, g->rank);
        for (size_t turn = 0; turn < g->size; turn++) { /* round, from hand to hand */
            if (turn == g->rank) {
                OK(g->ops->send(g, x, n, next, &err));
            } else if (turn == before) {
                OK(g->ops->recv(g, all, n, before, &err));
                CHECK(is_filled(all, n, before), "rank %zu, %zu bytes", g->rank, n);
            }
        }
        OK(g->ops->barrier(g, &err));
        free(x);
        free(all);
    }
}

/* Rank 1 is late: the other is told so, and nothing comes behind it. */
static void one_stalls(struct collective *g) {
    struct error err;
    char x = 0;
    uint64_t began = clock_now_ns();
    OK(g->ops->barrier(g, &err));
    if (g->rank == 1) {
        sleep_ms(3000);
        return;
    }
    g->deadline_ms = 400;
    CHECK(g->ops->recv(g, &x, 1, 1, &err) < 0 && err.code == ERROR_DEVICE && strcmp(err.message, "node 1 of 2 did not come within 0.4 s") == 0,
          "%s", err.message);
    CHECK(g->ops->broadcast(g, &x, 1, 0, &err) < 0 && err.code == ERROR_DEVICE, "nor be taken up again");
    CHECK((double)(clock_now_ns() - began) < 2.5e9, "late");
}

static void one_dies(struct collective *g) {
    struct error err;
    char x = 0;
    OK(g->ops->barrier(g, &err));
    if (g->rank == 1) { /* once the other has left the barrier, which it needs this one for */
        OK(g->ops->recv(g, &x, 1, 0, &err));
        _exit(failures > 0);
    }
    OK(g->ops->send(g, &x, 1, 1, &err));
    uint64_t began = clock_now_ns();
    CHECK(g->ops->recv(g, &x, 1, 1, &err) < 0 && err.code == ERROR_DEVICE && strstr(err.message, "NCCL reports: remote process exited"), "%s",
          err.message);
    CHECK((double)(clock_now_ns() - began) < 20e9, "only at the deadline");
}

static void *abort_later(void *arg) {
    struct collective *g = arg;
    sleep_ms(300);
    g->ops->abort(g);
    return NULL;
}

static void one_is_stopped(struct collective *g) {
    struct error err;
    char x = 0;
    pthread_t thread;
    OK(g->ops->barrier(g, &err));
    if (g->rank == 1) {
        sleep_ms(1500);
        return;
    }
    if (pthread_create(&thread, NULL, abort_later, g) != 0) {
        exit(1);
    }
    CHECK(g->ops->recv(g, &x, 1, 1, &err) < 0 && strstr(err.message, "told to stop"), "%s", err.message);
    pthread_join(thread, NULL);
}

/* ---- processes ---- */

static const struct {
    const char *name;
    size_t size, started;
    void (*run)(struct collective *g); /* NULL: they do not come together */
    const char *refused, *host; /* host, NULL: 127.0.0.1; of another the stand-in has no interface, as a pod has none of its leader's subnet */
} cases[] = {
    {"operations", 3, 3, operations, NULL, NULL},
    {"two", 2, 2, operations, NULL, NULL},
    {"another_subnet", 2, 2, operations, NULL, "127.0.0.2"},
    {"a_name_comes_late", 2, 2, operations, NULL, LATER},
    {"one_stalls", 2, 2, one_stalls, NULL, NULL},
    {"one_dies", 2, 2, one_dies, NULL, NULL},
    {"one_is_stopped", 2, 2, one_is_stopped, NULL, NULL},
    {"one_does_not_come", 2, 1, NULL, "not all of 2 nodes came to 127.0.0.1:", NULL},
    {"nobody_says_where", 2, 1, NULL, "NCCL_COMM_ID=HOST:PORT", NULL},
    {"no_such_place", 2, 1, NULL, "the nodes cannot meet at nowhere", NULL},
};

static int child(size_t c, size_t rank) {
    struct collective *g = NULL;
    struct error err;
    size_t deadline_ms = cases[c].refused ? 700 : 30000;
    if (backend_open_nodes("auto", module, rank, cases[c].size, deadline_ms, &g, &err) < 0) {
        CHECK(cases[c].refused && strstr(err.message, cases[c].refused), "rank %zu: %s", rank, err.message);
        return failures;
    }
    CHECK(cases[c].run && g->rank == rank && g->size == cases[c].size && !g->ops->queued && !g->ops->shared_memory, "a group");
    if (cases[c].run) {
        cases[c].run(g);
    }
    g->ops->close(g);
    return failures;
}

/* A port that nobody has, for as long as it takes. */
static int free_port(void) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof at;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&at, sizeof at) < 0 || getsockname(fd, (struct sockaddr *)&at, &length) < 0) {
        exit(1);
    }
    close(fd);
    return ntohs(at.sin_port);
}

static void run_case(char *self, size_t c) {
    char place[64];
    pid_t children[3];
    printf("%s\n", cases[c].name);
    fflush(stdout);
    snprintf(place, sizeof place, "%s:%d", cases[c].host ? cases[c].host : "127.0.0.1", free_port());
    setenv("NCCL_COMM_ID", strcmp(cases[c].name, "no_such_place") == 0 ? "nowhere" : place, 1);
    if (strcmp(cases[c].name, "nobody_says_where") == 0) {
        unsetenv("NCCL_COMM_ID");
    }
    for (size_t rank = 0; rank < cases[c].started; rank++) {
        char number[24], which[24];
        snprintf(number, sizeof number, "%zu", rank);
        snprintf(which, sizeof which, "%zu", c);
        children[rank] = fork();
        if (children[rank] == 0) { /* each with an emulator of its own */
            execl("/proc/self/exe", self, module, which, number, (char *)NULL);
            _exit(127);
        }
    }
    for (size_t rank = 0; rank < cases[c].started; rank++) {
        int status = 0;
        waitpid(children[rank], &status, 0);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "%s: process %zu ends with %#x", cases[c].name, rank, (unsigned)status);
    }
}

int main(int argc, char **argv) {
    if (argc < 2) {
        return 2;
    }
    module = argv[1];
    began_ns = clock_now_ns();
    setenv("INFERD_EMU", "fast,memory=64M", 1);
    if (argc == 4) {
        return child((size_t)atoi(argv[2]), (size_t)atoi(argv[3])) > 0;
    }
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        run_case(argv[0], c);
    }
    printf(failures ? "%d checks failed\n" : "all passed\n", failures);
    return failures != 0;
}
