#include "planning/shape.h"

#include "base/checked.h"
#include "base/utf8.h"
#include "model/shard.h"
#include "planning/shape_internal.h"

#include <inferd/buf.h>
#include <inferd/json.h>

#include <cjson/cJSON.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MOST_CONFIG_BYTES ((size_t)4 << 20)

static size_t parts(size_t n, size_t of) {
    return n / of + (n % of != 0);
}

static size_t round_up(size_t n, size_t to) {
    return parts(n, to) * to;
}

size_t shape_ff_share(const struct shape *s, enum weights_format format, size_t tp) {
    size_t unit = s->ff_unit;
    for (size_t i = 0; unit == 0 && i < s->n_tensors; i++) { /* of a list without a file: by the type of what comes down */
        const struct shape_tensor *t = &s->tensors[i];
        unit = t->is_ff && t->cut == CUT_COLUMNS && t->dtype < DTYPE_UNSUPPORTED ? dtype_info(t->dtype)->block : 0;
    }
    unit = format == WEIGHTS_INT8_WEIGHT_ONLY && unit < 32 ? 32 : unit;
    return shard_cut_ff(s->n_ff, unit > 0 ? unit : 1, tp, 0).n;
}

bool shape_tensor_bytes(const struct shape *s, const struct shape_tensor *t, enum weights_format format, size_t tp,
                        size_t pad, size_t *out) {
    size_t n = t->n, k = t->k, row, bytes, share = t->cut == CUT_NONE ? 1 : tp;
    size_t ff = shape_ff_share(s, format, tp);
    enum dtype type = t->dtype;
    const struct dtype_info *info = type < DTYPE_UNSUPPORTED ? dtype_info(type) : NULL;
    switch (t->cut) {
    case CUT_NONE:
        break;
    case CUT_ROWS:
    case CUT_VOCAB:
        n = t->is_ff ? ff * (t->is_pair ? 2 : 1) : parts(n, tp);
        break;
    case CUT_KV_ROWS:
        share = tp < s->n_kv_heads ? tp : s->n_kv_heads;
        n = parts(n, share);
        break;
    case CUT_COLUMNS:
        k = t->is_ff ? ff : parts(k, tp);
        break;
    }
    bool made = !t->is_vector && (format != WEIGHTS_AUTO || t->converted);
    bool cut = t->cut == CUT_COLUMNS && tp > 1 && !t->is_vector; /* within blocks: becomes floats */
    if (cut && !t->converted && !made && info && k % info->block != 0) {
        type = DTYPE_F32;
    } else if (t->converted) {
        type = t->made[format];
        type = cut && dtype_info(type)->block > 1 && k % dtype_info(type)->block != 0 ? DTYPE_F32 : type;
    } else if (made && format == WEIGHTS_BF16) {
        type = DTYPE_BF16;
    } else if (made && format == WEIGHTS_INT8_WEIGHT_ONLY && t->k % 32 == 0) {
        type = k % 32 == 0 ? DTYPE_Q8_0 : DTYPE_F32;
    } else if (made) {
        type = DTYPE_I8;
    }
    if (type == DTYPE_UNSUPPORTED) { /* its own bytes, shared as its elements are */
        bytes = parts(t->bytes, share);
    } else if (type == DTYPE_I8 && !t->is_vector) {
        if (!checked_add(round_up(k, pad), made ? sizeof(float) : 0, &row) || !checked_mul(row, n, &bytes)) {
            return false;
        }
    } else if (!dtype_row_bytes(type, k, &row) || !checked_mul(row, n, &bytes)) {
        return false;
    }
    return checked_mul(bytes, t->count, out);
}

const struct shape_tensor *shape_tensors(const struct shape *s, enum weights_format format, size_t *n) {
    bool plain = format != WEIGHTS_AUTO && s->plain;
    *n = plain ? s->n_plain : s->n_tensors;
    return plain ? s->plain : s->tensors;
}

