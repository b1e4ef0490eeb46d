/*
 * The fields of a request body. One table (params.c) says of each: name, where it is allowed, type, range, default.
 * No value gets past it unchecked, and a feature that cannot be honoured is refused by name, never ignored.
 */
#ifndef INFERD_PARAMS_H
#define INFERD_PARAMS_H

#include <inferd/engine.h>
#include <inferd/error.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cJSON;

enum params_where { IN_CHAT = 1, IN_COMPLETIONS = 2, IN_TOKENIZE = 4, IN_DETOKENIZE = 8 };

#define PARAMS_MAX_PROMPTS 256
#define PARAMS_MAX_STOP 4 /* as OpenAI */
#define PARAMS_MAX_BAD_WORDS (ENGINE_MAX_BAD_WORDS / 2)
#define PARAMS_MAX_BAD_WORD 256 /* bytes */
#define PARAMS_MAX_PROMPT_LOGPROBS                                                                                     \
    ((size_t)1 << 18) /* numbers about prompts in one answer: tokens of all choices' prompts, each with its top ones   \
                       */
#define PARAMS_MAX_TIMEOUT 604800.0 /* s: a week, as the setting request_timeout */
#define PARAMS_MAX_CACHE_SALT 256   /* bytes */
#define PARAMS_MAX_VALUES                                                                                              \
    ((size_t)1 << 20) /* JSON values in a body: each is a node of some 64 bytes, whatever its text */

/* What the table's ranges need to know of this server. */
struct params_limits {
    const char *const *models; /* [n_models]: the names that are served */
    size_t n_models;
    size_t vocab_size;
    size_t max_n;
    const struct sampler_order *samplers; /* of requests that name none; NULL: the engine's */
    bool strict; /* unknown fields are an error */
};

/* One prompt of a completions request: text, or ids. */
struct prompt_input {
    const char *text; /* borrowed from the tree; NULL = ids */
    size_t text_len;
    int32_t *ids; /* [n_ids], owned */
    size_t n_ids;
};

struct request_params {
    struct cJSON *tree; /* owned; strings below are borrowed from it */

    /* what to send: first, since each token of an answer asks for it */
    bool stream, include_usage, echo;
    bool skip_special_tokens;
    bool logprobs;              /* chat's switch */
    bool score_only;            /* max_tokens 0: nothing is generated */
    bool return_token_strs;
    int64_t top_logprobs;       /* chat's count, completions' logprobs; -1 = not given */
    int64_t prompt_logprobs;    /* -1 = not given */
    int64_t speculative_tokens; /* -1 = not given */
    const char *request_id;     /* borrowed; NULL if absent */
    size_t model;               /* which of the names */

    /* what to continue */
    const char *messages; /* raw JSON array, borrowed from the body; NULL if absent */
    size_t messages_len;
    const char *tools, *documents; /* raw JSON arrays, borrowed from the body; NULL if absent */
    size_t tools_len, documents_len;
    bool tools_hidden;           /* tool_choice none: the template gets no tools */
    const char *template_kwargs; /* raw JSON object, borrowed from the body; NULL if absent */
    size_t template_kwargs_len;
    struct prompt_input *prompts; /* [n_prompts], owned */
    size_t n_prompts;
    int32_t *tokens; /* [n_tokens], owned (detokenize) */
    size_t n_tokens;
    bool add_generation_prompt, continue_final_message;
    bool add_special_tokens;

    /* how */
    int64_t n;
    int64_t max_tokens, max_completion_tokens; /* 0 = not given */
    int64_t min_tokens;
    double temperature, top_p, min_p, presence_penalty, frequency_penalty, repetition_penalty;
    int64_t top_k;
    int64_t seed;
    bool has_seed;
    struct meta_stop stop[PARAMS_MAX_STOP];
    size_t n_stop;
    int32_t stop_ids[ENGINE_MAX_STOP_IDS];
    size_t n_stop_ids;
    struct logit_bias *logit_bias; /* [n_logit_bias], owned */
    size_t n_logit_bias;
    /* What of sampling has no member above. Its pointers are borrowed, from here: */
    struct sampling sampling;
    struct meta_stop *dry_breakers;       /* [sampling.n_dry_breakers], owned, its strings borrowed; NULL = not given */
    const struct cJSON *bad_words;        /* strings, borrowed; NULL = none, or dropped */
    struct token_sequence *bad_sequences; /* [sampling.n_bad_words], owned */
    int32_t *allowed_ids;                 /* [sampling.n_allowed_ids], owned */
    uint32_t repetition_max_size, repetition_min_size, repetition_min_count;
    bool include_stop, ignore_eos;
    int64_t priority;
    double timeout;         /* s; 0 = not given */
    const char *cache_salt; /* borrowed; NULL if absent */
};

/*
 * Parse and check a body (JSON included). The body must live as long as *out. ERROR_INVALID and ERROR_UNSUPPORTED
 * with err->param, ERROR_NOT_FOUND for a model that is not served. No message quotes what the client sent.
 * Any thread. *out is untouched on failure.
 */
int params_parse(const char *body, size_t len, enum params_where where, const struct params_limits *limits,
                 struct request_params *out, struct error *err);
/*
 * Headers that stand for a field: decimal seconds above 0 and up to PARAMS_MAX_TIMEOUT; an integer of 32 bits.
 * ERROR_INVALID, err->param the header's name.
 */
int params_header_timeout(const char *name, const char *value, double *out, struct error *err);
int params_header_priority(const char *name, const char *value, int64_t *out, struct error *err);
/* bad_words to tokens, each with and without a space before it, as vLLM does. Before params_drop_input. */
int params_encode_bad_words(struct request_params *p, const struct text *text, struct error *err);
/* Only the answer is still to come: free the prompts, the messages and every field that had no effect. */
void params_drop_input(struct request_params *p);
void params_free(struct request_params *p); /* frees and zeroes; NULL and a zeroed one are fine */

/* The sampler's part; what it points to is borrowed. n_logprobs from top_logprobs and logprobs. */
void params_sampling(const struct request_params *p, enum params_where where, struct sampling *out);

#endif
