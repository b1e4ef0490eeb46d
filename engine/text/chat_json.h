/*
 * Edits to the messages of a chat as JSON text, so that what is not edited reaches the template byte for byte (a round
 * through a tree would change numbers and lose NUL characters). All inputs have passed json_check.
 */
#ifndef INFERD_TEXT_CHAT_JSON_H
#define INFERD_TEXT_CHAT_JSON_H

#include "text/vocab.h"

/*
 * Each message whose content is a list of text parts gets them joined by line ends, as one string. A part of another
 * kind is ERROR_UNSUPPORTED.
 */
int chat_json_join_parts(struct span messages, struct buf *out, struct error *err);

/* The other way: content that is a string becomes a list of one text part. */
int chat_json_wrap_strings(struct span messages, struct buf *out, struct error *err);

/*
 * Arguments of tool calls that are the text of a JSON object become that object, as transformers' templates expect it;
 * other texts stay.
 */
int chat_json_decode_arguments(struct span messages, struct buf *out, struct error *err);

/* Write `tag` (plain letters) behind the text of the final message. ERROR_INVALID if it has none. */
int chat_json_tag_final(struct span messages, const char *tag, struct buf *out, struct error *err);

#endif
