/* POST /v1/completions: prompts as text or ids, continued. */
#include "api_common.h"
#include "request.h"
#include "server_state.h"
#include "sse.h"

#include <inferd/text.h>

static int prepare_prompt(struct request *r, const struct prompt_input *in, struct prompt *out,
                          struct error *err) {
    const struct text *text = r->server->text;
    if (in->text) {
        unsigned flags = TEXT_PARSE_SPECIAL | (r->params.add_special_tokens ? TEXT_ADD_SPECIAL : 0u);
        if (request_go_on(r, in->text_len, err) || text_encode(text, in->text, in->text_len, flags, &out->tokens, err)) {
            return -1;
        }
        if (r->params.echo) {
            buf_append(&out->echo, in->text, in->text_len);
        }
    } else {
        for (size_t i = 0; i < in->n_ids; i++) {
            if (tokens_push(&out->tokens, in->ids[i], err)) {
                return -1;
            }
        }
        if (r->params.echo && text_decode(text, in->ids, in->n_ids, r->params.skip_special_tokens, &out->echo, err)) {
            return -1;
        }
    }
    if (out->tokens.n == 0) {
        return error_set_param(err, ERROR_INVALID, "prompt", "prompt must not be empty");
    }
    return out->echo.failed ? error_memory(err) : 0;
}

static int prepare(struct request *r, struct error *err) {
    if (request_alloc_prompts(r, r->params.n_prompts, err)) {
        return -1;
    }
    for (size_t i = 0; i < r->n_prompts; i++) {
        if (prepare_prompt(r, &r->params.prompts[i], &r->prompts[i], err)) {
            return -1;
        }
    }
    return 0;
}

/* ---- streaming ----------------------------------------------------------------------------------------------- */

static void end_chunk(const struct request *r, struct buf *out) {
    buf_puts(out, r->params.include_usage ? "}],\"usage\":null}" SSE_END : "}]}" SSE_END);
}

/* There is no role to announce. */
static void write_first(const struct request *r, struct choice *c, struct buf *out) {
    (void)r;
    (void)c;
    (void)out;
}

static void write_text(const struct request *r, struct choice *c, size_t n_logprobs, struct buf *out) {
    request_begin_chunk(r, c, out);
    buf_puts(out, ",\"text\":");
    buf_json_string(out, c->text.data, c->text.len);
    if (r->params.top_logprobs >= 0) {
        buf_puts(out, ",\"logprobs\":");
        logprobs_write_completions(&c->logprobs, n_logprobs, out);
        buf_puts(out, ",\"finish_reason\":null");
    } else {
        buf_puts(out, ",\"logprobs\":null,\"finish_reason\":null");
    }
    end_chunk(r, out);
}

static void write_finish(const struct request *r, struct choice *c, struct buf *out) {
    size_t n_logprobs = request_ready_logprobs(c, true); /* of text that was shown before it was known to be the last */
    request_begin_chunk(r, c, out);
    buf_puts(out, ",\"text\":\"\",\"logprobs\":");
    if (n_logprobs) {
        logprobs_write_completions(&c->logprobs, n_logprobs, out);
    } else {
        buf_puts(out, "null");
    }
    buf_printf(out, ",\"finish_reason\":\"%s\"", request_finish_reason(c));
    request_write_stop_reason(r, c, out);
    end_chunk(r, out);
}

/* ---- whole --------------------------------------------------------------------------------------------------- */

static void write_choice(const struct request *r, struct choice *c, struct buf *out) {
    buf_printf(out, "{\"index\":%zu,\"text\":", c->index);
    buf_json_string(out, c->text.data, c->text.len);
    buf_puts(out, ",\"logprobs\":");
    if (r->params.top_logprobs >= 0) {
        logprobs_write_completions(&c->logprobs, request_ready_logprobs(c, true), out);
    } else {
        buf_puts(out, "null");
    }
    buf_printf(out, ",\"finish_reason\":\"%s\"", request_finish_reason(c));
    request_write_stop_reason(r, c, out);
    request_write_prompt_logprobs(c, out);
    buf_putc(out, '}');
}

const struct api api_completions = {
    .where = IN_COMPLETIONS,
    .id_prefix = "cmpl-",
    .object = "text_completion",
    .chunk_object = "text_completion",
    .prepare = prepare,
    .write_first = write_first,
    .write_text = write_text,
    .write_finish = write_finish,
    .write_choice = write_choice,
};
