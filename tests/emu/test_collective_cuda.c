/*
 * What ranks on emulated GPUs do together: the group that the CUDA backend opens, over the stand-in of NCCL.
 *
 *     test_collective_cuda MODULE
 */
#include "harness.h"

#include "emu.h"

#include <inferd/clock.h>
#include <inferd/collective.h>

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST = 4, BYTES = 8 << 20 };

static const char *module;
static enum emu_peers peers = EMU_PEERS_NONE;
static bool lost; /* a device is: its memory cannot be freed */

static void configure_devices(int n, enum emu_order order, uint64_t seed) {
    struct emu_options o;
    emu_default_options(&o);
    o.devices = n;
    o.order = order;
    o.seed = seed;
    o.peers = peers;
    o.protect = order == EMU_ORDER_LAZY;
    if (emu_configure(&o) != cudaSuccess) {
        printf("FAIL the emulator cannot be configured\n");
        exit(1);
    }
}

struct member {
    size_t rank, n;
    const struct backend_ops *ops;
    struct backend *b;
    struct collective *host, *group;
    char links[BACKEND_LINKS];
    char *x, *y; /* device memory, BYTES each */
    void (*body)(struct member *m);
    size_t deadline_ms;
    bool batch_invariant;
};

#define OK(call) CHECK((call) == 0, "rank %zu: %s", m->rank, err.message)

static void *run_member(void *arg) {
    struct member *m = arg;
    struct error err = {0};
    char why[BACKEND_WHY];
    const struct backend_config c = {
        .rank = m->rank, .n_ranks = m->n, .max_rows = 8, .batch_invariant = m->batch_invariant, .threads = 1};
    if (backend_open("cuda", module, &c, &m->ops, &m->b, why, &err) < 0 ||
        m->ops->collective_open(m->b, m->host, &m->group, m->links, &err) < 0) {
        CHECK(false, "rank %zu: %s", m->rank, err.message);
        exit(1);
    }
    CHECK(strstr(m->links, "NCCL 2.28.9"), "%s", m->links);
    CHECK(m->group->rank == m->rank && m->group->size == m->n && m->group->ops->queued && !m->group->ops->shared_memory, "a rank");
    OK(m->ops->alloc(m->b, BYTES, (void **)&m->x, &err));
    OK(m->ops->alloc(m->b, BYTES, (void **)&m->y, &err));
    const struct backend_shapes shapes = {.max_rows = 8, .max_sequences = 2, .max_blocks = 2, .max_context = 64, .n_heads = 2,
                                          .n_kv_heads = 1, .head_dim = 32, .max_logits = 8, .vocab_size = 500};
    OK(m->ops->reserve(m->b, &shapes, &err));
    OK(m->ops->ready(m->b, &err));
    OK(m->host->ops->barrier(m->host, &err));
    m->body(m);
    m->ops->free(m->b, m->x);
    m->ops->free(m->b, m->y);
    m->group->ops->close(m->group);
    m->ops->close(m->b);
    return NULL;
}

static void with_ranks(size_t n, size_t deadline_ms, bool batch_invariant, void (*body)(struct member *)) {
    struct member members[MOST];
    struct collective *hosts[MOST];
    pthread_t threads[MOST];
    struct error err;
    if (collective_open_threads(n, deadline_ms, hosts, &err) < 0) {
        printf("FAIL %s\n", err.message);
        exit(1);
    }
    for (size_t i = 0; i < n; i++) {
        members[i] = (struct member){
            .rank = i, .n = n, .host = hosts[i], .body = body, .deadline_ms = deadline_ms, .batch_invariant = batch_invariant};
        pthread_create(&threads[i], NULL, run_member, &members[i]);
    }
    for (size_t i = 0; i < n; i++) {
        pthread_join(threads[i], NULL);
    }
    for (size_t i = 0; i < n; i++) {
        hosts[i]->ops->close(hosts[i]);
    }
    struct emu_counts c;
    emu_get_counts(&c);
    CHECK(lost || (c.allocations == 0 && c.streams == 0 && c.events == 0 && c.graphs == 0),
          "%zu allocations, %zu streams, %zu events, %zu graphs are left", c.allocations, c.streams, c.events, c.graphs);
}

static void sleep_ms(long ms) {
    nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL);
}

/* ---- operations ---- */

/* Whole numbers and eighths that F32, F16 and BF16 alike have; their sums are rounded by the smaller types. */
static float value(size_t rank, size_t i) {
    return (float)((i * 37 + rank * 101) % 251) * (rank == 1 ? 0.125f : 1.0f) * (i % 3 == 0 ? -1.0f : 1.0f);
}

