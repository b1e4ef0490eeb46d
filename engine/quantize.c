/* `quantize_model`: a layer at a time, read, run the calibration text through it, smooth, round, write. */
#include <inferd/quantize.h>

#include "base/parallel.h"
#include "quant/gptq.h"
#include "quant/half.h"
#include "quant/int8.h"
#include "quant/smooth.h"
#include "quant/writer.h"
#include "quantize_calibrate.h"
#include "quantize_config.h"
#include "quantize_folder.h"
#include "text_export.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK_BYTES ((size_t)1 << 22) /* rows of an unquantised matrix are converted, and files read back, in such pieces */

struct job {
    const struct quantize_config *c;
    struct model_file *file;
    struct model_config source_config, target;
    struct model_source source;
    enum dtype stored; /* of what is not quantised, and of the scales */
    struct text *text;
    struct calibration calibration; /* ops NULL: without */
    struct writer writer;
    struct partial_folder folder;
    double error, weight; /* sums of squares over the layers made now */
    struct quantize_progress progress;
};

void quantize_config_default(struct quantize_config *c) {
    *c = (struct quantize_config){
        .samples = 64,
        .sample_tokens = 512,
        .alpha = 0.65,
        .gptq_damping = 0.01,
        .shard_bytes = (uint64_t)5 << 30,
    };
}

static bool stop(void *arg) {
    const struct job *j = arg;
    return j->c->progress && j->c->progress(j->c->progress_arg, &j->progress);
}

/* Where the work is; ERROR_UNAVAILABLE when it is to end. */
static int tell(struct job *j, const char *stage, size_t done, size_t total, struct error *err) {
    j->progress = (struct quantize_progress){stage, done, total};
    return stop(j) ? error_set(err, ERROR_UNAVAILABLE, "stopped") : 0;
}

/* ---- layout: the tensors of the checkpoint, unit by unit: embeddings, each layer, what follows them ---- */

static size_t n_units(const struct job *j) {
    return j->target.n_layers + 2;
}

/* The tensors [begin, end) of a unit in the writer; they lie in order. */
struct unit {
    size_t begin, end;
};

/* A matrix as INT8 is followed by its scales: p.weight by p.weight_scale. */
static int add_tensor(struct job *j, int layer, const struct role *r, bool int8, struct error *err) {
    const struct model_config *c = &j->target;
    char name[TENSOR_NAME_MAX];
    size_t rows = role_size(r->n, c), cols = role_size(r->k, c);
    if (!role_is_present(r, c)) {
        return 0;
    }
    role_name(r, c, false, layer, name);
    if (writer_add(&j->writer, name, int8 ? DTYPE_I8 : j->stored, role_is_matrix(r) ? 2 : 1, rows, cols, err) < 0) {
        return -1;
    }
    if (!int8) {
        return 0;
    }
    role_module(r, c, layer, name);
    memcpy(name + strlen(name), ".weight_scale", sizeof ".weight_scale"); /* names are far shorter than their limit */
    return writer_add(&j->writer, name, j->stored, 2, rows, 1, err);
}

static int lay_out_layer(struct job *j, int layer, struct error *err) {
    for (int p = 0; p < LAYER_PARTS; p++) {
        if (add_tensor(j, layer, layer_part_role((enum layer_part)p), layer_part_is_matrix((enum layer_part)p), err) < 0) {
            return -1;
        }
    }
    return 0;
}

static int lay_out(struct job *j, struct unit *units, struct error *err) {
    for (size_t u = 0; u < n_units(j); u++) {
        units[u].begin = j->writer.n;
        bool last = u + 1 == n_units(j);
        int rc = u > 0 && !last ? lay_out_layer(j, (int)u - 1, err)
                 : u == 0       ? add_tensor(j, -1, model_role(offsetof(struct weights, embed)), false, err)
                                : add_tensor(j, -1, model_role(offsetof(struct weights, output_norm)), false, err);
        if (rc == 0 && last) {
            rc = add_tensor(j, -1, model_role(offsetof(struct weights, output)), false, err);
        }
        if (rc < 0) {
            return -1;
        }
        units[u].end = j->writer.n;
    }
    return writer_lay_out(&j->writer, j->c->shard_bytes, err);
}

