/* Which CPUs belong together, and what follows, on machines made of files. */
#include "backend/cpu/pages.h"
#include "backend/cpu/topology.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static char root[64];

static void put(const char *path, const char *text) {
    char full[256];
    snprintf(full, sizeof full, "%s/%s", root, path);
    for (char *slash = strchr(full + strlen(root) + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        mkdir(full, 0700);
        *slash = '/';
    }
    FILE *f = fopen(full, "w");
    cr_assert_not_null(f);
    fputs(text, f);
    fclose(f);
}

static void make_root(void) {
    strcpy(root, "/tmp/inferd-topology-XXXXXX");
    cr_assert_not_null(mkdtemp(root));
}

static void remove_root(void) {
    char command[128];
    snprintf(command, sizeof command, "rm -r %s", root);
    cr_assert_eq(system(command), 0);
}

/* Two nodes of two cores of two CPUs; siblings are 4 apart, as Intel numbers them. */
static void two_nodes(void) {
    static const char *const siblings[] = {"0,4\n", "1,5\n", "2,6\n", "3,7\n"};
    make_root();
    put("node/node0/cpulist", "0-1,4-5\n");
    put("node/node1/cpulist", "2-3,6-7\n");
    for (int i = 0; i < 8; i++) {
        char path[64];
        snprintf(path, sizeof path, "cpu/cpu%d/topology/thread_siblings_list", i);
        put(path, siblings[i % 4]);
    }
}

/* Of the CPUs named by their digits. */
static struct topology read_cpus(const char *digits) {
    bool mask[MAX_CPUS] = {false};
    struct topology t;
    for (const char *p = digits; *p; p++) {
        mask[*p - '0'] = true;
    }
    topology_read(root, mask, &t);
    return t;
}

static void expect_place(const struct topology *t, size_t threads, const char *want) {
    uint16_t cpus[MAX_CPUS];
    char got[16] = "";
    if (topology_place(t, threads, cpus)) {
        for (size_t i = 0; i < threads; i++) {
            got[i] = (char)('0' + cpus[i]);
        }
    }
    cr_expect_str_eq(got, want, "%zu threads: %s, not %s", threads, got, want);
}

Test(cpu_topology, two_nodes, .init = two_nodes, .fini = remove_root) {
    struct topology t = read_cpus("01234567");
    cr_expect_eq(t.n_cpus, 8);
    cr_expect_eq(t.n_cores, 4);
    cr_expect_eq(topology_nodes(&t), 3);
    expect_place(&t, 8, "01452367"); /* node by node, a CPU of each core first */
    expect_place(&t, 4, "0123");     /* as many as cores */
    expect_place(&t, 2, "");         /* who takes a part may share the machine with others that take a part */
    expect_place(&t, 3, "");
    expect_place(&t, 9, "");
    expect_place(&t, 1, "");
}

Test(cpu_topology, a_part_of_the_machine, .init = two_nodes, .fini = remove_root) {
    struct topology t = read_cpus("2367");
    cr_expect_eq(t.n_cores, 2);
    cr_expect_eq(topology_nodes(&t), 0, "one node: nothing to spread over");
    expect_place(&t, 4, "2367");
    expect_place(&t, 2, "23");
    t = read_cpus("056"); /* 5 and 6 are the only ones of their cores that we have */
    cr_expect_eq(t.n_cores, 3);
    cr_expect_eq(topology_nodes(&t), 3);
    expect_place(&t, 3, "056");
}

static void expect_share(const struct topology *t, size_t rank, size_t n_ranks, const char *want) {
    struct topology share;
    char got[16] = "";
    if (topology_share(t, rank, n_ranks, &share)) {
        for (size_t i = 0; i < share.n_cpus; i++) {
            got[i] = (char)('0' + share.cpus[i].cpu);
        }
        got[share.n_cpus] = '\0';
    }
    cr_expect_str_eq(got, want, "rank %zu of %zu: %s, not %s", rank, n_ranks, got, want);
}

Test(cpu_topology, ranks, .init = two_nodes, .fini = remove_root) {
    struct topology t = read_cpus("01234567"), share;
    expect_share(&t, 0, 1, "01452367");
    expect_share(&t, 0, 2, "0145"); /* a node each */
    expect_share(&t, 1, 2, "2367");
    expect_share(&t, 0, 3, "0145"); /* two cores, then one each */
    expect_share(&t, 1, 3, "26");
    expect_share(&t, 2, 3, "37");
    expect_share(&t, 3, 4, "37");
    expect_share(&t, 0, 5, ""); /* more than cores: nothing is anybody's own */
    cr_assert(topology_share(&t, 1, 2, &share));
    cr_expect_eq(share.n_cores, 2);
    cr_expect_eq(topology_nodes(&share), 0, "its memory is on its node");
    expect_place(&share, 4, "2367");
}

Test(cpu_topology, nothing_known, .init = make_root, .fini = remove_root) {
    struct topology t = read_cpus("013");
    cr_expect_eq(t.n_cpus, 3);
    cr_expect_eq(t.n_cores, 3);
    cr_expect_eq(topology_nodes(&t), 0);
    expect_place(&t, 3, "013");
}

static void note(void *arg, size_t n) {
    size_t len = strlen(arg);
    snprintf((char *)arg + len, 64 - len, "%zu ", n);
}

Test(cpu_topology, lists) {
    static const struct {
        const char *text, *want;
    } cases[] = {{"0-3,8\n", "0 1 2 3 8 "},
                 {"", ""},
                 {"\n", ""},
                 {"7", "7 "},
                 {"3-1", ""},
                 {"1,x", "1 "},
                 {"1-", ""},
                 {"1020-4000000000", "1020 1021 1022 1023 "},
                 {"99999999999999999999", ""}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char got[64] = "";
        topology_list(cases[i].text, note, got);
        cr_expect_str_eq(got, cases[i].want, "\"%s\": %s", cases[i].text, got);
    }
}

/* This machine's own. */
Test(cpu_topology, here) {
    bool mask[MAX_CPUS];
    struct topology t;
    cr_assert(topology_affinity(mask));
    topology_read("/sys/devices/system", mask, &t);
    cr_expect(t.n_cpus >= 1 && t.n_cores >= 1 && t.n_cores <= t.n_cpus);
}

/* Large and small pieces, with wishes that this machine may not grant: nodes that it does not have. */
Test(cpu_topology, pages) {
    static const size_t sizes[] = {1, 4096, HUGE_FROM - 1, HUGE_FROM, HUGE_FROM + 1, 3 * (size_t)HUGE_FROM + 12345};
    static const uint64_t nodes[] = {0, 1, 3, UINT64_C(1) << 63};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        for (size_t j = 0; j < 4; j++) {
            unsigned char *p = pages_map(sizes[i], nodes[j], true);
            cr_assert_not_null(p);
            cr_expect(sizes[i] < HUGE_FROM || (uintptr_t)p % HUGE_PAGE == 0);
            cr_expect(p[0] == 0 && p[sizes[i] / 2] == 0 && p[sizes[i] - 1] == 0);
            p[0] = p[sizes[i] - 1] = 1;
            pages_unmap(p, sizes[i]);
        }
    }
    cr_expect_null(pages_map(SIZE_MAX - 5, 0, true));
    pages_unmap(NULL, 5);
}
