#include "model/source.h"

#include "quant/dequant.h"

#include <math.h>
#include <string.h>

int model_source_open(struct model_source *s, const struct model_file *file, const struct model_config *config,
                      struct error *err) {
    struct model_source made = {.file = file, .config = config};
    if (quant_config_parse(model_file_quantization(file), &made.quant, err) < 0) {
        return error_prefix(err, "%s", model_file_path(file));
    }
    *s = made;
    return 0;
}

void model_source_close(struct model_source *s) {
    quant_config_free(s->quant);
    *s = (struct model_source){0};
}

int model_source_matrix(struct model_source *s, const struct role *r, int layer, struct matrix *out, struct error *err) {
    char module[TENSOR_NAME_MAX];
    struct quant_scheme scheme;
    role_module(r, s->config, layer, module);
    if (quant_config_scheme(s->quant, module, role_class(r), &scheme, err) < 0) {
        return -1;
    }
    if (s->config->from_gguf) {
        role_name(r, s->config, true, layer, module);
        module[strlen(module) - strlen(".weight")] = '\0'; /* all matrices are called so */
    }
    return matrix_open(out, s->file, module, &scheme, role_size(r->n, s->config), role_size(r->k, s->config), err);
}

int model_source_vector(const struct model_source *s, const struct role *r, int layer, const struct tensor **out,
                        struct error *err) {
    char name[TENSOR_NAME_MAX];
    role_name(r, s->config, s->config->from_gguf, layer, name);
    const struct tensor *t = model_file_find(s->file, name);
    size_t n = role_size(r->n, s->config);
    if (!t) {
        return error_set(err, ERROR_MODEL, "the tensor %s is missing", name);
    }
    if (t->n_dims != 1 || t->shape[0] != n) {
        return error_set(err, ERROR_MODEL, "the tensor %s has not the shape [%zu] that the configuration asks for", name,
                         n);
    }
    *out = t;
    return 0;
}

int model_source_read_plain_vector(const struct tensor *t, float *out, struct error *err) {
    if ((t->dtype != DTYPE_F32 && t->dtype != DTYPE_F16 && t->dtype != DTYPE_BF16) ||
        dequantize_row(t->dtype, t->data, out, t->shape[0]) < 0) {
        return error_set(err, ERROR_UNSUPPORTED, "the tensor %s has the type %s, which is not supported for vectors",
                         t->name, t->type);
    }
    for (size_t i = 0; i < t->shape[0]; i++) {
        if (!isfinite(out[i])) {
            return error_set(err, ERROR_MODEL, "the tensor %s has an element that is not a finite number", t->name);
        }
    }
    return 0;
}

int model_source_read_vector(const struct model_source *s, const struct role *r, const struct tensor *t, float *out,
                             struct error *err) {
    if (model_source_read_plain_vector(t, out, err) < 0) {
        return -1;
    }
    if (r->norm && s->config->arch->norm_plus_one && !s->config->from_gguf) {
        for (size_t i = 0; i < t->shape[0]; i++) {
            out[i] += 1.0f;
        }
    }
    return 0;
}
