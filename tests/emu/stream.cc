/* Streams and events: queues of work that is done when somebody waits for it, in a random order among the legal ones.
 */
#include "emu_launch.h"
#include "machine.h"
#include "runtime.h"

#include <algorithm>
#include <assert.h>

namespace emu {

extern thread_local bool in_host_function;

Stream *find_stream(Runtime &r, cudaStream_t stream) {
    if (!stream || stream == cudaStreamLegacy) {
        return &here(r).legacy;
    }
    auto i = r.streams.find(stream);
    return i == r.streams.end() ? nullptr : i->second.get();
}

/* ---- queues ---- */

OpPtr add_op(Runtime &r, int device, Kind kind, const char *name, uint32_t touches, Work work,
             const std::vector<OpPtr> &needs) {
    OpPtr op = std::make_shared<Op>();
    op->work = std::move(work);
    op->name = name;
    op->kind = kind;
    op->device = device;
    op->touches = touches;
    op->id = r.next_id++;
    for (const OpPtr &need : needs) {
        if (need && !need->done && std::find(op->needs.begin(), op->needs.end(), need) == op->needs.end()) {
            op->needs.push_back(need);
            need->dependents.push_back(op);
        }
    }
    op->unmet = unsigned(op->needs.size());
    r.pending[op->id] = op;
    if (op->unmet == 0) {
        r.devices[size_t(device)].ready.push_back(op);
    }
    r.changed.notify_all(); /* somebody may wait for what comes to a meeting */
    return op;
}

/* What the next work of a stream waits for: its last, and by the rules of the default stream. */
void stream_needs(Runtime &r, Stream &s, std::vector<OpPtr> &needs) {
    needs.push_back(s.last);
    Device &d = r.devices[size_t(s.device)];
    if (s.legacy()) {
        for (auto &other : r.streams) {
            if (other.second->device == s.device && !(other.second->flags & cudaStreamNonBlocking)) {
                needs.push_back(other.second->last);
            }
        }
    } else if (!(s.flags & cudaStreamNonBlocking)) {
        needs.push_back(d.legacy.last);
    }
}

cudaError_t enqueue(Runtime &r, Lock &lock, Stream &s, Kind kind, const char *name, uint32_t touches, Work work,
                    OpPtr *op) {
    if (s.capture) {
        return capture_node(r, s, kind, name, s.device, touches, std::move(work));
    }
    if (s.legacy()) {
        cudaError_t error = refuse_legacy(r, s.device, name);
        if (error != cudaSuccess) {
            return error;
        }
    }
    if (r.options.no_kernels && (kind == Kind::kernel || kind == Kind::memset)) {
        return cudaSuccess;
    }
    std::vector<OpPtr> needs;
    stream_needs(r, s, needs);
    s.last = add_op(r, s.device, kind, name, touches, std::move(work), needs);
    OpPtr made = s.last;
    if (op) {
        *op = made;
    }
    after_enqueue(r, lock, made);
    return cudaSuccess;
}

cudaError_t enqueue_meeting(Runtime &r, Lock &lock, Stream &s, const char *name, Meet meet) {
    if (s.capture) {
        cudaError_t error = capture_node(r, s, Kind::meeting, name, s.device, 0, nullptr);
        if (error == cudaSuccess) {
            s.capture->graph->nodes.back().meet = std::move(meet);
        }
        return error;
    }
    if (r.options.no_kernels) {
        return cudaSuccess;
    }
    std::vector<OpPtr> needs;
    stream_needs(r, s, needs);
    OpPtr made = s.last = add_op(r, s.device, Kind::meeting, name, 0, nullptr, needs);
    meet(made);
    after_enqueue(r, lock, made);
    return cudaSuccess;
}

/* ---- doing ---- */

/* Whether the meeting can take place. */
static bool is_whole(Runtime &r, const Meeting &m) {
    bool whole = !m.done && m.ops.size() == m.expected;
    for (const OpPtr &op : m.ops) {
        const Device &d = r.devices[size_t(op->device)];
        whole = whole && op->unmet == 0 && !d.busy && d.sticky == cudaSuccess && !op->alone;
    }
    return whole;
}

static MeetingPtr meeting_of(Runtime &r, const OpPtr &op) {
    for (const MeetingPtr &m : op->meetings) {
        if (is_whole(r, *m)) {
            return m;
        }
    }
    return nullptr;
}

/* An operation that meets nobody any more keeps the others waiting. */
static void finish(Runtime &r, const OpPtr &op) {
    for (const MeetingPtr &m : op->meetings) {
        m->expected = m->done ? m->expected : SIZE_MAX;
    }
    op->meetings.clear();
    op->done = true;
    op->done_at = now();
    op->work = nullptr;
    op->needs.clear();
    r.pending.erase(op->id);
    for (const OpPtr &next : op->dependents) {
        if (--next->unmet == 0 && r.pending.count(next->id)) {
            r.devices[size_t(next->device)].ready.push_back(next);
        }
    }
    op->dependents.clear();
}

static uint32_t devices_of(Runtime &r, const Op &op) {
    return op.touches | 1u << op.device | r.devices[size_t(op.device)].peers;
}

/* Before work (1): open the memory of the devices that it may use, and close what nobody uses. Behind it (-1). */
static void hold_memory(Runtime &r, uint32_t wanted, int step) {
    if (!r.options.protect) {
        return;
    }
    for (size_t i = 0; i < r.devices.size(); i++) {
        Device &d = r.devices[i];
        if (wanted >> i & 1u) {
            d.accessing = unsigned(int(d.accessing) + step);
            if (step > 0) {
                set_open(r, int(i), true);
            }
        } else if (d.accessing == 0 && step >= 0) {
            set_open(r, int(i), false);
        }
    }
}

static void drop_ready(Device &d, const OpPtr &op) {
    auto at = std::find(d.ready.begin(), d.ready.end(), op);
    if (at != d.ready.end()) {
        d.ready.erase(at);
    }
}

/* All of them are ready, their devices are free. The lock is released meanwhile. */
static void hold_meeting(Runtime &r, Lock &lock, const MeetingPtr &m) {
    std::vector<OpPtr> ops = m->ops;
    uint32_t held = 0;
    for (const OpPtr &op : ops) {
        r.devices[size_t(op->device)].busy = true;
        held |= devices_of(r, *op);
    }
    m->done = true;
    hold_memory(r, held, 1);
    r.counts.collectives++;
    lock.unlock();
    cudaError_t error = m->work();
    lock.lock();
    hold_memory(r, held, -1);
    for (const OpPtr &op : ops) {
        Device &d = r.devices[size_t(op->device)];
        d.busy = false;
        if (error != cudaSuccess && d.sticky == cudaSuccess) {
            d.sticky = error;
        }
        bool all = std::all_of(op->meetings.begin(), op->meetings.end(), [](const MeetingPtr &other) { return other->done; });
        if (all && !op->done) {
            drop_ready(d, op);
            finish(r, op);
        }
    }
    r.changed.notify_all();
}

/* op is ready, its device is free. The lock is released meanwhile. */
static void execute(Runtime &r, Lock &lock, OpPtr op) {
    Device &d = r.devices[size_t(op->device)];
    MeetingPtr meeting = meeting_of(r, op);
    if (meeting) {
        hold_meeting(r, lock, meeting);
        return;
    }
    drop_ready(d, op);
    if (op->work && d.sticky == cudaSuccess) {
        uint32_t held = devices_of(r, *op); /* peers may change meanwhile */
        d.busy = true;
        hold_memory(r, held, 1);
        if (op->kind == Kind::kernel) {
            (op->of_graph ? r.counts.graph_kernels_run : r.counts.kernels_run)++;
        }
        in_host_function = op->kind == Kind::host_function;
        uint64_t faults = emu_fault_count();
        std::string before;
        before.swap(r.report); /* what stands there afterwards is of this work */
        lock.unlock();
        cudaError_t error = op->work(op->device);
        lock.lock();
        in_host_function = false;
        hold_memory(r, held, -1);
        std::string why = emu_fault_count() != faults ? emu_last_fault() : r.report;
        if (r.report.empty()) {
            r.report.swap(before);
        }
        d.busy = false;
        if (error != cudaSuccess && d.sticky == cudaSuccess) {
            d.sticky = error;
            note(r, error, "%s failed on device %d%s%s", op->name, op->device, why.empty() ? "" : ": ", why.c_str());
        }
    }
    finish(r, op);
    r.changed.notify_all();
}

/* Mark everything that must be done before op. */
static void mark_needed(Runtime &r, const OpPtr &op) {
    uint64_t mark = ++r.mark;
    std::vector<Op *> stack = {op.get()};
    op->mark = mark;
    while (!stack.empty()) {
        Op *at = stack.back();
        stack.pop_back();
        for (const OpPtr &need : at->needs) {
            if (!need->done && need->mark != mark) {
                need->mark = mark;
                stack.push_back(need.get());
            }
        }
        for (const MeetingPtr &m : at->meetings) {
            for (const OpPtr &other : m->ops) {
                if (!other->done && other->mark != mark) {
                    other->mark = mark;
                    stack.push_back(other.get());
                }
            }
        }
    }
}

/* Whether op waits for somebody who has not come to a meeting. */
static bool stands_still(Runtime &r, const OpPtr &op) {
    mark_needed(r, op);
    for (const auto &p : r.pending) {
        if (p.second->mark == r.mark && !p.second->alone) {
            for (const MeetingPtr &m : p.second->meetings) {
                bool dead = std::any_of(m->ops.begin(), m->ops.end(), [&r](const OpPtr &other) {
                    return other->alone || r.devices[size_t(other->device)].sticky != cudaSuccess;
                });
                if (!m->done && (m->ops.size() != m->expected || dead)) {
                    return true;
                }
            }
        }
    }
    return false;
}

enum class Haste { needed, any, others };

/* A ready operation of a free device, or null. */
static OpPtr choose(Runtime &r, const OpPtr &target, Haste haste) {
    std::vector<OpPtr> needed, others;
    if (target) {
        mark_needed(r, target);
    }
    for (Device &d : r.devices) {
        for (const OpPtr &op : d.ready) {
            bool can = op->kind != Kind::meeting || op->alone || d.sticky != cudaSuccess || meeting_of(r, op);
            if (!d.busy && can) {
                (target && op->mark == r.mark ? needed : others).push_back(op);
            }
        }
    }
    if (r.options.order != EMU_ORDER_RANDOM) {
        std::vector<OpPtr> &from = needed.empty() && !target ? others : needed;
        auto first =
            std::min_element(from.begin(), from.end(), [](const OpPtr &a, const OpPtr &b) { return a->id < b->id; });
        return first == from.end() ? nullptr : *first;
    }
    if (haste == Haste::any) {
        needed.insert(needed.end(), others.begin(), others.end());
    }
    std::vector<OpPtr> &from = haste == Haste::others && !others.empty() ? others : needed;
    return from.empty() ? nullptr : from[random_u64(r) % from.size()];
}

static void end_of_work(Runtime &r) {
    bool idle = true;
    for (Device &d : r.devices) {
        idle &= d.accessing == 0;
    }
    if (!idle || !r.options.protect) {
        return;
    }
    bool worked = false;
    for (Device &d : r.devices) {
        worked |= d.open;
    }
    if (worked && check_canaries(r) > 0) {
        here(r).sticky = cudaErrorIllegalAddress;
    }
    hold_memory(r, 0, 0);
}

cudaError_t wait_for(Runtime &r, Lock &lock, OpPtr op) {
    Haste haste = Haste(random_u64(r) % 3);
    int device = op->device;
    while (!op->done) {
        OpPtr next = choose(r, op, haste);
        if (next) {
            execute(r, lock, next);
        } else {
            r.changed.wait(lock); /* another thread works on what is needed */
        }
    }
    end_of_work(r);
    return size_t(device) < r.devices.size() ? r.devices[size_t(device)].sticky : cudaSuccess;
}

cudaError_t wait_for_device(Runtime &r, Lock &lock, int device) {
    std::vector<OpPtr> needs = {r.devices[size_t(device)].legacy.last};
    for (auto &s : r.streams) {
        if (s.second->device == device) {
            needs.push_back(s.second->last);
        }
    }
    /* streams that were destroyed with work in them */
    for (auto &p : r.pending) {
        if (p.second->device == device) {
            needs.push_back(p.second);
        }
    }
    return wait_for(r, lock, add_op(r, device, Kind::join, "", 0, nullptr, needs));
}

/* Everything that can be done, until op is; nobody waits here for a rank that has not come. */
static void do_at_once(Runtime &r, Lock &lock, const OpPtr &op) {
    while (!op->done) {
        OpPtr next = choose(r, nullptr, Haste::any);
        if (next) {
            execute(r, lock, next);
        } else if (stands_still(r, op)) {
            break;
        } else {
            r.changed.wait(lock);
        }
    }
    end_of_work(r);
}

void after_enqueue(Runtime &r, Lock &lock, OpPtr op) {
    if (r.options.order == EMU_ORDER_EAGER) {
        do_at_once(r, lock, op);
    } else if (r.options.order == EMU_ORDER_RANDOM && random_u64(r) % 16 == 0) {
        do_some(r, lock);
    }
}

void do_some(Runtime &r, Lock &lock) {
    uint64_t n = r.options.order == EMU_ORDER_RANDOM ? 1 + random_u64(r) % 8 : 1;
    for (uint64_t i = 0; i < n; i++) {
        OpPtr op = choose(r, nullptr, Haste::others);
        if (!op) {
            break;
        }
        execute(r, lock, op);
    }
    end_of_work(r);
}

void drop_pending(Runtime &r, Lock &lock, int device) {
    (void)lock;
    std::vector<OpPtr> mine;
    for (auto &p : r.pending) {
        if (p.second->device == device) {
            mine.push_back(p.second);
        }
    }
    r.devices[size_t(device)].ready.clear();
    for (const OpPtr &op : mine) {
        finish(r, op);
    }
    r.devices[size_t(device)].ready.clear();
    r.changed.notify_all();
}

/* ---- streams ---- */

static Stream *stream_or_fail(Call &c, cudaStream_t stream, const char *name) {
    Stream *s = c.error == cudaSuccess ? find_stream(c.r, stream) : nullptr;
    if (c.error == cudaSuccess && !s) {
        c.error = fail(c.r, cudaErrorInvalidResourceHandle, "%s: no such stream", name);
    }
    return s;
}

static Event *event_or_fail(Call &c, cudaEvent_t event, const char *name) {
    auto i = c.r.events.find(event);
    if (c.error == cudaSuccess && i == c.r.events.end()) {
        c.error = fail(c.r, cudaErrorInvalidResourceHandle, "%s: no such event", name);
    }
    return c.error == cudaSuccess ? i->second.get() : nullptr;
}

} // namespace emu

