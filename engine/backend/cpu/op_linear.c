/* linear: products of the same rows with one or more weight matrices, cut into tasks. */
#include "block_pack.h"
#include "cpu.h"
#include "weight_i8.h"

enum {
    MAX_PARTS = 8,
    TASK_BYTES =
        128 * 1024, /* of weights a task reads when there are few rows: long streams are what memory is fast at */
    LEAST_TASK_BYTES = 16 * 1024, /* about a microsecond, what it takes to hand it to another thread */
    TASK_ROWS = 4,                /* weight rows of such a task come in fours */
    TASKS_A_THREAD = 4,           /* at least, where possible, so that a disturbed thread does not hold up the others */
};

struct linear_job {
    struct backend *b;
    const float *x;
    size_t ldx, rows;
    const struct linear_part *parts;
    size_t n_parts;
    size_t task_cols;       /* weight rows of a task */
    size_t task_rows;       /* rows of x of a task */
    size_t row_tasks;       /* tasks that share the same weight rows */
    size_t ends[MAX_PARTS]; /* tasks of parts 0..i */
    bool packed;            /* any part */
    bool tiled;             /* all parts: BF16 on the tile unit */
    size_t quants_stride;
};

static size_t min_size(size_t a, size_t b) {
    return a < b ? a : b;
}

static size_t div_up(size_t a, size_t b) {
    return (a + b - 1) / b;
}

static void linear_task(void *arg, size_t i, size_t worker) {
    const struct linear_job *job = arg;
    size_t part = 0;
    while (i >= job->ends[part]) {
        part++;
    }
    i -= part > 0 ? job->ends[part - 1] : 0;
    const struct linear_part *p = &job->parts[part];
    size_t n0 = i / job->row_tasks * job->task_cols, m0 = i % job->row_tasks * job->task_rows;
    struct linear_tile t = {
        .w = p->w,
        .bias = p->bias,
        .x = job->x + m0 * job->ldx,
        .ldx = job->ldx,
        .rows = min_size(job->task_rows, job->rows - m0),
        .y = (float *)p->y + m0 * p->ldy,
        .ldy = p->ldy,
        .n0 = n0,
        .n1 = min_size(n0 + job->task_cols, p->w->n),
        .scratch = worker_scratch(job->b, worker),
    };
    if (job->tiled) {
        t.quants = job->b->quants + m0 / BF16_GROUP * job->quants_stride;
        t.quants_stride = job->quants_stride;
        job->b->kernels->linear_bf16(&t);
    } else if (p->w->packed) {
        t.quants = job->b->quants + m0 * job->quants_stride;
        t.quants_stride = job->quants_stride;
        job->b->kernels->linear_block(&t);
    } else {
        job->b->kernels->linear(&t);
    }
}

static void quantise_rows(const void *arg, size_t begin, size_t end) {
    const struct linear_job *job = arg;
    size_t k = job->parts[0].w->k;
    for (size_t r = begin; r < end; r++) {
        job->b->kernels->quantise_row(job->x + r * job->ldx, k, job->b->quants + r * job->quants_stride);
    }
}

static void pack_rows(const void *arg, size_t begin, size_t end) {
    const struct linear_job *job = arg;
    for (size_t g = begin; g < end; g++) {
        size_t m = g * BF16_GROUP;
        job->b->kernels->bf16_pack(job->x + m * job->ldx, job->ldx, min_size(BF16_GROUP, job->rows - m), job->parts[0].w->k,
                                   job->b->quants + g * job->quants_stride);
    }
}

/* The rows of x as pairs of BF16. */
static int pack(struct linear_job *job, struct error *err) {
    const struct weight *w = job->parts[0].w;
    if (cpu_grow_quants(job->b, w, err) < 0) {
        return -1;
    }
    job->tiled = true;
    job->quants_stride = bf16_group_bytes(w->k);
    for_rows(job->b, div_up(job->rows, BF16_GROUP), 2 * w->k * min_size(BF16_GROUP, job->rows), pack_rows, job);
    return 0;
}

/* The rows of x as integers, if any part is of packed blocks. */
static int quantise(struct linear_job *job, struct error *err) {
    size_t k = job->parts[0].w->k;
    for (size_t i = 0; i < job->n_parts; i++) {
        const struct weight *w = job->parts[i].w;
        if (w->packed && cpu_grow_quants(job->b, w, err) < 0) {
            return -1;
        }
        job->packed = job->packed || w->packed;
    }
    if (!job->packed) {
        return 0;
    }
    job->quants_stride = quant_row_bytes(k);
    for_rows(job->b, job->rows, 2 * k, quantise_rows, job);
    return 0;
}

