/* `inferd inspect`: the model's files opened and described, without a tokenizer, a backend or weights in memory. */
#include <inferd/engine.h>

#include "model_file/model_file.h"

int engine_inspect(const char *path, bool json, struct buf *out, struct error *err) {
    struct model_file *f;
    if (model_file_open(path, &f, err) < 0) {
        return -1;
    }
    int rc = model_file_describe(f, json, out, err);
    model_file_close(f);
    return rc;
}
