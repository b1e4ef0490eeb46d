/* inferd doctor: processor, memory, limits, clock, libraries. */
#include "doctor.h"

#include <inferd/backend.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>

#define GB 1e9
#define SHM_WANTED ((double)(1 << 30))
#define FIRST_SANE_YEAR 2024 /* nothing here is older */

/* A whole line "NAME<spaces>: ..." of a file under root that has many, behind the colon; "" if there is none. */
static void find_line(const struct doctor *d, const char *path, const char *name, char *out, size_t size) {
    char full[4096], line[8192];
    size_t n = strlen(name);
    out[0] = '\0';
    snprintf(full, sizeof full, "%s%s", d->root, path);
    FILE *f = fopen(full, "re");
    while (f && !out[0] && fgets(line, sizeof line, f)) {
        char *colon = strncmp(line, name, n) == 0 ? line + n + strspn(line + n, " \t") : NULL;
        if (colon && *colon == ':') {
            line[strcspn(line, "\n")] = '\0';
            snprintf(out, size, "%s", colon + 1);
        }
    }
    if (f) {
        fclose(f);
    }
}

/* Of the processor's instruction sets those that matter here, with a space before each. */
static void find_features(const struct doctor *d, char *out, size_t size) {
    static const char *const matter[] = {"avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni",
                                         "avx512_bf16", "amx_tile", "amx_int8", "amx_bf16"};
    char flags[8192];
    size_t len = 0;
    find_line(d, "/proc/cpuinfo", "flags", flags, sizeof flags - 1);
    strcat(flags, " ");
    out[0] = '\0';
    for (size_t i = 0; i < sizeof matter / sizeof matter[0] && len + 16 < size; i++) {
        char word[32];
        snprintf(word, sizeof word, " %s ", matter[i]);
        if (strstr(flags, word)) {
            len += (size_t)snprintf(out + len, size - len, " %s", matter[i]);
        }
    }
}

void doctor_check_cpu(struct doctor *d, const struct config *c) {
    const struct backend_ops *ops;
    struct backend *b;
    struct error err;
    bool chosen = strcmp(c->cpu_variant, "auto") != 0;
    const struct backend_config config = {.threads = 1, .max_rows = 1, .variant = chosen ? c->cpu_variant : NULL};
    if (backend_find("cpu", NULL, &ops, &err) != 0 || ops->open(&config, &b, &err) != 0) {
        doctor_add(d, DOCTOR_FAULT, "processor", "cpu_variant = auto takes the best that there is", "%s", err.message);
        return;
    }
    struct backend_info info;
    char features[256];
    ops->info(b, &info);
    find_features(d, features, sizeof features);
    if (strcmp(info.variant, "generic") == 0) {
        doctor_add(d, DOCTOR_NOTE, "processor",
                   chosen ? "cpu_variant = auto takes the best that there is"
                          : "another machine; or, in a virtual machine, pass the host's processor through (-cpu host)",
                   "%s (has%s): computes with plain C, many times slower than with AVX2 or AVX-512", info.device,
                   features[0] ? features : " none of AVX2, AVX-512, AMX");
    } else {
        doctor_add(d, DOCTOR_OK, "processor", NULL, "%s (has%s): computes with the variant %s%s", info.device,
                   features[0] ? features : " nothing told", info.variant,
                   chosen ? " (cpu_variant says so)" : ", the best that there is for it");
    }
    ops->close(b);
}

/* A line "NAME:   12345 kB" of /proc/meminfo, in bytes; 0 if there is none. */
static double meminfo(const struct doctor *d, const char *name) {
    char kb[64];
    find_line(d, "/proc/meminfo", name, kb, sizeof kb);
    return (double)strtoull(kb, NULL, 10) * 1024;
}

