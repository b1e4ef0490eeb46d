/* A GGUF file: opened, looked at through the getters, and described both ways; what is described is strict JSON. */
#include "model_file/internal.h"

#include <inferd/json.h>
#include <stdlib.h>
#include <string.h>

/* Every tensor's last byte and every string's last byte must be there to read. */
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
    for (size_t i = 0; i < f->meta.n; i++) {
        const struct meta *m = &f->meta.items[i];
        int64_t number;
        double real;
        for (size_t k = 0; k < m->count; k += 1 + m->count / 16) {
            if (m->strings && m->strings[k].len > 0) {
                sum += (unsigned char)m->strings[k].data[m->strings[k].len - 1];
            }
            if (m->value) {
                sum += meta_element_int(m, k, &number) + meta_element_double(m, k, &real);
            }
        }
    }
    return sum;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct model_file *f;
    struct error err;
    if (model_file_open_memory(MODEL_FORMAT_GGUF, data, size, &f, &err) < 0) {
        return 0;
    }
    volatile unsigned sum = touch(f);
    (void)sum;
    const struct json_limits with_nul = {.allow_nul = true}; /* a string of the file may hold one */
    struct buf text = BUF_INIT, json = BUF_INIT;
    model_file_describe(f, false, NULL, &text, &err);
    if (model_file_describe(f, true, NULL, &json, &err) == 0 && json_check(json.data, json.len, &with_nul, &err) < 0) {
        abort();
    }
    buf_free(&text);
    buf_free(&json);
    model_file_close(f);
    return 0;
}
