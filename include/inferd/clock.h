/* Monotonic time, in nanoseconds since an arbitrary start; and wall-clock time for what users read. */
#ifndef INFERD_CLOCK_H
#define INFERD_CLOCK_H

#include <stdint.h>

uint64_t clock_now_ns(void);   /* CLOCK_MONOTONIC */
double clock_lap(uint64_t *since); /* seconds since *since, which becomes now */
int64_t clock_unix_time(void); /* seconds since 1970 */

#endif
