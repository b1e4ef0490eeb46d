/*
 * libnvidia-ml.so.1 for tests: one GPU, and faults as the file that FAKE_NVML names orders them, a "name=number" a line,
 * read at every call: rc (result of nvmlDeviceGetMemoryInfo), hang (1: that call does not return), xid (reported once for
 * each new value), poor (1: this GPU tells memory alone), init (result of nvmlInit_v2), hang_init,
 * crash, devices, p2p (status of each pair), cuda.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static long order(const char *name, long otherwise) {
    const char *path = getenv("FAKE_NVML");
    FILE *f = path ? fopen(path, "re") : NULL;
    char line[128];
    size_t n = strlen(name);
    while (f && fgets(line, sizeof line, f)) {
        if (strncmp(line, name, n) == 0 && line[n] == '=') {
            otherwise = atol(line + n + 1);
        }
    }
    if (f) {
        fclose(f);
    }
    return otherwise;
}

static int rich(void) {
    return order("poor", 0) ? 3 : 0;
}

#define DEVICE(i) ((void *)(0x1000 + (size_t)(i)))

int nvmlInit_v2(void) {
    if (order("crash", 0)) {
        raise(SIGSEGV);
    }
    while (order("hang_init", 0)) {
        usleep(10000);
    }
    return (int)order("init", 0);
}
int nvmlShutdown(void) {
    return 0;
}
const char *nvmlErrorString(int rc) {
    return rc == 15 ? "GPU is lost" : rc == 9 ? "Driver Not Loaded" : "Unknown Error";
}
int nvmlSystemGetDriverVersion(char *out, unsigned int size) {
    snprintf(out, size, "580.65.06");
    return 0;
}
int nvmlSystemGetCudaDriverVersion_v2(int *out) {
    *out = (int)order("cuda", 13000);
    return 0;
}
int nvmlDeviceGetCount_v2(unsigned int *out) {
    *out = (unsigned)order("devices", 2);
    return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned int i, void **out) {
    *out = DEVICE(i);
    return i < (unsigned)order("devices", 2) ? 0 : 2;
}
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **out) {
    *out = DEVICE(1);
    return strcmp(bus, "0000:17:00.0") == 0 ? 0 : 6;
}
int nvmlDeviceGetName(void *device, char *out, unsigned int size) {
    snprintf(out, size, "Fake GPU %zu", (size_t)device - 0x1000);
    return 0;
}
int nvmlDeviceGetMinorNumber(void *device, unsigned int *out) {
    *out = (unsigned)((size_t)device - 0x1000);
    return 0;
}
int nvmlDeviceGetMemoryInfo(void *device, unsigned long long out[3]) {
    while (order("hang", 0)) {
        usleep(10000);
    }
    out[0] = 80ull << 30;
    out[1] = 79ull << 30;
    out[2] = (1ull << 30) + ((size_t)device - 0x1000);
    return (int)order("rc", 0);
}
int nvmlDeviceGetTemperature(void *device, int sensor, unsigned int *out) {
    (void)device;
    *out = sensor == 0 ? 41 : 0;
    return rich();
}
int nvmlDeviceGetPowerUsage(void *device, unsigned int *out) {
    (void)device;
    *out = 123500;
    return rich();
}
int nvmlDeviceGetTotalEnergyConsumption(void *device, unsigned long long *out) {
    (void)device;
    *out = 98765000;
    return rich();
}
int nvmlDeviceGetUtilizationRates(void *device, unsigned int out[2]) {
    (void)device;
    out[0] = 75;
    out[1] = 20;
    return rich();
}
int nvmlDeviceGetTotalEccErrors(void *device, int severity, int counter, unsigned long long *out) {
    (void)device;
    *out = counter != 0 ? 999 : severity == 0 ? 7 : 2;
    return rich();
}
int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *out) {
    (void)device;
    *out = 0x1 | 0x4 | 0x40; /* idle, power cap, thermal */
    return rich();
}
int nvmlEventSetCreate(void **out) {
    *out = DEVICE(100);
    return rich();
}
int nvmlDeviceRegisterEvents(void *device, unsigned long long kinds, void *events) {
    (void)device;
    return kinds == 8 && events == DEVICE(100) ? 0 : 2;
}
struct event {
    void *device;
    unsigned long long type, data;
    unsigned int instances[2];
};
int nvmlEventSetWait_v2(void *events, struct event *out, unsigned int ms) {
    static long told;
    long xid = order("xid", 0);
    (void)events;
    (void)ms;
    if (xid == told) {
        return 10; /* time is over */
    }
    told = xid;
    *out = (struct event){.type = 8, .data = (unsigned long long)xid};
    return 0;
}
int nvmlEventSetFree(void *events) {
    return events == DEVICE(100) ? 0 : 2;
}
int nvmlDeviceGetP2PStatus(void *a, void *b, int what, int *out) {
    *out = what == 2 || a == b ? 5 : (int)order("p2p", 0);
    return 0;
}
