#include "sampler_select.h"

#include <string.h>

static bool reached(const struct wanted *w, size_t count, uint64_t mass) {
    return count >= w->max_count || (mass >= w->mass && count >= w->min_count);
}

/* A histogram of the top 11 bits of the keys, then of the next 11 and 10 bits inside the bucket where the edge lies. */
struct edge sampler_find_edge(struct sampler *s, size_t n, struct wanted wanted) {
    static const struct { unsigned shift, bits; } digits[] = {{21, 11}, {10, 11}, {0, 10}};
    const struct candidate *c = s->kept;
    uint32_t prefix = 0, prefix_mask = 0;
    uint64_t mass = 0; /* of the candidates that are certainly above the edge */
    size_t count = 0;
    for (size_t d = 0; d < sizeof digits / sizeof digits[0]; d++) {
        uint32_t n_buckets = 1u << digits[d].bits;
        memset(s->bucket_mass, 0, sizeof s->bucket_mass);
        memset(s->bucket_count, 0, sizeof s->bucket_count);
        for (size_t i = 0; i < n; i++) {
            if ((c[i].key & prefix_mask) == prefix) {
                uint32_t bucket = c[i].key >> digits[d].shift & (n_buckets - 1);
                s->bucket_mass[bucket] += c[i].weight;
                s->bucket_count[bucket]++;
            }
        }
        uint32_t bucket = n_buckets - 1;
        while (bucket > 0 && !reached(&wanted, count + s->bucket_count[bucket], mass + s->bucket_mass[bucket])) {
            count += s->bucket_count[bucket];
            mass += s->bucket_mass[bucket];
            bucket--;
        }
        prefix |= bucket << digits[d].shift;
        prefix_mask |= (n_buckets - 1) << digits[d].shift;
    }
    struct edge edge = {.key = prefix, .above = count};
    for (size_t i = 0; i < n && !reached(&wanted, count, mass); i++) {
        if (c[i].key == prefix) {
            count++;
            mass += c[i].weight;
            edge.equal++;
        }
    }
    return edge;
}

size_t sampler_keep_best(struct sampler *s, size_t n, struct wanted wanted) {
    struct edge edge = sampler_find_edge(s, n, wanted);
    struct candidate *c = s->kept;
    size_t kept = 0;
    for (size_t i = 0; i < n; i++) {
        bool keep = c[i].key > edge.key;
        if (c[i].key == edge.key && edge.equal > 0) {
            keep = true;
            edge.equal--;
        }
        if (keep) {
            c[kept++] = c[i];
        }
    }
    return kept;
}

uint64_t sampler_total_weight(const struct candidate *c, size_t n) {
    uint64_t total = 0;
    for (size_t i = 0; i < n; i++) {
        total += c[i].weight;
    }
    return total;
}
