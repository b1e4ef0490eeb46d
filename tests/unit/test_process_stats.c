#include "process_stats.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

static void *sleeper(void *arg) {
    char byte;
    while (read(*(int *)arg, &byte, 1) < 0) {
    }
    return NULL;
}

Test(process_stats, they_follow_the_process) {
    struct process_stats before, after;
    int pipes[2];
    pthread_t thread;
    process_stats_read(&before);
    cr_assert_eq(pipe(pipes), 0);
    cr_assert_eq(pthread_create(&thread, NULL, sleeper, &pipes[0]), 0);
    process_stats_read(&after);
    cr_assert_eq(after.open_fds, before.open_fds + 2);
    cr_assert_geq(after.threads, 2);
    cr_assert_eq(after.threads, before.threads + 1);
    close(pipes[1]);
    pthread_join(thread, NULL);
    close(pipes[0]);

    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    cr_assert_eq(after.start_time, before.start_time);
    cr_assert_leq(after.start_time, (double)now.tv_sec + 1);
    cr_assert_geq(after.start_time, (double)now.tv_sec - 3600);
    cr_assert_gt(after.resident_bytes, 1 << 20);
    cr_assert_gt(after.virtual_bytes, after.resident_bytes);

    struct timespec begin, spin; /* 50 ms more than it has had */
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begin);
    do {
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &spin);
    } while ((spin.tv_sec - begin.tv_sec) * 1000000000 + (spin.tv_nsec - begin.tv_nsec) < 50000000);
    process_stats_read(&after);
    cr_assert_geq(after.cpu_seconds, before.cpu_seconds + 0.02);

    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = 77;
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    process_stats_read(&after);
    cr_assert_eq(after.max_fds, 77);
    cr_assert_eq(after.virtual_max_bytes, 18446744073709551616.0);
}