using namespace emu;

static cudaError_t queue_launch(Call &c, cudaStream_t stream, const char *name, Work work) {
    Stream *s = stream_or_fail(c, stream, name);
    if (!s) {
        return c.error;
    }
    if (s->device != current_device()) {
        return fail(c.r, cudaErrorInvalidResourceHandle, "%s: a stream of device %d, while %d is current", name,
                    s->device, current_device());
    }
    cudaError_t asynchronous = cudaSuccess;
    if (!s->capture) {
        cudaError_t error = inject(c.r, c.lock, EMU_CALL_LAUNCH, &asynchronous);
        if (error != cudaSuccess) {
            return error;
        }
    }
    if (asynchronous != cudaSuccess) {
        work = [asynchronous](int) { return asynchronous; };
    }
    return remember(enqueue(c.r, c.lock, *s, Kind::kernel, name, 0, std::move(work)));
}

/* As a launch followed by cudaGetLastError: also gives the error that an earlier call left behind. */
cudaError_t emu_enqueue(cudaStream_t stream, const char *name, std::function<cudaError_t(int device)> work) {
    Call c;
    cudaError_t error = queue_launch(c, stream, name, std::move(work));
    cudaError_t last = take_last_error(c.r);
    return error != cudaSuccess ? error : last;
}

