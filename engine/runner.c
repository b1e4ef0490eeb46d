#include "runner.h"

#include "model/decoder_graph.h"

#include <math.h>

/* ---- what all ranks do ---- */

struct step {
    struct runner *r;
    const struct decoder_batch *batch;
    bool fed;
    size_t first, n; /* of logits, of choices */
    const struct choice_row *rows;
    size_t vocab_size;
    int32_t *tokens; /* of rank 0; the others choose the same */
    int32_t from, to;
};

static int start(void *arg, size_t i, struct error *err) {
    const struct step *s = arg;
    return decoder_start_padded(&s->r->ranks[i].decoder, s->batch, s->fed, err);
}

static int forward(void *arg, size_t i, struct error *err) {
    const struct step *s = arg;
    const struct rank *rank = &s->r->ranks[i];
    if (start(arg, i, err) < 0 || (!rank->ops->choose && decoder_gather(&s->r->ranks[i].decoder, err) < 0)) {
        return -1;
    }
    return rank->ops->sync(rank->backend, err);
}

/* Most logits are never looked at by the host: they are gathered when they are. */
static int gather(void *arg, size_t i, struct error *err) {
    return decoder_gather(&((const struct step *)arg)->r->ranks[i].decoder, err);
}

static int logits(void *arg, size_t i, struct error *err) {
    const struct step *s = arg;
    return decoder_logits(&s->r->ranks[i].decoder, s->first, s->n, err);
}

static int choose(void *arg, size_t i, struct error *err) {
    const struct step *s = arg;
    return decoder_choose(&s->r->ranks[i].decoder, s->vocab_size, s->rows, s->n, err);
}

static int chosen(void *arg, size_t i, struct error *err) {
    const struct step *s = arg;
    const struct rank *rank = &s->r->ranks[i];
    return rank->ops->chosen(rank->backend, i == 0 ? s->tokens : rank->tokens, s->n, err);
}

static int copy_block(void *arg, size_t i, struct error *err) {
    const struct step *s = arg;
    struct decoder *d = &s->r->ranks[i].decoder;
    for (size_t l = 0; l < d->config.n_layers; l++) {
        if (d->ops->kv_copy(d->backend, &d->kv[l], &s->from, &s->to, 1, err) < 0) {
            return -1;
        }
    }
    return d->ops->sync(d->backend, err);
}

static int sync_rank(void *arg, size_t i, struct error *err) {
    const struct rank *rank = &((const struct step *)arg)->r->ranks[i];
    return rank->ops->sync(rank->backend, err);
}

static int all(struct runner *r, rank_fn *fn, struct step step, struct error *err) {
    step.r = r;
    return ranks_run(r->threads, fn, &step, true, err);
}

/* n rows of the logits in memory from `first` on, from the device to where the host reads them. */
static int fetch_logits(struct runner *r, size_t first, size_t n, struct error *err) {
    size_t row = r->decoder->logits_ld;
    return r->host_logits && n > 0 ? r->ops->download(r->backend, r->host_logits + first * row,
                                                      r->decoder->logits + first * row, n * row * sizeof(float), err)
                                   : 0;
}

/* ---- what all nodes do ---- */

static int tell(struct runner *r, enum node_task task, const struct decoder_batch *b, size_t first, size_t n,
                struct error *err) {
    return r->nodes.group ? nodes_tell(&r->nodes, task, b, r->decoder->limits.kv_block_size, first, n, err) : 0;
}

/* x[bytes] from the last node, which has computed it, to the leader. */
static int bring(struct runner *r, void *x, size_t bytes, struct error *err) {
    struct collective *g = r->nodes.group;
    if (bytes == 0) {
        return 0;
    }
    return r->nodes.stage == 0 ? g->ops->recv(g, x, bytes, r->nodes.n_stages - 1, err)
           : r->nodes.stage + 1 == r->nodes.n_stages ? g->ops->send(g, x, bytes, 0, err)
                                                     : 0;
}

/* n rows of logits; where devices choose they stay, and who is asked for is brought by himself (bring_row). */
static int move_logits(struct runner *r, size_t n, struct error *err) {
    return r->nodes.group && !r->ops->choose ? bring(r, r->decoder->logits, n * r->decoder->logits_ld * sizeof(float), err) : 0;
}

/* Row `row` of the logits on the last node's device to the leader's host_logits. */
static int bring_row(struct runner *r, size_t row, struct error *err) {
    size_t ld = r->decoder->logits_ld;
    if (r->nodes.stage + 1 == r->nodes.n_stages &&
        (all(r, gather, (struct step){0}, err) < 0 || fetch_logits(r, row, 1, err) < 0)) {
        return -1;
    }
    return bring(r, r->host_logits ? r->host_logits + row * ld : NULL, ld * sizeof(float), err);
}

