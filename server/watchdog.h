/* Watches that the engine's steps end. Loop thread. */
#ifndef INFERD_WATCHDOG_H
#define INFERD_WATCHDOG_H

#include <stdbool.h>

struct server;

/* Is the engine over stall_timeout with a step? */
bool watchdog_stalled(const struct server *s);

/*
 * Once a second while there are requests: a stall, and its end, are a line of log with what hangs on it. Beyond
 * stall_exit the clients are told and the process ends with code 4: a thread that is stuck cannot be taken back.
 */
void watchdog_tick(struct server *s);

#endif