static int find_in_writer(const struct job *j, int layer, const struct role *r, size_t *i, struct error *err) {
    char name[TENSOR_NAME_MAX];
    role_name(r, &j->target, false, layer, name);
    for (*i = 0; *i < j->writer.n; ++*i) {
        if (strcmp(j->writer.tensors[*i].name, name) == 0) {
            return 0;
        }
    }
    return error_set(err, ERROR_INTERNAL, "a tensor was not laid out");
}

/* ---- digests ---- */

static int hash_error(struct error *err) {
    return error_set(err, ERROR_IO, "SHA-256 cannot be computed: the machine's policy forbids it");
}

/* Of what lies in the files for a unit. */
static int digest_unit(const struct job *j, struct unit u, uint8_t out[SHA256_BYTES], struct error *err) {
    struct sha256_state *s = sha256_begin();
    char *piece = malloc(CHUNK_BYTES);
    if (!s || !piece) {
        if (s) {
            sha256_end(s, out);
        }
        free(piece);
        return s ? error_memory(err) : hash_error(err);
    }
    int rc = 0;
    for (size_t i = u.begin; rc == 0 && i < u.end; i++) {
        size_t bytes = j->writer.tensors[i].bytes;
        for (size_t at = 0; rc == 0 && at < bytes; at += CHUNK_BYTES) {
            size_t n = bytes - at < CHUNK_BYTES ? bytes - at : CHUNK_BYTES;
            rc = writer_get(&j->writer, i, at, piece, n, err);
            rc = rc == 0 && !sha256_add(s, piece, n) ? hash_error(err) : rc;
        }
    }
    sha256_end(s, out);
    free(piece);
    return rc;
}

/* Everything that decides about the bytes to come: the model, the samples, the options, the machine variant. */
static int fingerprint(struct job *j, uint8_t out[SHA256_BYTES], struct error *err) {
    const struct quantize_config *c = j->c;
    const struct calibration *cal = &j->calibration;
    struct backend_info info = {.variant = ""};
    struct buf options = BUF_INIT;
    if (cal->ops) {
        cal->ops->info(cal->backend, &info);
    }
    buf_printf(&options, "alpha %.17g clip %d gptq %d damping %.17g shard %llu samples %zu longest %zu variant %s ", c->alpha,
               c->clip_mse, c->gptq, c->gptq ? c->gptq_damping : 0, (unsigned long long)c->shard_bytes, cal->n_samples,
               cal->longest, info.variant);
    int rc = quantize_config_json(&j->target, j->file, j->stored, j->text, &options, err);
    struct sha256_state *s = rc == 0 ? sha256_begin() : NULL;
    rc = rc == 0 && !s ? hash_error(err) : rc;
    if (rc == 0 && (!sha256_add(s, options.data, options.len) ||
                    !sha256_add(s, cal->tokens.ids, cal->tokens.n * sizeof *cal->tokens.ids))) {
        rc = hash_error(err);
    }
    size_t n = model_file_n_tensors(j->file);
    for (size_t i = 0; rc == 0 && i < n; i++) {
        const struct tensor *t = model_file_tensor(j->file, i);
        rc = tell(j, "reading", i, n, err);
        if (rc == 0 && (!sha256_add(s, t->name, strlen(t->name) + 1) || !sha256_add(s, t->type, strlen(t->type) + 1) ||
                        !sha256_add(s, t->shape, sizeof t->shape) || !sha256_add(s, t->data, t->size))) {
            rc = hash_error(err);
        }
        tensor_give_back(t);
    }
    if (s) {
        sha256_end(s, out);
    }
    buf_free(&options);
    return rc;
}

/* ---- writing floats ---- */

static void to_stored(const float *x, size_t n, enum dtype stored, void *out) {
    uint16_t *half = out;
    if (stored == DTYPE_F32) {
        memcpy(out, x, n * sizeof *x);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        half[i] = stored == DTYPE_F16 ? half_from_float(x[i]) : bf16_from_float(x[i]);
    }
}