void doctor_check_memory(struct doctor *d, size_t model_bytes) {
    double total = meminfo(d, "MemTotal"), available = meminfo(d, "MemAvailable"), model = (double)model_bytes;
    if (total == 0) {
        doctor_add(d, DOCTOR_NOTE, "memory", "ProcSubset=pid hides it from a service; use ProcSubset=all",
                   "/proc/meminfo tells nothing");
    } else if (model > total) {
        doctor_add(d, DOCTOR_FAULT, "memory", "a smaller model, or one of fewer bits; more memory",
                   "the model has %.1f GB, the machine %.1f GB", model / GB, total / GB);
    } else if (model > available) {
        doctor_add(d, DOCTOR_NOTE, "memory", "end what else takes memory (ps aux --sort=-rss | head)",
                   "the model has %.1f GB, and %.1f of %.1f GB are available", model / GB, available / GB, total / GB);
    } else {
        doctor_add(d, DOCTOR_OK, "memory", NULL, "%.1f of %.1f GB are available", available / GB, total / GB);
    }
}

void doctor_check_huge_pages(struct doctor *d) {
    char line[256];
    if (!doctor_read_line(d, "/sys/kernel/mm/transparent_hugepage/enabled", line, sizeof line)) {
        doctor_add(d, DOCTOR_NOTE, "huge pages", NULL, "the system does not say whether there are any");
    } else if (strstr(line, "[never]")) {
        doctor_add(d, DOCTOR_NOTE, "huge pages", "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
                   "they are off: a model's memory is slower to read without them");
    } else {
        doctor_add(d, DOCTOR_OK, "huge pages", NULL, "given to those who ask (%s)",
                   strstr(line, "[always]") ? "always" : "madvise");
    }
}

void doctor_check_shm(struct doctor *d) {
    char path[4096];
    struct statvfs s;
    snprintf(path, sizeof path, "%s/dev/shm", d->root);
    if (statvfs(path, &s) != 0) {
        doctor_add(d, DOCTOR_NOTE, "/dev/shm", "mount -t tmpfs tmpfs /dev/shm", "there is none");
        return;
    }
    double bytes = (double)s.f_blocks * (double)s.f_frsize;
    if (bytes < SHM_WANTED) {
        doctor_add(d, DOCTOR_NOTE, "/dev/shm", "docker run --shm-size=1g, or --ipc=host; Kubernetes: an emptyDir of medium Memory",
                   "%.0f MiB: enough for one GPU, too small for several (NCCL fails in it)", bytes / (1 << 20));
    } else {
        doctor_add(d, DOCTOR_OK, "/dev/shm", NULL, "%.1f GB", bytes / GB);
    }
}

/* The least of a limit along the path of a cgroup up to the root; -1 if none is set. Of "max 100000" the quotient counts. */
static double tightest(const struct doctor *d, const char *group, const char *file) {
    char path[4096], at[2048], line[128];
    double least = -1;
    snprintf(at, sizeof at, "%s", group);
    for (;;) {
        snprintf(path, sizeof path, "/sys/fs/cgroup%s/%s", strcmp(at, "/") == 0 ? "" : at, file);
        double value, period = 1;
        if (doctor_read_line(d, path, line, sizeof line) && sscanf(line, "%lf %lf", &value, &period) >= 1) {
            value /= period;
            least = least < 0 || value < least ? value : least;
        }
        char *slash = strrchr(at, '/');
        if (!slash || slash == at) {
            if (!slash || at[1] == '\0') {
                return least;
            }
            at[1] = '\0';
        } else {
            *slash = '\0';
        }
    }
}

