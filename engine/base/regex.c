#include "base/regex.h"

#include "base/utf8.h"

#include <oniguruma.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Bounds of one match attempt. Greedy runs push one entry a character, so the stack must hold a long word; the
 * retries stop patterns that backtrack badly on hostile text. */
#define STACK_LIMIT 64000000u
#define RETRY_LIMIT 50000000u
/* Oniguruma knows no time limit, so it searches texts of at most this length; in longer ones each place is tried. */
#define SEARCH_BYTES 4096

struct regex {
    regex_t *onig;
};

static pthread_once_t once = PTHREAD_ONCE_INIT;

static void initialize(void) {
    OnigEncoding encodings[] = {ONIG_ENCODING_UTF8};
    onig_initialize(encodings, 1);
}

int regex_new(const char *pattern, size_t len, struct regex **out, struct error *err) {
    pthread_once(&once, initialize);
    struct regex *r = calloc(1, sizeof *r);
    if (!r) {
        return error_memory(err);
    }
    if (memmem(pattern, len, "\\G", 2)) { /* "where the search began": which is not told to the engine */
        free(r);
        return error_set(err, ERROR_MODEL, "the pattern '%.200s' has \\G, which is not supported", pattern);
    }
    OnigErrorInfo info;
    const OnigUChar *p = (const OnigUChar *)pattern;
    int rc = onig_new(&r->onig, p, p + len, ONIG_OPTION_NONE, ONIG_ENCODING_UTF8, ONIG_SYNTAX_ONIGURUMA, &info);
    if (rc != ONIG_NORMAL) {
        char why[ONIG_MAX_ERROR_MESSAGE_LEN];
        onig_error_code_to_str((OnigUChar *)why, rc, &info);
        free(r);
        return error_set(err, ERROR_MODEL, "the pattern '%.200s' is not a valid regex: %s", pattern, why);
    }
    *out = r;
    return 0;
}

void regex_free(struct regex *r) {
    if (r) {
        onig_free(r->onig);
        free(r);
    }
}

void regex_run_free(struct regex_run *run) {
    if (run->region) {
        onig_region_free(run->region, 1);
    }
    if (run->limits) {
        onig_free_match_param(run->limits);
    }
    *run = (struct regex_run){0};
}

static uint64_t time_ns(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int start_run(struct regex_run *run, struct error *err) {
    run->region = onig_region_new();
    run->limits = onig_new_match_param();
    if (!run->region || !run->limits) {
        regex_run_free(run);
        return error_memory(err);
    }
    onig_initialize_match_param(run->limits);
    onig_set_match_stack_limit_size_of_match_param(run->limits, STACK_LIMIT);
    onig_set_retry_limit_in_match_of_match_param(run->limits, RETRY_LIMIT);
    onig_set_retry_limit_in_search_of_match_param(run->limits, RETRY_LIMIT);
    run->deadline = time_ns(CLOCK_THREAD_CPUTIME_ID) + (run->time_limit_ns ? run->time_limit_ns : REGEX_TIME_LIMIT_NS);
    return 0;
}

/* Asked before each search. The thread's own clock is a system call: it is read once a millisecond by another clock. */
static bool is_late(struct regex_run *run) {
    run->n_searches++;
    uint64_t now = time_ns(CLOCK_MONOTONIC);
    if (now - run->checked < 1000000) {
        return false;
    }
    run->checked = now;
    return time_ns(CLOCK_THREAD_CPUTIME_ID) > run->deadline;
}

static int too_long(struct error *err) {
    return error_set(err, ERROR_INVALID, "the text takes too long to match with the model's pattern");
}

int regex_find(const struct regex *r, struct regex_run *run, const char *s, size_t len, size_t from, size_t *start,
               size_t *end, struct error *err) {
    if (!run->region && start_run(run, err) < 0) {
        return -1;
    }
    const OnigUChar *text = (const OnigUChar *)s;
    int rc = ONIG_MISMATCH;
    while (rc == ONIG_MISMATCH && len - from > SEARCH_BYTES) {
        if (is_late(run)) {
            return too_long(err);
        }
        rc = onig_match_with_param(r->onig, text, text + len, text + from, run->region, ONIG_OPTION_NONE, run->limits);
        from += rc == ONIG_MISMATCH ? utf8_length(s[from]) : 0;
    }
    if (rc == ONIG_MISMATCH) {
        if (is_late(run)) {
            return too_long(err);
        }
        rc = onig_search_with_param(r->onig, text, text + len, text + from, text + len, run->region, ONIG_OPTION_NONE,
                                    run->limits);
    }
    if (rc >= 0) {
        const OnigRegion *region = run->region;
        *start = (size_t)region->beg[0];
        *end = (size_t)region->end[0];
        return 1;
    }
    if (rc == ONIG_MISMATCH) {
        return 0;
    }
    char why[ONIG_MAX_ERROR_MESSAGE_LEN];
    onig_error_code_to_str((OnigUChar *)why, rc);
    return error_set(err, ERROR_INVALID, "the text cannot be matched with the model's pattern: %s", why);
}
