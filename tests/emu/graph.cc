/* Capture of streams into graphs, and graphs. */
#include "emu_launch.h"
#include "runtime.h"

#include <algorithm>

namespace emu {

static thread_local cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;

cudaError_t invalidate(Runtime &r, const CapturePtr &capture, cudaError_t code, const char *what) {
    if (capture->invalid) {
        return fail(r, cudaErrorStreamCaptureInvalidated, "%s: the capture was broken before", what);
    }
    capture->invalid = true;
    return fail(r, code, "%s while a stream is captured", what);
}

cudaError_t refuse_while_capturing(Runtime &r, const char *what) {
    if (thread_mode == cudaStreamCaptureModeRelaxed) {
        return cudaSuccess;
    }
    cudaError_t error = cudaSuccess;
    for (const CapturePtr &c : r.captures) {
        bool mine = c->thread == std::this_thread::get_id() && c->mode != cudaStreamCaptureModeRelaxed;
        bool global = c->mode == cudaStreamCaptureModeGlobal && thread_mode == cudaStreamCaptureModeGlobal;
        if (mine || global) {
            error = invalidate(r, c, cudaErrorStreamCaptureUnsupported, what);
        }
    }
    return error;
}

cudaError_t refuse_legacy(Runtime &r, int device, const char *what) {
    cudaError_t error = cudaSuccess;
    for (auto &s : r.streams) {
        if (s.second->capture && s.second->device == device && !(s.second->flags & cudaStreamNonBlocking)) {
            error = invalidate(r, s.second->capture, cudaErrorStreamCaptureImplicit, what);
        }
    }
    return error;
}

cudaError_t capture_node(Runtime &r, Stream &s, Kind kind, const char *name, int device, uint32_t touches, Work work) {
    Capture &c = *s.capture;
    if (c.invalid) {
        return fail(r, cudaErrorStreamCaptureInvalidated, "%s: the capture was broken before", name);
    }
    Graph &g = *c.graph;
    g.nodes.push_back({std::move(work), name, kind, device, touches, {s.tail.begin(), s.tail.end()}, nullptr});
    s.tail = {g.nodes.size() - 1};
    return cudaSuccess;
}

void end_captures(Runtime &r, int device) {
    for (auto i = r.captures.begin(); i != r.captures.end();) {
        Stream *s = find_stream(r, (*i)->origin);
        (*i)->invalid = true;
        i = !s || s->device == device ? r.captures.erase(i) : std::next(i);
    }
}

/* The nodes of a graph as work of a stream: those without needs after the stream's last, then one that joins all. */
static OpPtr queue_graph(Runtime &r, Stream &s, const Graph &g, const OpPtr &last_launch) {
    std::vector<OpPtr> before = {last_launch};
    stream_needs(r, s, before);
    std::vector<OpPtr> ops;
    for (const Node &n : g.nodes) {
        std::vector<OpPtr> needs;
        if (r.options.no_kernels) {
            break;
        }
        for (size_t i : n.needs) {
            needs.push_back(ops[i]);
        }
        ops.push_back(add_op(r, n.device, n.kind, n.name, n.touches, n.work, needs.empty() ? before : needs));
        ops.back()->of_graph = true;
        if (n.meet) {
            n.meet(ops.back());
        }
    }
    ops.insert(ops.end(), before.begin(), before.end());
    return add_op(r, s.device, Kind::join, "cudaGraphLaunch", 0, nullptr, ops);
}

} // namespace emu

using namespace emu;

extern "C" {

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode) {
    Call c;
    if (c.error != cudaSuccess) {
        return c.error;
    }
    Stream *s = find_stream(c.r, stream);
    if (!s) {
        return fail(c.r, cudaErrorInvalidResourceHandle, "cudaStreamBeginCapture: no such stream");
    }
    if (s->legacy()) {
        return fail(c.r, cudaErrorStreamCaptureUnsupported, "cudaStreamBeginCapture: the default stream");
    }
    if (s->capture) {
        return fail(c.r, cudaErrorIllegalState, "cudaStreamBeginCapture: the stream is captured already");
    }
    if (mode < cudaStreamCaptureModeGlobal || mode > cudaStreamCaptureModeRelaxed) {
        return fail(c.r, cudaErrorInvalidValue, "cudaStreamBeginCapture: mode %d", int(mode));
    }
    cudaError_t error = inject(c.r, c.lock, EMU_CALL_CREATE, nullptr);
    if (error != cudaSuccess) {
        return error;
    }
    auto capture = std::make_shared<Capture>();
    capture->id = c.r.serial++;
    capture->mode = mode;
    capture->thread = std::this_thread::get_id();
    capture->origin = s->handle;
    capture->graph = std::make_shared<Graph>();
    s->capture = capture;
    s->tail.clear();
    c.r.captures.push_back(capture);
    return cudaSuccess;
}

