/* A model that only computes: the runner with one sequence, whose KV block i is block i. */
#include <inferd/eval.h>

#include "base/sha256.h"
#include "runner.h"

#include <stdlib.h>
#include <string.h>

#define MOST_ROWS 256 /* of a step: enough for the kernels, and two models' workspaces stay small */

struct eval_model {
    struct runner runner;
    size_t first; /* position of the first row of the last step that has logits */
};

int eval_open(const struct engine_config *config, size_t context, struct eval_model **out, struct error *err) {
    struct eval_model *m = calloc(1, sizeof *m);
    if (!m) {
        return error_memory(err);
    }
    struct engine_config c = *config;
    c.max_sequences = 1;
    c.max_batched_tokens = context < MOST_ROWS ? context : MOST_ROWS;
    c.max_model_len = c.kv_tokens = context;
    if (runner_open(&m->runner, &c, 0, err) < 0) {
        free(m);
        return -1;
    }
    if (m->runner.ops->sample) {
        error_set(err, ERROR_UNSUPPORTED, "the device %s tells no logits, so nothing can be evaluated on it",
                  m->runner.backend_info.name);
        eval_close(m);
        return -1;
    }
    *out = m;
    return 0;
}

void eval_close(struct eval_model *m) {
    if (m) {
        runner_close(&m->runner);
        free(m);
    }
}

void eval_get_info(const struct eval_model *m, struct eval_info *out) {
    const struct runner *r = &m->runner;
    *out = (struct eval_info){
        .vocab_size = r->decoder->config.vocab_size,
        .max_rows = r->max_rows,
        .weight_bytes = r->weight_bytes,
        .kv_token_bytes = r->kv_token_bytes,
        .architecture = r->decoder->config.arch->name,
        .backend = r->backend_info.name,
        .variant = r->backend_info.variant,
        .threads = r->n_threads,
    };
}

int eval_step(struct eval_model *m, const int32_t *tokens, size_t begin, size_t end, size_t first, struct error *err) {
    struct runner *r = &m->runner;
    if (begin >= end || end - begin > r->max_rows || first < begin || end > r->kv.max_model_len) {
        return error_set(err, ERROR_INTERNAL, "evaluation of rows %zu to %zu is out of range", begin, end);
    }
    for (size_t i = begin; i < end; i++) {
        if (tokens[i] < 0 || (size_t)tokens[i] >= r->decoder->config.vocab_size) {
            return error_set(err, ERROR_MODEL, "the tokenizer makes the id %d, but the model knows %zu", (int)tokens[i],
                             r->decoder->config.vocab_size);
        }
    }
    runner_fill_plain(r, tokens, begin, end);
    r->batch.n_logits = 0;
    for (size_t i = first; i < end; i++) {
        r->batch.logit_rows[r->batch.n_logits++] = (int32_t)(i - begin);
    }
    m->first = first;
    return runner_run(r, err);
}

int eval_logits(struct eval_model *m, size_t position, const float **out, struct error *err) {
    if (position < m->first || position - m->first >= m->runner.batch.n_logits) {
        return error_set(err, ERROR_INTERNAL, "no logits were asked for at position %zu", position);
    }
    return runner_get_logits(&m->runner, position - m->first, out, err);
}

static int refused(struct error *err) {
    return error_set(err, ERROR_INTERNAL, "SHA-256 cannot be computed on this machine");
}

int eval_hash_model(const struct eval_model *m, unsigned char out[EVAL_HASH_BYTES], struct error *err) {
    const struct model_file *f = m->runner.file;
    struct sha256_state *s = sha256_begin();
    bool ok = s != NULL;
    for (size_t i = 0; i < model_file_n_tensors(f) && ok; i++) {
        const struct tensor *t = model_file_tensor(f, i);
        ok = sha256_add(s, t->name, strlen(t->name) + 1) && sha256_add(s, t->type, strlen(t->type) + 1) &&
             sha256_add(s, t->shape, t->n_dims * sizeof t->shape[0]) && sha256_add(s, t->data, t->size);
    }
    if (s) {
        sha256_end(s, out);
    }
    return ok ? 0 : refused(err);
}

int eval_hash_tokens(const int32_t *tokens, size_t n, unsigned char out[EVAL_HASH_BYTES], struct error *err) {
    return sha256(tokens, n * sizeof *tokens, out) ? 0 : refused(err);
}
