#include "cmd/plan.h"

#include <stdio.h>

#define GIB 1073741824.0

static double gib(size_t bytes) {
    return (double)bytes / GIB;
}

static void range(struct buf *out, const char *what, struct plan_range r, double scale, const char *unit) {
    if (r.high > 0) {
        buf_printf(out, "  %-26s %.4g to %.4g %s\n", what, r.low * scale, r.high * scale, unit);
    }
}

static void ranks(const struct plan_answer *a, struct buf *out) {
    size_t tp = a->tensor_parallel;
    buf_printf(out, "\n%-10s %9s %9s %9s %7s %7s %8s %9s %9s %9s\n", "GiB", "weights", "KV", "workspace", "graphs", "comm.", "context",
               "total", "usable", "left");
    for (size_t i = 0; i < a->n_ranks; i += tp) {
        const struct plan_rank *r = &a->ranks[i];
        char name[32];
        if (tp > 1) {
            snprintf(name, sizeof name, "ranks %zu-%zu", i, i + tp - 1);
        } else {
            snprintf(name, sizeof name, "rank %zu", i);
        }
        buf_printf(out, "%-10s %9.2f %9.2f %9.2f %7.2f %7.2f %8.2f %9.2f %9.2f ", name, gib(r->weights), gib(r->kv), gib(r->workspace),
                   gib(r->graphs), gib(r->communication), gib(r->context), gib(r->total), gib(r->usable));
        if (r->total > r->usable) {
            buf_printf(out, "%9.2f\n", -gib(r->total - r->usable));
        } else {
            buf_printf(out, "%9.2f\n", gib(r->margin));
        }
    }
}

void plan_print(const struct plan_question *q, const struct plan_answer *a, struct buf *out) {
    buf_printf(out, "%s (%s): %zu parameters, %.2f GB (%.2f GiB) in its own types; %zu layers, %zu query and %zu KV heads of %zu\n", a->model,
               a->architecture, a->parameters, (double)a->file_bytes / 1e9, gib(a->file_bytes), a->n_layers, a->n_heads, a->n_kv_heads, a->head_dim);
    if (a->active_parameters < a->parameters) {
        buf_printf(out, "A token uses %zu of the parameters.\n", a->active_parameters);
    }
    buf_printf(out, "on %zu x %s: tensor_parallel %zu, pipeline_parallel %zu, replicas %zu; weights %s, KV %s\n", a->n_ranks * a->replicas,
               q->gpu.full_name, a->tensor_parallel, a->pipeline_parallel, a->replicas, q->weights ? q->weights : "auto", q->kv_dtype ? q->kv_dtype : "f16");
    buf_printf(out, "for %zu sequence%s of %zu tokens\n", a->asked_sequences, a->asked_sequences == 1 ? "" : "s", a->asked_context);
    ranks(a, out);
    buf_printf(out, "\n%s", a->fits ? "It fits." : "It does NOT fit.");
    if (a->shortage) {
        buf_printf(out, " Each card lacks %.2f GiB (%zu bytes).", gib(a->shortage), a->shortage);
    }
    buf_printf(out, " What rules: %s.\n", a->binding);
    buf_printf(out, "  %-26s %zu (%.4g KiB)\n", "KV bytes a token", a->kv_bytes_per_token, (double)a->kv_bytes_per_token / 1024);
    buf_printf(out, "  %-26s %zu\n", "most tokens in KV", a->max_tokens);
    buf_printf(out, "  %-26s %zu\n", "most sequences so long", a->max_sequences);
    buf_printf(out, "  %-26s %zu\n", "longest context for all", a->max_context);
    buf_printf(out, "  %-26s", "valid tensor_parallel");
    for (size_t i = 0; i < a->n_valid_tp; i++) {
        buf_printf(out, " %zu", a->valid_tp[i]);
    }
    buf_puts(out, "\n");
    if (a->token.high > 0) {
        buf_puts(out, "\nEstimates from the card's data sheet and what engines reach of it, not measured:\n");
        range(out, "first token", a->first_token, 1e3, "ms");
        range(out, "a token of each sequence", a->token, 1e3, "ms");
        range(out, "tokens/s, all together", a->tokens_per_second, 1, "");
        range(out, "price of a million tokens", a->price_per_million, 1, "");
    } else {
        buf_puts(out, "\nHow fast it is here `inferd bench` measures.\n");
    }
    for (size_t i = 0; i < a->n_warnings; i++) {
        buf_printf(out, "%s- %s\n", i ? "" : "\nMind:\n", a->warnings[i]);
    }
    for (size_t i = 0; i < a->n_remedies; i++) {
        const struct plan_remedy *r = &a->remedies[i];
        buf_printf(out, "%s- %s (%s): %s; %.2f GiB a card, room for %zu tokens, %zu such sequences\n", i ? "" : "\nWhat would help:\n", r->what, r->flags,
                   r->fits ? "fits" : "not enough alone", gib(r->total), r->max_tokens, r->max_sequences);
    }
}

