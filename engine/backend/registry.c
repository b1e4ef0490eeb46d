/* The backends by name: two linked in, CUDA's in a module that is loaded when it is asked for. */
#include <inferd/backend.h>

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CUDA_MODULE "inferd-cuda.so"
#define MAX_ORDINAL 1023 /* of a device */

extern const struct backend_ops backend_cpu_ops;  /* cpu/ */
extern const struct backend_ops backend_null_ops; /* null/ */

/* ---- the module ---- */

/* The folder of the executable, without the slash; "" if the system does not tell. */
static void own_folder(char out[PATH_MAX]) {
    ssize_t n = readlink("/proc/self/exe", out, PATH_MAX - 1);
    out[n > 0 ? n : 0] = '\0';
    char *slash = strrchr(out, '/');
    *(slash ? slash : out) = '\0';
}

/* The first that is there. */
static int find_module(const char *module, char out[PATH_MAX], struct error *err) {
    char folder[PATH_MAX - sizeof "/" CUDA_MODULE];
    own_folder(out);
    snprintf(folder, sizeof folder, "%.*s", (int)sizeof folder - 1, out);
    if (module) { /* a name without a slash would be looked for where libraries are */
        int n = snprintf(out, PATH_MAX, "%s%s", strchr(module, '/') ? "" : "./", module);
        return n < PATH_MAX ? 0 /* what is wrong with it, loading tells */
                            : error_set(err, ERROR_DEVICE, "the path of the CUDA module is longer than %d bytes", PATH_MAX - 1);
    }
    snprintf(out, PATH_MAX, "%s/%s", folder, CUDA_MODULE);
    if (access(out, F_OK) == 0) {
        return 0;
    }
    snprintf(out, PATH_MAX, "%s/%s", INFERD_MODULE_FOLDER, CUDA_MODULE);
    if (access(out, F_OK) == 0) {
        return 0;
    }
    return error_set(err, ERROR_DEVICE, "the CUDA module %s is neither in %.150s nor in %.150s", CUDA_MODULE, folder,
                     INFERD_MODULE_FOLDER);
}

static int load_cuda(const char *module, const struct backend_ops **out, struct error *err) {
    char path[PATH_MAX];
    const struct backend_ops *(*table)(void);
    if (find_module(module, path, err) < 0) {
        return -1;
    }
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
        const char *why = dlerror(); /* begins with the path, or names a library that is missing */
        return error_set(err, ERROR_DEVICE, "the CUDA module cannot be loaded: %.300s", why ? why : path);
    }
    *(void **)&table = dlsym(handle, BACKEND_CUDA_SYMBOL); /* as POSIX has it: a function's address in a void * */
    if (!table) {
        dlclose(handle);
        return error_set(err, ERROR_DEVICE, "%.300s is not a CUDA module of inferd: it has no %s", path,
                         BACKEND_CUDA_SYMBOL);
    }
    const struct backend_ops *ops = table();
    if (ops->abi != BACKEND_ABI) {
        uint32_t abi = ops->abi;
        dlclose(handle);
        return error_set(err, ERROR_DEVICE, "the CUDA module %.300s was built for another version of inferd (interface %u, not %u)",
                         path, abi, BACKEND_ABI);
    }
    *out = ops;
    return 0;
}

/* ---- names ---- */

/* "cuda", "cuda:3" */
static bool is_cuda(const char *name, size_t *ordinal) {
    char *end;
    if (strncmp(name, "cuda", 4) != 0 || (name[4] != '\0' && name[4] != ':')) {
        return false;
    }
    *ordinal = 0;
    if (name[4] == '\0') {
        return true;
    }
    if (name[5] < '0' || name[5] > '9') {
        return false;
    }
    unsigned long n = strtoul(name + 5, &end, 10);
    *ordinal = n;
    return *end == '\0' && n <= MAX_ORDINAL;
}

static int find(const char *name, const char *module, const struct backend_ops **out, size_t *ordinal, struct error *err) {
    static const struct backend_ops *const linked[] = {&backend_cpu_ops, &backend_null_ops};
    *ordinal = 0;
    for (size_t i = 0; i < sizeof linked / sizeof *linked; i++) {
        if (strcmp(name, linked[i]->name) == 0) {
            *out = linked[i];
            return 0;
        }
    }
    if (is_cuda(name, ordinal)) {
        return load_cuda(module, out, err);
    }
    return error_set(err, ERROR_DEVICE, "there is no such device: \"auto\", \"cpu\", \"cuda\", \"cuda:N\" and \"null\" are known");
}

int backend_find(const char *name, const char *module, const struct backend_ops **out, struct error *err) {
    size_t ordinal;
    return find(name, module, out, &ordinal, err);
}

int backend_open_nodes(const char *name, const char *module, size_t rank, size_t size, size_t deadline_ms, struct collective **out,
                       struct error *err) {
    const struct backend_ops *ops;
    size_t ordinal;
    if (find(strcmp(name, "auto") == 0 ? "cuda" : name, module, &ops, &ordinal, err) < 0) {
        return -1;
    }
    return ops->nodes_open ? ops->nodes_open(ordinal, rank, size, deadline_ms, out, err)
                           : error_set_param(err, ERROR_UNSUPPORTED, "device",
                                             "the device %s reaches other nodes by MPI alone: without it only GPUs do", ops->name);
}

static int open_named(const char *name, const char *module, const struct backend_config *config,
                      const struct backend_ops **ops, struct backend **out, struct error *err) {
    struct backend_config c = *config;
    const struct backend_ops *found;
    if (find(name, module, &found, &c.ordinal, err) < 0 || found->open(&c, out, err) < 0) {
        return -1;
    }
    *ops = found;
    return 0;
}

int backend_open(const char *name, const char *module, const struct backend_config *config,
                 const struct backend_ops **ops, struct backend **out, char *why, struct error *err) {
    struct error unusable;
    why[0] = '\0';
    if (strcmp(name, "auto") != 0) {
        return open_named(name, module, config, ops, out, err);
    }
    if (open_named("cuda", module, config, ops, out, &unusable) == 0) {
        struct backend_info info;
        (*ops)->info(*out, &info);
        snprintf(why, BACKEND_WHY, "the GPU: %s", info.device);
        return 0;
    }
    if (open_named("cpu", module, config, ops, out, err) < 0) {
        return -1;
    }
    snprintf(why, BACKEND_WHY, "the CPU, for %s", unusable.message);
    return 0;
}
