/*
 * The choices of a step that the device makes by itself, from logits that never leave it: those that sampler_for_device
 * can put into its words, of sequences that want one token behind one row. Engine thread; nothing allocates after open.
 */
#ifndef INFERD_CHOICES_H
#define INFERD_CHOICES_H

#include "runner.h"
#include "sampler.h"
#include "scheduler.h"

#define CHOICE_BY_HOST INT32_MIN

struct choices {
    struct choice_row *rows; /* [max_rows] what is chosen in this step, NULL on a backend without `choose` */
    int32_t *tokens;         /* [max_rows] of rows, as they come back */
    struct logit_edit *edits;
    size_t n;
    int32_t *of_row; /* [max_rows] by logits row: the token (or backend.h's CHOICE_*), or CHOICE_BY_HOST */
};

int choices_open(struct choices *c, size_t max_rows, size_t max_edits, struct error *err);
void choices_close(struct choices *c); /* NULL and a zeroed one are fine */

/* What the next token of s is chosen from and by. */
struct sample_input choices_input(const struct sequence *s, const struct text *text, const float *logits);

/*
 * Of the step in r->batch: what the device can choose goes to c->rows, and of_row says CHOICE_BY_HOST for all. True if
 * that is all there is: every sequence has one row, and the device chooses behind each.
 */
bool choices_plan(struct choices *c, const struct runner *r, const struct scheduler *sch, struct sampler *sampler,
                  const struct text *text);
/* Queue them, behind the pass; then wait for the tokens and put them into of_row. Nothing happens where n is 0. */
int choices_queue(const struct choices *c, struct runner *r, const struct sampler *sampler, struct error *err);
int choices_take(struct choices *c, struct runner *r, struct error *err);

static inline bool choices_has(const struct choices *c, size_t logits_row) {
    return c->rows && c->of_row[logits_row] != CHOICE_BY_HOST;
}

#endif
