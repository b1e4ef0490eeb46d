#include "cmd/plan.h"

#include <string.h>

static void text(struct buf *out, const char *s) {
    buf_json_string(out, s, strlen(s));
}

static void range(struct buf *out, const char *key, struct plan_range r, const char *end) {
    if (r.high > 0) {
        buf_printf(out, "\"%s\": [%.6g, %.6g]%s", key, r.low, r.high, end);
    } else {
        buf_printf(out, "\"%s\": null%s", key, end);
    }
}

static void ranks(struct buf *out, const struct plan_answer *a) {
    buf_puts(out, "  \"ranks\": [");
    for (size_t i = 0; i < a->n_ranks; i++) {
        const struct plan_rank *r = &a->ranks[i];
        buf_printf(out, "%s\n    {\"rank\": %zu, \"weights_bytes\": %zu, \"kv_bytes\": %zu, \"workspace_bytes\": %zu, \"graph_bytes\": %zu, "
                        "\"communication_bytes\": %zu, \"context_bytes\": %zu, \"margin_bytes\": %zu, \"total_bytes\": %zu, \"usable_bytes\": %zu}",
                   i ? "," : "", i, r->weights, r->kv, r->workspace, r->graphs, r->communication, r->context, r->margin, r->total, r->usable);
    }
    buf_puts(out, "\n  ],\n");
}

static void lists(struct buf *out, const struct plan_answer *a) {
    buf_puts(out, "  \"valid_tp\": [");
    for (size_t i = 0; i < a->n_valid_tp; i++) {
        buf_printf(out, "%s%zu", i ? ", " : "", a->valid_tp[i]);
    }
    buf_puts(out, "],\n  \"warnings\": [");
    for (size_t i = 0; i < a->n_warnings; i++) {
        buf_puts(out, i ? ", " : "");
        text(out, a->warnings[i]);
    }
    buf_puts(out, "],\n  \"remedies\": [");
    for (size_t i = 0; i < a->n_remedies; i++) {
        const struct plan_remedy *r = &a->remedies[i];
        buf_printf(out, "%s\n    {\"what\": ", i ? "," : "");
        text(out, r->what);
        buf_puts(out, ", \"flags\": ");
        text(out, r->flags);
        buf_printf(out, ", \"fits\": %s, \"total_bytes\": %zu, \"max_tokens\": %zu, \"max_sequences\": %zu}", r->fits ? "true" : "false", r->total,
                   r->max_tokens, r->max_sequences);
    }
    buf_puts(out, "]\n");
}

void plan_print_json(const struct plan_question *q, const struct plan_answer *a, struct buf *out) {
    buf_printf(out, "{\n  \"fits\": %s,\n  \"model\": ", a->fits ? "true" : "false");
    text(out, a->model);
    buf_puts(out, ",\n  \"architecture\": ");
    text(out, a->architecture);
    buf_puts(out, ",\n  \"gpu\": ");
    text(out, q->gpu.name);
    buf_printf(out, ",\n  \"tensor_parallel\": %zu,\n  \"pipeline_parallel\": %zu,\n  \"replicas\": %zu,\n", a->tensor_parallel, a->pipeline_parallel, a->replicas);
    ranks(out, a);
    buf_printf(out, "  \"parameters\": %zu,\n  \"active_parameters\": %zu,\n  \"file_bytes\": %zu,\n  \"kv_bytes_per_token\": %zu,\n", a->parameters,
               a->active_parameters, a->file_bytes, a->kv_bytes_per_token);
    buf_printf(out, "  \"context\": %zu,\n  \"sequences\": %zu,\n  \"max_tokens\": %zu,\n  \"max_sequences\": %zu,\n  \"max_context\": %zu,\n", a->asked_context,
               a->asked_sequences, a->max_tokens, a->max_sequences, a->max_context);
    buf_printf(out, "  \"binding\": \"%s\",\n  \"shortage_bytes\": %zu,\n  \"estimate\": {\"measured\": false, ", a->binding, a->shortage);
    range(out, "first_token_seconds", a->first_token, ", ");
    range(out, "token_seconds", a->token, ", ");
    range(out, "tokens_per_second", a->tokens_per_second, ", ");
    buf_printf(out, "\"token_communication_seconds\": %.6g, ", a->token_communication);
    range(out, "price_per_million_tokens", a->price_per_million, "},\n");
    lists(out, a);
    buf_puts(out, "}\n");
}
