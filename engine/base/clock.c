#include <inferd/clock.h>

#include <time.h>

uint64_t clock_now_ns(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

int64_t clock_unix_time(void) {
    return (int64_t)time(NULL);
}

double clock_lap(uint64_t *since) {
    uint64_t before = *since;
    *since = clock_now_ns();
    return (double)(*since - before) / 1e9;
}
