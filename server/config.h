/*
 * The settings of inferd. Each is one row of one table (config.c): name, type, default, range, help. From the table
 * follow the file (`conf/inferd.conf`), the environment (INFERD_NAME), the flags (--name), `--help` and
 * `--check-config`. Precedence: flags, environment, file, default.
 */
#ifndef INFERD_CONFIG_H
#define INFERD_CONFIG_H

#include "listener.h"
#include "options.h"

#include <inferd/buf.h>
#include <inferd/engine.h>
#include <inferd/error.h>
#include <inferd/log.h>
#include <stdbool.h>
#include <stddef.h>

/* Strings are owned and never NULL ("" = not set). Durations are seconds. Sizes are bytes. */
struct config {
    char *config; /* the file that was read, "" if none */

    /* model */
    char *model;             /* path; "" only before config_check */
    char *chat_template;     /* a file, or the name of a template; "" = the model's own */
    char *served_model_name; /* names parted by commas; "" = the model's file or folder name without .gguf */

    /* listening */
    char *host;  /* addresses, "localhost" or "unix:/path", parted by commas: config_listen */
    size_t port; /* 0 = any free one */
    char *unix_socket_mode; /* octal */
    char *admin_listen;     /* "ADDRESS:PORT" or "unix:/path"; "" = metrics are served with the rest */
    char *tls_certificate, *tls_key; /* PEM files; "" = no TLS */
    char *tls_min_version;  /* "1.2", "1.3" */
    char *cors_origins;     /* "*" or origins parted by commas; "" = none */
    char *api_key;
    char *api_keys_file;
    bool insecure; /* a public address without keys is allowed */

    /* engine: config_engine() hands these over */
    char *device;      /* "auto", "cpu", "cuda", "cuda:N", "null" */
    char *cpu_variant; /* "auto", "generic", "avx2", "avx512", "vnni", "amx" */
    size_t threads;    /* 0 = all the process may use */
    size_t tensor_parallel; /* ranks */
    size_t pipeline_parallel; /* processes */
    size_t replicas;          /* engines */
    double rank_timeout;    /* s */
    size_t max_model_len;
    size_t max_sequences;
    size_t max_batched_tokens;
    size_t max_waiting;
    char *scheduling;       /* "fcfs", "priority" */
    double priority_ageing; /* s of waiting for one level; 0 = never */
    size_t max_waiting_tokens; /* 0 = no bound */
    char *weights;  /* "auto", "int8", "int8-weight-only", "bf16" */
    char *kv_dtype; /* "f16", "bf16", "int8" */
    size_t kv_block_size;
    size_t kv_tokens;
    bool prefix_cache;
    size_t speculative_tokens; /* drafted in a step for a request that does not say; 0 = off */
    double memory_utilization;
    bool batch_invariant, cuda_graphs;
    char *cuda_module, *cache_folder; /* "" = none named */
    double null_step_time; /* s, device "null" alone */

    /* requests */
    size_t max_n;             /* largest `n` of a request */
    size_t max_tokens_limit;  /* of one answer; 0 = none */
    char *samplers;           /* the order of a request that names none */
    bool strict_requests;     /* unknown fields of a request are an error */
    double queue_timeout;     /* s from the last byte of the request to its first step; 0 = none */
    double request_timeout;   /* s from the last byte of the request to the last of the answer; 0 = none */
    double sse_ping_interval; /* s between comments on a stream that is silent; 0 = none */
    size_t retry_after;       /* s, the Retry-After of 429 and 503 while nothing is measured */
    size_t retry_after_max;   /* s, the longest */

    /* connections */
    size_t max_connections;
    size_t max_body_size;   /* bytes of a request body; beyond: 413 */
    size_t max_header_size; /* bytes of the request line and headers together; beyond: 431 */
    double header_timeout;  /* s for the whole header block */
    double body_timeout;    /* s for the whole body */
    double idle_timeout;    /* s that a kept-alive connection may be silent */
    double write_timeout;   /* s that a client may take nothing of what waits for it */

