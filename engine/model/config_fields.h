/* What the two readers of a model's numbers share: the bounds, and the checks at the end. Private to config*.c. */
#ifndef INFERD_CONFIG_FIELDS_H
#define INFERD_CONFIG_FIELDS_H

#include "model/config.h"

struct model_int_field {
    const char *gguf; /* key behind "ARCH." */
    const char *hf;   /* key in config.json */
    size_t offset;    /* of a size_t in struct model_config */
    int64_t min, max;
    bool required;
};
extern const struct model_int_field model_int_fields[];
extern const size_t model_n_int_fields;

struct model_real_field {
    const char *gguf, *hf;
    size_t offset; /* of a double */
    double min, max;
    bool required;
};
extern const struct model_real_field model_real_fields[];
extern const size_t model_n_real_fields;

void model_config_defaults(struct model_config *c, const struct architecture *arch, bool from_gguf);
/* Every `pattern`-th layer is global, the others have the window. */
void model_config_pattern(struct model_config *c, size_t pattern);
/* Fill what follows from the rest, then check the numbers against one another. */
int model_config_check(struct model_config *c, struct error *err);

#endif
