/* inferd doctor: the GPU's driver, device nodes, module, and links. */
#include "doctor.h"
#include "gpu_library.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inferd/backend.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define MAX_GPUS 16 /* looked at */

enum doctor_gpu doctor_gpu_wish(const struct config *c) {
    return strncmp(c->device, "cuda", 4) == 0   ? DOCTOR_GPU_WANTED
           : strcmp(c->device, "auto") == 0 ? DOCTOR_GPU_WELCOME
                                            : DOCTOR_GPU_UNUSED;
}

/* What is a fault where a GPU is wanted is a note where it is only welcome. */
static enum doctor_status grave(enum doctor_gpu wish) {
    return wish == DOCTOR_GPU_WANTED ? DOCTOR_FAULT : DOCTOR_NOTE;
}

/* ---- device nodes -------------------------------------------------------------------------------------------- */

/* True: a file is there and opens for reading and writing, as CUDA does it. Tells nothing of one that does. */
static bool check_node(struct doctor *d, const char *name, enum doctor_gpu wish) {
    char path[512];
    struct stat st;
    snprintf(path, sizeof path, "%s/dev/%s", d->root, name);
    int fd = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK);
    if (fd >= 0) {
        close(fd);
        return true;
    }
    int why = errno;
    if (stat(path, &st) != 0) {
        doctor_add(d, grave(wish), "device node",
                   strcmp(name, "nvidia-uvm") == 0
                       ? "nvidia-modprobe -u -c 0 as root (ExecStartPre=-+/usr/bin/nvidia-modprobe -u -c 0 in the unit)"
                       : "load the driver (nvidia-modprobe -c 0); container: --gpus all, or --device nvidia.com/gpu=0",
                   "/dev/%s: %s", name, strerror(errno));
    } else if (why == EPERM) { /* the mode would let us, something else does not */
        doctor_add(d, grave(wish), "device node",
                   "DeviceAllow=char-nvidia-frontend, char-nvidia, char-nvidiactl, char-nvidia-uvm and char-nvidia-caps in the unit; a "
                   "container that lost it (systemctl daemon-reload): start it again, with CDI",
                   "/dev/%s: the device rules of a cgroup forbid it (user %u, mode %04o)", name, (unsigned)st.st_uid,
                   (unsigned)st.st_mode & 07777);
    } else {
        doctor_add(d, grave(wish), "device node", "chmod 0666, or SupplementaryGroups= with the group that has it",
                   "/dev/%s: %s (it belongs to user %u, group %u, mode %04o; this is user %u)", name, strerror(why),
                   (unsigned)st.st_uid, (unsigned)st.st_gid, (unsigned)st.st_mode & 07777, (unsigned)geteuid());
    }
    return false;
}

static bool is_gpu_node(const char *name) {
    return strncmp(name, "nvidia", 6) == 0 && name[6] >= '0' && name[6] <= '9' && strlen(name) < 16;
}

void doctor_check_nodes(struct doctor *d, enum doctor_gpu wish) {
    char path[4096], gpus[128] = "";
    size_t n = 0;
    bool good = check_node(d, "nvidiactl", wish);
    good = check_node(d, "nvidia-uvm", wish) && good;
    snprintf(path, sizeof path, "%s/dev", d->root);
    DIR *dir = opendir(path);
    for (struct dirent *e; dir && (e = readdir(dir));) {
        if (is_gpu_node(e->d_name)) {
            n++;
            good = check_node(d, e->d_name, wish) && good;
            size_t len = strlen(gpus);
            snprintf(gpus + len, sizeof gpus - len, " /dev/%s", e->d_name);
        }
    }
    if (dir) {
        closedir(dir);
    }
    if (n == 0) {
        doctor_add(d, grave(wish), "device node", "container: --gpus all, or --device nvidia.com/gpu=0",
                   "there is no /dev/nvidia0, the node of a GPU");
    } else if (good) {
        doctor_add(d, DOCTOR_OK, "device node", NULL, "/dev/nvidiactl /dev/nvidia-uvm%s can be opened", gpus);
    }
}

/* ---- the driver ---------------------------------------------------------------------------------------------- */

