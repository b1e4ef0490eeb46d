/* An event as one line of text, of JSON, or as the fields of a journal entry. Pure; asks for no memory. */
#ifndef INFERD_LOG_LINE_H
#define INFERD_LOG_LINE_H

#include <inferd/log.h>
#include <stdbool.h>

struct log_line {
    char bytes[LOG_LINE_MAX];
    size_t len;
};

struct log_entry {
    enum log_level level;
    const char *message;
    const struct log_field *fields; /* [n] */
    size_t n;
};

/* With `priority` it begins with <N> instead of the level's name: what journald makes of a stream. */
void log_line_text(struct log_line *out, const struct log_entry *e, bool priority);
/* With the wall clock's time, in UTC. */
void log_line_json(struct log_line *out, const struct log_entry *e);
void log_line_journal(struct log_line *out, const struct log_entry *e);

#endif
