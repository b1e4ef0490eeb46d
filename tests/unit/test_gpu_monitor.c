#include "gpu_monitor.h"

#include <criterion/criterion.h>
#include <inferd/clock.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char folder[64], orders[128], dev[128];

static void order(const char *text) {
    char next[160];
    snprintf(next, sizeof next, "%s.next", orders);
    FILE *f = fopen(next, "w");
    fputs(text, f);
    fclose(f);
    rename(next, orders);
}

static void begin(void) {
    snprintf(folder, sizeof folder, "/tmp/inferd-test-XXXXXX");
    cr_assert(mkdtemp(folder));
    snprintf(orders, sizeof orders, "%s/orders", folder);
    snprintf(dev, sizeof dev, "%s/dev", folder);
    mkdir(dev, 0700);
    setenv("FAKE_NVML", orders, 1);
}

static void end(void) {
    char command[160];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    cr_assert_eq(system(command), 0);
}

TestSuite(gpu_monitor, .init = begin, .fini = end);

static struct gpu_monitor_config config(const char *libcuda) {
    return (struct gpu_monitor_config){.library = getenv("INFERD_FAKE_NVML"), .libcuda = libcuda, .dev = dev, .ordinal = 0,
                                       .period_ms = 20, .patience_ms = 200};
}

static struct gpu_monitor *open_one(const struct gpu_monitor_config *c) {
    struct gpu_monitor *m;
    struct error err;
    cr_assert_eq(gpu_monitor_open(c, &m, &err), 0, "%s", err.message);
    return m;
}

static bool troubled(const struct gpu_monitor *m, const char *why) {
    const char *now = gpu_monitor_trouble(m);
    return why ? now && strstr(now, why) : !now;
}

static double value(const struct gpu_monitor *m, enum gpu_value what) {
    double values[GPU_VALUES];
    gpu_monitor_read(m, values);
    return values[what];
}

/* Until it is so, for at most 10 s. */
#define AWAIT(condition)                                                                                               \
    do {                                                                                                               \
        for (int i = 0; i < 2000 && !(condition); i++) {                                                               \
            usleep(5000);                                                                                              \
        }                                                                                                              \
        cr_assert(condition);                                                                                          \
    } while (0)

Test(gpu_monitor, figures) {
    struct gpu_monitor_config c = config("no-such-library.so");
    struct gpu_monitor *m = open_one(&c);
    AWAIT(value(m, GPU_ENERGY) > 0 && value(m, GPU_THROTTLE) > 0);
    cr_assert_eq(value(m, GPU_UP), 1);
    cr_assert_eq(value(m, GPU_MEMORY_USED), 1 << 30);
    cr_assert_eq(value(m, GPU_MEMORY_TOTAL), 80.0 * (1 << 30));
    cr_assert_eq(value(m, GPU_TEMPERATURE), 41);
    cr_assert_eq(value(m, GPU_POWER), 123.5);
    cr_assert_eq(value(m, GPU_ENERGY), 98765);
    cr_assert_eq(value(m, GPU_BUSY), 0.75);
    cr_assert_eq(value(m, GPU_ECC_CORRECTED), 7);
    cr_assert_eq(value(m, GPU_ECC_UNCORRECTED), 2);
    cr_assert_eq(value(m, GPU_THROTTLE), 0x45);
    cr_assert_eq(value(m, GPU_XIDS), 0);
    cr_assert(troubled(m, NULL));
    order("xid=79\n");
    AWAIT(value(m, GPU_XIDS) == 1);
    cr_assert_eq(value(m, GPU_LAST_XID), 79);
    order("xid=48\n");
    AWAIT(value(m, GPU_XIDS) == 2);
    cr_assert_eq(value(m, GPU_LAST_XID), 48);
    cr_assert(gpu_monitor_close(m));
}

/* CUDA's number 0 is NVML's 1 where CUDA says where it lies on the bus. */
Test(gpu_monitor, the_device_is_found_by_its_bus) {
    struct gpu_monitor_config c = config(getenv("INFERD_FAKE_LIBCUDA"));
    struct gpu_monitor *m = open_one(&c);
    AWAIT(value(m, GPU_MEMORY_USED) == (1 << 30) + 1);
    cr_assert(gpu_monitor_close(m));
}

