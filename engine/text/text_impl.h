/* The parts of a struct text; engine/text_open.c puts them together from a model's files. */
#ifndef INFERD_TEXT_TEXT_IMPL_H
#define INFERD_TEXT_TEXT_IMPL_H

#include "text/tokenizer.h"

#include <inferd/text.h>

#define TEXT_MAX_EOS 32

struct jinja;

struct text {
    struct tokenizer *tokenizer; /* owned */
    char *chat_template;         /* source, NUL-terminated, owned; NULL if none */
    struct jinja *chat;          /* the same compiled, owned */
    bool chat_takes_parts;       /* content may be a list of text parts */
    bool chat_takes_strings;     /* content may be a string */
    char *bos_text, *eos_text;   /* what the chat template sees as bos_token and eos_token; owned, NULL if none */
    int32_t bos_id;              /* -1 if none */
    int32_t eos_ids[TEXT_MAX_EOS];
    size_t n_eos;
};

/* Add an end id, once; those outside the vocabulary and those over the limit are left out. */
void text_add_eos(struct text *t, int64_t id);

/*
 * Add the special tokens whose texts say that a turn or a text ends: a model answers with them whether or not its
 * files list them all (an instruction-tuned model keeps the base model's EOS in its metadata, for one).
 */
void text_add_known_ends(struct text *t);

#endif
