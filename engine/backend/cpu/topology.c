#include "topology.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void topology_list(const char *text, void (*set)(void *arg, size_t n), void *arg) {
    while (*text) {
        char *end;
        unsigned long first = strtoul(text, &end, 10), last = first;
        if (end == text) {
            return;
        }
        if (*end == '-') {
            const char *from = end + 1;
            last = strtoul(from, &end, 10);
            if (end == from) {
                return;
            }
        }
        for (unsigned long n = first; n <= last && n < MAX_CPUS; n++) {
            set(arg, n);
        }
        if (*end != ',') {
            return;
        }
        text = end + 1;
    }
}

static bool read_text(const char *path, char *text, size_t size) {
    FILE *f = fopen(path, "re");
    if (!f) {
        return false;
    }
    size_t n = fread(text, 1, size - 1, f);
    fclose(f);
    text[n] = 0;
    return n > 0;
}

static void lowest(void *arg, size_t n) {
    size_t *least = arg;
    *least = n < *least ? n : *least;
}

/* The lowest CPU of its core, itself included. */
static uint16_t core_of(const char *root, size_t cpu) {
    char path[512], text[4096];
    size_t least = cpu;
    snprintf(path, sizeof path, "%s/cpu/cpu%zu/topology/thread_siblings_list", root, cpu);
    if (read_text(path, text, sizeof text)) {
        topology_list(text, lowest, &least);
    }
    return (uint16_t)least;
}

struct node_cpus {
    uint16_t *nodes; /* [MAX_CPUS] */
    uint16_t node;
};

static void put_node(void *arg, size_t cpu) {
    struct node_cpus *n = arg;
    n->nodes[cpu] = n->node;
}

static void read_nodes(const char *root, uint16_t *nodes) {
    for (uint16_t node = 0; node < MAX_NODES; node++) {
        char path[512], text[8192];
        struct node_cpus n = {nodes, node};
        snprintf(path, sizeof path, "%s/node/node%u/cpulist", root, (unsigned)node);
        if (read_text(path, text, sizeof text)) {
            topology_list(text, put_node, &n);
        }
    }
}

void topology_read(const char *root, const bool *mask, struct topology *out) {
    uint16_t nodes[MAX_CPUS] = {0}, cores[MAX_CPUS];
    bool first[MAX_CPUS] = {false}; /* of the CPUs that we have, the first of its core */
    bool seen[MAX_CPUS] = {false};  /* cores */
    *out = (struct topology){0};
    read_nodes(root, nodes);
    for (size_t i = 0; i < MAX_CPUS; i++) {
        if (mask[i]) {
            cores[i] = core_of(root, i);
            first[i] = !seen[cores[i]];
            seen[cores[i]] = true;
            out->n_cores += first[i];
        }
    }
    for (uint16_t node = 0; node < MAX_NODES; node++) {
        for (int sibling = 0; sibling < 2; sibling++) {
            for (size_t i = 0; i < MAX_CPUS; i++) {
                if (mask[i] && nodes[i] == node && first[i] == !sibling) {
                    out->cpus[out->n_cpus].cpu = (uint16_t)i;
                    out->cpus[out->n_cpus].core = cores[i];
                    out->cpus[out->n_cpus++].node = node;
                }
            }
        }
    }
}

bool topology_affinity(bool *mask) {
    cpu_set_t set;
    memset(mask, 0, MAX_CPUS * sizeof *mask);
    if (sched_getaffinity(0, sizeof set, &set) != 0) {
        return false;
    }
    for (size_t i = 0; i < MAX_CPUS && i < CPU_SETSIZE; i++) {
        mask[i] = CPU_ISSET(i, &set);
    }
    return true;
}

bool topology_share(const struct topology *t, size_t rank, size_t n_ranks, struct topology *out) {
    uint16_t cores[MAX_CPUS];
    size_t n = 0, first, count;
    if (n_ranks > t->n_cores) {
        return false;
    }
    for (size_t i = 0; i < t->n_cpus; i++) { /* those that begin a core, by node */
        bool seen = false;
        for (size_t j = 0; j < n && !seen; j++) {
            seen = cores[j] == t->cpus[i].core;
        }
        if (!seen) {
            cores[n++] = t->cpus[i].core;
        }
    }
    first = rank * (n / n_ranks) + (rank < n % n_ranks ? rank : n % n_ranks);
    count = n / n_ranks + (rank < n % n_ranks);
    struct topology share = {.n_cores = count};
    for (size_t i = 0; i < t->n_cpus; i++) {
        for (size_t j = first; j < first + count; j++) {
            if (t->cpus[i].core == cores[j]) {
                share.cpus[share.n_cpus++] = t->cpus[i];
            }
        }
    }
    *out = share;
    return true;
}

void topology_stay_on(const bool *mask) {
    cpu_set_t set;
    CPU_ZERO(&set);
    for (size_t i = 0; i < MAX_CPUS && i < CPU_SETSIZE; i++) {
        if (mask[i]) {
            CPU_SET(i, &set);
        }
    }
    (void)sched_setaffinity(0, sizeof set, &set);
}

void topology_stay(const struct topology *t) {
    bool mask[MAX_CPUS] = {false};
    for (size_t i = 0; i < t->n_cpus; i++) {
        mask[t->cpus[i].cpu] = true;
    }
    topology_stay_on(mask);
}

bool topology_place(const struct topology *t, size_t threads, uint16_t *cpus) {
    if (threads < 2 || (threads != t->n_cpus && threads != t->n_cores)) {
        return false;
    }
    size_t n = 0;
    bool taken[MAX_CPUS] = {false}; /* cores */
    for (size_t i = 0; i < t->n_cpus && n < threads; i++) {
        if (threads == t->n_cpus || !taken[t->cpus[i].core]) {
            cpus[n++] = t->cpus[i].cpu;
            taken[t->cpus[i].core] = true;
        }
    }
    return n == threads;
}

uint64_t topology_nodes(const struct topology *t) {
    uint64_t nodes = 0;
    for (size_t i = 0; i < t->n_cpus; i++) {
        nodes |= UINT64_C(1) << t->cpus[i].node;
    }
    return (nodes & (nodes - 1)) != 0 ? nodes : 0;
}
