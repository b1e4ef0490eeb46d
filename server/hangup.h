/*
 * Notices clients that leave. libmicrohttpd does not look at a suspended connection, and of a resumed one it learns
 * only by a failing write; and a FIN that comes together with data it does not see at all until a timeout (its epoll is
 * edge-triggered, without EPOLLRDHUP). So every exchange that has a body or was ever suspended is also in an epoll set
 * of ours, for EPOLLRDHUP alone, one-shot: pipelined data is no hang-up, and a hang-up is told once and cannot spin. A
 * half-close after the request counts as leaving.
 */
#ifndef INFERD_HANGUP_H
#define INFERD_HANGUP_H

#include <inferd/error.h>

struct hangup;
struct loop;

/* gone(watched) is called on the loop thread, once for each hangup_add. */
int hangup_open(struct loop *loop, void (*gone)(void *watched), struct hangup **out, struct error *err);
void hangup_free(struct hangup *h); /* NULL is fine */

int hangup_add(struct hangup *h, int fd, void *watched, struct error *err);
void hangup_rearm(struct hangup *h, int fd, void *watched); /* tell once more */
void hangup_remove(struct hangup *h, int fd);               /* before the descriptor is closed */

#endif
