/*
 * The module inferd-mpi.so, started by mpirun: what goes through it in pieces of PIECE bytes comes out as it went in, and a node that
 * is late, gone or never there breaks the group without leaving anybody waiting, at MPI's end neither. test_mpi CASE says ok on every rank.
 */
#include <inferd/clock.h>
#include <inferd/collective.h>

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const struct collective_mpi *inferd_collective_mpi(void);

static int failures;

#define CHECK(condition, ...)                                                                                          \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            failures++;                                                                                                \
            printf("FAIL line %d: %s: ", __LINE__, #condition);                                                        \
            printf(__VA_ARGS__);                                                                                       \
            printf("\n");                                                                                              \
        }                                                                                                              \
    } while (0)

static struct collective *open_or_exit(size_t deadline_ms) {
    struct collective *c;
    struct error err;
    if (inferd_collective_mpi()->open(20000, &c, &err) < 0) {
        printf("FAIL open: %s\n", err.message);
        exit(1);
    }
    c->deadline_ms = deadline_ms;
    return c;
}

/* Bytes that no other rank, place or size has. */
static void fill(unsigned char *x, size_t n, size_t rank) {
    for (size_t i = 0; i < n; i++) {
        x[i] = (unsigned char)(i * 31 + i / 251 + rank * 101 + n);
    }
}

static bool is(const unsigned char *x, size_t n, size_t rank) {
    for (size_t i = 0; i < n; i++) {
        if (x[i] != (unsigned char)(i * 31 + i / 251 + rank * 101 + n)) {
            return false;
        }
    }
    return true;
}

static void moves(struct collective *c, size_t n) {
    const struct collective_ops *op = c->ops;
    struct error err = {0};
    unsigned char *x = calloc(n + 1, 1), *all = calloc(n * c->size + 1, 1);
    for (size_t root = 0; root < c->size; root++) {
        fill(x, n, c->rank);
        CHECK(op->broadcast(c, x, n, root, &err) == 0 && is(x, n, root), "%zu bytes of %zu: %s", n, root, err.message);
    }
    /* a chain, as between stages, and back from the last to the first */
    fill(x, n, c->rank);
    if (c->rank > 0) {
        CHECK(op->recv(c, x, n, c->rank - 1, &err) == 0 && is(x, n, 0), "%zu bytes from %zu: %s", n, c->rank - 1, err.message);
    }
    if (c->rank + 1 < c->size) {
        CHECK(op->send(c, x, n, c->rank + 1, &err) == 0, "%s", err.message);
        if (c->rank == 0) {
            memset(x, 0, n);
            CHECK(op->recv(c, x, n, c->size - 1, &err) == 0 && is(x, n, 0), "%zu bytes back: %s", n, err.message);
        }
    } else {
        CHECK(op->send(c, x, n, 0, &err) == 0, "%s", err.message);
    }
    fill(x, n, c->rank);
    if (n <= 1000) { /* gathered in one piece */
        CHECK(op->all_gather(c, x, n, all, &err) == 0, "%s", err.message);
        for (size_t r = 0; r < c->size; r++) {
            CHECK(is(all + r * n, n, r), "%zu bytes of %zu among all", n, r);
        }
    } else {
        CHECK(op->all_gather(c, x, n, all, &err) < 0 && err.code == ERROR_INTERNAL, "more than a piece");
    }
    free(x);
    free(all);
}

static void operations(void) {
    static const size_t sizes[] = {0, 1, 999, 1000, 1001, 2000, 100003};
    struct collective *c = open_or_exit(20000), *second;
    struct error err;
    CHECK(c->size >= 2 && c->rank < c->size, "%zu of %zu", c->rank, c->size);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        moves(c, sizes[i]);
    }
    CHECK(c->ops->barrier(c, &err) == 0, "%s", err.message);
    CHECK(inferd_collective_mpi()->open(1000, &second, &err) < 0 && strstr(err.message, "only once"), "a second group");
    c->ops->close(c);
    CHECK(inferd_collective_mpi()->open(1000, &second, &err) < 0 && strstr(err.message, "only once"), "a group after the end");
}

