/* NCCL's stand-in: communicators of threads, whose calls meet on their streams (runtime.h, Meeting). */
#include "nccl_inside.h"
#include "cuda_bf16.h"

#include <algorithm>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

namespace emu {

struct Nccl {
    uint64_t next_id = 1;
    std::map<uint64_t, std::shared_ptr<Ranks>> ids;
    std::map<ncclComm_t, MemberPtr> comms;
    std::string last_error;

    ~Nccl() {
        for (auto &i : ids) {
            i.second->forget();
        }
        for (auto &i : comms) {
            i.second->ranks->forget();
        }
    }
};

struct Waiting {
    ncclComm_t comm;
    Part part;
    cudaStream_t stream;
};
static thread_local int group_depth = 0;
static thread_local ncclResult_t group_error = ncclSuccess;
static thread_local std::vector<Waiting> group_parts;

static Nccl &nccl(Runtime &r) {
    if (!r.nccl) {
        r.nccl = std::make_shared<Nccl>();
    }
    return *static_cast<Nccl *>(r.nccl.get());
}

static ncclResult_t refuse(Runtime &r, ncclResult_t code, const char *format, ...) __attribute__((format(printf, 3, 4)));
static ncclResult_t refuse(Runtime &r, ncclResult_t code, const char *format, ...) {
    char text[1024];
    va_list ap;
    va_start(ap, format);
    vsnprintf(text, sizeof text, format, ap);
    va_end(ap);
    nccl(r).last_error = text;
    note(r, cudaErrorUnknown, "%s", text);
    return code;
}

static ncclResult_t of_cuda(Runtime &r, cudaError_t error, const char *what) {
    return error == cudaSuccess ? ncclSuccess : refuse(r, ncclUnhandledCudaError, "%s: %s", what, cudaGetErrorString(error));
}

static MemberPtr find_member(Runtime &r, ncclComm_t comm) {
    auto i = nccl(r).comms.find(comm);
    return i == nccl(r).comms.end() ? nullptr : i->second;
}

size_t type_bytes(ncclDataType_t t) {
    static const size_t bytes[ncclNumTypes] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
    return bytes[t];
}

/* ---- what a round does ---- */

static float load(const void *p, size_t i, ncclDataType_t t) {
    return t == ncclFloat32   ? static_cast<const float *>(p)[i]
           : t == ncclFloat16 ? __half2float(static_cast<const __half *>(p)[i])
                              : __bfloat162float(static_cast<const __nv_bfloat16 *>(p)[i]);
}

static void store(void *p, size_t i, ncclDataType_t t, float v) {
    if (t == ncclFloat32) {
        static_cast<float *>(p)[i] = v;
    } else if (t == ncclFloat16) {
        static_cast<__half *>(p)[i] = __float2half_rn(v);
    } else {
        static_cast<__nv_bfloat16 *>(p)[i] = __float2bfloat16_rn(v);
    }
}

static float combine(float a, float b, ncclRedOp_t op) {
    return op == ncclSum ? a + b : op == ncclMax ? (a > b ? a : b) : op == ncclMin ? (a < b ? a : b) : a * b;
}

/* As a ring does it: a part of the message begins with the rank of its number and is rounded at each that it comes to. So
 * the order in which an element is summed depends on where it lies in the message. */
static void ring_reduce(const Round &round, const Ranks &ranks) {
    const Part &first = round.parts[0].second;
    size_t size = size_t(ranks.size), n = first.n, each = (n + size - 1) / size;
    std::vector<const void *> from(size);
    for (const auto &p : round.parts) {
        from[size_t(p.first->rank)] = p.second.from;
    }
    std::vector<char> result(n * type_bytes(first.type));
    for (size_t i = 0; i < n; i++) {
        for (size_t k = 0; k < size; k++) {
            size_t rank = size_t(ranks.ring[(i / each + k) % size]);
            float v = load(from[rank], i, first.type);
            store(result.data(), i, first.type, k == 0 ? v : combine(load(result.data(), i, first.type), v, first.op));
        }
    }
    for (const auto &p : round.parts) {
        memcpy(p.second.to, result.data(), result.size());
    }
}

static void gather(const Round &round) {
    const Part &first = round.parts[0].second;
    size_t bytes = first.n * type_bytes(first.type);
    std::vector<char> all(bytes * round.parts.size());
    for (const auto &p : round.parts) {
        memcpy(all.data() + size_t(p.first->rank) * bytes, p.second.from, bytes);
    }
    for (const auto &p : round.parts) {
        memcpy(p.second.to, all.data(), all.size());
    }
}

static void hand_on(const Round &round) {
    const Part &first = round.parts[0].second;
    const void *from = nullptr;
    for (const auto &p : round.parts) {
        if (first.what == What::broadcast ? p.first->rank == first.other : p.second.what == What::send) {
            from = p.second.from;
        }
    }
    std::vector<char> bytes(first.n * type_bytes(first.type));
    memcpy(bytes.data(), from, bytes.size());
    for (const auto &p : round.parts) {
        if (p.second.what != What::send) {
            memcpy(p.second.to, bytes.data(), bytes.size());
        }
    }
}

std::string describe(const Member &m, const Part &p) {
    char text[160];
    snprintf(text, sizeof text, "rank %d calls %s of %zu (type %d, operation %d, root or peer %d)", m.rank, names[int(p.what)],
             p.n, int(p.type), int(p.op), p.other);
    return text;
}

static bool agree(const Part &a, const Part &b) {
    bool pair = a.what == What::send || a.what == What::recv;
    return a.n == b.n && a.type == b.type && (pair || (a.what == b.what && a.op == b.op && a.other == b.other));
}

size_t bytes_given(const Member &m, const Part &p) {
    bool gives = p.what != What::recv && (p.what != What::broadcast || p.other == m.rank);
    return gives ? p.n * type_bytes(p.type) : 0;
}

static size_t bytes_taken(const Member &m, const Part &p) {
    return p.what == What::send ? 0 : p.n * type_bytes(p.type) * (p.what == What::all_gather ? size_t(m.ranks->size) : 1);
}

/* Whether the memory is of the member's device. */
static bool has_memory(Runtime &r, const Member &m, const void *p, size_t bytes, std::string *why) {
    const Allocation *a;
    if (bytes == 0) {
        return true;
    }
    if (!inside_allocation(r, p, bytes, &a, why)) {
        return false;
    }
    if (a->host || a->device != m.device) {
        *why = a->host ? "it is memory of the host" : "it is memory of device " + std::to_string(a->device);
        return false;
    }
    return true;
}

static bool may_touch(Runtime &r, const Member &m, const Part &p, std::string *why) {
    return has_memory(r, m, p.from, bytes_given(m, p), why) && has_memory(r, m, p.to, bytes_taken(m, p), why);
}

static cudaError_t do_round(const Round &round, const Ranks &ranks) {
    Runtime &r = runtime();
    const Part &first = round.parts[0].second;
    {
        Lock lock(r.mutex);
        std::string why;
        for (const auto &p : round.parts) {
            if (!agree(first, p.second)) {
                return note(r, cudaErrorLaunchFailure, "the ranks do not do the same: %s, %s",
                            describe(*round.parts[0].first, first).c_str(), describe(*p.first, p.second).c_str());
            }
            if (!may_touch(r, *p.first, p.second, &why)) {
                return note(r, cudaErrorIllegalAddress, "%s when it is done: %s", names[int(p.second.what)], why.c_str());
            }
            r.counts.collective_bytes += bytes_given(*p.first, p.second);
        }
    }
    switch (first.what) {
    case What::all_reduce:
        ring_reduce(round, ranks);
        break;
    case What::all_gather:
        gather(round);
        break;
    default:
        hand_on(round);
    }
    return cudaSuccess;
}

/* ---- queueing ---- */

static void come(const RoundPtr &round, const MemberPtr &m, const Part &p, const OpPtr &op) {
    round->parts.emplace_back(m, p);
    round->ops.push_back(op);
    op->meetings.push_back(round);
    if (!round->work) {
        std::weak_ptr<Round> weak = round;
        std::shared_ptr<Ranks> ranks = m->ranks;
        round->work = [weak, ranks] {
            RoundPtr strong = weak.lock();
            return do_round(*strong, *ranks);
        };
    }
}

static RoundPtr new_round(int expected) {
    RoundPtr round = std::make_shared<Round>();
    round->expected = size_t(expected);
    return round;
}

/* Its next round with all others. */
static void meet_all(const MemberPtr &m, const Part &p, const OpPtr &op) {
    uint64_t number = m->next++;
    RoundPtr &at = m->ranks->rounds[number];
    if (!at) {
        at = new_round(m->ranks->size);
    }
    RoundPtr round = at;
    come(round, m, p, op);
    if (round->ops.size() == round->expected) {
        m->ranks->rounds.erase(number);
    }
}

/* The oldest call of the other that waits for this one. */
static void meet_one(const MemberPtr &m, const Part &p, const OpPtr &op) {
    bool sends = p.what == What::send;
    auto &half = m->ranks->half[sends ? std::make_pair(m->rank, p.other) : std::make_pair(p.other, m->rank)];
    if (!half.empty() && half.front()->parts[0].second.what != p.what) {
        RoundPtr round = half.front();
        half.pop_front();
        come(round, m, p, op);
    } else {
        RoundPtr round = new_round(2);
        half.push_back(round);
        come(round, m, p, op);
    }
}

static Meet meet_of(Runtime &r, const MemberPtr &m, const std::vector<Part> &parts) {
    return [&r, m, parts](const OpPtr &op) {
        m->ops.erase(std::remove_if(m->ops.begin(), m->ops.end(), [](const OpPtr &o) { return o->done; }), m->ops.end());
        if (m->gone) { /* of a graph */
            op->alone = true;
            op->work = [&r](int) {
                Lock lock(r.mutex);
                return note(r, cudaErrorLaunchFailure, "a graph calls NCCL with a communicator that is destroyed");
            };
            return;
        }
        m->ops.push_back(op);
        for (const Part &p : parts) {
            p.what == What::send || p.what == What::recv ? meet_one(m, p, op) : meet_all(m, p, op);
        }
        if (m->async != ncclSuccess) { /* nothing of it goes on */
            for (const MeetingPtr &meeting : op->meetings) {
                meeting->expected = SIZE_MAX;
            }
        }
    };
}

/* The first use of a function connects the ranks, with memory for it. */
static ncclResult_t connect(Call &c, const MemberPtr &m, unsigned bits) {
    unsigned fresh = bits & ~m->used;
    m->used |= bits;
    if (fresh == 0) {
        return ncclSuccess;
    }
    c.lock.unlock();
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    void *p = nullptr;
    cudaThreadExchangeStreamCaptureMode(&mode);
    cudaError_t error = cudaMalloc(&p, 1 << 16);
    cudaThreadExchangeStreamCaptureMode(&mode);
    c.lock.lock();
    m->memory.push_back(p);
    return of_cuda(c.r, error, "NCCL connects its ranks");
}

static ncclResult_t launch(Call &c, ncclComm_t comm, const std::vector<Part> &parts, cudaStream_t stream) {
    MemberPtr m = find_member(c.r, comm);
    if (!m) {
        return refuse(c.r, ncclInvalidArgument, "%s: no such communicator", names[int(parts[0].what)]);
    }
    Stream *s = find_stream(c.r, stream);
    if (!s || s->device != m->device || current_device() != m->device) {
        return refuse(c.r, ncclUnhandledCudaError, "%s: the communicator is device %d's, the stream %s, and %d is current",
                      names[int(parts[0].what)], m->device, s ? std::to_string(s->device).c_str() : "none", current_device());
    }
    unsigned bits = 0;
    for (const Part &p : parts) {
        bits |= 1u << unsigned(p.what);
    }
    ncclResult_t rc = connect(c, m, bits);
    cudaError_t asynchronous = cudaSuccess;
    cudaError_t error = rc == ncclSuccess ? inject(c.r, c.lock, EMU_CALL_COLLECTIVE, &asynchronous) : cudaSuccess;
    s = find_stream(c.r, stream);
    if (rc != ncclSuccess || error != cudaSuccess || !s) {
        return rc != ncclSuccess ? rc : of_cuda(c.r, error, names[int(parts[0].what)]);
    }
    if (m->net) {
        return parts.size() > 1 ? refuse(c.r, ncclInvalidUsage, "%s: a group of calls between processes (the emulator)", names[int(parts[0].what)])
                                : of_cuda(c.r, net_launch(c, m, parts[0], *s), names[int(parts[0].what)]);
    }
    Meet meet = meet_of(c.r, m, parts);
    if (asynchronous != cudaSuccess) {
        meet = [asynchronous](const OpPtr &op) {
            op->alone = true;
            op->work = [asynchronous](int) { return asynchronous; };
        };
    }
    return of_cuda(c.r, enqueue_meeting(c.r, c.lock, *s, names[int(parts[0].what)], meet), names[int(parts[0].what)]);
}

/* What the real one finds at once, and what it would not, but a GPU would. */
static ncclResult_t check(Call &c, ncclComm_t comm, const Part &p) {
    const char *name = names[int(p.what)];
    MemberPtr m = find_member(c.r, comm);
    std::string why;
    if (!m || m->gone) {
        return refuse(c.r, ncclInvalidArgument, "%s: no such communicator", name);
    }
    if (p.type < 0 || p.type >= ncclNumTypes || p.op < ncclSum || p.op > ncclAvg) {
        return refuse(c.r, ncclInvalidArgument, "%s: type %d, operation %d", name, int(p.type), int(p.op));
    }
    if (p.what == What::all_reduce &&
        (p.op == ncclAvg || (p.type != ncclFloat32 && p.type != ncclFloat16 && p.type != ncclBfloat16))) {
        return refuse(c.r, ncclInvalidArgument, "%s: the emulator has no such operation or type", name);
    }
    if (p.other < 0 || p.other >= m->ranks->size) {
        return refuse(c.r, ncclInvalidArgument, "%s: root or peer %d of %d ranks", name, p.other, m->ranks->size);
    }
    if ((p.what == What::send || p.what == What::recv) && p.other == m->rank) {
        return refuse(c.r, ncclInvalidUsage, "%s: rank %d to itself", name, m->rank);
    }
    if (uintptr_t(bytes_given(*m, p) ? p.from : nullptr) % type_bytes(p.type) ||
        uintptr_t(bytes_taken(*m, p) ? p.to : nullptr) % type_bytes(p.type)) {
        return refuse(c.r, ncclInvalidArgument, "%s: an address that is no multiple of its type's size", name);
    }
    if (!may_touch(c.r, *m, p, &why)) {
        return refuse(c.r, ncclInvalidArgument, "%s on device %d: %s", name, m->device, why.c_str());
    }
    if (p.from && p.to && p.what != What::broadcast) { /* in place, or apart */
        const char *from = static_cast<const char *>(p.from), *to = static_cast<const char *>(p.to);
        size_t given = bytes_given(*m, p), taken = bytes_taken(*m, p);
        const char *place = p.what == What::all_gather ? to + size_t(m->rank) * given : to;
        if (from != place && from < to + taken && to < from + given) {
            return refuse(c.r, ncclInvalidArgument, "%s: what is read and what is written overlap", name);
        }
    }
    return ncclSuccess;
}

static ncclResult_t call(ncclComm_t comm, const Part &p, cudaStream_t stream) {
    Call c;
    ncclResult_t rc = of_cuda(c.r, c.error, names[int(p.what)]);
    rc = rc == ncclSuccess ? check(c, comm, p) : rc;
    if (group_depth > 0) {
        group_error = group_error != ncclSuccess ? group_error : rc;
        if (rc == ncclSuccess) {
            group_parts.push_back({comm, p, stream});
        }
        return rc;
    }
    return rc != ncclSuccess || p.n == 0 ? rc : launch(c, comm, {p}, stream);
}

/* The calls of a group: one operation for each communicator. */
static ncclResult_t launch_group(std::vector<Waiting> parts) {
    ncclResult_t rc = ncclSuccess;
    while (!parts.empty() && rc == ncclSuccess) {
        Call c;
        ncclComm_t comm = parts[0].comm;
        cudaStream_t stream = parts[0].stream;
        std::vector<Part> mine;
        std::vector<Waiting> others;
        for (const Waiting &w : parts) {
            if (w.comm != comm) {
                others.push_back(w);
            } else if (w.stream != stream) {
                return refuse(c.r, ncclInvalidUsage, "ncclGroupEnd: two streams of one communicator (the emulator)");
            } else if (w.part.n > 0) {
                mine.push_back(w.part);
            }
        }
        rc = of_cuda(c.r, c.error, "ncclGroupEnd");
        rc = rc == ncclSuccess && !mine.empty() ? launch(c, comm, mine, stream) : rc;
        parts.swap(others);
    }
    return rc;
}

/* ---- communicators ---- */

static void free_memory(const MemberPtr &m) {
    int before = 0;
    cudaGetDevice(&before);
    cudaSetDevice(m->device);
    for (void *p : m->memory) {
        cudaFree(p);
    }
    m->memory.clear();
    cudaSetDevice(before);
}

/* As NCCL has it: where NCCL_COMM_ID says so the id is that place, on all processes, and rank 0 is to be found there. */
static const char at_place[] = "at ";

static ncclResult_t join_processes(Call &c, const char *place, int size, int rank, MemberPtr *out) {
    MemberPtr m = std::make_shared<Member>();
    m->ranks = std::make_shared<Ranks>();
    m->ranks->size = m->ranks->come = size;
    m->rank = rank;
    m->device = current_device();
    c.lock.unlock();
    std::string why = net_join(place, size, rank, &m->net);
    c.lock.lock();
    if (!why.empty()) {
        return refuse(c.r, ncclSystemError, "ncclCommInitRank: rank %d of %d at %s: %s", rank, size, place, why.c_str());
    }
    net_begin(m);
    *out = m;
    return ncclSuccess;
}

static ncclResult_t join(Call &c, std::shared_ptr<Ranks> ranks, int size, int rank, MemberPtr *out) {
    if (ranks->size != 0 && (ranks->size != size || ranks->come == ranks->size)) {
        return refuse(c.r, ncclInvalidArgument, "ncclCommInitRank: %d ranks, and %d of %d are there", size, ranks->come, ranks->size);
    }
    ranks->size = size;
    ranks->members.resize(size_t(size));
    if (ranks->members[size_t(rank)]) {
        return refuse(c.r, ncclInvalidUsage, "ncclCommInitRank: rank %d is there already", rank);
    }
    for (const MemberPtr &m : ranks->members) {
        if (m && m->device == current_device()) {
            return refuse(c.r, ncclInvalidUsage, "ncclCommInitRank: ranks %d and %d are on device %d", m->rank, rank, m->device);
        }
    }
    MemberPtr m = std::make_shared<Member>();
    m->ranks = ranks;
    m->rank = rank;
    m->device = current_device();
    ranks->members[size_t(rank)] = m;
    if (++ranks->come == size) {
        ranks->members.clear();
        for (int i = 0; i < size; i++) {
            ranks->ring.push_back(i);
        }
        for (size_t i = size_t(size); i > 1; i--) {
            std::swap(ranks->ring[i - 1], ranks->ring[random_u64(c.r) % i]);
        }
    }
    c.r.changed.notify_all();
    while (ranks->come < size) {
        c.r.changed.wait(c.lock);
    }
    *out = m;
    return ncclSuccess;
}

/* What is queued and has not met everybody ends, without having done anything. */
static void let_go(Runtime &r, Member &m) {
    m.gone = true;
    for (const OpPtr &op : m.ops) {
        op->alone = op->alone || !op->done;
    }
    m.ops.clear();
    if (++m.ranks->left == m.ranks->size) {
        m.ranks->forget();
    }
    r.changed.notify_all();
}

} // namespace emu

