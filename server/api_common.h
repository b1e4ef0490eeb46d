/* What all endpoints answer alike: errors, JSON replies. */
#ifndef INFERD_API_COMMON_H
#define INFERD_API_COMMON_H

#include "key_ring.h"

#include <inferd/buf.h>
#include <inferd/error.h>
#include <stddef.h>

struct exchange;
struct server;

#define JSON_CONTENT_TYPE "application/json"

struct api_error {
    int status;
    const char *type;
    const char *code;  /* NULL = null */
    const char *param; /* "" = null */
    const char *message;
    double retry_after; /* s, of a 429; 0 = by the queue */
};

#define API_RATE_LIMIT "rate_limit_exceeded" /* the code of a key's limits */

/* A key is over one of its limits; seconds until it is not, 0 = not known. */
struct api_error api_limit_error(enum key_rejection why, double seconds);

/* What the client is told about an error of ours. param and message are borrowed from it. */
struct api_error api_error_of(const struct error *err);

/* {"error":{"message","type","param","code"}} */
void api_error_write(const struct api_error *e, struct buf *out);

/* Answer with the error; 429 and 503 carry Retry-After. */
void api_reply_error(struct server *s, struct exchange *x, const struct api_error *e);

/* Retry-After: by the measured speed of the queue while the server is ready, else as set. */
void api_add_retry_after(struct server *s, struct exchange *x);

/* Answer with JSON; *body is taken. */
void api_reply(struct exchange *x, int status, struct buf *body);

/* A number in decimal. */
void json_put_size(struct buf *out, size_t n);

/* `"name":"value"` of the head of a JSON object, and the like. */
void json_put_string(struct buf *out, const char *s);

#endif
