#include "notify.h"

#include <inferd/clock.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#define MESSAGE_MAX 512

/* $NOTIFY_SOCKET: a path, or a name in the abstract namespace behind an @. False: none, or none that we can use. */
static bool manager_address(struct sockaddr_un *address, socklen_t *len) {
    const char *path = getenv("NOTIFY_SOCKET");
    size_t n = path ? strlen(path) : 0;
    if (n < 2 || (path[0] != '/' && path[0] != '@') || n >= sizeof address->sun_path) {
        return false;
    }
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    memcpy(address->sun_path, path, n + 1);
    if (path[0] == '@') {
        address->sun_path[0] = '\0'; /* such a name has no NUL at its end */
    }
    *len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n + (path[0] == '/'));
    return true;
}

static void send_message(const char *message) {
    struct sockaddr_un address;
    socklen_t len;
    if (!manager_address(&address, &len)) {
        return;
    }
    /* It may wait for room, since the manager reads soon and a READY must not be lost; but not for ever. */
    const struct timeval patience = {.tv_sec = 1};
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd >= 0) {
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
        (void)sendto(fd, message, strlen(message), MSG_NOSIGNAL, (const struct sockaddr *)&address, len);
        close(fd);
    }
}

bool notify_wanted(void) {
    struct sockaddr_un address;
    socklen_t len;
    return manager_address(&address, &len);
}

void notify_ready(void) {
    send_message("READY=1\n");
}

void notify_status(const char *fmt, ...) {
    char message[MESSAGE_MAX] = "STATUS=";
    size_t at = strlen(message);
    va_list args;
    va_start(args, fmt);
    vsnprintf(message + at, sizeof message - at, fmt, args);
    va_end(args);
    for (char *c = message + at; *c; c++) { /* what a name holds must not begin a line of its own */
        *c = (unsigned char)*c < ' ' || *c == 0x7f ? ' ' : *c;
    }
    send_message(message);
}

void notify_reloading(void) {
    char message[80]; /* the time lets the manager tell this reload's READY from an earlier one */
    snprintf(message, sizeof message, "RELOADING=1\nMONOTONIC_USEC=%llu\n",
             (unsigned long long)(clock_now_ns() / 1000));
    send_message(message);
}

void notify_stopping(void) {
    send_message("STOPPING=1\n");
}

void notify_watchdog(void) {
    send_message("WATCHDOG=1\n");
}

void notify_extend_timeout(uint64_t ms) {
    char message[64];
    snprintf(message, sizeof message, "EXTEND_TIMEOUT_USEC=%llu\n", (unsigned long long)ms * 1000);
    send_message(message);
}

/* A number and nothing else; 0 if it is none. */
static unsigned long long number_of(const char *name) {
    const char *text = getenv(name);
    size_t digits = text ? strspn(text, "0123456789") : 0;
    return digits > 0 && digits < 19 && text[digits] == '\0' ? strtoull(text, NULL, 10) : 0;
}

uint64_t notify_watchdog_ms(void) {
    if (getenv("WATCHDOG_PID") && number_of("WATCHDOG_PID") != (unsigned long long)getpid()) {
        return 0; /* meant for another process, which we inherited it from */
    }
    return number_of("WATCHDOG_USEC") / 1000;
}
