/* Server-sent events (WHATWG HTML, 9.2): data events and comments, nothing else is used. */
#ifndef INFERD_SSE_H
#define INFERD_SSE_H

#include <inferd/buf.h>
#include <stddef.h>

#define SSE_CONTENT_TYPE "text/event-stream; charset=utf-8"

/* Around the bytes of one event. They must have no raw line break: JSON as we write it has none. */
void sse_begin(struct buf *out);
void sse_finish(struct buf *out);
#define SSE_END "\n\n" /* what sse_finish writes, for those whose last bytes are constant */

void sse_done(struct buf *out); /* data: [DONE] */
void sse_ping(struct buf *out); /* a comment, which clients skip */

#endif
