#include "memory.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void put(const char *folder, const char *name, const char *content) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    for (char *p = path + 1; (p = strchr(p, '/')); p++) {
        *p = '\0';
        mkdir(path, 0700);
        *p = '/';
    }
    FILE *f = fopen(path, "w");
    cr_assert_not_null(f, "%s", path);
    fputs(content, f);
    fclose(f);
}

Test(memory, the_tightest_cgroup_counts) {
    char root[] = "/tmp/inferd-test-XXXXXX", proc[64], cgroup[64], command[128];
    size_t bytes;
    struct error err;
    cr_assert_not_null(mkdtemp(root));
    snprintf(proc, sizeof proc, "%s/proc", root);
    snprintf(cgroup, sizeof cgroup, "%s/cgroup", root);
    cr_assert_eq(memory_available_at(proc, cgroup, &bytes, &err), -1);
    put(proc, "meminfo", "MemTotal:       99 kB\nMemFree:        7 kB\nMemAvailable:   4000 kB\n");
    cr_assert_eq(memory_available_at(proc, cgroup, &bytes, &err), 0);
    cr_assert_eq(bytes, 4000 * 1024);
    put(proc, "self/cgroup", "0::/a/b\n");
    put(cgroup, "a/memory.max", "3000000\n");
    put(cgroup, "a/memory.current", "1000000\n");
    put(cgroup, "a/memory.stat", "anon 600000\nfile 400000\nfile_mapped 5\n");
    put(cgroup, "a/b/memory.max", "max\n");
    cr_assert_eq(memory_available_at(proc, cgroup, &bytes, &err), 0);
    cr_assert_eq(bytes, 3000000 - 600000, "the parent's limit; file pages can be given up");
    put(cgroup, "a/b/memory.max", "500\n");
    put(cgroup, "a/b/memory.current", "700\n");
    cr_assert_eq(memory_available_at(proc, cgroup, &bytes, &err), 0);
    cr_assert_eq(bytes, 0);
    snprintf(command, sizeof command, "rm -r %s", root);
    cr_assert_eq(system(command), 0);
}

Test(memory, this_machine_has_some) {
    size_t bytes;
    struct error err;
    cr_assert_eq(memory_available(&bytes, &err), 0, "%s", err.message);
    cr_assert_gt(bytes, (size_t)1 << 20);
}