static uint16_t half_of(float v, enum dtype t) { /* of such values and their sums: normal, to nearest even */
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    uint32_t sign = bits >> 16 & 0x8000u, rest = bits & 0x7fffffffu;
    if (rest == 0) {
        return (uint16_t)sign;
    }
    unsigned shift = t == DTYPE_BF16 ? 16 : 13;
    rest += ((uint32_t)1 << (shift - 1)) - 1 + (rest >> shift & 1);
    return (uint16_t)(sign | (t == DTYPE_BF16 ? rest >> 16 : (rest >> 13) - (112u << 10)));
}

static void put(void *to, size_t i, enum dtype t, float v) {
    if (t == DTYPE_F32) {
        ((float *)to)[i] = v;
    } else {
        ((uint16_t *)to)[i] = half_of(v, t);
    }
}

static void upload(struct member *m, void *to, const void *from, size_t bytes) {
    struct error err;
    OK(m->ops->upload(m->b, to, from, bytes, &err));
}

static void expect(struct member *m, const void *at, const void *want, size_t bytes, const char *what) {
    struct error err;
    char *got = malloc(bytes + 1);
    OK(m->ops->download(m->b, got, at, bytes, &err));
    size_t i = 0;
    while (i < bytes && got[i] == ((const char *)want)[i]) {
        i++;
    }
    CHECK(i == bytes, "rank %zu of %zu, %s: byte %zu of %zu is another", m->rank, m->n, what, i, bytes);
    free(got);
}

/* The sum in the order of the ranks, rounded once. With two ranks, or all sums exact, that is what any order gives. */
static void sums(struct member *m, enum dtype t, size_t n) {
    struct error err;
    size_t element = dtype_info(t)->bytes;
    void *mine = malloc(n * element), *want = malloc(n * element);
    for (size_t i = 0; i < n; i++) {
        float sum = value(0, i);
        for (size_t r = 1; r < m->n; r++) {
            sum += value(r, i);
        }
        put(mine, i, t, value(m->rank, i));
        put(want, i, t, sum);
    }
    upload(m, m->x, mine, n * element);
    OK(m->group->ops->all_reduce(m->group, m->x, t, n, &err));
    expect(m, m->x, want, n * element, dtype_info(t)->name);
    free(mine);
    free(want);
}

static void columns(struct member *m, size_t rows, size_t bytes, size_t offset) {
    struct error err;
    size_t row = bytes * m->n;
    unsigned char *mine = malloc(rows * bytes), *want = malloc(rows * row);
    for (size_t r = 0; r < rows; r++) {
        for (size_t j = 0; j < row; j++) {
            want[r * row + j] = (unsigned char)(j * 7 + j / bytes * 31 + r * 13);
        }
        memcpy(mine + r * bytes, want + r * row + m->rank * bytes, bytes);
    }
    upload(m, m->x + offset, mine, rows * bytes);
    OK(m->group->ops->gather_columns(m->group, m->x + offset, rows, bytes, m->y + offset, &err));
    expect(m, m->y + offset, want, rows * row, "columns");
    free(mine);
    free(want);
}

static void others(struct member *m) {
    struct error err;
    const struct collective_ops *op = m->group->ops;
    char mine[64], all[MOST * 64];
    memset(mine, 'a' + (int)m->rank, sizeof mine);
    for (size_t r = 0; r < m->n; r++) {
        memset(all + r * 64, 'a' + (int)r, 64);
    }
    upload(m, m->x, mine, 64);
    OK(op->all_gather(m->group, m->x, 64, m->y, &err));
    expect(m, m->y, all, m->n * 64, "gathered");
    upload(m, m->y + m->rank * 64, mine, 64);
    OK(op->all_gather(m->group, m->y + m->rank * 64, 64, m->y, &err));
    expect(m, m->y, all, m->n * 64, "gathered in place");
    OK(op->barrier(m->group, &err));
    OK(op->broadcast(m->group, m->x, 64, 1, &err));
    expect(m, m->x, all + 64, 64, "broadcast");
    CHECK(op->broadcast(m->group, m->x, 64, m->n, &err) < 0 && err.code == ERROR_INTERNAL, "a rank that is none");
    CHECK(op->all_reduce(m->group, m->x, DTYPE_I8, 64, &err) < 0 && err.code == ERROR_INTERNAL, "a type that is not summed");
    CHECK(op->gather_columns(m->group, m->x, 1, (size_t)1 << 40, m->y, &err) < 0 && err.code == ERROR_INTERNAL, "so wide");
    /* from stage to stage */
    upload(m, m->x, mine, 64);
    if (m->rank > 0) {
        OK(op->recv(m->group, m->x, 32, m->rank - 1, &err));
    }
    if (m->rank + 1 < m->n) {
        OK(op->send(m->group, m->x, 32, m->rank + 1, &err));
    }
    expect(m, m->x, "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", 32, "handed on");
    OK(op->all_reduce(m->group, NULL, DTYPE_F32, 0, &err));
    OK(op->gather_columns(m->group, NULL, 0, 0, NULL, &err));
}

