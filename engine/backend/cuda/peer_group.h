/* A rank's part of peer memory: opened with its group, where all ranks see one another's memory and what it delivers is right. */
#ifndef INFERD_CUDA_PEER_GROUP_H
#define INFERD_CUDA_PEER_GROUP_H

#include "collective.h"
#include "peer.h"

struct cuda_peer {
    struct peer_view view;
    struct peer_memory *memory; /* device memory of this rank */
    uint32_t *stop;             /* pinned host memory */
    size_t one_shot;            /* bytes up to which a sum takes one shot */
};

/*
 * All ranks of the group. *out NULL: it is not used, and why[] says for what reason. Access is tried, not believed: what each rank
 * has laid down is copied and compared, then sums of both shapes are. Fails only where the group or the device is lost.
 */
int cuda_peer_open(struct cuda_group *g, struct cuda_peer **out, char why[96], struct error *err);
void cuda_peer_close(struct cuda_peer *p); /* NULL is fine; no rank uses it any more */

/* Does a sum of so many bytes go through it? */
static inline bool cuda_peer_takes(const struct cuda_peer *p, size_t bytes) {
    return p && bytes <= PEER_BYTES;
}

#endif
