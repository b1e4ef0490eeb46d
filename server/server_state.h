/* The server's own state, shared by the files of this folder. All of it belongs to the loop thread. */
#ifndef INFERD_SERVER_STATE_H
#define INFERD_SERVER_STATE_H

#include "engines.h"
#include "admission.h"
#include "choice_table.h"
#include "deadline.h"
#include "key_ring.h"
#include "listener.h"
#include "metrics.h"
#include "policy.h"
#include "server.h"
#include "supervision.h"

#include <inferd/engine.h>
#include <inferd/list.h>
#include <stdbool.h>
#include <stdint.h>

struct config;
struct content_log;
struct exchange;
struct gpu_monitor;
struct http;
struct loop;
struct loop_poll;
struct loop_timer;

enum server_phase { SERVER_LOADING, SERVER_READY, SERVER_DRAINING };

struct server {
    const struct config *config; /* &policy->config: for the loop thread */
    struct policy *policy;       /* what others read is held by whoever they work for */
    struct loop *loop;
    struct http *http;
    struct content_log *content_log; /* NULL: content is written nowhere */
    char public_address[LISTEN_NAME_MAX]; /* one of the listeners' that others can reach; "": none */
    bool has_admin_door; /* which has the metrics; else they are where everything is */
    struct key_ring keys;
    struct metrics metrics;
    enum server_phase phase;

    struct engines *engines; /* NULL while loading */
    struct engine_info info;
    const struct text *text;
    size_t bytes_per_token; /* text_bytes_per_token */
    const char *model;    /* its own name, of the policy's; known before the engine is */
    char fingerprint[24]; /* system_fingerprint: changes with whatever may change an answer */
    int64_t started_at;   /* Unix time */

    struct list requests; /* struct request, every live one */
    struct buf events;    /* of the stream that is being written to; empty between two of them */
    struct choice_table choices;
    struct admission admission;
    struct deadlines deadlines;
    size_t n_jobs;              /* of api_tokenize.c */
    size_t n_running_choices;   /* in the engine */
    struct loop_timer *tick;    /* once a second while there are requests */
    bool tick_on;
    uint64_t next_ping_ns; /* no stream is silent for long enough before */
    bool stalled;               /* the watchdog said so in the log */
    bool device_lost;           /* and the process ends at the next tick */
    char lost_reason[600];      /* for /readyz */
    struct gpu_monitor *gpu;    /* NULL where no GPU is used or its driver tells nothing */
    size_t gpu_ordinal;         /* CUDA's number of it */

    settings_reader *reread; /* of server_run */
    void *reread_arg;
    struct loop_poll *hangup; /* SIGHUP, by a descriptor */
    int hangup_fd;

    struct supervision supervision;
    struct loop_timer *drain_timer;
    struct loop_timer *linger; /* after the last request: clients that are about to be answered */
    uint64_t linger_until_ns;  /* 0: not begun */
    bool drain_expired; /* running requests were told to end */
    bool stopping;
    struct error load_error;
    bool load_failed;
};

/* Why new work is refused now, NULL if it is not: a word for probes. */
const char *server_refusal(const struct server *s);

/* Takes over the caller's hold; the one that was in force is the caller's then. */
void server_use_policy(struct server *s, struct policy *p);

/* End the process, without waiting for anything: what can be written to clients is, and each request has its access line. */
_Noreturn void server_end_now(struct server *s, int code);

/* A request ended: the drain may be over. */
void server_request_ended(struct server *s);

#endif
