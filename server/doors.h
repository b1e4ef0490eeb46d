/* The server's listeners, from the settings or from a supervisor. */
#ifndef INFERD_DOORS_H
#define INFERD_DOORS_H

#include <inferd/error.h>
#include <stdbool.h>

struct config;
struct server;

/*
 * Open every listener and s->http. Inherited sockets take the place of the settings' addresses of the same door. Logs a
 * line for each. ERROR_MODEL: an address that others can reach, without keys or insecure; a bad certificate; a bad
 * descriptor. ERROR_IO: an address that cannot be had.
 */
int doors_open(struct server *s, bool has_keys, struct error *err);

/* ERROR_MODEL: a listener that is open can be reached by others, and c, which would be in force, has no keys nor insecure. */
int doors_check_keys(const struct server *s, const struct config *c, bool has_keys, struct error *err);

/* Log until when the certificate in use is good: a warning where it is over. Nothing without TLS. */
void doors_tell_certificate(const struct server *s);

/* Limits of HTTP that can change while serving, by the settings in force. */
void doors_set_limits(struct server *s);

#endif
