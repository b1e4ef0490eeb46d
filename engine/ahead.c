#include "ahead.h"

#include "sampler_device.h"
#include "sampler_logits.h"

#include <stdlib.h>
#include <string.h>

int ahead_open(struct ahead *a, size_t max_sequences, size_t max_blocks, struct error *err) {
    struct ahead made = {.max_sequences = max_sequences};
    struct decoder_batch *b = &made.batch;
    size_t n = max_sequences;
    made.under_way.sequences = calloc(n, sizeof *made.under_way.sequences);
    made.next.sequences = calloc(n, sizeof *made.next.sequences);
    made.choices = calloc(n, sizeof *made.choices);
    b->max_blocks = max_blocks;
    b->token_ids = calloc(n, sizeof *b->token_ids);
    b->positions = calloc(n, sizeof *b->positions);
    b->slot_mapping = calloc(n, sizeof *b->slot_mapping);
    b->cu_seqlens = calloc(n + 1, sizeof *b->cu_seqlens);
    b->context_lens = calloc(n, sizeof *b->context_lens);
    b->block_tables = calloc(n, max_blocks * sizeof *b->block_tables);
    b->logit_rows = calloc(n, sizeof *b->logit_rows);
    if (!made.under_way.sequences || !made.next.sequences || !made.choices || !b->token_ids || !b->positions ||
        !b->slot_mapping || !b->cu_seqlens || !b->context_lens || !b->block_tables || !b->logit_rows) {
        ahead_close(&made);
        return error_memory(err);
    }
    *a = made;
    return 0;
}

void ahead_close(struct ahead *a) {
    if (!a) {
        return;
    }
    free(a->under_way.sequences);
    free(a->next.sequences);
    free(a->choices);
    free(a->batch.token_ids);
    free(a->batch.positions);
    free(a->batch.slot_mapping);
    free(a->batch.cu_seqlens);
    free(a->batch.context_lens);
    free(a->batch.block_tables);
    free(a->batch.logit_rows);
    *a = (struct ahead){0};
}

static void forget(struct ahead_rows *rows, const struct sequence *s) {
    for (size_t i = 0; i < rows->n; i++) {
        if (rows->sequences[i] == s) {
            rows->sequences[i] = NULL;
        }
    }
}

void ahead_forget(struct ahead *a, const struct sequence *s) {
    forget(&a->under_way, s);
    forget(&a->next, s);
}

void ahead_turn(struct ahead *a) {
    struct ahead_rows done = a->under_way;
    a->under_way = a->next;
    a->next = (struct ahead_rows){.sequences = done.sequences};
}

/* Everything that runs is in these rows, and nobody could join. */
static bool all_are_here(const struct scheduler *sch, const struct ahead_rows *rows) {
    size_t n_live = 0;
    for (size_t i = 0; i < rows->n; i++) {
        n_live += rows->sequences[i] != NULL;
    }
    return n_live == sch->n_running && !scheduler_could_admit(sch);
}

/* The choice behind a token that nobody knows yet. */
static bool choose_behind(struct sampler *sampler, const struct sequence *s, const struct text *text,
                          struct logit_edit *edits, size_t max_edits, struct choice_row *row) {
    if (sampler_has_penalties(&s->sampling) || s->sampling.n_bad_words > 0) {
        return false; /* they look at it */
    }
    struct sample_input in = choices_input(s, text, NULL);
    in.position++;
    in.n_masked = sequence_n_generated(s) + 1 < s->min_tokens ? s->n_end_ids : 0;
    return sampler_for_device(sampler, &in, edits, max_edits, row);
}

/* A block of its own for the token at `position`. */
static bool has_block(struct scheduler *sch, struct sequence *s, size_t position) {
    struct kv_cache *kv = sch->kv;
    if (kv_cache_blocks_for(kv, position + 1) > s->n_blocks) {
        if (!kv_cache_take(kv, s->blocks + s->n_blocks, 1)) {
            return false;
        }
        s->n_blocks++;
    }
    return kv_cache_is_writable(kv, s->blocks[position / kv->block_size]);
}

/* Row `row` of the batch: the token that the sequence gets in row `source` of the step before. */
static void add_row(struct decoder_batch *b, const struct sequence *s, size_t source, size_t block_size) {
    size_t position = s->n_tokens, row = b->rows++;
    b->token_ids[row] = -1 - (int32_t)source;
    b->positions[row] = (int32_t)position;
    b->slot_mapping[row] = (int32_t)((size_t)s->blocks[position / block_size] * block_size + position % block_size);
    memcpy(b->block_tables + row * b->max_blocks, s->blocks, s->n_blocks * sizeof *s->blocks);
    b->context_lens[row] = (int32_t)position + 1;
    b->logit_rows[row] = (int32_t)row;
    b->cu_seqlens[row + 1] = (int32_t)row + 1;
}

/* Fill the batch, the choices and a->next; false if no step may go ahead. */
static bool prepare(struct ahead *a, const struct ahead_rows *rows, const struct runner *r, struct scheduler *sch,
                    struct sampler *sampler, const struct choices *c, const struct text *text) {
    struct decoder_batch *b = &a->batch;
    size_t n_edits = 0;
    b->rows = 0;
    b->cu_seqlens[0] = 0;
    if (!all_are_here(sch, rows)) {
        return false;
    }
    for (size_t i = 0; i < rows->n; i++) {
        struct sequence *s = rows->sequences[i];
        if (!s || s->n_tokens + 1 >= s->max_total) {
            continue; /* it has ended, or will have */
        }
        struct choice_row *choice = &a->choices[b->rows];
        if (s->speculation.max > 0 || !has_block(sch, s, s->n_tokens) ||
            !choose_behind(sampler, s, text, c->edits + n_edits, r->ops->choice_edits - n_edits, choice)) {
            return false;
        }
        choice->logits_row = b->rows;
        n_edits += choice->n_edits;
        a->next.sequences[b->rows] = s;
        add_row(b, s, i, sch->kv->block_size);
    }
    b->n_sequences = b->n_logits = b->rows;
    return b->rows > 0;
}

int ahead_queue(struct ahead *a, const struct ahead_rows *rows, struct runner *r, struct scheduler *sch,
                struct sampler *sampler, const struct choices *c, const struct text *text, struct error *err) {
    a->next.n = 0;
    if (r->nodes.group || /* the tokens are known on another node, and a stage would only wait for them */
        !prepare(a, rows, r, sch, sampler, c, text)) {
        return 0;
    }
    if (runner_start(r, &a->batch, true, err) < 0 ||
        runner_choose(r, sampler->vocab_size, a->choices, a->batch.rows, err) < 0) {
        return -1;
    }
    a->next.n = a->batch.rows;
    return 0;
}