extern "C" {

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *pStream, unsigned int flags, int priority) {
    Call c;
    if (c.error == cudaSuccess && (!pStream || flags > cudaStreamNonBlocking)) {
        c.error = fail(c.r, cudaErrorInvalidValue, "cudaStreamCreate: flags %#x", flags);
    }
    if (c.error == cudaSuccess) {
        c.error = inject(c.r, c.lock, EMU_CALL_CREATE, nullptr);
    }
    if (c.error != cudaSuccess) {
        return c.error;
    }
    auto s = std::make_unique<Stream>();
    s->handle = new_handle<cudaStream_t>(c.r);
    s->device = current_device();
    s->flags = flags;
    s->priority = std::max(-5, std::min(0, priority));
    *pStream = s->handle;
    c.r.streams[s->handle] = std::move(s);
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *pStream, unsigned int flags) {
    return cudaStreamCreateWithPriority(pStream, flags, 0);
}

cudaError_t cudaStreamCreate(cudaStream_t *pStream) {
    return cudaStreamCreateWithPriority(pStream, cudaStreamDefault, 0);
}

/* Its work is still done. */
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    Call c;
    Stream *s = stream_or_fail(c, stream, "cudaStreamDestroy");
    if (!s) {
        return c.error;
    }
    if (s->legacy()) {
        return fail(c.r, cudaErrorInvalidResourceHandle, "cudaStreamDestroy: the default stream");
    }
    if (s->capture) {
        invalidate(c.r, s->capture, cudaErrorStreamCaptureUnsupported, "cudaStreamDestroy");
        if (s->capture->origin == s->handle) {
            c.r.captures.erase(std::find(c.r.captures.begin(), c.r.captures.end(), s->capture));
        }
    }
    c.r.streams.erase(stream);
    return cudaSuccess;
}

