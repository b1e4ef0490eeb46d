/*
 * Text of a model: its tokenizer and its chat template. Opened once from the model's own files without
 * touching a weight, immutable afterwards, usable from any thread at once.
 */
#ifndef INFERD_TEXT_H
#define INFERD_TEXT_H

#include <inferd/buf.h>
#include <inferd/error.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct text;

/*
 * Open from a model path: a GGUF file, or a folder with tokenizer.json (+ tokenizer_config.json,
 * generation_config.json, chat_template.jinja), or such a tokenizer.json itself. ERROR_MODEL on anything
 * missing, malformed or unknown (a pre-tokenizer kind, a component), naming it.
 */
int text_open(const char *path, struct text **out, struct error *err);
/*
 * The same with the operator's chat template (text_choose_chat_template): the model's own may be unusable then.
 * NULL: text_open.
 */
int text_open_with(const char *path, const char *chat_template, struct text **out, struct error *err);
void text_free(struct text *t);

size_t text_vocab_size(const struct text *t);             /* ids are in [0, this) */
int32_t text_bos_id(const struct text *t);                /* -1 if none */
const int32_t *text_eos_ids(const struct text *t, size_t *n); /* all end ids: EOS, EOT, generation_config's list */
bool text_adds_bos(const struct text *t);                 /* does add_special put BOS first */
bool text_has_chat_template(const struct text *t);
const char *text_chat_template(const struct text *t);     /* the source of the usual one, NUL-terminated, NULL if none */

/*
 * Give the model this chat template in place of its own; before `t` is shared. ERROR_MODEL if it does not compile (the
 * one before stays).
 */
int text_set_chat_template(struct text *t, const char *source, size_t len, struct error *err);

/*
 * The same by a word of the operator: the name of one of the model's own templates, of a built-in family
 * (text_chat_families), or else a file. ERROR_MODEL if it is none of them.
 */
int text_choose_chat_template(struct text *t, const char *choice, struct error *err);

/* The names of the built-in families, parted by spaces. */
const char *text_chat_families(void);
bool text_is_chat_family(const char *name);

/* A growable array of token ids. */
struct tokens {
    int32_t *ids; /* [n], owned */
    size_t n, cap;
};
void tokens_free(struct tokens *t);
int tokens_push(struct tokens *t, int32_t id, struct error *err);

/*
 * Text whose bytes carry a mark: was this byte written by the template (trusted), or did it come from a
 * message (not trusted)? Special tokens are recognised only where every byte is trusted.
 */
struct marked_text {
    struct buf bytes;   /* UTF-8, [len] */
    struct buf trusted; /* [len], 1 or 0 for each byte of `bytes` */
};
void marked_text_free(struct marked_text *m);

enum text_encode_flags {
    TEXT_ADD_SPECIAL = 1,   /* put BOS/EOS as the model's own files say (never a second BOS) */
    TEXT_PARSE_SPECIAL = 2, /* special tokens written in the text are recognised */
    TEXT_ADD_SPECIAL_ALWAYS = 4, /* TEXT_ADD_SPECIAL, with BOS also before a text that begins with it (the reference
                                    libraries do that; comparisons need it, prompts do not) */
};

/*
 * Append the ids of bytes[0..len) to *out. Invalid UTF-8 is encoded as U+FFFD would be, one for each
 * maximal ill-formed part. Time and memory grow linearly (n log n at most) with len.
 */
int text_encode(const struct text *t, const char *bytes, size_t len, unsigned flags, struct tokens *out,
                struct error *err);

/* The same with special tokens recognised where every byte is trusted, and of several BOS at the beginning one: a
 * template may write its own before a text that has one. flags: TEXT_ADD_SPECIAL or 0. */
int text_encode_marked(const struct text *t, const struct marked_text *m, unsigned flags, struct tokens *out,
                       struct error *err);

/*
 * A text of len bytes comes to at least len / this many tokens; 0: this tokenizer may leave out any number of bytes, so
 * that the length tells nothing. Walks the vocabulary.
 */
size_t text_bytes_per_token(const struct text *t);

/*
 * Decode whole: append UTF-8 to *out, broken bytes as U+FFFD. Ids that are not in the vocabulary decode to nothing.
 * As the reference libraries do it: one U+FFFD for each maximal ill-formed part; with the ByteFallback decoder of a
 * tokenizer.json one for each byte of a run of byte tokens that is not UTF-8 as a whole. skip_special leaves out every
 * special token; the tokenizers library forgets it of those whose text the normalizer changes.
 */
