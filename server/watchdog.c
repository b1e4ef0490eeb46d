#include "watchdog.h"

#include "config.h"
#include "engines.h"
#include "loop.h"
#include "request.h"
#include "server_state.h"

#include <inferd/clock.h>
#include <inferd/log.h>
#include <stdio.h>

#define NAMED_REQUESTS 16 /* in the line of log */
#define EXIT_DEVICE 4
#define LAST_WORDS_MS 1000 /* for the errors that end what ran */

double watchdog_silence(const struct server *s) {
    if (s->n_running_choices == 0) {
        return 0;
    }
    return engines_silence(s->engines);
}

bool watchdog_stalled(const struct server *s) {
    return watchdog_silence(s) > s->config->stall_timeout;
}

static void report(const struct server *s, double seconds) {
    struct engine_stats stats;
    struct buf names = BUF_INIT;
    size_t running, waiting, left = NAMED_REQUESTS;
    engines_get_stats(s->engines, &stats);
    requests_count(s, &running, &waiting);
    LIST_FOR_EACH(node, &s->requests) {
        const struct request *r = LIST_ENTRY(node, struct request, node);
        if (r->n_in_engine > 0 && left > 0) {
            buf_printf(&names, " %s", r->id);
            left--;
        }
    }
    log_error("no step of the engine has ended for %.1f s: %zu requests run and %zu wait, %zu of %zu KV blocks are "
              "used, %llu steps came before; in the engine%s:%s",
              seconds, running, waiting, (size_t)stats.kv_blocks_used, (size_t)stats.kv_blocks,
              (unsigned long long)stats.steps, left > 0 ? "" : " are, among others", names.failed ? "" : names.data);
    buf_free(&names);
}

void watchdog_check_device(struct server *s) {
    size_t i;
    const struct error *why = s->device_lost ? NULL : engines_lost(s->engines, &i);
    if (why) {
        char of[32] = "";
        if (engines_count(s->engines) > 1) {
            snprintf(of, sizeof of, "replica %zu: ", i);
        }
        snprintf(s->lost_reason, sizeof s->lost_reason, "the device is lost: %s%s", of, why->message);
        log_error("%s; ending the process, so that whoever watches it starts it again", s->lost_reason);
        s->device_lost = true;
        loop_timer_set(s->tick, LAST_WORDS_MS);
    }
}

/* Streams had time to send their last event. */
_Noreturn static void end_without_device(struct server *s) {
    struct error err;
    error_set(&err, ERROR_UNAVAILABLE, "the device is lost; the server is ending");
    requests_fail(s, &err);
    server_end_now(s, EXIT_DEVICE);
}

_Noreturn static void give_up(struct server *s, double seconds) {
    struct error err;
    log_error("no step of the engine has ended for %.1f s, longer than stall_exit allows: ending the process, so that "
              "whoever watches it starts it again",
              seconds);
    error_set(&err, ERROR_UNAVAILABLE, "the engine makes no progress; the server is ending");
    requests_fail(s, &err);
    server_end_now(s, EXIT_DEVICE);
}

void watchdog_tick(struct server *s) {
    if (s->device_lost) {
        end_without_device(s);
    }
    double seconds = watchdog_silence(s);
    bool stalled = seconds > s->config->stall_timeout;
    if (stalled && !s->stalled) {
        report(s, seconds);
    } else if (!stalled && s->stalled) {
        log_info("the engine goes on");
    }
    s->stalled = stalled;
    if (stalled && s->config->stall_exit > 0 && seconds > s->config->stall_exit) {
        give_up(s, seconds);
    }
}
