/*
 * Which CPUs this process has, how they belong together, and what follows for its threads and its memory.
 */
#ifndef CPU_TOPOLOGY_H
#define CPU_TOPOLOGY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { MAX_CPUS = 1024, MAX_NODES = 64 };

struct topology {
    size_t n_cpus; /* of the affinity mask, or 0 if nothing is known */
    struct {
        uint16_t cpu;
        uint16_t core; /* the lowest CPU that shares its core */
        uint16_t node;
    } cpus[MAX_CPUS]; /* by node, first CPUs of each core before their siblings, then by number */
    size_t n_cores;
};

/* From `root` ("/sys/devices/system", or a test's), for the CPUs in mask[MAX_CPUS]. What is missing there counts as one
 * node and as cores of one CPU. */
void topology_read(const char *root, const bool *mask, struct topology *out);
/* The affinity mask of the calling thread; false if it has more CPUs than MAX_CPUS. */
bool topology_affinity(bool *mask);

/*
 * The part of rank `rank` of n_ranks: whole cores, in the order of the nodes, as evenly as it goes, so that a rank has whole nodes where
 * that comes out even. False: there are more ranks than cores, and *out is untouched.
 */
bool topology_share(const struct topology *t, size_t rank, size_t n_ranks, struct topology *out);

/*
 * The CPU that each thread should stay on, cpus[threads]; false: the system shall choose. Threads are bound only if
 * they are as many as the CPUs, or as the cores: then they have the whole machine (or container) to themselves, and who
 * shares it with others has been given fewer.
 */
bool topology_place(const struct topology *t, size_t threads, uint16_t *cpus);

/* The calling thread stays on these CPUs from now on. What the system refuses is only slower. */
void topology_stay(const struct topology *t);
void topology_stay_on(const bool *mask); /* [MAX_CPUS] */

/* The memory nodes to spread a large piece over, bit n for node n: those of the CPUs, where they are several; 0: leave
 * it where it falls. */
uint64_t topology_nodes(const struct topology *t);

/* A CPU list as the kernel writes it, "0-3,8": calls set(arg, n) for each n < MAX_CPUS. */
void topology_list(const char *text, void (*set)(void *arg, size_t n), void *arg);

#endif
