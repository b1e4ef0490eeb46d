/* The backends by name. */
#include <inferd/backend.h>

#include <string.h>

extern const struct backend_ops backend_cpu_ops;  /* cpu/ */
extern const struct backend_ops backend_null_ops; /* null/ */

/* "auto" takes the first. The null backend must be named: nobody may get it for want of a device. */
static const struct backend_ops *const backends[] = {&backend_cpu_ops, &backend_null_ops};

int backend_find(const char *name, const struct backend_ops **out, struct error *err) {
    if (strcmp(name, "auto") == 0) {
        *out = backends[0];
        return 0;
    }
    for (size_t i = 0; i < sizeof backends / sizeof *backends; i++) {
        if (strcmp(name, backends[i]->name) == 0) {
            *out = backends[i];
            return 0;
        }
    }
    return error_set(err, ERROR_DEVICE, "there is no such device: \"auto\", \"cpu\" and \"null\" are known");
}