/* The best of logits that the ranks have parts of: of equal ones the lowest, none where one is no number. */
static void best(struct member *m) {
    enum { ROWS = 7, COLUMNS = 70, LD = 80 };
    struct error err;
    static const struct {
        size_t at[2];
        float value;
        int32_t want;
    } rows[ROWS] = {{{0, 0}, 9, 0},     {{69, 69}, 9, 69}, {{70, 70}, 9, 70}, {{140, 75}, 9, 75}, /* in two ranks' columns */
                    {{130, 130}, 9, 7}, /* beyond the vocabulary; the next best is 8 at 7 */
                    {{71, 71}, INFINITY, CHOICE_NONFINITE}, {{3, 3}, NAN, CHOICE_NONFINITE}};
    size_t vocab = m->n > 2 ? 145 : 100, first = m->rank * COLUMNS;
    static float parts[MOST][ROWS * LD];
    float *part = parts[m->rank];
    struct choice_row choices[ROWS];
    int32_t tokens[ROWS];
    for (size_t r = 0; r < ROWS; r++) {
        for (size_t j = 0; j < LD; j++) {
            size_t id = first + j;
            bool here = id == rows[r].at[0] || id == rows[r].at[1];
            part[r * LD + j] = j >= COLUMNS ? 1e9f : here ? rows[r].value : id == 7 ? 8.0f : -(float)(id % 5);
        }
        choices[r] = (struct choice_row){.logits_row = r, .greedy = true};
    }
    upload(m, m->x, part, ROWS * LD * sizeof(float));
    static const size_t looks[] = {1, 2, 3, CHOICE_BEST}; /* as beside rows that look at more */
    for (size_t i = 0; i < ROWS * (sizeof looks / sizeof looks[0]); i++) {
        size_t r = i % ROWS, k = looks[i / ROWS];
        if (r == 0) {
            OK(m->group->ops->choose_best(m->group, (float *)(void *)m->x, LD, first, COLUMNS, vocab, choices, ROWS, k, &err));
            OK(m->ops->chosen(m->b, tokens, ROWS, &err));
        }
        bool beyond = rows[r].at[0] >= vocab && rows[r].at[1] >= vocab;
        int32_t want = rows[r].at[0] >= vocab && rows[r].at[1] < vocab ? (int32_t)rows[r].at[1] : beyond ? 7 : rows[r].want;
        want = r == 4 && !beyond ? 130 : want;
        CHECK(tokens[r] == want, "rank %zu of %zu, row %zu, the %zu best: %d, not %d", m->rank, m->n, r, k, tokens[r], want);
    }
}

static void all_operations(struct member *m) {
    static const enum dtype types[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};
    struct error err;
    struct emu_counts before, after;
    OK(m->host->ops->barrier(m->host, &err));
    emu_get_counts(&before);
    for (size_t i = 0; i < 3; i++) {
        bool exact = m->n == 2 || m->batch_invariant || types[i] == DTYPE_F32 || peers == EMU_PEERS;
        for (size_t n = 1; exact && n < 40000; n = 7 * n + 3) {
            sums(m, types[i], n);
        }
    }
    if (m->batch_invariant) {
        sums(m, DTYPE_F32, ((size_t)5 << 20) / 4); /* more than the workspace */
    }
    columns(m, 5, 4, 0);
    columns(m, 3, 48, 0);
    columns(m, 3, 48, 4);
    columns(m, 2, 7, 1);
    columns(m, 3, (size_t)600 << 10, 0); /* in two parts */
    others(m);
    best(m);
    OK(m->host->ops->barrier(m->host, &err));
    emu_get_counts(&after);
    CHECK(after.calls[EMU_CALL_MALLOC] == before.calls[EMU_CALL_MALLOC], "memory was taken");
}

