/* A loop shared out among threads that are started for it: for work of seconds, where no pool of a backend is at hand. */
#ifndef INFERD_PARALLEL_H
#define INFERD_PARALLEL_H

#include <stddef.h>

/* fn(arg, i) once for each i < n, on up to `threads` threads (0: as many as the process may run on), the caller's among them. Which
 * thread takes which i is not fixed, so fn(i) must not depend on fn(j). Threads that cannot be started are done without. */
void parallel_for(size_t threads, size_t n, void (*fn)(void *arg, size_t i), void *arg);

#endif
