/* What nccl.cc, whose ranks are threads, and nccl_net.cc, whose ranks are processes, share. */
#ifndef EMU_NCCL_INSIDE_H
#define EMU_NCCL_INSIDE_H

#include "nccl.h"
#include "runtime.h"

#include <deque>

namespace emu {

enum class What { all_reduce, all_gather, broadcast, send, recv };
[[maybe_unused]] static const char *const names[] = {"ncclAllReduce", "ncclAllGather", "ncclBroadcast", "ncclSend", "ncclRecv"};

/* One rank's call. */
struct Part {
    What what;
    const void *from;
    void *to;
    size_t n;
    ncclDataType_t type;
    ncclRedOp_t op;
    int other; /* root or peer */
};

struct Member;

/* A meeting of NCCL, and what each who came gave. */
struct Round : Meeting {
    std::vector<std::pair<std::shared_ptr<Member>, Part>> parts;
};
using RoundPtr = std::shared_ptr<Round>;

/* The ranks of one unique id. */
struct Ranks {
    int size = 0, come = 0, left = 0;
    std::vector<std::shared_ptr<Member>> members; /* by rank; null: not yet; empty once all have come */
    std::vector<int> ring;                        /* in which order sums go round */
    std::map<uint64_t, RoundPtr> rounds;          /* not complete yet, by number */
    std::map<std::pair<int, int>, std::deque<RoundPtr>> half; /* a send or a receive of (from, to) without the other */

    void forget() { /* which members look at, as these at them */
        members.clear();
        rounds.clear();
        half.clear();
    }
};

struct Net; /* nccl_net.cc */

struct Member {
    std::shared_ptr<Ranks> ranks;
    std::shared_ptr<Net> net; /* its ranks are processes; null: threads of this one */
    int rank = 0, device = 0;
    bool gone = false; /* destroyed, aborted */
    ncclResult_t async = ncclSuccess;
    uint64_t next = 0; /* number of its next round */
    std::vector<OpPtr> ops; /* some done already */
    std::vector<void *> memory;
    unsigned used = 0; /* bits of What */
};
using MemberPtr = std::shared_ptr<Member>;

size_t type_bytes(ncclDataType_t t);
std::string describe(const Member &m, const Part &p);
size_t bytes_given(const Member &m, const Part &p);

/* ---- nccl_net.cc ---- */

/*
 * The first call of a process chooses the interface of its bootstrap, and what became of it is kept. At `place` ("host:port", null: anywhere)
 * it has to be one in the subnet of that address; here, as where each pod is a subnet of its own, none but what has it.
 */
ncclResult_t net_choose_interface(const char *place);
/* Whether there is such a place, by now. */
bool net_is_place(const std::string &place);
/* Meets `size` processes at "host:port", where rank 0 is; blocks until all have come. "": well, else what went wrong. */
std::string net_join(const std::string &place, int size, int rank, std::shared_ptr<Net> *out);
/* Begin to receive: under the lock, once the member is known. */
void net_begin(const MemberPtr &m);
/* A call, queued on the stream. */
cudaError_t net_launch(Call &c, const MemberPtr &m, const Part &part, Stream &s);
/* What is on its way is sent first, unless `now`. Not under the lock. */
void net_end(const std::shared_ptr<Net> &net, bool now);

} // namespace emu

#endif