/* A value that F16 cannot hold would be read as infinity. */
static int put_floats(struct job *j, size_t i, size_t first, const float *x, size_t n, struct error *err) {
    size_t e = dtype_info(j->stored)->bytes;
    void *bytes = malloc(n * e);
    if (!bytes) {
        return error_memory(err);
    }
    int rc = 0;
    for (size_t k = 0; rc == 0 && j->stored == DTYPE_F16 && k < n; k++) {
        rc = fabsf(x[k]) < 65520.0f ? 0
                                    : error_set(err, ERROR_MODEL, "%s: an element is too large for F16",
                                                j->writer.tensors[i].name);
    }
    to_stored(x, n, j->stored, bytes);
    rc = rc == 0 ? writer_put(&j->writer, i, first * e, bytes, n * e, err) : rc;
    free(bytes);
    return rc;
}

/* A matrix that stays unquantised, a few rows at a time. */
static int copy_matrix(struct job *j, const struct role *r, struct error *err) {
    struct matrix m;
    size_t i;
    if (model_source_matrix(&j->source, r, -1, &m, err) < 0 || matrix_check(&m, err) < 0 || find_in_writer(j, -1, r, &i, err) < 0) {
        return -1;
    }
    size_t step = CHUNK_BYTES / (m.k * sizeof(float));
    step = step > 0 ? step : 1;
    float *rows = malloc(step * m.k * sizeof *rows);
    int rc = rows ? 0 : error_memory(err);
    for (size_t at = 0; rc == 0 && at < m.n; at += step) {
        size_t end = m.n - at < step ? m.n : at + step;
        rc = matrix_read_finite(&m, at, end, j->c->threads, rows, err);
        rc = rc == 0 ? put_floats(j, i, at * m.k, rows, (end - at) * m.k, err) : rc;
    }
    matrix_give_back(&m);
    free(rows);
    return rc;
}

/* A norm as a file has it, which acts as x[n]: Gemma's is less 1 there. */
static void less_one(const struct job *j, const struct role *r, float *x, size_t n) {
    for (size_t i = 0; r->norm && j->target.arch->norm_plus_one && i < n; i++) {
        x[i] -= 1.0f;
    }
}

/* The last norm is nobody's to fold into: it stays as it is. */
static int copy_output_norm(struct job *j, struct error *err) {
    const struct role *r = model_role(offsetof(struct weights, output_norm));
    const struct tensor *t;
    size_t i;
    if (model_source_vector(&j->source, r, -1, &t, err) < 0 || find_in_writer(j, -1, r, &i, err) < 0) {
        return -1;
    }
    float *x = malloc(t->shape[0] * sizeof *x);
    int rc = x ? model_source_read_vector(&j->source, r, t, x, err) : error_memory(err);
    if (rc == 0) {
        less_one(j, r, x, t->shape[0]);
        rc = put_floats(j, i, 0, x, t->shape[0], err);
    }
    free(x);
    return rc;
}

/* ---- smoothing ---- */

/* Largest absolute values of the columns of several matrices together. */
static void columns_of(const struct layer_floats *l, const enum layer_part *which, size_t n, float *max) {
    memset(max, 0, l->parts[which[0]].cols * sizeof *max);
    for (size_t i = 0; i < n; i++) {
        smooth_column_max(l->parts[which[i]].data, l->parts[which[i]].cols, l->parts[which[i]].rows,
                          l->parts[which[i]].cols, max);
    }
}

/* H of x becomes H of x / s. */
static void smooth_hessian(double *h, size_t k, const float *s) {
    for (size_t a = 0; h && a < k; a++) {
        for (size_t b = 0; b < k; b++) {
            h[a * k + b] /= (double)s[a] * (double)s[b];
        }
    }
}

/* A norm takes the division, the matrices that read it the multiplication. */
static void smooth_behind_norm(struct job *j, struct layer_floats *l, enum decoder_input input, enum layer_part norm,
                               const enum layer_part *which, size_t n, float *s, float *w_max) {
    size_t k = l->parts[norm].rows;
    float offset = j->target.arch->norm_plus_one ? 1.0f : 0.0f;
    columns_of(l, which, n, w_max);
    smooth_factors(j->calibration.max[input], w_max, k, j->c->alpha, s);
    smooth_norm(l->parts[norm].data, k, offset, j->stored, s);
    for (size_t i = 0; i < n; i++) {
        smooth_columns(l->parts[which[i]].data, l->parts[which[i]].rows, k, s);
    }
    smooth_hessian(j->calibration.hessian[input], k, s);
}

