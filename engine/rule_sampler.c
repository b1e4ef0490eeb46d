#include "rule_sampler.h"

#include "ordinary_tokens.h"

#include <math.h>

#define TRIES 64 /* to choose a token that is not masked */

int rule_sampler_init(struct rule_sampler *d, struct runner *r, const struct text *t, size_t vocab_size,
                        struct error *err) {
    struct tokens candidates = {0};
    if (ordinary_tokens(t, vocab_size, &candidates, err) < 0) {
        return -1;
    }
    *d = (struct rule_sampler){.runner = r, .text = t, .candidates = candidates};
    d->logprob = -logf((float)r->decoder->config.vocab_size);
    return 0;
}

void rule_sampler_destroy(struct rule_sampler *d) {
    tokens_free(&d->candidates);
}

/* What follows the token at `position`, from this row of logits. */
static struct sample_row row_of(const struct rule_sampler *d, const struct sequence *s, size_t position, size_t row) {
    return (struct sample_row){
        .logits_row = row,
        .last_token = s->tokens[position],
        .greedy = s->sampling.temperature < 1e-5f,
        .seed = s->seed,
        .position = position + 1,
        .choice = s->sampling.choice,
        .candidates = d->candidates.ids,
        .n_candidates = d->candidates.n,
    };
}

void rule_sampler_begin(struct rule_sampler *d) {
    d->first = d->n = 0;
}

void rule_sampler_look_ahead(struct rule_sampler *d, struct sequence *const *sequences, size_t n, size_t i,
                               size_t row) {
    const struct decoder_batch *b = &d->runner->batch;
    struct error err;
    if (row < d->first + d->n || row >= b->n_logits) {
        return;
    }
    d->first = row;
    d->n = 0;
    for (; i < n; i++) {
        const struct sequence *s = sequences[i];
        __builtin_prefetch(s->end_ids);
        for (; row < b->n_logits && b->logit_rows[row] < b->cu_seqlens[i + 1]; row++) {
            if (d->n == RULE_SAMPLER_ROWS) {
                goto full;
            }
            d->rows[d->n++] = row_of(d, s, (size_t)b->positions[b->logit_rows[row]], row);
        }
    }
full:
    if (d->runner->ops->sample(d->runner->backend, d->rows, d->n, d->tokens, &err) < 0) {
        d->n = 0; /* whoever asks for a row hears of it then */
    }
    text_prefetch(d->text, d->tokens, d->n);
}

static bool same(const struct sample_row *a, const struct sample_row *b) {
    return a->logits_row == b->logits_row && a->last_token == b->last_token && a->greedy == b->greedy &&
           a->seed == b->seed && a->position == b->position && a->choice == b->choice;
}

static int choose(struct rule_sampler *d, const struct sample_row *row, int32_t *token) {
    size_t i = row->logits_row - d->first;
    struct error err;
    if (i < d->n && same(row, &d->rows[i])) {
        *token = d->tokens[i];
        return 0;
    }
    return d->runner->ops->sample(d->runner->backend, row, 1, token, &err);
}

static bool is_masked(const struct sample_input *in, int32_t token) {
    for (size_t i = 0; i < in->n_masked; i++) {
        if (in->masked[i] == token) {
            return true;
        }
    }
    return false;
}

enum sample_result rule_sampler_sample(struct rule_sampler *d, const struct sequence *s, size_t logits_row,
                                         const struct sample_input *in, struct sample *out) {
    struct sample_row row = row_of(d, s, s->n_tokens - 1, logits_row);
    int tries = 0;
    do {
        if (tries++ == TRIES) {
            return SAMPLE_NO_TOKEN;
        }
        if (choose(d, &row, &out->token) < 0) {
            return SAMPLE_NONFINITE;
        }
        row.greedy = false;
        row.seed++;
    } while (is_masked(in, out->token));
    out->logprob = d->logprob;
    out->state = in->state;
    out->n_top = s->sampling.n_logprobs > 0;
    out->top[0] = (struct token_logprob){out->token, out->logprob};
    return SAMPLE_OK;
}
