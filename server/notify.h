/*
 * What the service manager is told, after sd_notify(3): a datagram of NAME=VALUE lines to $NOTIFY_SOCKET. Without that
 * variable, or when nobody takes it, nothing happens: a manager that cannot be told is no reason to stop serving.
 * Any thread; reads the environment, keeps nothing.
 */
#ifndef INFERD_NOTIFY_H
#define INFERD_NOTIFY_H

#include <stdbool.h>
#include <stdint.h>

/* Start-up is over, or a reload is. */
void notify_ready(void);
/* One line for people: `systemctl status` shows it. */
void notify_status(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Settings are being read again; notify_ready() must follow, whatever came of it. */
void notify_reloading(void);
/* The end has begun. */
void notify_stopping(void);
/* All is well: to be said more often than every notify_watchdog_ms(). */
void notify_watchdog(void);
/* Start-up, a reload or the end may take so long from now, whatever the unit allows. */
void notify_extend_timeout(uint64_t ms);

/* The manager restarts this process when nothing is said for so long ($WATCHDOG_USEC, meant for $WATCHDOG_PID);
 * 0: it does not look. */
uint64_t notify_watchdog_ms(void);
/* Is there a manager to tell? */
bool notify_wanted(void);

#endif
