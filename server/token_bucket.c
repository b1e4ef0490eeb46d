#include "token_bucket.h"

static void fill(struct token_bucket *b, uint64_t now_ns) {
    if (now_ns > b->at_ns) {
        b->used -= (double)(now_ns - b->at_ns) / 1e9 * b->capacity / 60;
        b->at_ns = now_ns;
    }
    b->used = b->used > 0 ? b->used : 0;
}

void bucket_set(struct token_bucket *b, size_t per_minute, uint64_t now_ns) {
    fill(b, now_ns);
    b->capacity = (double)per_minute;
}

void bucket_take(struct token_bucket *b, double amount, uint64_t now_ns) {
    if (b->capacity > 0) {
        fill(b, now_ns);
        b->used += amount;
    }
}

double bucket_level(struct token_bucket *b, uint64_t now_ns) {
    fill(b, now_ns);
    return b->capacity - b->used;
}

double bucket_wait(struct token_bucket *b, double amount, uint64_t now_ns) {
    double lack = (amount < b->capacity ? amount : b->capacity) - bucket_level(b, now_ns);
    return lack > 0 && b->capacity > 0 ? lack * 60 / b->capacity : 0;
}

double bucket_reset(struct token_bucket *b, uint64_t now_ns) {
    return bucket_wait(b, b->capacity, now_ns);
}
