#include "listener.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int listener_open(const char *host, size_t *port, struct error *err) {
    char service[16];
    snprintf(service, sizeof service, "%zu", *port);
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV}, *list;
    if (strcmp(host, "localhost") == 0) {
        host = "127.0.0.1";
    }
    int rc = getaddrinfo(host, service, &hints, &list);
    if (rc) {
        return error_set_param(err, ERROR_IO, "host", "%s: %s", host, gai_strerror(rc));
    }
    int fd = socket(list->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), on = 1;
    bool ok = fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
              bind(fd, list->ai_addr, list->ai_addrlen) == 0 && listen(fd, SOMAXCONN) == 0;
    int saved = errno;
    freeaddrinfo(list);
    struct sockaddr_storage bound;
    socklen_t len = sizeof bound;
    if (!ok || getsockname(fd, (struct sockaddr *)&bound, &len)) {
        if (fd >= 0) {
            close(fd);
        }
        return error_set_param(err, ERROR_IO, "port", "cannot listen on %s port %zu: %s", host, *port,
                               strerror(ok ? errno : saved));
    }
    *port = ntohs(bound.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&bound)->sin6_port
                                              : ((struct sockaddr_in *)&bound)->sin_port);
    return fd;
}
