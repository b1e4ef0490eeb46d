#include "listener.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <inferd/buf.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- addresses ----------------------------------------------------------------------------------------------- */

static const char unix_prefix[] = "unix:";

static int parse_unix(const char *path, size_t len, struct listen_address *out, struct error *err) {
    struct sockaddr_un local = {.sun_family = AF_UNIX};
    if (len == 0 || path[0] != '/') {
        return error_set(err, ERROR_MODEL, "a Unix socket wants a whole path, as in unix:/run/inferd/http.sock");
    }
    if (len >= sizeof local.sun_path) {
        return error_set(err, ERROR_MODEL, "the path of a Unix socket may have %zu bytes at most",
                         sizeof local.sun_path - 1);
    }
    memcpy(local.sun_path, path, len);
    out->at.local = local;
    out->len = (socklen_t)sizeof local;
    return 0;
}

/* "ADDRESS:PORT": the text before the last colon, and the number behind it. */
static int cut_port(const char *text, size_t *len, size_t *port, struct error *err) {
    size_t colon = *len, value = 0;
    while (colon > 0 && text[colon - 1] != ':') {
        colon--;
    }
    for (size_t i = colon; i < *len && value <= 65535; i++) {
        value = text[i] >= '0' && text[i] <= '9' ? value * 10 + (size_t)(text[i] - '0') : 65536;
    }
    bool two_colons = colon > 1 && text[0] != '[' && memchr(text, ':', colon - 1);
    if (colon < 2 || colon == *len || value > 65535 || two_colons) {
        return error_set(err, ERROR_MODEL, "it must be an address and a port, as in 127.0.0.1:9090 or [::1]:9090, or unix:/path");
    }
    *len = colon - 1;
    *port = value;
    return 0;
}

int listen_address_parse(const char *text, size_t len, bool with_port, size_t port, struct listen_address *out,
                         struct error *err) {
    struct listen_address a = {0};
    size_t prefix = sizeof unix_prefix - 1;
    if (len >= prefix && memcmp(text, unix_prefix, prefix) == 0) {
        if (parse_unix(text + prefix, len - prefix, &a, err)) {
            return -1;
        }
        *out = a;
        return 0;
    }
    if (with_port && cut_port(text, &len, &port, err)) {
        return -1;
    }
    char address[INET6_ADDRSTRLEN] = "";
    bool brackets = len >= 2 && text[0] == '[' && text[len - 1] == ']';
    if (len - 2 * brackets < sizeof address) {
        memcpy(address, text + brackets, len - 2 * brackets);
    }
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port)};
    if (!brackets && inet_pton(AF_INET, strcmp(address, "localhost") == 0 ? "127.0.0.1" : address, &v4.sin_addr) == 1) {
        memcpy(&a.at, &v4, sizeof v4);
        a.len = sizeof v4;
    } else if (inet_pton(AF_INET6, address, &v6.sin6_addr) == 1) {
        memcpy(&a.at, &v6, sizeof v6);
        a.len = sizeof v6;
    } else {
        return error_set(err, ERROR_MODEL, "it must be an IPv4 or IPv6 address, localhost or unix:/path, not \"%.*s\"",
                         (int)(len < 60 ? len : 60), text);
    }
    *out = a;
    return 0;
}

bool listen_address_is_local(const struct listen_address *a) {
    const struct sockaddr_in *v4 = (const void *)&a->at;
    const struct sockaddr_in6 *v6 = (const void *)&a->at;
    switch (a->at.any.sa_family) {
    case AF_INET:
        return (ntohl(v4->sin_addr.s_addr) >> 24) == 127;
    case AF_INET6:
        return IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr);
    default:
        return a->at.any.sa_family == AF_UNIX;
    }
}

void listen_address_print(const struct listen_address *a, char name[LISTEN_NAME_MAX]) {
    char text[INET6_ADDRSTRLEN] = "";
    const struct sockaddr_in *v4 = (const void *)&a->at;
    const struct sockaddr_in6 *v6 = (const void *)&a->at;
    if (a->at.any.sa_family == AF_INET) {
        inet_ntop(AF_INET, &v4->sin_addr, text, sizeof text);
        snprintf(name, LISTEN_NAME_MAX, "%s:%u", text, ntohs(v4->sin_port));
    } else if (a->at.any.sa_family == AF_INET6) {
        inet_ntop(AF_INET6, &v6->sin6_addr, text, sizeof text);
        snprintf(name, LISTEN_NAME_MAX, "[%s]:%u", text, ntohs(v6->sin6_port));
    } else if (a->at.local.sun_path[0]) {
        snprintf(name, LISTEN_NAME_MAX, "unix:%.*s", (int)sizeof a->at.local.sun_path, a->at.local.sun_path);
    } else {
        snprintf(name, LISTEN_NAME_MAX, "unix");
    }
}

/* ---- opening ------------------------------------------------------------------------------------------------- */

/* Is there a file in the way, which one may take away? A daemon that was killed leaves its socket behind. */
static int remove_stale(const struct sockaddr_un *local, struct error *err) {
    const char *path = local->sun_path;
    struct stat st;
    if (lstat(path, &st)) {
        return errno == ENOENT ? 0 : error_set(err, ERROR_IO, "%s: %s", path, strerror(errno));
    }
    if (!S_ISSOCK(st.st_mode)) {
        return error_set(err, ERROR_IO, "%s is there already and is no socket", path);
    }
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        return error_set(err, ERROR_IO, "%s: %s", path, strerror(errno));
    }
    int rc = connect(fd, (const struct sockaddr *)local, sizeof *local), reason = rc ? errno : 0;
    close(fd);
    if (reason == ECONNREFUSED) {
        return unlink(path) && errno != ENOENT ? error_set(err, ERROR_IO, "%s: %s", path, strerror(errno)) : 0;
    }
    if (reason == 0 || reason == EAGAIN) { /* its queue is full: it is somebody's */
        return error_set(err, ERROR_IO, "%s: another process listens there", path);
    }
    return error_set(err, ERROR_IO, "%s: %s", path, strerror(reason));
}

