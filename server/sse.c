#include "sse.h"

void sse_begin(struct buf *out) {
    buf_puts(out, "data: ");
}

void sse_finish(struct buf *out) {
    buf_puts(out, SSE_END);
}

void sse_done(struct buf *out) {
    buf_puts(out, "data: [DONE]\n\n");
}

void sse_ping(struct buf *out) {
    buf_puts(out, ": ping\n\n");
}
