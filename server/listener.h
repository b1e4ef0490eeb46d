/* Listening sockets: what an address means, opening one, and those that a supervisor (systemd) hands over. */
#ifndef INFERD_LISTENER_H
#define INFERD_LISTENER_H

#include <inferd/error.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

/* Which listener a request came in by: what clients use, or the one of the setting admin_listen. */
enum http_door { HTTP_PUBLIC, HTTP_ADMIN };

struct listen_address {
    union {
        struct sockaddr any;
        struct sockaddr_storage storage;
        struct sockaddr_un local;
    } at;
    socklen_t len;
};

/*
 * An IPv4 or IPv6 address (brackets allowed), "localhost", or "unix:/path". With *port NULL text may not name a port;
 * else it is "ADDRESS:PORT", IPv6 in brackets, and *port is not looked at. ERROR_MODEL without err->param: the reason.
 */
int listen_address_parse(const char *text, size_t len, bool with_port, size_t port, struct listen_address *out,
                         struct error *err);
/* May only this machine reach it? (127.0.0.0/8, ::1, Unix sockets) */
bool listen_address_is_local(const struct listen_address *a);
/* "127.0.0.1:8080", "[::1]:8080", "unix:/path"; "unix" for a socket without a name */
#define LISTEN_NAME_MAX 128
void listen_address_print(const struct listen_address *a, char name[LISTEN_NAME_MAX]);

struct listener {
    int fd; /* non-blocking; -1: closed */
    enum http_door door;
    bool inherited; /* a supervisor has it too: it is closed here, never shut down, and its file stays */
    bool tls;
    struct listen_address address; /* what it is bound to, with the port that was found */
    dev_t device; /* of a Unix socket of ours: the file to remove */
    ino_t inode;
};

/*
 * Bind and listen; port 0: any free one. v6_only: :: does not take IPv4 too. mode: of a Unix socket's file; one that is
 * there already is replaced when it is a socket on which nobody listens. Sets fd and address of *out, the rest is
 * zeroed. ERROR_IO that names address and reason.
 */
int listener_open(const struct listen_address *a, bool v6_only, unsigned mode, struct listener *out, struct error *err);
/* Close, and remove the file of a Unix socket that was opened here. Twice is fine. */
void listener_close(struct listener *l);

/*
 * The sockets that LISTEN_PID and LISTEN_FDS hand over (as systemd does; descriptors from 3 on), made close-on-exec and
 * non-blocking; one named "admin" in LISTEN_FDNAMES gets that door. The variables are removed, whomever they were meant
 * for. *out is malloc'ed, NULL when there are none. ERROR_MODEL for a descriptor that is no listening stream socket.
 */
int listeners_inherit(struct listener **out, size_t *n, struct error *err);

#endif
