#include <inferd/log.h>

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static _Atomic int threshold = LOG_LEVEL_INFO;

void log_set_level(enum log_level level) {
    atomic_store(&threshold, (int)level);
}

void log_write(enum log_level level, const char *fmt, ...) {
    static const struct {
        const char *name;
        int priority; /* syslog's, which journald reads from <N> */
    } levels[] = {{"error", 3}, {"warn", 4}, {"info", 6}, {"debug", 7}};
    if ((int)level > atomic_load(&threshold)) {
        return;
    }
    char line[2048];
    int n = getenv("JOURNAL_STREAM") ? snprintf(line, sizeof line, "<%d>", levels[level].priority)
                                     : snprintf(line, sizeof line, "inferd: %s: ", levels[level].name);
    va_list ap;
    va_start(ap, fmt);
    int m = vsnprintf(line + n, sizeof line - (size_t)n - 1, fmt, ap);
    va_end(ap);
    size_t len = (size_t)n + (m < 0 ? 0 : (size_t)m);
    if (len > sizeof line - 2) {
        len = sizeof line - 2;
    }
    for (size_t i = 0; i < len; i++) { /* one message is one line, whatever it quotes */
        if (line[i] == '\n' || line[i] == '\r') {
            line[i] = ' ';
        }
    }
    line[len++] = '\n';
    ssize_t w = write(STDERR_FILENO, line, len);
    (void)w;
}
