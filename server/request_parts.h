/*
 * What the files that make up a request have between them: request.c (birth, death, errors, deadlines),
 * request_prepare.c (from body to engine) and request_answer.c (from the engine's events to bytes). Loop thread only.
 */
#ifndef INFERD_REQUEST_PARTS_H
#define INFERD_REQUEST_PARTS_H

#include "request.h"

struct api_error;

static inline double seconds_between(uint64_t from_ns, uint64_t to_ns) {
    return to_ns > from_ns ? (double)(to_ns - from_ns) / 1e9 : 0;
}

/* Tokens of the prompt that it answers. */
static inline size_t choice_prompt_tokens(const struct choice *c) {
    return c->request->prompts[c->index / (size_t)c->request->params.n].tokens.n;
}

/* Does the answer tell the logprobs of the echoed prompt? */
static inline bool request_echoes_logprobs(const struct request *r) {
    return r->params.echo && r->params.top_logprobs >= 0;
}

/* The body was used: HTTP has room for another. */
void request_free_body(struct request *r);
/* Count the end, once: by the worst of what happened to it. */
void request_account(struct request *r);
/* Called after everything that may have been the last: counts the end when nothing runs, frees when nothing refers. */
void request_settle(struct request *r);
/* Ask the engine to end what it has of it. */
void request_cancel(struct request *r);

/* It was admitted and cannot go on: a status where there is none yet, else an event and no [DONE]. */
void request_fail(struct request *r, const struct error *err);

/* The 200 of a stream, and the first chunk of every choice; once. */
void request_start_stream(struct request *r);
/* Where whole events are written, and their way out. */
struct buf *request_begin_events(struct request *r);
void request_send_events(struct request *r);

/* The smaller of *at_ns (0 = whenever) and so many seconds after from_ns (0 = no limit). */
void request_limit(uint64_t *at_ns, uint64_t from_ns, double seconds);
/* After its limits or its phase have changed. */
void request_set_deadline(struct request *r);
/* Timers may be late in a busy turn: is its time over? It has been answered then. */
bool request_expired_by_now(struct request *r);

#endif
