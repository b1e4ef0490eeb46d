/*
 * The inside of the emulated runtime: devices, allocations, streams as queues of operations with dependencies, captures
 * and graphs. One mutex guards all of it; it is free while an operation runs. C++ only.
 */
#ifndef EMU_RUNTIME_H
#define EMU_RUNTIME_H

#include "cuda_runtime.h"
#include "emu.h"

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

namespace emu {

using Lock = std::unique_lock<std::mutex>;
using Work = std::function<cudaError_t(int device)>;

enum class Kind { kernel, copy, memset, host_function, event, join, meeting };

struct Meeting;
using MeetingPtr = std::shared_ptr<Meeting>;

/* A piece of queued work. Done in any order that respects `needs`. */
struct Op {
    Work work; /* empty: only order */
    const char *name = "";
    Kind kind = Kind::join;
    int device = 0;
    uint32_t touches = 0; /* bits of other devices whose memory it uses */
    bool of_graph = false;
    uint64_t id = 0;
    unsigned unmet = 0;
    std::vector<std::shared_ptr<Op>> needs, dependents;
    bool done = false;
    double done_at = 0; /* seconds of the steady clock */
    uint64_t mark = 0;
    std::vector<MeetingPtr> meetings; /* of Kind::meeting: all that it takes part in */
    bool alone = false;               /* waits for no one: its own `work` is done, and it ends */
};
using OpPtr = std::shared_ptr<Op>;
/* What an operation of Kind::meeting, when it is queued, takes part in: fills op->meetings. */
using Meet = std::function<void(const OpPtr &op)>;

/* What operations of several devices do together: at once, when all of them have come and are ready. One that does not come
 * is waited for by the others without end. */
struct Meeting {
    size_t expected = 0; /* operations */
    std::vector<OpPtr> ops;
    std::function<cudaError_t()> work;
    bool done = false;
};

struct Allocation {
    char *base = nullptr; /* first byte mapped; NULL: registered memory of the program */
    size_t mapped = 0;
    char *user = nullptr;
    size_t size = 0;
    int device = 0; /* of pinned memory: current device when it was made */
    bool host = false;
    uint64_t serial = 0;
};

struct Node {
    Work work;
    const char *name;
    Kind kind;
    int device;
    uint32_t touches;
    std::vector<size_t> needs; /* earlier nodes */
    Meet meet;                 /* of Kind::meeting */
};

struct Graph {
    std::vector<Node> nodes;
};

struct Capture {
    uint64_t id = 0;
    cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
    std::thread::id thread;
    cudaStream_t origin = nullptr;
    bool invalid = false;
    std::shared_ptr<Graph> graph;
};
using CapturePtr = std::shared_ptr<Capture>;

struct Stream {
    cudaStream_t handle = nullptr;
    int device = 0;
    unsigned flags = 0;
    int priority = 0;
    OpPtr last;
    CapturePtr capture;
    std::set<size_t> tail; /* while capturing: nodes that the next one needs */

    bool legacy() const {
        return handle == cudaStreamLegacy;
    }
};

struct Event {
    int device = 0;
    unsigned flags = 0;
    OpPtr record; /* null: never recorded */
    CapturePtr capture;
    std::set<size_t> nodes;
};

struct GraphExec {
    std::shared_ptr<const Graph> graph;
    OpPtr last;
};

struct Device {
    bool used = false; /* has a context */
    cudaError_t sticky = cudaSuccess;
    bool busy = false; /* an operation of it runs */
    bool open = false; /* its memory is accessible */
    unsigned accessing = 0;
    uint32_t peers = 0;
    Stream legacy;
    std::vector<OpPtr> ready;
    std::map<const void *, int> shared_allowed;
    std::set<const void *> loaded; /* kernels */
};

struct Injection {
    emu_call call;
    uint64_t first, last; /* counted by `seen` */
    cudaError_t code;     /* cudaSuccess: a stall */
    double stall;
};

struct Runtime {
    std::mutex mutex;
    std::condition_variable changed; /* an operation was done, a device became free */
    emu_options options;
    uint64_t random;
    std::vector<Device> devices;
    std::map<uintptr_t, Allocation> allocations; /* by user address */
    std::map<uintptr_t, Allocation> freed;       /* for reports: addresses are not used again */
    std::unordered_map<cudaStream_t, std::unique_ptr<Stream>> streams;
    std::unordered_map<cudaEvent_t, std::unique_ptr<Event>> events;
    std::unordered_map<cudaGraph_t, std::shared_ptr<Graph>> graphs;
    std::unordered_map<cudaGraphExec_t, std::unique_ptr<GraphExec>> execs;
    std::unordered_map<uint64_t, OpPtr> pending;
    std::vector<CapturePtr> captures;
    std::shared_ptr<void> nccl; /* communicators: nccl.cc */
    std::vector<Injection> injections;
    uint64_t seen[EMU_CALLS] = {};
    std::string trigger;
    emu_counts counts = {};
    std::string report;
    uint64_t next_id = 1, next_handle = 1, serial = 1, mark = 0;