/*
 * Few rows: reading the weights takes the time, so tasks are bytes of them. Many rows: a task is a panel of weight rows
 * with all rows of x, or with a part of them where there are too few panels for the threads.
 */
static void plan_tasks(struct linear_job *job) {
    size_t threads = job->b->threads, n = 0, bytes = 0;
    for (size_t i = 0; i < job->n_parts; i++) {
        n += job->parts[i].w->n;
        bytes += job->parts[i].w->n * job->parts[i].w->row_bytes;
    }
    job->task_rows = job->rows;
    job->row_tasks = 1;
    if (job->rows <= LINEAR_FEW_ROWS) {
        size_t tasks = div_up(div_up(bytes, TASK_BYTES), threads) * threads;
        size_t cols = div_up(n, min_size(tasks, div_up(bytes, LEAST_TASK_BYTES)));
        size_t even = job->tiled ? BF16_GROUP : job->packed ? BLOCK_GROUP : TASK_ROWS;
        job->task_cols = div_up(cols, even) * even;
    } else {
        job->task_cols = LINEAR_PANEL;
        size_t panels = div_up(n, LINEAR_PANEL);
        if (threads > 1 && panels < threads * TASKS_A_THREAD) {
            enum { LEAST_ROWS = 48 }; /* unpacking a panel costs about as much as a few rows */
            size_t pieces = min_size(div_up(threads * TASKS_A_THREAD, panels), div_up(job->rows, LEAST_ROWS));
            size_t even = job->tiled ? 2 * BF16_GROUP : 6;
            job->task_rows = div_up(div_up(job->rows, pieces), even) * even;
            job->row_tasks = div_up(job->rows, job->task_rows);
        }
    }
    size_t end = 0;
    for (size_t i = 0; i < job->n_parts; i++) {
        end += div_up(job->parts[i].w->n, job->task_cols) * job->row_tasks;
        job->ends[i] = end;
    }
}

/* Are they multiplied together? */
static bool same_kind(const struct backend *b, const struct weight *one, const struct weight *other) {
    return one->dtype == DTYPE_I8 ? other->dtype == DTYPE_I8 && i8_same_input(one, other)
                                  : other->dtype != DTYPE_I8 && cpu_is_tiled(b, one) == cpu_is_tiled(b, other);
}

int cpu_linear(struct backend *b, const void *x, size_t ldx, size_t rows, const struct linear_part *parts,
               size_t n_parts, struct error *err) {
    if (check_rows(b, "linear", rows, err) < 0) {
        return -1;
    }
    if (n_parts > MAX_PARTS) {
        return error_set(err, ERROR_INTERNAL, "linear of %zu parts, at most %d", n_parts, MAX_PARTS);
    }
    for (size_t i = 0; i < n_parts; i++) {
        const struct weight *w = parts[i].w;
        if (w->dtype == DTYPE_I8 && !i8_loaded(b, w)) {
            return error_set(err, ERROR_INTERNAL, "linear: part %zu was not loaded by this backend", i);
        }
        if (w->k != parts[0].w->k || w->k > ldx || w->n > parts[i].ldy) {
            return error_set(err, ERROR_INTERNAL, "linear: part %zu of %zu x %zu does not fit its rows", i, w->n, w->k);
        }
    }
    if (rows == 0 || n_parts == 0) {
        return 0;
    }
    for (size_t i = 0, end = 0; i < n_parts; i = end) {
        const struct weight *w = parts[i].w;
        for (end = i + 1; end < n_parts && same_kind(b, w, parts[end].w); end++) {
        }
        if (w->dtype == DTYPE_I8) {
            i8_linear(b, x, ldx, rows, parts + i, end - i);
            continue;
        }
        struct linear_job job = {.b = b, .x = x, .ldx = ldx, .rows = rows, .parts = parts + i, .n_parts = end - i};
        if ((cpu_is_tiled(b, w) ? pack(&job, err) : quantise(&job, err)) < 0) {
            return -1;
        }
        plan_tasks(&job);
        pool_run(b->pool, job.ends[job.n_parts - 1], linear_task, &job);
    }
    return 0;
}