static void project_price(struct buf *out, const char *before, double price) {
    buf_puts(out, before);
    if (price > 0) {
        buf_printf(out, "%.0f", price);
    } else {
        buf_putc(out, '?');
    }
}

void plan_print_options(const struct plan_wish *w, const struct plan_option *found, size_t n, bool json, struct buf *out) {
    if (json) {
        buf_puts(out, "{\"options\": [");
        for (size_t i = 0; i < n; i++) {
            const struct plan_option *o = &found[i];
            buf_printf(out, "%s\n  {\"gpu\": \"%s\", \"gpus\": %zu, \"tensor_parallel\": %zu, \"tokens_per_second\": [%.6g, %.6g], \"token_seconds\": [%.6g, %.6g], "
                            "\"price_hour\": %.6g, \"price_cloud\": %.6g, \"price_own\": %.6g, \"free_bytes\": %zu, \"reason\": \"%s\"}",
                       i ? "," : "", o->gpu.name, o->n_gpus, o->tensor_parallel, o->tokens_per_second.low, o->tokens_per_second.high, o->token.low, o->token.high,
                       o->price_hour, o->price_cloud, o->price_own, o->free_bytes, o->reason);
        }
        buf_puts(out, "\n]}\n");
        return;
    }
    if (n == 0) {
        buf_puts(out, "None of the catalogue's cards, alone or several together, is enough.\n");
        return;
    }
    bool priced = false;
    for (size_t i = 0; i < n; i++) {
        priced = priced || found[i].price_hour > 0 || found[i].price_own > 0;
    }
    buf_printf(out, "%-26s %10s %18s %16s%s\n", "set-up", "price/hour", "tokens/s", "ms a token", w->months > 0 ? "  rented / owned" : "");
    for (size_t i = 0; i < n; i++) {
        const struct plan_option *o = &found[i];
        char name[48], rate[40], token[40];
        snprintf(name, sizeof name, "%sx%zu", o->gpu.name, o->n_gpus);
        snprintf(rate, sizeof rate, "%.0f to %.0f", o->tokens_per_second.low, o->tokens_per_second.high);
        snprintf(token, sizeof token, "%.1f to %.1f", o->token.low * 1e3, o->token.high * 1e3);
        buf_printf(out, "%-26s ", name);
        if (o->price_hour > 0) {
            buf_printf(out, "%10.2f", o->price_hour);
        } else {
            buf_printf(out, "%10s", "?");
        }
        buf_printf(out, " %18s %16s", rate, token);
        if (w->months > 0) {
            project_price(out, "  ", o->price_cloud);
            project_price(out, " / ", o->price_own);
        }
        buf_printf(out, "\n    %s\n", o->reason);
    }
    buf_puts(out, priced ? "The cheapest first; " : "There are no prices (--prices FILE): the least memory first; ");
    buf_puts(out, "speeds are estimates from data sheets, not measured.\n");
}

void plan_print_training(const struct plan_question *q, const struct plan_train_question *t, const struct plan_train_answer *a, bool json,
                         struct buf *out) {
    static const char *const kinds[] = {"full", "lora", "qlora"};
    size_t usable = (size_t)((double)q->gpu.memory * q->memory_utilization);
    if (json) {
        buf_printf(out, "{\"training\": \"%s\", \"advice_only\": true, \"parameters\": %zu, \"trained_parameters\": %zu, \"weights_bytes\": %zu, "
                        "\"gradients_bytes\": %zu, \"optimizer_bytes\": %zu, \"activations_bytes\": %zu, \"logits_bytes\": %zu, \"total_bytes\": %zu, "
                        "\"usable_bytes\": %zu, \"fits\": %s}\n",
                   kinds[t->kind], a->parameters, a->trained, a->weights, a->gradients, a->optimizer, a->activations, a->logits, a->total, usable,
                   a->total <= usable ? "true" : "false");
        return;
    }
    buf_puts(out, "Advice alone: inferd does not train.\n");
    buf_printf(out, "%s of %zu parameters, %zu of them trained; mixed precision with Adam, ZeRO %d over %zu card%s%s\n\n", kinds[t->kind], a->parameters,
               a->trained, (int)t->zero, t->n_gpus ? t->n_gpus : 1, t->n_gpus > 1 ? "s" : "", t->checkpointing ? ", checkpointing" : "");
    const struct {
        const char *what;
        size_t bytes;
    } lines[] = {{"weights", a->weights}, {"gradients", a->gradients}, {"optimizer", a->optimizer}, {"activations", a->activations},
                 {"logits", a->logits}, {"a card, together", a->total}, {"usable", usable}};
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        buf_printf(out, "  %-18s %10.2f GB  %10.2f GiB\n", lines[i].what, (double)lines[i].bytes / 1e9, gib(lines[i].bytes));
    }
    buf_puts(out, a->total <= usable ? "It fits.\n" : "It does NOT fit.\n");
}
