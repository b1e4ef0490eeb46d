/* Where lines of the log go: standard error, or the journal's socket. Never waits; counts what is lost. */
#ifndef INFERD_LOG_SINK_H
#define INFERD_LOG_SINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A whole line with its '\n', at most PIPE_BUF bytes. False: lost, and counted. Threads take turns. */
bool log_sink_stderr(const char *line, size_t len);

/* Is standard error a stream of the journal? (systemd says so in JOURNAL_STREAM=DEVICE:INODE) */
bool log_sink_is_journal(void);

/* A datagram of the journal's own protocol. False, and not counted: nobody takes it; standard error may. */
bool log_sink_journal(const char *fields, size_t len);
/* Is somebody there? Opens the socket on first use. */
bool log_sink_has_journal(void);
/* Another path for the socket than the journal's, for tests. */
void log_sink_journal_path(const char *path);

uint64_t log_sink_lost(void);
/* How many were lost since this was last asked, for a line that says so. */
uint64_t log_sink_take_lost(void);

#endif
