/* `inferd inspect`: the model's files opened and described, without a tokenizer, a backend or weights in memory. */
#include <inferd/engine.h>

#include "model_file/model_file.h"
#include "quant/scheme.h"

/* A line about the quantisation; nothing if there is none, the reason if it is not supported. */
static int describe_quantization(const struct model_file *f, struct buf *out, struct error *err) {
    struct quant_config *q;
    struct error why;
    if (quant_config_parse(model_file_quantization(f), &q, &why) < 0) {
        if (why.code == ERROR_MEMORY) {
            *err = why;
            return -1;
        }
        buf_printf(out, "not supported: %s", why.message);
    } else {
        quant_config_describe(q, out);
        quant_config_free(q);
    }
    return out->failed ? error_memory(err) : 0;
}

int engine_inspect(const char *path, bool json, struct buf *out, struct error *err) {
    struct model_file *f;
    struct buf quantization = BUF_INIT;
    if (model_file_open(path, &f, err) < 0) {
        return -1;
    }
    int rc = describe_quantization(f, &quantization, err);
    if (rc == 0) {
        rc = model_file_describe(f, json, quantization.len > 0 ? quantization.data : NULL, out, err);
    }
    buf_free(&quantization);
    model_file_close(f);
    return rc;
}
