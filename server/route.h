/* From an exchange to the endpoint that answers it: paths, methods, keys, media types, states of the server. */
#ifndef INFERD_ROUTE_H
#define INFERD_ROUTE_H

struct http_app;
struct server;

/* The callbacks for http_open. */
void route_app(struct server *s, struct http_app *out);

/* Make the rows of http_requests_total, so that each is there from the first scrape. */
void route_register(struct server *s);

/* The process ends at once: the access lines of the requests that have not come to their end. */
void route_log_unfinished(struct server *s);

#endif
