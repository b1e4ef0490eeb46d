#include "server.h"

#include "config.h"
#include "content_log.h"
#include "crash.h"
#include "doors.h"
#include "gpu_library.h"
#include "gpu_monitor.h"
#include "http.h"
#include "loop.h"
#include "reload.h"
#include "request.h"
#include "route.h"
#include "server_state.h"
#include "version.h"
#include "watchdog.h"

#include <gnutls/crypto.h>
#include <gnutls/gnutls.h>
#include <inferd/clock.h>
#include <inferd/log.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Events that are taken before HTTP gets its turn: few, so that what they touched is still at hand when it is written
 * out; many when more than one waits for each stream, so that these go out in one write. */
#define EVENTS_A_TURN 128
#define EVENTS_A_TURN_BEHIND 4096
#define LAST_WORDS_MS 5000   /* to write out the errors that end a drain */
#define LINGER_MS 1000         /* for requests that are on their way when the last answer is out */
#define LINGER_AGAIN_MS 10
#define ENGINE_WAITING_MAX 1000000 /* the most that the setting max_waiting may be */
#define ENGINE_STOP_MS 60000 /* for the step that runs when everything else has ended */

static uint64_t milliseconds(double seconds) {
    return (uint64_t)(seconds * 1000);
}

/* ---- settings ------------------------------------------------------------------------------------------------ */

void server_use_policy(struct server *s, struct policy *p) {
    s->policy = p;
    s->config = &p->config;
    s->model = p->names.list[0];
}

/* Changes with whatever may change an answer to the same request and seed. */
static void make_fingerprint(struct server *s) {
    struct buf b = BUF_INIT;
    unsigned char digest[32] = {0};
    buf_printf(&b, "%s %s %s %s %s %zu %zu %s %s", version_number(), s->info.architecture, s->info.model_name,
               s->info.backend, s->info.variant, s->info.n_parameters, s->info.weight_bytes, s->info.weights,
               s->config->kv_dtype);
    if (!b.failed) {
        gnutls_hash_fast(GNUTLS_DIG_SHA256, b.data, b.len, digest);
    }
    buf_free(&b);
    snprintf(s->fingerprint, sizeof s->fingerprint, "fp_%02x%02x%02x%02x%02x%02x", digest[0], digest[1], digest[2],
             digest[3], digest[4], digest[5]);
}

/* ---- health -------------------------------------------------------------------------------------------------- */

const char *server_refusal(const struct server *s) {
    if (s->phase == SERVER_LOADING) {
        return "loading";
    }
    if (s->phase == SERVER_DRAINING) {
        return "draining";
    }
    if (s->device_lost) {
        return s->lost_reason;
    }
    if (watchdog_stalled(s)) {
        return "the engine makes no progress";
    }
    return gpu_monitor_trouble(s->gpu);
}

/* Figures of the GPU, where its driver has them: of the one that was asked for, from the first scrape on; of the one that
 * device = auto took, when it is known. */
static void watch_gpu(struct server *s) {
    const char *number = strchr(s->config->device, ':');
    struct error err;
    s->gpu_ordinal = number ? strtoul(number + 1, NULL, 10) : 0;
    const struct gpu_monitor_config config = {
        .library = GPU_LIBRARY,
        .libcuda = "libcuda.so.1",
        .dev = "/dev",
        .ordinal = s->gpu_ordinal,
        .period_ms = GPU_MONITOR_PERIOD_MS,
        .patience_ms = GPU_MONITOR_PATIENCE_MS,
    };
    if (gpu_monitor_open(&config, &s->gpu, &err) != 0) {
        log_warn("no figures of the GPU in the metrics: %s", err.message);
    }
}

/* ---- the engine ---------------------------------------------------------------------------------------------- */

static void on_notify(void *arg) { /* engine thread */
    loop_wake(arg);
}

static void on_wake(void *arg) {
    struct server *s = arg;
    struct engine_event event;
    if (!s->engines) {
        return;
    }
    uint64_t now = clock_now_ns();
    uint64_t soon[REQUEST_AHEAD];
    size_t most = EVENTS_A_TURN;
    watchdog_check_device(s);
    for (size_t i = 0; i < most; i++) {
        if (!engines_poll(s->engines, &event)) {
            return;
        }
        if (engines_pending(s->engines) > s->n_running_choices) {
            most = EVENTS_A_TURN_BEHIND;
        }
        request_look_ahead(s, soon, engines_peek(s->engines, soon, REQUEST_AHEAD));
        request_on_event(s, &event, now);
    }
    loop_wake(s->loop);
}

struct load {
    struct server *server;
    struct policy *policy; /* what it was begun with: held to the end, the engine may refer to it */
    struct engines *engines;
};

static void load_work(void *arg) {
    struct load *load = arg;
    struct engine_config config;
    config_engine(&load->policy->config, &config);
    config.on_progress = supervision_progress;
    config.progress_arg = load->server;
    config.max_waiting_tokens = 0; /* admission.c bounds both, from before anything is tokenised; and they may change */
    config.max_waiting = ENGINE_WAITING_MAX;
    load->server->load_failed = engines_open(&config, load->policy->config.replicas, &load->engines, &load->server->load_error) != 0;
}