/* The rows of v take the division for o. Query heads that share a row of v share its factor. */
static void smooth_attention_output(struct job *j, struct layer_floats *l, float *s, float *w_max) {
    const struct model_config *c = &j->target;
    const enum layer_part o = PART_O;
    size_t D = c->head_dim, kv = model_config_kv_dim(c), q = model_config_q_dim(c);
    float *x_max = j->calibration.max[DECODER_INPUT_O];
    columns_of(l, &o, 1, w_max);
    smooth_share_heads(w_max, c->n_heads, c->n_kv_heads, D, w_max); /* writes behind what it reads */
    smooth_share_heads(x_max, c->n_heads, c->n_kv_heads, D, x_max);
    smooth_factors(x_max, w_max, kv, j->c->alpha, w_max);
    smooth_rows(l->parts[PART_V].data, kv, c->n_embd, w_max);
    if (l->parts[PART_V_BIAS].data) {
        smooth_rows(l->parts[PART_V_BIAS].data, kv, 1, w_max);
    }
    for (size_t i = 0; i < q; i++) {
        s[i] = w_max[i / D / (c->n_heads / c->n_kv_heads) * D + i % D];
    }
    smooth_columns(l->parts[PART_O].data, c->n_embd, q, s);
    smooth_hessian(j->calibration.hessian[DECODER_INPUT_O], q, s);
}

/* The rows of up take the division for down: down reads act(gate) * up. */
static void smooth_down(struct job *j, struct layer_floats *l, float *s, float *w_max) {
    const enum layer_part down = PART_DOWN;
    size_t F = j->target.n_ff, E = j->target.n_embd;
    columns_of(l, &down, 1, w_max);
    smooth_factors(j->calibration.max[DECODER_INPUT_DOWN], w_max, F, j->c->alpha, s);
    smooth_rows(l->parts[PART_UP].data, F, E, s);
    smooth_columns(l->parts[PART_DOWN].data, E, F, s);
    smooth_hessian(j->calibration.hessian[DECODER_INPUT_DOWN], F, s);
}

static int smooth_layer(struct job *j, struct layer_floats *l, struct error *err) {
    static const enum layer_part qkv[] = {PART_Q, PART_K, PART_V}, gate_up[] = {PART_GATE, PART_UP};
    size_t most = model_config_q_dim(&j->target);
    most = j->target.n_embd > most ? j->target.n_embd : most;
    most = j->target.n_ff > most ? j->target.n_ff : most;
    float *s = calloc(2 * most, sizeof *s);
    if (!s) {
        return error_memory(err);
    }
    smooth_behind_norm(j, l, DECODER_INPUT_QKV, PART_ATTN_NORM, qkv, 3, s, s + most);
    smooth_attention_output(j, l, s, s + most);
    smooth_behind_norm(j, l, DECODER_INPUT_GATE_UP, PART_FFN_NORM, gate_up, 2, s, s + most);
    smooth_down(j, l, s, s + most);
    free(s);
    return 0;
}

/* ---- rounding ---- */

struct rows {
    const float *w; /* [n][k] */
    size_t n, k;
    bool mse;
    enum dtype stored;
    float *scales; /* [n] */
    int8_t *q;     /* [n][k] */
    double *error; /* [n] squared, [n] squared weights */
};

/* As it is stored, so that the rounding is made with what a reader sees. */
static void scale_row(void *arg, size_t r) {
    const struct rows *m = arg;
    const float *row = m->w + r * m->k;
    float scale = smooth_round(m->mse ? int8_scale_mse(row, m->k) : int8_scale_absmax(row, m->k), m->stored);
    m->scales[r] = scale > 0 ? scale : m->stored == DTYPE_F16 ? 0x1p-24f : 0x1p-126f;
}

static void round_row(void *arg, size_t r) {
    const struct rows *m = arg;
    int8_quantize(m->w + r * m->k, m->k, m->scales[r], m->q + r * m->k);
}

static void measure_row(void *arg, size_t r) {
    const struct rows *m = arg;
    double error = 0, weight = 0;
    for (size_t i = 0; i < m->k; i++) {
        double w = (double)m->w[r * m->k + i], d = w - (double)m->scales[r] * (double)m->q[r * m->k + i];
        error += d * d;
        weight += w * w;
    }
    m->error[2 * r] = error;
    m->error[2 * r + 1] = weight;
}

