/* POST /v1/chat/completions: messages through the model's template, answers as messages. */
#include "api_chat.h"

#include "api_common.h"
#include "request.h"
#include "server_state.h"
#include "sse.h"

#include <inferd/clock.h>
#include <inferd/text.h>
#include <stdio.h>

static int render(const struct text *text, const struct request_params *p, struct marked_text *out, struct error *err) {
    const struct chat_request chat = {
        .messages_json = p->messages,
        .messages_len = p->messages_len,
        .tools_json = p->tools_hidden ? NULL : p->tools,
        .tools_len = p->tools_len,
        .documents_json = p->documents,
        .documents_len = p->documents_len,
        .kwargs_json = p->template_kwargs,
        .kwargs_len = p->template_kwargs_len,
        .add_generation_prompt = p->add_generation_prompt,
        .continue_final_message = p->continue_final_message,
        .now = clock_unix_time(),
    };
    if (!text_has_chat_template(text)) {
        return error_set_param(err, ERROR_UNSUPPORTED, "messages",
                               "the model has no chat template: /v1/completions can be used, or the setting "
                               "chat_template gives it one (%s, or a file)",
                               text_chat_families());
    }
    int rc = text_render_chat(text, &chat, out, err);
    if (rc && err->code == ERROR_INVALID && !err->param[0]) {
        snprintf(err->param, sizeof err->param, "messages");
    }
    return rc;
}

static int encode(const struct text *text, const struct request_params *p, const struct marked_text *rendered,
                  struct tokens *out, struct error *err) {
    return text_encode_marked(text, rendered, p->add_special_tokens ? TEXT_ADD_SPECIAL : 0, out, err);
}

int api_chat_tokens(const struct text *text, const struct request_params *p, struct tokens *out, struct error *err) {
    struct marked_text rendered = {BUF_INIT, BUF_INIT};
    int rc = render(text, p, &rendered, err) || encode(text, p, &rendered, out, err) ? -1 : 0;
    marked_text_free(&rendered);
    return rc;
}

static int prepare(struct request *r, struct error *err) {
    const struct text *text = r->server->text;
    struct marked_text rendered = {BUF_INIT, BUF_INIT};
    if (request_alloc_prompts(r, 1, err)) {
        return -1;
    }
    struct tokens *tokens = &r->prompts[0].tokens;
    int rc = render(text, &r->params, &rendered, err) || request_go_on(r, rendered.bytes.len, err) ||
             encode(text, &r->params, &rendered, tokens, err);
    marked_text_free(&rendered);
    if (rc == 0 && tokens->n == 0) {
        rc = error_set_param(err, ERROR_INVALID, "messages", "the messages come to no tokens at all");
    }
    return rc ? -1 : 0;
}

/* ---- streaming ----------------------------------------------------------------------------------------------- */

static void end_chunk(const struct request *r, struct buf *out) {
    buf_puts(out, r->params.include_usage ? "}],\"usage\":null}" SSE_END : "}]}" SSE_END);
}

static void write_first(const struct request *r, struct choice *c, struct buf *out) {
    request_begin_chunk(r, c, out);
    buf_puts(out, ",\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null");
    end_chunk(r, out);
}

static void write_text(const struct request *r, struct choice *c, size_t n_logprobs, struct buf *out) {
    request_begin_chunk(r, c, out);
    buf_puts(out, ",\"delta\":{\"content\":");
    buf_json_string(out, c->text.data, c->text.len);
    if (r->params.logprobs) {
        buf_puts(out, "},\"logprobs\":");
        logprobs_write_chat(&c->logprobs, n_logprobs, out);
        buf_puts(out, ",\"finish_reason\":null");
    } else {
        buf_puts(out, "},\"logprobs\":null,\"finish_reason\":null");
    }
    end_chunk(r, out);
}

static void write_finish(const struct request *r, struct choice *c, struct buf *out) {
    size_t n_logprobs = request_ready_logprobs(c, true); /* of text that was shown before it was known to be the last */
    request_begin_chunk(r, c, out);
    buf_puts(out, ",\"delta\":{},\"logprobs\":");
    if (n_logprobs) {
        logprobs_write_chat(&c->logprobs, n_logprobs, out);
    } else {
        buf_puts(out, "null");
    }
    buf_printf(out, ",\"finish_reason\":\"%s\"", request_finish_reason(c));
    request_write_stop_reason(r, c, out);
    end_chunk(r, out);
}

/* ---- whole --------------------------------------------------------------------------------------------------- */

static void write_choice(const struct request *r, struct choice *c, struct buf *out) {
    buf_printf(out, "{\"index\":%zu,\"message\":{\"role\":\"assistant\",\"content\":", c->index);
    buf_json_string(out, c->text.data, c->text.len);
    buf_puts(out, ",\"refusal\":null},\"logprobs\":");
    if (r->params.logprobs) {
        logprobs_write_chat(&c->logprobs, request_ready_logprobs(c, true), out);
    } else {
        buf_puts(out, "null");
    }
    buf_printf(out, ",\"finish_reason\":\"%s\"", request_finish_reason(c));
    request_write_stop_reason(r, c, out);
    buf_putc(out, '}');
}

const struct api api_chat = {
    .where = IN_CHAT,
    .id_prefix = "chatcmpl-",
    .object = "chat.completion",
    .chunk_object = "chat.completion.chunk",
    .prepare = prepare,
    .write_first = write_first,
    .write_text = write_text,
    .write_finish = write_finish,
    .write_choice = write_choice,
};
