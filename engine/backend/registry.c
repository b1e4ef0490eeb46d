/* The backends by name. */
#include <inferd/backend.h>

#include <string.h>

extern const struct backend_ops backend_cpu_ops; /* cpu/ */

static const struct backend_ops *const backends[] = {&backend_cpu_ops};

int backend_find(const char *name, const struct backend_ops **out, struct error *err) {
    for (size_t i = 0; i < sizeof backends / sizeof *backends; i++) {
        if (strcmp(name, backends[i]->name) == 0 || strcmp(name, "auto") == 0) {
            *out = backends[i];
            return 0;
        }
    }
    return error_set(err, ERROR_DEVICE, "there is no such device: \"cpu\" and \"auto\" are known");
}
