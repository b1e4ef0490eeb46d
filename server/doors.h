/* The server's listeners, from the settings or from a supervisor. */
#ifndef INFERD_DOORS_H
#define INFERD_DOORS_H

#include <inferd/error.h>
#include <stdbool.h>

struct server;

/*
 * Open every listener and s->http. Inherited sockets take the place of the settings' addresses of the same door. Logs a
 * line for each. ERROR_MODEL: an address that others can reach, without keys or insecure; a bad certificate; a bad
 * descriptor. ERROR_IO: an address that cannot be had.
 */
int doors_open(struct server *s, bool has_keys, struct error *err);

/* Log until when the certificate in use is good: a warning where it is over. Nothing without TLS. */
void doors_tell_certificate(const struct server *s);

/* Limits of HTTP that can change while serving, by the settings in force. */
void doors_set_limits(struct server *s);

#endif
