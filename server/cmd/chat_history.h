/* The messages of one conversation: an optional system message, then questions and answers by turns. */
#ifndef INFERD_CHAT_HISTORY_H
#define INFERD_CHAT_HISTORY_H

#include <inferd/buf.h>
#include <inferd/error.h>
#include <stdbool.h>
#include <stddef.h>

struct chat_message {
    const char *role; /* "system", "user", "assistant": a literal */
    struct buf content;
};

struct chat_history {
    struct chat_message *messages; /* [n], owned */
    size_t n, cap;
};

void chat_history_free(struct chat_history *h); /* leaves it empty and usable */
int chat_history_add(struct chat_history *h, const char *role, const char *content, size_t len, struct error *err);

/* Drop the oldest question with its answer; the system message stays. False: only the last question is left. */
bool chat_history_drop_turn(struct chat_history *h);
void chat_history_forget_last(struct chat_history *h);

/* As the JSON array that chat templates get. */
void chat_history_json(const struct chat_history *h, struct buf *out);

#endif
