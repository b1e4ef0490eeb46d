/* Windows of a text, and what is told of its tokens. Logits are floats; sums over the vocabulary are doubles. */
#include <inferd/eval.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- windows ---- */

static size_t window_tokens(const struct eval_windows *w) {
    return w->context - (w->bos ? 1 : 0);
}

size_t eval_n_windows(const struct eval_windows *w) {
    size_t most = window_tokens(w);
    if (w->n_tokens == 0) {
        return 0;
    }
    return w->n_tokens <= most ? 1 : 1 + (w->n_tokens - most + w->stride - 1) / w->stride;
}

size_t eval_n_scored(const struct eval_windows *w) {
    return w->n_tokens - (w->n_tokens > 0 && !w->bos ? 1 : 0);
}

void eval_window_at(const struct eval_windows *w, size_t i, struct eval_window *out) {
    size_t most = window_tokens(w), begin = i * w->stride, before = begin + most - w->stride;
    out->begin = begin;
    out->end = w->n_tokens - begin < most ? w->n_tokens : begin + most;
    out->first_scored = i > 0 ? before : w->bos ? 0 : 1;
}

/* ---- one token ---- */

/* log of the sum of exp(z); false if a logit is NaN or infinite. *best: the lowest of the largest ones. */
static bool log_sum(const float *z, size_t n, double *out, int32_t *best) {
    size_t at = 0;
    bool finite = true;
    for (size_t i = 0; i < n; i++) {
        finite = finite && isfinite(z[i]);
        at = z[i] > z[at] ? i : at;
    }
    if (!finite || n == 0) {
        return false;
    }
    double sum = 0;
    for (size_t i = 0; i < n; i++) {
        sum += (double)expf(z[i] - z[at]);
    }
    *best = (int32_t)at;
    *out = (double)z[at] + log(sum);
    return true;
}

bool eval_score(const float *logits, size_t n, int32_t target, struct eval_score *out) {
    double all;
    int32_t best;
    if (!log_sum(logits, n, &all, &best)) {
        return false;
    }
    *out = (struct eval_score){(double)logits[target] - all, best};
    return true;
}

bool eval_pair(const float *logits, const float *reference, size_t n, int32_t target, struct eval_pair *out) {
    double all, all_reference, sum = 0;
    struct eval_pair made;
    if (!log_sum(logits, n, &all, &made.model.best) || !log_sum(reference, n, &all_reference, &made.reference.best)) {
        return false;
    }
    float most = reference[made.reference.best];
    double mass = 0; /* of the same rounded exponentials, so that equal logits have a divergence of 0 */
    for (size_t i = 0; i < n; i++) {
        double e = (double)expf(reference[i] - most);
        mass += e;
        sum += e * ((double)reference[i] - (double)logits[i]);
    }
    double kl = sum / mass - all_reference + all;
    made.kl = kl > 0 ? kl : 0;
    made.model.logprob = (double)logits[target] - all;
    made.reference.logprob = (double)reference[target] - all_reference;
    *out = made;
    return true;
}

bool eval_pair_top(const float *logits, const struct eval_top *reference, size_t n, struct eval_pair *out) {
    double all;
    struct eval_pair made;
    if (!log_sum(logits, n, &all, &made.model.best)) {
        return false;
    }
    double kl = 0, p_left = 1, q_left = 1;
    for (size_t i = 0; i < reference->n; i++) {
        double log_p = (double)reference->logprobs[i], log_q = (double)logits[reference->ids[i]] - all;
        kl += exp(log_p) * (log_p - log_q);
        p_left -= exp(log_p);
        q_left -= exp(log_q);
    }
    if (reference->n < n && p_left > 1e-9) { /* less is what rounding leaves of nothing */
        kl += p_left * log(p_left / (q_left > 1e-12 ? q_left : 1e-12));
    }
    made.kl = kl > 0 ? kl : 0;
    made.model.logprob = (double)logits[reference->target] - all;
    made.reference = (struct eval_score){(double)reference->target_logprob, reference->ids[0]};
    *out = made;
    return true;
}

/* Is a better than b? Of equal logits the lower id is. */
static bool is_better(const float *z, int32_t a, int32_t b) {
    return z[a] > z[b] || (z[a] == z[b] && a < b);
}

/* ids[0..n) is a heap with the worst at its root, but for the root: let that sink. */
static void sink(const float *z, int32_t *ids, size_t n, size_t at) {
    for (;;) {
        size_t worst = at, child = 2 * at + 1;
        for (size_t i = child; i < child + 2 && i < n; i++) {
            worst = is_better(z, ids[worst], ids[i]) ? i : worst;
        }
        if (worst == at) {
            return;
        }
        int32_t moved = ids[at];
        ids[at] = ids[worst];
        ids[worst] = moved;
        at = worst;
    }
}

