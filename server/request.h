/*
 * A request to one of the generating endpoints, from its headers to its last byte, and the choices it consists of.
 *
 *   READING  body comes in       PREPARING  a worker parses; then, if admitted, one renders and tokenises
 *   WAITING  in the engine's queue       RUNNING  a choice has started       ENDED  counted as finished or rejected
 *
 * Owned by the loop thread; while PREPARING the worker alone touches it, but for `unwanted`. It is freed when HTTP has
 * completed it, no worker has it, and the engine has sent the last event of each of its choices.
 *
 * It may end before its time in any phase: the client leaves (request_gone), its deadline passes (request_expired), the
 * drain is over (requests_fail). Then a worker stops at the next piece of its work, and the engine at its next step.
 */
#ifndef INFERD_REQUEST_H
#define INFERD_REQUEST_H

#include "access_log.h"
#include "admission.h"
#include "deadline.h"
#include "key_ring.h"
#include "logprobs.h"
#include "params.h"

#include <inferd/buf.h>
#include <inferd/engine.h>
#include <inferd/list.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct api_error;
struct exchange;
struct request;
struct server;

struct prompt {
    struct tokens tokens;
    bool computed; /* by one of its choices: what the key is charged for */
    struct buf echo; /* its text, when it is to be shown */
};

/* One answer: index = prompt * n + k. As in struct request, what each event touches stands first. */
struct choice {
    struct request *request;
    size_t index;
    uint64_t id; /* the engine's; 0 = not in the engine */
    size_t engine; /* which one (engines.h) */
    bool done;   /* ended as it should */
    bool prompt_counted;
    uint32_t charged; /* generated tokens so far, for which its key, if any, was charged */
    struct buf text; /* all of it; in a stream, what waits for the next chunk (nothing, between two events) */
    size_t shown;    /* bytes of generated text, so far */
    uint64_t submitted_ns, started_ns, first_ns, last_ns; /* 0 = not yet */
    struct logprobs logprobs;
    struct logprobs prompt_logprobs; /* of prompt_logprobs; what echo tells of the prompt lies in logprobs */
    enum finish_reason finish;
    int32_t stop_index, stop_token;
    uint32_t completion_tokens, cached_tokens;
    struct buf content; /* all of its text, where there is a content log */
};

/* What differs between chat and completions. */
struct api {
    enum params_where where;
    const char *id_prefix;
    const char *object, *chunk_object; /* of a plain answer, of a stream's events */
    /* On a worker: fill prompts from params. */
    int (*prepare)(struct request *r, struct error *err);
    /* Chunks of a stream, as whole events. */
    void (*write_first)(const struct request *r, struct choice *c, struct buf *out);
    void (*write_text)(const struct request *r, struct choice *c, size_t n_logprobs, struct buf *out);
    void (*write_finish)(const struct request *r, struct choice *c, struct buf *out);
    /* A member of a plain answer's choices. */
    void (*write_choice)(const struct request *r, struct choice *c, struct buf *out);
};
extern const struct api api_chat, api_completions;

enum request_phase { REQUEST_READING, REQUEST_PREPARING, REQUEST_WAITING, REQUEST_RUNNING, REQUEST_ENDED };

struct request {
    struct list node; /* in server->requests */
    struct server *server;
    const struct api *api;
    struct exchange *exchange; /* NULL once HTTP has completed it */
    enum request_phase phase;
    bool preparing;       /* a worker has it */
    bool gone;            /* nobody reads the answer any more */
    bool failed;          /* answered with an error */
    bool expired;         /* by its deadline */
    bool streaming;       /* the 200 is out */
    atomic_bool unwanted; /* gone, failed or refused: a worker need not go on */
    struct buf chunk_head; /* how a chunk of a choice begins (request_begin_chunk) */
    uint64_t first_ns;     /* first token of any choice */
    uint64_t quiet_ns;     /* when something was last sent or began to be waited for */
    struct request_params params;