cudaError_t cudaStreamGetFlags(cudaStream_t hStream, unsigned int *flags) {
    Call c;
    Stream *s = stream_or_fail(c, hStream, "cudaStreamGetFlags");
    if (s) {
        *flags = s->flags;
    }
    return c.error;
}

cudaError_t cudaStreamGetPriority(cudaStream_t hStream, int *priority) {
    Call c;
    Stream *s = stream_or_fail(c, hStream, "cudaStreamGetPriority");
    if (s) {
        *priority = s->priority;
    }
    return c.error;
}

/* The checks that waiting for a stream and asking about it share. */
static Stream *stream_to_ask(Call &c, cudaStream_t stream, const char *name) {
    Stream *s = stream_or_fail(c, stream, name);
    if (s && s->capture) {
        c.error = invalidate(c.r, s->capture, cudaErrorStreamCaptureUnsupported, name);
    } else if (s && s->legacy()) {
        c.error = refuse_legacy(c.r, s->device, name);
    }
    if (s && c.error == cudaSuccess) {
        c.error = refuse_while_capturing(c.r, name);
    }
    return c.error == cudaSuccess ? s : nullptr;
}

/* Waiting for the default stream waits for what its next work would wait for. */
static OpPtr last_of(Runtime &r, Stream &s) {
    if (!s.legacy()) {
        return s.last;
    }
    std::vector<OpPtr> needs;
    stream_needs(r, s, needs);
    return s.last = add_op(r, s.device, Kind::join, "", 0, nullptr, needs);
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    Call c;
    Stream *s = stream_to_ask(c, stream, "cudaStreamSynchronize");
    if (!s) {
        return c.error;
    }
    OpPtr last = last_of(c.r, *s);
    cudaError_t error = inject(c.r, c.lock, EMU_CALL_SYNC, nullptr);
    if (error != cudaSuccess) {
        return error;
    }
    return remember(last ? wait_for(c.r, c.lock, last) : cudaSuccess);
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
    Call c;
    Stream *s = stream_to_ask(c, stream, "cudaStreamQuery");
    if (!s) {
        return c.error;
    }
    OpPtr last = last_of(c.r, *s);
    int device = s->device;
    if (last && !last->done) {
        do_some(c.r, c.lock);
    }
    if (c.r.devices[size_t(device)].sticky != cudaSuccess) {
        return remember(c.r.devices[size_t(device)].sticky);
    }
    return !last || last->done ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int flags) {
    Call c;
    Stream *s = stream_or_fail(c, stream, "cudaStreamWaitEvent");
    Event *e = s ? event_or_fail(c, event, "cudaStreamWaitEvent") : nullptr;
    if (!e) {
        return c.error;
    }
    if (flags != cudaEventWaitDefault) {
        return fail(c.r, cudaErrorInvalidValue, "cudaStreamWaitEvent: flags %#x", flags);
    }
    if (e->capture && s->capture != e->capture) {
        /* the stream joins the capture that the event belongs to */
        if (s->legacy()) {
            return invalidate(c.r, e->capture, cudaErrorStreamCaptureImplicit, "cudaStreamWaitEvent");
        }
        if (s->capture) {
            invalidate(c.r, s->capture, cudaErrorStreamCaptureMerge, "cudaStreamWaitEvent");
            return invalidate(c.r, e->capture, cudaErrorStreamCaptureMerge, "cudaStreamWaitEvent");
        }
        s->capture = e->capture;
        s->tail.clear();
    }
    if (s->capture) {
        if (s->capture->invalid) {
            return fail(c.r, cudaErrorStreamCaptureInvalidated, "cudaStreamWaitEvent: the capture was broken before");
        }
        if (!e->capture) {
            return invalidate(c.r, s->capture, cudaErrorStreamCaptureIsolation, "cudaStreamWaitEvent");
        }
        s->tail.insert(e->nodes.begin(), e->nodes.end());
        return cudaSuccess;
    }
    if (e->record && !e->record->done) {
        std::vector<OpPtr> needs = {e->record};
        stream_needs(c.r, *s, needs);
        s->last = add_op(c.r, s->device, Kind::join, "cudaStreamWaitEvent", 0, nullptr, needs);
        after_enqueue(c.r, c.lock, s->last);
    }
    return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t fn, void *userData) {
    Call c;
    Stream *s = stream_or_fail(c, stream, "cudaLaunchHostFunc");
    if (s && !fn) {
        return fail(c.r, cudaErrorInvalidValue, "cudaLaunchHostFunc: no function");
    }
    return s ? remember(enqueue(c.r, c.lock, *s, Kind::host_function, "cudaLaunchHostFunc", 0,
                                [fn, userData](int) {
                                    fn(userData);
                                    return cudaSuccess;
                                }))
             : c.error;
}

