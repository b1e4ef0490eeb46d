#include <inferd/log.h>

#include "base/log_line.h"
#include "base/log_sink.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>

#define MESSAGE_MAX 2048

static _Atomic int threshold = LOG_LEVEL_INFO;
static enum log_format format = LOG_FORMAT_TEXT;
static _Atomic int under_journal = -1; /* standard error is the journal's; -1: not looked yet */

void log_set_level(enum log_level level) {
    atomic_store(&threshold, (int)level);
}

enum log_level log_get_level(void) {
    return (enum log_level)atomic_load(&threshold);
}

bool log_stderr_is_journal(void) {
    if (atomic_load(&under_journal) < 0) {
        atomic_store(&under_journal, log_sink_is_journal());
    }
    return atomic_load(&under_journal);
}

void log_set_format(enum log_format wanted) {
    if (wanted == LOG_FORMAT_AUTO) {
        wanted = log_stderr_is_journal() ? LOG_FORMAT_JOURNALD : LOG_FORMAT_TEXT;
    }
    format = wanted == LOG_FORMAT_JOURNALD && !log_sink_has_journal() ? LOG_FORMAT_TEXT : wanted;
}

enum log_format log_get_format(void) {
    return format;
}

uint64_t log_lost(void) {
    return log_sink_lost();
}

/* The journal may be restarting: then standard error gets the line, if it is not the journal, too. */
static bool tell(const struct log_entry *e) {
    struct log_line line;
    if (format == LOG_FORMAT_JOURNALD) {
        log_line_journal(&line, e);
        if (log_sink_journal(line.bytes, line.len)) {
            return true;
        }
    }
    if (format == LOG_FORMAT_JSON) {
        log_line_json(&line, e);
    } else {
        log_line_text(&line, e, log_stderr_is_journal());
    }
    return log_sink_stderr(line.bytes, line.len);
}

void log_event(enum log_level level, const char *message, const struct log_field *fields, size_t n) {
    const struct log_entry e = {level, message, fields, n};
    if ((int)level > atomic_load(&threshold) || !tell(&e)) {
        return;
    }
    uint64_t lost = log_sink_take_lost();
    if (lost > 0) {
        const struct log_field count = {"lines", LOG_COUNT, .number = lost};
        const struct log_entry gap = {LOG_LEVEL_WARN, "lines of the log before this one could not be written", &count, 1};
        tell(&gap);
    }
}

void log_write(enum log_level level, const char *fmt, ...) {
    char message[MESSAGE_MAX];
    va_list ap;
    if ((int)level > atomic_load(&threshold)) {
        return;
    }
    va_start(ap, fmt);
    int n = vsnprintf(message, sizeof message, fmt, ap);
    va_end(ap);
    log_event(level, n < 0 ? fmt : message, NULL, 0);
}
