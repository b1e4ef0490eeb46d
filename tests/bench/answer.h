/*
 * An HTTP/1.1 answer as it comes in, in pieces of any size: its status, then its body (by length or chunked) as lines
 * of server-sent events. As much HTTP as a load generator needs of a server that it trusts to be well-behaved, and an
 * error for what is not.
 */
#ifndef BENCH_ANSWER_H
#define BENCH_ANSWER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum answer_state {
    ANSWER_STATUS,
    ANSWER_HEADER,
    ANSWER_SIZE, /* of a chunk */
    ANSWER_DATA,
    ANSWER_DATA_END, /* the line end behind a chunk */
    ANSWER_TRAILER,
    ANSWER_DONE,
    ANSWER_BROKEN,
};

struct answer {
    enum answer_state state;
    int status; /* 0 = not yet */
    bool chunked, event_stream, closes;
    uint64_t left; /* of the body or the chunk */
    char *line;    /* [line_len] an unfinished line of the head or the body; owned */
    size_t line_len, line_cap;
};

typedef void answer_event(void *arg, const char *data, size_t len); /* what stands behind "data: " */

void answer_begin(struct answer *a); /* for the next answer; keeps memory */
void answer_free(struct answer *a);
/* Take bytes up to the end of the answer; how many were taken. state is then DONE, BROKEN or anything between. */
size_t answer_feed(struct answer *a, const char *bytes, size_t len, answer_event *event, void *arg);

#endif
