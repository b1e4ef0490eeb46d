/*
 * The log: one line an event, to standard error or to the journal. Only programs (server/) log; libraries return
 * errors. Thread-safe; asks for no memory, never waits: a line that cannot be written now (a full disk, a pipe that
 * nobody reads or that is closed, a journal that is gone) is lost and counted.
 *
 * Whatever a value holds, a line is one line of valid UTF-8 without control characters: they are escaped. What does not
 * fit into LOG_LINE_MAX bytes is cut.
 */
#ifndef INFERD_LOG_H
#define INFERD_LOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum log_level { LOG_LEVEL_ERROR, LOG_LEVEL_WARN, LOG_LEVEL_INFO, LOG_LEVEL_DEBUG };

enum log_format {
    LOG_FORMAT_AUTO,     /* JOURNALD when standard error is the journal (JOURNAL_STREAM names it), else TEXT */
    LOG_FORMAT_TEXT,     /* inferd: LEVEL: MESSAGE NAME=VALUE NAME="A VALUE" */
    LOG_FORMAT_JSON,     /* {"time":…,"level":…,"message":…,"NAME":…} */
    LOG_FORMAT_JOURNALD, /* a datagram of fields: PRIORITY, MESSAGE, NAME in capitals */
};

#define LOG_LINE_MAX 4096 /* with its end; a pipe takes so much whole or not at all */

void log_set_level(enum log_level level);
enum log_level log_get_level(void);
/* Before other threads log. JOURNALD, where there is no journal, is TEXT. */
void log_set_format(enum log_format format);
enum log_format log_get_format(void); /* never AUTO */
/* Is standard error a stream of the journal, where "<N>" before a line is its priority? */
bool log_stderr_is_journal(void);
/* Lines that were lost since the process began. */
uint64_t log_lost(void);

void log_write(enum log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#define log_error(...) log_write(LOG_LEVEL_ERROR, __VA_ARGS__)
#define log_warn(...) log_write(LOG_LEVEL_WARN, __VA_ARGS__)
#define log_info(...) log_write(LOG_LEVEL_INFO, __VA_ARGS__)
#define log_debug(...) log_write(LOG_LEVEL_DEBUG, __VA_ARGS__)

/* What an event tells besides its message, in a form that programs read. */
enum log_kind { LOG_TEXT, LOG_COUNT, LOG_MILLISECONDS };
struct log_field {
    const char *name; /* lower case and _; stable: others read it */
    enum log_kind kind;
    const char *text; /* of TEXT; NULL: the field is left out */
    uint64_t number;  /* of COUNT; of MILLISECONDS in ns */
};
void log_event(enum log_level level, const char *message, const struct log_field *fields, size_t n);

#endif