/* How the ranks of a replica share the model. The smallest memory rules over the KV of all. */
static void tell_ranks(const struct engine_info *i, const char *of) {
    for (size_t n = 0; i->n_ranks > 1 && n < i->n_ranks; n++) {
        const struct engine_rank *r = &i->ranks[n];
        log_info("%srank %zu of %zu: %s, %zu threads; to its peers by %s; %.1f MiB of weights; memory for %zu KV blocks, of which %zu are used",
                 of, n, i->n_ranks, r->device, r->threads, r->links, (double)r->weight_bytes / 1048576, r->kv_blocks, i->kv_blocks);
    }
}

static void load_after(void *arg) {
    struct load *load = arg;
    struct server *s = load->server;
    if (s->load_failed) {
        config_engine_refused(&s->load_error);
        loop_stop(s->loop);
        return;
    }
    s->engines = load->engines;
    s->text = engines_text(s->engines);
    s->bytes_per_token = text_bytes_per_token(s->text);
    engines_get_info(s->engines, &s->info);
    engines_set_notify(s->engines, on_notify, s->loop);
    make_fingerprint(s);
    if (strcmp(s->config->device, "auto") == 0 && strcmp(s->info.backend, "cuda") == 0) {
        watch_gpu(s);
    }
    s->phase = SERVER_READY;
    crash_note_modules();
    http_start_accepting(s->http);
    supervision_ready(s);
    const struct engine_info *i = &s->info;
    if (i->device_why[0]) {
        log_info("device = auto takes %s", i->device_why);
    }
    log_info("serving %s (%s, %.0fM parameters, weights %s) on %s %s with %zu threads: context of %zu tokens, KV memory for %zu, "
             "%zu sequences at once",
             s->model, i->architecture, (double)i->n_parameters / 1e6, i->weights, i->backend, i->variant, i->threads,
             i->max_model_len, i->kv_blocks * i->kv_block_size, config_seats(s->config));
    for (size_t r = 0; r < engines_count(s->engines); r++) {
        struct engine_info one;
        char of[32] = "";
        engines_get_info_of(s->engines, r, &one);
        if (engines_count(s->engines) > 1) {
            snprintf(of, sizeof of, "replica %zu: ", r);
            log_info("%s%s, %zu threads, KV memory for %zu tokens", of, one.device, one.threads, one.kv_blocks * one.kv_block_size);
        }
        tell_ranks(&one, of);
    }
}

/* ---- the end ------------------------------------------------------------------------------------------------- */

static bool nothing_left(const struct server *s) {
    return list_empty(&s->requests) && s->n_jobs == 0;
}

/*
 * Stop when nothing is left to do, but first let clients have an answer (a 503 that ends the connection) who have just
 * connected, or whose pool of connections is in use: they would see a reset, which says nothing of whether to try again.
 */
static void on_linger(void *arg) {
    struct server *s = arg;
    if (s->phase != SERVER_DRAINING || !nothing_left(s)) {
        return;
    }
    uint64_t now = clock_now_ns();
    if (!s->linger_until_ns) {
        s->linger_until_ns = now + LINGER_MS * 1000000u;
    }
    if (s->http && now < s->linger_until_ns && http_owes_answers(s->http, LINGER_MS)) {
        loop_timer_set(s->linger, LINGER_AGAIN_MS);
    } else {
        loop_stop(s->loop);
    }
}

void server_request_ended(struct server *s) {
    on_linger(s);
}

void server_end_now(struct server *s, int code) {
    http_flush(s->http);
    route_log_unfinished(s);
    http_stop_listening(s->http);
    _exit(code);
}

static void fail_requests(struct server *s) {
    struct error err;
    s->drain_expired = true;
    error_set(&err, ERROR_UNAVAILABLE, "the server is shutting down");
    requests_fail(s, &err);
}

static void on_drain_timer(void *arg) {
    struct server *s = arg;
    if (s->stopping) {
        log_error("the engine does not end its step; giving up");
        _exit(1);
    }
    if (s->drain_expired) {
        loop_stop(s->loop);
        return;
    }
    log_warn("drain_timeout is over: ending what still runs");
    fail_requests(s);
    loop_timer_set(s->drain_timer, LAST_WORDS_MS);
}

static void on_terminate(void *arg) {
    struct server *s = arg;
    if (s->phase == SERVER_LOADING) { /* nothing is running that could be lost, and a load cannot be interrupted */
        log_info("stopped while loading");
        http_stop_listening(s->http);
        _exit(0);
    }
    if (s->phase == SERVER_DRAINING) {
        log_warn("told again to stop: ending at once");
        fail_requests(s);
        server_end_now(s, 0);
    }
    size_t running, waiting;
    requests_count(s, &running, &waiting);
    s->phase = SERVER_DRAINING;
    http_announce_close(s->http);
    supervision_stopping(s, running + waiting);
    log_info("draining: %zu requests run, %zu wait, at most %.0f s", running, waiting, s->config->drain_timeout);
    if (!nothing_left(s)) {
        loop_timer_set(s->drain_timer, milliseconds(s->config->drain_timeout));
    }
    on_linger(s);
}