static void check_peers(struct doctor *d, const struct gpu_library *l, unsigned int n) {
    void *devices[MAX_GPUS];
    size_t bad = 0, links = 0;
    char first[64] = "";
    n = n < MAX_GPUS ? n : MAX_GPUS;
    if (n < 2 || !l->p2p_status) {
        return;
    }
    for (unsigned int i = 0; i < n; i++) {
        if (l->device_by_index(i, &devices[i]) != NVML_SUCCESS) {
            return;
        }
    }
    for (unsigned int i = 0; i < n; i++) {
        for (unsigned int k = i + 1; k < n; k++) {
            int reads = -1, writes = -1, link = -1;
            if (l->p2p_status(devices[i], devices[k], NVML_P2P_READ, &reads) != NVML_SUCCESS || reads != 0 ||
                l->p2p_status(devices[i], devices[k], NVML_P2P_WRITE, &writes) != NVML_SUCCESS || writes != 0) {
                if (bad++ == 0) {
                    snprintf(first, sizeof first, "%u and %u", i, k);
                }
            }
            links += l->p2p_status(devices[i], devices[k], NVML_P2P_NVLINK, &link) == NVML_SUCCESS && link == 0;
        }
    }
    if (bad > 0) {
        doctor_add(d, DOCTOR_NOTE, "peer links",
                   "turn ACS off on the PCI bridges or IOMMU off (a virtual machine may not have it at all); one GPU needs none",
                   "of %u pairs of GPUs %zu cannot reach each other's memory, first %s", n * (n - 1) / 2, bad, first);
    } else {
        doctor_add(d, DOCTOR_OK, "peer links", NULL, "%u GPUs reach each other's memory, %zu of %u pairs by NVLink", n, links,
                   n * (n - 1) / 2);
    }
}

void doctor_check_driver(struct doctor *d, const char *library, enum doctor_gpu wish) {
    struct gpu_library l = {0};
    struct error err;
    char version[128] = "", line[256];
    unsigned int n = 0;
    int cuda = 0;
    if (gpu_library_load(library, &l, &err) != 0) {
        bool kernel = doctor_read_line(d, "/proc/driver/nvidia/version", line, sizeof line);
        doctor_add(d, grave(wish), "driver",
                   kernel ? "container: NVIDIA_DRIVER_CAPABILITIES=compute,utility; else the package of libnvidia-ml.so.1"
                          : "install NVIDIA's driver (Debian: nvidia-driver, libcuda1, libnvidia-ml1)",
                   "%s%s", err.message, kernel ? " (the kernel module is loaded)" : "");
        return;
    }
    int rc = l.init();
    if (rc != NVML_SUCCESS) {
        doctor_add(d, grave(wish), "driver",
                   "load the kernel module (nvidia-modprobe); after an update of the driver: start the machine again", "%s",
                   gpu_library_error(&l, rc));
        gpu_library_unload(&l);
        return;
    }
    l.driver_version(version, sizeof version);
    l.device_count(&n);
    if (l.cuda_version) {
        l.cuda_version(&cuda);
    }
    doctor_add(d, n > 0 ? DOCTOR_OK : grave(wish), "driver", n > 0 ? NULL : "container: --gpus all, or --device nvidia.com/gpu=0",
               "version %s, for programs up to CUDA %d.%d; it knows %u GPU%s", version, cuda / 1000, cuda % 1000 / 10, n,
               n == 1 ? "" : "s");
    check_peers(d, &l, n);
    l.shutdown();
    gpu_library_unload(&l);
}

/* ---- the module ---------------------------------------------------------------------------------------------- */

void doctor_check_cuda(struct doctor *d, const struct config *c, enum doctor_gpu wish) {
    const struct backend_ops *ops;
    struct backend *b;
    struct error err;
    const char *module = c->cuda_module[0] ? c->cuda_module : NULL, *number = strchr(c->device, ':');
    if (backend_find("cuda", module, &ops, &err) != 0) {
        doctor_add(d, grave(wish), "CUDA module", "install the package inferd-cuda of the same version, or set cuda_module", "%s",
                   err.message);
        return;
    }
    doctor_add(d, DOCTOR_OK, "CUDA module", NULL, "found, and made for this inferd (interface %u)", BACKEND_ABI);
    const struct backend_config config = {.max_rows = 1, .ordinal = number ? strtoul(number + 1, NULL, 10) : 0};
    if (ops->open(&config, &b, &err) != 0) {
        doctor_add(d, grave(wish), "CUDA device", "see driver and device nodes above; nvidia-smi shows what the driver knows", "%s",
                   err.message);
        return;
    }
    struct backend_info info;
    ops->info(b, &info);
    doctor_add(d, DOCTOR_OK, "CUDA device", NULL, "%s opens", info.device);
    ops->close(b);
}

