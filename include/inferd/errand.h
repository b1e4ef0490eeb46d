/*
 * A call that may block for ever, with a limit: made by a thread of its own, which is left behind in it when the time is up.
 */
#ifndef INFERD_ERRAND_H
#define INFERD_ERRAND_H

#include <stdbool.h>
#include <stddef.h>

/*
 * fn(x) with a copy of x[bytes], which comes back to x when it is done; *code is what it returned. Any thread. False: not done within
 * ms, or not begun; x and *code are as they were then, and what fn uses must not go away.
 */
bool errand_run(int (*fn)(void *x), void *x, size_t bytes, size_t ms, int *code);

#endif