/* A graph does it again with what lies there then. */
static void in_a_graph(struct member *m) {
    struct error err;
    struct backend_graph *graph = NULL;
    const float mine[2] = {(float)(m->rank + 1), 0.5f};
    float want[2] = {(float)(m->n * (m->n + 1) / 2), 0.5f * (float)m->n};
    OK(m->ops->graph_begin(m->b, &err));
    OK(m->group->ops->all_reduce(m->group, m->x, DTYPE_F32, 2, &err));
    OK(m->group->ops->gather_columns(m->group, m->x, 1, 8, m->y, &err));
    OK(m->ops->graph_end(m->b, &graph, &err));
    upload(m, m->x, mine, sizeof mine);
    OK(m->ops->graph_launch(m->b, graph, &err));
    expect(m, m->x, want, sizeof want, "sums of a graph");
    OK(m->ops->graph_launch(m->b, graph, &err));
    want[0] *= (float)m->n;
    want[1] *= (float)m->n;
    expect(m, m->y + 8 * (m->n - 1), want, sizeof want, "columns of a graph");
    m->ops->graph_free(m->b, graph);
}

static void operations(void) {
    static const enum emu_order orders[] = {EMU_ORDER_EAGER, EMU_ORDER_RANDOM, EMU_ORDER_LAZY};
    for (size_t i = 0; i < 3; i++) {
        for (size_t n = 2; n <= MOST; n += 1 + i) {
            configure_devices((int)n, orders[i], n);
            with_ranks(n, 60000, n % 2 || i > 0, all_operations);
            with_ranks(n, 60000, false, in_a_graph);
        }
    }
}

/* ---- faults ---- */

enum { DEADLINE_MS = 400 };
static uint64_t began;
static _Atomic bool called; /* by one rank at least: an injection was for it */

static void wait_for_the_other(void) {
    while (!called) {
        sleep_ms(1);
    }
}

static double seconds(void) {
    return (double)(clock_now_ns() - began) / 1e9;
}

/* What is queued is waited for; it fails on this rank, and so does what comes behind. */
static void fails(struct member *m, const char *words, const char *or) {
    struct error err = {0}, again = {0};
    int rc = m->group->ops->all_reduce(m->group, m->x, DTYPE_F32, 100, &err);
    called = true;
    rc = rc == 0 ? m->ops->sync(m->b, &err) : rc;
    CHECK(rc < 0 && err.code == ERROR_DEVICE && (strstr(err.message, words) || (or && strstr(err.message, or))), "rank %zu: %d, %s",
          m->rank, rc, err.message);
    CHECK(m->ops->sync(m->b, &again) < 0 && again.code == ERROR_DEVICE && strcmp(again.message, err.message) == 0, "%s, then %s",
          err.message, again.message);
    CHECK(m->group->ops->barrier(m->group, &again) < 0, "it is lost");
}

static void comes_late(struct member *m) {
    if (m->rank == 1) {
        sleep_ms(3 * DEADLINE_MS);
        fails(m, "told to stop", "rank ");
    } else {
        fails(m, "rank 1 of 3 did not come within 0.4 s", "told to stop");
        CHECK(seconds() > 0.9 * DEADLINE_MS / 1e3 && seconds() < 30, "%.1f s", seconds());
    }
}

/* Who waits for tokens or for a copy does not wait for ever either. */
static void comes_late_to_a_copy(struct member *m) {
    struct error err = {0};
    char byte;
    if (m->rank == 0) {
        OK(m->group->ops->all_reduce(m->group, m->x, DTYPE_F32, 100, &err));
        CHECK(m->ops->download(m->b, &byte, m->x, 1, &err) < 0 && err.code == ERROR_DEVICE &&
                  strstr(err.message, "rank 1 of 2 did not come"),
              "%s", err.message);
    } else {
        sleep_ms(2 * DEADLINE_MS);
    }
}

static void is_aborted(struct member *m) {
    if (m->rank == 1) {
        sleep_ms(50);
        m->group->ops->abort(m->group);
    }
    fails(m, "told to stop", NULL);
    CHECK(seconds() < 30, "%.1f s of a deadline of a minute", seconds());
    struct error err;
    CHECK(m->host->ops->barrier(m->host, &err) < 0, "the group on the host ends with it");
}

/* The stream holds what will never end, and nobody waits: memory is freed all the same. */
static void is_left(struct member *m) {
    struct error err;
    if (m->rank == 0) {
        OK(m->group->ops->all_reduce(m->group, m->x, DTYPE_F32, 100, &err));
        sleep_ms(50); /* the other is out of the barrier before */
        m->group->ops->abort(m->group);
    }
}

