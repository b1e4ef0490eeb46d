#include "planning/ask.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HOURS_A_MONTH 730.0
#define MOST_CARDS 64

/* Of the project, rented or owned, if its length is known; else of an hour. 0: not known. */
static double cost(const struct plan_option *o) {
    bool own = o->price_own > 0 && (o->price_own < o->price_cloud || !(o->price_cloud > 0));
    return own ? o->price_own : o->price_cloud > 0 ? o->price_cloud : o->price_hour;
}

/* Cheapest first; what has no price goes behind, by memory bought, then by cards. */
static int compare(const void *x, const void *y) {
    const struct plan_option *a = x, *b = y;
    double pa = cost(a), pb = cost(b);
    if ((pa > 0) != (pb > 0)) {
        return pa > 0 ? -1 : 1;
    }
    if (pa != pb) {
        return pa < pb ? -1 : 1;
    }
    double ma = (double)a->gpu.memory * (double)a->n_gpus, mb = (double)b->gpu.memory * (double)b->n_gpus;
    if (ma != mb) {
        return ma < mb ? -1 : 1;
    }
    return a->n_gpus != b->n_gpus ? (a->n_gpus < b->n_gpus ? -1 : 1) : strcmp(a->gpu.name, b->gpu.name);
}

static void price(const struct plan_wish *w, struct plan_option *o) {
    double n = (double)o->n_gpus, hours = w->months * HOURS_A_MONTH;
    o->price_hour = o->gpu.price_hour * n;
    if (w->months > 0) {
        o->price_cloud = o->price_hour * hours;
        o->price_own = o->gpu.price_buy > 0 ? n * (o->gpu.price_buy + o->gpu.watts / 1000 * hours * w->price_kwh) : 0;
    }
}

static void give_reason(const struct plan_answer *a, struct plan_option *o) {
    char where[48] = "";
    if (o->price_cloud > 0 && o->price_own > 0) {
        snprintf(where, sizeof where, "; %s is cheaper over that time", o->price_own < o->price_cloud ? "owning" : "renting");
    }
    if (o->n_gpus == 1) {
        snprintf(o->reason, sizeof o->reason, "one card holds it, %.1f GiB stay free%s", (double)o->free_bytes / 1073741824.0, where);
    } else {
        snprintf(o->reason, sizeof o->reason, "%zu cards by tensor parallelism over %s: %.1f GiB of weights on each, %.1f GiB stay free%s",
                 o->n_gpus, o->gpu.link, (double)a->ranks[0].weights / 1073741824.0, (double)o->free_bytes / 1073741824.0, where);
    }
}

/* The fewest cards of this kind that fit and are fast enough. */
static int try_card(struct ask *k, const struct plan_wish *w, const struct plan_gpu *g, struct plan_answer *a,
                    struct plan_option *o, bool *found, struct error *err) {
    size_t limit = w->max_gpus ? w->max_gpus : 8;
    *found = false;
    for (size_t tp = 1; tp <= limit && tp <= MOST_CARDS && !*found; tp++) {
        if (!ask_valid_tp(&k->shape, tp) || (tp > 1 && strcmp(g->link, "none") == 0)) {
            continue;
        }
        struct plan_question q = w->question;
        q.gpu = *g;
        q.n_gpus = q.tensor_parallel = tp;
        q.pipeline_parallel = q.replicas = 1;
        if (ask_again(k, &q, a, err) < 0) {
            return -1;
        }
        bool long_enough = q.max_model_len == 0 || a->asked_context <= (a->context_length ? a->context_length : SIZE_MAX);
        bool fast = !(w->latency > 0) || (a->token.high > 0 && a->token.high <= w->latency);
        if (a->fits && fast && long_enough) {
            *found = true;
            *o = (struct plan_option){.gpu = *g, .n_gpus = tp, .tensor_parallel = tp, .replicas = 1, .fits = true,
                                      .tokens_per_second = a->tokens_per_second, .token = a->token,
                                      .free_bytes = a->ranks[a->fullest].margin};
            price(w, o);
            give_reason(a, o);
        }
    }
    return 0;
}

int plan_recommend(const struct plan_wish *w, struct plan_option *out, size_t *n, struct error *err) {
    const struct plan_gpu *all;
    size_t n_all, found = 0;
    struct ask k;
    if (plan_gpus(&all, &n_all, err) < 0 || ask_open(&k, &w->question, err) < 0) {
        return -1;
    }
    struct plan_answer *a = malloc(sizeof *a);
    int rc = a ? 0 : error_memory(err);
    for (size_t i = 0; i < n_all && rc == 0 && found < PLAN_MAX_OPTIONS; i++) {
        bool ok = false;
        if (all[i].why_not[0] == '\0') {
            rc = try_card(&k, w, &all[i], a, &out[found], &ok, err);
            found += ok;
        }
    }
    free(a);
    ask_close(&k);
    if (rc == 0) {
        qsort(out, found, sizeof *out, compare);
        *n = found;
    }
    return rc;
}