/* Work of a stream of the capture that no path leads from to the end of the origin's. */
static bool unjoined(Runtime &r, const Stream &origin) {
    const Graph &g = *origin.capture->graph;
    std::vector<bool> reached(g.nodes.size());
    for (size_t n : origin.tail) {
        reached[n] = true;
    }
    for (size_t n = g.nodes.size(); n-- > 0;) {
        for (size_t need : g.nodes[n].needs) {
            reached[need] = reached[need] || reached[n];
        }
    }
    (void)r;
    return std::find(reached.begin(), reached.end(), false) != reached.end();
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *pGraph) {
    Call c;
    if (c.error != cudaSuccess) {
        return c.error;
    }
    Stream *s = find_stream(c.r, stream);
    if (!s || !pGraph) {
        return fail(c.r, s ? cudaErrorInvalidValue : cudaErrorInvalidResourceHandle, "cudaStreamEndCapture: %s",
                    s ? "no place for the graph" : "no such stream");
    }
    if (!s->capture) {
        return fail(c.r, cudaErrorIllegalState, "cudaStreamEndCapture: the stream is not captured");
    }
    CapturePtr capture = s->capture;
    if (capture->origin != s->handle) {
        return invalidate(c.r, capture, cudaErrorStreamCaptureUnmatched, "cudaStreamEndCapture on another stream");
    }
    if (capture->mode != cudaStreamCaptureModeRelaxed && capture->thread != std::this_thread::get_id()) {
        return invalidate(c.r, capture, cudaErrorStreamCaptureWrongThread, "cudaStreamEndCapture by another thread");
    }
    bool loose = unjoined(c.r, *s);
    for (auto &other : c.r.streams) {
        if (other.second->capture == capture) {
            other.second->capture = nullptr;
            other.second->tail.clear();
        }
    }
    c.r.captures.erase(std::find(c.r.captures.begin(), c.r.captures.end(), capture));
    *pGraph = nullptr;
    if (capture->invalid) {
        return fail(c.r, cudaErrorStreamCaptureInvalidated, "cudaStreamEndCapture: the capture was broken before");
    }
    if (loose) {
        capture->invalid = true;
        return fail(c.r, cudaErrorStreamCaptureUnjoined, "cudaStreamEndCapture: work of another stream was not joined");
    }
    *pGraph = new_handle<cudaGraph_t>(c.r);
    c.r.graphs[*pGraph] = capture->graph;
    return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *pCaptureStatus) {
    Call c;
    if (c.error != cudaSuccess) {
        return c.error;
    }
    Stream *s = find_stream(c.r, stream);
    if (!s || !pCaptureStatus) {
        return fail(c.r, s ? cudaErrorInvalidValue : cudaErrorInvalidResourceHandle, "cudaStreamIsCapturing");
    }
    for (auto &other : c.r.streams) { /* does not break the capture */
        if (s->legacy() && other.second->capture && other.second->device == s->device &&
            !(other.second->flags & cudaStreamNonBlocking)) {
            return fail(c.r, cudaErrorStreamCaptureImplicit, "cudaStreamIsCapturing on the default stream");
        }
    }
    *pCaptureStatus = !s->capture           ? cudaStreamCaptureStatusNone
                      : s->capture->invalid ? cudaStreamCaptureStatusInvalidated
                                            : cudaStreamCaptureStatusActive;
    return cudaSuccess;
}

cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode) {
    Call c;
    if (c.error != cudaSuccess) {
        return c.error;
    }
    if (!mode || *mode < cudaStreamCaptureModeGlobal || *mode > cudaStreamCaptureModeRelaxed) {
        return fail(c.r, cudaErrorInvalidValue, "cudaThreadExchangeStreamCaptureMode");
    }
    std::swap(*mode, thread_mode);
    return cudaSuccess;
}

