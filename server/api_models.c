/* GET /v1/models and /v1/models/{id}: the one model, under each of its names. */
#include "api_common.h"
#include "http.h"
#include "probe.h"
#include "server_state.h"

#include <stdio.h>
#include <string.h>

static void write_card(const struct server *s, const char *name, struct buf *out) {
    buf_puts(out, "{\"id\":");
    json_put_string(out, name);
    buf_printf(out,
               ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"inferd\",\"root\":", (long long)s->started_at);
    json_put_string(out, s->model);
    buf_printf(out, ",\"parent\":null,\"max_model_len\":%zu,\"permission\":[]}", s->info.max_model_len);
}

static const char *find_name(const struct model_names *names, const char *name) {
    for (size_t i = 0; i < names->n; i++) {
        if (strcmp(names->list[i], name) == 0) {
            return names->list[i];
        }
    }
    return NULL;
}

void api_models(struct server *s, struct exchange *x) {
    static const char list[] = "/v1/models";
    const char *path = exchange_path(x);
    const struct model_names *names = &s->policy->names;
    const char *name;
    struct buf body = BUF_INIT;
    if (strcmp(path, list) == 0) {
        buf_puts(&body, "{\"object\":\"list\",\"data\":[");
        for (size_t i = 0; i < names->n; i++) {
            buf_puts(&body, i ? "," : "");
            write_card(s, names->list[i], &body);
        }
        buf_puts(&body, "]}\n");
    } else if ((name = find_name(names, path + sizeof list))) {
        write_card(s, name, &body);
        buf_putc(&body, '\n');
    } else {
        const struct api_error e = {404, "invalid_request_error", "model_not_found", "model",
                                    "the model does not exist", 0};
        api_reply_error(s, x, &e);
        return;
    }
    api_reply(x, 200, &body);
}
