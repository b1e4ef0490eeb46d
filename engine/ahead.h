/*
 * One step ahead. Where the device chooses the tokens of a step by itself, the next step needs nothing of the host but
 * positions and blocks, which are known before: it is prepared and queued behind the one under way, and reads its
 * tokens on the device (backend.h, feed). So the device goes on while the host delivers, and the host is never waited
 * for.
 *
 * A step goes ahead when all that runs is in the one before, one row each, when each choice is known without that
 * step's tokens (no penalties, no drafts), when nobody who waits could be admitted (for want of a place, or of KV: who
 * gets them when a sequence ends is admitted a step later), and when each sequence has a block for one token more. A sequence that ends with the step before, at a stop or because it was cancelled, has a row too
 * many in it: that result is passed over. Its blocks go back at once: whoever gets them writes to them in a later step,
 * and steps follow one another on the device.
 *
 * Engine thread. Nothing allocates after open.
 */
#ifndef INFERD_AHEAD_H
#define INFERD_AHEAD_H

#include "choices.h"

/* The rows of a step: a sequence each, NULL where it ended. */
struct ahead_rows {
    struct sequence **sequences; /* [max_sequences] */
    size_t n;                    /* 0: there is no such step */
};

struct ahead {
    struct ahead_rows under_way; /* queued, its tokens not taken yet */
    struct ahead_rows next;      /* queued behind it */
    size_t max_sequences;
    struct decoder_batch batch; /* arrays of the step that is being queued, [max_sequences] rows, owned */
    struct choice_row *choices; /* [max_sequences] */
};

int ahead_open(struct ahead *a, size_t max_sequences, size_t max_blocks, struct error *err);
void ahead_close(struct ahead *a); /* NULL and a zeroed one are fine */

/* A sequence ends. */
void ahead_forget(struct ahead *a, const struct sequence *s);

/*
 * Queue a step behind the one of `rows`, if one may go ahead: a->next. Device errors are returned. Blocks taken for
 * nothing stay with their sequences.
 */
int ahead_queue(struct ahead *a, const struct ahead_rows *rows, struct runner *r, struct scheduler *sch,
                struct sampler *sampler, const struct choices *c, const struct text *text, struct error *err);

/* The next step is the one under way now. */
void ahead_turn(struct ahead *a);

#endif