static void nccl_reports(struct member *m) {
    if (m->rank == 0) {
        emu_fail_nccl(0, 6);
        fails(m, "NCCL reports: remote process exited", NULL);
    } else {
        fails(m, "rank 0: CUDA device 0", NULL);
    }
    CHECK(seconds() < 30, "%.1f s of a deadline of a minute", seconds());
}

static void device_is_lost(struct member *m) {
    if (m->rank == 1) {
        emu_inject(EMU_CALL_COLLECTIVE, 1, 1, cudaErrorECCUncorrectable);
        fails(m, "CUDA device 1: waiting for the device failed: uncorrectable ECC", NULL);
    } else {
        wait_for_the_other();
        fails(m, "rank 1: CUDA device 1", "told to stop");
    }
    CHECK(seconds() < 30, "%.1f s of a deadline of a minute", seconds());
}

static void launch_fails(struct member *m) {
    if (m->rank == 1) {
        emu_inject(EMU_CALL_COLLECTIVE, 1, 1, cudaErrorMemoryAllocation);
        fails(m, "a sum over NCCL failed: unhandled cuda error", NULL);
    } else {
        wait_for_the_other();
        fails(m, "rank 1: CUDA device 1: a sum over NCCL failed", NULL);
    }
}

static void sizes_differ(struct member *m) {
    struct error err = {0};
    int rc = m->group->ops->all_reduce(m->group, m->x, DTYPE_F32, 100 + m->rank, &err);
    rc = rc == 0 ? m->ops->sync(m->b, &err) : rc;
    CHECK(rc < 0 && err.code == ERROR_DEVICE, "rank %zu: %s", m->rank, err.message);
}

static void fault(size_t n, size_t deadline_ms, void (*body)(struct member *)) {
    lost = body == device_is_lost || body == sizes_differ;
    configure_devices((int)n, EMU_ORDER_RANDOM, 1);
    began = clock_now_ns();
    called = false;
    with_ranks(n, deadline_ms, false, body);
    emu_inject_clear();
}

/* ---- peer memory ---- */

/* It says that devices see one another's memory, and they do not: the probe finds it, and sums go over NCCL. */
static void is_without_peers(struct member *m) {
    CHECK(strcmp(m->group->ops->name, "nccl") == 0 && !m->group->ops->all_reduce_add_rms_norm, "%s", m->group->ops->name);
    sums(m, DTYPE_F32, 100);
}

static void a_lie_is_found(void) {
    peers = EMU_PEERS_LIE;
    configure_devices(3, EMU_ORDER_RANDOM, 1);
    with_ranks(3, 60000, false, is_without_peers);
    peers = EMU_PEERS_NONE;
}

/* How a rank reaches each of the others, as the driver has it, comes first in what it says of them. */
static const char *link_kind;

static void says_its_links(struct member *m) {
    static const char *const others[] = {"1-3", "0, 2-3", "0-1, 3", "0-2"};
    char want[64];
    snprintf(want, sizeof want, "%s (%s), ", link_kind, others[m->rank]);
    CHECK(strncmp(m->links, want, strlen(want)) == 0, "rank %zu: \"%s\", not \"%s\"", m->rank, m->links, want);
}

static void links_are_said(void) {
    static const struct {
        enum emu_peers peers;
        const char *link;
    } kinds[] = {{EMU_PEERS, "NVLink"}, {EMU_PEERS_PCIE, "PCIe"}, {EMU_PEERS_NONE, "memory of the host"}};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        peers = kinds[i].peers;
        link_kind = kinds[i].link;
        configure_devices(4, EMU_ORDER_EAGER, 1);
        with_ranks(4, 60000, false, says_its_links);
    }
}

