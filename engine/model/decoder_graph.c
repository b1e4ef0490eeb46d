#include "model/decoder_graph.h"

#include <stdlib.h>

/* ---- sizes ---- */

static size_t next_rows(size_t rows) {
    return rows + (rows < 8 ? 1 : rows < 64 ? 8 : rows < 256 ? 16 : 64);
}

static size_t least(size_t a, size_t b) {
    return a < b ? a : b;
}

size_t decoder_graph_count(size_t max_sequences) {
    size_t n = 0, most = least(max_sequences, DECODER_GRAPH_MOST);
    for (size_t rows = 0; rows < most; n++) {
        rows = next_rows(rows);
    }
    return n;
}

size_t decoder_graph_rows(size_t i, size_t max_sequences) {
    size_t rows = 1;
    while (i-- > 0) {
        rows = next_rows(rows);
    }
    return least(rows, least(max_sequences, DECODER_GRAPH_MOST));
}

/* ---- steps ---- */

void decoder_fill(const struct decoder *d, struct decoder_batch *b, size_t rows, size_t max_sequences, bool store) {
    size_t len = d->limits.max_context, row = 0;
    b->n_sequences = b->n_copies = 0;
    b->cu_seqlens[0] = 0;
    while (row < rows && b->n_sequences < max_sequences) {
        size_t s = b->n_sequences++, n = least(rows - row, len), used = (n + d->limits.kv_block_size - 1) / d->limits.kv_block_size;
        for (size_t i = 0; i < n; i++, row++) {
            b->token_ids[row] = 0;
            b->positions[row] = (int32_t)i;
            b->slot_mapping[row] = store && s == 0 ? (int32_t)i : -1;
            b->logit_rows[row] = (int32_t)row;
        }
        for (size_t i = 0; i < used; i++) {
            b->block_tables[s * b->max_blocks + i] = (int32_t)i;
        }
        b->cu_seqlens[s + 1] = (int32_t)row;
        b->context_lens[s] = (int32_t)n;
    }
    b->rows = b->n_logits = row;
}

void decoder_graph_pad(struct decoder_batch *b, size_t rows) {
    for (size_t i = b->rows; i < rows; i++) {
        b->token_ids[i] = b->positions[i] = 0;
        b->slot_mapping[i] = -1;
        b->context_lens[i] = 0;
        b->logit_rows[i] = (int32_t)i;
        b->cu_seqlens[i + 1] = (int32_t)i + 1;
    }
    b->rows = b->n_sequences = b->n_logits = rows;
}

/* Each sequence has a row: it is enough to count. Logits are asked for in order of rows, each once. */
static bool is_decode(const struct decoder_batch *b) {
    return b->rows == b->n_sequences && b->n_logits == b->rows;
}

const struct decoder_graph *decoder_graph_for(const struct decoder *d, const struct decoder_batch *b) {
    if (!d->graphs || d->observer.see || !is_decode(b)) {
        return NULL;
    }
    for (size_t i = 0; i < d->graphs->n; i++) {
        if (d->graphs->graphs[i].rows >= b->rows) {
            return &d->graphs->graphs[i];
        }
    }
    return NULL;
}

/* ---- start-up ---- */

static int warm_prefill(struct decoder *d, const struct decoder_batch *arrays, size_t rows, size_t max_sequences,
                        size_t n_logits, struct error *err) {
    struct decoder_batch b = *arrays;
    decoder_fill(d, &b, rows, max_sequences, false);
    b.n_logits = least(b.n_logits, n_logits);
    if (decoder_place(d, &b, err) < 0 || decoder_queue(d, &b, err) < 0) {
        return -1;
    }
    return d->ops->sync(d->backend, err);
}

/* Every number of rows for which a backend may choose anew. */
static int warm_all(struct decoder *d, const struct decoder_batch *arrays, size_t max_sequences, struct error *err) {
    size_t most = d->limits.max_rows;
    for (size_t rows = 1; rows < most; rows = rows < DECODER_GRAPH_MOST ? next_rows(rows) : 2 * rows) {
        if (warm_prefill(d, arrays, rows, max_sequences, rows, err) < 0) {
            return -1;
        }
    }
    /* with all logits, with some, with none */
    return warm_prefill(d, arrays, most, max_sequences, most, err) < 0 ||
                   warm_prefill(d, arrays, most, max_sequences, 1, err) < 0 ||
                   warm_prefill(d, arrays, most, max_sequences, 0, err) < 0
               ? -1
               : 0;
}

