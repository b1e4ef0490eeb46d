#include "probe.h"

#include "api_common.h"
#include "content_log.h"
#include "config.h"
#include "gpu_monitor.h"
#include "http.h"
#include "request.h"
#include "server_state.h"
#include "version.h"
#include "watchdog.h"

#include <inferd/log.h>
#include <stdio.h>
#include <string.h>

/* The loop runs, or this would not be answered. */
void probe_live(struct server *s, struct exchange *x) {
    struct buf body = BUF_INIT;
    (void)s;
    buf_puts(&body, "{\"status\":\"ok\"}\n");
    api_reply(x, 200, &body);
}

void probe_ready(struct server *s, struct exchange *x) {
    const char *refusal = server_refusal(s);
    struct buf body = BUF_INIT;
    if (refusal) {
        api_add_retry_after(s, x);
        buf_puts(&body, "{\"status\":\"unavailable\",\"reason\":");
        json_put_string(&body, refusal);
        buf_puts(&body, "}\n");
    } else {
        buf_puts(&body, "{\"status\":\"ok\"}\n");
    }
    api_reply(x, refusal ? 503 : 200, &body);
}

void probe_metrics(struct server *s, struct exchange *x) {
    size_t running, waiting;
    struct buf body = BUF_INIT;
    static struct engine_stats each[ENGINES_MOST]; /* the loop thread's, too large for its stack */
    requests_count(s, &running, &waiting);
    memset(each, 0, s->config->replicas * sizeof each[0]);
    s->metrics.log_lost = log_lost() + content_log_lost(s->content_log);
    struct metrics_view view = {
        .each = each,
        .n_engines = s->config->replicas,
        .running = (double)running,
        .waiting = (double)waiting,
        .preparing = (double)(admission_held(&s->admission) - s->n_running_choices),
        .waiting_tokens = (double)admission_waiting_tokens(&s->admission),
        .ready = server_refusal(s) == NULL,
        .model = s->model,
        .last_step_age = watchdog_silence(s),
        .max_sequences = (double)config_seats(s->config),
        .max_waiting = (double)s->config->max_waiting,
        .kv_block_size = s->info.kv_block_size,
        .kv_blocks = s->info.kv_blocks,
        .max_model_len = s->info.max_model_len,
        .backend = s->engines ? s->info.backend : "",
    };
    if (s->engines) {
        engines_get_stats(s->engines, &view.stats);
        for (size_t i = 0; i < engines_count(s->engines); i++) {
            engines_get_stats_of(s->engines, i, &each[i]);
        }
        memcpy(view.memory_planned, s->info.memory_planned, sizeof view.memory_planned);
        memcpy(view.memory_used, s->info.memory_used, sizeof view.memory_used);
        memcpy(view.load_seconds, s->info.load_seconds, sizeof view.load_seconds);
    }
    double gpu[GPU_VALUES];
    if (s->gpu) {
        gpu_monitor_read(s->gpu, gpu);
        view.gpu = gpu;
        view.gpu_ordinal = s->gpu_ordinal;
    }
    metrics_write(&s->metrics, &view, &body);
    key_ring_metrics(&s->keys, &body);
    exchange_reply(x, 200, METRICS_CONTENT_TYPE, &body);
}

void probe_version(struct server *s, struct exchange *x) {
    struct buf body = BUF_INIT;
    version_describe(true, s->engines ? s->info.backend : NULL, &body);
    api_reply(x, 200, &body);
}
