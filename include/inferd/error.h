/*
 * Errors are values with a sentence.
 *
 * A function that can fail returns int (0 ok, -1 failed) or a pointer (NULL failed) and takes a
 * `struct error *err`, never NULL, which it fills on failure only. Libraries never log; the outermost
 * caller logs the sentence once or answers the client with it, so it must be fit for a stranger to read:
 * no addresses, no echo of untrusted bytes.
 */
#ifndef INFERD_ERROR_H
#define INFERD_ERROR_H

#include <stdarg.h>

enum error_code {
    ERROR_NONE = 0,
    ERROR_INVALID,        /* bad input from a client or a caller: HTTP 400, exit code 2 on a command line */
    ERROR_UNSUPPORTED,    /* well-formed but not supported: HTTP 400 code "unsupported" */
    ERROR_CONTEXT_LENGTH, /* prompt, or prompt + max_tokens, over the context: HTTP 400 */
    ERROR_QUEUE_FULL,     /* admission refused: HTTP 429 */
    ERROR_UNAVAILABLE,    /* loading, draining: HTTP 503 */
    ERROR_MODEL,          /* a model file or configuration is unusable: exit code 78 */
    ERROR_DOES_NOT_FIT,   /* memory plan fails: exit code 3 */
    ERROR_DEVICE,         /* device missing or lost: exit code 4 */
    ERROR_IO,             /* the operating system refused: exit code 1 */
    ERROR_MEMORY,         /* out of memory */
    ERROR_INTERNAL,       /* a bug of ours: HTTP 500 */
    ERROR_NOT_FOUND,      /* no such model: HTTP 404 */
};

struct error {
    enum error_code code;
    char param[64];    /* the request field or setting to blame, "" if none */
    char message[512]; /* one sentence, UTF-8, no trailing newline */
};

/* Fill `err` and return -1, so that callers write `return error_set(err, ...)`. Clears err->param. */
int error_set(struct error *err, enum error_code code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* The same with the field to blame. */
int error_set_param(struct error *err, enum error_code code, const char *param, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* Put "what: " before the sentence that is already there (file names, field paths). Returns -1. */
int error_prefix(struct error *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Out of memory: the one sentence for it. Returns -1. */
int error_memory(struct error *err);

#endif