static int record(struct decoder *d, const struct decoder_batch *arrays, size_t rows, struct backend_graph **out,
                  struct error *err) {
    struct decoder_batch b = *arrays;
    struct error ending;
    b.rows = b.n_sequences = b.n_copies = 0;
    b.cu_seqlens[0] = 0;
    decoder_graph_pad(&b, rows);
    if (decoder_place(d, &b, err) < 0) {
        return -1;
    }
    b.max_query = 1;
    b.max_context = d->limits.max_context; /* whatever will come */
    if (decoder_queue(d, &b, err) < 0 || d->ops->sync(d->backend, err) < 0 || d->ops->graph_begin(d->backend, err) < 0) {
        return -1;
    }
    int rc = decoder_queue(d, &b, err);
    struct backend_graph *made;
    int end = d->ops->graph_end(d->backend, &made, rc < 0 ? &ending : err);
    if (rc < 0 && end == 0) {
        d->ops->graph_free(d->backend, made);
    }
    if (rc < 0 || end < 0) {
        return -1;
    }
    *out = made;
    return 0;
}

/* The largest first: what it takes of memory serves the others. */
static int record_all(struct decoder *d, const struct decoder_batch *arrays, size_t max_sequences, struct error *err) {
    size_t most = least(least(max_sequences, d->limits.max_rows), d->limits.max_logits), n = decoder_graph_count(most);
    d->graphs = calloc(1, sizeof *d->graphs + n * sizeof d->graphs->graphs[0]);
    if (!d->graphs) {
        return error_memory(err);
    }
    d->graphs->n = n;
    for (size_t i = n; i-- > 0;) {
        struct decoder_graph *g = &d->graphs->graphs[i];
        g->rows = decoder_graph_rows(i, most);
        if (record(d, arrays, g->rows, &g->recorded, err) < 0) {
            decoder_graphs_close(d);
            return error_prefix(err, "recording a decode step of %zu sequences", decoder_graph_rows(i, most));
        }
    }
    return 0;
}

/* What else a step may call: a device loads code, into memory that KV has later, when it is first run. */
static int warm_rest(struct decoder *d, const struct decoder_batch *arrays, struct error *err) {
    static const int32_t from = 0, to = 1;
    struct decoder_batch b = *arrays;
    const struct choice_row row = {.repetition_penalty = 1, .temperature = 1, .top_p = 1, .min_keep = 1};
    struct choice_row greedy = row, top = row;
    int32_t token;
    if (d->limits.kv_blocks > 1 && d->ops->kv_copy(d->backend, &d->kv[0], &from, &to, 1, err) < 0) {
        return -1;
    }
    if (!d->ops->choose) {
        return d->ops->sync(d->backend, err);
    }
    decoder_fill(d, &b, 1, 1, false);
    greedy.greedy = true;
    top.stages[top.n_stages++] = CHOICE_TOP_K;
    top.top_k = CHOICE_BEST;
    if (decoder_place(d, &b, err) < 0) {
        return -1;
    }
    b.max_context = d->limits.max_context; /* as of a long sequence, whose KV several blocks share */
    /* two choices may wait to be taken; the last of them gathers all logits, and then nothing is chosen from parts of them */
    size_t vocab = d->config.vocab_size;
    if (decoder_queue(d, &b, err) < 0 || decoder_choose(d, vocab, &greedy, 1, err) < 0 || decoder_choose(d, vocab, &top, 1, err) < 0 ||
        d->ops->chosen(d->backend, &token, 1, err) < 0 || decoder_choose(d, vocab, &row, 1, err) < 0 ||
        d->ops->feed(d->backend, b.token_ids, 1, err) < 0 || d->ops->chosen(d->backend, &token, 1, err) < 0) {
        return -1;
    }
    return d->ops->chosen(d->backend, &token, 1, err);
}

int decoder_warm_up(struct decoder *d, const struct decoder_batch *arrays, size_t max_sequences, bool graphs,
                    struct error *err) {
    if (!d->ops->ready) {
        return 0;
    }
    if (warm_all(d, arrays, max_sequences, err) < 0 || warm_rest(d, arrays, err) < 0 ||
        (graphs && d->ops->graph_begin && record_all(d, arrays, max_sequences, err) < 0)) {
        return -1;
    }
    return d->ops->ready(d->backend, err);
}

void decoder_graphs_close(struct decoder *d) {
    for (size_t i = 0; d->graphs && i < d->graphs->n; i++) {
        d->ops->graph_free(d->backend, d->graphs->graphs[i].recorded);
    }
    free(d->graphs);
    d->graphs = NULL;
}
