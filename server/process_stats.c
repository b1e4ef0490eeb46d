#include "process_stats.h"

#include <dirent.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

/* The fields of /proc/self/stat behind the name, which may hold anything; see proc(5). */
static void read_stat(double *threads, double *virtual_bytes, double *resident_pages, double *start_ticks) {
    char text[1024];
    FILE *f = fopen("/proc/self/stat", "re");
    *threads = *virtual_bytes = *resident_pages = *start_ticks = 0;
    if (!f) {
        return;
    }
    text[fread(text, 1, sizeof text - 1, f)] = '\0';
    fclose(f);
    const char *rest = strrchr(text, ')');
    long n_threads, resident;
    unsigned long long start, size;
    if (rest && sscanf(rest + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %ld %*d %llu %llu %ld",
                       &n_threads, &start, &size, &resident) == 4) {
        *threads = (double)n_threads;
        *start_ticks = (double)start;
        *virtual_bytes = (double)size;
        *resident_pages = (double)resident;
    }
}

static double now(clockid_t clock) {
    struct timespec t = {0};
    clock_gettime(clock, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* Kept from the first call on: the wall clock may be set later, and a start that moves would look like a restart. */
static double start_time;

static void find_start_time(void) {
    double threads, bytes, pages, ticks;
    read_stat(&threads, &bytes, &pages, &ticks);
    double since_boot = ticks > 0 ? ticks / (double)sysconf(_SC_CLK_TCK) : now(CLOCK_BOOTTIME);
    start_time = now(CLOCK_REALTIME) - (now(CLOCK_BOOTTIME) - since_boot);
}

static double open_fds(void) {
    double n = -1; /* the one that looks */
    DIR *d = opendir("/proc/self/fd");
    if (!d) {
        return 0;
    }
    for (const struct dirent *e = readdir(d); e; e = readdir(d)) {
        n += e->d_name[0] != '.';
    }
    closedir(d);
    return n;
}

static double soft_limit(__rlimit_resource_t resource) {
    struct rlimit limit = {0};
    getrlimit(resource, &limit);
    return (double)limit.rlim_cur;
}

void process_stats_read(struct process_stats *out) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    struct rusage u = {0};
    double pages, ticks;
    pthread_once(&once, find_start_time);
    getrusage(RUSAGE_SELF, &u);
    read_stat(&out->threads, &out->virtual_bytes, &pages, &ticks);
    out->start_time = start_time;
    out->cpu_seconds =
        (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
    out->resident_bytes = pages * (double)sysconf(_SC_PAGESIZE);
    out->virtual_max_bytes = soft_limit(RLIMIT_AS);
    out->open_fds = open_fds();
    out->max_fds = soft_limit(RLIMIT_NOFILE);
}
