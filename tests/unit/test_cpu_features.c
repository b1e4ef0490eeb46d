#include "backend/cpu/cpu.h"

#include <criterion/criterion.h>
#include <sched.h>

Test(cpu_features, quota_is_rounded_up_to_whole_cpus) {
    cr_assert_eq(cpu_quota_threads("200000 100000"), 2);
    cr_assert_eq(cpu_quota_threads("150000 100000"), 2);
    cr_assert_eq(cpu_quota_threads("20000 100000"), 1);
    cr_assert_eq(cpu_quota_threads("6400000 100000"), 64);
}

Test(cpu_features, no_quota) {
    static const char *const texts[] = {"max 100000", "", "0 100000", "100000", "100000 0", "99999999999999999999 1"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        cr_assert_eq(cpu_quota_threads(texts[i]), 0, "%s", texts[i]);
    }
}

Test(cpu_features, threads_follow_the_affinity_mask) {
    cpu_set_t all, one;
    cr_assert_eq(sched_getaffinity(0, sizeof all, &all), 0);
    size_t n = cpu_available_threads();
    cr_assert(n >= 1 && n <= (size_t)CPU_COUNT(&all));
    int cpu = 0;
    while (!CPU_ISSET(cpu, &all)) {
        cpu++;
    }
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    cr_assert_eq(sched_setaffinity(0, sizeof one, &one), 0);
    cr_assert_eq(cpu_available_threads(), 1);
}

Test(cpu_features, there_is_memory) {
    cr_assert(cpu_available_memory() > 16u << 20);
}