bool eval_take_top(const float *logits, size_t n, int32_t target, struct eval_top *top) {
    double all;
    int32_t best;
    if (!log_sum(logits, n, &all, &best)) {
        return false;
    }
    size_t k = top->n;
    for (size_t i = 0; i < k; i++) {
        top->ids[i] = (int32_t)i;
    }
    for (size_t i = k / 2; i-- > 0;) {
        sink(logits, top->ids, k, i);
    }
    for (size_t i = k; i < n; i++) {
        if (is_better(logits, (int32_t)i, top->ids[0])) {
            top->ids[0] = (int32_t)i;
            sink(logits, top->ids, k, 0);
        }
    }
    for (size_t left = k; left-- > 1;) { /* the worst goes to the end, and so on: best first */
        int32_t moved = top->ids[0];
        top->ids[0] = top->ids[left];
        top->ids[left] = moved;
        sink(logits, top->ids, left, 0);
    }
    for (size_t i = 0; i < k; i++) {
        top->logprobs[i] = (float)((double)logits[top->ids[i]] - all);
    }
    top->target = target;
    top->target_logprob = (float)((double)logits[target] - all);
    return true;
}

/* ---- all tokens ---- */

void eval_stats_free(struct eval_stats *s) {
    if (s) {
        free(s->kl);
        *s = (struct eval_stats){0};
    }
}

int eval_stats_add(struct eval_stats *s, const struct eval_score *score, struct error *err) {
    (void)err;
    s->n++;
    s->sum -= score->logprob;
    s->sum_squares += score->logprob * score->logprob;
    return 0;
}

int eval_stats_add_pair(struct eval_stats *s, const struct eval_pair *pair, struct error *err) {
    if (s->n_pairs == s->cap) {
        size_t cap = s->cap ? 2 * s->cap : 1024;
        float *kl = realloc(s->kl, cap * sizeof *kl);
        if (!kl) {
            return error_memory(err);
        }
        s->kl = kl;
        s->cap = cap;
    }
    s->kl[s->n_pairs++] = (float)pair->kl;
    double rise = pair->reference.logprob - pair->model.logprob;
    s->reference_sum -= pair->reference.logprob;
    s->rise_sum += rise;
    s->rise_sum_squares += rise * rise;
    s->agree += pair->model.best == pair->reference.best;
    s->kl_sum += pair->kl;
    s->kl_sum_squares += pair->kl * pair->kl;
    return eval_stats_add(s, &pair->model, err);
}

/* Of the mean of n values. */
static double standard_error(double sum, double sum_squares, size_t n) {
    double mean = sum / (double)n, variance = sum_squares / (double)n - mean * mean;
    return n > 1 && variance > 0 ? sqrt(variance / (double)(n - 1)) : 0;
}

double eval_quantile(const float *sorted, size_t n, double q) {
    if (n == 0) {
        return 0;
    }
    double at = q * (double)(n - 1);
    size_t below = (size_t)at, above = below + 1 < n ? below + 1 : below;
    return (double)sorted[below] + (at - (double)below) * ((double)sorted[above] - (double)sorted[below]);
}

static int compare_floats(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

void eval_summarise(struct eval_stats *s, bool percentiles, struct eval_summary *out) {
    struct eval_summary made = {.n = s->n, .n_pairs = s->n_pairs};
    if (s->n > 0) {
        made.nll = s->sum / (double)s->n;
        made.nll_error = standard_error(s->sum, s->sum_squares, s->n);
        made.perplexity = exp(made.nll);
        made.perplexity_error = made.perplexity * made.nll_error;
    }
    if (s->n_pairs > 0) {
        double n = (double)s->n_pairs;
        made.reference_perplexity = exp(s->reference_sum / n);
        made.ratio = exp(s->rise_sum / n);
        made.ratio_error = made.ratio * standard_error(s->rise_sum, s->rise_sum_squares, s->n_pairs);
        made.top1 = (double)s->agree / n;
        made.kl_mean = s->kl_sum / n;
        made.kl_error = standard_error(s->kl_sum, s->kl_sum_squares, s->n_pairs);
    }
    if (percentiles && s->n_pairs > 0) {
        qsort(s->kl, s->n_pairs, sizeof *s->kl, compare_floats);
        made.kl_median = eval_quantile(s->kl, s->n_pairs, 0.5);
        made.kl_p99 = eval_quantile(s->kl, s->n_pairs, 0.99);
        made.kl_max = (double)s->kl[s->n_pairs - 1];
    }
    *out = made;
}
