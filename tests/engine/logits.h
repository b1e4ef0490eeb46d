/* The logits of a prompt of a tiny model, as a runner tells them, and how far two of them are apart. */
#ifndef TEST_ENGINE_LOGITS_H
#define TEST_ENGINE_LOGITS_H

#include <stddef.h>

enum { PROMPT = 60, VOCAB = 260 };
struct logits {
    float at[PROMPT][VOCAB];
    size_t n;
};

/* A runner_sink; arg: a struct logits. */
void logits_keep(void *arg, size_t position, const float *row);
/* ||a - b|| / ||b|| of the worst row; and how many rows have another best token though it leads by more than the rows differ. */
double logits_distance(const struct logits *a, const struct logits *b, size_t *others);

#endif
