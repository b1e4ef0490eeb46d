/* What the files of `inferd tokenize` share. */
#ifndef INFERD_CMD_TOKENIZE_H
#define INFERD_CMD_TOKENIZE_H

#include <inferd/buf.h>
#include <inferd/error.h>
#include <inferd/text.h>
#include <stdbool.h>
#include <stdio.h>

struct tokenize_options {
    bool ids, count, json, jsonl, render_jsonl;
    bool add_special, parse_special, skip_special;
    char *decode, *chat;
};

/*
 * Lines of JSON from `in` to standard output, an answer each: {"text"} -> {"ids", "ids_special"}, {"ids"} -> {"text"},
 * {"messages"} -> {"prompt", "ids"}. A line that fails is answered {"error": sentence}, and at the end ERROR_IO tells
 * how many did.
 */
int tokenize_lines(const struct tokenize_options *o, const struct text *t, FILE *in, struct error *err);

/*
 * Conversations rendered by a template of no model: {"messages", "tools", "documents", "add_generation_prompt",
 * "kwargs", "bos_token", "eos_token", "now"} -> {"rendered"} or {"error": message of the template}. Only a line that is
 * no such object counts as failed.
 */
int tokenize_render_lines(const char *source, size_t len, FILE *in, struct error *err);

/*
 * The members of a conversation, json[0..len) having passed json_check: the array of messages itself, or an object
 * around it with tools, documents, chat_template_kwargs (or kwargs), add_generation_prompt, continue_final_message and
 * now (Unix seconds, or 2025-01-15T12:34:56). Borrows from json.
 */
int tokenize_read_chat(const char *json, size_t len, struct chat_request *out, struct error *err);

/* The ids as JSON array elements or words. */
void tokenize_put_ids(struct buf *out, const struct tokens *ids, const char *between);

/* Append what id is, checked against the vocabulary. */
int tokenize_push_id(const struct text *t, double id, struct tokens *ids, struct error *err);

#endif
