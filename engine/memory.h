/* How much memory there is, and how much of it becomes KV. */
#ifndef INFERD_MEMORY_H
#define INFERD_MEMORY_H

#include <inferd/error.h>
#include <stddef.h>

/*
 * Bytes this process may still take: MemAvailable (what the kernel can give without swapping, clean file pages
 * included), or what is left under the tightest cgroup limit above the process if that is less.
 */
int memory_available(size_t *bytes, struct error *err);

/* The same from given places, for tests: `proc` for /proc, `cgroup` for /sys/fs/cgroup. */
int memory_available_at(const char *proc, const char *cgroup, size_t *bytes, struct error *err);

struct kv_plan_input {
    size_t available;   /* bytes of memory_available, before anything was loaded */
    double utilization; /* (0, 1]: the share of it that may be used */
    size_t weight_bytes, workspace_bytes;
    size_t token_bytes; /* KV of one token */
    size_t block_size;
    size_t context_length; /* the model's own */
    size_t max_model_len;  /* 0 = the model's own, cut down to what KV holds */
    size_t max_sequences;
    size_t kv_tokens; /* 0 = choose; else exactly (rounded up to blocks) */
};

struct kv_plan {
    size_t n_blocks, max_model_len;
};

/*
 * Without kv_tokens, KV gets what the budget leaves, but not more than is of use: max_sequences sequences of
 * KV_PLAN_USUAL_LEN tokens, KV_PLAN_MOST_BYTES, or one sequence of max_model_len where it is given and longer.
 * ERROR_DOES_NOT_FIT with the numbers. On success n_blocks * block_size >= max_model_len.
 */
#define KV_PLAN_USUAL_LEN 4096
#define KV_PLAN_MOST_BYTES ((size_t)4 << 30)
int kv_plan_make(const struct kv_plan_input *in, struct kv_plan *out, struct error *err);

#endif