int text_decode(const struct text *t, const int32_t *ids, size_t n, bool skip_special, struct buf *out,
                struct error *err);

/*
 * The same, then what llama.cpp's detokenizer does for some GGUF pre-tokenizer kinds: spaces before ? ! . , and before
 * some contractions are dropped. Only for comparing with it: a model's answer must keep its spaces.
 */
int text_decode_cleaned(const struct text *t, const int32_t *ids, size_t n, bool skip_special, struct buf *out,
                        struct error *err);

/* The token's own bytes (special tokens: their text), borrowed; may be a part of a character. */
const char *text_token_bytes(const struct text *t, int32_t id, size_t *len);
bool text_token_is_special(const struct text *t, int32_t id);

/*
 * Incremental detokenizer: emits only whole UTF-8 characters, each as soon as it is whole; the concatenation over all
 * pushes and the finish equals text_decode of the same ids (and, of a continuation, the text that follows the prompt).
 * One exception: where text_decode replaces a whole broken run of byte tokens, the characters of the run that were
 * whole before it broke have already been sent. No allocation after init.
 */
#define DETOKENIZER_MAX_OUT 1024 /* most bytes that one push or finish can write */
struct detokenizer {
    const struct text *text;
    bool skip_special;
    bool started;           /* something was decoded already: no stripping of a leading space */
    bool broken;            /* in a run of byte tokens that is not UTF-8 */
    unsigned char held[16]; /* an incomplete character */
    size_t n_held;
};
/* continuing = the tokens follow a prompt (no leading space is stripped) */
void detokenizer_init(struct detokenizer *d, const struct text *t, bool skip_special, bool continuing);
/* Push one id; writes at most DETOKENIZER_MAX_OUT bytes to out, returns how many. */
size_t detokenizer_push(struct detokenizer *d, int32_t id, char *out);
/* These will be pushed soon: ask memory for their texts, all at a time. Ids that are not in the vocabulary are fine. */
void text_prefetch(const struct text *t, const int32_t *ids, size_t n);
/* At the end: what is held comes as U+FFFD. */
size_t detokenizer_finish(struct detokenizer *d, char *out);

/* A chat to render. All JSON texts must have passed json_check. */
struct chat_request {
    const char *messages_json; /* array of messages */
    size_t messages_len;
    const char *tools_json; /* array or NULL */
    size_t tools_len;
    const char *documents_json; /* array or NULL */
    size_t documents_len;
    const char *kwargs_json; /* object of further template variables or NULL */
    size_t kwargs_len;
    bool add_generation_prompt;
    bool continue_final_message;
    bool verbatim; /* the messages reach the template exactly as they are, as the reference libraries hand them over */
    int64_t now;   /* Unix time for strftime_now */
};

/*
 * Render the chat template. A template that refuses (raise_exception), runs out of its budget of steps,
 * output or time, or meets a type error gives ERROR_INVALID with the template's message.
 *
 * Unless `verbatim`, what clients of the OpenAI API send is brought into the form that the template reads. Content given
 * as a list of {"type":"text"} parts is joined to a string (by line ends, as vLLM and llama.cpp do) for templates that
 * expect strings, and the other way round. Arguments of tool calls, which the API has as JSON text, become objects for
 * templates that cannot take the text. Tools or documents for a template that never looks at them are ERROR_UNSUPPORTED.
 *
 * Chats with tools use the model's template named "tool_use" if it has one. continue_final_message leaves the text of the final message open at its end, whatever the template
 * would put behind it; not together with add_generation_prompt. Nothing is appended on failure.
 */
int text_render_chat(const struct text *t, const struct chat_request *r, struct marked_text *out, struct error *err);

/*
 * Render a template that belongs to no model, with these bos_token and eos_token (NULL: not defined) and the messages
 * exactly as they are (a list of parts stays one): what the reference libraries would give, for comparing with them.
 * continue_final_message is not looked at. messages_json NULL: the variable is not passed.
 */
int text_render_template(const char *source, size_t len, const char *bos_token, const char *eos_token,
                         const struct chat_request *r, struct marked_text *out, struct error *err);

#endif
