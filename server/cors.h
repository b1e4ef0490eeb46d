/*
 * Cross-origin requests (the Fetch standard's CORS protocol): which web pages' scripts may read answers. Credentials
 * that a browser adds by itself (cookies) are never allowed: a page sends its key in Authorization, on purpose.
 */
#ifndef INFERD_CORS_H
#define INFERD_CORS_H

#include <inferd/error.h>
#include <stdbool.h>

struct exchange;

/* "*" or origins (scheme://host, scheme://host:port) parted by commas; "" for none. ERROR_MODEL: the reason. */
int cors_check(const char *origins, struct error *err);

/* Is it among them? */
bool cors_allows(const char *origins, const char *origin);

/*
 * Before anything else of an answer: add the headers by which a browser lets the page read it. True if the request was
 * a preflight of an allowed origin, which has no key and has been answered (204).
 */
bool cors_begin(const char *origins, struct exchange *x);

#endif