/* The sentence, and that all after it fails at once, MPI's end included. */
static void broken(struct collective *c, uint64_t since, int rc, const struct error *err, const char *sentence) {
    struct error next = {0};
    double seconds = (double)(clock_now_ns() - since) / 1e9;
    char x[4] = "";
    CHECK(rc < 0 && err->code == ERROR_DEVICE && strstr(err->message, sentence), "%s", err->message);
    CHECK(seconds < 5, "%.1f s", seconds);
    since = clock_now_ns();
    CHECK(c->ops->barrier(c, &next) < 0 && next.code == ERROR_DEVICE, "a barrier after that");
    CHECK(c->ops->send(c, x, sizeof x, (c->rank + 1) % c->size, &next) < 0, "a send after that");
    CHECK(c->ops->recv(c, x, sizeof x, (c->rank + 1) % c->size, &next) < 0, "a receive after that");
    CHECK(c->ops->broadcast(c, x, sizeof x, c->rank, &next) < 0, "a broadcast after that");
    c->ops->close(c);
    CHECK(clock_now_ns() - since < 1000000000, "it waited after that");
}

/* The last node comes when the others have given up. */
static void late(void) {
    struct collective *c = open_or_exit(500);
    struct error err = {0};
    char x[4] = "", sentence[64];
    uint64_t since = clock_now_ns();
    if (c->rank + 1 == c->size) {
        usleep(1500000);
        broken(c, clock_now_ns(), c->ops->barrier(c, &err), &err, c->size == 2 ? "node 0 of 2 did not come" : "not all of");
        return;
    }
    snprintf(sentence, sizeof sentence, "node %zu of %zu did not come within 0.5 s", c->size - 1, c->size);
    broken(c, since, c->ops->recv(c, x, sizeof x, c->size - 1, &err), &err, sentence);
}

/* The last node ends without a word, while a large message is on its way to it. */
static void gone(void) {
    struct collective *c = open_or_exit(500);
    struct error err = {0};
    size_t n = 8 << 20;
    char *x = calloc(n, 1);
    if (c->rank + 1 == c->size) {
        c->ops->recv(c, x, 100, c->rank - 1, &err);
        puts("ok");
        fflush(stdout);
        _exit(0);
    }
    uint64_t since = clock_now_ns();
    broken(c, since, c->rank + 2 == c->size ? c->ops->send(c, x, n, c->size - 1, &err) : c->ops->barrier(c, &err), &err, "");
    free(x);
}

/* One node never begins MPI. */
static void absent(void) {
    const char *rank = getenv("OMPI_COMM_WORLD_RANK");
    struct collective *c;
    struct error err = {0};
    uint64_t since = clock_now_ns();
    if (!rank || strcmp(rank, "1") == 0) {
        usleep(1500000);
        return;
    }
    CHECK(inferd_collective_mpi()->open(500, &c, &err) < 0 && err.code == ERROR_DEVICE, "it came");
    CHECK(strstr(err.message, "not all of the nodes"), "%s", err.message);
    CHECK(clock_now_ns() - since < 3000000000, "it waited");
}

static void *abort_soon(void *c) {
    usleep(300000);
    ((struct collective *)c)->ops->abort(c);
    return NULL;
}

static void aborted(void) {
    struct collective *c = open_or_exit(20000);
    struct error err = {0};
    char x[4];
    pthread_t thread;
    if (pthread_create(&thread, NULL, abort_soon, c) != 0) {
        exit(1);
    }
    uint64_t since = clock_now_ns();
    int rc = c->ops->recv(c, x, sizeof x, (c->rank + 1) % c->size, &err);
    pthread_join(thread, NULL);
    broken(c, since, rc, &err, "told to stop");
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)(void);
    } cases[] = {{"operations", operations}, {"late", late}, {"gone", gone}, {"absent", absent}, {"aborted", aborted}};
    bool found = false;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        if (argc > 1 && strcmp(argv[1], cases[i].name) == 0) {
            cases[i].run();
            found = true;
        }
    }
    if (found && failures == 0) {
        puts("ok");
        return 0;
    }
    return 1;
}
