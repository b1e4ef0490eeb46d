/*
 * Ranks on GPUs: what they do together, queued on the backend's stream. NCCL does all of it; sums of few bytes may go through
 * peer memory (peer.h), where the devices see one another's.
 *
 * The host never waits for the stream without a limit while a group is open: cuda_wait polls it, looks whether a rank has
 * failed, and gives up behind the group's deadline. Then the rank's communicator is aborted, which ends what is stuck in the
 * stream, and the backend is lost. Each rank does that on its own thread; the others hear of it through the team.
 *
 * Until start-up is over, ranks of one process meet before and behind each call of NCCL: with peer access an allocation of one
 * device may wait for all devices, and so for a collective that waits for the rank that allocates.
 */
#ifndef INFERD_CUDA_COLLECTIVE_H
#define INFERD_CUDA_COLLECTIVE_H

#include "cuda.h"
#include "nccl_api.h"

#include <inferd/collective.h>
#include <stdatomic.h>

/* What the ranks that are threads of this process know of one another; the first opens it, the last to leave frees it. */
struct cuda_team {
    size_t size;
    _Atomic uint32_t members;
    _Atomic bool claimed;    /* by the first to break it, who then writes why, then broken */
    _Atomic uint32_t broken; /* 0; else 1 + the rank at fault, or 1 + size: told to stop */
    struct error why;
    struct {
        _Alignas(64) _Atomic uint64_t queued; /* collectives and graphs; all ranks queue the same */
        struct backend *backend;              /* for peers: written before the first meeting in open */
    } ranks[COLLECTIVE_MAX_RANKS];
};

struct cuda_peer; /* peer.h */

struct cuda_group {
    struct collective base;
    struct backend *b;
    struct collective *host;
    struct cuda_team *team; /* shared where host has shared memory, else of this rank alone */
    const struct nccl_api *nccl;
    ncclComm_t comm; /* NULL: aborted */
    uint64_t deadline_ns;
    struct cuda_buffer workspace; /* what ranks give, side by side, before it is summed or put in columns */
    struct cuda_peer *peer;       /* NULL: peer memory is not used */
};

/* ---- collective.c ---- */

int cuda_collective_open(struct backend *b, struct collective *host, struct collective **out, char what[BACKEND_LINKS],
                         struct error *err);
/* Of reserve: memory for the largest gather_columns. */
int cuda_group_reserve(struct cuda_group *g, const struct backend_shapes *shapes, struct error *err);

/*
 * Around whatever waits for other ranks, in this order: enter (fails if the group is broken), the launch, leave. They count it,
 * and keep ranks together during start-up. A graph launch is such a thing too.
 */
int cuda_group_enter(struct cuda_group *g, struct error *err);
int cuda_group_leave(struct cuda_group *g, struct error *err);

/* ---- links.c ---- */

/* "NVLink (1-3), PCIe (4), ", in brackets the ranks: of a group in one process, once all ranks have joined the team. */
void cuda_describe_links(const struct cuda_group *g, char *out, size_t size);

/* ---- nccl_nodes.c ---- */

int cuda_nodes_open(size_t ordinal, size_t rank, size_t size, size_t deadline_ms, struct collective **out, struct error *err);

/* ---- collective_wait.c ---- */

/* -1 if a rank has failed: the reason, and this rank's communicator is aborted. */
int cuda_group_alive(struct cuda_group *g, struct error *err);
/* The team hears of a failure of this rank; the first counts. */
void cuda_group_break(struct cuda_group *g, const struct error *why);
/* Until the event (NULL: all of the stream) is done, or the group's deadline. */
int cuda_group_wait(struct cuda_group *g, cudaEvent_t event, const char *what, struct error *err);
/* Before memory is freed, which waits for the stream without a limit: what is stuck in it is ended. */
void cuda_group_settle(struct cuda_group *g);

#endif