void doctor_check_cgroup(struct doctor *d, size_t model_bytes) {
    char line[2048];
    if (!doctor_read_line(d, "/proc/self/cgroup", line, sizeof line) || strncmp(line, "0::", 3) != 0) {
        doctor_add(d, DOCTOR_OK, "cgroup", NULL, "not of version 2: its limits are not looked at");
        return;
    }
    double memory = tightest(d, line + 3, "memory.max"), cpus = tightest(d, line + 3, "cpu.max"),
           pids = tightest(d, line + 3, "pids.max"), model = (double)model_bytes;
    if (memory >= 0 && model > memory) {
        doctor_add(d, DOCTOR_FAULT, "cgroup", "raise MemoryMax= of the unit, --memory of the container, or the pod's limit",
                   "memory is limited to %.1f GB, and the model has %.1f GB", memory / GB, model / GB);
    }
    if (pids >= 0 && pids < 64) {
        doctor_add(d, DOCTOR_FAULT, "cgroup", "raise TasksMax= of the unit, or --pids-limit of the container",
                   "only %.0f threads are allowed", pids);
    }
    if (cpus >= 0) {
        doctor_add(d, cpus < 1 ? DOCTOR_NOTE : DOCTOR_OK, "cgroup",
                   cpus < 1 ? "raise CPUQuota= of the unit, --cpus of the container, or the pod's limit"
                            : "set threads to it: more threads than that are stopped in the middle of a step",
                   "processor time is limited to %.1f CPUs", cpus);
    }
    if (memory >= 0 && model <= memory) {
        doctor_add(d, DOCTOR_OK, "cgroup", NULL, "memory is limited to %.1f GB", memory / GB);
    } else if (memory < 0 && cpus < 0) {
        doctor_add(d, DOCTOR_OK, "cgroup", NULL, "no limit of memory or processor time");
    }
}

void doctor_check_limits(struct doctor *d, size_t descriptors, unsigned long long nofile, unsigned long long memlock, bool gpu) {
    if (nofile < descriptors) {
        doctor_add(d, DOCTOR_NOTE, "limits", "LimitNOFILE= in the unit, ulimit -Hn, or --ulimit nofile= of the container",
                   "%llu descriptors may be open, and max_connections wants %zu", nofile, descriptors);
    } else {
        doctor_add(d, DOCTOR_OK, "limits", NULL, "enough descriptors for max_connections (%zu)", descriptors);
    }
    if (gpu && memlock != RLIM_INFINITY && memlock < ((unsigned long long)1 << 30)) {
        doctor_add(d, DOCTOR_NOTE, "limits", "LimitMEMLOCK=infinity in the unit, or --ulimit memlock=-1 of the container",
                   "%llu MiB of memory may be locked: too little for what a GPU and its links may want to pin", memlock >> 20);
    }
}

void doctor_check_clock(struct doctor *d, time_t now, int synchronised) {
    struct tm t;
    if (!gmtime_r(&now, &t) || t.tm_year + 1900 < FIRST_SANE_YEAR) {
        doctor_add(d, DOCTOR_FAULT, "clock", "set it: timedatectl set-ntp true", "it says %d: certificates and logs go by it",
                   t.tm_year + 1900);
    } else if (synchronised == 0) {
        doctor_add(d, DOCTOR_NOTE, "clock", "timedatectl set-ntp true, or chrony; in a container: on its host",
                   "the kernel says that nobody keeps it right");
    } else {
        doctor_add(d, DOCTOR_OK, "clock", NULL, "%04d-%02d-%02d %02d:%02d UTC%s", t.tm_year + 1900, t.tm_mon + 1, t.tm_mday,
                   t.tm_hour, t.tm_min, synchronised > 0 ? ", kept right" : "");
    }
}

void doctor_check_libmicrohttpd(struct doctor *d, const char *version) {
    int major = 0, minor = 0, patch = 0;
    sscanf(version, "%d.%d.%d", &major, &minor, &patch);
    int number = (major * 1000 + minor) * 1000 + patch;
    if (number < 9075) {
        doctor_add(d, DOCTOR_FAULT, "libmicrohttpd", "take the distribution's package of 0.9.75 or later",
                   "%s is older than inferd was built for", version);
    } else if (number < 9076) {
        doctor_add(d, DOCTOR_OK, "libmicrohttpd", "keep taking the distribution's security updates",
                   "%s; CVE-2023-27371 (before 0.9.76) is in its form parser, which inferd does not use", version);
    } else if (number <= 1000002) {
        doctor_add(d, DOCTOR_OK, "libmicrohttpd", "keep taking the distribution's security updates",
                   "%s; CVE-2025-59777 and CVE-2025-62689 (up to 1.0.2) are told of its websocket library, which inferd does not "
                   "use",
                   version);
    } else {
        doctor_add(d, DOCTOR_OK, "libmicrohttpd", NULL, "%s", version);
    }
}
