/* A safetensors file: opened, each tensor touched, and described both ways; what is described is strict JSON. */
#include "model_file/internal.h"

#include <inferd/json.h>
#include <stdlib.h>

/* Every tensor's last byte must be there to read. */
static unsigned touch(const struct model_file *f) {
    unsigned sum = 0;
    for (size_t i = 0; i < model_file_n_tensors(f); i++) {
        const struct tensor *t = model_file_tensor(f, i);
        if (model_file_find(f, t->name) != t) {
            abort();
        }
        if (t->size > 0) {
            sum += ((const unsigned char *)t->data)[t->size - 1];
        }
    }
    return sum;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct model_file *f;
    struct error err;
    if (model_file_open_memory(MODEL_FORMAT_SAFETENSORS, data, size, &f, &err) < 0) {
        return 0;
    }
    volatile unsigned sum = touch(f);
    (void)sum;
    struct buf text = BUF_INIT, json = BUF_INIT;
    model_file_describe(f, false, NULL, &text, &err);
    if (model_file_describe(f, true, NULL, &json, &err) == 0 && json_check(json.data, json.len, NULL, &err) < 0) {
        abort();
    }
    buf_free(&text);
    buf_free(&json);
    model_file_close(f);
    return 0;
}
