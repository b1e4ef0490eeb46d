/*
 * Descriptors that libmicrohttpd has too, watched for what it does not notice: an epoll set of ours, every entry
 * one-shot, so that what is told once cannot spin.
 *
 * - Clients that leave (EPOLLRDHUP). libmicrohttpd does not look at a suspended connection, and of a resumed one it
 *   learns only by a failing write; and a FIN that comes together with data it does not see at all until a timeout (its
 *   epoll is edge-triggered, without EPOLLRDHUP). So every exchange that has a body or was ever suspended is watched;
 *   pipelined data is no hang-up, and a half-close after the request counts as leaving.
 * - TLS handshakes that wait for the client (EPOLLIN, EPOLLOUT): libmicrohttpd would try them in every turn.
 */
#ifndef INFERD_WATCH_H
#define INFERD_WATCH_H

#include <inferd/error.h>
#include <stdint.h>
#include <sys/epoll.h>

struct watch;
struct loop;

/* told(watched) is called on the loop thread, once for each watch_add and watch_rearm. */
int watch_open(struct loop *loop, void (*told)(void *watched), struct watch **out, struct error *err);
void watch_free(struct watch *w); /* NULL is fine */

int watch_add(struct watch *w, int fd, uint32_t events, void *watched, struct error *err);
void watch_rearm(struct watch *w, int fd, uint32_t events, void *watched); /* tell once more */
void watch_remove(struct watch *w, int fd);                                /* before the descriptor is closed */

#endif
