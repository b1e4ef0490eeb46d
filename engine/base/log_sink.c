#include "base/log_sink.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

static _Atomic uint64_t lost, lost_told;

/* ---- standard error ------------------------------------------------------------------------------------------ */

static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER; /* what poll() says must still be so at the write */
static bool torn;                                        /* the last line went out in part: end it first */
static enum { UNKNOWN, SOCKET, FILE_LIKE, PIPE_LIKE } kind;

/* What never makes a writer wait needs no poll(). */
static void look(void) {
    struct stat st;
    if (kind == UNKNOWN && fstat(STDERR_FILENO, &st) == 0) {
        kind = S_ISSOCK(st.st_mode) ? SOCKET : S_ISREG(st.st_mode) ? FILE_LIKE : PIPE_LIKE;
    }
}

/* A pipe that is writable has room for PIPE_BUF. */
static bool has_room(void) {
    struct pollfd p = {.fd = STDERR_FILENO, .events = POLLOUT};
    return kind == FILE_LIKE || (poll(&p, 1, 0) == 1 && (p.revents & POLLOUT));
}

static bool put(const char *bytes, size_t len) {
    ssize_t n;
    do {
        n = kind == SOCKET ? send(STDERR_FILENO, bytes, len, MSG_DONTWAIT | MSG_NOSIGNAL)
            : has_room()   ? write(STDERR_FILENO, bytes, len)
                           : 0;
    } while (n < 0 && errno == EINTR);
    if (n > 0) {
        torn = (size_t)n < len;
    }
    return n == (ssize_t)len;
}

bool log_sink_stderr(const char *line, size_t len) {
    pthread_mutex_lock(&turn);
    look();
    bool whole = (!torn || put("\n", 1)) && put(line, len);
    pthread_mutex_unlock(&turn);
    if (!whole) {
        atomic_fetch_add(&lost, 1);
    }
    return whole;
}

uint64_t log_sink_lost(void) {
    return atomic_load(&lost);
}

uint64_t log_sink_take_lost(void) {
    uint64_t now = atomic_load(&lost);
    return now - atomic_exchange(&lost_told, now);
}

/* ---- the journal --------------------------------------------------------------------------------------------- */

static struct sockaddr_un journal = {.sun_family = AF_UNIX, .sun_path = "/run/systemd/journal/socket"};
static _Atomic int journal_fd = -1;

void log_sink_journal_path(const char *path) {
    snprintf(journal.sun_path, sizeof journal.sun_path, "%s", path);
}

static int open_journal(void) {
    int fd = atomic_load(&journal_fd), none = -1;
    if (fd >= 0) {
        return fd;
    }
    fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && !atomic_compare_exchange_strong(&journal_fd, &none, fd)) {
        close(fd);
        fd = none;
    }
    return fd;
}

bool log_sink_has_journal(void) {
    struct stat st;
    return stat(journal.sun_path, &st) == 0 && S_ISSOCK(st.st_mode) && open_journal() >= 0;
}

bool log_sink_journal(const char *fields, size_t len) {
    ssize_t n;
    int fd = open_journal();
    do {
        n = fd < 0 ? -1
                   : sendto(fd, fields, len, MSG_DONTWAIT | MSG_NOSIGNAL, (const struct sockaddr *)&journal, sizeof journal);
    } while (n < 0 && fd >= 0 && errno == EINTR);
    return n == (ssize_t)len;
}

bool log_sink_is_journal(void) {
    const char *stream = getenv("JOURNAL_STREAM");
    unsigned long long device, inode;
    struct stat st;
    return stream && sscanf(stream, "%llu:%llu", &device, &inode) == 2 && fstat(STDERR_FILENO, &st) == 0 &&
           st.st_dev == device && st.st_ino == inode;
}
