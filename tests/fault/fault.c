/* What the linker puts between our code and libc's functions that meson.build names. See fault.h. */
#include "fault.h"

#include <cjson/cJSON.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static struct fault_state own;
static struct fault_state *faults = &own;

struct fault_state *fault_state(void) {
    return faults;
}

bool fault_strikes(_Atomic uint64_t *countdown) {
    uint64_t left = atomic_load(countdown);
    while (left > 0 && !atomic_compare_exchange_weak(countdown, &left, left - 1)) {
    }
    return left == 1;
}

/* ---- memory ---- */

static bool memory_fails(void) {
    atomic_fetch_add(&faults->alloc_calls, 1);
    if (!fault_strikes(&faults->alloc_n)) {
        return false;
    }
    uint64_t more = atomic_load(&faults->alloc_more);
    if (more > 0) { /* the next one, too */
        atomic_store(&faults->alloc_more, more - 1);
        atomic_store(&faults->alloc_n, 1);
    }
    atomic_fetch_add(&faults->alloc_struck, 1);
    errno = ENOMEM;
    return true;
}

/* WRAP(type, name, (parameters), (arguments), fails, what it returns then) */
#define WRAP(type, name, parameters, arguments, fails, failure)                                                        \
    type __real_##name parameters;                                                                                     \
    type __wrap_##name parameters;                                                                                     \
    type __wrap_##name parameters {                                                                                    \
        return (fails) ? (failure) : __real_##name arguments;                                                          \
    }

WRAP(void *, malloc, (size_t n), (n), memory_fails(), NULL)
WRAP(void *, calloc, (size_t n, size_t size), (n, size), memory_fails(), NULL)
WRAP(void *, realloc, (void *p, size_t n), (p, n), memory_fails(), NULL)
WRAP(void *, aligned_alloc, (size_t alignment, size_t n), (alignment, n), memory_fails(), NULL)
WRAP(char *, strdup, (const char *s), (s), memory_fails(), NULL)
WRAP(char *, strndup, (const char *s, size_t n), (s, n), memory_fails(), NULL)
WRAP(ssize_t, getline, (char **line, size_t *cap, FILE *f), (line, cap, f), memory_fails(), -1)
WRAP(ssize_t, __getdelim, (char **line, size_t *cap, int end, FILE *f), (line, cap, end, f), memory_fails(), -1)
WRAP(void *, mmap, (void *at, size_t n, int protection, int flags, int fd, off_t offset),
     (at, n, protection, flags, fd, offset), memory_fails(), MAP_FAILED)
WRAP(void *, mmap64, (void *at, size_t n, int protection, int flags, int fd, off_t offset),
     (at, n, protection, flags, fd, offset), memory_fails(), MAP_FAILED)
WRAP(FILE *, fopen, (const char *path, const char *mode), (path, mode), memory_fails(), NULL)
WRAP(FILE *, fopen64, (const char *path, const char *mode), (path, mode), memory_fails(), NULL)
WRAP(DIR *, opendir, (const char *path), (path), memory_fails(), NULL)
WRAP(int, pthread_create, (pthread_t * thread, const pthread_attr_t *attributes, void *(*run)(void *), void *arg),
     (thread, attributes, run, arg), memory_fails(), EAGAIN)

/* ---- the wall clock: the monotonic one never jumps ---- */

time_t __real_time(time_t *out);
time_t __wrap_time(time_t *out);
time_t __wrap_time(time_t *out) {
    time_t now = __real_time(NULL) + atomic_load(&faults->clock_offset_s);
    if (out) {
        *out = now;
    }
    return now;
}

int __real_clock_gettime(clockid_t clock, struct timespec *out);
int __wrap_clock_gettime(clockid_t clock, struct timespec *out);
int __wrap_clock_gettime(clockid_t clock, struct timespec *out) {
    int rc = __real_clock_gettime(clock, out);
    if (rc == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        out->tv_sec += atomic_load(&faults->clock_offset_s);
    }
    return rc;
}

int __real_gettimeofday(struct timeval *out, void *zone);
int __wrap_gettimeofday(struct timeval *out, void *zone);
int __wrap_gettimeofday(struct timeval *out, void *zone) {
    int rc = __real_gettimeofday(out, zone);
    out->tv_sec += atomic_load(&faults->clock_offset_s);
    return rc;
}

/* ---- before main ---- */

static void map_switches(const char *path) {
    int fd = open(path, O_RDWR | O_CLOEXEC);
    void *page =
        fd < 0 ? MAP_FAILED : __real_mmap(NULL, sizeof(struct fault_state), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (page == MAP_FAILED) {
        perror(path);
        _exit(2);
    }
    close(fd);
    faults = page;
}

__attribute__((constructor)) static void fault_begin(void) {
    const char *path = getenv("FAULT_FILE");
    if (path) {
        map_switches(path);
        fprintf(stderr, "inferd: fault hooks are on: %s\n", path);
    }
    atomic_store(&faults->magic, FAULT_MAGIC);
    cJSON_InitHooks(&(cJSON_Hooks){.malloc_fn = __wrap_malloc, .free_fn = free});
}
