/*
 * How well a model predicts a text, and how far two configurations of it are apart (`inferd eval`): a model that gives
 * logits without an engine around it, the windows of a text, statistics over its tokens, and recorded references.
 * Each object belongs to one thread at a time.
 */
#ifndef INFERD_EVAL_H
#define INFERD_EVAL_H

#include <inferd/engine.h>

/* ---- a model ---- */

struct eval_model;

struct eval_info {
    size_t vocab_size; /* logits of a row: the rows of the model's head, padding included */
    size_t max_rows;   /* rows of a step */
    size_t weight_bytes, kv_token_bytes;
    const char *architecture, *backend, *variant;
    size_t threads;
};

/* Of the config: model, device, cpu_variant, weights, kv_dtype, kv_block_size, threads, memory_utilization; `context` is
 * the longest window. The device must tell logits (ERROR_UNSUPPORTED). */
int eval_open(const struct engine_config *config, size_t context, struct eval_model **out, struct error *err);
void eval_close(struct eval_model *m); /* NULL is fine */
void eval_get_info(const struct eval_model *m, struct eval_info *out);

/*
 * Compute rows [begin, end) of a window, tokens[0..end) with ids in [0, vocab_size), end - begin <= max_rows: begin is 0 or
 * where the last step of the same window ended. Then, in order, the logits [vocab_size] behind the tokens at positions in
 * [first, end), first >= begin: they are valid until the next call.
 */
int eval_step(struct eval_model *m, const int32_t *tokens, size_t begin, size_t end, size_t first, struct error *err);
int eval_logits(struct eval_model *m, size_t position, const float **out, struct error *err);

/* SHA-256 over names, types, shapes and bytes of all tensors. */
#define EVAL_HASH_BYTES 32
int eval_hash_model(const struct eval_model *m, unsigned char out[EVAL_HASH_BYTES], struct error *err);
int eval_hash_tokens(const int32_t *tokens, size_t n, unsigned char out[EVAL_HASH_BYTES], struct error *err);

/* ---- windows ---- */

/*
 * The usual sliding window: window i begins at token i * stride of the text and has `context` tokens, BOS (if bos) being the
 * first of them. Each token of the text is scored once, in the first window that holds it, by what stands before it there.
 * Without BOS the text's first token has nothing before it and is not scored.
 */
struct eval_windows {
    size_t n_tokens; /* of the text, BOS not among them */
    size_t context;  /* >= 2 */
    size_t stride;   /* 1 .. context - bos */
    bool bos;
};
struct eval_window {
    size_t begin, end;    /* of the text's tokens */
    size_t first_scored;  /* of the text's tokens: [first_scored, end) are scored */
};
size_t eval_n_windows(const struct eval_windows *w);
size_t eval_n_scored(const struct eval_windows *w);
void eval_window_at(const struct eval_windows *w, size_t i, struct eval_window *out); /* i < eval_n_windows */

/* ---- statistics ---- */

/* A distribution over the vocabulary as a reference keeps it: the most likely ids, best first, and what all others have. */
#define EVAL_MAX_TOP 4096
struct eval_top {
    int32_t target;
    float target_logprob;
    size_t n;
    int32_t *ids;    /* [n], in [0, vocab_size), all different */
    float *logprobs; /* [n], natural logarithm, falling */
};

struct eval_score {
    double logprob; /* of the target, natural logarithm */
    int32_t best;   /* the likeliest id, of equal ones the lowest */
};
struct eval_pair {
    struct eval_score model, reference;
    double kl; /* sum over ids of p log (p / q), p the reference's and q the model's; in nats, >= 0 */
};

/* False: a logit is not finite. */
bool eval_score(const float *logits, size_t n, int32_t target, struct eval_score *out);
bool eval_pair(const float *logits, const float *reference, size_t n, int32_t target, struct eval_pair *out);
/*
 * The same against what was recorded. All ids beyond the recorded ones count as one event: by the log sum inequality the
 * divergence is then at most the whole one, and nearly it when they are unlikely.
 */
bool eval_pair_top(const float *logits, const struct eval_top *reference, size_t n, struct eval_pair *out);
/* The `top->n` best of logits into ids and logprobs, which have room for them. */
bool eval_take_top(const float *logits, size_t n, int32_t target, struct eval_top *top);

struct eval_stats {
    size_t n; /* tokens */
    double sum, sum_squares;           /* of -logprob */
    size_t n_pairs;                    /* of these, with a reference */
    double reference_sum;
    double rise_sum, rise_sum_squares; /* of -logprob less the reference's */
    size_t agree;                      /* the likeliest id is the same */
    double kl_sum, kl_sum_squares;
    float *kl;                         /* [n_pairs], owned */
    size_t cap;
};
void eval_stats_free(struct eval_stats *s); /* NULL and a zeroed one are fine */
int eval_stats_add(struct eval_stats *s, const struct eval_score *score, struct error *err);
int eval_stats_add_pair(struct eval_stats *s, const struct eval_pair *pair, struct error *err);

/* All 0 while n is 0. Errors are standard errors of the mean over tokens, as if these were independent. */
struct eval_summary {
    size_t n, n_pairs;
    double nll, nll_error;                 /* mean of -logprob, nats */
    double perplexity, perplexity_error;   /* exp(nll) */
    double reference_perplexity;
    double ratio, ratio_error;             /* perplexity / the reference's, over the same tokens */
    double top1;                           /* share of tokens where the likeliest id is the same */
    double kl_mean, kl_error, kl_median, kl_p99, kl_max;
};
/* Sorts s->kl if `percentiles`; else kl_median, kl_p99 and kl_max are 0. */
void eval_summarise(struct eval_stats *s, bool percentiles, struct eval_summary *out);
/* The q-quantile of sorted values, linear between neighbours (method 7 of Hyndman & Fan 1996); 0 without any. */
double eval_quantile(const float *sorted, size_t n, double q);

/* ---- recorded references ---- */

#define EVAL_DESCRIPTION 128
struct eval_record_header {
    uint32_t top; /* ids kept of each distribution, 1 .. EVAL_MAX_TOP */
    uint32_t vocab_size, context, stride;
    bool bos;
    uint64_t n; /* tokens scored */
    unsigned char tokens_hash[EVAL_HASH_BYTES], model_hash[EVAL_HASH_BYTES];
    char description[EVAL_DESCRIPTION]; /* printable ASCII, with a NUL: version, weights, kv_dtype, variant */
};

struct eval_writer;
/* Writes to PATH.partial; eval_writer_finish gives it its name, once header.n records are in it. */
int eval_writer_open(const char *path, const struct eval_record_header *header, struct eval_writer **out, struct error *err);
int eval_writer_add(struct eval_writer *w, const struct eval_top *top, struct error *err);
int eval_writer_finish(struct eval_writer *w, struct error *err); /* w is gone, whatever it returns */
void eval_writer_abandon(struct eval_writer *w);                  /* removes what was written; NULL is fine */

struct eval_reader;
/* Everything is checked, here or when it is read: ERROR_MODEL "PATH: offset N: reason". */
int eval_reader_open(const char *path, struct eval_reader **out, struct error *err);
const struct eval_record_header *eval_reader_header(const struct eval_reader *r);
/* The next; borrowed until the call after. */
int eval_reader_next(struct eval_reader *r, const struct eval_top **out, struct error *err);
void eval_reader_close(struct eval_reader *r); /* NULL is fine */

#endif
