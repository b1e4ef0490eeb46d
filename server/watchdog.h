/* Watches that the engine's steps end. Loop thread. */
#ifndef INFERD_WATCHDOG_H
#define INFERD_WATCHDOG_H

#include <stdbool.h>

struct server;

/* Seconds since the engine got something to do or ended a step; 0 while it has nothing to do. */
double watchdog_silence(const struct server *s);

/* Is the engine over stall_timeout with a step? */
bool watchdog_stalled(const struct server *s);

/* The engine lost its device: a line of log, and the process ends with code 4 once the clients were told, in a second or two.
 * Called when events came. */
void watchdog_check_device(struct server *s);

/*
 * Once a second while there are requests: a stall, and its end, are a line of log with what hangs on it. Beyond
 * stall_exit the clients are told and the process ends with code 4: a thread that is stuck cannot be taken back.
 */
void watchdog_tick(struct server *s);

#endif
