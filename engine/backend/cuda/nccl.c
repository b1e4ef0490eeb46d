#include "nccl_api.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>

#ifndef NCCL_LIBRARY
#ifdef INFERD_EMU
#define NCCL_LIBRARY "libinferd-emu.so" /* it has the stand-in, and is loaded already */
#else
#define NCCL_LIBRARY "libnccl.so.2"
#endif
#endif

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct nccl_api api;
static bool loaded;

static int load(struct error *err) {
    static const struct {
        const char *name;
        void **to; /* as POSIX has it: a function's address in a void * */
    } functions[] = {
#define NCCL_ENTRY(result, name, parameters) {#name, (void **)&api.name},
        NCCL_FUNCTIONS(NCCL_ENTRY)
#undef NCCL_ENTRY
    };
    void *library = dlopen(NCCL_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        const char *why = dlerror();
        return error_set(err, ERROR_DEVICE, "several GPUs need NVIDIA's library NCCL, which cannot be loaded: %.300s",
                         why ? why : NCCL_LIBRARY);
    }
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        *functions[i].to = dlsym(library, functions[i].name);
        if (!*functions[i].to) {
            dlclose(library);
            return error_set(err, ERROR_DEVICE, "the library " NCCL_LIBRARY " has no %s: a newer NCCL is needed", functions[i].name);
        }
    }
    loaded = true;
    return 0;
}

int nccl_load(const struct nccl_api **out, struct error *err) {
    pthread_mutex_lock(&mutex);
    int rc = loaded ? 0 : load(err);
    pthread_mutex_unlock(&mutex);
    if (rc == 0) {
        *out = &api;
    }
    return rc;
}
