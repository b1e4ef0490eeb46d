/* GET /v1/models and /v1/models/{id}: the one model. */
#include "api_common.h"
#include "http.h"
#include "probe.h"
#include "server_state.h"

#include <stdio.h>
#include <string.h>

static void write_card(const struct server *s, struct buf *out) {
    buf_puts(out, "{\"id\":");
    json_put_string(out, s->model);
    buf_printf(out,
               ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"inferd\",\"root\":", (long long)s->started_at);
    json_put_string(out, s->model);
    buf_printf(out, ",\"parent\":null,\"max_model_len\":%zu,\"permission\":[]}", s->info.max_model_len);
}

void api_models(struct server *s, struct exchange *x) {
    static const char list[] = "/v1/models";
    const char *path = exchange_path(x);
    struct buf body = BUF_INIT;
    if (strcmp(path, list) == 0) {
        buf_puts(&body, "{\"object\":\"list\",\"data\":[");
        write_card(s, &body);
        buf_puts(&body, "]}\n");
    } else if (strcmp(path + sizeof list, s->model) == 0) {
        write_card(s, &body);
        buf_putc(&body, '\n');
    } else {
        const struct api_error e = {404, "invalid_request_error", "model_not_found", "model",
                                    "the model does not exist", 0};
        api_reply_error(s, x, &e);
        return;
    }
    api_reply(x, 200, &body);
}