/* The leader's last choice, by the last node; its tokens to the leader. */
static int choose_here(struct runner *r, size_t vocab_size, size_t n, struct error *err) {
    int32_t *tokens = r->ranks[0].tokens;
    const struct step step = {.vocab_size = vocab_size, .rows = r->nodes.choices, .tokens = tokens, .n = n};
    return all(r, choose, step, err) < 0 || all(r, chosen, step, err) < 0 ||
                   r->nodes.group->ops->send(r->nodes.group, tokens, n * sizeof *tokens, 0, err) < 0
               ? -1
               : 0;
}

int runner_beat(struct runner *r, struct error *err) {
    if (!r->nodes.group) {
        return 0;
    }
    return tell(r, NODE_BEAT, NULL, 0, 0, err) < 0 ? -1 : nodes_beat(&r->nodes, err);
}

static size_t least(size_t a, size_t b) {
    return a < b ? a : b;
}

int runner_follow(struct runner *r, struct error *err) {
    for (;;) {
        enum node_task task;
        size_t first, n;
        int rc = 0;
        if (nodes_hear(&r->nodes, &task, &r->batch, &first, &n, err) < 0) {
            return -1;
        }
        switch (task) {
        case NODE_STEP:
            n = least(r->batch.n_logits, r->decoder->limits.max_logits);
            rc = all(r, forward, (struct step){.batch = &r->batch}, err) < 0 ? -1 : move_logits(r, n, err);
            break;
        case NODE_LOGITS:
            n = least(n, r->decoder->limits.max_logits);
            rc = all(r, logits, (struct step){.first = first, .n = n}, err) < 0 ? -1 : move_logits(r, n, err);
            break;
        case NODE_CHOOSE:
            n = least(n, r->decoder->limits.max_logits);
            rc = r->nodes.stage + 1 == r->nodes.n_stages ? choose_here(r, first, n, err) : 0;
            break;
        case NODE_ROW:
            rc = bring_row(r, least(first, r->decoder->limits.max_logits - 1), err);
            break;
        case NODE_COPY:
            rc = all(r, copy_block, (struct step){.from = (int32_t)first, .to = (int32_t)n}, err);
            break;
        case NODE_BEAT:
            rc = nodes_beat(&r->nodes, err);
            break;
        case NODE_BYE:
            return r->nodes.group->ops->barrier(r->nodes.group, err);
        }
        if (rc < 0) {
            return -1;
        }
    }
}

/* ---- steps ---- */

int runner_run(struct runner *r, struct error *err) {
    struct decoder_batch batch = r->batch;
    size_t most = r->decoder->limits.max_logits, n = r->batch.n_logits;
    n = n < most ? n : most;
    r->logits_first = r->logits_end = 0;
    decoder_pad(r->decoder, &batch);
    if (tell(r, NODE_STEP, &batch, 0, 0, err) < 0 || all(r, forward, (struct step){.batch = &batch}, err) < 0 ||
        move_logits(r, n, err) < 0 ||
        (!r->ops->choose && fetch_logits(r, 0, n, err) < 0)) {
        return -1;
    }
    r->logits_end = n;
    return 0;
}

int runner_start(struct runner *r, const struct decoder_batch *batch, bool fed, struct error *err) {
    struct decoder_batch padded = *batch;
    r->logits_first = r->logits_end = 0;
    decoder_pad(r->decoder, &padded);
    return tell(r, NODE_STEP, &padded, 0, 0, err) < 0 ? -1 : all(r, start, (struct step){.batch = &padded, .fed = fed}, err);
}

int runner_choose(struct runner *r, size_t vocab_size, const struct choice_row *rows, size_t n, struct error *err) {
    return r->nodes.group ? nodes_tell_choice(&r->nodes, vocab_size, rows, n, err)
                          : all(r, choose, (struct step){.vocab_size = vocab_size, .rows = rows, .n = n}, err);
}

int runner_chosen(struct runner *r, int32_t *tokens, size_t n, struct error *err) {
    return r->nodes.group ? bring(r, tokens, n * sizeof *tokens, err) : all(r, chosen, (struct step){.tokens = tokens, .n = n}, err);
}

int runner_copy_block(struct runner *r, int32_t from, int32_t to, struct error *err) {
    return tell(r, NODE_COPY, NULL, (size_t)from, (size_t)to, err) < 0
               ? -1
               : all(r, copy_block, (struct step){.from = from, .to = to}, err);
}

