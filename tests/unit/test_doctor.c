/* Each check of `inferd doctor`, on faked /proc, /sys and /dev. */
#include "doctor.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static char root[64];
static struct doctor d;

static void begin(void) {
    snprintf(root, sizeof root, "/tmp/inferd-test-XXXXXX");
    cr_assert(mkdtemp(root));
    d = (struct doctor){.root = root};
    unsetenv("FAKE_NVML");
}

static void end(void) {
    char command[160];
    snprintf(command, sizeof command, "rm -rf %s", root);
    cr_assert_eq(system(command), 0);
}

TestSuite(doctor, .init = begin, .fini = end);

static void put(const char *path, const char *text) {
    char full[256];
    snprintf(full, sizeof full, "%s%s", root, path);
    for (char *slash = full + strlen(root) + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = '\0';
        mkdir(full, 0700);
        *slash = '/';
    }
    FILE *f = fopen(full, "w");
    cr_assert(f, "%s", full);
    fputs(text, f);
    fclose(f);
}

/* The only finding with this status that has these words, and a remedy if it is no OK. */
static void says(enum doctor_status status, const char *check, const char *words) {
    for (size_t i = 0; i < d.n; i++) {
        const struct doctor_finding *f = &d.found[i];
        if (f->status == status && strcmp(f->check, check) == 0 && strstr(f->finding, words)) {
            return;
        }
    }
    for (size_t i = 0; i < d.n; i++) {
        fprintf(stderr, "%d %s: %s -> %s\n", d.found[i].status, d.found[i].check, d.found[i].finding, d.found[i].remedy);
    }
    cr_assert_fail("no finding \"%s\" of %s", words, check);
}

static bool remedy_has(const char *words) {
    for (size_t i = 0; i < d.n; i++) {
        if (strstr(d.found[i].remedy, words)) {
            return true;
        }
    }
    return false;
}

Test(doctor, memory) {
    doctor_check_memory(&d, 1);
    says(DOCTOR_NOTE, "memory", "/proc/meminfo tells nothing");
    put("/proc/meminfo", "MemTotal:        8000000 kB\nMemFree: 1 kB\nMemAvailable:    4000000 kB\n");
    d.n = 0;
    doctor_check_memory(&d, 0);
    says(DOCTOR_OK, "memory", "4.1 of 8.2 GB");
    doctor_check_memory(&d, 5000000000);
    says(DOCTOR_NOTE, "memory", "the model has 5.0 GB, and 4.1 of 8.2 GB are available");
    doctor_check_memory(&d, 9000000000);
    says(DOCTOR_FAULT, "memory", "the model has 9.0 GB, the machine 8.2 GB");
}