static int round_and_put(struct job *j, int layer, enum layer_part p, struct rows *m, const float *u, struct error *err) {
    size_t threads = j->c->threads, i;
    parallel_for(threads, m->n, scale_row, m);
    if (u) {
        if (gptq_quantize(m->w, m->n, m->k, u, m->scales, threads, m->q, err) < 0) {
            return -1;
        }
    } else {
        parallel_for(threads, m->n, round_row, m);
    }
    parallel_for(threads, m->n, measure_row, m);
    for (size_t r = 0; r < m->n; r++) {
        j->error += m->error[2 * r];
        j->weight += m->error[2 * r + 1];
    }
    if (find_in_writer(j, layer, layer_part_role(p), &i, err) < 0 ||
        writer_put(&j->writer, i, 0, m->q, m->n * m->k, err) < 0) {
        return -1;
    }
    return put_floats(j, i + 1, 0, m->scales, m->n, err); /* its scales come behind it */
}

static int quantize_matrix(struct job *j, int layer, const struct layer_floats *l, enum layer_part p, const float *u,
                           struct error *err) {
    struct rows m = {.w = l->parts[p].data,
                     .n = l->parts[p].rows,
                     .k = l->parts[p].cols,
                     .mse = j->c->clip_mse,
                     .stored = j->stored};
    m.scales = malloc(m.n * sizeof *m.scales);
    m.q = malloc(m.n * m.k);
    m.error = malloc(2 * m.n * sizeof *m.error);
    int rc = m.scales && m.q && m.error ? round_and_put(j, layer, p, &m, u, err) : error_memory(err);
    free(m.scales);
    free(m.q);
    free(m.error);
    return rc;
}

/* The matrices that read one input share what GPTQ needs to know of it. */
static int quantize_group(struct job *j, int layer, const struct layer_floats *l, enum decoder_input input,
                          const enum layer_part *which, size_t n, struct error *err) {
    float *u = NULL;
    int rc = 0;
    if (j->c->gptq) {
        size_t k = calibration_features(&j->calibration, input);
        u = malloc(k * k * sizeof *u);
        rc = u ? gptq_prepare(j->calibration.hessian[input], k, j->c->gptq_damping, j->c->threads, u, err)
               : error_memory(err);
    }
    for (size_t i = 0; rc == 0 && i < n; i++) {
        rc = quantize_matrix(j, layer, l, which[i], u, err);
    }
    free(u);
    return rc;
}

static int put_vectors(struct job *j, int layer, const struct layer_floats *l, struct error *err) {
    for (int p = 0; p < LAYER_PARTS; p++) {
        const struct role *r = layer_part_role((enum layer_part)p);
        size_t i;
        if (role_is_matrix(r) || !l->parts[p].data) {
            continue;
        }
        less_one(j, r, l->parts[p].data, l->parts[p].rows);
        if (find_in_writer(j, layer, r, &i, err) < 0 ||
            put_floats(j, i, 0, l->parts[p].data, l->parts[p].rows, err) < 0) {
            return -1;
        }
    }
    return 0;
}

static int write_layer(struct job *j, int layer, struct layer_floats *l, struct error *err) {
    static const enum layer_part qkv[] = {PART_Q, PART_K, PART_V}, o[] = {PART_O}, gate_up[] = {PART_GATE, PART_UP},
                                 down[] = {PART_DOWN};
    if ((j->c->alpha > 0 && smooth_layer(j, l, err) < 0) ||
        quantize_group(j, layer, l, DECODER_INPUT_QKV, qkv, 3, err) < 0 ||
        quantize_group(j, layer, l, DECODER_INPUT_O, o, 1, err) < 0 ||
        quantize_group(j, layer, l, DECODER_INPUT_GATE_UP, gate_up, 2, err) < 0 ||
        quantize_group(j, layer, l, DECODER_INPUT_DOWN, down, 1, err) < 0) {
        return -1;
    }
    return put_vectors(j, layer, l, err);
}

/* ---- the walk ---- */

static bool has_calibration(const struct job *j) {
    return j->calibration.ops != NULL;
}