    /* running */
    double stall_timeout; /* s without a finished step, with work to do, after which /readyz says so */
    double stall_exit;    /* s of it after which the process ends; 0 = never */
    double drain_timeout; /* s that running requests get after SIGTERM */
    char *log_format;     /* "auto", "text", "json", "journald" */
    char *content_log;    /* a file; "" = content is not written */
    size_t content_log_max; /* bytes of it */
    char *log_level;      /* "error", "warn", "info", "debug" */
};

struct settings config_settings(void);

/* All defaults. Fails with ERROR_MEMORY only. */
int config_init(struct config *c, struct error *err);
void config_free(struct config *c); /* NULL and a zeroed one are fine */

/*
 * Fill *c from the file, then `env` (like environ; NULL = none), then the flags (NULL = none). The file is the one
 * that the flag or the variable `config` names. A line of `warnings` for each variable that looks like a misspelt
 * setting. ERROR_INVALID for a flag, ERROR_MODEL for file ("FILE:LINE: reason") and environment.
 */
int config_load(struct config *c, const struct options *flags, char *const *env, struct buf *warnings,
                struct error *err);

/* The file alone: every line of it counts, each setting at most once. ERROR_MODEL: "FILE:LINE: reason". */
int config_load_file(struct config *c, const char *path, struct error *err);

/* The text of conf/inferd.conf: every setting with help, range and value, those at their defaults commented out. */
void config_print(const struct config *c, struct buf *out);

/*
 * Beyond the range of each value: a model is named, public addresses have keys, files can be read, values agree
 * with one another. ERROR_MODEL (exit code 78), err->param = the setting. Loads no model.
 */
int config_check(const struct config *c, struct error *err);

/* The setting served_model_name, or a name made of the model's path; the first is the model's own. */
struct model_names {
    char *text;        /* owned */
    const char **list; /* [n], at least one, in text; the array is owned */
    size_t n;
};
int config_model_names(const struct config *c, struct model_names *out, struct error *err); /* ERROR_MODEL */
void model_names_free(struct model_names *names);                                         /* a zeroed one is fine */

/* The model's part of it: one is named, and can be read. And the rest. */
int config_check_model(const struct config *c, struct error *err);
int config_check_others(const struct config *c, struct error *err);

/* The engine's part. Strings are borrowed from *c. */
void config_engine(const struct config *c, struct engine_config *out);
/* How many sequences are computed together: max_sequences of each replica. */
size_t config_seats(const struct config *c);
/* The null device is meant: nobody shall take its answers for a model's. NULL if the device computes. */
const char *config_null_warning(const struct config *c);
/* The setting samplers. ERROR_MODEL, err->param = the setting. */
int config_samplers(const struct config *c, struct sampler_order *out, struct error *err);
/* For an error of engine_open: a setting that passed its own checks and does not go with this model is a fault of the
 * configuration (exit code 78), wherever it was given. */
void config_engine_refused(struct error *err);
enum log_format config_log_format(const struct config *c);
enum log_level config_log_level(const struct config *c);

/* What host, port, admin_listen and unix_socket_mode say. */
#define LISTEN_MAX 8
struct listen_plan {
    struct listen_address open[LISTEN_MAX]; /* [n_open], at least one */
    size_t n_open;
    bool v6_only; /* an IPv4 address is among them, so that :: shall not take it, too */
    struct listen_address admin;
    bool has_admin;
    unsigned mode;
};
int config_listen(const struct config *c, struct listen_plan *out, struct error *err); /* ERROR_MODEL */
/* The first address of the settings that others than this machine can reach; false if there is none. */
bool config_public_address(const struct config *c, char name[LISTEN_NAME_MAX]);
/* Their part of config_check: addresses, TLS files, origins; and no address that others can reach without a key. */
int config_check_listening(const struct config *c, bool has_keys, struct error *err);
/* That last rule for an address that was found to be such. ERROR_MODEL */
int config_refuse_public(const char *name, struct error *err);

#endif
