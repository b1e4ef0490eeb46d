/* attention: checks the batch, cuts it into tasks, and splits long contexts over the threads where there are few tasks.
 */
#include "cpu.h"

struct attention_job {
    struct backend *b;
    const struct attention_args *args;
    size_t n_ranges;
    size_t group;      /* query heads of a KV head */
    size_t task_heads; /* query heads of a task */
    size_t head_tasks; /* tasks of a KV head's group */
    size_t n_tasks;
    size_t run;        /* tasks that one thread takes at once */
    size_t n_segments; /* when split: of every task, counted from position 0 */
    size_t stride;     /* floats of a partial result */
};

static size_t div_up(size_t a, size_t b) {
    return (a + b - 1) / b;
}

static int check_shapes(const struct backend *b, const struct attention_args *a, struct error *err) {
    const struct kv_layer *kv = a->kv;
    if (check_rows(b, "attention", a->rows, err) < 0) {
        return -1;
    }
    if (check_kv_dtype(kv, err) < 0) {
        return -1;
    }
    if (a->head_dim == 0 || a->head_dim > MAX_HEAD_DIM) {
        return error_set(err, ERROR_UNSUPPORTED, "attention heads of %zu features, at most %d are supported",
                         a->head_dim, MAX_HEAD_DIM);
    }
    if (a->n_kv_heads == 0 || a->n_heads % a->n_kv_heads != 0 || a->head_dim != kv->head_dim ||
        a->n_kv_heads != kv->n_kv_heads || kv->block_size == 0) {
        return error_set(err, ERROR_INTERNAL, "attention: %zu query heads do not fit the KV memory's %zu heads of %zu",
                         a->n_heads, kv->n_kv_heads, kv->head_dim);
    }
    return 0;
}

static int check_sequence(const struct attention_args *a, size_t s, struct error *err) {
    int32_t first = a->cu_seqlens[s], last = a->cu_seqlens[s + 1], context = a->context_lens[s];
    if (first < 0 || last < first || (size_t)last > a->rows || context < last - first) {
        return error_set(err, ERROR_INTERNAL, "attention: sequence %zu has rows %d to %d and a context of %d", s,
                         (int)first, (int)last, (int)context);
    }
    size_t blocks = last > first ? div_up((size_t)context, a->kv->block_size) : 0;
    if (blocks > a->max_blocks) {
        return error_set(err, ERROR_INTERNAL, "attention: sequence %zu has %d tokens in %zu blocks", s, (int)context,
                         a->max_blocks);
    }
    for (size_t i = 0; i < blocks; i++) {
        int32_t block = a->block_tables[s * a->max_blocks + i];
        if (block < 0 || (size_t)block >= a->kv->n_blocks) {
            return error_set(err, ERROR_INTERNAL, "attention: block %d of sequence %zu is not one of %zu", (int)block,
                             s, a->kv->n_blocks);
        }
    }
    return 0;
}

/* Cut each sequence's rows into ranges of at most `most`; a range has a row at least, so there are at most a->rows. */
static size_t cut_ranges(struct attention_range *ranges, const struct attention_args *a, size_t most) {
    size_t n = 0;
    for (size_t s = 0; s < a->n_sequences; s++) {
        int32_t first = a->cu_seqlens[s], last = a->cu_seqlens[s + 1];
        for (int32_t row = first; row < last; row += (int32_t)most) {
            ranges[n++] = (struct attention_range){
                .sequence = (int32_t)s,
                .first_row = row,
                .n_rows = last - row < (int32_t)most ? last - row : (int32_t)most,
                .first_position = a->context_lens[s] - (last - row),
            };
        }
    }
    return n;
}

static struct attention_task make_task(const struct attention_job *job, size_t i, size_t worker) {
    const struct attention_args *a = job->args;
    size_t head_task = i % job->head_tasks, kv_head = i / job->head_tasks % a->n_kv_heads;
    /* The last ranges of a prompt see the most keys: they go first, so that no thread is left with a long one. */
    size_t range = job->n_ranges - 1 - i / (job->head_tasks * a->n_kv_heads);
    const struct attention_range *r = &job->b->ranges[range];
    size_t first = head_task * job->task_heads, left = job->group - first;
    return (struct attention_task){
        .args = a,
        .sequence = (size_t)r->sequence,
        .kv_head = kv_head,
        .first_row = (size_t)r->first_row,
        .n_rows = (size_t)r->n_rows,
        .first_position = (size_t)r->first_position,
        .first_head = kv_head * job->group + first,
        .n_heads = left < job->task_heads ? left : job->task_heads,
        .scratch = worker_scratch(job->b, worker),
    };
}

