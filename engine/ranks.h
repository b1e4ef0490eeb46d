/*
 * The threads of a process's ranks. Rank 0 is the thread that calls; the others wait for it to tell them what to do, do it all at
 * once, and are waited for. A rank that fails, or does not come back in time, ends it for all: what they do together cannot be
 * taken up again in the middle.
 */
#ifndef INFERD_RANKS_H
#define INFERD_RANKS_H

#include <inferd/collective.h>

struct ranks;

/* One rank's part of a task; `rank` is its number. */
typedef int rank_fn(void *arg, size_t rank, struct error *err);

/* n threads less the caller's, 1 <= n <= COLLECTIVE_MAX_RANKS; they begin with blocked signals, as the caller has them.
 * timeout_ms: how long rank 0 waits for the others behind its own part. */
int ranks_open(size_t n, size_t timeout_ms, struct ranks **out, struct error *err);

/* Who is to hear when a rank fails, so that none waits for it: aborted in any thread. One at a time; NULL: nobody. */
void ranks_set_group(struct ranks *r, struct collective *group);

/*
 * fn on every rank. The error is that of the first to fail, which says its number where there are several. ERROR_DEVICE when one
 * does not come back in time: it is lost then, with all that it works on, and every later call fails alike.
 * `timed` false: as long as it takes (loading).
 */
int ranks_run(struct ranks *r, rank_fn *fn, void *arg, bool timed, struct error *err);

/* A rank that is lost may still be at work: nothing that it sees may be freed. */
bool ranks_lost(const struct ranks *r);

/* NULL is fine. Threads that are lost are left behind. */
void ranks_close(struct ranks *r);

#endif
