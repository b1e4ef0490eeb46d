/* The part of the chat endpoint that /tokenize shares. */
#ifndef INFERD_API_CHAT_H
#define INFERD_API_CHAT_H

#include <inferd/error.h>

struct request_params;
struct text;
struct tokens;

/* Render the messages and append their ids. Any thread. */
int api_chat_tokens(const struct text *text, const struct request_params *p, struct tokens *out, struct error *err);

#endif