static std::shared_ptr<Graph> graph_or_fail(Call &c, cudaGraph_t graph, const char *name) {
    auto i = c.r.graphs.find(graph);
    if (c.error == cudaSuccess && i == c.r.graphs.end()) {
        c.error = fail(c.r, cudaErrorInvalidValue, "%s: no such graph", name);
    }
    return c.error == cudaSuccess ? i->second : nullptr;
}

static GraphExec *exec_or_fail(Call &c, cudaGraphExec_t exec, const char *name) {
    auto i = c.r.execs.find(exec);
    if (c.error == cudaSuccess && i == c.r.execs.end()) {
        c.error = fail(c.r, cudaErrorInvalidValue, "%s: no such graph", name);
    }
    return c.error == cudaSuccess ? i->second.get() : nullptr;
}

/* The handles of nodes stand for their numbers. */
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *numNodes) {
    Call c;
    std::shared_ptr<Graph> g = graph_or_fail(c, graph, "cudaGraphGetNodes");
    if (!g) {
        return c.error;
    }
    if (!numNodes) {
        return fail(c.r, cudaErrorInvalidValue, "cudaGraphGetNodes: no place for the number");
    }
    size_t n = g->nodes.size();
    for (size_t i = 0; nodes && i < *numNodes; i++) {
        nodes[i] = i < n ? reinterpret_cast<cudaGraphNode_t>(uintptr_t(graph) + 1 + i) : nullptr;
    }
    *numNodes = nodes ? std::min(n, *numNodes) : n;
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *pGraphExec, cudaGraph_t graph, unsigned long long flags) {
    Call c;
    std::shared_ptr<Graph> g = graph_or_fail(c, graph, "cudaGraphInstantiate");
    if (g && (!pGraphExec || flags != 0)) {
        c.error = fail(c.r, cudaErrorInvalidValue, "cudaGraphInstantiate: flags %llu", flags);
    }
    if (c.error == cudaSuccess) {
        c.error = refuse_while_capturing(c.r, "cudaGraphInstantiate");
    }
    if (c.error == cudaSuccess) {
        c.error = inject(c.r, c.lock, EMU_CALL_CREATE, nullptr);
    }
    if (c.error == cudaSuccess) {
        auto exec = std::make_unique<GraphExec>();
        exec->graph = std::make_shared<const Graph>(*g);
        *pGraphExec = new_handle<cudaGraphExec_t>(c.r);
        c.r.execs[*pGraphExec] = std::move(exec);
    }
    return c.error;
}

cudaError_t cudaGraphUpload(cudaGraphExec_t graphExec, cudaStream_t stream) {
    Call c;
    if (exec_or_fail(c, graphExec, "cudaGraphUpload") && !find_stream(c.r, stream)) {
        return fail(c.r, cudaErrorInvalidResourceHandle, "cudaGraphUpload: no such stream");
    }
    return c.error;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t graphExec, cudaStream_t stream) {
    Call c;
    GraphExec *exec = exec_or_fail(c, graphExec, "cudaGraphLaunch");
    if (!exec) {
        return c.error;
    }
    Stream *s = find_stream(c.r, stream);
    if (!s) {
        return fail(c.r, cudaErrorInvalidResourceHandle, "cudaGraphLaunch: no such stream");
    }
    if (s->capture) { /* a graph within a graph: nobody here needs it */
        return invalidate(c.r, s->capture, cudaErrorStreamCaptureUnsupported, "cudaGraphLaunch");
    }
    cudaError_t error = s->legacy() ? refuse_legacy(c.r, s->device, "cudaGraphLaunch") : cudaSuccess;
    cudaError_t asynchronous = cudaSuccess;
    if (error == cudaSuccess) {
        error = inject(c.r, c.lock, EMU_CALL_GRAPH_LAUNCH, &asynchronous);
    }
    if (error != cudaSuccess) {
        return error;
    }
    if (asynchronous != cudaSuccess) {
        return remember(
            enqueue(c.r, c.lock, *s, Kind::join, "cudaGraphLaunch", 0, [asynchronous](int) { return asynchronous; }));
    }
    exec->last = s->last = queue_graph(c.r, *s, *exec->graph, exec->last);
    after_enqueue(c.r, c.lock, s->last);
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graphExec) {
    Call c;
    if (exec_or_fail(c, graphExec, "cudaGraphExecDestroy")) {
        c.r.execs.erase(graphExec);
    }
    return c.error;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    Call c;
    if (graph_or_fail(c, graph, "cudaGraphDestroy")) {
        c.r.graphs.erase(graph);
    }
    return c.error;
}
}