/* ---- events ---- */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int flags) {
    Call c;
    if (c.error == cudaSuccess && (!event || flags > 3)) {
        c.error = fail(c.r, cudaErrorInvalidValue, "cudaEventCreate: flags %#x", flags);
    }
    if (c.error == cudaSuccess) {
        c.error = inject(c.r, c.lock, EMU_CALL_CREATE, nullptr);
    }
    if (c.error == cudaSuccess) {
        auto e = std::make_unique<Event>();
        e->device = current_device();
        e->flags = flags;
        *event = new_handle<cudaEvent_t>(c.r);
        c.r.events[*event] = std::move(e);
    }
    return c.error;
}

cudaError_t cudaEventCreate(cudaEvent_t *event) {
    return cudaEventCreateWithFlags(event, cudaEventDefault);
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    Call c;
    Stream *s = stream_or_fail(c, stream, "cudaEventRecord");
    Event *e = s ? event_or_fail(c, event, "cudaEventRecord") : nullptr;
    if (!e) {
        return c.error;
    }
    if (e->device != s->device) {
        return fail(c.r, cudaErrorInvalidResourceHandle,
                    "cudaEventRecord: an event of device %d in a stream of device %d", e->device, s->device);
    }
    if (s->capture) {
        if (s->capture->invalid) {
            return fail(c.r, cudaErrorStreamCaptureInvalidated, "cudaEventRecord: the capture was broken before");
        }
        e->record = nullptr;
        e->capture = s->capture;
        e->nodes = s->tail;
        return cudaSuccess;
    }
    OpPtr op;
    cudaError_t error = enqueue(
        c.r, c.lock, *s, Kind::event, "cudaEventRecord", 0, [](int) { return cudaSuccess; }, &op);
    auto again = c.r.events.find(event); /* another thread may have destroyed it meanwhile */
    if (error == cudaSuccess && again != c.r.events.end()) {
        again->second->record = op;
        again->second->capture = nullptr;
        again->second->nodes.clear();
    }
    return remember(error);
}

