/*
 * Steps that only make tokens (every sequence has one row and wants its logits) are recorded once for a few numbers of
 * sequences, and launched as a whole: the arrays are filled up to the next such number with rows that are stored nowhere
 * and see nothing. The results are those of the pass itself.
 */
#ifndef INFERD_DECODER_GRAPH_H
#define INFERD_DECODER_GRAPH_H

#include "model/decoder.h"

struct decoder_graph {
    size_t rows;
    struct backend_graph *recorded;
};

struct decoder_graphs {
    size_t n;
    struct decoder_graph graphs[]; /* [n], rows ascending */
};

/* How many graphs there are for steps of up to max_sequences, and the rows of the i-th: 1 to 8, then steps of 8 to 64, of
 * 16 to 256, of 64 to DECODER_GRAPH_MOST, and the limit itself if it is less. */
#define DECODER_GRAPH_MOST 512
size_t decoder_graph_count(size_t max_sequences);
size_t decoder_graph_rows(size_t i, size_t max_sequences);

/*
 * For a backend that has `ready`, once, after decoder_open: passes of all sizes that steps have, so that nothing is
 * loaded, measured or taken later; then, with `graphs`, the graphs. *arrays has room for the largest step.
 */
int decoder_warm_up(struct decoder *d, const struct decoder_batch *arrays, size_t max_sequences, bool graphs,
                    struct error *err);
void decoder_graphs_close(struct decoder *d); /* before the backend is closed */

/*
 * `rows` rows as a step could have them at the most: of sequences as long as the context, in order; all of them want their
 * logits. Rows of the first sequence go to KV blocks from 0 on where `store`, the others nowhere. rows is cut to what
 * max_sequences can have.
 */
void decoder_fill(const struct decoder *d, struct decoder_batch *b, size_t rows, size_t max_sequences, bool store);

/* The graph for the step, NULL if it is none of those. */
const struct decoder_graph *decoder_graph_for(const struct decoder *d, const struct decoder_batch *b);
/* Fills b's arrays up to `rows` sequences. */
void decoder_graph_pad(struct decoder_batch *b, size_t rows);

#endif