/* Sum and norm in one launch have the bits of the one behind the other. */
static void norm_is_the_same(struct member *m, size_t rows, size_t dim, bool quantised) {
    struct error err;
    size_t ld = (dim + ROWS_I8_PAD - 1) / ROWS_I8_PAD * ROWS_I8_PAD;
    float *stream = calloc(2 * rows * dim, sizeof *stream), *weights = calloc(dim, sizeof *weights);
    uint16_t *part = calloc(rows * dim, sizeof *part);
    unsigned char *got[2] = {calloc(rows, ld * 2 + 4), calloc(rows, ld * 2 + 4)};
    for (size_t i = 0; i < rows * dim; i++) {
        stream[i] = stream[rows * dim + i] = (float)((i * 37 + 11) % 101) / 13.0f - 3;
        put(part, i, DTYPE_BF16, (float)((i * 29 + 7 * m->rank) % 97) / 31.0f - 1.5f);
    }
    for (size_t i = 0; i < dim; i++) {
        weights[i] = 0.5f + (float)(i % 9) / 8;
    }
    char *at = m->x;
    float *x = (float *)(void *)at, *w = x + 2 * rows * dim;
    char *residual = (char *)(w + (dim + 63) / 64 * 64), *y = residual + (rows * dim * 2 + 255) / 256 * 256, *q = y + (rows * dim * 2 + 255) / 256 * 256;
    struct rows_i8 to = {(int8_t *)q, ld, (float *)(void *)(q + (rows * ld + 255) / 256 * 256)};
    const struct rows_i8 *out = quantised ? &to : NULL;
    upload(m, x, stream, 2 * rows * dim * sizeof *stream);
    upload(m, w, weights, dim * sizeof *weights);
    for (int fused = 0; fused < 2; fused++) {
        float *own = x + (fused ? rows * dim : 0);
        upload(m, residual, part, rows * dim * sizeof *part);
        if (fused) {
            OK(m->group->ops->all_reduce_add_rms_norm(m->group, y, dim, out, own, dim, residual, dim, w, rows, dim, 1e-5f, &err));
        } else {
            OK(m->group->ops->all_reduce(m->group, residual, DTYPE_BF16, rows * dim, &err));
            OK(m->ops->add_rms_norm(m->b, y, dim, out, own, dim, residual, dim, w, rows, dim, 1e-5f, &err));
        }
        OK(m->ops->sync(m->b, &err));
        OK(m->ops->download(m->b, got[fused], quantised ? q : y, rows * (quantised ? ld : dim * 2), &err));
        OK(m->ops->download(m->b, stream + fused * rows * dim, own, rows * dim * sizeof *stream, &err));
        if (quantised) {
            OK(m->ops->download(m->b, got[fused] + rows * ld, to.scales, rows * sizeof(float), &err));
        }
    }
    CHECK(memcmp(got[0], got[1], rows * (quantised ? ld + 4 : dim * 2)) == 0, "rank %zu: %zu rows of %zu", m->rank, rows, dim);
    CHECK(memcmp(stream, stream + rows * dim, rows * dim * sizeof *stream) == 0, "rank %zu: the stream, %zu rows of %zu", m->rank, rows, dim);
    free(stream);
    free(weights);
    free(part);
    free(got[0]);
    free(got[1]);
}

static void all_norms(struct member *m) {
    CHECK(m->group->ops->all_reduce_add_rms_norm != NULL, "%s", m->group->ops->name);
    for (int quantised = 0; m->group->ops->all_reduce_add_rms_norm && quantised < 2; quantised++) {
        norm_is_the_same(m, 1, 64, quantised);
        norm_is_the_same(m, 40, 200, quantised); /* more rows than blocks */
        norm_is_the_same(m, 3, 1001, quantised);
        norm_is_the_same(m, 70, 2048, quantised); /* more than one shot takes */
    }
}

static void norms(void) {
    for (size_t n = 2; n <= 4; n += 2) {
        configure_devices((int)n, n == 2 ? EMU_ORDER_RANDOM : EMU_ORDER_LAZY, n);
        with_ranks(n, 60000, n == 4, all_norms);
    }
}

/* ---- devices ---- */

static void too_few_devices(void) {
    const struct backend_ops *ops;
    struct backend *b;
    struct error err;
    char why[BACKEND_WHY];
    struct backend_config c = {.rank = 1, .n_ranks = 2, .max_rows = 1};
    configure_devices(2, EMU_ORDER_EAGER, 1);
    CHECK(backend_open("cuda:1", module, &c, &ops, &b, why, &err) < 0 && err.code == ERROR_DEVICE &&
              strstr(err.message, "2 ranks take as many CUDA devices, from device 1 on, and the driver knows 2"),
          "%s", err.message);
    c.rank = 0; /* said by the first rank too */
    CHECK(backend_open("cuda:1", module, &c, &ops, &b, why, &err) < 0 && strstr(err.message, "2 ranks"), "%s", err.message);
    c.n_ranks = 0;
    if (backend_open("cuda:1", module, &c, &ops, &b, why, &err) < 0) {
        CHECK(false, "%s", err.message);
        return;
    }
    struct backend_info info;
    ops->info(b, &info);
    CHECK(strncmp(info.device, "CUDA device 1,", 14) == 0, "%s", info.device);
    ops->close(b);
}

/* One thread with two backends, and a backend that is called by another thread than opened it. */
static struct backend *backends[2];
static const struct backend_ops *ops_of;
static void *memory[2];