/* A unit; finished ones only move the calibration's hidden states on, and only while a later layer needs them. */
static int do_unit(struct job *j, size_t u, bool finished, struct error *err) {
    size_t last = n_units(j) - 1;
    struct layer_floats l;
    if (u == 0) {
        if (has_calibration(j) && calibration_begin(&j->calibration, &j->source, err) < 0) {
            return -1;
        }
        return finished ? 0 : copy_matrix(j, model_role(offsetof(struct weights, embed)), err);
    }
    if (u == last) {
        return finished                                        ? 0
               : copy_output_norm(j, err) < 0                  ? -1
               : j->target.tied_head                           ? 0
                                                               : copy_matrix(j, model_role(offsetof(struct weights, output)), err);
    }
    if (finished && (!has_calibration(j) || j->folder.n >= last)) {
        return 0;
    }
    if (layer_floats_read(&j->source, u - 1, j->c->threads, &l, err) < 0) {
        return -1;
    }
    int rc = has_calibration(j) ? calibration_layer(&j->calibration, &l, u - 1, !finished, stop, j, err) : 0;
    rc = rc == 0 && !finished ? write_layer(j, (int)u - 1, &l, err) : rc;
    layer_floats_free(&l);
    return rc;
}

static int do_units(struct job *j, const struct unit *units, struct error *err) {
    size_t finished = j->folder.n, n = n_units(j);
    for (size_t u = 0; u < n; u++) {
        uint8_t digest[SHA256_BYTES];
        if (tell(j, "quantizing", u, n, err) < 0 || do_unit(j, u, u < finished, err) < 0) {
            return -1;
        }
        if (u >= finished && (writer_sync(&j->writer, err) < 0 || digest_unit(j, units[u], digest, err) < 0 ||
                              partial_folder_add(&j->folder, digest, err) < 0)) {
            return -1;
        }
    }
    return tell(j, "quantizing", n, n, err);
}

/* How many units of an earlier run are what it said they were. */
static int verify(struct job *j, const struct unit *units, struct error *err) {
    size_t good = 0, n = j->folder.n < n_units(j) ? j->folder.n : n_units(j);
    for (; good < n; good++) {
        uint8_t digest[SHA256_BYTES];
        if (tell(j, "verifying", good, n, err) < 0 || digest_unit(j, units[good], digest, err) < 0) {
            return -1;
        }
        if (memcmp(digest, j->folder.digests[good], sizeof digest) != 0) {
            break;
        }
    }
    return partial_folder_keep(&j->folder, good, err);
}

static int open_output(struct job *j, const struct unit *units, struct error *err) {
    uint8_t print[SHA256_BYTES];
    struct error ignored;
    if (fingerprint(j, print, err) < 0 || partial_folder_open(&j->folder, j->c->out, print, err) < 0) {
        return -1;
    }
    if (j->folder.n > 0 && writer_reopen(&j->writer, j->folder.path, &ignored) == 0) {
        return verify(j, units, err);
    }
    /* nothing finished, or its files are not there any more */
    return partial_folder_keep(&j->folder, 0, err) < 0 ? -1 : writer_create(&j->writer, j->folder.path, err);
}

static int put_other_files(struct job *j, struct error *err) {
    struct buf config = BUF_INIT;
    int rc = quantize_config_json(&j->target, j->file, j->stored, j->text, &config, err);
    rc = rc == 0 ? writer_put_file(j->folder.path, "config.json", config.data, config.len, err) : rc;
    buf_free(&config);
    if (rc < 0 || writer_put_index(&j->writer, err) < 0) {
        return -1;
    }
    return j->source_config.from_gguf ? text_export(j->file, j->text, j->folder.path, err)
                               : copy_model_files(j->c->model, j->folder.path, err);
}

static int run(struct job *j, struct unit *units, struct error *err) {
    if (lay_out(j, units, err) < 0 || open_output(j, units, err) < 0) {
        return -1;
    }
    size_t resumed = j->folder.n;
    if (do_units(j, units, err) < 0 || put_other_files(j, err) < 0 || writer_sync(&j->writer, err) < 0) {
        return -1;
    }
    if (partial_folder_commit(&j->folder, j->c->force, err) < 0) {
        return -1;
    }
    j->folder.n = resumed;
    return 0;
}

