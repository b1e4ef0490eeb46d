/* The parts of a struct text; engine/text_open.c puts them together from a model's files. */
#ifndef INFERD_TEXT_TEXT_IMPL_H
#define INFERD_TEXT_TEXT_IMPL_H

#include "text/tokenizer.h"

#include <inferd/text.h>

#define TEXT_MAX_EOS 32

#define TEXT_MAX_CHAT_TEMPLATES 32 /* of one model */

struct jinja;

/* A model has one template, or several by name: "default", "tool_use" for chats with tools, others on demand. */
struct chat_template {
    char *name;
    char *source;          /* NUL-terminated */
    struct jinja *jinja;   /* the same compiled */
    bool takes_parts;      /* content may be a list of text parts */
    bool takes_strings;    /* content may be a string */
    bool decode_arguments; /* arguments of tool calls must be objects, not their JSON text */
};

struct text {
    struct tokenizer *tokenizer;     /* owned */
    struct chat_template *templates; /* [n_templates], owned */
    size_t n_templates;
    bool skips_bad_templates; /* while opening: the operator chose another one */
    char *bos_text, *eos_text; /* what the chat template sees as bos_token and eos_token; owned, NULL if none */
    int32_t bos_id;            /* -1 if none */
    int32_t eos_ids[TEXT_MAX_EOS];
    size_t n_eos;
};

/* Add a template, or put it in the place of the one of that name. ERROR_MODEL if it does not compile. */
int text_add_chat_template(struct text *t, const char *name, const char *source, size_t len, struct error *err);
void text_drop_chat_templates(struct text *t);
const struct chat_template *text_find_chat_template(const struct text *t, const char *name); /* NULL if none */

/* Add an end id, once; those outside the vocabulary and those over the limit are left out. */
void text_add_eos(struct text *t, int64_t id);

/*
 * Add the special tokens whose texts say that a turn or a text ends: a model answers with them whether or not its
 * files list them all (an instruction-tuned model keeps the base model's EOS in its metadata, for one).
 */
void text_add_known_ends(struct text *t);

#endif
