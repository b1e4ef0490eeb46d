/* The endpoints that only tell: probes, /metrics, /version, /v1/models. Answered on the loop, off the engine's path. */
#ifndef INFERD_PROBE_H
#define INFERD_PROBE_H

struct exchange;
struct server;

void probe_live(struct server *s, struct exchange *x);
void probe_ready(struct server *s, struct exchange *x);
void probe_metrics(struct server *s, struct exchange *x);
void probe_version(struct server *s, struct exchange *x);
void api_models(struct server *s, struct exchange *x); /* /v1/models and /v1/models/{id} */

#endif
