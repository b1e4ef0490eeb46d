#include "policy.h"

#include <stdlib.h>

int policy_new(const struct config *c, struct policy **out, struct error *err) {
    struct policy *p = calloc(1, sizeof *p);
    if (!p) {
        return error_memory(err);
    }
    p->users = 1;
    if (config_init(&p->config, err)) {
        free(p);
        return -1;
    }
    struct settings t = config_settings();
    for (size_t i = 0; i < t.n; i++) {
        if (setting_copy(&t.rows[i], c, &p->config, err)) {
            policy_release(p);
            return -1;
        }
    }
    if (config_model_names(c, &p->names, err)) {
        policy_release(p);
        return -1;
    }
    *out = p;
    return 0;
}

struct policy *policy_hold(struct policy *p) {
    p->users++;
    return p;
}

void policy_release(struct policy *p) {
    if (p && --p->users == 0) {
        config_free(&p->config);
        model_names_free(&p->names);
        free(p);
    }
}
