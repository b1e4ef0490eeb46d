/*
 * An HTTP/1.1 answer as it comes in, in pieces of any size: its status, then its body (by length, chunked, or up to the end of
 * the connection) as lines of server-sent events. As much HTTP as a load generator needs. The server may be anybody's: memory
 * and every number are bounded, and what is no answer is BROKEN.
 */
#ifndef INFERD_ANSWER_H
#define INFERD_ANSWER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum answer_state {
    ANSWER_STATUS,
    ANSWER_HEADER,
    ANSWER_SIZE, /* of a chunk */
    ANSWER_DATA,
    ANSWER_DATA_END, /* the line end behind a chunk */
    ANSWER_TRAILER, /* lines up to an empty one */
    ANSWER_DONE,
    ANSWER_BROKEN,
};

struct answer {
    enum answer_state state;
    int status; /* 0 = not yet */
    bool chunked, event_stream, closes;
    bool has_length, until_close; /* the body has a length; it has none and is not chunked */
    bool extension;               /* behind a ';' in the line of a chunk's size */
    bool digits;                  /* that line has some */
    size_t head_bytes;            /* of status and headers, or of the trailer */
    uint64_t left; /* of the body or the chunk */
    char *line;    /* [line_len] an unfinished line of the head or the body; owned */
    size_t line_len, line_cap;
};

typedef void answer_event(void *arg, const char *data, size_t len); /* what stands behind "data: " */

void answer_begin(struct answer *a); /* for the next answer; keeps memory */
void answer_free(struct answer *a);
/* Take bytes up to the end of the answer; how many were taken. state is then DONE, BROKEN or anything between. */
#define ANSWER_MAX_HEAD ((size_t)64 << 10) /* bytes of head or trailer */
#define ANSWER_MAX_LINE ((size_t)1 << 20)  /* bytes of a line of the body */
#define ANSWER_MAX_LENGTH ((uint64_t)1 << 40)
size_t answer_feed(struct answer *a, const char *bytes, size_t len, answer_event *event, void *arg);
/* The connection has ended: what ends with it is DONE, the rest BROKEN. */
void answer_end(struct answer *a);

#endif