using namespace emu;

extern "C" {

void emu_fail_nccl(int device, int result) {
    Runtime &r = runtime();
    Lock lock(r.mutex);
    for (auto &c : nccl(r).comms) {
        Member &m = *c.second;
        if (m.device == device) {
            m.async = ncclResult_t(result);
            nccl(r).last_error = "injected";
            for (const OpPtr &op : m.ops) {
                for (const MeetingPtr &meeting : op->meetings) {
                    meeting->expected = meeting->done ? meeting->expected : SIZE_MAX;
                }
            }
        }
    }
}

ncclResult_t ncclGetVersion(int *version) {
    if (!version) {
        return ncclInvalidArgument;
    }
    *version = NCCL_VERSION_CODE;
    return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t result) {
    static const char *const texts[ncclNumResults] = {"no error",
                                                      "unhandled cuda error",
                                                      "unhandled system error",
                                                      "internal error",
                                                      "invalid argument",
                                                      "invalid usage",
                                                      "remote process exited or there was a network error",
                                                      "NCCL operation in progress"};
    return unsigned(result) < ncclNumResults ? texts[result] : "unknown result code";
}

const char *ncclGetLastError(ncclComm_t) {
    static thread_local std::string text;
    Runtime &r = runtime();
    Lock lock(r.mutex);
    text = nccl(r).last_error;
    return text.c_str();
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *uniqueId) {
    const char *place = getenv("NCCL_COMM_ID");
    ncclResult_t interface = net_choose_interface(place);
    bool known = !place || net_is_place(place);
    Call c(false);
    if (interface != ncclSuccess || !known) {
        return refuse(c.r, known ? interface : ncclInvalidArgument, "ncclGetUniqueId: %s",
                      known ? "no interface was found when it was first called" : "there is no such place");
    }
    if (!uniqueId) {
        return refuse(c.r, ncclInvalidArgument, "ncclGetUniqueId: no place for the answer");
    }
    memset(uniqueId, 0x5a, sizeof *uniqueId);
    if (place) {
        snprintf(uniqueId->internal, sizeof uniqueId->internal, "%s%s", at_place, place);
        return ncclSuccess;
    }
    uint64_t id = nccl(c.r).next_id++;
    memcpy(uniqueId->internal, &id, sizeof id);
    nccl(c.r).ids[id] = std::make_shared<Ranks>();
    return ncclSuccess;
}

ncclResult_t ncclCommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank) {
    MemberPtr m;
    {
        Call c;
        uint64_t id;
        memcpy(&id, commId.internal, sizeof id);
        auto ranks = nccl(c.r).ids.find(id);
        if (c.error != cudaSuccess || refuse_while_capturing(c.r, "ncclCommInitRank") != cudaSuccess) {
            return refuse(c.r, ncclUnhandledCudaError, "ncclCommInitRank: a stream is captured, or the device is lost");
        }
        if (!comm || nranks < 1 || rank < 0 || rank >= nranks || group_depth > 0) {
            return refuse(c.r, group_depth > 0 ? ncclInvalidUsage : ncclInvalidArgument,
                          "ncclCommInitRank: rank %d of %d, or within a group (the emulator)", rank, nranks);
        }
        bool processes = strncmp(commId.internal, at_place, sizeof at_place - 1) == 0;
        if (!processes && ranks == nccl(c.r).ids.end()) {
            return refuse(c.r, ncclInvalidArgument, "ncclCommInitRank: no such id");
        }
        ncclResult_t rc = processes ? join_processes(c, commId.internal + sizeof at_place - 1, nranks, rank, &m)
                                    : join(c, ranks->second, nranks, rank, &m);
        if (rc != ncclSuccess) {
            return rc;
        }
        nccl(c.r).ids.erase(id); /* it is used up */
        *comm = new_handle<ncclComm_t>(c.r);
        nccl(c.r).comms[*comm] = m;
    }
    void *p = nullptr;
    cudaError_t error = cudaMalloc(&p, 1 << 20);
    m->memory.push_back(p);
    return error == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    MemberPtr m;
    {
        Call c(false);
        m = find_member(c.r, comm);
        if (!m) {
            return refuse(c.r, ncclInvalidArgument, "ncclCommDestroy: no such communicator");
        }
        for (const OpPtr &op : std::vector<OpPtr>(m->ops)) {
            wait_for(c.r, c.lock, op);
        }
        let_go(c.r, *m);
        nccl(c.r).comms.erase(comm);
    }
    net_end(m->net, false);
    free_memory(m);
    return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
    MemberPtr m;
    {
        Call c(false);
        m = find_member(c.r, comm);
        if (!m) {
            return refuse(c.r, ncclInvalidArgument, "ncclCommAbort: no such communicator");
        }
        let_go(c.r, *m);
        nccl(c.r).comms.erase(comm);
    }
    net_end(m->net, true);
    free_memory(m);
    return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *asyncError) {
    Call c(false);
    MemberPtr m = find_member(c.r, comm);
    if (!m || !asyncError) {
        return refuse(c.r, ncclInvalidArgument, "ncclCommGetAsyncError: no such communicator");
    }
    *asyncError = m->async;
    return ncclSuccess;
}

