/*
 * Speculation without a second model: what follows is guessed from what came before. The last few tokens are looked for
 * further up in the same sequence, and the tokens that followed there are the draft (prompt lookup decoding, Saxena
 * 2023; Yang et al. 2023, "Inference with Reference: Lossless Acceleration of Large Language Models").
 *
 * The draft is only a guess at what will be asked for next: the engine computes its rows together with the last token's
 * and samples each position as it would have without, so a wrong guess costs time and changes nothing (cf. Leviathan
 * et al. 2023, section 2; here the sampler draws the same number for a position whoever asks, so a drafted token is kept
 * exactly when it is the one that is drawn).
 *
 * An index of n-grams grows with the sequence: a draft costs O(1) whatever the context, and nothing allocates after init.
 *
 * How long a draft shall be. For each length of n-gram it is learnt with which probability q a drafted token is right
 * if those before it were; the i-th is then right with q^i. A step of r rows takes a + b r, both measured (step_cost). A
 * row more makes more tokens a second when its chance is above n b / (a + b r), n the tokens that the step yields anyway:
 * the draft ends where q^i falls below that. Where even q does, drafts cease, but for a try now and then.
 */
#ifndef INFERD_SPECULATION_H
#define INFERD_SPECULATION_H

#include <inferd/error.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SPECULATION_LONGEST 3 /* tokens of the longest n-gram */

/* What the time of a step depends on, from steps of decodes and drafts: recent ones count most. All zero at first. */
struct step_cost {
    double weight, rows, rows2, seconds, rows_seconds; /* decaying sums: of 1, r, r^2, t, r t */
    double fixed, row;                                 /* a, b; 0, 0 = not known yet */
};

void step_cost_add(struct step_cost *c, size_t rows, double seconds);
/* The chance that one more row of a step must have, where the step has `rows` rows and yields n tokens; within (0, 1). */
double step_cost_break_even(const struct step_cost *c, size_t rows, size_t n);

/* What is known of drafts that an n-gram of one length gave. */
struct speculation_trust {
    double right;   /* q */
    size_t pause;   /* so many more matches are passed over, while drafts do not pay */
    size_t backoff; /* the next pause */
};

struct speculation {
    size_t max;       /* tokens of a draft; 0 = off */
    int32_t *heads;   /* [SPECULATION_LONGEST][n_heads], owned: the position behind the latest n-gram of a hash, 0 = none */
    size_t n_heads;   /* a power of two */
    size_t n_indexed; /* n-grams that end before this position are in the index */
    size_t used;      /* tokens of the n-gram that gave the last draft */
    struct speculation_trust trust[SPECULATION_LONGEST + 1]; /* by the n-gram's length */
};

/* max 0: off, nothing is allocated. max_tokens: how long the sequence can get. */
int speculation_init(struct speculation *s, size_t max, size_t max_tokens, struct error *err);
void speculation_destroy(struct speculation *s); /* a zeroed one is fine */

/* Index what can be of tokens[0..n), ahead of the first draft. */
void speculation_index(struct speculation *s, const int32_t *tokens, size_t n);
/*
 * Guess what follows tokens[0..n): written to tokens[n..], at most `room` >= 1 of them, and no more than have
 * a chance of break_even; returns how many.
 */
size_t speculation_draft(struct speculation *s, int32_t *tokens, size_t n, size_t room, double break_even);
/* Of the last draft, n_drafted >= 1 tokens were computed and the first n_kept were right. */
void speculation_learn(struct speculation *s, size_t n_drafted, size_t n_kept);

#endif