static int fail(int fd, const struct listen_address *a, struct error *err) {
    int reason = errno;
    char name[LISTEN_NAME_MAX];
    listen_address_print(a, name);
    if (fd >= 0) {
        close(fd);
    }
    return error_set(err, ERROR_IO, "cannot listen on %s: %s", name, strerror(reason));
}

int listener_open(const struct listen_address *a, bool v6_only, unsigned mode, struct listener *out,
                  struct error *err) {
    struct listener l = {.fd = -1, .address = *a};
    bool local = a->at.any.sa_family == AF_UNIX, v6 = a->at.any.sa_family == AF_INET6;
    if (local && remove_stale(&a->at.local, err)) {
        return -1;
    }
    int fd = socket(a->at.any.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), on = 1, only = v6_only;
    if (fd < 0 || (!local && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on)) ||
        (v6 && setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &only, sizeof only)) || bind(fd, &a->at.any, a->len)) {
        return fail(fd, a, err);
    }
    struct stat st;
    if (local) { /* nobody can connect before listen() */
        if (chmod(a->at.local.sun_path, mode) || lstat(a->at.local.sun_path, &st)) {
            int reason = errno;
            unlink(a->at.local.sun_path);
            errno = reason;
            return fail(fd, a, err);
        }
        l.device = st.st_dev;
        l.inode = st.st_ino;
    } else {
        l.address.len = sizeof l.address.at;
    }
    l.fd = fd;
    if (listen(fd, SOMAXCONN) || (!local && getsockname(fd, &l.address.at.any, &l.address.len))) {
        int reason = errno;
        listener_close(&l);
        errno = reason;
        return fail(-1, a, err);
    }
    *out = l;
    return 0;
}

void listener_close(struct listener *l) {
    if (l->fd < 0) {
        return;
    }
    const char *path = l->address.at.local.sun_path;
    struct stat st;
    if (!l->inherited && l->address.at.any.sa_family == AF_UNIX && lstat(path, &st) == 0 && st.st_dev == l->device &&
        st.st_ino == l->inode) { /* and not that of a process that has taken its place */
        unlink(path);
    }
    close(l->fd);
    l->fd = -1;
}

/* ---- inherited ----------------------------------------------------------------------------------------------- */

#define FIRST_INHERITED 3
#define MAX_INHERITED 16

/* Name i of a list with colons between them. */
static bool is_named(const char *names, size_t i, const char *name) {
    while (names && i-- > 0) {
        names = strchr(names, ':');
        names = names ? names + 1 : NULL;
    }
    return names && strcspn(names, ":") == strlen(name) && strncmp(names, name, strlen(name)) == 0;
}

static int inherit(int fd, struct listener *out, struct error *err) {
    struct listener l = {.fd = fd, .inherited = true, .address.len = sizeof l.address.at};
    int type = 0, listens = 0, flags;
    socklen_t len = sizeof type, listens_len = sizeof listens;
    if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &len) ||
        getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &listens_len) ||
        getsockname(fd, &l.address.at.any, &l.address.len)) {
        return error_set(err, ERROR_MODEL, "LISTEN_FDS: descriptor %d: %s", fd, strerror(errno));
    }
    sa_family_t family = l.address.at.any.sa_family;
    if (type != SOCK_STREAM || !listens || (family != AF_INET && family != AF_INET6 && family != AF_UNIX)) {
        return error_set(err, ERROR_MODEL,
                         "LISTEN_FDS: descriptor %d is no listening stream socket (ListenStream, Accept=no)", fd);
    }
    flags = fcntl(fd, F_GETFL);
    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) || fcntl(fd, F_SETFD, FD_CLOEXEC)) {
        return error_set(err, ERROR_IO, "LISTEN_FDS: descriptor %d: %s", fd, strerror(errno));
    }
    *out = l;
    return 0;
}

static int inherit_all(size_t n, const char *names, struct listener **out, struct error *err) {
    struct listener *list = calloc(n, sizeof *list);
    if (!list) {
        return error_memory(err);
    }
    for (size_t i = 0; i < n; i++) {
        if (inherit(FIRST_INHERITED + (int)i, &list[i], err)) {
            free(list);
            return -1;
        }
        list[i].door = is_named(names, i, "admin") ? HTTP_ADMIN : HTTP_PUBLIC;
    }
    *out = list;
    return 0;
}

int listeners_inherit(struct listener **out, size_t *n, struct error *err) {
    const char *pid = getenv("LISTEN_PID"), *fds = getenv("LISTEN_FDS"), *names = getenv("LISTEN_FDNAMES");
    struct listener *list = NULL;
    long count = 0;
    int rc = 0;
    if (pid && fds && strtol(pid, NULL, 10) == (long)getpid()) {
        char *end;
        errno = 0;
        count = strtol(fds, &end, 10);
        if (errno || *end || count < 0 || count > MAX_INHERITED) {
            rc = error_set(err, ERROR_MODEL, "LISTEN_FDS must be a number from 0 to %d", MAX_INHERITED);
        } else if (count > 0) {
            rc = inherit_all((size_t)count, names, &list, err);
        }
    }
    unsetenv("LISTEN_PID"); /* no child shall take them for its own */
    unsetenv("LISTEN_FDS");
    unsetenv("LISTEN_FDNAMES");
    if (rc == 0) {
        *out = list;
        *n = (size_t)count;
    }
    return rc;
}