/* The checks that waiting for an event and asking about it share. */
static Event *event_to_ask(Call &c, cudaEvent_t event, const char *name) {
    Event *e = event_or_fail(c, event, name);
    if (e && e->capture) {
        c.error = invalidate(c.r, e->capture, cudaErrorCapturedEvent, name);
    }
    if (e && c.error == cudaSuccess) {
        c.error = refuse_while_capturing(c.r, name);
    }
    return c.error == cudaSuccess ? e : nullptr;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
    Call c;
    Event *e = event_to_ask(c, event, "cudaEventQuery");
    if (!e) {
        return c.error;
    }
    OpPtr record = e->record;
    int device = e->device;
    if (record && !record->done) {
        do_some(c.r, c.lock);
    }
    if (c.r.devices[size_t(device)].sticky != cudaSuccess) {
        return remember(c.r.devices[size_t(device)].sticky);
    }
    return !record || record->done ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    Call c;
    Event *e = event_to_ask(c, event, "cudaEventSynchronize");
    if (!e) {
        return c.error;
    }
    OpPtr record = e->record;
    if (record) {
        c.r.counts.waits_ahead += std::any_of(c.r.pending.begin(), c.r.pending.end(), [&](const auto &p) {
            return p.first > record->id && p.second->device == record->device;
        });
    }
    cudaError_t error = inject(c.r, c.lock, EMU_CALL_SYNC, nullptr);
    if (error != cudaSuccess) {
        return error;
    }
    return remember(record ? wait_for(c.r, c.lock, record) : cudaSuccess);
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end) {
    Call c;
    Event *a = event_or_fail(c, start, "cudaEventElapsedTime");
    Event *b = a ? event_or_fail(c, end, "cudaEventElapsedTime") : nullptr;
    if (!b) {
        return c.error;
    }
    if (!ms) {
        return fail(c.r, cudaErrorInvalidValue, "cudaEventElapsedTime: no place for the answer");
    }
    if (a->capture || b->capture || !a->record || !b->record || ((a->flags | b->flags) & cudaEventDisableTiming)) {
        return fail(c.r, cudaErrorInvalidResourceHandle, "cudaEventElapsedTime: events without a time");
    }
    if (!a->record->done || !b->record->done) {
        return cudaErrorNotReady;
    }
    *ms = float(1e3 * (b->record->done_at - a->record->done_at));
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    Call c;
    if (event_or_fail(c, event, "cudaEventDestroy")) {
        c.r.events.erase(event);
    }
    return c.error;
}
}
