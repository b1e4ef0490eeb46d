/* The listening socket. */
#ifndef INFERD_LISTENER_H
#define INFERD_LISTENER_H

#include <inferd/error.h>
#include <stddef.h>

/*
 * Bind to the host (an address or "localhost") and port, 0 for any free one, and listen: a non-blocking descriptor,
 * *port the one that was bound. -1 and ERROR_IO that names address and reason.
 */
int listener_open(const char *host, size_t *port, struct error *err);

#endif
