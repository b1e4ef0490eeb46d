/* What a checkpoint says of its quantisation: whatever it is, a scheme that comes out is one that can be. */
#include "quant/scheme.h"

#include <inferd/json.h>

#include <cjson/cJSON.h>
#include <stdlib.h>

static bool is_sound(const struct quant_scheme *s) {
    return s->layout == QUANT_PLAIN || ((s->bits == 4 || s->bits == 8) && s->scale && s->group <= 1 << 20 &&
                                        (s->block_n > 0) == (s->block_k > 0));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char *const modules[] = {"model.layers.0.self_attn.q_proj", "model.layers.11.mlp.down_proj", "lm_head"};
    struct error err;
    struct cJSON *tree = NULL;
    struct quant_config *q;
    struct quant_scheme s;
    if (json_parse((const char *)data, size, NULL, &tree, &err) != 0) {
        return 0;
    }
    if (quant_config_parse(tree, &q, &err) == 0) {
        struct buf text = BUF_INIT;
        quant_config_describe(q, &text);
        buf_free(&text);
        for (size_t i = 0; i < sizeof modules / sizeof modules[0]; i++) {
            if (quant_config_scheme(q, modules[i], i == 1 ? "Embedding" : "Linear", &s, &err) == 0 && !is_sound(&s)) {
                abort();
            }
        }
        quant_config_free(q);
    }
    cJSON_Delete(tree);
    return 0;
}
