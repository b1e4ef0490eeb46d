#include "backend/cpu/cpu.h"

#include <criterion/criterion.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

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

/* Is `flag` one of the words that Linux shows for the first CPU? */
static bool linux_shows(const char *flag) {
    static char line[16384];
    FILE *f = fopen("/proc/cpuinfo", "re");
    bool found = false;
    cr_assert_not_null(f);
    while (!found && fgets(line, sizeof line, f) && line[0] != '\n') {
        if (strncmp(line, "flags", 5) != 0) {
            continue;
        }
        for (char *save = NULL, *word = strtok_r(line, " \t\n", &save); word; word = strtok_r(NULL, " \t\n", &save)) {
            found = found || strcmp(word, flag) == 0;
        }
    }
    fclose(f);
    return found;
}

static bool linux_shows_all(const char *const *flags, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (!linux_shows(flags[i])) {
            return false;
        }
    }
    return true;
}

Test(cpu_features, instruction_sets_are_those_that_linux_shows) {
    static const char *const flags[] = {"avx2",     "fma",         "f16c",        "avx512f",  "avx512bw", "avx512dq",
                                        "avx512vl", "avx512_vnni", "avx512_bf16", "amx_tile", "amx_int8", "amx_bf16"};
    cr_expect_eq(cpu_has_avx2(), linux_shows_all(flags, 3));
    cr_expect_eq(cpu_has_avx512(), linux_shows_all(flags, 7));
    cr_expect_eq(cpu_has_vnni(), linux_shows_all(flags, 8));
    cr_expect_eq(cpu_has_bf16(), linux_shows_all(flags, 9));
    /* Linux may show the unit and yet refuse its state, but never the other way round. */
    cr_expect(!cpu_has_amx() || linux_shows_all(flags, 12));
}