static void *use_both(void *arg) {
    struct error err = {0};
    char text[2][8] = {"first", "second"}, got[8];
    (void)arg;
    for (size_t i = 0; i < 4; i++) {
        CHECK(ops_of->upload(backends[i % 2], memory[i % 2], text[i % 2], 8, &err) == 0, "%s", err.message);
    }
    for (size_t i = 0; i < 4; i++) {
        CHECK(ops_of->download(backends[i % 2], got, memory[i % 2], 8, &err) == 0 && strcmp(got, text[i % 2]) == 0, "%s", err.message);
    }
    return NULL;
}

static void threads_come_to_several(void) {
    struct error err;
    char why[BACKEND_WHY];
    pthread_t thread;
    configure_devices(2, EMU_ORDER_LAZY, 1);
    for (size_t i = 0; i < 2; i++) {
        struct backend_config c = {.rank = i, .n_ranks = 2, .max_rows = 1};
        if (backend_open("cuda", module, &c, &ops_of, &backends[i], why, &err) < 0) {
            CHECK(false, "%s", err.message);
            return;
        }
    }
    for (size_t i = 0; i < 2; i++) {
        CHECK(ops_of->alloc(backends[i], 64, &memory[i], &err) == 0, "%s", err.message);
    }
    struct emu_counts c;
    emu_get_counts(&c);
    CHECK(c.device_bytes[0] == c.device_bytes[1], "%zu and %zu bytes", c.device_bytes[0], c.device_bytes[1]);
    use_both(NULL);
    pthread_create(&thread, NULL, use_both, NULL);
    pthread_join(thread, NULL);
    for (size_t i = 0; i < 2; i++) {
        ops_of->free(backends[i], memory[i]);
        ops_of->close(backends[i]);
    }
}

/* ---- a rank without a part of a matrix ---- */

static struct weight matrix(enum dtype t, size_t n, size_t k, const void *data, const float *scales, enum activation_quant a) {
    struct weight w = {.dtype = t, .n = n, .k = k, .row_bytes = k * dtype_info(t)->bytes, .data = data, .scales = scales, .activation = a};
    return w;
}

