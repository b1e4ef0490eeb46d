#include "choices.h"

#include "sampler_device.h"

#include <stdlib.h>

void choices_close(struct choices *c) {
    if (!c) {
        return;
    }
    free(c->rows);
    free(c->tokens);
    free(c->edits);
    free(c->of_row);
    *c = (struct choices){0};
}

int choices_open(struct choices *c, size_t max_rows, size_t max_edits, struct error *err) {
    struct choices made = {
        .rows = calloc(max_rows, sizeof *made.rows),
        .tokens = calloc(max_rows, sizeof *made.tokens),
        .edits = calloc(max_edits, sizeof *made.edits),
        .of_row = calloc(max_rows, sizeof *made.of_row),
    };
    if (!made.rows || !made.tokens || !made.edits || !made.of_row) {
        choices_close(&made);
        return error_memory(err);
    }
    *c = made;
    return 0;
}

struct sample_input choices_input(const struct sequence *s, const struct text *text, const float *logits) {
    return (struct sample_input){
        .logits = logits,
        .sampling = &s->sampling,
        .seed = s->seed,
        .position = s->n_tokens,
        .tokens = s->tokens,
        .n_prompt = s->n_prompt,
        .n_tokens = s->n_tokens,
        .masked = s->end_ids,
        .n_masked = sequence_n_generated(s) < s->min_tokens ? s->n_end_ids : 0,
        .allowed = s->allowed,
        .text = text,
        .state = s->sampler,
    };
}

/* Does the device choose for this sequence? A first token may be wanted by children too. */
static bool may_choose(const struct sequence *s, size_t n_rows) {
    return n_rows == 1 && s->n_draft == 0 && !s->score_only && sequence_n_generated(s) > 0;
}

bool choices_plan(struct choices *c, const struct runner *r, const struct scheduler *sch, struct sampler *sampler,
                  const struct text *text) {
    const struct decoder_batch *b = &r->batch;
    size_t n_edits = 0, end;
    c->n = 0;
    if (!c->rows) {
        return false;
    }
    for (size_t i = 0, row = 0; i < sch->n_scheduled; i++, row = end) {
        const struct sequence *s = sch->scheduled[i];
        for (end = row; end < b->n_logits && b->logit_rows[end] < b->cu_seqlens[i + 1]; end++) {
            c->of_row[end] = CHOICE_BY_HOST;
        }
        const struct sample_input in = choices_input(s, text, NULL);
        struct choice_row *choice = &c->rows[c->n];
        if (row < r->decoder->limits.max_logits && may_choose(s, end - row) &&
            sampler_for_device(sampler, &in, c->edits + n_edits, r->ops->choice_edits - n_edits, choice)) {
            choice->logits_row = row;
            n_edits += choice->n_edits;
            c->n++;
        }
    }
    return c->n == b->rows && b->n_logits == b->rows && b->n_sequences == b->rows &&
           b->rows <= r->decoder->limits.max_logits;
}

int choices_queue(const struct choices *c, struct runner *r, const struct sampler *sampler, struct error *err) {
    return c->n > 0 ? runner_choose(r, sampler->vocab_size, c->rows, c->n, err) : 0;
}

int choices_take(struct choices *c, struct runner *r, struct error *err) {
    if (c->n > 0 && runner_chosen(r, c->tokens, c->n, err) < 0) {
        return -1;
    }
    for (size_t i = 0; i < c->n; i++) {
        c->of_row[c->rows[i].logits_row] = c->tokens[i];
    }
    return 0;
}
