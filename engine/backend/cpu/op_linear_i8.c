/*
 * linear of I8 weights: the rows are quantised once for all parts (by the caller when they are few, else over the
 * pool), then panels of weights are cut into tasks. Sums are integers, so no cut changes a result.
 */
#include "cpu.h"
#include "weight_i8.h"

#include <string.h>

enum {
    TASK_BYTES = 128 * 1024,      /* of weights a task reads when there are few rows */
    LEAST_TASK_BYTES = 16 * 1024, /* about a microsecond */
    FEW_ROWS = 32,                /* up to here the weights' bytes take the time */
    STREAMS = 4,                  /* panels that a kernel reads side by side */
    TASK_PANELS = 2,              /* panels of a task with many rows */
    ROW_UNIT = 96,                /* rows of a task are a multiple of the kernels' blocks of 12 and of 32 */
    ROWS_BYTES = 768 * 1024,      /* of quantised rows a task goes through: they stay in the L2 cache over all panels */
    TASKS_A_THREAD = 4,
    MAX_I8_PARTS = 8,
};

struct i8_job {
    struct backend *b;
    const float *x;
    size_t ldx, rows;
    const struct linear_part *parts;
    size_t n_parts;
    size_t q_stride; /* bytes from row to row */
    size_t task_panels, task_rows;
    size_t row_tasks;
    size_t panel_tasks;        /* of all parts together */
    size_t ends[MAX_I8_PARTS]; /* panel tasks of parts 0..i */
};

static size_t div_up(size_t a, size_t b) {
    return (a + b - 1) / b;
}

static size_t min_size(size_t a, size_t b) {
    return a < b ? a : b;
}

bool i8_same_input(const struct weight *a, const struct weight *b) {
    return a->activation == b->activation && (a->activation != ACTIVATION_I8_STATIC ||
                                              (memcmp(&a->input_scale, &b->input_scale, sizeof a->input_scale) == 0 &&
                                               a->input_zero_point == b->input_zero_point));
}

/* An odd number of cache lines: rows side by side do not compete for the same sets of a cache. */
size_t i8_row_bytes(const struct cpu_kernels *kernels, size_t k) {
    size_t lines = div_up(k, I8_TILE_K) * I8_TILE_K * kernels->i8_element / 64;
    return (lines | 1) * 64;
}

static void quantise_rows(const void *arg, size_t begin, size_t end) {
    const struct i8_job *job = arg;
    const struct weight *w = job->parts[0].w;
    struct backend *b = job->b;
    for (size_t r = begin; r < end; r++) {
        b->kernels->i8_quantise(job->x + r * job->ldx, w->k, w, b->i8_rows + r * job->q_stride, &b->i8_scales[r],
                                &b->i8_offsets[r]);
    }
}

static void i8_task(void *arg, size_t i, size_t worker) {
    (void)worker;
    const struct i8_job *job = arg;
    const struct backend *b = job->b;
    size_t m0 = i / job->panel_tasks * job->task_rows, part = 0;
    i %= job->panel_tasks;
    while (i >= job->ends[part]) {
        part++;
    }
    i -= part > 0 ? job->ends[part - 1] : 0;
    const struct linear_part *p = &job->parts[part];
    const struct i8_weight *w = p->w->packed;
    struct i8_tile t = {
        .w = w,
        .bias = p->bias,
        .q = b->i8_rows ? b->i8_rows + m0 * job->q_stride : NULL,
        .ldq = job->q_stride / b->kernels->i8_element,
        .scales = b->i8_scales + m0,
        .offsets = b->i8_offsets + m0,
        .x = job->x + m0 * job->ldx,
        .ldx = job->ldx,
        .rows = min_size(job->task_rows, job->rows - m0),
        .y = (float *)p->y + m0 * p->ldy,
        .ldy = p->ldy,
        .panel0 = i * job->task_panels,
        .panel1 = min_size((i + 1) * job->task_panels, i8_panels(w)),
    };
    if (p->w->activation == ACTIVATION_FLOAT) {
        b->kernels->i8_linear_float(&t);
    } else {
        b->kernels->i8_linear(&t);
    }
}

/* Few rows: tasks are bytes of weights, in panels that make even streams. Many rows: some panels by as many rows as the
 * cache holds; the panels of one range of rows come one after the other. */
static void plan_tasks(struct i8_job *job) {
    size_t threads = job->b->threads, panels = 0, k = job->parts[0].w->k;
    for (size_t i = 0; i < job->n_parts; i++) {
        panels += i8_panels(job->parts[i].w->packed);
    }
    job->task_rows = job->rows;
    if (job->rows <= FEW_ROWS) {
        size_t panel_bytes = div_up(k, I8_TILE_K) * I8_TILE_K * I8_PANEL, bytes = panels * panel_bytes;
        size_t tasks = div_up(div_up(bytes, TASK_BYTES), threads) * threads;
        size_t each = div_up(panels, min_size(tasks, div_up(bytes, LEAST_TASK_BYTES)));
        job->task_panels = each > STREAMS ? div_up(each, STREAMS) * STREAMS : each;
    } else {
        job->task_panels = TASK_PANELS;
        size_t rows = ROWS_BYTES / job->q_stride / ROW_UNIT * ROW_UNIT, tasks = div_up(panels, TASK_PANELS);
        if (threads > 1 && tasks < threads * TASKS_A_THREAD) {
            rows = min_size(rows, div_up(job->rows, div_up(threads * TASKS_A_THREAD, tasks)));
        }
        job->task_rows = min_size(job->rows, rows < ROW_UNIT ? ROW_UNIT : div_up(rows, ROW_UNIT) * ROW_UNIT);
    }
    job->row_tasks = div_up(job->rows, job->task_rows);
    size_t end = 0;
    for (size_t i = 0; i < job->n_parts; i++) {
        end += div_up(i8_panels(job->parts[i].w->packed), job->task_panels);
        job->ends[i] = end;
    }
    job->panel_tasks = end;
}

void i8_linear(struct backend *b, const float *x, size_t ldx, size_t rows, const struct linear_part *parts,
               size_t n_parts) {
    const struct weight *w = parts[0].w;
    struct i8_job job = {.b = b, .x = x, .ldx = ldx, .rows = rows, .parts = parts, .n_parts = n_parts};
    job.q_stride = i8_row_bytes(b->kernels, w->k);
    if (w->activation != ACTIVATION_FLOAT) {
        for_rows(b, rows, w->k, quantise_rows, &job);
    }
    plan_tasks(&job);
    pool_run(b->pool, job.panel_tasks * job.row_tasks, i8_task, &job);
}
