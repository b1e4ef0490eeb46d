#include "batch.h"

#include <string.h>

#define AHEAD 4

static void ask_for_blocks(const struct sequence *s) {
    size_t few = s->n_blocks < 128 ? s->n_blocks : 128; /* the processor itself asks for what follows in order */
    for (size_t i = 0; i < few; i += 64 / sizeof *s->blocks) {
        __builtin_prefetch(s->blocks + i);
    }
}

void batch_fill(struct decoder_batch *b, struct sequence *const *sequences, size_t n, size_t block_size) {
    size_t row = 0;
    b->n_sequences = n;
    b->n_logits = 0;
    b->cu_seqlens[0] = 0;
    for (size_t i = 0; i < n; i++) {
        const struct sequence *s = sequences[i];
        if (i + AHEAD < n) {
            ask_for_blocks(sequences[i + AHEAD]);
        }
        size_t end = s->n_computed + s->n_scheduled;
        for (size_t position = s->n_computed; position < end; position++, row++) {
            b->token_ids[row] = s->tokens[position];
            b->positions[row] = (int32_t)position;
            b->slot_mapping[row] =
                (int32_t)((size_t)s->blocks[position / block_size] * block_size + position % block_size);
            if (sequence_wants_logits(s, position)) {
                b->logit_rows[b->n_logits++] = (int32_t)row;
            }
        }
        memcpy(b->block_tables + i * b->max_blocks, s->blocks, s->n_blocks * sizeof *s->blocks);
        b->cu_seqlens[i + 1] = (int32_t)row;
        b->context_lens[i] = (int32_t)end;
    }
    b->rows = row;
}

void batch_copies(struct decoder_batch *b, const int32_t *from, const int32_t *to, size_t n) {
    b->n_copies = n;
    memcpy(b->copy_from, from, n * sizeof *from);
    memcpy(b->copy_to, to, n * sizeof *to);
}