ncclResult_t ncclGroupStart(void) {
    if (group_depth++ == 0) {
        group_error = ncclSuccess;
        group_parts.clear();
    }
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void) {
    if (group_depth == 0) {
        Call c(false);
        return refuse(c.r, ncclInvalidUsage, "ncclGroupEnd: not within a group");
    }
    if (--group_depth > 0) {
        return ncclSuccess;
    }
    std::vector<Waiting> parts;
    parts.swap(group_parts);
    return group_error != ncclSuccess ? group_error : launch_group(std::move(parts));
}

ncclResult_t ncclAllReduce(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
    return call(comm, {What::all_reduce, sendbuff, recvbuff, count, datatype, op, 0}, stream);
}

ncclResult_t ncclAllGather(const void *sendbuff, void *recvbuff, size_t sendcount, ncclDataType_t datatype, ncclComm_t comm,
                           cudaStream_t stream) {
    return call(comm, {What::all_gather, sendbuff, recvbuff, sendcount, datatype, ncclSum, 0}, stream);
}

ncclResult_t ncclBroadcast(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
                           cudaStream_t stream) {
    return call(comm, {What::broadcast, sendbuff, recvbuff, count, datatype, ncclSum, root}, stream);
}

ncclResult_t ncclSend(const void *sendbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm, cudaStream_t stream) {
    return call(comm, {What::send, sendbuff, nullptr, count, datatype, ncclSum, peer}, stream);
}

ncclResult_t ncclRecv(void *recvbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm, cudaStream_t stream) {
    return call(comm, {What::recv, nullptr, recvbuff, count, datatype, ncclSum, peer}, stream);
}
}
