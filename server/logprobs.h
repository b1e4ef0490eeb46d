/*
 * The log-probabilities of one choice, kept until the text they belong to is shown: tokens may be held back while
 * they could still become a stop string, and those of a stop string are never shown. Of a token in which
 * a stop string begins, only what comes before is shown: the tokens that were told, joined, are the text.
 *
 * Tokens of the prompt, when they are told too, come first, whole: they have no place in the generated text.
 */
#ifndef INFERD_LOGPROBS_H
#define INFERD_LOGPROBS_H

#include <inferd/buf.h>
#include <inferd/engine.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct logprob_entry {
    int32_t id;
    float logprob; /* NaN: there is none */
    uint32_t rank; /* of the prompt's; 1 = the likeliest */
    size_t start;  /* where its text begins, in bytes of the choice's generated text */
    size_t offset; /* the same in characters, of the echoed prompt and the generated text together */
    size_t n_top;
};

struct logprobs {
    const struct text *text;
    bool skip_special;
    size_t n_top_max;
    struct logprob_entry *entries; /* [n], owned */
    struct token_logprob *top;     /* [n][n_top_max], owned */
    size_t n, cap;
    size_t n_prompt;          /* the first of them are the prompt's */
    size_t echoed;            /* bytes of the echoed prompt that they have been found in */
    size_t taken;             /* entries that were written */
    size_t bytes, characters; /* of all entries together; after a cut, of what is left */
};

void logprobs_init(struct logprobs *l, const struct text *text, bool skip_special, size_t n_top_max,
                   size_t first_offset);
void logprobs_free(struct logprobs *l); /* a zeroed one is fine */
int logprobs_push(struct logprobs *l, const struct engine_event *event, struct error *err);
/*
 * A token of the prompt, before all others; echo[0..len) is the prompt's text as it is shown, in which the token's
 * offset is looked for. A special token that is not shown takes no room there.
 */
int logprobs_push_prompt(struct logprobs *l, const struct engine_event *event, const char *echo, size_t len,
                         struct error *err);
/* The prompt is complete: the generated text begins behind all of echo. */
void logprobs_end_prompt(struct logprobs *l, const char *echo, size_t len);

/* A stop string ended the text at byte `shown`: forget what lies behind. */
void logprobs_cut(struct logprobs *l, size_t shown);
/* How many entries, from `taken` on, end before or at byte `shown` of the text; all when `all`. */
size_t logprobs_ready(const struct logprobs *l, size_t shown, bool all);

/* Write the next n entries and take them. Chat: {"content":[...],"refusal":null}; completions: the four lists. */
void logprobs_write_chat(struct logprobs *l, size_t n, struct buf *out);
void logprobs_write_completions(struct logprobs *l, size_t n, struct buf *out);
/* vLLM's prompt_logprobs, of all entries: [null,{"ID":{"logprob":…,"rank":…,"decoded_token":"…"},…},…] */
void logprobs_write_prompt(const struct logprobs *l, struct buf *out);

#endif
