/* config.json of a model: whatever it says, the numbers that come out fit one another and size no table wrongly. */
#include "model/decoder.h"

#include <inferd/json.h>

#include <cjson/cJSON.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct error err;
    struct cJSON *tree = NULL;
    struct model_config c;
    size_t bytes;
    if (json_parse((const char *)data, size, NULL, &tree, &err) != 0) {
        return 0;
    }
    if (model_config_from_json(tree, &c, &err) == 0) {
        float *inv_freq = malloc(c.n_rot / 2 * sizeof *inv_freq), mscale;
        bool sound = c.n_layers <= MODEL_MAX_LAYERS && c.n_heads % c.n_kv_heads == 0 && c.n_rot <= c.head_dim &&
                     inv_freq && decoder_kv_token_bytes(&c, DTYPE_F16, &bytes);
        if (!sound) {
            abort();
        }
        rope_frequencies(&c.rope, c.n_rot, NULL, inv_freq, &mscale);
        rope_frequencies(&c.rope_local, c.n_rot, NULL, inv_freq, &mscale);
        free(inv_freq);
    }
    cJSON_Delete(tree);
    return 0;
}
