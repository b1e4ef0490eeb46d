/*
 * The engines behind the front end: one, or as many as `replicas` says, each with its own devices, weights and KV. A request goes where
 * the beginning of its prompt was computed lately, unless that one has much more to do than the others, else where a seat is free and
 * least waits. Loop thread, but for engines_open.
 */
#ifndef SERVER_ENGINES_H
#define SERVER_ENGINES_H

#include <inferd/engine.h>

#define ENGINES_MOST 64

struct engines;

/* Opens n engines of this configuration at the same time. Blocks; any thread. */
int engines_open(const struct engine_config *config, size_t n, struct engines **out, struct error *err);
void engines_close(struct engines *e); /* NULL is fine */

size_t engines_count(const struct engines *e);
const struct text *engines_text(const struct engines *e); /* the same in each */
/* Of the first; memory, threads and KV are those of all together. */
void engines_get_info(const struct engines *e, struct engine_info *out);
void engines_get_info_of(const struct engines *e, size_t i, struct engine_info *out);
void engines_set_notify(struct engines *e, void (*notify)(void *arg), void *arg);

/* Which one takes a prompt: all choices of it go there. salt: of its prefix cache. */
size_t engines_route(struct engines *e, const int32_t *prompt, size_t n_prompt, const uint8_t salt[32]);
int engines_submit(struct engines *e, size_t i, const struct engine_request *r, struct error *err);
void engines_cancel(struct engines *e, size_t i, uint64_t id);
/* A choice with so many tokens of prompt no longer waits there; has ended there. */
void engines_started(struct engines *e, size_t i, size_t n_prompt);
void engines_ended(struct engines *e, size_t i);

/* As engine_poll, engine_pending and engine_peek: of each in turn; the last of the one that was polled last. */
bool engines_poll(struct engines *e, struct engine_event *out);
size_t engines_pending(const struct engines *e);
size_t engines_peek(struct engines *e, uint64_t *ids, size_t n);

void engines_get_stats(const struct engines *e, struct engine_stats *sum);
void engines_get_stats_of(const struct engines *e, size_t i, struct engine_stats *out);
/* s since the last step of the engine that has something to do and is silent longest. */
double engines_silence(const struct engines *e);
/* As engine_lost: of any, and which. The others could go on, but what the lost one holds comes back by a new start alone. */
const struct error *engines_lost(const struct engines *e, size_t *which);

#endif
