/* The module with MPI, loaded when it is asked for: the daemon links no MPI. */
#include <inferd/collective.h>

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define MPI_MODULE "inferd-mpi.so"

/* Beside the executable, or where it was installed. */
static int find_module(char out[PATH_MAX], struct error *err) {
    char folder[PATH_MAX - sizeof "/" MPI_MODULE];
    ssize_t n = readlink("/proc/self/exe", folder, sizeof folder - 1);
    folder[n > 0 ? n : 0] = '\0';
    char *slash = strrchr(folder, '/');
    *(slash ? slash : folder) = '\0';
    snprintf(out, PATH_MAX, "%s/%s", folder, MPI_MODULE);
    if (access(out, F_OK) == 0) {
        return 0;
    }
    snprintf(out, PATH_MAX, "%s/%s", INFERD_MODULE_FOLDER, MPI_MODULE);
    if (access(out, F_OK) == 0) {
        return 0;
    }
    return error_set(err, ERROR_DEVICE, "the module for several nodes %s is neither in %.150s nor in %.150s", MPI_MODULE, folder,
                     INFERD_MODULE_FOLDER);
}

int collective_open_mpi(size_t deadline_ms, struct collective **out, struct error *err) {
    char path[PATH_MAX];
    const struct collective_mpi *(*table)(void);
    if (find_module(path, err) < 0) {
        return -1;
    }
    /* Open MPI's own plugins look for its symbols among those of all. It stays loaded. */
    void *handle = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    if (!handle) {
        const char *why = dlerror();
        return error_set(err, ERROR_DEVICE, "the module for several nodes cannot be loaded: %.300s", why ? why : path);
    }
    *(void **)&table = dlsym(handle, COLLECTIVE_MPI_SYMBOL);
    if (!table || table()->abi != COLLECTIVE_MPI_ABI) {
        dlclose(handle);
        return error_set(err, ERROR_DEVICE, "%.300s is not the module for several nodes of this version of inferd", path);
    }
    return table()->open(deadline_ms, out, err);
}
