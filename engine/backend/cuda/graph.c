/* Graphs by capturing the stream: what is queued between begin and end is recorded, not run. */
#include "collective.h"

#include <stdlib.h>

struct backend_graph {
    cudaGraphExec_t exec;
};

int cuda_graph_begin(struct backend *b, struct error *err) {
    TRY(cuda_alive(b, err));
    TRY(cuda_check(b, cudaStreamBeginCapture(b->stream, cudaStreamCaptureModeThreadLocal), "recording a graph", err));
    b->capturing = true;
    return 0;
}

int cuda_graph_end(struct backend *b, struct backend_graph **out, struct error *err) {
    cudaGraph_t graph = NULL;
    struct backend_graph *g = calloc(1, sizeof *g);
    b->capturing = false;
    int rc = cuda_check(b, cudaStreamEndCapture(b->stream, &graph), "recording a graph", err);
    if (rc == 0) {
        rc = g ? cuda_check(b, cudaGraphInstantiate(&g->exec, graph, 0), "making a graph", err) : error_memory(err);
    }
    if (graph) {
        cudaGraphDestroy(graph);
    }
    if (rc == 0) { /* what the device needs of it goes there now, not with its first launch */
        rc = cuda_check(b, cudaGraphUpload(g->exec, b->stream), "placing a graph", err);
    }
    if (rc < 0) {
        cuda_graph_free(b, g);
        return -1;
    }
    *out = g;
    return 0;
}

int cuda_graph_launch(struct backend *b, struct backend_graph *graph, struct error *err) {
    TRY(cuda_alive(b, err));
    TRY(b->group ? cuda_group_enter(b->group, err) : 0);
    TRY(cuda_check(b, cudaGraphLaunch(graph->exec, b->stream), "launching a graph", err));
    return b->group ? cuda_group_leave(b->group, err) : 0;
}

void cuda_graph_free(struct backend *b, struct backend_graph *graph) {
    cuda_use(b);
    if (graph) {
        if (graph->exec) {
            cudaGraphExecDestroy(graph->exec);
        }
        free(graph);
    }
}
