/* What this machine offers: instruction sets, CPUs, memory. */
#include "cpu.h"
#include "topology.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <cpuid.h>

/* Register state that the operating system saves (XCR0): bits 1, 2 SSE and AVX; 5, 6, 7 the AVX-512 registers; 17, 18
 * AMX's tile configuration and tiles. */
static uint64_t saved_state(void) {
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE)) {
        return 0;
    }
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

bool cpu_has_avx2(void) {
    unsigned a, b, c, d;
    const unsigned want = bit_FMA | bit_F16C | bit_AVX;
    if ((saved_state() & 0x6) != 0x6 || !__get_cpuid(1, &a, &b, &c, &d) || (c & want) != want) {
        return false;
    }
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & bit_AVX2);
}

bool cpu_has_avx512(void) {
    unsigned a, b, c, d;
    const unsigned want = bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL;
    if (!cpu_has_avx2() || (saved_state() & 0xe6) != 0xe6) {
        return false;
    }
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & want) == want;
}

bool cpu_has_vnni(void) {
    unsigned a, b, c, d;
    return cpu_has_avx512() && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (c & bit_AVX512VNNI);
}

bool cpu_has_bf16(void) {
    enum { AVX512_BF16 = 1 << 5 };
    unsigned a, b, c, d;
    return cpu_has_vnni() && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & AVX512_BF16);
}

/* Linux gives a process the 8 KB of tile state only if it asks; permission holds for all its threads. */
static bool request_tiles(void) {
    enum { REQUEST_STATE = 0x1023, TILE_DATA = 18 }; /* ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA */
    return syscall(SYS_arch_prctl, REQUEST_STATE, TILE_DATA) == 0;
}

bool cpu_has_amx(void) {
    const unsigned want = 1u << 22 | 1u << 24 | 1u << 25; /* AMX-BF16, AMX-TILE, AMX-INT8 */
    const uint64_t tiles = 3u << 17;
    unsigned a, b, c, d;
    if (!cpu_has_bf16() || (saved_state() & tiles) != tiles) {
        return false;
    }
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & want) == want && request_tiles();
}
#else
bool cpu_has_avx2(void) {
    return false;
}

bool cpu_has_avx512(void) {
    return false;
}

bool cpu_has_vnni(void) {
    return false;
}

bool cpu_has_bf16(void) {
    return false;
}

bool cpu_has_amx(void) {
    return false;
}
#endif

static bool read_line(const char *path, char *line, size_t size) {
    FILE *f = fopen(path, "re");
    if (!f) {
        return false;
    }
    bool ok = fgets(line, (int)size, f) != NULL;
    fclose(f);
    if (ok) {
        line[strcspn(line, "\n")] = 0;
    }
    return ok;
}

/*
 * Call `see` with the text of one cgroup v2 file (one line) of this process's group and of each group above it: the
 * tightest limit on the way holds. Without cgroups v2 nothing is seen.
 */
static void cgroup_each(const char *file, void (*see)(const char *text, size_t *limit), size_t *limit) {
    char line[1024], path[1200];
    FILE *f = fopen("/proc/self/cgroup", "re");
    if (!f) {
        return;
    }
    bool found = false;
    while (!found && fgets(line, sizeof line, f)) {
        found = strncmp(line, "0::/", 4) == 0;
    }
    fclose(f);
    if (!found) {
        return;
    }
    char *group = line + 3;
    group[strcspn(group, "\n")] = 0;
    for (;;) {
        char text[128];
        snprintf(path, sizeof path, "/sys/fs/cgroup%s/%s", group, file);
        if (read_line(path, text, sizeof text)) {
            see(text, limit);
        }
        char *slash = strrchr(group, '/');
        if (!slash) {
            return;
        }
        *slash = 0;
    }
}

size_t cpu_quota_threads(const char *text) {
    char *end;
    errno = 0;
    unsigned long long quota = strtoull(text, &end, 10); /* "max" gives no number */
    if (end == text || errno != 0 || quota == 0) {
        return 0;
    }
    unsigned long long period = strtoull(end, NULL, 10);
    if (period == 0) {
        return 0;
    }
    return (size_t)(quota / period + (quota % period != 0));
}

static void see_quota(const char *text, size_t *limit) {
    size_t n = cpu_quota_threads(text);
    if (n > 0 && n < *limit) {
        *limit = n;
    }
}

static void see_memory(const char *text, size_t *limit) {
    char *end;
    errno = 0;
    unsigned long long n = strtoull(text, &end, 10);
    if (end != text && errno == 0 && n > 0 && n < *limit) {
        *limit = (size_t)n;
    }
}

size_t cpu_available_threads(void) {
    size_t n = 0;
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) {
        n = (size_t)CPU_COUNT(&set);
    } else { /* more CPUs than a cpu_set_t holds */
        long online = sysconf(_SC_NPROCESSORS_ONLN);
        n = online > 0 ? (size_t)online : 0;
    }
    if (n == 0) {
        n = 1;
    }
    /* Threads that share a core share what computes: one a core. Where there is but one core, both still help each
     * other over waiting for memory. */
    bool mask[MAX_CPUS];
    struct topology t;
    if (topology_affinity(mask)) {
        topology_read("/sys/devices/system", mask, &t);
        n = t.n_cores >= 2 && t.n_cores < n ? t.n_cores : n;
    }
    cgroup_each("cpu.max", see_quota, &n);
    return n;
}

size_t cpu_available_memory(void) {
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGE_SIZE);
    size_t n = pages > 0 && page > 0 ? (size_t)pages * (size_t)page : 0;
    cgroup_each("memory.max", see_memory, &n);
    return n;
}
