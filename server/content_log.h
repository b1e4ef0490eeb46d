/*
 * What was asked and answered, if the operator wants it (setting content_log): a file of its own that only the service's
 * user can read, a JSON object a line. Beyond its bound the file becomes FILE.1, in place of the one before, and a new
 * one is begun, so that both hold twice the bound at most. Written by workers: a slow disk holds up nobody; when too much
 * waits for it, or it is full, records are lost and counted.
 */
#ifndef INFERD_CONTENT_LOG_H
#define INFERD_CONTENT_LOG_H

#include <inferd/buf.h>
#include <inferd/error.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct content_log;
struct request;

/* ERROR_MODEL, err->param "content_log": it cannot be opened, or is another's, or no file. */
int content_log_open(const char *path, size_t max, struct content_log **out, struct error *err);
void content_log_close(struct content_log *c); /* NULL is fine */
/* A whole line; any thread. False: it is lost. */
bool content_log_write(struct content_log *c, const char *line, size_t len);
uint64_t content_log_lost(const struct content_log *c); /* NULL: 0 */

/* The record of a request that has ended, r->access was taken; given to a worker. Loop thread. */
void content_log_request(struct request *r);

#endif
