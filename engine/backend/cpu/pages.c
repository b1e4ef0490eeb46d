#include "pages.h"

#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static void *map(size_t bytes) {
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

/* A mapping that begins at a multiple of HUGE_PAGE: a larger one, less what is before and behind. */
static void *map_aligned(size_t bytes) {
    if (bytes > SIZE_MAX - 2 * (size_t)HUGE_PAGE) {
        return NULL;
    }
    char *p = map(bytes + HUGE_PAGE);
    if (!p) {
        return NULL;
    }
    size_t page = (size_t)sysconf(_SC_PAGESIZE), kept = (bytes + page - 1) / page * page;
    size_t before = (HUGE_PAGE - (uintptr_t)p % HUGE_PAGE) % HUGE_PAGE;
    if (before > 0) {
        munmap(p, before);
    }
    munmap(p + before + kept, HUGE_PAGE - before);
    return p + before;
}

void *pages_map(size_t bytes, uint64_t nodes, bool huge) {
    bool large = bytes >= (size_t)HUGE_FROM;
    char *p = large ? map_aligned(bytes) : map(bytes);
    if (p && large && huge) {
        madvise(p, bytes / HUGE_PAGE * HUGE_PAGE, MADV_HUGEPAGE);
    }
    if (p && nodes != 0) {
        unsigned long mask[2] = {nodes, 0};
        syscall(SYS_mbind, p, bytes, MPOL_INTERLEAVE, mask, 8 * sizeof mask, 0ul);
    }
    return p;
}

void pages_unmap(void *p, size_t bytes) {
    if (p) {
        munmap(p, bytes);
    }
}
