/* POST /tokenize and /detokenize, in vLLM's shape. Work is done on a worker thread: a prompt may be long. */
#ifndef INFERD_API_TOKENIZE_H
#define INFERD_API_TOKENIZE_H

#include <stdbool.h>

struct exchange;
struct server;

/* The body is in. */
void api_tokenize(struct server *s, struct exchange *x, bool backwards);

/* HTTP is done with an exchange whose app is a job of this file. */
void api_tokenize_completed(void *job);

#endif
