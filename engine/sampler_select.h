/* Selection of the best candidates without sorting: radix selection on their keys. */
#ifndef INFERD_SAMPLER_SELECT_H
#define INFERD_SAMPLER_SELECT_H

#include "sampler_types.h"

/* How many are wanted: the best until `max_count` are kept, or until their weights reach `mass` and `min_count` are. */
struct wanted {
    size_t min_count, max_count; /* >= 1 */
    uint64_t mass;               /* >= 1 */
};

/* Where the best ones end: those with a larger key, and of those with this key the first `equal` (in order of id). */
struct edge {
    uint32_t key;
    size_t above, equal;
};
struct edge sampler_find_edge(struct sampler *s, size_t n, struct wanted wanted);

/* Keep the best of s->kept[0..n), in place and in order of id; how many. */
size_t sampler_keep_best(struct sampler *s, size_t n, struct wanted wanted);

uint64_t sampler_total_weight(const struct candidate *c, size_t n);

#endif