static int load_keys(struct server *s, struct error *err) {
    struct keys keys;
    struct key_change change;
    struct buf warnings = BUF_INIT;
    if (keys_load(s->config, &keys, &warnings, err)) {
        buf_free(&warnings);
        return -1;
    }
    int rc = key_change_make(&s->keys, &keys, &change, err);
    if (rc == 0) {
        key_change_apply(&s->keys, &change, clock_now_ns());
    }
    for (const char *w = warnings.data; w && *w; w += strcspn(w, "\n") + 1) {
        log_warn("%.*s", (int)strcspn(w, "\n"), w);
    }
    keys_free(&keys);
    buf_free(&warnings);
    return rc;
}

static void on_tick(void *arg) {
    struct server *s = arg;
    watchdog_tick(s);
    requests_tick(s);
    s->tick_on = !list_empty(&s->requests);
    if (s->tick_on) {
        loop_timer_set(s->tick, 1000);
    }
}

/* ---- set-up -------------------------------------------------------------------------------------------------- */

static int open_all(struct server *s, struct load *load, struct error *err) {
    signal(SIGPIPE, SIG_IGN);
    signal(SIGCHLD, SIG_IGN); /* we have no children; process 1 of a container gets other people's, who shall be no zombies */
    route_register(s);
    if (strncmp(s->config->device, "cuda", 4) == 0) {
        watch_gpu(s);
    }
    const struct config *c = s->config;
    if (load_keys(s, err) || (c->content_log[0] && content_log_open(c->content_log, c->content_log_max, &s->content_log, err)) ||
        loop_open(&s->loop, err) || supervision_open(s, err)) {
        return -1;
    }
    if (s->content_log) {
        log_warn("what clients ask and are answered is written to %s (content_log)", c->content_log);
    }
    loop_on_wake(s->loop, on_wake, s);
    return loop_on_signal(s->loop, SIGTERM, on_terminate, s, err) ||
                   loop_on_signal(s->loop, SIGINT, on_terminate, s, err) ||
                   reload_open(s, err) ||
                   deadlines_open(&s->deadlines, s->loop, request_expired, s, err) ||
                   loop_timer_new(s->loop, on_tick, s, &s->tick, err) ||
                   loop_timer_new(s->loop, on_drain_timer, s, &s->drain_timer, err) ||
                   loop_timer_new(s->loop, on_linger, s, &s->linger, err) || doors_open(s, s->keys.n > 0, err) ||
                   loop_work(s->loop, load_work, load_after, load, err)
               ? -1
               : 0;
}

/* Order matters: HTTP lets go of the requests, the engine sends their last events, then both can go. */
static void close_all(struct server *s, struct load *load) {
    s->phase = SERVER_DRAINING;
    s->stopping = true;
    http_close(s->http);
    s->http = NULL;
    if (s->drain_timer) {
        loop_timer_set(s->drain_timer, ENGINE_STOP_MS);
    }
    while (!nothing_left(s)) {
        loop_run(s->loop);
    }
    supervision_close(s);
    loop_timer_free(s->drain_timer);
    loop_timer_free(s->linger);
    loop_timer_free(s->tick);
    reload_close(s);
    deadlines_close(&s->deadlines);
    engines_close(s->engines);
    if (!gpu_monitor_close(s->gpu)) {
        log_warn("the GPU's driver does not answer; ending without it");
    }
    loop_free(s->loop);
    admission_destroy(&s->admission);
    key_ring_free(&s->keys);
    free(s->choices.slots);
    buf_free(&s->events);
    policy_release(load->policy);
    policy_release(s->policy);
    content_log_close(s->content_log);
}

int server_run(const struct config *config, settings_reader *reread, void *arg, struct error *err) {
    struct server s = {.phase = SERVER_LOADING, .started_at = clock_unix_time(), .reread = reread, .reread_arg = arg};
    struct load load = {.server = &s};
    struct policy *policy;
    reload_block_hangup();
    log_set_level(config_log_level(config));
    log_set_format(config_log_format(config));
    crash_install();
    if (policy_new(config, &policy, err)) {
        return -1;
    }
    server_use_policy(&s, policy);
    load.policy = policy_hold(policy);
    list_init(&s.requests);
    admission_init(&s.admission, s.config);
    crash_watch(&s);
    int rc = open_all(&s, &load, err);
    if (rc == 0) {
        loop_run(s.loop);
        if (s.load_failed) {
            *err = s.load_error;
            rc = -1;
        } else if (s.device_lost) { /* told to stop in the moment before it ends by itself: not a stop like others */
            rc = error_set(err, ERROR_DEVICE, "%s", s.lost_reason);
        }
    }
    close_all(&s, &load);
    crash_watch(NULL);
    if (rc == 0) {
        log_info("stopped");
    }
    return rc;
}
