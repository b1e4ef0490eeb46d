#include "api_tokenize.h"

#include "api_chat.h"
#include "api_common.h"
#include "config.h"
#include "http.h"
#include "loop.h"
#include "params.h"
#include "server_state.h"

#include <inferd/text.h>
#include <stdatomic.h>
#include <stdlib.h>

/* Freed when both HTTP and the worker are done with it. */
struct job {
    struct server *server;
    struct exchange *exchange; /* NULL once completed */
    struct policy *policy;     /* held */
    bool backwards, working, failed;
    atomic_bool gone; /* read by a worker before it begins */
    size_t body_len;  /* what HTTP counts as held until the body is freed */
    struct buf body, reply;
    struct error error;
};

static void job_release(struct job *j) {
    if (!j->exchange && !j->working) {
        struct server *s = j->server;
        buf_free(&j->body);
        buf_free(&j->reply);
        policy_release(j->policy);
        free(j);
        s->n_jobs--;
        server_request_ended(s);
    }
}

static void write_tokens(const struct text *text, const struct tokens *t, bool strings, size_t max_model_len,
                         struct buf *out) {
    buf_printf(out, "{\"count\":%zu,\"max_model_len\":%zu,\"tokens\":[", t->n, max_model_len);
    for (size_t i = 0; i < t->n; i++) {
        buf_printf(out, i ? ",%d" : "%d", t->ids[i]);
    }
    buf_puts(out, "],\"token_strs\":");
    buf_puts(out, strings ? "[" : "null");
    for (size_t i = 0; strings && i < t->n; i++) {
        size_t len;
        const char *bytes = text_token_bytes(text, t->ids[i], &len);
        buf_puts(out, i ? "," : "");
        buf_json_string(out, bytes, len);
    }
    buf_puts(out, strings ? "]}\n" : "}\n");
}

static int tokenize(const struct server *s, const struct request_params *p, struct buf *out, struct error *err) {
    struct tokens tokens = {0};
    unsigned flags = TEXT_PARSE_SPECIAL | (p->add_special_tokens ? TEXT_ADD_SPECIAL : 0u);
    int rc = p->messages ? api_chat_tokens(s->text, p, &tokens, err)
                         : text_encode(s->text, p->prompts[0].text, p->prompts[0].text_len, flags, &tokens, err);
    if (rc == 0) {
        write_tokens(s->text, &tokens, p->return_token_strs, s->info.max_model_len, out);
    }
    tokens_free(&tokens);
    return rc;
}

static int detokenize(const struct server *s, const struct request_params *p, struct buf *out, struct error *err) {
    struct buf text = BUF_INIT;
    int rc = text_decode(s->text, p->tokens, p->n_tokens, false, &text, err);
    if (rc == 0) {
        buf_puts(out, "{\"prompt\":");
        buf_json_string(out, text.data, text.len);
        buf_puts(out, "}\n");
        out->failed = out->failed || text.failed;
    }
    buf_free(&text);
    return rc;
}

/* On a worker thread. */
static void work(void *arg) {
    struct job *j = arg;
    const struct server *s = j->server;
    struct request_params p = {0};
    const struct params_limits limits = {
        .models = j->policy->names.list,
        .n_models = j->policy->names.n,
        .vocab_size = s->info.vocab_size,
        .max_n = 1,
        .strict = j->policy->config.strict_requests,
    };
    if (j->gone) {
        buf_free(&j->body);
        return;
    }
    j->failed = params_parse(j->body.data ? j->body.data : "", j->body.len, j->backwards ? IN_DETOKENIZE : IN_TOKENIZE,
                             &limits, &p, &j->error) ||
                (j->backwards ? detokenize : tokenize)(s, &p, &j->reply, &j->error) ||
                (j->reply.failed && error_memory(&j->error));
    params_free(&p);
    buf_free(&j->body);
}

static void body_freed(struct job *j) {
    if (j->server->http) { /* not at the very end */
        http_body_freed(j->server->http, j->body_len);
    }
    j->body_len = 0;
}

static void after(void *arg) {
    struct job *j = arg;
    j->working = false;
    body_freed(j);
    if (j->exchange && j->failed) {
        struct api_error e = api_error_of(&j->error);
        api_reply_error(j->server, j->exchange, &e);
    } else if (j->exchange) {
        api_reply(j->exchange, 200, &j->reply);
    }
    job_release(j);
}

void api_tokenize(struct server *s, struct exchange *x, bool backwards) {
    struct error err;
    struct job *j = calloc(1, sizeof *j);
    if (!j) {
        error_memory(&err);
        struct api_error e = api_error_of(&err);
        api_reply_error(s, x, &e);
        return;
    }
    *j = (struct job){.server = s, .exchange = x, .backwards = backwards, .working = true, .policy = policy_hold(s->policy)};
    j->body = exchange_take_body(x);
    j->body_len = j->body.len;
    exchange_set_app(x, j);
    s->n_jobs++;
    if (loop_work(s->loop, work, after, j, &err)) {
        struct api_error e = api_error_of(&err);
        j->working = false;
        buf_free(&j->body);
        body_freed(j);
        api_reply_error(s, x, &e);
    }
}

void api_tokenize_completed(void *job) {
    struct job *j = job;
    j->exchange = NULL;
    j->gone = true;
    job_release(j);
}