/* ---- opening ---- */

/* 16-bit models keep their type; what a block type was made from is not known, and BF16 has room for all. A model that is W8A8
 * already would only get worse. */
static int find_stored(struct job *j, struct error *err) {
    struct matrix q, embed;
    if (model_source_matrix(&j->source, layer_part_role(PART_Q), 0, &q, err) < 0 ||
        model_source_matrix(&j->source, model_role(offsetof(struct weights, embed)), -1, &embed, err) < 0) {
        return -1;
    }
    if (q.scheme.layout == QUANT_I8 && q.scheme.activation != ACTIVATION_FLOAT) {
        return error_set(err, ERROR_INVALID, "%s is an INT8 (W8A8) model already", j->c->model);
    }
    enum dtype t = q.scheme.layout == QUANT_PLAIN ? q.data->dtype : embed.data->dtype;
    j->stored = t == DTYPE_F32 || t == DTYPE_F16 ? t : DTYPE_BF16;
    return 0;
}

static int check_options(const struct quantize_config *c, struct error *err) {
    if (!(c->alpha >= 0 && c->alpha <= 1) || c->samples == 0 || c->sample_tokens < 2 || c->sample_tokens > 1 << 16 ||
        !(c->gptq_damping > 0 && c->gptq_damping <= 1) || c->shard_bytes < 1 << 16) {
        return error_set(err, ERROR_INVALID, "an option of the quantization is out of range");
    }
    if (!c->calibration && (c->alpha > 0 || c->gptq)) {
        return error_set(err, ERROR_INVALID,
                         c->gptq ? "GPTQ needs calibration text (--calibration FILE)"
                                 : "smoothing needs calibration text: --calibration FILE, or --alpha 0 to do without both");
    }
    return 0;
}

static int open_source(struct job *j, struct error *err) {
    const struct quantize_config *c = j->c;
    if (check_options(c, err) < 0 || model_file_open(c->model, &j->file, err) < 0 ||
        model_config_load(j->file, &j->source_config, err) < 0 ||
        weights_check_names(&j->source_config, j->file, err) < 0 ||
        model_source_open(&j->source, j->file, &j->source_config, err) < 0) {
        return -1;
    }
    if (quantize_target_config(&j->source_config, j->file, &j->target, err) < 0) {
        return error_prefix(err, "%s", c->model);
    }
    if (find_stored(j, err) < 0 || partial_folder_check(c->out, c->model, c->force, err) < 0) {
        return -1;
    }
    bool calibrate = c->calibration && (c->alpha > 0 || c->gptq);
    if ((calibrate || j->source_config.from_gguf) && text_open(c->model, &j->text, err) < 0) {
        return -1;
    }
    const struct calibration_options o = {.text_path = c->calibration,
                                          .samples = c->samples,
                                          .sample_tokens = c->sample_tokens,
                                          .hessians = c->gptq,
                                          .threads = c->threads,
                                          .cpu_variant = c->cpu_variant};
    return calibrate ? calibration_open(&j->calibration, &o, j->text, &j->target, err) : 0;
}

int quantize_model(const struct quantize_config *c, struct quantize_result *out, struct error *err) {
    struct job j = {.c = c, .folder = {.manifest = -1}};
    struct unit *units = NULL;
    int rc = open_source(&j, err);
    if (rc == 0) {
        units = calloc(n_units(&j), sizeof *units);
        rc = units ? run(&j, units, err) : error_memory(err);
    }
    if (rc == 0) {
        size_t resumed = j.folder.n;
        *out = (struct quantize_result){
            .layers = j.target.n_layers,
            .resumed_layers = resumed == 0 ? 0 : resumed - 1 < j.target.n_layers ? resumed - 1 : j.target.n_layers,
            .began_anew = j.folder.began_anew,
            .files = j.writer.n_shards,
            .bytes = j.writer.total,
            .calibration_tokens = j.calibration.tokens.n,
            .weight_error = j.weight > 0 ? sqrt(j.error / j.weight) : 0,
        };
    }
    free(units);
    calibration_close(&j.calibration);
    writer_close(&j.writer);
    partial_folder_close(&j.folder);
    text_free(j.text);
    model_source_close(&j.source);
    model_file_close(j.file);
    return rc;
}
