/* Ranks that are threads: sums in one order, gathering, broadcasting; and a group that breaks without leaving anybody waiting.
 * A plain main, so that it runs under the thread sanitizer. */
#include <inferd/clock.h>
#include <inferd/collective.h>

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static _Atomic int failures;

#define CHECK(condition, ...)                                                                                          \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            failures++;                                                                                                \
            printf("FAIL line %d: %s: ", __LINE__, #condition);                                                        \
            printf(__VA_ARGS__);                                                                                       \
            printf("\n");                                                                                              \
        }                                                                                                              \
    } while (0)

#define MOST 8
#define ROUNDS 300

struct task {
    struct collective *c;
    void (*fn)(struct collective *c, void *arg);
    void *arg;
};

static void *run(void *arg) {
    struct task *t = arg;
    t->fn(t->c, t->arg);
    t->c->ops->close(t->c);
    return NULL;
}

static void together(size_t size, size_t deadline_ms, void (*fn)(struct collective *c, void *arg), void *arg) {
    struct collective *members[MOST];
    struct task tasks[MOST];
    pthread_t threads[MOST];
    struct error err;
    if (collective_open_threads(size, deadline_ms, members, &err) < 0) {
        printf("FAIL open: %s\n", err.message);
        exit(1);
    }
    for (size_t i = 0; i < size; i++) {
        tasks[i] = (struct task){members[i], fn, arg};
        if (pthread_create(&threads[i], NULL, run, &tasks[i]) != 0) {
            exit(1);
        }
    }
    for (size_t i = 0; i < size; i++) {
        pthread_join(threads[i], NULL);
    }
}

/* Not sums of small integers: another order gives other bits. */
static float value(size_t rank, size_t i, size_t round) {
    return (float)(1.0 / (double)(3 + rank * 7 + i % 101 + round)) * (rank % 2 ? 1e4f : -1.0f);
}

static void reduce(struct collective *c, void *arg) {
    static const size_t sizes[] = {1, 2, 15, 16, 17, 63, 64, 100, 1000, 4097};
    struct error err;
    float *x = malloc(4097 * sizeof *x);
    (void)arg;
    for (size_t round = 0; round < ROUNDS; round++) {
        size_t n = sizes[round % 10];
        for (size_t i = 0; i < n; i++) {
            x[i] = value(c->rank, i, round);
        }
        CHECK(c->ops->all_reduce(c, x, DTYPE_F32, n, &err) == 0, "%s", err.message);
        for (size_t i = 0; i < n; i++) {
            float sum = value(0, i, round);
            for (size_t r = 1; r < c->size; r++) {
                sum += value(r, i, round);
            }
            CHECK(memcmp(&sum, &x[i], sizeof sum) == 0, "rank %zu of %zu, element %zu of %zu: %a, not %a", c->rank, c->size, i, n, x[i], sum);
        }
    }
    CHECK(c->ops->all_reduce(c, x, DTYPE_F32, 0, &err) == 0, "%s", err.message);
    free(x);
}

static void gather(struct collective *c, void *arg) {
    uint8_t all[MOST * 33], mine[33];
    struct error err;
    (void)arg;
    for (size_t round = 0; round < ROUNDS; round++) {
        size_t bytes = round % 34;
        memset(mine, (int)(c->rank * 31 + round) & 255, sizeof mine);
        bool in_place = round % 3 == 0;
        memset(all, 0, sizeof all);
        if (in_place) {
            memcpy(all + c->rank * bytes, mine, bytes);
        }
        CHECK(c->ops->all_gather(c, in_place ? all + c->rank * bytes : mine, bytes, all, &err) == 0, "%s", err.message);
        for (size_t i = 0; i < bytes * c->size; i++) {
            CHECK(all[i] == (uint8_t)(i / bytes * 31 + round), "byte %zu of %zu", i, bytes);
        }
        size_t root = round % c->size;
        memset(mine, c->rank == root ? 200 : 1, sizeof mine);
        CHECK(c->ops->broadcast(c, mine, bytes, root, &err) == 0, "%s", err.message);
        for (size_t i = 0; i < bytes; i++) {
            CHECK(mine[i] == 200, "broadcast of %zu", root);
        }
        CHECK(c->ops->barrier(c, &err) == 0, "%s", err.message);
    }
    CHECK(c->ops->broadcast(c, mine, 1, c->size, &err) < 0, "there is no such rank");
}

/* Rank 1 stays away: the others hear its name, at once the second time. */
static void one_stays_away(struct collective *c, void *arg) {
    float x[4] = {0};
    struct error err = {0};
    (void)arg;
    CHECK(c->ops->all_reduce(c, x, DTYPE_F32, 4, &err) == 0, "%s", err.message);
    if (c->rank == 1) {
        return;
    }
    CHECK(c->ops->all_reduce(c, x, DTYPE_F32, 4, &err) < 0, "a rank is missing");
    CHECK(err.code == ERROR_DEVICE && strstr(err.message, "rank 1 of"), "%s", err.message);
    CHECK(c->ops->barrier(c, &err) < 0, "the group is broken");
}

static void one_differs(struct collective *c, void *arg) {
    float x[8] = {0};
    struct error err = {0};
    const int *what = arg;
    int rc = *what == 0   ? c->ops->all_reduce(c, x, DTYPE_F32, c->rank == 2 ? 8 : 4, &err)
             : *what == 1 ? (c->rank == 2 ? c->ops->barrier(c, &err) : c->ops->all_reduce(c, x, DTYPE_F32, 4, &err))
                          : c->ops->broadcast(c, x, 4, c->rank == 2, &err);
    CHECK(rc < 0 && err.code == ERROR_INTERNAL && strstr(err.message, "rank 2 of"), "case %d: %s", *what, err.message);
}

static void one_aborts(struct collective *c, void *arg) {
    struct error err = {0};
    (void)arg;
    if (c->rank == 0) {
        usleep(20000);
        c->ops->abort(c);
        return;
    }
    CHECK(c->ops->barrier(c, &err) < 0 && err.code == ERROR_DEVICE, "%s", err.message);
}

int main(void) {
    struct collective *none[1];
    struct error err;
    for (size_t size = 1; size <= MOST; size += size < 4 ? 1 : 4) {
        together(size, 60000, reduce, NULL);
        together(size, 60000, gather, NULL);
    }
    uint64_t begin = clock_now_ns();
    together(4, 100, one_stays_away, NULL);
    CHECK(clock_now_ns() - begin < 30000000000u, "a missing rank holds nobody up");
    for (int what = 0; what < 3; what++) {
        together(4, 60000, one_differs, &what);
    }
    together(4, 60000, one_aborts, NULL);
    CHECK(collective_open_threads(0, 1, none, &err) < 0, "no rank");
    CHECK(collective_open_threads(COLLECTIVE_MAX_RANKS + 1, 1, none, &err) < 0, "too many");
    printf("%d failures\n", failures);
    return failures != 0;
}
