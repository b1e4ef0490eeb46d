/*
 * Regexes of model files (tokenizers, names of quantised modules), by Oniguruma (the engine that the tokenizers library
 * uses), with limits on stack, retries and time. Patterns come from model files only, never from clients.
 */
#ifndef INFERD_REGEX_H
#define INFERD_REGEX_H

#include <inferd/error.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Of all searches of one text. A pattern whose matches each look at the whole rest of it takes the square of its
 * length.
 */
#define REGEX_TIME_LIMIT_NS 2000000000u

struct regex; /* immutable, usable from any thread */

/* The searches of one encoding: memory that they share, and the processor time that they may take together. */
struct regex_run {
    void *region, *limits;  /* Oniguruma's, owned; NULL before the first search */
    uint64_t time_limit_ns; /* 0: REGEX_TIME_LIMIT_NS */
    uint64_t deadline;      /* of the thread's processor time; set by the first search */
    uint64_t checked;       /* when the deadline was looked at */
    size_t n_searches;      /* and matches tried at one place */
};
void regex_run_free(struct regex_run *run);

int regex_new(const char *pattern, size_t len, struct regex **out, struct error *err);
void regex_free(struct regex *r);

/*
 * The first match in s[0..len) that begins at `from` or later: 1 and its bounds, 0 if there is none, -1 with *err when
 * a limit is passed (of stack, of retries, of time).
 */
int regex_find(const struct regex *r, struct regex_run *run, const char *s, size_t len, size_t from, size_t *start,
               size_t *end, struct error *err);

#endif
