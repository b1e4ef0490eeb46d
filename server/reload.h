/* SIGHUP: settings, keys and certificates are read again, and the model stays where it is. Loop thread. */
#ifndef INFERD_RELOAD_H
#define INFERD_RELOAD_H

#include <inferd/error.h>

struct server;

/*
 * Keep SIGHUP from ending the process, from now on and for ever: blocked in this thread and those that it makes. Without
 * reload_open it does nothing at all.
 */
void reload_block_hangup(void);

/* Take it from now on. */
int reload_open(struct server *s, struct error *err);
void reload_close(struct server *s);

/*
 * Read all again, check all, and then take it over; nothing changes if anything is wrong. Settings that cannot change
 * while serving stay as they are and are named. One line of log says what came of it. A drain is not disturbed.
 */
void server_reload(struct server *s);

#endif
