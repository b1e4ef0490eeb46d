#include "gpu_library.h"

#include <dlfcn.h>
#include <stdio.h>

static void *find(void *handle, const char *name) {
    return dlsym(handle, name);
}

int gpu_library_load(const char *file, struct gpu_library *out, struct error *err) {
    struct gpu_library l = {.handle = dlopen(file, RTLD_LAZY | RTLD_LOCAL)};
    if (!l.handle) {
        const char *why = dlerror();
        return error_set(err, ERROR_DEVICE, "NVIDIA's management library cannot be loaded: %.300s", why ? why : file);
    }
/* as POSIX has it: a function's address in a void * */
#define X(member, name, parameters) *(void **)&l.member = find(l.handle, name);
    NVML_NEEDED(X)
    NVML_OPTIONAL(X)
#undef X
    *(void **)&l.error_string = find(l.handle, "nvmlErrorString");
#define X(member, name, parameters)                                                                                    \
    if (!l.member) {                                                                                                   \
        dlclose(l.handle);                                                                                             \
        return error_set(err, ERROR_DEVICE, "%.200s is not NVIDIA's management library: it has no %s", file, name);    \
    }
    NVML_NEEDED(X)
#undef X
    if (!l.throttle) {
        l.throttle = l.throttle_before_12;
    }
    *out = l;
    return 0;
}

void gpu_library_unload(struct gpu_library *l) {
    if (l->handle) {
        dlclose(l->handle);
    }
    *l = (struct gpu_library){0};
}

const char *gpu_library_error(const struct gpu_library *l, int rc) {
    const char *text = l->error_string ? l->error_string(rc) : NULL;
    return text ? text : "unknown error";
}

/* "0000:17:00.0"; false if CUDA's driver library does not tell. */
static bool find_bus(const char *libcuda, size_t ordinal, char *bus, int size) {
    void *handle = dlopen(libcuda, RTLD_LAZY | RTLD_LOCAL);
    if (!handle) {
        return false;
    }
    int (*init)(unsigned int), (*get)(int *, int), (*bus_id)(char *, int, int), device;
    *(void **)&init = find(handle, "cuInit");
    *(void **)&get = find(handle, "cuDeviceGet");
    *(void **)&bus_id = find(handle, "cuDeviceGetPCIBusId");
    bool found = init && get && bus_id && init(0) == 0 && get(&device, (int)ordinal) == 0 && bus_id(bus, size, device) == 0;
    dlclose(handle);
    return found;
}

int gpu_library_device(const struct gpu_library *l, const char *libcuda, size_t ordinal, void **out) {
    char bus[64] = "";
    return find_bus(libcuda, ordinal, bus, sizeof bus) ? l->device_by_bus(bus, out)
                                                       : l->device_by_index((unsigned int)ordinal, out);
}