static void count_types(struct shape *s) {
    bool seen[DTYPE_UNSUPPORTED + 1] = {false};
    for (size_t i = 0; i < s->n_tensors; i++) {
        const struct shape_tensor *t = &s->tensors[i];
        if (!t->is_vector && !seen[t->dtype]) {
            seen[t->dtype] = true;
            s->n_types++;
        }
    }
}

/* What inferd itself says of it; no matter for the plan but that it is told. */
static void ask_engine(struct shape *s, const struct model_file *file, const cJSON *json) {
    struct error err;
    int rc = file ? model_config_load(file, &s->config, &err) : model_config_from_json(json, &s->config, &err);
    s->has_config = s->runs = rc == 0;
    if (rc < 0) {
        snprintf(s->why_not, sizeof s->why_not, "%.190s", err.message);
        return;
    }
    s->n_sliding = 0;
    for (size_t i = 0; i < s->config.n_layers; i++) {
        s->n_sliding += s->config.sliding[i];
    }
    s->window = s->n_sliding > 0 ? s->config.window : 0;
}

static void check_types(struct shape *s, const struct model_file *file) {
    for (size_t i = 0; s->runs && i < model_file_n_tensors(file); i++) {
        const struct tensor *t = model_file_tensor(file, i);
        if (t->dtype == DTYPE_UNSUPPORTED && !model_file_quantization(file)) {
            s->runs = false;
            snprintf(s->why_not, sizeof s->why_not, "tensors of type %s are not supported", t->type);
        }
    }
}

/* What inferd can load is counted as it loads it; of the rest the file's bytes, and what other formats would make. */
static int quantized(struct shape *s, const struct model_file *file, struct error *err) {
    struct error why;
    if (s->runs && shape_quantized_tensors(s, file, &s->tensors, &s->n_tensors, &why) == 0) {
        return 0;
    }
    if (s->runs) {
        s->runs = false;
        snprintf(s->why_not, sizeof s->why_not, "%.190s", why.message);
    }
    return shape_file_tensors(s, file, &s->tensors, &s->n_tensors, err) < 0
               ? -1
               : shape_derive_tensors(s, DTYPE_BF16, &s->plain, &s->n_plain, err);
}

static int from_file(const char *path, struct shape *s, struct error *err) {
    struct model_file *file;
    enum dtype dtype = DTYPE_BF16;
    if (model_file_open(path, &file, err) < 0) {
        return -1;
    }
    const cJSON *config = model_file_config(file);
    int rc = config ? shape_from_json(config, s, &dtype, err) : shape_from_gguf(file, s, err);
    if (rc == 0) {
        ask_engine(s, file, NULL);
        check_types(s, file);
        rc = model_file_quantization(file) ? quantized(s, file, err) : shape_file_tensors(s, file, &s->tensors, &s->n_tensors, err);
        struct error unknown;
        if (rc == 0 && s->runs && s->has_config && shard_ff_unit(file, &s->config, WEIGHTS_AUTO, &s->ff_unit, &unknown) < 0) {
            s->ff_unit = 0; /* what cannot be loaded is planned for all the same */
        }
    }
    if (rc < 0) {
        error_prefix(err, "%s", path);
    }
    model_file_close(file);
    return rc;
}

static int from_json(const cJSON *json, struct shape *s, struct error *err) {
    enum dtype dtype;
    if (shape_from_json(json, s, &dtype, err) < 0 || shape_derive_tensors(s, dtype, &s->tensors, &s->n_tensors, err) < 0) {
        return -1;
    }
    ask_engine(s, NULL, json);
    return 0;
}

static int read_file(const char *path, struct buf *out, struct error *err) {
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe would let us wait for ever */
    ssize_t got = fd < 0 || fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) ? -1 : 1;
    while (got > 0 && out->len <= MOST_CONFIG_BYTES && !out->failed) {
        char piece[4096];
        got = read(fd, piece, sizeof piece);
        if (got > 0) {
            buf_append(out, piece, (size_t)got);
        }
    }
    if (fd >= 0) {
        close(fd);
    }
    if (got < 0) {
        return error_set(err, ERROR_MODEL, "%s cannot be read", path);
    }
    if (out->failed || out->len > MOST_CONFIG_BYTES) {
        return error_set(err, ERROR_MODEL, "%s is larger than a config.json can be", path);
    }
    return 0;
}