/* Tasks [i * run, +run) one after the other. */
static void whole_tasks(void *arg, size_t i, size_t worker) {
    const struct attention_job *job = arg;
    size_t at = i * job->run, end = at + job->run < job->n_tasks ? at + job->run : job->n_tasks;
    struct attention_task t = make_task(job, at, worker);
    while (at < end) {
        struct attention_task next;
        if (++at < end) {
            next = make_task(job, at, worker);
            t.next = &next;
        }
        job->b->kernels->attention_whole(&t);
        if (at < end) {
            t = next;
        }
    }
}

static void segment_task(void *arg, size_t i, size_t worker) {
    const struct attention_job *job = arg;
    struct attention_task t = make_task(job, i / job->n_segments, worker);
    job->b->kernels->attention_segment(&t, i % job->n_segments, job->b->partials + i * job->stride);
}

static void merge_task(void *arg, size_t i, size_t worker) {
    const struct attention_job *job = arg;
    struct attention_task t = make_task(job, i, worker);
    job->b->kernels->attention_merge(&t, job->b->partials + i * job->n_segments * job->stride, job->stride,
                                     job->n_segments);
}

/* Are there too few tasks for the threads, more than one segment to share, and room for the partial results? */
static bool worth_splitting(struct attention_job *job) {
    const struct attention_args *a = job->args;
    size_t longest = 0, most_rows = 0;
    for (size_t i = 0; i < job->n_ranges; i++) {
        const struct attention_range *r = &job->b->ranges[i];
        size_t end = (size_t)r->first_position + (size_t)r->n_rows;
        longest = end > longest ? end : longest;
        most_rows = (size_t)r->n_rows > most_rows ? (size_t)r->n_rows : most_rows;
    }
    job->n_segments = div_up(longest, ATTENTION_SEGMENT);
    job->stride = most_rows * job->task_heads * (div_up(a->head_dim, 32) * 32 + 2);
    return job->b->threads > 1 && job->n_tasks < 2 * job->b->threads && job->n_segments > 1 &&
           job->n_segments <= job->b->partial_floats / job->stride / job->n_tasks;
}

/* Tasks of short contexts are taken several at once: so that a run is worth handing out, and the next one's keys are
 * fetched meanwhile. But each thread should have some runs. */
static size_t plan_run(const struct attention_job *job) {
    enum { WORTH = 64 * 1024, RUNS_A_THREAD = 4 }; /* multiplications by two: some ten microseconds */
    const struct attention_args *a = job->args;
    size_t work = 0;
    for (size_t i = 0; i < job->n_ranges; i++) {
        const struct attention_range *r = &job->b->ranges[i];
        work += (size_t)r->n_rows * ((size_t)r->first_position + (size_t)r->n_rows);
    }
    work = work * job->task_heads * a->head_dim / job->n_ranges + 1;
    size_t most = job->n_tasks / (RUNS_A_THREAD * job->b->threads), run = WORTH / work;
    run = run < most ? run : most;
    return run > 0 ? run : 1;
}

int cpu_attention(struct backend *b, const struct attention_args *a, struct error *err) {
    if (check_shapes(b, a, err) < 0) {
        return -1;
    }
    for (size_t s = 0; s < a->n_sequences; s++) {
        if (check_sequence(a, s, err) < 0) {
            return -1;
        }
    }
    struct attention_job job = {.b = b, .args = a, .group = a->n_heads / a->n_kv_heads};
    job.task_heads = job.group < ATTENTION_QUERIES ? job.group : ATTENTION_QUERIES;
    if (job.task_heads == 0) {
        return 0;
    }
    job.head_tasks = div_up(job.group, job.task_heads);
    job.n_ranges = cut_ranges(b->ranges, a, ATTENTION_QUERIES / job.task_heads);
    job.n_tasks = job.n_ranges * a->n_kv_heads * job.head_tasks;
    if (job.n_tasks == 0) {
        return 0;
    }
    if (worth_splitting(&job)) {
        pool_run(b->pool, job.n_tasks * job.n_segments, segment_task, &job);
        pool_run(b->pool, job.n_tasks, merge_task, &job);
    } else {
        job.run = plan_run(&job);
        pool_run(b->pool, div_up(job.n_tasks, job.run), whole_tasks, &job);
    }
    return 0;
}