/* ---- all of it ----------------------------------------------------------------------------------------------- */

static bool any_sign_of_a_gpu(const struct doctor *d, const char *library) {
    char line[256], path[4096];
    struct gpu_library l;
    struct error err;
    snprintf(path, sizeof path, "%s/dev/nvidiactl", d->root);
    if (access(path, F_OK) == 0 || doctor_read_line(d, "/proc/driver/nvidia/version", line, sizeof line)) {
        return true;
    }
    if (gpu_library_load(library, &l, &err) != 0) {
        return false;
    }
    gpu_library_unload(&l);
    return true;
}

static void check_all(struct doctor *d, const struct config *c, const char *library) {
    enum doctor_gpu wish = doctor_gpu_wish(c);
    doctor_check_driver(d, library, wish);
    doctor_check_nodes(d, wish);
    doctor_check_cuda(d, c, wish);
}

/* The child's findings; *ended: it closed its end, or died. */
static size_t receive(int fd, void *out, size_t size, int seconds, bool *ended) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    time_t end = t.tv_sec + seconds;
    size_t got = 0;
    *ended = false;
    while (got < size) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        clock_gettime(CLOCK_MONOTONIC, &t);
        if (t.tv_sec >= end || poll(&p, 1, (int)(end - t.tv_sec) * 1000) <= 0) {
            break;
        }
        ssize_t n = read(fd, (char *)out + got, size - got);
        if (n <= 0) {
            *ended = true;
            break;
        }
        got += (size_t)n;
    }
    return got;
}

void doctor_check_gpu(struct doctor *d, const struct config *c, const char *library, int seconds) {
    int fds[2];
    if (doctor_gpu_wish(c) == DOCTOR_GPU_UNUSED) {
        return;
    }
    if (doctor_gpu_wish(c) == DOCTOR_GPU_WELCOME && !any_sign_of_a_gpu(d, library)) {
        doctor_add(d, DOCTOR_OK, "GPU", NULL, "no NVIDIA driver and no device node: device = auto takes the CPU");
        return;
    }
    if (pipe2(fds, O_CLOEXEC) != 0) {
        doctor_add(d, DOCTOR_FAULT, "GPU", "end what else runs", "nothing can be asked of it: %s", strerror(errno));
        return;
    }
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        struct doctor own = {.root = d->root};
        check_all(&own, c, library);
        size_t size = own.n * sizeof own.found[0];
        _exit(write(fds[1], own.found, size) == (ssize_t)size ? 0 : 1);
    }
    close(fds[1]);
    if (child < 0) {
        close(fds[0]);
        doctor_add(d, DOCTOR_FAULT, "GPU", "end what else runs", "nothing can be asked of it: %s", strerror(errno));
        return;
    }
    bool ended;
    int status = 0;
    size_t got = receive(fds[0], &d->found[d->n], (DOCTOR_MAX - d->n) * sizeof d->found[0], seconds, &ended);
    close(fds[0]);
    d->n += got / sizeof d->found[0];
    kill(child, SIGKILL); /* one that hangs in the driver may not be able to die */
    waitpid(child, &status, ended ? 0 : WNOHANG);
    if (got == 0) {
        static const char remedy[] = "look for Xid in `journalctl -k`; then a reset of the GPU, or of the machine";
        if (ended) {
            doctor_add(d, DOCTOR_FAULT, "GPU", remedy, "asking the driver ended with signal %d", WTERMSIG(status));
        } else {
            doctor_add(d, DOCTOR_FAULT, "GPU", remedy, "the driver has not answered within %d s", seconds);
        }
    }
}
