/* Is there a GPU that can be used, and if not, what is missing? */
#include "cuda.h"

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CONTROL_NODE "/dev/nvidiactl"
#define LEAST_COMPUTE 8 /* the major number: mma of 8-bit integers as the kernels use it, BF16, cp.async */

static int major_of(int version) {
    return version / 1000;
}

static int minor_of(int version) {
    return version % 1000 / 10;
}

int cuda_explain(const struct cuda_facts *f, struct error *err) {
    if (!f->has_library) {
        return error_set(err, ERROR_DEVICE, "there is no NVIDIA driver here: its library libcuda.so.1 cannot be loaded%s%s",
                         f->has_node ? "" : ", and there is no device node ", f->has_node ? "" : f->node);
    }
    if (f->driver > 0 && major_of(f->driver) < major_of(f->runtime)) {
        return error_set(err, ERROR_DEVICE,
                         "the NVIDIA driver is too old: it is made for CUDA %d.%d, and the CUDA module needs %d.0 at least",
                         major_of(f->driver), minor_of(f->driver), major_of(f->runtime));
    }
    if (!f->has_node) {
        return error_set(err, ERROR_DEVICE,
                         "there is no device node %s: the driver's kernel module is not loaded, or this container was given "
                         "no GPU",
                         f->node);
    }
    if (!f->may_open) {
        return error_set(err, ERROR_DEVICE, "the device node %s may not be opened by user %u", f->node,
                         (unsigned)geteuid());
    }
    if (f->rc == cudaErrorNoDevice || (f->rc == cudaSuccess && f->n_devices == 0)) {
        return error_set(err, ERROR_DEVICE, "the NVIDIA driver knows no GPU%s",
                         f->hidden ? " (CUDA_VISIBLE_DEVICES is set and may hide them)" : "");
    }
    return error_set(err, ERROR_DEVICE, "CUDA does not start: %s", cudaGetErrorString(f->rc));
}

/* As CUDA opens it: device rules of a cgroup forbid what the mode would allow. */
static bool may_open(const char *node) {
    int fd = open(node, O_RDWR | O_CLOEXEC | O_NONBLOCK);
    if (fd >= 0) {
        close(fd);
    }
    return fd >= 0;
}

/* The first one that is missing or shut: control, unified memory (often made only when somebody asks for it), GPUs. */
static void look_at_nodes(struct cuda_facts *f) {
    static const char *const needed[] = {CONTROL_NODE, "/dev/nvidia-uvm"};
    f->has_node = f->may_open = true;
    for (size_t i = 0; i < sizeof needed / sizeof needed[0] && f->may_open; i++) {
        snprintf(f->node, sizeof f->node, "%s", needed[i]);
        f->has_node = access(f->node, F_OK) == 0;
        f->may_open = f->has_node && may_open(f->node);
    }
    DIR *dir = f->may_open ? opendir("/dev") : NULL;
    for (struct dirent *e; dir && f->may_open && (e = readdir(dir));) {
        size_t n = strlen("nvidia");
        if (strncmp(e->d_name, "nvidia", n) == 0 && e->d_name[n] >= '0' && e->d_name[n] <= '9' && strlen(e->d_name) < 32) {
            char node[sizeof f->node];
            snprintf(node, sizeof node, "/dev/%.40s", e->d_name);
            if (!may_open(node)) {
                memcpy(f->node, node, sizeof node);
                f->may_open = false;
            }
        }
    }
    if (dir) {
        closedir(dir);
    }
}

int cuda_count_devices(int *n, struct error *err) {
    struct cuda_facts f = {.rc = cudaGetDeviceCount(&f.n_devices)};
    if (f.rc == cudaSuccess && f.n_devices > 0) {
        *n = f.n_devices;
        return 0;
    }
    (void)cudaGetLastError(); /* it has been looked at */
    (void)cudaDriverGetVersion(&f.driver);
    (void)cudaRuntimeGetVersion(&f.runtime);
    void *library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
    f.has_library = library != NULL;
    if (library) {
        dlclose(library);
    }
    look_at_nodes(&f);
    f.hidden = getenv("CUDA_VISIBLE_DEVICES") != NULL;
    return cuda_explain(&f, err);
}

int cuda_check_count(size_t first, size_t rank, size_t n_ranks, int n, struct error *err) {
    size_t ranks = n_ranks > rank ? n_ranks : rank + 1;
    if (ranks > 1 && first + ranks > (size_t)n) {
        return error_set(err, ERROR_DEVICE,
                         "%zu ranks take as many CUDA devices, from device %zu on, and the driver knows %d, numbered from 0", ranks,
                         first, n);
    }
    return 0;
}

int cuda_check_device(int ordinal, int n, const char *name, int major, int minor, struct error *err) {
    if (ordinal >= n) {
        return error_set(err, ERROR_DEVICE, "there is no CUDA device %d: the driver knows %d, numbered from 0", ordinal, n);
    }
    if (name && major < LEAST_COMPUTE) {
        return error_set(err, ERROR_DEVICE, "CUDA device %d (%s) has compute capability %d.%d, and %d.0 at least is needed",
                         ordinal, name, major, minor, LEAST_COMPUTE);
    }
    return 0;
}