Test(doctor, huge_pages) {
    doctor_check_huge_pages(&d);
    says(DOCTOR_NOTE, "huge pages", "does not say");
    put("/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
    doctor_check_huge_pages(&d);
    says(DOCTOR_OK, "huge pages", "madvise");
    put("/sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n");
    doctor_check_huge_pages(&d);
    says(DOCTOR_NOTE, "huge pages", "they are off");
}

/* vllm#1710: the sentence must name the flags. */
Test(doctor, shm) {
    doctor_check_shm(&d);
    says(DOCTOR_NOTE, "/dev/shm", "there is none");
    d.root = "";
    doctor_check_shm(&d); /* the real one, whatever it is: a size is told */
    cr_assert_eq(d.n, 2);
    cr_assert(strstr(d.found[1].finding, "GB") || (strstr(d.found[1].finding, "MiB") && remedy_has("--shm-size=1g, or --ipc=host")));
}

Test(doctor, cgroup) {
    doctor_check_cgroup(&d, 1);
    says(DOCTOR_OK, "cgroup", "not of version 2");
    put("/proc/self/cgroup", "0::/system.slice/inferd.service\n");
    put("/sys/fs/cgroup/system.slice/inferd.service/memory.max", "max\n");
    d.n = 0;
    doctor_check_cgroup(&d, 1);
    says(DOCTOR_OK, "cgroup", "no limit");
    /* the tightest on the way up counts */
    put("/sys/fs/cgroup/system.slice/memory.max", "2000000000\n");
    put("/sys/fs/cgroup/system.slice/inferd.service/memory.max", "4000000000\n");
    put("/sys/fs/cgroup/system.slice/inferd.service/cpu.max", "50000 100000\n");
    put("/sys/fs/cgroup/system.slice/inferd.service/pids.max", "20\n");
    d.n = 0;
    doctor_check_cgroup(&d, 3000000000);
    says(DOCTOR_FAULT, "cgroup", "memory is limited to 2.0 GB, and the model has 3.0 GB");
    says(DOCTOR_NOTE, "cgroup", "limited to 0.5 CPUs");
    says(DOCTOR_FAULT, "cgroup", "only 20 threads");
    put("/sys/fs/cgroup/system.slice/inferd.service/cpu.max", "400000 100000\n");
    put("/sys/fs/cgroup/system.slice/inferd.service/pids.max", "max\n");
    d.n = 0;
    doctor_check_cgroup(&d, 1000);
    says(DOCTOR_OK, "cgroup", "limited to 4.0 CPUs");
    says(DOCTOR_OK, "cgroup", "memory is limited to 2.0 GB");
    cr_assert_eq(doctor_count(&d, DOCTOR_FAULT), 0);
    /* in a container the path is the root itself */
    put("/proc/self/cgroup", "0::/\n");
    put("/sys/fs/cgroup/memory.max", "1000000000\n");
    d.n = 0;
    doctor_check_cgroup(&d, 3000000000);
    says(DOCTOR_FAULT, "cgroup", "memory is limited to 1.0 GB");
}

Test(doctor, limits) {
    doctor_check_limits(&d, 5000, 1024, RLIM_INFINITY, true);
    says(DOCTOR_NOTE, "limits", "1024 descriptors may be open, and max_connections wants 5000");
    cr_assert_eq(d.n, 1);
    d.n = 0;
    doctor_check_limits(&d, 5000, 5000, 8 << 20, true);
    says(DOCTOR_OK, "limits", "enough descriptors");
    says(DOCTOR_NOTE, "limits", "8 MiB of memory may be locked");
    cr_assert(remedy_has("LimitMEMLOCK=infinity"));
    d.n = 0;
    doctor_check_limits(&d, 5000, 5000, 8 << 20, false); /* a CPU locks nothing */
    cr_assert_eq(d.n, 1);
}

Test(doctor, clock) {
    doctor_check_clock(&d, 0, 1);
    says(DOCTOR_FAULT, "clock", "it says 1970");
    doctor_check_clock(&d, 1790000000, 0);
    says(DOCTOR_NOTE, "clock", "nobody keeps it right");
    doctor_check_clock(&d, 1790000000, 1);
    says(DOCTOR_OK, "clock", "2026-09-21 14:13 UTC, kept right");
    doctor_check_clock(&d, 1790000000, -1);
    cr_assert_str_eq(d.found[3].finding, "2026-09-21 14:13 UTC");
}

Test(doctor, libmicrohttpd) {
    static const struct {
        const char *version;
        enum doctor_status status;
        const char *words;
    } cases[] = {
        {"0.9.71", DOCTOR_FAULT, "older than inferd was built for"},
        {"0.9.75", DOCTOR_OK, "CVE-2023-27371"},
        {"0.9.77", DOCTOR_OK, "CVE-2025-59777"},
        {"1.0.2", DOCTOR_OK, "CVE-2025-62689"},
        {"1.0.3", DOCTOR_OK, "1.0.3"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        doctor_check_libmicrohttpd(&d, cases[i].version);
        says(cases[i].status, "libmicrohttpd", cases[i].words);
    }
    cr_assert(!strstr(d.found[4].finding, "CVE"));
}

Test(doctor, processor) {
    struct config c;
    struct error err;
    cr_assert_eq(config_init(&c, &err), 0);
    doctor_check_cpu(&d, &c);
    cr_assert_neq(d.found[0].status, DOCTOR_FAULT);
    put("/proc/cpuinfo", "processor\t: 0\nflags\t\t: fpu sse avx2 avx512f avx512_vnnix amx_int8\nflags\t\t: fma\n");
    doctor_check_cpu(&d, &c);
    cr_assert(strstr(d.found[1].finding, " (has avx2 avx512f amx_int8): computes with"), "%s", d.found[1].finding);
    free(c.cpu_variant);
    c.cpu_variant = strdup("generic");
    doctor_check_cpu(&d, &c);
    says(DOCTOR_NOTE, "processor", "plain C");
    cr_assert(remedy_has("cpu_variant = auto"));
    free(c.cpu_variant);
    c.cpu_variant = strdup("no-such");
    doctor_check_cpu(&d, &c);
    says(DOCTOR_FAULT, "processor", "no such variant");
    config_free(&c);
}

/* nixpkgs#331069, ollama#10204: the node that is missing or shut is named, and what makes it. */
Test(doctor, device_nodes) {
    char path[128];
    put("/dev/nvidiactl", "");
    put("/dev/nvidia0", "");
    put("/dev/nvidia-caps", "");
    doctor_check_nodes(&d, DOCTOR_GPU_WANTED);
    cr_assert_eq(d.n, 1);
    says(DOCTOR_FAULT, "device node", "/dev/nvidia-uvm: No such file or directory");
    cr_assert(remedy_has("nvidia-modprobe -u -c 0"));
    d.n = 0;
    put("/dev/nvidia-uvm", "");
    doctor_check_nodes(&d, DOCTOR_GPU_WANTED);
    cr_assert_eq(d.n, 1);
    says(DOCTOR_OK, "device node", "/dev/nvidiactl /dev/nvidia-uvm /dev/nvidia0 can be opened");
    d.n = 0;
    snprintf(path, sizeof path, "%s/dev/nvidia0", root);
    unlink(path);
    doctor_check_nodes(&d, DOCTOR_GPU_WELCOME);
    says(DOCTOR_NOTE, "device node", "there is no /dev/nvidia0");
    cr_assert(remedy_has("--gpus all"));
    if (geteuid() == 0) { /* modes hold others */
        d.n = 0;
        put("/dev/nvidia0", "");
        chmod(path, 0600);
        chmod(root, 0755);
        snprintf(path, sizeof path, "%s/dev", root);
        chmod(path, 0755);
        cr_assert_eq(seteuid(65534), 0);
        doctor_check_nodes(&d, DOCTOR_GPU_WANTED);
        cr_assert_eq(seteuid(0), 0);
        says(DOCTOR_FAULT, "device node", "/dev/nvidia0: Permission denied (it belongs to user 0, group 0, mode 0600; this is user 65534)");
    }
}

Test(doctor, driver) {
    const char *library = getenv("INFERD_FAKE_NVML");
    char orders[128];
    doctor_check_driver(&d, "no-such-library.so", DOCTOR_GPU_WANTED);
    says(DOCTOR_FAULT, "driver", "cannot be loaded");
    cr_assert(remedy_has("install NVIDIA's driver"));
    put("/proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64\n");
    doctor_check_driver(&d, "no-such-library.so", DOCTOR_GPU_WELCOME);
    says(DOCTOR_NOTE, "driver", "the kernel module is loaded");
    cr_assert(remedy_has("NVIDIA_DRIVER_CAPABILITIES=compute,utility"));
    d.n = 0;
    doctor_check_driver(&d, library, DOCTOR_GPU_WANTED);
    says(DOCTOR_OK, "driver", "version 580.65.06, for programs up to CUDA 13.0; it knows 2 GPUs");
    says(DOCTOR_OK, "peer links", "2 GPUs reach each other's memory, 0 of 1 pairs by NVLink");
    snprintf(orders, sizeof orders, "%s/orders", root);
    setenv("FAKE_NVML", orders, 1);
    put("/orders", "devices=4\np2p=1\n");
    doctor_check_driver(&d, library, DOCTOR_GPU_WANTED);
    says(DOCTOR_NOTE, "peer links", "of 6 pairs of GPUs 6 cannot reach each other's memory, first 0 and 1");
    put("/orders", "devices=0\n");
    doctor_check_driver(&d, library, DOCTOR_GPU_WANTED);
    says(DOCTOR_FAULT, "driver", "it knows 0 GPUs");
    put("/orders", "init=9\n");
    doctor_check_driver(&d, library, DOCTOR_GPU_WANTED);
    says(DOCTOR_FAULT, "driver", "Driver Not Loaded");
}

Test(doctor, gpu_by_device) {
    struct config c;
    struct error err;
    cr_assert_eq(config_init(&c, &err), 0);
    doctor_check_gpu(&d, &c, "no-such-library.so", 10);
    says(DOCTOR_OK, "GPU", "device = auto takes the CPU");
    free(c.device);
    c.device = strdup("cpu");
    d.n = 0;
    doctor_check_gpu(&d, &c, "no-such-library.so", 10);
    cr_assert_eq(d.n, 0);
    free(c.device);
    c.device = strdup("cuda");
    free(c.cuda_module);
    c.cuda_module = strdup("no-such-module.so");
    doctor_check_gpu(&d, &c, "no-such-library.so", 10);
    says(DOCTOR_FAULT, "driver", "cannot be loaded");
    says(DOCTOR_FAULT, "device node", "/dev/nvidiactl");
    says(DOCTOR_FAULT, "CUDA module", "no-such-module.so");
    config_free(&c);
}

/* A driver that hangs is told, and does not take the doctor with it. */
Test(doctor, a_driver_that_hangs) {
    struct config c;
    struct error err;
    char orders[128];
    snprintf(orders, sizeof orders, "%s/orders", root);
    setenv("FAKE_NVML", orders, 1);
    put("/orders", "hang_init=1\n");
    cr_assert_eq(config_init(&c, &err), 0);
    free(c.device);
    c.device = strdup("cuda");
    doctor_check_gpu(&d, &c, getenv("INFERD_FAKE_NVML"), 1);
    cr_assert_eq(d.n, 1);
    says(DOCTOR_FAULT, "GPU", "has not answered within 1 s");
    d.n = 0;
    put("/orders", "crash=1\n");
    signal(SIGSEGV, SIG_DFL); /* and no report of a sanitizer */
    doctor_check_gpu(&d, &c, getenv("INFERD_FAKE_NVML"), 10);
    cr_assert_eq(d.n, 1);
    says(DOCTOR_FAULT, "GPU", "ended with signal 11");
    config_free(&c);
}

Test(doctor, printing) {
    struct buf out = BUF_INIT;
    doctor_add(&d, DOCTOR_OK, "a", NULL, "all is %s", "well");
    doctor_add(&d, DOCTOR_FAULT, "b", "do \"this\"", "it is not");
    doctor_print(&d, false, &out);
    cr_assert_str_eq(out.data, "ok     a              all is well\nFAULT  b              it is not\n"
                               "                      -> do \"this\"\n\n1 fault, 0 notes\n");
    buf_free(&out);
    out = (struct buf)BUF_INIT;
    doctor_print(&d, true, &out);
    cr_assert_str_eq(out.data, "{\"ok\": false, \"faults\": 1, \"notes\": 0, \"checks\": [\n"
                               "  {\"check\": \"a\", \"status\": \"ok\", \"finding\": \"all is well\", \"remedy\": null},\n"
                               "  {\"check\": \"b\", \"status\": \"fault\", \"finding\": \"it is not\", \"remedy\": \"do \\\"this\\\"\"}\n]}\n");
    buf_free(&out);
    for (int i = 0; i < 100; i++) {
        doctor_add(&d, DOCTOR_OK, "c", NULL, "more");
    }
    cr_assert_eq(d.n, DOCTOR_MAX);
}