/* Rows that do not exist are not written, columns that do not exist sum to zero; the parts beside them are what they are alone. */
static void parts_of_nothing(enum dtype t, enum activation_quant activation, size_t rows) {
    enum { K = 96, A = 5, LD = 8, MOST_ROWS = 12 };
    static const float ones[A] = {1, 1, 1, 1, 1};
    static uint16_t x[MOST_ROWS * K];
    static unsigned char numbers[A * K * 4];
    const struct backend_ops *ops;
    struct backend *b;
    struct error err;
    char why[BACKEND_WHY];
    float bias[A] = {1, 2, 3, 4, 5}, want[MOST_ROWS * LD], got[MOST_ROWS * LD];
    float *y = NULL, *device_bias = NULL;
    void *device_x;
    configure_devices(1, EMU_ORDER_EAGER, 1);
    const struct backend_config c = {.max_rows = MOST_ROWS, .batch_invariant = rows > 8};
    if (backend_open("cuda", module, &c, &ops, &b, why, &err) < 0) {
        CHECK(false, "%s", err.message);
        return;
    }
    for (size_t i = 0; i < A * K; i++) {
        float v = (float)(int)(i % 5) - 2;
        uint16_t h = half_of(v, DTYPE_BF16);
        int8_t q = (int8_t)v;
        memcpy(numbers + i * dtype_info(t)->bytes, t == DTYPE_F32 ? (void *)&v : t == DTYPE_BF16 ? (void *)&h : (void *)&q,
               dtype_info(t)->bytes);
    }
    for (size_t i = 0; i < MOST_ROWS * K; i++) {
        x[i] = half_of((float)(i % 7), DTYPE_BF16);
    }
    struct weight some = matrix(t, A, K, numbers, ones, activation), no_rows = matrix(t, 0, K, numbers, ones, activation),
                  no_columns = matrix(t, A, 0, numbers, ones, activation);
    CHECK(ops->weight_load(b, &some, &err) == 0 && ops->weight_load(b, &no_rows, &err) == 0 &&
              ops->weight_load(b, &no_columns, &err) == 0,
          "%s", err.message);
    CHECK(ops->alloc(b, sizeof got, (void **)&y, &err) == 0 && ops->alloc(b, sizeof bias, (void **)&device_bias, &err) == 0 &&
              ops->alloc(b, sizeof x, &device_x, &err) == 0 && ops->upload(b, device_x, x, sizeof x, &err) == 0 &&
              ops->upload(b, device_bias, bias, sizeof bias, &err) == 0,
          "%s", err.message);
    const struct linear_part alone = {&some, device_bias, y, LD, DTYPE_F32};
    CHECK(ops->linear(b, device_x, K, rows, &alone, 1, &err) == 0 && ops->download(b, want, y, sizeof want, &err) == 0, "%s", err.message);
    CHECK(want[0] != 0 && want[LD] != 0, "nothing is computed");
    ops->free(b, y);
    CHECK(ops->alloc(b, sizeof got, (void **)&y, &err) == 0, "%s", err.message); /* zeros */
    const struct linear_part nothing = {&no_rows, NULL, y + 6, LD, DTYPE_F32};
    const struct linear_part parts[] = {nothing, {&some, device_bias, y, LD, DTYPE_F32}, nothing};
    CHECK(ops->linear(b, device_x, K, rows, parts, 3, &err) == 0 && ops->download(b, got, y, sizeof got, &err) == 0, "%s", err.message);
    CHECK(memcmp(got, want, sizeof got) == 0, "%s, %zu rows: another product beside nothing", dtype_info(t)->name, rows);
    const struct linear_part sums[] = {{&no_columns, device_bias, y, LD, DTYPE_F32}};
    CHECK(ops->linear(b, device_x, K, rows, sums, 1, &err) == 0 && ops->download(b, got, y, sizeof got, &err) == 0, "%s", err.message);
    for (size_t i = 0; i < rows * LD; i++) {
        CHECK(got[i] == (i % LD < A ? bias[i % LD] : 0), "%s: %g in row %zu", dtype_info(t)->name, (double)got[i], i / LD);
    }
    const struct rows_i8 q = {(int8_t *)device_x, 0, (float *)device_x};
    const struct linear_part bare[] = {{&no_columns, NULL, y, LD, DTYPE_F32}, nothing};
    CHECK((t == DTYPE_I8 ? ops->linear_i8(b, &q, rows, bare, 2, &err) : ops->linear(b, device_x, K, rows, bare, 2, &err)) == 0 &&
              ops->download(b, got, y, sizeof got, &err) == 0,
          "%s", err.message);
    for (size_t i = 0; i < rows * LD; i++) {
        CHECK(got[i] == 0, "%s: %g in row %zu", dtype_info(t)->name, (double)got[i], i / LD);
    }
    ops->weight_unload(b, &some);
    ops->weight_unload(b, &no_rows);
    ops->weight_unload(b, &no_columns);
    ops->free(b, y);
    ops->free(b, device_x);
    ops->free(b, device_bias);
    ops->close(b);
    struct emu_counts counts;
    emu_get_counts(&counts);
    CHECK(counts.allocations == 0, "%zu allocations are left", counts.allocations);
}

static void a_part_may_be_missing(void) {
    static const struct {
        enum dtype t;
        enum activation_quant a;
    } kinds[] = {{DTYPE_I8, ACTIVATION_I8_TOKEN}, {DTYPE_I8, ACTIVATION_I8_TOKEN_ZERO}, {DTYPE_I8, ACTIVATION_FLOAT},
                 {DTYPE_BF16, ACTIVATION_FLOAT},  {DTYPE_F32, ACTIVATION_FLOAT}};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        parts_of_nothing(kinds[i].t, kinds[i].a, 2);
        parts_of_nothing(kinds[i].t, kinds[i].a, 12);
    }
}

int main(int argc, char **argv) {
    if (argc < 2) {
        return 2;
    }
    module = argv[1];
    RUN(a_part_may_be_missing);
    RUN(too_few_devices);
    RUN(threads_come_to_several);
    RUN(operations);
    RUN(a_lie_is_found);
    RUN(links_are_said);
    peers = EMU_PEERS;
    RUN(operations);
    RUN(norms);
    RUN(fault, 3, DEADLINE_MS, comes_late);
    RUN(fault, 2, DEADLINE_MS, comes_late_to_a_copy);
    RUN(fault, 3, 60000, is_aborted);
    RUN(fault, 2, 60000, is_left);
    peers = EMU_PEERS_NONE;
    RUN(fault, 3, DEADLINE_MS, comes_late);
    RUN(fault, 2, DEADLINE_MS, comes_late_to_a_copy);
    RUN(fault, 3, 60000, is_aborted);
    RUN(fault, 2, 60000, is_left);
    RUN(fault, 2, 60000, nccl_reports);
    RUN(fault, 2, 60000, launch_fails);
    RUN(fault, 2, 60000, device_is_lost);
    RUN(fault, 2, 60000, sizes_differ);
    printf(failures ? "%d checks failed\n" : "all passed\n", failures);
    return failures != 0;
}