int runner_sync(struct runner *r, struct error *err) {
    return all(r, sync_rank, (struct step){0}, err);
}

int runner_get_logits(struct runner *r, size_t i, const float **out, struct error *err) {
    if (i < r->logits_first || i >= r->logits_end) {
        size_t most = r->decoder->limits.max_logits, n = r->batch.n_logits - i;
        n = n < most ? n : most;
        r->logits_first = r->logits_end = i;
        if (tell(r, NODE_LOGITS, NULL, i, n, err) < 0 || all(r, logits, (struct step){.first = i, .n = n}, err) < 0 ||
            move_logits(r, n, err) < 0 ||
            (!r->ops->choose && fetch_logits(r, 0, n, err) < 0)) {
            return -1;
        }
        r->logits_end = i + n;
    }
    size_t row = i - r->logits_first;
    bool apart = r->nodes.group && r->ops->choose; /* they are on the last node */
    if (apart && (tell(r, NODE_ROW, NULL, row, 1, err) < 0 || bring_row(r, row, err) < 0)) {
        return -1;
    }
    if (!apart && !r->decoder->gathered && all(r, gather, (struct step){0}, err) < 0) {
        return -1;
    }
    if (!apart && r->ops->choose && fetch_logits(r, row, 1, err) < 0) { /* most are never asked for */
        return -1;
    }
    *out = (r->host_logits ? r->host_logits : r->decoder->logits) + row * r->decoder->logits_ld;
    return 0;
}

void runner_fill_plain(struct runner *r, const int32_t *tokens, size_t begin, size_t end) {
    struct decoder_batch *b = &r->batch;
    size_t block_size = r->decoder->limits.kv_block_size;
    b->rows = b->n_logits = end - begin;
    b->n_sequences = 1;
    for (size_t i = 0; i < b->rows; i++) {
        b->token_ids[i] = tokens[begin + i];
        b->positions[i] = b->slot_mapping[i] = (int32_t)(begin + i);
        b->logit_rows[i] = (int32_t)i;
    }
    for (size_t i = 0; i * block_size < end; i++) {
        b->block_tables[i] = (int32_t)i;
    }
    b->cu_seqlens[0] = 0;
    b->cu_seqlens[1] = (int32_t)b->rows;
    b->context_lens[0] = (int32_t)end;
}

int runner_self_test(struct runner *r, struct error *err) {
    static const int32_t token = 0;
    if (r->ops->ready) {
        decoder_fill(r->decoder, &r->batch, r->max_rows, r->max_sequences, true);
    } else {
        runner_fill_plain(r, &token, 0, 1);
    }
    if (runner_run(r, err) < 0) {
        return error_prefix(err, "self-test");
    }
    if (r->ops->sample) { /* the logits are the device's */
        const struct sample_row row = {
            .last_token = token, .greedy = true, .n_candidates = r->decoder->config.vocab_size};
        int32_t chosen;
        return r->ops->sample(r->backend, &row, 1, &chosen, err) < 0 ? error_prefix(err, "self-test") : 0;
    }
    for (size_t i = 0; i < r->logits_end; i++) {
        const float *logits;
        if (runner_get_logits(r, i, &logits, err) < 0) {
            return error_prefix(err, "self-test");
        }
        for (size_t j = 0; j < r->decoder->config.vocab_size; j++) {
            if (!isfinite(logits[j])) {
                return error_set(err, ERROR_MODEL,
                                 "%s: self-test: the model computes values that are not finite numbers",
                                 model_file_path(r->file));
            }
        }
    }
    return 0;
}

int runner_evaluate(struct runner *r, const int32_t *tokens, size_t n, size_t chunk, runner_sink *sink, void *arg,
                    struct error *err) {
    if (chunk == 0 || chunk > r->max_rows || n > r->kv.max_model_len) {
        return error_set(err, ERROR_INVALID, "evaluate: a prompt of %zu tokens in chunks of %zu is out of range", n,
                         chunk);
    }
    for (size_t begin = 0; begin < n; begin += chunk) {
        size_t end = begin + chunk < n ? begin + chunk : n;
        runner_fill_plain(r, tokens, begin, end);
        if (runner_run(r, err) < 0) {
            return -1;
        }
        for (size_t i = begin; i < end; i++) {
            const float *logits;
            if (runner_get_logits(r, i - begin, &logits, err) < 0) {
                return -1;
            }
            sink(arg, i, logits);
        }
    }
    return 0;
}
