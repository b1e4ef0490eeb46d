/* A chat template and its variables: the source up to a NUL, then a JSON object (none: no variables). */
#include "base/utf8.h"
#include "text/jinja/jinja.h"

#include <inferd/json.h>

#include <string.h>

static void require(bool holds) {
    if (!holds) {
        __builtin_trap();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const char *source = (const char *)data, *end = memchr(source, '\0', size);
    size_t len = end ? (size_t)(end - source) : size;
    struct jinja_input in = {
        .bos_token = "<s>",
        .now = 1736944496,
        .budget = {.steps = 20000, .output = 1 << 16, .memory = 4 << 20, .time_ns = 2000000000},
    };
    if (end && len + 1 < size) {
        in.kwargs_json = end + 1;
        in.kwargs_len = size - len - 1;
    }
    struct jinja *t = NULL;
    struct error err = {0};
    if (jinja_compile(source, len, &t, &err)) {
        require(err.code == ERROR_MODEL || err.code == ERROR_MEMORY);
        require(err.message[0] != '\0');
        return 0;
    }
    struct buf out = BUF_INIT, trusted = BUF_INIT;
    if (jinja_render(t, &in, &out, &trusted, &err)) {
        require(err.code == ERROR_INVALID || err.code == ERROR_MEMORY);
        require(out.len == 0 && trusted.len == 0);
    } else {
        require(out.len == trusted.len && out.len <= in.budget.output);
        require(out.len == 0 || utf8_is_valid(out.data, out.len));
        for (size_t i = 0; i < trusted.len; i++) {
            require(trusted.data[i] == 1 ||
                    (trusted.data[i] == 0 && in.kwargs_json)); /* untrusted bytes have a source */
        }
    }
    buf_free(&out);
    buf_free(&trusted);
    jinja_free(t);
    return 0;
}