    struct policy *policy; /* held: the settings it came under, for workers, too */
    const char *model;     /* the name it asked for, of the policy's */
    struct key *key; /* held; NULL: there are no keys, or it has none of them */
    bool key_active; /* counts for its max_concurrent */
    size_t prompt_charged, prompt_computed; /* tokens, each prompt once: taken of its tokens_per_minute; to be kept */
    struct auth_identity who; /* of the key, when the request came */
    unsigned char cache_salt[AUTH_DIGEST];
    int64_t priority; /* X-Vllm-Priority; it goes before the field */
    bool has_priority;
    struct ticket ticket;            /* what admission counts for it */
    struct deadline deadline;        /* the earlier of the two that still counts */
    uint64_t start_by_ns, end_by_ns; /* clock_now_ns; 0 = whenever */

    struct buf body;
    size_t body_len; /* what HTTP counts as held until the body is freed */
    struct error error; /* of prepare */
    bool prepare_failed;

    struct prompt *prompts; /* [n_prompts], owned */
    size_t n_prompts;
    struct choice *choices; /* [n_choices], owned */
    size_t n_choices, n_done, n_in_engine;

    char id[48];
    int64_t created;
    uint64_t ready_ns; /* the body was complete */
    struct access access; /* once HTTP has completed it; arrived_ns 0: not wanted */
};

/* The headers are in, and say whose it is (NULL: nobody's). Counts it as received. NULL: out of memory. */
struct request *request_open(struct server *s, struct exchange *x, const struct api *api, struct key *key);
/* From now on it counts for its key's max_concurrent. */
void request_enter(struct request *r);
/* Whose it is, as the log and the metrics may say: the key's name, "" where there are no keys. Lives as long as r. */
const char *request_key_name(const struct request *r);
/* Refuse it. */
void request_reject(struct request *r, const struct api_error *e);
/* The body is in: prepare, submit, answer. */
void request_start(struct request *r);
/* The client left. */
void request_gone(struct request *r);
/* HTTP is done with it. */
void request_completed(struct request *r);

/* Events of these choices come next, in this order: ask memory for what they touch, before each that is handled. */
#define REQUEST_AHEAD 8
void request_look_ahead(const struct server *s, const uint64_t *ids, size_t n);
/* An event of the engine, at `now` (clock_now_ns). */
void request_on_event(struct server *s, const struct engine_event *event, uint64_t now);
/* Its deadline has passed (for deadlines_open). */
void request_expired(struct deadline *d, void *server);
/* Once a second: a sign of life on silent streams. */
void requests_tick(struct server *s);
/* End all of them with this error. */
void requests_fail(struct server *s, const struct error *err);
/* How many run, how many wait. */
void requests_count(const struct server *s, size_t *running, size_t *waiting);

/* Used by the two APIs. */
/*
 * On a worker, between two pieces of its work: is the request still wanted, and may it go on now that its prompt is
 * known to be text of so many bytes? Refused by its length (ERROR_QUEUE_FULL, ERROR_CONTEXT_LENGTH) it need not be
 * tokenised.
 */
int request_go_on(struct request *r, size_t prompt_bytes, struct error *err);
int request_alloc_prompts(struct request *r, size_t n, struct error *err);
size_t request_ready_logprobs(const struct choice *c, bool last); /* how many entries may be written now */
const char *request_finish_reason(const struct choice *c);        /* "stop", "length", "repetition" */
/* data: {…,"choices":[{"index":…   (what is open stays open) */
void request_begin_chunk(const struct request *r, const struct choice *c, struct buf *out);
/* {"id":…,"object":…,"created":…,"model":…,"system_fingerprint":…   (the object stays open) */
void request_write_head(const struct request *r, const char *object, struct buf *out);
/* Tokens, a prompt counted once whatever n is. */
struct request_usage {
    size_t prompt, completion, cached;
};
struct request_usage request_usage(const struct request *r);
void request_write_usage(const struct request *r, struct buf *out); /* {"prompt_tokens":…} */
void request_write_stop_reason(const struct request *r, const struct choice *c, struct buf *out); /* ,"stop_reason":… */
void request_write_prompt_logprobs(const struct choice *c, struct buf *out); /* ,"prompt_logprobs":[…], if asked for */

#endif
