/* How much memory there is. */
#ifndef INFERD_MEMORY_H
#define INFERD_MEMORY_H

#include <inferd/error.h>
#include <stddef.h>

/*
 * Bytes this process may still take: MemAvailable (what the kernel can give without swapping, clean file pages
 * included), or what is left under the tightest cgroup limit above the process if that is less.
 */
int memory_available(size_t *bytes, struct error *err);

/* The same from given places, for tests: `proc` for /proc, `cgroup` for /sys/fs/cgroup. */
int memory_available_at(const char *proc, const char *cgroup, size_t *bytes, struct error *err);

#endif