Test(gpu_monitor, what_a_gpu_does_not_tell_is_not_a_number) {
    order("poor=1\n");
    struct gpu_monitor_config c = config("no-such-library.so");
    struct gpu_monitor *m = open_one(&c);
    AWAIT(value(m, GPU_MEMORY_USED) == 1 << 30);
    cr_assert(isnan(value(m, GPU_TEMPERATURE)) && isnan(value(m, GPU_POWER)) && isnan(value(m, GPU_BUSY)));
    cr_assert(value(m, GPU_ECC_CORRECTED) == 0 && value(m, GPU_XIDS) == 0 && value(m, GPU_THROTTLE) == 0);
    cr_assert(troubled(m, NULL));
    cr_assert(gpu_monitor_close(m));
}

Test(gpu_monitor, an_error_is_trouble_until_it_ends) {
    struct gpu_monitor_config c = config("no-such-library.so");
    struct gpu_monitor *m = open_one(&c);
    AWAIT(value(m, GPU_UP) == 1);
    order("rc=15\n");
    AWAIT(troubled(m, "error"));
    cr_assert_eq(value(m, GPU_UP), 0);
    order("");
    AWAIT(troubled(m, NULL) && value(m, GPU_UP) == 1);
    order("rc=3\n"); /* not supported, as on chips without memory of their own */
    usleep(100000);
    cr_assert(troubled(m, NULL));
    cr_assert(gpu_monitor_close(m));
}

/* nvidia-container-toolkit#48: what is open still works, but no node can be opened again. */
Test(gpu_monitor, nodes_that_are_taken_away) {
    struct gpu_monitor_config c = config("no-such-library.so");
    char control[160], device[160], hidden[170];
    snprintf(control, sizeof control, "%s/nvidiactl", dev);
    snprintf(device, sizeof device, "%s/nvidia0", dev);
    snprintf(hidden, sizeof hidden, "%s.hidden", device);
    close(open(control, O_CREAT | O_RDWR, 0600));
    close(open(device, O_CREAT | O_RDWR, 0600));
    struct gpu_monitor *m = open_one(&c);
    AWAIT(value(m, GPU_UP) == 1);
    rename(device, hidden);
    AWAIT(troubled(m, "device nodes"));
    cr_assert_eq(value(m, GPU_UP), 0);
    rename(hidden, device);
    AWAIT(troubled(m, NULL));
    cr_assert(gpu_monitor_close(m));
    /* a node that never was there is no loss */
    m = open_one(&c);
    AWAIT(value(m, GPU_UP) == 1);
    usleep(100000);
    cr_assert(troubled(m, NULL));
    cr_assert(gpu_monitor_close(m));
}

Test(gpu_monitor, a_driver_that_never_answered_is_no_trouble) {
    struct gpu_monitor_config c = config("no-such-library.so");
    order("init=9\n");
    struct gpu_monitor *m = open_one(&c);
    usleep(400000);
    cr_assert(troubled(m, NULL));
    cr_assert_eq(value(m, GPU_UP), 0);
    cr_assert(gpu_monitor_close(m));
    c.library = "no-such-library.so";
    struct error err;
    cr_assert_eq(gpu_monitor_open(&c, &m, &err), -1);
    cr_assert_eq(err.code, ERROR_DEVICE);
    cr_assert(gpu_monitor_close(NULL));
}

/* ollama#7771: neither the probe nor the end of the process waits for a driver that hangs. */
Test(gpu_monitor, a_driver_that_hangs) {
    struct gpu_monitor_config c = config("no-such-library.so");
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        struct gpu_monitor *m = NULL;
        struct error err;
        if (gpu_monitor_open(&c, &m, &err) != 0) {
            _exit(10);
        }
        for (int i = 0; i < 2000 && value(m, GPU_UP) != 1; i++) {
            usleep(5000);
        }
        order("hang=1\n");
        for (int i = 0; i < 2000 && !troubled(m, "does not answer"); i++) {
            usleep(5000);
        }
        uint64_t before = clock_now_ns();
        if (!troubled(m, "does not answer") || value(m, GPU_UP) != 0) {
            _exit(11);
        }
        if (clock_now_ns() - before > 100000000u) {
            _exit(12);
        }
        if (gpu_monitor_close(m)) {
            _exit(13);
        }
        exit(clock_now_ns() - before < 3000000000u ? 7 : 14);
    }
    int status;
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 7, "status %x", (unsigned)status);
}
