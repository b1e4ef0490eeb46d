/* A request body of any endpoint: the first byte says which, and whether unknown fields are refused. */
#include "params.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const enum params_where where[] = {IN_CHAT, IN_COMPLETIONS, IN_TOKENIZE, IN_DETOKENIZE};
    if (size == 0) {
        return 0;
    }
    static const char *const names[] = {"m", "alias"};
    const struct params_limits limits = {.models = names, .n_models = 2, .vocab_size = 1000, .max_n = 8, .strict = data[0] & 4};
    struct request_params p;
    struct error err = {0};
    enum params_where w = where[data[0] & 3];
    if (params_parse((const char *)data + 1, size - 1, w, &limits, &p, &err) == 0) {
        struct sampling s;
        params_sampling(&p, w, &s);
        params_drop_input(&p);
        params_free(&p);
    } else if (err.code == ERROR_NONE || err.message[0] == '\0') {
        __builtin_trap(); /* refused without a reason */
    }
    return 0;
}
