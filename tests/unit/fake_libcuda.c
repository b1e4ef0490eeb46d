/* libcuda.so.1 for tests: it tells where the first device is on the bus, and its version. */
#include <stdio.h>

int cuInit(unsigned int flags) {
    return (int)flags;
}
int cuDeviceGet(int *out, int ordinal) {
    *out = ordinal + 5;
    return ordinal == 0 ? 0 : 101;
}
int cuDeviceGetPCIBusId(char *out, int size, int device) {
    snprintf(out, (size_t)size, "0000:17:00.0");
    return device == 5 ? 0 : 101;
}
int cuDriverGetVersion(int *out) {
    *out = 13000;
    return 0;
}