    Runtime();
};

Runtime &runtime();
uint64_t random_u64(Runtime &r); /* SplitMix64 */
double now();

/* ---- control.cc ---- */

/* Say what was wrong, for emu_get_report; returns code. Under the lock. */
cudaError_t note(Runtime &r, cudaError_t code, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Count a call, and what is injected into it. asynchronous: set to a sticky code that its work is to give. */
cudaError_t inject(Runtime &r, Lock &lock, emu_call call, cudaError_t *asynchronous);
void start_devices(Runtime &r);

/* ---- device.cc ---- */

/* Begin a call: the lock, and the error that answers any call now (no device, a sticky error, inside of a kernel). */
struct Call {
    Runtime &r;
    Lock lock;
    cudaError_t error;
    double began = now();
    explicit Call(bool need_device = true);
    ~Call();
};
int current_device();
Device &here(Runtime &r); /* the current one */
/* As note, of the calling thread's own call: also for cudaGetLastError. */
cudaError_t fail(Runtime &r, cudaError_t code, const char *format, ...) __attribute__((format(printf, 3, 4)));
cudaError_t remember(cudaError_t code); /* the thread's last error; returns code */
cudaError_t take_last_error(Runtime &r); /* and forget it, unless it stays with the device */
bool is_sticky(cudaError_t code);
void use_first_device(); /* the calling thread begins anew: device 0, no error */
/* Everything of the device: its queues are dropped, not done. */
void end_device(Runtime &r, Lock &lock, int device);
size_t shared_of_block(int compute); /* bytes that a block may opt in to */

/* ---- memory.cc ---- */

Allocation *find_allocation(Runtime &r, const void *p); /* that holds the byte at p */
/* Whether [p, p + size) is inside one live allocation; otherwise says why in `why`. */
bool inside_allocation(Runtime &r, const void *p, size_t size, const Allocation **found, std::string *why);
void set_open(Runtime &r, int device, bool open);
void release_memory(Runtime &r, int device); /* all of a device's, and pinned memory made while it was current */
size_t check_canaries(Runtime &r);
void arm_handler();

/* ---- stream.cc ---- */

Stream *find_stream(Runtime &r, cudaStream_t stream); /* NULL: no such */
/* Queue, or capture. Under the lock; may run other work meanwhile. */
cudaError_t enqueue(Runtime &r, Lock &lock, Stream &s, Kind kind, const char *name, uint32_t touches, Work work,
                    OpPtr *op = nullptr);
OpPtr add_op(Runtime &r, int device, Kind kind, const char *name, uint32_t touches, Work work,
             const std::vector<OpPtr> &needs);
/* The same for an operation that meets others. */
cudaError_t enqueue_meeting(Runtime &r, Lock &lock, Stream &s, const char *name, Meet meet);
void after_enqueue(Runtime &r, Lock &lock, OpPtr op); /* some of it may be done at once */
/* Do work until op is done. Returns the sticky error of op's device. */
cudaError_t wait_for(Runtime &r, Lock &lock, OpPtr op);
cudaError_t wait_for_device(Runtime &r, Lock &lock, int device);
void do_some(Runtime &r, Lock &lock); /* what happens while somebody polls */
void stream_needs(Runtime &r, Stream &s, std::vector<OpPtr> &needs);
void drop_pending(Runtime &r, Lock &lock, int device);

/* ---- graph.cc ---- */

/* A call that is not allowed while somebody captures (cudaThreadExchangeStreamCaptureMode); invalidates. */
cudaError_t refuse_while_capturing(Runtime &r, const char *what);
/* Something of the default stream: not while a blocking stream of the device captures. */
cudaError_t refuse_legacy(Runtime &r, int device, const char *what);
cudaError_t invalidate(Runtime &r, const CapturePtr &capture, cudaError_t code, const char *what);
cudaError_t capture_node(Runtime &r, Stream &s, Kind kind, const char *name, int device, uint32_t touches, Work work);
void end_captures(Runtime &r, int device);

template <typename H> H new_handle(Runtime &r) {
    return reinterpret_cast<H>(uintptr_t(0x0e00000000000000) + 64 * r.next_handle++);
}

} // namespace emu

#endif
