/* How this rank's device reaches those of the others, in words: which links the driver says there are. */
#include "collective.h"

#include <stdio.h>

static const char *const kinds[] = {"NVLink", "PCIe", "memory of the host"};

/* Atomic operations go over NVLink alone. */
static size_t kind_of(int device, int peer) {
    int access = 0, atomics = 0;
    if (cudaDeviceGetP2PAttribute(&access, cudaDevP2PAttrAccessSupported, device, peer) != cudaSuccess || !access) {
        (void)cudaGetLastError();
        return 2;
    }
    if (cudaDeviceGetP2PAttribute(&atomics, cudaDevP2PAttrNativeAtomicSupported, device, peer) != cudaSuccess) {
        (void)cudaGetLastError();
        return 1;
    }
    return atomics ? 0 : 1;
}

void cuda_describe_links(const struct cuda_group *g, char *out, size_t size) {
    bool of_kind[COLLECTIVE_MAX_RANKS + 1];
    size_t at = 0, n = g->base.size;
    int me = g->b->ordinal;
    out[0] = '\0';
    for (size_t kind = 0; kind < sizeof kinds / sizeof *kinds; kind++) {
        size_t count = 0;
        for (size_t i = 0; i < n; i++) {
            of_kind[i] = i != g->base.rank && kind_of(me, g->team->ranks[i].backend->ordinal) == kind;
            count += of_kind[i];
        }
        of_kind[n] = false;
        if (count == 0) {
            continue;
        }
        at += at < size ? (size_t)snprintf(out + at, size - at, "%s (", kinds[kind]) : 0;
        const char *between = "";
        for (size_t i = 0, first = 0; i < n; i++) { /* runs of ranks */
            first = of_kind[i] && (i == 0 || !of_kind[i - 1]) ? i : first;
            if (of_kind[i] && !of_kind[i + 1]) {
                at += at < size ? (size_t)snprintf(out + at, size - at, first < i ? "%s%zu-%zu" : "%s%zu", between, first, i) : 0;
                between = ", ";
            }
        }
        at += at < size ? (size_t)snprintf(out + at, size - at, "), ") : 0;
    }
}
