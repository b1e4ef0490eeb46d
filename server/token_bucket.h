/*
 * A rate limit: a bucket holds as much as a minute allows, what is used is taken out, and it fills up evenly. It may be
 * taken below empty by what is only known afterwards (generated tokens): then the debt is waited for.
 */
#ifndef INFERD_TOKEN_BUCKET_H
#define INFERD_TOKEN_BUCKET_H

#include <stddef.h>
#include <stdint.h>

struct token_bucket {
    double capacity; /* units a minute; 0 = no limit */
    double used;     /* of it, at at_ns: above capacity is debt */
    uint64_t at_ns;  /* clock_now_ns */
};

/* Another limit: what was used stays used. A zeroed bucket is full. */
void bucket_set(struct token_bucket *b, size_t per_minute, uint64_t now_ns);
void bucket_take(struct token_bucket *b, double amount, uint64_t now_ns); /* a negative amount is given back */
double bucket_level(struct token_bucket *b, uint64_t now_ns);             /* what is in it; below 0: debt */
double bucket_wait(struct token_bucket *b, double amount, uint64_t now_ns); /* s until so much is in it, at most all it holds */
double bucket_reset(struct token_bucket *b, uint64_t now_ns);             /* s until it is full */

#endif