static int from_config(const char *path, struct shape *s, struct error *err) {
    struct buf text = BUF_INIT;
    cJSON *json = NULL;
    const struct json_limits limits = {.max_values = 200000, .allow_duplicate = false};
    int rc = read_file(path, &text, err);
    if (rc == 0) {
        rc = json_parse(text.data, text.len, &limits, &json, err);
    }
    if (rc == 0 && !cJSON_IsObject(json)) {
        rc = error_set(err, ERROR_MODEL, "it is not a JSON object");
    }
    if (rc == 0) {
        rc = from_json(json, s, err);
    }
    if (rc < 0) {
        err->code = ERROR_MODEL;
        error_prefix(err, "%s", path);
    }
    cJSON_Delete(json);
    buf_free(&text);
    return rc;
}

static bool ends_with(const char *text, const char *end) {
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

/* A folder that has a config.json and no weights beside it. */
static bool is_bare_folder(const char *path, char *config, size_t size) {
    struct stat st;
    char other[4096];
    snprintf(config, size, "%s/config.json", path);
    if (stat(path, &st) != 0 || !S_ISDIR(st.st_mode) || stat(config, &st) != 0) {
        return false;
    }
    static const char *const weights[] = {"model.safetensors", "model.safetensors.index.json"};
    for (size_t i = 0; i < 2; i++) {
        snprintf(other, sizeof other, "%s/%s", path, weights[i]);
        if (stat(other, &st) == 0) {
            return false;
        }
    }
    return true;
}

/* What comes from files is printed, also as JSON and XML: no control characters, no broken or cut-off ones. */
static void tidy(char *s) {
    for (size_t left = strlen(s), n; left > 0; s += n, left -= n) {
        uint32_t c;
        bool valid;
        n = utf8_decode(s, left, &c, &valid);
        if (!valid || c < ' ' || (c >= 0x7f && c < 0xa0) || c == 0xfffe || c == 0xffff) {
            memset(s, '?', n);
        }
    }
}

int shape_open(const char *model, struct shape *out, struct error *err) {
    struct shape s = {.gated = true};
    struct stat st;
    const cJSON *entry = NULL;
    char config[4096];
    if (!model || !model[0]) {
        return error_set_param(err, ERROR_INVALID, "model", "no model is named");
    }
    int rc = catalogue_model(model, &entry, err);
    if (rc == 0 && entry) {
        rc = from_json(entry, &s, err);
    } else if (rc == 0 && stat(model, &st) != 0) {
        rc = error_set(err, ERROR_MODEL, "%.200s is neither a file nor the name of a known model (inferd plan --models)", model);
    } else if (rc == 0 && is_bare_folder(model, config, sizeof config)) {
        rc = from_config(config, &s, err);
    } else if (rc == 0) {
        rc = ends_with(model, ".json") ? from_config(model, &s, err) : from_file(model, &s, err);
    }
    if (rc < 0) {
        shape_close(&s);
        return -1;
    }
    count_types(&s);
    if (!s.has_config && s.window > 0 && s.n_sliding == 0 && s.window < s.context_length) {
        s.n_sliding = s.n_layers; /* which of them, only the architecture would know */
    }
    const char *slash = strrchr(model, '/');
    snprintf(s.name, sizeof s.name, "%.127s", entry || !slash || !slash[1] ? model : slash + 1);
    tidy(s.name);
    tidy(s.architecture);
    tidy(s.why_not);
    *out = s;
    return 0;
}

void shape_close(struct shape *s) {
    if (s) {
        free(s->tensors);
        free(s->plain);
        *s = (struct shape){0};
    }
}
