/* Kernels of several devices that wait for one another: run at the same time, a thread each. */
#include "emu_launch.h"
#include "runtime.h"

#include <algorithm>
#include <map>
#include <sched.h>
#include <thread>

namespace emu {

/* The k-th launch of each rank. */
struct Together : Meeting {
    std::vector<std::pair<emu_kernel, int>> pieces; /* with their devices */
};
using TogetherPtr = std::shared_ptr<Together>;

struct PeerGroup {
    std::map<uint64_t, TogetherPtr> open; /* not all have come to it */
    std::map<unsigned, uint64_t> launches; /* of each rank */
    std::map<unsigned, std::vector<OpPtr>> ops;
    bool stopped = false;
};

static std::map<const void *, PeerGroup> groups; /* with the runtime's lock held */

static cudaError_t run_together(const Together &t) {
    std::vector<cudaError_t> errors(t.pieces.size(), cudaSuccess);
    std::vector<std::thread> threads;
    for (size_t i = 1; i < t.pieces.size(); i++) {
        threads.emplace_back([&, i] { errors[i] = emu_run_kernel(&t.pieces[i].first, t.pieces[i].second); });
    }
    errors[0] = emu_run_kernel(&t.pieces[0].first, t.pieces[0].second);
    for (std::thread &thread : threads) {
        thread.join();
    }
    auto bad = std::find_if(errors.begin(), errors.end(), [](cudaError_t e) { return e != cudaSuccess; });
    return bad == errors.end() ? cudaSuccess : *bad;
}

static void meet(const OpPtr &op, const void *key, unsigned rank, unsigned ranks, const emu_kernel &kernel) {
    PeerGroup &g = groups[key];
    if (g.stopped) {
        op->alone = true;
        return;
    }
    uint64_t k = g.launches[rank]++;
    TogetherPtr &at = g.open[k];
    if (!at) {
        at = std::make_shared<Together>();
        at->expected = ranks;
        Together *t = at.get(); /* lives as long as the operations that take part */
        at->work = [t] { return run_together(*t); };
    }
    TogetherPtr t = at;
    t->ops.push_back(op);
    t->pieces.emplace_back(kernel, op->device);
    op->meetings.push_back(t);
    if (t->ops.size() == ranks) {
        g.open.erase(k);
    }
    std::vector<OpPtr> &own = g.ops[rank];
    own.erase(std::remove_if(own.begin(), own.end(), [](const OpPtr &o) { return o->done; }), own.end());
    own.push_back(op);
}

} // namespace emu

using namespace emu;

cudaError_t emu_enqueue_peers(cudaStream_t stream, const char *name, const void *key, unsigned rank, unsigned ranks,
                              const emu_kernel &kernel) {
    Call c;
    cudaError_t asynchronous = cudaSuccess;
    cudaError_t error = c.error != cudaSuccess ? c.error : inject(c.r, c.lock, EMU_CALL_LAUNCH, &asynchronous);
    Stream *s = error == cudaSuccess ? find_stream(c.r, stream) : nullptr;
    if (error != cudaSuccess || !s) {
        return error != cudaSuccess ? error : cudaErrorInvalidResourceHandle;
    }
    Meet what = [key, rank, ranks, kernel](const OpPtr &op) { meet(op, key, rank, ranks, kernel); };
    if (asynchronous != cudaSuccess) {
        what = [asynchronous](const OpPtr &op) {
            op->alone = true;
            op->work = [asynchronous](int) { return asynchronous; };
        };
    }
    return enqueue_meeting(c.r, c.lock, *s, name, what);
}

void emu_begin_peers(const void *key) {
    Call c(false);
    groups.erase(key);
}

void emu_stop_peers(const void *key, unsigned rank) {
    Call c(false);
    PeerGroup &g = groups[key];
    g.stopped = true;
    for (const OpPtr &op : g.ops[rank]) {
        op->alone = op->alone || !op->done;
    }
    c.r.changed.notify_all();
}

void emu_let_others_run(void) {
    sched_yield();
}
